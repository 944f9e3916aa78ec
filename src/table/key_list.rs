//! [`KeyList`]: the keys of a table and the leaves in which their versions begin: what an index outside the table
//! needs.
//!
//! Invariants:
//! 1. Keys ascend, each once.

use std::cmp::Ordering;

use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::cache::PagePointer;

/// What an index outside a table needs to know of a key's versions there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListedVersions {
    /// The leaf in which the newest version begins, and whether that goes on in the next.
    pub(crate) leaf: (PagePointer, bool),
    /// How many versions the table has.
    pub(crate) count: u32,
    pub(crate) newest: (Seqno, EntryKind),
    /// The oldest version that is no operand: it supersedes what is older.
    pub(crate) base: Option<Seqno>,
    pub(crate) oldest: (Seqno, EntryKind),
}

impl ListedVersions {
    /// One version, which begins in a leaf.
    pub(super) fn one(leaf: (PagePointer, bool), seqno: Seqno, kind: EntryKind) -> ListedVersions {
        let base = (!kind.is_operand()).then_some(seqno);
        let newest = (seqno, kind);
        ListedVersions { leaf, count: 1, newest, base, oldest: newest }
    }

    /// Adds an older version.
    pub(super) fn add(&mut self, seqno: Seqno, kind: EntryKind) {
        self.count += 1;
        self.oldest = (seqno, kind);
        if !kind.is_operand() {
            self.base = Some(seqno);
        }
    }
}

/// A key of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedKey<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) versions: ListedVersions,
}

/// A key, and what is known of its versions. Their leaf's number is in the place of the leaf.
struct Record {
    /// Where the key ends in the list's bytes. It begins where the one before ends.
    key_end: usize,
    leaf: u32,
    /// The newest version goes on in the leaf after that.
    is_split: bool,
    count: u32,
    newest: (Seqno, EntryKind),
    base: Option<Seqno>,
    oldest: (Seqno, EntryKind),
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct KeyList {
    bytes: Vec<u8>,
    records: Vec<Record>,
    leaves: Vec<PagePointer>,
    /// Of keys that have several versions, and tombstones alone, the numbers of all but the newest; each with the key's place
    /// in the list.
    tombstones: Vec<(usize, Seqno)>,
    /// All versions of the last key that have been added are tombstones.
    has_tombstones_alone: bool,
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
        self.has_tombstones_alone = kind == EntryKind::Delete;
        self.records.push(Record { key_end, leaf, is_split, count: 1, newest, base, oldest });
    }

    /// Adds an older version of the last key.
    pub(super) fn add_version(&mut self, seqno: Seqno, kind: EntryKind) {
        let at = self.records.len().saturating_sub(1);
        let Some(record) = self.records.last_mut() else { return };
        let is_of_key = |(of, _): &mut (usize, Seqno)| *of == at;
        if kind != EntryKind::Delete {
            self.has_tombstones_alone = false;
            while self.tombstones.pop_if(is_of_key).is_some() {}
        } else if self.has_tombstones_alone {
            self.tombstones.push((at, seqno));
        }
        record.count += 1;
        record.oldest = (seqno, kind);
        if !kind.is_operand() {
            record.base = Some(seqno);
        }
    }

    /// Adds a key of another list.
    pub(crate) fn push(&mut self, listed: &ListedKey<'_>) {
        self.bytes.extend_from_slice(listed.key);
        let ListedVersions { leaf: (leaf, is_split), count, newest, base, oldest } =
            listed.versions;
        if self.leaves.last() != Some(&leaf) {
            self.add_leaf(leaf);
        }
        let (key_end, leaf) = (self.bytes.len(), self.leaves.len() as u32 - 1);
        self.records.push(Record { key_end, leaf, is_split, count, newest, base, oldest });
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
        let Record { leaf, is_split, count, newest, base, oldest, .. } = *record;
        let leaf = (*self.leaves.get(leaf as usize)?, is_split);
        let key = self.bytes.get(start..record.key_end)?;
        Some(ListedKey { key, versions: ListedVersions { leaf, count, newest, base, oldest } })
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

    /// The list is in the file of its table: what only that has is forgotten.
    pub(super) fn forget_tombstones(&mut self) {
        self.tombstones = Vec::new();
    }

    /// See the field.
    pub(super) fn older_tombstones(&self) -> &[(usize, Seqno)] {
        &self.tombstones
    }

    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.records.capacity() * size_of::<Record>()
            + self.leaves.capacity() * size_of::<PagePointer>()
            + self.tombstones.capacity() * size_of::<(usize, Seqno)>()
    }
}
