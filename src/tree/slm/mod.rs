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
//! 2. The tables alone say what the tree holds: of a key, the newest entry counts. The index is derived from them.

mod change;
mod check;
mod choose;
mod compaction;
mod describe;
mod edit;
mod kind;
mod level;
mod live_entries;
mod lookup;
mod open;
mod parameters;
mod places;
mod plan;
mod receive;
mod scattered;
mod summary;
mod version;

use std::slice;
use std::sync::Arc;

use self::compaction::Progress;
use self::edit::Body;
pub(super) use self::kind::KIND;
use self::level::{Level, LevelRefs};
use self::parameters::Parameters;
use self::places::{Pending, Places};
use self::plan::Plan;
use self::receive::keys_of;
use self::scattered::Scattered;
use self::summary::Summary;
use self::version::Version;
use super::output::pack_table;
use super::versioned::{self, EDIT_VERSION, Recovered, VersionedKind, VersionedTree};
use super::{PackSource, PackedBytes, TreeContext, TreeOptions, TreeVersion};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::table::{Table, TableFilter};

/// A single level under an index.
pub(super) type SlmTree = VersionedTree<Slm>;

/// The kind, and what a tree of it has beyond its versions.
pub(super) struct Slm {
    places: Arc<Places>,
    scattered: Arc<Scattered>,
}

impl VersionedKind for Slm {
    type Parameters = Parameters;
    type Node = Level;
    type Body = Body;
    type Summary = Summary;
    type Refs = LevelRefs;
    type Packed = Arc<Table>;
    type Plan = Plan;
    type Progress = Progress;

    fn parameters(_context: &TreeContext, options: &TreeOptions) -> Parameters {
        Parameters::new(options)
    }

    fn new(context: &TreeContext, _recovered: &Recovered<Body>) -> Result<Slm> {
        // The index is derived from what the manifest names.
        let places = Arc::new(Places::new(&context.manifest.path())?);
        Ok(Slm { places, scattered: Arc::default() })
    }

    fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Level>> {
        open::open(context, recovered)
    }

    fn opened(&self, root: &Arc<Level>, flushed: Seqno) -> Result<()> {
        let built = self.places.build(&root.tables, flushed);
        // A part that cannot be read takes no more than itself along: the tables are asked.
        built.inspect_err(|_| self.places.distrust()).or_else(|error| match error {
            Error::Corruption { .. } | Error::Io { .. } => Ok(()),
            error => Err(error),
        })
    }

    fn encode(root: &Arc<Level>, first_new: u64, _before: Option<&LevelRefs>) -> Vec<u8> {
        versioned::encode(root, first_new, |_, _| EDIT_VERSION, edit::encode_body)
    }

    fn as_version(version: Arc<Version>) -> Arc<dyn TreeVersion> {
        version
    }

    fn derive(_root: &Arc<Level>, _parameters: &Parameters) {}

    fn summarize(&self, root: &Arc<Level>, _refs: &LevelRefs, _parameters: &Parameters) -> Summary {
        Summary::new(&self.places, &self.scattered, &root.tables)
    }

    fn pack(tree: &SlmTree, entries: &mut dyn PackSource) -> Result<(Arc<Table>, PackedBytes)> {
        pack_table(&tree.context, TableFilter::Listed, entries, |_| {})
    }

    fn packed_tables(packed: &Arc<Table>) -> &[Arc<Table>] {
        slice::from_ref(packed)
    }

    fn incorporating(tree: &SlmTree, packed: &Arc<Table>, flushed: Seqno) -> Result<()> {
        let (table, places) = (Arc::clone(packed), &tree.own.places);
        let (number, keys) = (places.number(packed)?, keys_of(packed)?);
        places.begin(Arc::new(Pending { table, number, keys, flushed }));
        Ok(())
    }

    fn incorporated(tree: &SlmTree, is_part: bool) {
        let places = &tree.own.places;
        let state = places.state();
        let Some(pending) = &state.pending else { return };
        if !is_part {
            places.give_up();
            places.forget(std::slice::from_ref(&pending.table));
            return;
        }
        let received = places.receive(pending, &tree.context.snapshots());
        if received.and_then(|()| tree.look_for_scattered()).is_err() {
            // What is not in the index is found in the tables.
            places.distrust();
        }
    }

    /// Compactions only give back space: writers wait for that by the rules of all trees.
    fn lag(_version: &Version) -> f64 {
        0.0
    }

    fn pending_bytes(version: &Version) -> u64 {
        choose::mostly_dead(version).iter().map(|table| table.properties().entry_bytes()).sum()
    }

    fn memory_bytes(version: &Version) -> u64 {
        version.files.tables * 1024 + version.own.places.memory_bytes()
    }
}
