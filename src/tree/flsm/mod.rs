//! PebblesDB's fragmented log-structured merge tree (paper: Raju et al., SOSP 2017).
//!
//! Each level is divided into *guards*: ranges of keys within which tables may overlap. A packed memtable
//! is *incorporated* by reference: the guards that it overlaps on the first level each see their own part
//! of it. A *compaction* merges one guard's tables and appends what it makes of them to the guards below,
//! without reading what is there, so that a byte is written once a level. Only on the last level are
//! tables merged in place. Guards are found where the data is: a guard of the last level that holds too
//! much is divided at keys that it holds, and one with too many below it is divided at some of theirs.
//!
//! Invariants:
//! 1. Those of `versioned`, `guard`, `change`, `plan` and `compaction`.

mod change;
mod check;
mod choose;
mod compaction;
mod describe;
mod edit;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod guard;
mod kind;
mod lookup;
mod open;
mod parameters;
mod plan;
mod reclaim;
mod totals;
mod version;

use std::slice;
use std::sync::Arc;

use self::compaction::Progress;
use self::edit::Body;
use self::guard::Guard;
pub(super) use self::kind::KIND;
use self::lookup::Presence;
use self::parameters::Parameters;
use self::plan::Plan;
use self::totals::GuardRefs;
use self::version::{Summary, Version};
use super::output::pack_table;
use super::versioned::{Recovered, VersionedKind, VersionedTree};
use super::{PackSource, PackedBytes, TreeContext, TreeOptions, TreeVersion};
use crate::base::error::Result;
use crate::table::{Table, TableFilter};

/// A fragmented log-structured merge tree.
pub(super) type FlsmTree = VersionedTree<Flsm>;

/// The kind, and what a tree of it has beyond its versions.
pub(super) struct Flsm {
    presence: Arc<Presence>,
}

impl VersionedKind for Flsm {
    type Parameters = Parameters;
    type Node = Guard;
    type Body = Body;
    type Summary = Summary;
    type Refs = GuardRefs;
    type Packed = Arc<Table>;
    type Plan = Plan;
    type Progress = Progress;

    fn parameters(context: &TreeContext, options: &TreeOptions) -> Parameters {
        Parameters::new(options, &context.files.hasher)
    }

    /// Those of the root: a guard hands its tables on whole.
    fn shared_memtables(parameters: &Parameters) -> u64 {
        parameters.tables_per_guard_max as u64
    }

    fn new(_context: &TreeContext, _recovered: &Recovered<Body>) -> Result<Flsm> {
        Ok(Flsm { presence: Arc::default() })
    }

    fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Guard>> {
        open::open(context, recovered)
    }

    fn encode(root: &Arc<Guard>, first_new: u64, _before: Option<&GuardRefs>) -> Vec<u8> {
        edit::encode(root, first_new)
    }

    fn as_version(version: Arc<Version>) -> Arc<dyn TreeVersion> {
        version
    }

    fn derive(root: &Arc<Guard>, parameters: &Parameters) {
        root.totals(parameters);
    }

    fn summarize(&self, root: &Arc<Guard>, _refs: &GuardRefs, parameters: &Parameters) -> Summary {
        Summary::new(*root.totals(parameters), &self.presence)
    }

    fn pack(tree: &FlsmTree, entries: &mut dyn PackSource) -> Result<(Arc<Table>, PackedBytes)> {
        let filter = TableFilter::blocks(tree.version.load().parameters.filters);
        pack_table(&tree.context, filter, entries, |_| {})
    }

    fn packed_tables(packed: &Arc<Table>) -> &[Arc<Table>] {
        slice::from_ref(packed)
    }

    /// A guard that has just become due delays no writer; at two and a half times its limit, writers have to wait.
    fn lag(version: &Version) -> f64 {
        ((version.own.totals.urgency - 1.0) / 1.5).max(0.0)
    }

    fn pending_bytes(version: &Version) -> u64 {
        version.own.totals.pending_bytes
    }

    fn memory_bytes(version: &Version) -> u64 {
        let totals = &version.own.totals;
        totals.guards * 384 + totals.fragments * 48 + version.files.tables * 1024
    }
}
