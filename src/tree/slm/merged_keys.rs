//! The keys of tables, merged: what the index is to say of each.
//!
//! Invariants:
//! 1. Of a key, the newest entry counts. A table that was made later, and has versions as old as another's, has taken
//!    those in.

use std::collections::BinaryHeap;
use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::versions::over;
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
    while next_key(&mut scan, &mut keys)? {}
    Ok(keys)
}

/// Adds the next key of a scan to a list.
fn next_key(scan: &mut TableScan, keys: &mut KeyList) -> Result<bool> {
    let Some(entry) = scan.entry() else { return Ok(false) };
    let key = entry.key.to_vec();
    keys.push(&key, scan.leaf(), entry.seqno, entry.kind);
    loop {
        scan.next()?;
        match scan.entry().filter(|entry| entry.key == key) {
            Some(entry) => keys.add_version(entry.seqno, entry.kind),
            None => return Ok(true),
        }
    }
}

/// A table that is read key by key: the least key first, of one key the oldest versions first, and of equally old
/// ones the older table.
struct Next {
    /// It has one key.
    keys: KeyList,
    scan: TableScan,
    number: u32,
    creation: u64,
}

impl Next {
    /// Goes to the next key. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.keys = KeyList::default();
        next_key(&mut self.scan, &mut self.keys)
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
            let (keys, number) = (KeyList::default(), *number);
            let creation = table.properties().creation;
            let mut of_table = Next { keys, scan, number, creation };
            if of_table.advance()? {
                next.push(of_table);
            }
        }
        Ok(MergedKeys { snapshots, next, key: Vec::new(), versions: Vec::new(), newest: Seqno(0) })
    }

    /// Goes to the next key that has versions. Returns false at the end.
    pub(super) fn next(&mut self) -> Result<bool> {
        loop {
            self.versions.clear();
            let Some(first) = self.next.peek() else { return Ok(false) };
            self.key.clear();
            self.key.extend_from_slice(first.order().0);
            while self.next.peek().is_some_and(|next| next.order().0 == self.key) {
                let Some(mut of_table) = self.next.pop() else { break };
                if let Some(listed) = of_table.keys.get(0) {
                    // A compaction has taken these in, whose table has stayed.
                    if !self.versions.is_empty() && listed.oldest.0 <= self.newest {
                        self.versions.clear();
                    }
                    self.newest = listed.newest.0;
                    self.versions = over(&listed, of_table.number, &self.versions, &self.snapshots);
                }
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
