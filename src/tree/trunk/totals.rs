//! Sums over the nodes of a subtree, kept with each node, and what nodes refer to.

use super::node::{Bundle, BundleId, Node, Totals};
use super::parameters::Parameters;
use crate::base::planted::{Bug, planted};
use crate::tree::files::{Counts, FileRefs};
use crate::tree::versioned::{NodeRefs, TreeNode};

impl Node {
    /// Sums over the node and all below it.
    pub(super) fn totals(&self, parameters: &Parameters) -> &Totals {
        self.derived.totals.get_or(|| {
            let mut totals = self.own_totals(parameters);
            for child in self.children() {
                let below = child.totals(parameters);
                totals.pending_bytes += below.pending_bytes;
                totals.memory_bytes += below.memory_bytes;
            }
            totals
        })
    }

    /// The same of the node alone.
    pub(super) fn own_totals(&self, parameters: &Parameters) -> Totals {
        let pending_bytes = match self.height == 0 && self.bundles.len() >= parameters.bundles_max {
            true => self.live().bytes.saturating_sub(self.leaf_summary().merged_bytes),
            false => 0,
        };
        Totals { pending_bytes, memory_bytes: 256 + 128 * self.pivots.len() as u64 }
    }
}

/// Memory of an open table.
const TABLE_MEMORY_BYTES: u64 = 1024;

/// What nodes refer to: bundles, and through them files.
#[derive(Default, PartialEq)]
pub(in crate::tree) struct TrunkRefs {
    bundles: Counts<BundleId>,
    /// Memory of the bundles, without their tables.
    bundles_memory_bytes: u64,
    /// Counted once per bundle.
    files: FileRefs,
}

impl TrunkRefs {
    /// Whether a node refers to the bundle.
    pub(super) fn has_bundle(&self, id: BundleId) -> bool {
        match planted(Bug::BundleKnownByNumber) {
            true => self.bundles.last().is_some_and(|last| id <= *last),
            false => self.bundles.contains(&id),
        }
    }

    /// Memory of bundles and open files, but for samples.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.bundles_memory_bytes + self.files.totals.tables * TABLE_MEMORY_BYTES
    }
}

fn memory_of(bundle: &Bundle) -> u64 {
    let bloom_bytes = bundle.bloom.as_ref().map_or(0, |bloom| bloom.bytes() as u64);
    let pieces_bytes: u64 = bundle.branches.iter().map(|table| table.piece_memory_bytes()).sum();
    let index_bytes = bundle.index.memory_bytes() + pieces_bytes;
    256 + 24 * bundle.branches.len() as u64 + bloom_bytes + index_bytes
}

impl NodeRefs<Node> for TrunkRefs {
    fn add(&mut self, node: &Node) {
        for bundle in &node.bundles {
            if self.bundles.add(bundle.id) {
                self.bundles_memory_bytes += memory_of(bundle);
                self.files.totals.filter_bytes += bundle.index.own_bytes();
                bundle.branches.iter().for_each(|table| self.files.add(table));
            }
        }
    }

    fn remove(&mut self, node: &Node) {
        for bundle in &node.bundles {
            if self.bundles.remove(&bundle.id) {
                self.bundles_memory_bytes -= memory_of(bundle);
                self.files.totals.filter_bytes -= bundle.index.own_bytes();
                bundle.branches.iter().for_each(|table| self.files.remove(table));
            }
        }
    }

    fn files(&self) -> &FileRefs {
        &self.files
    }
}
