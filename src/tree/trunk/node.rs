//! Trunk nodes, pivots and bundles: immutable once shared, changed by copying.
//!
//! Invariants:
//! 1. A node's pivots are sorted by `lower`; the first pivot's `lower` is the node's, and each range
//!    ends where the next begins, the last at the node's `upper`.
//! 2. A node's bundles are in order of age, oldest first. For a pivot, exactly `bundles[bundle_start..]`
//!    are live: the entries of older ones in the pivot's range have been flushed to the child.
//! 3. Every entry of a live bundle in a pivot's range is younger than every entry for the same key
//!    in the subtree below that pivot.
//! 4. A bundle's index (a maplet, or a head) covers each key of each of its branches: a probe that names no branch proves
//!    that the bundle does not hold the key.
//! 5. A bundle's Bloom filter, if it has one, passes each key of each of its branches.
//! 6. A leaf (height 0) has one pivot, without a child, and its `bundle_start` is 0.
//! 7. What is derived from a node is derived from the node and those below it alone: copies of the nodes above share it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::branch_index::BranchIndex;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::filter::BloomFilter;
use crate::table::Table;
use crate::tree::live::{Dead, Overlap};
use crate::tree::range::{
    Derived, Key, RangeSize, TablePart, position_before, table_is_inside, table_overlaps,
    table_part, table_size,
};
use crate::tree::versioned::{Head, TreeNode, walk};

/// The number of a bundle within its keyspace; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BundleId(pub(super) u64);

/// Branches under one index.
pub(in crate::tree) struct Bundle {
    pub(super) id: BundleId,
    /// Oldest first; the index's values are positions here.
    pub(super) branches: Vec<Arc<Table>>,
    pub(super) index: Arc<BranchIndex>,
    /// Only a bundle that is one memtable's has it.
    pub(super) bloom: Option<BloomFilter>,
}

/// A key range of a node, and the child below it.
#[derive(Clone)]
pub(super) struct Pivot {
    pub(super) lower: Key,
    pub(super) child: Option<Arc<Node>>,
    pub(super) bundle_start: usize,
    /// The part of the live bundles in this range.
    pub(super) live: RangeSize,
}

/// With this many sampled keys of a leaf, samples give better estimates than maplets.
const SAMPLED_KEYS_MIN: usize = 32;

/// Estimates of a leaf for compactions and statistics, from indexes and maplets.
#[derive(Debug, Clone, Default)]
pub(super) struct LeafSummary {
    /// Bytes that a full compaction would drop.
    pub(super) reclaimable: RangeSize,
    /// The same for values in blob files.
    pub(super) reclaimable_blob_bytes: u64,
    /// What samples tell of the dead part.
    pub(super) dead: Dead,
    /// Bytes of the oldest bundle within the leaf.
    pub(super) merged_bytes: u64,
    /// For each branch, oldest first, its entries within the leaf.
    pub(super) parts: Vec<TablePart>,
}

/// Sums over a node and all below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Live bytes in leaves that no compaction has merged there yet.
    pub(super) pending_bytes: u64,
    /// Memory of the nodes.
    pub(super) memory_bytes: u64,
}

/// The work that there is in a node and all below it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outstanding {
    /// The urgency of the node's own compaction, 0 if none is due. Infinite if planning it fails: whoever plans it then
    /// learns why.
    pub(super) own_urgency: f64,
    /// The greatest of the node's and of those below it.
    pub(super) urgency: f64,
    /// The least `leaf_bytes_max` with which two neighbours below the node can be joined.
    pub(super) joins_from: u64,
}

/// What follows from a node, and from those below it. A copy is about to change, and has nothing of it.
#[derive(Clone, Default)]
pub(super) struct NodeDerived {
    pub(super) summary: Derived<LeafSummary>,
    pub(super) totals: Derived<Totals>,
    pub(super) outstanding: Derived<Outstanding>,
}

/// A trunk node.
#[derive(Clone)]
pub(in crate::tree) struct Node {
    pub(super) head: Head,
    pub(super) derived: NodeDerived,
    pub(super) pivots: Vec<Pivot>,
    pub(super) bundles: Vec<Arc<Bundle>>,
}

