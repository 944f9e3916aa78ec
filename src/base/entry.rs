//! The entry model: entries of memtables, tables and merges, and the cursors over them.

use super::error::Result;
use super::ids::Seqno;

/// The effect of an entry on its key. The numbers are part of the disk format: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// Sets the key's value.
    Put = 1,
    /// Deletes the key.
    Delete = 2,
    /// Adds an operand for the keyspace's merge operator.
    Merge = 3,
    /// Deletes the keys in `[key, value)`, and all from `key` on if the value is empty. An operation of batches and of the
    /// journal alone: memtables and tables have none ([`RangeDelete`](super::range_delete::RangeDelete)).
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

    /// Returns true if the value bytes are a pointer into a blob file.
    #[inline]
    pub(crate) fn is_blob(self) -> bool {
        matches!(self, EntryKind::PutBlob | EntryKind::MergeBlob)
    }

    /// Returns true for an operand of the merge operator, inline or in a blob file.
    #[inline]
    pub(crate) fn is_operand(self) -> bool {
        matches!(self, EntryKind::Merge | EntryKind::MergeBlob)
    }

    /// Returns the kind of the same change with its value in a blob file; `None` if the kind has no
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

/// A borrowed entry. Entries are ordered by key, ascending, then by sequence number, descending
/// (newest first).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRef<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) seqno: Seqno,
    pub(crate) kind: EntryKind,
    pub(crate) value: &'a [u8],
}

/// A position in a sorted sequence of entries. A new cursor has no position.
pub(crate) trait Cursor {
    /// Moves to the first entry.
    fn seek_first(&mut self) -> Result<()>;
    /// Moves to the last entry.
    fn seek_last(&mut self) -> Result<()>;
    /// Moves to the first entry (the newest version) of the first key `>= key`.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Moves to the last entry (the oldest version) of the last key `< key`.
    fn seek_before(&mut self, key: &[u8]) -> Result<()>;
    /// Moves forward by one entry. After the last entry there is no position. Needs a position.
    fn next(&mut self) -> Result<()>;
    /// Moves back by one entry. Before the first entry there is no position. Needs a position.
    fn prev(&mut self) -> Result<()>;
    /// Returns the entry at the position; `None` without a position.
    fn entry(&self) -> Option<EntryRef<'_>>;
}

/// A sorted sequence of entries read once, forward: the input and the output of a compaction. A new
/// source is before its first entry.
pub(crate) trait EntrySource {
    /// Moves forward by one entry. After the last entry there is no position.
    fn next(&mut self) -> Result<()>;
    /// Returns the current entry; `None` before the first call of `next` and after the last entry.
    fn entry(&self) -> Option<EntryRef<'_>>;
}
