//! The entry model: the entries of memtables, tables and merges, and the cursors over them.

use super::error::Result;
use super::ids::Seqno;

/// What an entry does to its key. The numbers are on disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// The value is the key's value.
    Put = 1,
    /// The key has no value.
    Delete = 2,
    /// The value is an operand for the keyspace's merge operator.
    Merge = 3,
    /// Reserved: deletes `[key, value)`. No writer produces it yet, readers refuse it by name.
    RangeDelete = 4,
    /// As `Put`, but the value bytes are a pointer into a blob file.
    PutBlob = 5,
    /// As `Merge`, but the value bytes are a pointer into a blob file.
    MergeBlob = 6,
}

impl EntryKind {
    /// Decodes the on-disk tag.
    #[inline]
    pub(crate) fn from_tag(tag: u8) -> Option<EntryKind> {
        Some(match tag {
            1 => EntryKind::Put,
            2 => EntryKind::Delete,
            3 => EntryKind::Merge,
            4 => EntryKind::RangeDelete,
            5 => EntryKind::PutBlob,
            6 => EntryKind::MergeBlob,
            _ => return None,
        })
    }

    /// Whether the value bytes are a pointer into a blob file.
    #[inline]
    pub(crate) fn is_blob(self) -> bool {
        matches!(self, EntryKind::PutBlob | EntryKind::MergeBlob)
    }

    /// Whether it is an operand for the keyspace's merge operator, wherever its bytes are.
    #[inline]
    pub(crate) fn is_operand(self) -> bool {
        matches!(self, EntryKind::Merge | EntryKind::MergeBlob)
    }

    /// The kind of the same change once its value is in a blob file; `None` for a kind that has no
    /// value.
    #[inline]
    pub(crate) fn in_blob(self) -> Option<EntryKind> {
        match self {
            EntryKind::Put | EntryKind::PutBlob => Some(EntryKind::PutBlob),
            EntryKind::Merge | EntryKind::MergeBlob => Some(EntryKind::MergeBlob),
            EntryKind::Delete | EntryKind::RangeDelete => None,
        }
    }
}

/// One entry, borrowed from wherever it lies. Entries are ordered by key ascending, then by
/// sequence number descending (newest first).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) seqno: Seqno,
    pub(crate) kind: EntryKind,
    pub(crate) value: &'a [u8],
}

/// A position in a sorted sequence of entries. A new cursor has no position.
pub(crate) trait Cursor {
    /// Goes to the first entry.
    fn seek_first(&mut self) -> Result<()>;
    /// Goes to the last entry.
    fn seek_last(&mut self) -> Result<()>;
    /// Goes to the first entry (the newest version) of the first key `>= key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Goes to the last entry (the oldest version) of the last key `< key`.
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;
    /// Goes one entry forward; past the last there is no position. Needs a position.
    fn next(&mut self) -> Result<()>;
    /// Goes one entry back; before the first there is no position. Needs a position.
    fn prev(&mut self) -> Result<()>;
    /// The entry at the position, or `None` without one.
    fn entry(&self) -> Option<EntryRef<'_>>;
}

/// A sorted sequence of entries read once, forward: what a compaction takes in and what it puts
/// out. A new source stands before its first entry.
pub(crate) trait EntrySource {
    /// Goes one entry forward; past the last there is no entry.
    fn next(&mut self) -> Result<()>;
    /// The entry at the position, or `None` before the first call of `next` and past the last
    /// entry.
    fn entry(&self) -> Option<EntryRef<'_>>;
}
