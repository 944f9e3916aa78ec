//! The keys of tables, merged: what the index is to say of each.
//!
//! Invariants:
//! 1. Of a key, the newest entry counts. A table that was made later, has a value of the key, and versions as old as another's,
//!    has taken those in: a compaction takes in all versions of a live key. Of a key that is not live it only copies
//!    tombstones, so a table that has nothing else has taken in nothing: each of its tombstones counts by itself. And where
//!    something else deletes a version, a compaction writes a tombstone of that number: a table that has as old ones, and was
//!    made before, has taken in nothing.

use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::versions::{location, over, supersede};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::location_index::IndexVersion;
use crate::merge::{LoserTree, SourceKeys};
use crate::table::{KeyList, KeyScan, ListedVersions, Table};

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
    let mut scan = KeyScan::new(table, CHUNK_BYTES)?;
    let mut keys = KeyList::default();
    while scan.next()? {
        keys.push(&scan.key().listed());
    }
    Ok(keys)
}

/// What a table has of a key.
struct OfTable {
    number: u32,
    creation: u64,
    versions: ListedVersions,
    /// The numbers of the key's tombstones, newest first, if it has nothing else here.
    tombstones: Vec<Seqno>,
}

/// The versions of a key that are needed, newest first, and the number of its newest entry. The tables with the key come in
/// the order of their newest versions, and equally new ones as they were made.
fn merged(of_key: &[OfTable], snapshots: &[Seqno], versions: &mut Vec<IndexVersion>) -> Seqno {
    versions.clear();
    if let [OfTable { number, versions: listed, .. }] = of_key
        && listed.newest.1 != EntryKind::Delete
    {
        let location = location(listed, *number, false);
        versions.push(IndexVersion { location, superseded: None });
        return listed.newest.0;
    }
    let tombstones = of_key.iter().flat_map(|it| it.tombstones.iter().copied());
    let mut tombstones: Vec<Seqno> = tombstones.collect();
    tombstones.sort_unstable();
    tombstones.dedup();
    let mut tombstones = tombstones.into_iter().peekable();
    let mut newest = Seqno(0);
    for of_table in of_key.iter().filter(|it| it.tombstones.is_empty()) {
        let listed = &of_table.versions;
        while let Some(tombstone) = tombstones.next_if(|it| *it < listed.newest.0) {
            supersede(versions, 0, Some(tombstone), snapshots);
        }
        // A compaction has taken these in, whose table has stayed.
        let is_taken_in = |version: &IndexVersion| {
            let taken_in = of_key.iter().filter(|other| other.creation < of_table.creation);
            let mut taken_in = taken_in.filter(|other| other.versions.newest.0 >= listed.oldest.0);
            taken_in.any(|other| other.number == version.location.table)
        };
        versions.retain(|version| !is_taken_in(version));
        *versions = over(listed, of_table.number, versions, snapshots);
        newest = listed.newest.0;
    }
    for tombstone in tombstones {
        supersede(versions, 0, Some(tombstone), snapshots);
        newest = newest.max(tombstone);
    }
    newest
}

/// A table that is read key by key.
struct Source {
    number: u32,
    creation: u64,
    keys: KeyScan,
}

impl Source {
    /// The key that it is at, and its rank among the sources with that key: the oldest versions first. Of equally old ones, the
    /// source comes first that is first in the order of sources.
    fn place(&self) -> (&[u8], u64) {
        let key = self.keys.key();
        (&key.key, key.versions.newest.0.0)
    }

    fn of_table(&self) -> OfTable {
        let key = self.keys.key();
        let (versions, tombstones) = (key.versions, key.tombstones.clone());
        OfTable { number: self.number, creation: self.creation, versions, tombstones }
    }
}

/// In the order in which their tables were made.
struct Sources(Vec<Source>);

impl SourceKeys for Sources {
    fn key(&self, source: usize) -> &[u8] {
        self.0[source].place().0
    }
}

/// The keys of a level's tables, in their order, each with the versions that are needed.
pub(super) struct MergedKeys {
    /// The snapshots that need versions.
    snapshots: Vec<Seqno>,
    sources: Sources,
    order: LoserTree,
    /// What the tables have of the key, as they came.
    of_key: Vec<OfTable>,
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
        let chunk_bytes = chunks_bytes / level.tables.len().max(1) as u64;
        let chunk_bytes = (chunk_bytes as usize).clamp(4096, CHUNK_BYTES_MAX);
        let mut sources = Vec::with_capacity(level.tables.len());
        for LevelTable { table, number, .. } in level.tables.iter() {
            let (number, creation) = (*number, table.properties().creation);
            let mut source = Source { number, creation, keys: KeyScan::new(table, chunk_bytes)? };
            if source.keys.next()? {
                sources.push(source);
            }
        }
        sources.sort_by_key(|source| source.creation);
        let sources = Sources(sources);
        let mut order = LoserTree::default();
        let rank = |source: usize| Some(sources.0[source].place().1);
        order.build(sources.0.len(), false, &sources, rank);
        let (of_key, key, versions) = (Vec::new(), Vec::new(), Vec::new());
        Ok(MergedKeys { snapshots, sources, order, of_key, key, versions, newest: Seqno(0) })
    }

    /// Goes to the next key that has versions. Returns false at the end.
    pub(super) fn next(&mut self) -> Result<bool> {
        while let Some(first) = self.order.winner() {
            self.key.clear();
            self.key.extend_from_slice(self.sources.key(first));
            self.order.remember_winner(&self.key);
            self.of_key.clear();
            let mut next = Some(first);
            while let Some(source) = next {
                self.of_key.push(self.sources.0[source].of_table());
                let is_at_key = self.sources.0[source].keys.next()?;
                let place = is_at_key.then(|| self.sources.0[source].place());
                self.order.replace_winner(&self.sources, place);
                next = self.order.winner().filter(|_| self.order.winner_equals_base());
            }
            self.newest = merged(&self.of_key, &self.snapshots, &mut self.versions);
            if !self.versions.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
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
    use crate::table::TableKey;

    /// A table with versions of a key, newest first.
    fn table((number, creation): (u32, u64), versions: &[(u64, EntryKind)]) -> OfTable {
        let (mut key, leaf) = (TableKey::none(), PagePointer { unit: 0, units: 1 });
        for (at, (seqno, kind)) in versions.iter().enumerate() {
            match at {
                0 => key.begin(b"k", (leaf, false), Seqno(*seqno), *kind),
                _ => key.add(Seqno(*seqno), *kind),
            }
        }
        OfTable { number, creation, versions: key.versions, tombstones: key.tombstones }
    }

    /// The tables that are named, and what supersedes them.
    fn named(mut tables: Vec<OfTable>, snapshots: &[u64]) -> Vec<(u32, Option<u64>)> {
        tables.sort_by_key(|it| (it.versions.newest.0, it.creation));
        let snapshots: Vec<Seqno> = snapshots.iter().copied().map(Seqno).collect();
        let mut versions = Vec::new();
        merged(&tables, &snapshots, &mut versions);
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
