//! [`KeyList`]: the keys of a table and the leaves in which their versions begin: what an index outside the table
//! needs.
//!
//! Invariants:
//! 1. Keys ascend, each once.

use std::cmp::Ordering;

use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::cache::PagePointer;

/// A key, and what is known of its versions.
struct Record {
    /// Where the key ends in the list's bytes. It begins where the one before ends.
    key_end: usize,
    leaf: u32,
    /// The newest version goes on in the leaf after that.
    is_split: bool,
    versions: u32,
    newest: (Seqno, EntryKind),
    base: Option<Seqno>,
    oldest: (Seqno, EntryKind),
}

/// A key of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedKey<'a> {
    pub(crate) key: &'a [u8],
    /// The leaf in which the newest version begins, and whether that goes on in the next.
    pub(crate) leaf: (PagePointer, bool),
    /// How many versions the table has.
    pub(crate) versions: u32,
    pub(crate) newest: (Seqno, EntryKind),
    /// The oldest version that is no operand: it supersedes what is older.
    pub(crate) base: Option<Seqno>,
    pub(crate) oldest: (Seqno, EntryKind),
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct KeyList {
    bytes: Vec<u8>,
    records: Vec<Record>,
    leaves: Vec<PagePointer>,
}

impl KeyList {
    /// Adds a key with its newest version, which begins in a leaf of this number.
    pub(super) fn add_key(
        &mut self,
        key: &[u8],
        (leaf, is_split): (u32, bool),
        seqno: Seqno,
        kind: EntryKind,
    ) {
        self.bytes.extend_from_slice(key);
        let base = (!kind.is_operand()).then_some(seqno);
        let (key_end, newest) = (self.bytes.len(), (seqno, kind));
        let oldest = newest;
        self.records.push(Record { key_end, leaf, is_split, versions: 1, newest, base, oldest });
    }

    /// Adds a key whose newest version begins in a leaf, and may go on in the next.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        (leaf, is_split): (PagePointer, bool),
        seqno: Seqno,
        kind: EntryKind,
    ) {
        self.add_leaf(leaf);
        self.add_key(key, (self.leaves.len() as u32 - 1, is_split), seqno, kind);
    }

    /// Adds an older version of the last key.
    pub(crate) fn add_version(&mut self, seqno: Seqno, kind: EntryKind) {
        if let Some(record) = self.records.last_mut() {
            record.versions += 1;
            record.oldest = (seqno, kind);
            if !kind.is_operand() {
                record.base = Some(seqno);
            }
        }
    }

    /// The next leaf has been written.
    pub(super) fn add_leaf(&mut self, leaf: PagePointer) {
        self.leaves.push(leaf);
    }

    /// The bytes of all keys.
    pub(crate) fn key_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// A key by its place in the list.
    pub(crate) fn get(&self, at: usize) -> Option<ListedKey<'_>> {
        let record = self.records.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.records[before].key_end);
        let Record { leaf, is_split, versions, newest, base, oldest, .. } = *record;
        let leaf = (*self.leaves.get(leaf as usize)?, is_split);
        let key = self.bytes.get(start..record.key_end)?;
        Some(ListedKey { key, leaf, versions, newest, base, oldest })
    }

    /// Finds a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<ListedKey<'_>> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            let listed = self.get(middle)?;
            match listed.key.cmp(key) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return Some(listed),
            }
        }
        None
    }

    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.records.capacity() * size_of::<Record>()
            + self.leaves.capacity() * size_of::<PagePointer>()
    }
}
