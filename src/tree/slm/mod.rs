//! SLM-DB: a single level of tables under a B+-tree of all keys (paper: Kaiyrakhmet et al., FAST 2019).
//!
//! A packed memtable is a table of the level, whatever the others hold: nothing is merged for order. The *location
//! index* says which table has a key ([`places`]). A *compaction* merges a few tables of which much is dead, or whose
//! keys lie among one another, and keeps what the index names.
//!
//! It is not finished, and only built with the feature `slm`. What is missing is in docs/decisions/0025.
//!
//! Invariants:
//! 1. Those of `versioned`, `level`, `places` and `plan`.
//! 2. The tables alone say what the tree holds: of a key, the newest entry counts. The index is derived from them, and
//!    outlives the process if its file can be mapped ([`index_file`]).

mod change;
mod check;
mod choose;
mod compaction;
#[cfg(test)]
mod counts_tests;
mod describe;
mod edit;
mod erase;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod index_file;
mod kind;
mod level;
mod level_tables;
mod live_entries;
mod live_ranks;
mod lookup;
mod marked;
mod merged_keys;
mod numbers;
mod open;
mod parameters;
mod pending;
mod places;
mod plan;
mod prune;
#[cfg(test)]
mod prune_tests;
mod rebuild;
mod receive;
#[cfg(test)]
mod receive_tests;
#[cfg(test)]
mod reclaim_tests;
mod registry;
mod room;
mod scattered;
#[cfg(test)]
mod scattered_tests;
mod summary;
mod version;
#[cfg(test)]
mod version_tests;
mod versions;

use std::slice;
use std::sync::Arc;

use self::compaction::Progress;
use self::edit::Body;
use self::erase::Erased;
use self::index_file::{FoundIndex, OpenedIndex};
pub(super) use self::kind::KIND;
use self::level::{Level, LevelRefs};
use self::merged_keys::{CHUNKS_BYTES_USUAL, keys_of};
use self::parameters::Parameters;
use self::pending::Pending;
use self::places::Places;
use self::plan::Plan;
use self::receive::Received;
use self::scattered::Scattered;
use self::summary::Summary;
use self::version::Version;
use super::output::pack_table;
use super::versioned::{Recovered, VersionedKind, VersionedTree};
use super::{
    MappedIndex, NewEntries, PackSource, PackedBytes, TreeContext, TreeOptions, TreeVersion,
};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::Mutex;
use crate::table::Table;

/// So many scans of leaves follow one another, of as many keys as two tables have each.
const LEAF_SCANS_MAX: usize = 2;
/// The lists of pending tables may take this part of the page cache.
const LISTS_PART: usize = 8;
/// The lag while no thread puts keys into the index.
const LAG_OF_OTHERS_MAX: f64 = 0.7;

/// A memtable that comes while the index is built anew helps to put so many others into it. One of them would not make those
/// fewer that are missing, and all of them would take long.
const HELPED_TABLES: usize = 2;

/// A single level under an index.
pub(super) type SlmTree = VersionedTree<Slm>;

/// The kind, and what a tree of it has beyond its versions.
pub(super) struct Slm {
    places: Arc<Places>,
    scattered: Arc<Scattered>,
    /// How far what range deletes have deleted has been removed from the index.
    erased: Mutex<Erased>,
    /// What the index has said when it was opened, if it is to be trusted.
    found: Mutex<Option<FoundIndex>>,
    /// Otherwise it is built, and so many bytes of the tables are read at once.
    build_bytes: u64,
}

/// A packed memtable.
pub(super) struct PackedTable {
    table: Arc<Table>,
    /// The number that the index will name it by.
    number: u32,
    /// The file of the index.
    index: FileId,
}

impl VersionedKind for Slm {
    type Parameters = Parameters;
    type Node = Level;
    type Body = Body;
    type Summary = Summary;
    type Refs = LevelRefs;
    type Packed = PackedTable;
    type Plan = Plan;
    type Progress = Progress;

    const MERGED_MEMTABLES: u64 = 1;

    fn parameters(_context: &TreeContext, options: &TreeOptions) -> Parameters {
        Parameters::new(options)
    }