impl Pivot {
    /// A pivot for which no bundle is live yet.
    pub(super) fn new(lower: Key, child: Option<Arc<Node>>) -> Pivot {
        Pivot { lower, child, bundle_start: 0, live: RangeSize::default() }
    }
}

impl Bundle {
    /// Returns true if a branch may hold the key with this hash. Then the maplet says which.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.bloom.as_ref().is_none_or(|bloom| bloom.may_hold(hash))
    }

    /// The first of two prefetch hints before a probe, for lookups in several bundles: their cache misses
    /// then overlap.
    #[inline]
    pub(super) fn prefetch_place(&self, hash: u64) {
        match &self.bloom {
            Some(bloom) => bloom.prefetch(hash),
            None => self.index.prefetch_place(hash),
        }
    }

    /// The second hint, after the first has taken effect.
    #[inline]
    pub(super) fn prefetch_bytes(&self, hash: u64) {
        if self.bloom.is_none() {
            self.index.prefetch_bytes(hash);
        }
    }

    /// The parts of all branches in a key range.
    pub(super) fn size(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<RangeSize> {
        let mut total = RangeSize::default();
        for table in &self.branches {
            total.add(table_size(table, lower, upper)?);
        }
        Ok(total)
    }
}

impl Node {
    /// A node for a range, without pivots and bundles.
    pub(super) fn empty(height: u32, lower: Key, upper: Option<Key>) -> Node {
        Node {
            head: Head::new(height, lower, upper),
            derived: NodeDerived::default(),
            pivots: Vec::new(),
            bundles: Vec::new(),
        }
    }

    /// The position of the pivot whose range contains `key`. The node's range contains it.
    #[inline]
    pub(super) fn pivot_of(&self, key: &[u8]) -> usize {
        let is_below = |pivot: &Pivot| match planted(Bug::PivotBoundOffByOne) {
            true => *pivot.lower < *key,
            false => *pivot.lower <= *key,
        };
        self.pivots.partition_point(is_below).saturating_sub(1)
    }

    /// The position of the pivot that has the keys just below `key`; without a bound, the last pivot.
    pub(super) fn pivot_before(&self, key: Option<&[u8]>) -> usize {
        position_before(&self.pivots, |pivot| &pivot.lower, key)
    }

    /// The end of a pivot's range.
    pub(super) fn pivot_upper(&self, position: usize) -> Option<&Key> {
        self.pivots.get(position + 1).map(|next| &next.lower).or(self.upper.as_ref())
    }

    /// A pivot's range.
    pub(super) fn pivot_range(&self, position: usize) -> (&[u8], Option<&[u8]>) {
        (&self.pivots[position].lower, self.pivot_upper(position).map(|upper| &**upper))
    }

    /// A pivot's live bundles, oldest first.
    #[inline]
    pub(super) fn live_bundles(&self, position: usize) -> &[Arc<Bundle>] {
        &self.bundles[self.pivots[position].bundle_start..]
    }

    /// Estimates of the node if it is a leaf; an index node has none.
    pub(super) fn leaf_summary(&self) -> &LeafSummary {
        self.derived.summary.get_or(|| match self.height {
            0 => self.summarize(),
            _ => LeafSummary::default(),
        })
    }

