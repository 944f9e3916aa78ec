//! The gain of a full compaction of a leaf.
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

use super::node::{Bundle, Node};
use crate::base::ids::{FileId, NodeId};
use crate::table::Table;
use crate::tree::live::{Dead, Overlap};
use crate::tree::range::{table_overlaps, table_part};
use crate::tree::versioned::{Gain, walk};

/// Of one table: bytes that are live in leaves, and bytes that are live nowhere.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    live: u64,
    dead: u64,
}

/// The least number of sampled keys, on the path to a leaf and in it, for an estimate.
const PATH_KEYS_MIN: usize = 1;

/// The dead part of each table that only leaves refer to.
pub(super) struct DeadParts(BTreeMap<FileId, Part>);

/// The gain of each leaf with the data on the path to it.
pub(super) struct PathGains(BTreeMap<NodeId, PathGain>);

/// A leaf's gain, and what samples tell of the dead part.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathGain {
    pub(super) gain: Gain,
    pub(super) dead: Dead,
}

impl PathGains {
    /// Compares what is above each leaf with what is in it.
    pub(super) fn new(root: &Arc<Node>) -> PathGains {
        let mut paths = Paths::default();
        paths.gather(root, &mut Vec::new());
        PathGains(paths.gains())
    }

    /// A leaf's.
    pub(super) fn of(&self, leaf: &Node) -> Gain {
        self.get(leaf).map_or(Gain::default(), |path| path.gain)
    }

    /// A leaf's, if there is something above it.
    pub(super) fn get(&self, leaf: &Node) -> Option<&PathGain> {
        self.0.get(&leaf.id)
    }
}

/// The tables of a leaf, with how much of each lies in it. Less than a page is told by no index, but the leaf may be the
/// last that holds on to the table.
fn tables(leaf: &Node) -> impl Iterator<Item = (&Arc<Table>, u64)> {
    let branches = leaf.bundles.iter().flat_map(|bundle| &bundle.branches);
    let parts = leaf.leaf_summary().parts.iter();
    branches.zip(parts.map(|part| part.size.bytes.max(1)))
}

/// A leaf with what is on its way to it.
struct Path {
    leaf: NodeId,
    gain: PathGain,
    /// The tables above it that reach into it, with how much.
    above: Vec<(FileId, u64)>,
}

/// All leaves' paths, and of each table on one what is live of it somewhere.
#[derive(Default)]
struct Paths {
    paths: Vec<Path>,
    parts: BTreeMap<FileId, Part>,
}

impl Paths {
    fn note(&mut self, table: &Table, live: u64) {
        let whole = Part { live: 0, dead: table.properties().entry_bytes() };
        let part = self.parts.entry(table.id()).or_insert(whole);
        part.live += live;
        part.dead = part.dead.saturating_sub(live);
    }

    /// Gathers what merging each leaf below `node` with all on its path would drop. `above` are the live
    /// bundles above the node, youngest first.
    fn gather<'a>(&mut self, node: &'a Arc<Node>, above: &mut Vec<&'a [Arc<Bundle>]>) {
        for (position, pivot) in node.pivots.iter().enumerate() {
            if let Some(child) = &pivot.child {
                above.push(node.live_bundles(position));
                self.gather(child, above);
                above.pop();
            }
        }
        if node.height > 0 {
            return;
        }
        let (lower, upper) = node.range();
        let mut overlap = Overlap::default();
        let branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
        for (table, part) in branches.zip(&node.leaf_summary().parts) {
            overlap.add(table, *part);
            self.note(table, part.size.bytes);
        }
        let own_bytes = overlap.bytes();
        let mut reaching = Vec::new();
        for table in above.iter().rev().flat_map(|b| b.iter()).flat_map(|bundle| &bundle.branches) {
            if !table_overlaps(table, lower, upper) {
                continue;
            }
            // An index that cannot be read is reported by whoever needs it, not by an estimate.
            let part = table_part(table, lower, upper).unwrap_or_default();
            overlap.add(table, part);
            // Less than a page is told by no index.
            let bytes = part.size.bytes.max(1);
            self.note(table, bytes);
            reaching.push((table.id(), bytes));
        }
        if reaching.is_empty() {
            return;
        }
        let index_bytes = overlap.bytes() - own_bytes;
        let dead = overlap.dead();
        let bytes = match index_bytes > 0 && dead.keys >= PATH_KEYS_MIN {
            true => (overlap.bytes() as f64 * dead.share) as u64,
            // A few tombstones may be what ends all that the leaf holds.
            false => own_bytes / 16,
        };
        let gain = Gain { bytes, merged_bytes: node.live().bytes.max(1) + index_bytes };
        let gain = PathGain { gain, dead };
        self.paths.push(Path { leaf: node.id, gain, above: reaching });
    }

    /// The same with what is dead in the tables above, which the last leaf that needs something of them holds on
    /// to: each leaf gets its part of that.
    fn gains(self) -> BTreeMap<NodeId, PathGain> {
        let Paths { paths, parts } = self;
        let with_parts = paths.into_iter().map(|Path { leaf, mut gain, above }| {
            for (table, bytes) in above {
                if let Some(part) = parts.get(&table) {
                    gain.gain.bytes += part.share(bytes);
                }
            }
            (leaf, gain)
        });
        with_parts.collect()
    }
}

impl Part {
    /// What of the dead bytes is a leaf's that so many of the live ones lie in.
    fn share(&self, bytes: u64) -> u64 {
        (u128::from(self.dead) * u128::from(bytes) / u128::from(self.live.max(1))) as u64
    }
}

impl DeadParts {
    pub(super) fn new(root: &Arc<Node>) -> DeadParts {
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
        DeadParts(parts)
    }

    /// What a full compaction of the leaf gives back in tables beside entries of its own. Of what is dead in a table that
    /// leaves share, each of them gets its part.
    pub(super) fn gain(&self, leaf: &Node) -> u64 {
        let mut gain = 0;
        for (table, bytes) in tables(leaf) {
            if let Some(part) = self.0.get(&table.id()) {
                gain += part.share(bytes);
            }
        }
        gain
    }
}

#[cfg(test)]
#[path = "reclaim_tests.rs"]
mod tests;
