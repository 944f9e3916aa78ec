//! The keys of tables, merged: what the index is to say of each.
//!
//! Invariants:
//! 1. Of a key, the newest entry counts. A table that was made later, has a value of the key, and versions as old as another's,
//!    has taken those in: a compaction takes in all versions of a live key. Of a key that is not live it only copies
//!    tombstones, so a table that has nothing else has taken in nothing: each of its tombstones counts by itself. And where
//!    something else deletes a version, a compaction writes a tombstone of that number: a table that has as old ones, and was
//!    made before, has taken in nothing.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::versions::{over, supersede};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::location_index::IndexVersion;
use crate::table::{KeyList, Table, TableScan};

/// Bytes that are read at once of a table whose keys are to be listed.
const CHUNK_BYTES: usize = 64 << 10;
/// The most that is worth reading at once of each table of a level.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Bytes that are read at once of all tables together, where nobody has more memory for it.
pub(super) const CHUNKS_BYTES_USUAL: u64 = 4 << 20;

/// The list of a table's keys.
pub(super) fn keys_of(table: &Arc<Table>) -> Result<KeyList> {
    if let Some(keys) = table.take_keys() {
        return Ok(keys);
    }
    let mut scan = table.scan(None, None, CHUNK_BYTES)?;
    let mut keys = KeyList::default();
    while next_key(&mut scan, &mut keys, &mut |_, _| {})? {}
    Ok(keys)
}

/// Adds the next key of a scan to a list. `each` gets its versions, newest first.
fn next_key(
    scan: &mut TableScan,
    keys: &mut KeyList,
    each: &mut dyn FnMut(Seqno, EntryKind),
) -> Result<bool> {
    let Some(entry) = scan.entry() else { return Ok(false) };
    let key = entry.key.to_vec();
    keys.push(&key, scan.leaf(), entry.seqno, entry.kind);
    each(entry.seqno, entry.kind);
    loop {
        scan.next()?;
        let Some(entry) = scan.entry().filter(|entry| entry.key == key) else { return Ok(true) };
        keys.add_version(entry.seqno, entry.kind);
        each(entry.seqno, entry.kind);
    }
}

/// What a table has of a key.
struct OfTable {
    number: u32,
    creation: u64,
    /// It has one key.
    keys: KeyList,
    /// The numbers of the key's tombstones, newest first, if it has nothing else here.
    tombstones: Vec<Seqno>,
}

impl OfTable {
    fn new(number: u32, creation: u64) -> OfTable {
        OfTable { number, creation, keys: KeyList::default(), tombstones: Vec::new() }
    }

    /// Has what `read` adds to the list, whose second parameter is called with each version.
    fn read(
        &mut self,
        read: impl FnOnce(&mut KeyList, &mut dyn FnMut(Seqno, EntryKind)) -> Result<bool>,
    ) -> Result<bool> {
        self.keys = KeyList::default();
        self.tombstones.clear();
        let (tombstones, mut has_others) = (&mut self.tombstones, false);
        read(&mut self.keys, &mut |seqno, kind| {
            has_others |= kind != EntryKind::Delete;
            match has_others {
                true => tombstones.clear(),
                false => tombstones.push(seqno),
            }
        })
    }

    fn newest(&self) -> Seqno {
        self.keys.get(0).map_or(Seqno(0), |listed| listed.newest.0)
    }

    fn order(&self) -> (&[u8], Seqno, u64) {
        let key = self.keys.get(0).map_or(&[][..], |listed| listed.key);
        (key, self.newest(), self.creation)
    }
}