    fn summarize(&self) -> LeafSummary {
        let mut summary = LeafSummary::default();
        let mut overlap = Overlap::default();
        let mut blob_bytes = 0;
        let (lower, upper) = self.range();
        for (position, bundle) in self.bundles.iter().enumerate() {
            for (ordinal, table) in bundle.branches.iter().enumerate() {
                // An index that cannot be read is reported by the operations that need it.
                let part = table_part(table, lower, upper).unwrap_or_default();
                let size = part.size;
                let properties = table.properties();
                if position == 0 {
                    summary.merged_bytes += size.bytes;
                }
                summary.parts.push(part);
                overlap.add(table, part);
                // A head counts a table that lies in the node as a whole.
                let counts = match table_is_inside(table, lower, upper) {
                    true => bundle.index.counts(ordinal),
                    false => bundle.index.whole_counts(ordinal, table),
                };
                let entries = properties.entries().max(1);
                // Versions of one key within the table have the same fingerprint. Most operands in blob files
                // stay live.
                let versions = entries.saturating_sub(counts.entries + properties.blob_merges);
                let dead = (counts.superseded + versions + properties.deletes).min(entries);
                let part = |n: u64| (u128::from(n) * u128::from(dead) / u128::from(entries)) as u64;
                let dropped = RangeSize { bytes: part(size.bytes), entries: part(size.entries) };
                summary.reclaimable.add(dropped);
                let in_blobs: u64 = properties.blobs.iter().map(|blob| blob.bytes).sum();
                let share = |of: u64| (u128::from(in_blobs) * u128::from(of)) / u128::from(entries);
                summary.reclaimable_blob_bytes += share(dropped.entries) as u64;
                blob_bytes += share(size.entries) as u64;
            }
        }
        // Maplets count superseded entries within their bundles only; samples compare all branches.
        let dead = overlap.dead();
        summary.dead = dead;
        if summary.parts.len() > 1 && dead.keys >= SAMPLED_KEYS_MIN {
            let bytes = overlap.bytes();
            summary.reclaimable.bytes = (bytes as f64 * dead.share) as u64;
            summary.reclaimable_blob_bytes = (blob_bytes as f64 * dead.blob_share) as u64;
        }
        summary
    }

    /// Live bytes in the node itself.
    pub(super) fn live(&self) -> RangeSize {
        let mut total = RangeSize::default();
        for pivot in &self.pivots {
            total.add(pivot.live);
        }
        total
    }

    /// Adds bundles, youngest last, for all pivots.
    pub(super) fn receive(&mut self, bundles: &[Arc<Bundle>]) -> Result<()> {
        for position in 0..self.pivots.len() {
            let upper = self.pivot_upper(position).cloned();
            let pivot = &mut self.pivots[position];
            for bundle in bundles {
                pivot.live.add(bundle.size(&pivot.lower, upper.as_deref())?);
            }
        }
        self.bundles.extend_from_slice(bundles);
        Ok(())
    }

    /// Estimates the pivots' live sizes again.
    pub(super) fn measure(&mut self) -> Result<()> {
        for position in 0..self.pivots.len() {
            let upper = self.pivot_upper(position).cloned();
            let mut live = RangeSize::default();
            for bundle in self.live_bundles(position) {
                live.add(bundle.size(&self.pivots[position].lower, upper.as_deref())?);
            }
            self.pivots[position].live = live;
        }
        Ok(())
    }

    /// Drops the oldest bundles that no pivot needs. A pivot needs none of its live bundles if no table of
    /// them overlaps its range. Without this rule, pivots without writes would keep every bundle of the
    /// node.
    pub(super) fn drop_dead_bundles(&mut self) {
        if self.height == 0 {
            return;
        }
        for position in 0..self.pivots.len() {
            let needless = match planted(Bug::DeadTooEarly) {
                true => self.pivots[position].live.bytes < 64,
                false => self.pivots[position].live.bytes == 0 && !self.reached(position),
            };
            if needless {
                self.pivots[position].bundle_start = self.bundles.len();
            }
        }
        let dead = self.pivots.iter().map(|pivot| pivot.bundle_start).min().unwrap_or(0);
        if dead > 0 {
            self.bundles.drain(..dead);
            for pivot in &mut self.pivots {
                pivot.bundle_start -= dead;
            }
        }
    }

    /// Returns true if a table of the pivot's live bundles may have a key of its range.
    fn reached(&self, position: usize) -> bool {
        let lower = &self.pivots[position].lower;
        let upper = self.pivot_upper(position).map(|upper| &**upper);
        let mut tables = self.live_bundles(position).iter().flat_map(|bundle| &bundle.branches);
        tables.any(|table| table_overlaps(table, lower, upper))
    }

