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

/// A key, and its newest version. Most have one.
#[derive(Clone, Copy)]
struct Record {
    /// Where the key ends in the list's bytes. It begins where the one before ends.
    key_end: usize,
    /// Sequence number, whether it goes on in the leaf after its own, and kind.
    newest: u64,
    /// The place of its leaf among the leaves.
    leaf: u32,
}

/// What a key has beside its newest version.
struct Older {
    /// The key's place in the list.
    at: usize,
    /// The number of its versions.
    count: u32,
    base: Option<Seqno>,
    oldest: (Seqno, EntryKind),
}

/// A sequence number has 56 bits; the others have these.
const SEQNO_SHIFT: u32 = 8;
const KIND_MASK: u64 = 0x7f;
const SPLIT_FLAG: u64 = 0x80;

impl Record {
    fn newest(&self) -> (Seqno, EntryKind) {
        // What is written here is read here.
        let kind = EntryKind::from_tag((self.newest & KIND_MASK) as u8).unwrap_or(EntryKind::Put);
        (Seqno(self.newest >> SEQNO_SHIFT), kind)
    }
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct KeyList {
    bytes: Vec<u8>,
    records: Vec<Record>,
    /// Of keys that have several versions, in their order.
    older: Vec<Older>,
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
        self.has_tombstones_alone = kind == EntryKind::Delete;
        let split = if is_split { SPLIT_FLAG } else { 0 };
        let newest = seqno.0 << SEQNO_SHIFT | split | kind as u64;
        self.records.push(Record { key_end: self.bytes.len(), newest, leaf });
    }

    /// Adds an older version of the last key.
    pub(super) fn add_version(&mut self, seqno: Seqno, kind: EntryKind) {
        let Some((at, record)) = self.records.len().checked_sub(1).zip(self.records.last()) else {
            return;
        };
        let is_of_key = |(of, _): &mut (usize, Seqno)| *of == at;
        if kind != EntryKind::Delete {
            self.has_tombstones_alone = false;
            while self.tombstones.pop_if(is_of_key).is_some() {}
        } else if self.has_tombstones_alone {
            self.tombstones.push((at, seqno));
        }
        let newest = record.newest();
        let base = (!newest.1.is_operand()).then_some(newest.0);
        if self.older.last().is_none_or(|older| older.at != at) {
            self.older.push(Older { at, count: 1, base, oldest: newest });
        }
        let Some(older) = self.older.last_mut() else { return };
        older.count += 1;
        older.oldest = (seqno, kind);
        if !kind.is_operand() {
            older.base = Some(seqno);
        }
    }

    /// Adds a key of another list.
    pub(crate) fn push(&mut self, listed: &ListedKey<'_>) {
        let ListedVersions { leaf: (leaf, is_split), count, newest, base, oldest } =
            listed.versions;
        if self.leaves.last() != Some(&leaf) {
            self.add_leaf(leaf);
        }
        let at = self.records.len();
        self.add_key(listed.key, (self.leaves.len() as u32 - 1, is_split), newest.0, newest.1);
        if count > 1 {
            self.older.push(Older { at, count, base, oldest });
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
        let leaf = (*self.leaves.get(record.leaf as usize)?, record.newest & SPLIT_FLAG != 0);
        let (seqno, kind) = record.newest();
        let mut versions = ListedVersions::one(leaf, seqno, kind);
        if let Ok(found) = self.older.binary_search_by_key(&at, |older| older.at) {
            let Older { count, base, oldest, .. } = self.older[found];
            versions = ListedVersions { count, base, oldest, ..versions };
        }
        Some(ListedKey { key: self.key(at)?, versions })
    }

    /// The key at a place of the list.
    pub(crate) fn key(&self, at: usize) -> Option<&[u8]> {
        let end = self.records.get(at)?.key_end;
        let start = at.checked_sub(1).map_or(0, |before| self.records[before].key_end);
        self.bytes.get(start..end)
    }

    /// Finds a key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<ListedKey<'_>> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match self.key(middle)?.cmp(key) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return self.get(middle),
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
            + self.older.capacity() * size_of::<Older>()
            + self.leaves.capacity() * size_of::<PagePointer>()
            + self.tombstones.capacity() * size_of::<(usize, Seqno)>()
    }
}
