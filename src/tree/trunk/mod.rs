//! The trunk of an STBε-tree (paper: Conway et al., USENIX ATC 2020), with one of two indexes in its nodes.
//!
//! The *trunk* is a small tree of nodes in memory; its *bundles* refer to *branches* (tables on disk)
//! that hold all entries. A packed memtable is *incorporated* as the root's youngest bundle; a *flush*
//! moves a pivot's live bundles to the child by pointer; a *compaction* merges a node's small branches
//! afterwards, reading only what has not moved on. Each bundle has one *index* over its branches, so
//! that a probe a node, not a probe a branch, tells where a key may be: a *maplet* (SplinterDB's), or a *head*
//! (CompassDB's). The kinds that have the trunk say which ([`branch_index`]).
//!
//! Invariants:
//! 1. Those of `versioned`, `node`, `change`, `plan` and `compaction`.

mod branch_index;
mod change;
mod check;
mod choose;
mod compaction;
mod edit;
#[cfg(feature = "fuzz")]
mod fuzz;
#[cfg(test)]
mod join_tests;
mod lookup;
mod node;
mod open;
mod outstanding;
mod parameters;
mod plan;
mod reclaim;
#[cfg(test)]
mod stale_plan_tests;
#[cfg(test)]
mod test_support;
mod totals;
mod version;

use std::sync::Arc;

use self::branch_index::Company;
use self::compaction::Progress;
use self::edit::Body;
#[cfg(feature = "fuzz")]
pub(super) use self::fuzz::TARGETS as FUZZ_TARGETS;
use self::node::{Bundle, BundleId, Node};
use self::parameters::Parameters;
use self::plan::Plan;
use self::totals::TrunkRefs;
use self::version::{Summary, Version};
use super::output::pack_table;
use super::versioned::{Place, Recovered, VersionedKind, VersionedTree};
use super::{PackSource, PackedBytes, TreeContext, TreeOptions, TreeVersion};
use crate::base::error::Result;
use crate::base::pages::PageVec;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::filter::BloomFilter;
use crate::table::Table;

/// A tree with a trunk.
pub(super) type TrunkTree = VersionedTree<Trunk>;

/// The kind, and what a tree of it has beyond its versions.
pub(super) struct Trunk {
    /// The number of the next bundle that a job makes.
    next_bundle: AtomicU64,
    /// Where two nodes could not be joined for damage, and until when that is not tried again.
    failed_joins: Mutex<Vec<(Place, u64)>>,
}

impl Trunk {
    fn allocate_bundle(&self) -> BundleId {
        BundleId(self.next_bundle.fetch_add(1, Ordering::Relaxed))
    }
}

impl VersionedKind for Trunk {
    type Parameters = Parameters;
    type Node = Node;
    type Body = Body;
    type Summary = Summary;
    type Refs = TrunkRefs;
    type Packed = Arc<Bundle>;
    type Plan = Plan;
    type Progress = Progress;

    /// Leaves share the tables of memtables until the last of them has merged its part.
    const LOAD_SHARE: f64 = 0.13;

    fn shared_memtables(parameters: &Parameters) -> u64 {
        parameters.shared_memtables()
    }

    fn parameters(context: &TreeContext, options: &TreeOptions) -> Parameters {
        Parameters::new(options, context.merge.operator.is_some())
    }

    fn index_entry_bytes(parameters: &Parameters) -> u64 {
        parameters.index_form.entry_bytes()
    }

    fn new(_context: &TreeContext, recovered: &Recovered<Body>) -> Result<Trunk> {
        let last = recovered.shared.keys().next_back().copied().unwrap_or(0);
        Ok(Trunk { next_bundle: AtomicU64::new(last + 1), failed_joins: Mutex::default() })
    }

    fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Node>> {
        open::open(context, recovered)
    }

    fn encode(root: &Arc<Node>, first_new: u64, before: Option<&TrunkRefs>) -> Vec<u8> {
        edit::encode(root, first_new, |bundle| {
            before.is_none_or(|before| !before.has_bundle(bundle.id))
        })
    }

    fn as_version(version: Arc<Version>) -> Arc<dyn TreeVersion> {
        version
    }

    fn derive(root: &Arc<Node>, parameters: &Parameters) {
        root.totals(parameters);
    }

    fn summarize(&self, _: &Arc<Node>, refs: &TrunkRefs, _: &Parameters) -> Summary {
        Summary::new(refs.memory_bytes())
    }

    fn sized(parameters: &Parameters, version: &Version) -> Parameters {
        parameters.sized(version.live.entry_bytes, version.live.keys)
    }

    fn pack(tree: &TrunkTree, entries: &mut dyn PackSource) -> Result<(Arc<Bundle>, PackedBytes)> {
        let mut hashes = PageVec::with_capacity(entries.entries());
        let form = tree.version.load().parameters.index_form;
        let filter = form.table_filter(Company::Young);
        let (table, mut bytes) =
            pack_table(&tree.context, filter, entries, |hash| hashes.push(hash))?;
        let bloom = Some(BloomFilter::of_hashes(&hashes));
        let index = Arc::new(form.of_young(&tree.context.files, &table, hashes)?);
        bytes.written += index.own_bytes();
        let id = tree.own.allocate_bundle();
        Ok((Arc::new(Bundle { id, branches: vec![table], index, bloom }), bytes))
    }

    fn packed_tables(packed: &Arc<Bundle>) -> &[Arc<Table>] {
        &packed.branches
    }

    fn lag(version: &Version) -> f64 {
        Trunk::pending_bytes(version) as f64 / version.parameters.pending_bytes_max as f64
    }

    fn pending_bytes(version: &Version) -> u64 {
        version.root.totals(&version.parameters).pending_bytes
    }

    fn memory_bytes(version: &Version) -> u64 {
        version.own.files_memory_bytes + version.root.totals(&version.parameters).memory_bytes
    }
}