/// The versions of a key that are needed, newest first, and the number of its newest entry. The tables with the key come in
/// the order of their newest versions, and equally new ones as they were made.
fn merged(of_key: &[&OfTable], snapshots: &[Seqno]) -> (Vec<IndexVersion>, Seqno) {
    let tombstones = of_key.iter().flat_map(|it| it.tombstones.iter().copied());
    let mut tombstones: Vec<Seqno> = tombstones.collect();
    tombstones.sort_unstable();
    tombstones.dedup();
    let mut tombstones = tombstones.into_iter().peekable();
    let (mut versions, mut newest) = (Vec::new(), Seqno(0));
    for of_table in of_key.iter().filter(|it| it.tombstones.is_empty()) {
        let Some(listed) = of_table.keys.get(0) else { continue };
        while let Some(tombstone) = tombstones.next_if(|it| *it < listed.newest.0) {
            supersede(&mut versions, 0, Some(tombstone), snapshots);
        }
        // A compaction has taken these in, whose table has stayed.
        let is_taken_in = |version: &IndexVersion| {
            let taken_in = of_key.iter().filter(|other| other.creation < of_table.creation);
            let mut taken_in = taken_in.filter(|other| other.newest() >= listed.oldest.0);
            taken_in.any(|other| other.number == version.location.table)
        };
        versions.retain(|version| !is_taken_in(version));
        versions = over(&listed, of_table.number, &versions, snapshots);
        newest = listed.newest.0;
    }
    for tombstone in tombstones {
        supersede(&mut versions, 0, Some(tombstone), snapshots);
        newest = newest.max(tombstone);
    }
    (versions, newest)
}

/// A table that is read key by key: the least key first, of one key the oldest versions first, and of equally old
/// ones the older table.
struct Next {
    of_table: OfTable,
    scan: Box<TableScan>,
}

impl Next {
    /// Goes to the next key. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.of_table.read(|keys, each| next_key(&mut self.scan, keys, each))
    }

    fn order(&self) -> (&[u8], Seqno, u64) {
        self.of_table.order()
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Next) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Next) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Next) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Next {}

/// The keys of a level's tables, in their order, each with the versions that are needed.
pub(super) struct MergedKeys {
    /// The snapshots that need versions.
    snapshots: Vec<Seqno>,
    next: BinaryHeap<Next>,
    /// The tables that have the key, as they came.
    of_key: Vec<Next>,
    key: Vec<u8>,
    versions: Vec<IndexVersion>,
    newest: Seqno,
}

impl MergedKeys {
    /// So many bytes are read at once of all tables together, if they are enough.
    pub(super) fn new(
        level: &Level,
        snapshots: Vec<Seqno>,
        chunks_bytes: u64,
    ) -> Result<MergedKeys> {
        let mut next = BinaryHeap::with_capacity(level.tables.len());
        let chunk_bytes = chunks_bytes / level.tables.len().max(1) as u64;
        let chunk_bytes = (chunk_bytes as usize).clamp(4096, CHUNK_BYTES_MAX);
        for LevelTable { table, number, .. } in level.tables.iter() {
            let scan = table.scan(None, None, chunk_bytes)?;
            let of_table = OfTable::new(*number, table.properties().creation);
            let mut first = Next { of_table, scan: Box::new(scan) };
            if first.advance()? {
                next.push(first);
            }
        }
        let (of_key, key, versions) = (Vec::new(), Vec::new(), Vec::new());
        Ok(MergedKeys { snapshots, next, of_key, key, versions, newest: Seqno(0) })
    }