    fn new(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Slm> {
        let body = recovered.root().map(|record| &record.body);
        let records = &recovered.shared.tables;
        let OpenedIndex { index, file, found } = index_file::open(context, body, records)?;
        let pages_bytes = context.files.cache.capacity_bytes();
        let lists_bytes_max = pages_bytes as usize / LISTS_PART;
        let places =
            Places::new(index, file, found.is_some()).with_lists_bytes_max(lists_bytes_max);
        let places = Arc::new(places);
        // Nothing is in the page cache yet.
        let build_bytes = (pages_bytes / 8).max(pages_bytes.min(CHUNKS_BYTES_USUAL));
        let (scattered, erased) = (Arc::default(), Mutex::default());
        Ok(Slm { places, scattered, erased, found: Mutex::new(found), build_bytes })
    }

    fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Level>> {
        open::open(context, recovered)
    }

    fn opened(&self, root: &Arc<Level>, flushed: Seqno) -> Result<()> {
        let built = match self.found.lock().take() {
            Some(found) => self.places.resume(root, &found, flushed),
            None => self.places.build(root, flushed, self.build_bytes),
        };
        // A part that cannot be read takes no more than itself along: the tables are asked.
        built.inspect_err(|_| self.places.distrust()).or_else(|error| match error {
            Error::Corruption { .. } | Error::Io { .. } => Ok(()),
            error => Err(error),
        })?;
        self.places.shrink();
        Ok(())
    }

    fn encode(root: &Arc<Level>, first_new: u64, before: Option<&LevelRefs>) -> Vec<u8> {
        edit::encode(root, first_new, before)
    }

    fn as_version(version: Arc<Version>) -> Arc<dyn TreeVersion> {
        version
    }

    fn derive(_root: &Arc<Level>, _parameters: &Parameters) {}

    fn summarize(
        &self,
        _root: &Arc<Level>,
        _refs: &LevelRefs,
        _parameters: &Parameters,
    ) -> Summary {
        Summary { places: Arc::clone(&self.places), scattered: Arc::clone(&self.scattered) }
    }

    fn pack(tree: &SlmTree, entries: &mut dyn PackSource) -> Result<(PackedTable, PackedBytes)> {
        let filter = tree.version.load().parameters.filter();
        let (table, bytes) = pack_table(&tree.context, filter, entries, |_| {})?;
        let places = &tree.own.places;
        let (number, index) = (places.next_number()?, places.file_id());
        Ok((PackedTable { table, number, index }, bytes))
    }

    fn packed_tables(packed: &PackedTable) -> &[Arc<Table>] {
        slice::from_ref(&packed.table)
    }

    fn incorporating(tree: &SlmTree, packed: &PackedTable, flushed: Seqno) -> Result<()> {
        let (table, number) = (Arc::clone(&packed.table), packed.number);
        let (places, keys) = (&tree.own.places, keys_of(&table)?);
        // Background threads are behind: this one helps.
        while places.state().pending.len() >= places.pending_max() && tree.receive_some(usize::MAX)
        {
        }
        for _ in 0..HELPED_TABLES {
            if !tree.help_rebuild() {
                break;
            }
        }
        places.register(&table, number);
        places.begin(Pending::new((table, number), keys, flushed, false));
        Ok(())
    }

    fn incorporated(tree: &SlmTree, packed: &PackedTable, is_part: bool) {
        let places = &tree.own.places;
        places.end(packed.number, is_part);
        if !is_part {
            places.forget(slice::from_ref(&packed.table));
        }
    }

    fn closing(tree: &SlmTree) {
        while tree.receive_some(usize::MAX) {}
        let version = tree.version.load();
        tree.own.places.close(&version.root, version.flushed);
    }

    /// Compactions only give back space: writers wait for that by the rules of all trees. But they must not fill memtables
    /// faster than the index receives them.
    fn lag(version: &Version) -> f64 {
        let places = &version.own.places;
        let lag = places.lag();
        // While all threads do other things, slower writers would not help.
        if places.is_receiving() { lag } else { lag.min(LAG_OF_OTHERS_MAX) }
    }

    fn pending_bytes(version: &Version) -> u64 {
        choose::mostly_dead(version).iter().map(|(_, table)| table.properties().entry_bytes()).sum()
    }

    fn index_bytes(version: &Version) -> (u64, u64) {
        version.own.places.disk_bytes()
    }

    fn memory_bytes(version: &Version) -> u64 {
        version.files.tables * 1024 + version.own.places.memory_bytes()
    }

    fn mapped_index(version: &Version) -> MappedIndex {
        version.own.places.mapped_index()
    }

    fn set_index_memory(tree: &SlmTree, bytes: u64) -> u64 {
        tree.own.places.set_index_memory(bytes)
    }

    fn trim_index(tree: &SlmTree) {
        tree.own.places.trim_index();
    }

    fn index_room_bytes(tree: &SlmTree, new: NewEntries) -> u64 {
        tree.own.places.room_bytes(new)
    }
}

impl SlmTree {
    /// Puts at most so many keys of the pending tables into the index. Returns false if none is left.
    fn receive_some(&self, keys_max: usize) -> bool {
        let places = &self.own.places;
        // While the journal is replayed there is no list: nobody reads anything older.
        let snapshots = || match self.context.snapshots() {
            none if none.is_empty() => vec![Seqno::MAX],
            snapshots => snapshots,
        };
        let received = places.receive_some(keys_max, &snapshots);
        let received = received.and_then(|received| {
            if let Received::Tables(tables) = received {
                places.shrink();
                for _ in 0..tables.min(LEAF_SCANS_MAX) {
                    self.look_for_scattered()?;
                }
            }
            Ok(received != Received::All)
        });
        received.unwrap_or_else(|_| {
            // What is not in the index is found in the tables.
            places.distrust();
            false
        })
    }

    /// See [`Places::receive_newer`].
    fn receive_newer(&self, keys_max: usize) -> Result<bool> {
        let (newest, snapshots) = (|| self.newest(), || self.context.snapshots());
        self.own.places.receive_newer(keys_max, &newest, &snapshots)
    }

    /// See [`Places::help_rebuild`].
    fn help_rebuild(&self) -> bool {
        self.own.places.help_rebuild(&|| self.newest(), &|| self.context.snapshots())
    }

    fn newest(&self) -> (Arc<Level>, Seqno) {
        let version = self.version.load();
        (Arc::clone(&version.root), version.flushed)
    }
}
