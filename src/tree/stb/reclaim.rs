//! What a full compaction of a leaf would give back.
//!
//! Superseded entries and tombstones are the leaf's own, and maplets tell how many there are. The other part
//! lies in tables that several leaves share, as they do after a flush or a split: what a leaf has merged
//! elsewhere is dead in them, but they stay until the last has. A table that is dead nowhere is no gain,
//! however much of it lies outside the leaf: merging one half of a split leaf only makes a copy.
//!
//! Invariants:
//! 1. A table that is live in an index node counts as live: it will be read by leaves to come.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::node::{Node, walk};
use crate::base::ids::FileId;
use crate::table::Table;
use crate::tree::files::dead_blob_gain;

/// Of one table: bytes that are live in leaves, and bytes that are live nowhere.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    live: u64,
    dead: u64,
}

/// What is dead in each table that only leaves refer to.
pub(super) struct DeadParts {
    parts: BTreeMap<FileId, Part>,
    /// Blob files that are mostly dead.
    blobs: Vec<FileId>,
}

/// The tables of a leaf, with how much of each lies in it.
fn tables(leaf: &Node) -> impl Iterator<Item = (&Arc<Table>, u64)> {
    let branches = leaf.bundles.iter().flat_map(|bundle| &bundle.branches);
    branches.zip(leaf.leaf_summary().table_bytes.iter().copied())
}

impl DeadParts {
    /// `blobs`: files of which most is dead.
    pub(super) fn new(root: &Arc<Node>, blobs: Vec<FileId>) -> DeadParts {
        let mut parts: BTreeMap<FileId, Part> = BTreeMap::new();
        let mut on_their_way = Vec::new();
        walk(root, &mut |node| {
            if node.height > 0 {
                let branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
                on_their_way.extend(branches.map(|table| table.id()));
                return;
            }
            for (table, bytes) in tables(node) {
                let whole = Part { live: 0, dead: table.properties().entry_bytes() };
                let part = parts.entry(table.id()).or_insert(whole);
                part.live += bytes;
                part.dead = part.dead.saturating_sub(bytes);
            }
        });
        for table in on_their_way {
            parts.remove(&table);
        }
        DeadParts { parts, blobs }
    }

    /// What a full compaction of the leaf gives back. Of what is dead in a table that leaves share, each of
    /// them gets its part.
    pub(super) fn gain(&self, leaf: &Node) -> u64 {
        let summary = leaf.leaf_summary();
        let mut gain = summary.reclaimable.bytes + summary.reclaimable_blob_bytes;
        for (table, bytes) in tables(leaf) {
            if let Some(part) = self.parts.get(&table.id()) {
                let share = u128::from(part.dead) * u128::from(bytes);
                gain += (share / u128::from(part.live.max(1))) as u64;
            }
            gain += dead_blob_gain(table, &self.blobs);
        }
        gain
    }
}

#[cfg(test)]
#[path = "reclaim_tests.rs"]
mod tests;