    /// Goes to the next key that has versions. Returns false at the end.
    pub(super) fn next(&mut self) -> Result<bool> {
        loop {
            let Some(first) = self.next.peek() else { return Ok(false) };
            self.key.clear();
            self.key.extend_from_slice(first.order().0);
            while self.next.peek().is_some_and(|next| next.order().0 == self.key) {
                self.of_key.extend(self.next.pop());
            }
            let of_key: Vec<&OfTable> = self.of_key.iter().map(|it| &it.of_table).collect();
            (self.versions, self.newest) = merged(&of_key, &self.snapshots);
            for mut of_table in self.of_key.drain(..) {
                if of_table.advance()? {
                    self.next.push(of_table);
                }
            }
            if !self.versions.is_empty() {
                return Ok(true);
            }
        }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The versions of the key, newest first.
    pub(super) fn versions(&self) -> &[IndexVersion] {
        &self.versions
    }

    /// The number of the newest entry of the key.
    pub(super) fn newest(&self) -> Seqno {
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use EntryKind::{Delete, Merge, Put};

    use super::*;
    use crate::cache::PagePointer;

    /// A table with versions of a key, newest first.
    fn table((number, creation): (u32, u64), versions: &[(u64, EntryKind)]) -> OfTable {
        let mut of_table = OfTable::new(number, creation);
        let read = |keys: &mut KeyList, each: &mut dyn FnMut(Seqno, EntryKind)| {
            let leaf = (PagePointer { unit: 0, units: 1 }, false);
            for (at, (seqno, kind)) in versions.iter().enumerate() {
                match at {
                    0 => keys.push(b"k", leaf, Seqno(*seqno), *kind),
                    _ => keys.add_version(Seqno(*seqno), *kind),
                }
                each(Seqno(*seqno), *kind);
            }
            Ok(true)
        };
        assert!(of_table.read(read).unwrap());
        of_table
    }

    /// The tables that are named, and what supersedes them.
    fn named(mut tables: Vec<OfTable>, snapshots: &[u64]) -> Vec<(u32, Option<u64>)> {
        tables.sort_by(|a, b| a.order().cmp(&b.order()));
        let of_key: Vec<&OfTable> = tables.iter().collect();
        let snapshots: Vec<Seqno> = snapshots.iter().copied().map(Seqno).collect();
        let (versions, _) = merged(&of_key, &snapshots);
        let named = |it: &IndexVersion| (it.location.table, it.superseded.map(|seqno| seqno.0));
        versions.iter().map(named).collect()
    }

    /// Tombstones that a merge has copied from before and after a version were taken for a table that has that version.
    #[test]
    fn copied_tombstones_have_taken_in_nothing() {
        let tables = || {
            vec![
                table((1, 1), &[(10, Put)]),
                table((2, 2), &[(30, Put)]),
                table((3, 5), &[(40, Delete), (20, Delete)]),
            ]
        };
        assert_eq!(named(tables(), &[15, 35, 50]), [(2, Some(40)), (1, Some(20))]);
        assert_eq!(named(tables(), &[25, 35, 50]), [(2, Some(40))]);
        assert_eq!(named(tables(), &[50]), []);
    }

    /// A merge of what a snapshot needs writes a tombstone where a memtable's put had deleted it. That memtable, which had
    /// been made before, and had a newer put of the key, was taken for one that had taken in the merge's table.
    #[test]
    fn a_memtable_has_not_taken_in_what_was_made_after_it() {
        let tables = vec![
            table((9, 9), &[(45, Delete), (10, Put)]),
            table((3, 3), &[(50, Put), (45, Put)]),
            table((4, 5), &[(60, Delete)]),
        ];
        assert_eq!(named(tables, &[15, 100]), [(9, Some(45))]);
    }

    /// The same, if it is a copied tombstone that is as old, and the memtable's merge has ended half-way.
    #[test]
    fn a_memtable_has_not_taken_in_what_is_older_than_a_copied_tombstone() {
        let tables = |kind: EntryKind| {
            vec![
                table((1, 1), &[(10, Put)]),
                table((3, 3), &[(50, kind), (47, Delete)]),
                table((5, 6), &[(47, Delete)]),
                table((6, 5), &[(60, Put)]),
            ]
        };
        assert_eq!(named(tables(Put), &[15, 100]), [(6, None), (1, Some(47))]);
        assert_eq!(named(tables(Merge), &[15, 100]), [(6, None), (1, Some(47))]);
    }

    #[test]
    fn what_a_merge_has_taken_in_is_not_named() {
        let tables = vec![
            table((1, 1), &[(10, Put)]),
            table((2, 2), &[(20, Merge)]),
            table((3, 5), &[(30, Merge), (20, Put)]),
        ];
        assert_eq!(named(tables, &[25, 100]), [(3, None)]);
    }
}