    /// Replaces the bundles `inputs` by `output`. They are consecutive in the node, oldest first; the
    /// oldest may have been dropped meanwhile. Returns false, and changes nothing, if none is left.
    pub(super) fn replace_bundles(
        &mut self,
        inputs: &[BundleId],
        output: Option<Arc<Bundle>>,
    ) -> Result<bool> {
        let is_input = |bundle: &Arc<Bundle>| inputs.contains(&bundle.id);
        let Some(from) = self.bundles.iter().position(is_input) else { return Ok(false) };
        let count = self.bundles[from..].iter().take_while(|bundle| is_input(bundle)).count();
        let to = from + count;
        let added = usize::from(output.is_some());
        self.bundles.splice(from..to, output);
        for pivot in &mut self.pivots {
            pivot.bundle_start = match pivot.bundle_start {
                // If a pivot needs some of the inputs, it needs exactly their entries of the output:
                // the compaction read no other inputs in the pivot's range.
                start if start <= from => start,
                start if start < to && planted(Bug::ReplaceSkipsOutput) => from + added,
                start if start < to => from,
                start => start - count + added,
            };
        }
        self.measure()?;
        self.drop_dead_bundles();
        Ok(true)
    }
}

impl Deref for Node {
    type Target = Head;

    #[inline]
    fn deref(&self) -> &Head {
        #[cfg(test)]
        crate::base::visits::note();
        &self.head
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl TreeNode for Node {
    fn empty_root() -> Node {
        let lower: Key = Arc::from(&[][..]);
        let mut root = Node::empty(0, Arc::clone(&lower), None);
        root.pivots.push(Pivot::new(lower, None));
        root
    }

    fn children(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.pivots.iter().filter_map(|pivot| pivot.child.as_ref())
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut Arc<Node>> {
        self.pivots.iter_mut().filter_map(|pivot| pivot.child.as_mut())
    }

    fn forget_derived(&mut self) {
        self.derived = NodeDerived::default();
    }

    /// What is due follows from the parameters. A copy derives it anew, but not the summary, for which pages are read.
    fn for_other_parameters(self: &Arc<Node>) -> Arc<Node> {
        let mut node = Node::clone(self);
        node.derived.summary = self.derived.summary.kept();
        node.children_mut().for_each(|child| *child = child.for_other_parameters());
        Arc::new(node)
    }

    fn each_live_part(&self, f: &mut dyn FnMut(&Arc<Table>, TablePart)) -> Result<()> {
        for (position, bundle) in self.bundles.iter().enumerate() {
            let ranges = live_ranges(self, position);
            for table in &bundle.branches {
                for (lower, upper) in &ranges {
                    f(table, table_part(table, lower, upper.as_deref())?);
                }
            }
        }
        Ok(())
    }
}

/// The ranges in which the bundle at `position` is live; adjacent ranges are joined.
pub(super) fn live_ranges(node: &Node, position: usize) -> Vec<(Key, Option<Key>)> {
    let mut ranges: Vec<(Key, Option<Key>)> = Vec::new();
    let mut joins = false;
    for (i, pivot) in node.pivots.iter().enumerate() {
        let live = pivot.bundle_start <= position || planted(Bug::CompactReadsMoved);
        let upper = node.pivot_upper(i).cloned();
        match ranges.last_mut() {
            Some(last) if live && joins => last.1 = upper,
            _ if live => ranges.push((Arc::clone(&pivot.lower), upper)),
            _ => {}
        }
        joins = live;
    }
    ranges
}

/// Every reachable bundle, once, by number. Sorting references costs a fraction of what a set of them costs.
pub(super) fn bundles(root: &Arc<Node>) -> Vec<&Arc<Bundle>> {
    let mut all = Vec::new();
    walk(root, &mut |node| all.extend(&node.bundles));
    all.sort_unstable_by_key(|bundle| bundle.id);
    all.dedup_by_key(|bundle| bundle.id);
    all
}

/// Every table of these bundles, once, by number.
pub(super) fn tables<'a>(bundles: &[&'a Arc<Bundle>]) -> Vec<&'a Arc<Table>> {
    let mut all: Vec<_> = bundles.iter().flat_map(|bundle| &bundle.branches).collect();
    all.sort_unstable_by_key(|table| table.id());
    all.dedup_by_key(|table| table.id());
    all
}
