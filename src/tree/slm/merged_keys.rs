//! The keys of tables, merged: what the index is to say of each.
//!
//! Invariants:
//! 1. Of a key, the newest entry counts. A table that has a value of the key, and versions as old as another's, has taken
//!    those in: a compaction takes in all versions of a live key. Of a key that is not live it only copies tombstones, so a
//!    table that has nothing else has taken in nothing: each of its tombstones counts by itself.

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

/// Bytes that are read at once of a table whose keys are to be listed, and of all tables that are listed together.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS_BYTES_MAX: usize = 4 << 20;

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

/// A table that is read key by key: the least key first, of one key the oldest versions first, and of equally old
/// ones the older table.
struct Next {
    /// It has one key.
    keys: KeyList,
    /// The numbers of the key's tombstones, newest first, if it has nothing else here.
    tombstones: Vec<Seqno>,
    scan: TableScan,
    number: u32,
    creation: u64,
}

impl Next {
    /// Goes to the next key. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.keys = KeyList::default();
        self.tombstones.clear();
        let (tombstones, mut has_others) = (&mut self.tombstones, false);
        next_key(&mut self.scan, &mut self.keys, &mut |seqno, kind| {
            has_others |= kind != EntryKind::Delete;
            match has_others {
                true => tombstones.clear(),
                false => tombstones.push(seqno),
            }
        })
    }

    fn order(&self) -> (&[u8], Seqno, u64) {
        let listed = self.keys.get(0);
        let (key, newest) = listed.map_or((&[][..], Seqno(0)), |it| (it.key, it.newest.0));
        (key, newest, self.creation)
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
    pub(super) fn new(level: &Level, snapshots: Vec<Seqno>) -> Result<MergedKeys> {
        let mut next = BinaryHeap::with_capacity(level.tables.len());
        let chunk_bytes = (CHUNKS_BYTES_MAX / level.tables.len().max(1)).clamp(4096, CHUNK_BYTES);
        for LevelTable { table, number, .. } in level.tables.iter() {
            let scan = table.scan(None, None, chunk_bytes)?;
            let (keys, tombstones, number) = (KeyList::default(), Vec::new(), *number);
            let creation = table.properties().creation;
            let mut of_table = Next { keys, tombstones, scan, number, creation };
            if of_table.advance()? {
                next.push(of_table);
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
            self.merge();
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

    /// Finds the versions of the key that are needed.
    fn merge(&mut self) {
        let tombstones = self.of_key.iter().flat_map(|it| it.tombstones.iter().copied());
        let mut tombstones: Vec<Seqno> = tombstones.collect();
        tombstones.sort_unstable();
        tombstones.dedup();
        let mut tombstones = tombstones.into_iter().peekable();
        let (versions, snapshots) = (&mut self.versions, &self.snapshots);
        versions.clear();
        self.newest = Seqno(0);
        for of_table in self.of_key.iter().filter(|it| it.tombstones.is_empty()) {
            let Some(listed) = of_table.keys.get(0) else { continue };
            while let Some(tombstone) = tombstones.next_if(|it| *it < listed.newest.0) {
                supersede(versions, 0, Some(tombstone), snapshots);
                self.newest = tombstone;
            }
            if listed.oldest.0 <= self.newest {
                // A compaction has taken these in, whose table has stayed.
                versions.clear();
            }
            self.newest = listed.newest.0;
            *versions = over(&listed, of_table.number, versions, snapshots);
        }
        for tombstone in tombstones {
            supersede(versions, 0, Some(tombstone), snapshots);
            self.newest = tombstone;
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
