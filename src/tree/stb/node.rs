//! Trunk nodes, pivots and bundles: immutable once shared, changed by copying.
//!
//! Invariants:
//! 1. A node's pivots are sorted by `lower`; the first pivot's `lower` is the node's, and each range
//!    ends where the next begins, the last at the node's `upper`.
//! 2. A node's bundles stand oldest first. For a pivot, exactly `bundles[bundle_start..]` are live:
//!    what lies in older ones in the pivot's range has moved on to the child.
//! 3. Every entry of a live bundle in a pivot's range is younger than every entry for the same key
//!    in the subtree below that pivot.
//! 4. A bundle's maplet covers each key of each of its branches: a probe that names no branch proves
//!    that the bundle does not hold the key.
//! 5. A bundle's Bloom filter, if it has one, passes each key of each of its branches.
//! 6. Leaves (height 0) have one pivot, without a child, with `bundle_start` 0.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::ids::NodeId;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::AtomicU64;
use crate::filter::{BloomFilter, Maplet};
use crate::table::Table;
pub(super) use crate::tree::derived::Derived;
use crate::tree::extent::position_before;
pub(super) use crate::tree::extent::{
    EXTENT_LIMIT, Extent, Key, Stretch, ranges_meet, table_extent, table_is_inside, table_meets,
    table_stretch,
};
use crate::tree::live::Overlap;

/// Numbers bundles within a keyspace; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BundleId(pub(super) u64);

/// Branches under one maplet.
pub(super) struct Bundle {
    pub(super) id: BundleId,
    /// Oldest first; the maplet's values are positions here.
    pub(super) branches: Vec<Arc<Table>>,
    pub(super) maplet: Arc<Maplet>,
    /// Of a bundle that is one memtable's.
    pub(super) bloom: Option<BloomFilter>,
}

/// A key range of a node, and the child below it.
#[derive(Clone)]
pub(super) struct Pivot {
    pub(super) lower: Key,
    pub(super) child: Option<Arc<Node>>,
    pub(super) bundle_start: usize,
    /// The live bundles' part in this range.
    pub(super) live: Extent,
}

/// Sampled keys of a leaf with which samples tell more than maplets.
const SAMPLED_KEYS_MIN: usize = 32;

/// What compactions and statistics want to know of a leaf, as estimated from indexes and maplets.
#[derive(Debug, Clone, Default)]
pub(super) struct LeafSummary {
    /// What a full compaction would drop.
    pub(super) reclaimable: Extent,
    /// The same of values in blob files.
    pub(super) reclaimable_blob_bytes: u64,
    /// Bytes of the oldest bundle within the leaf.
    pub(super) settled_bytes: u64,
    /// By branch, oldest first: which of its entries are within the leaf.
    pub(super) stretches: Vec<Stretch>,
}

/// A trunk node.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) summary: Derived<LeafSummary>,
    /// Tables beyond the first that iterators had to open to read this leaf, since it was last
    /// compacted for that. Shared by the node's copies.
    pub(super) seeks: Arc<AtomicU64>,
    /// `NEW` while a change is being made; a number once the manifest names it.
    pub(super) id: NodeId,
    pub(super) height: u32,
    pub(super) lower: Key,
    pub(super) upper: Option<Key>,
    pub(super) pivots: Vec<Pivot>,
    pub(super) bundles: Vec<Arc<Bundle>>,
}

/// The number of a node that a change has made and not yet committed.
pub(super) const NEW: NodeId = NodeId(0);

impl Bundle {
    /// Whether a branch may hold the key with this hash: if so, the maplet says which.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.bloom.as_ref().is_none_or(|bloom| bloom.may_hold(hash))
    }

    /// First of two hints before a probe, for lookups that ask several bundles: their waits for memory
    /// then overlap.
    #[inline]
    pub(super) fn prefetch_place(&self, hash: u64) {
        match &self.bloom {
            Some(bloom) => bloom.prefetch(hash),
            None => self.maplet.prefetch_place(hash),
        }
    }

    /// The second, once the first has had its effect.
    #[inline]
    pub(super) fn prefetch_bytes(&self, hash: u64) {
        if self.bloom.is_none() {
            self.maplet.prefetch_bytes(hash);
        }
    }

    /// What of all branches lies in a key range.
    pub(super) fn extent(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Extent> {
        let mut total = Extent::default();
        for table in &self.branches {
            total.add(table_extent(table, lower, upper)?);
        }
        Ok(total)
    }
}

impl Node {
    /// A leaf without bundles that covers all keys: the tree of an empty keyspace.
    pub(super) fn empty_root() -> Node {
        let lower: Key = Arc::from(&[][..]);
        Node {
            summary: Derived::default(),
            seeks: Arc::default(),
            id: NEW,
            height: 0,
            lower: Arc::clone(&lower),
            upper: None,
            pivots: vec![Pivot { lower, child: None, bundle_start: 0, live: Extent::default() }],
            bundles: Vec::new(),
        }
    }

    /// The position of the pivot whose range holds `key`, which the node's range holds.
    #[inline]
    pub(super) fn pivot_of(&self, key: &[u8]) -> usize {
        let is_below = |pivot: &Pivot| match planted(Bug::PivotBoundOffByOne) {
            true => *pivot.lower < *key,
            false => *pivot.lower <= *key,
        };
        self.pivots.partition_point(is_below).saturating_sub(1)
    }

    /// The position of the pivot that holds the keys just below `key`, or the last for no bound.
    pub(super) fn pivot_before(&self, key: Option<&[u8]>) -> usize {
        position_before(&self.pivots, |pivot| &pivot.lower, key)
    }

    /// Where a pivot's range ends.
    pub(super) fn pivot_upper(&self, position: usize) -> Option<&Key> {
        self.pivots.get(position + 1).map(|next| &next.lower).or(self.upper.as_ref())
    }

    /// A pivot's live bundles, oldest first.
    #[inline]
    pub(super) fn live_bundles(&self, position: usize) -> &[Arc<Bundle>] {
        &self.bundles[self.pivots[position].bundle_start..]
    }

    /// What is known of the node if it is a leaf; nothing of an index node.
    pub(super) fn leaf_summary(&self) -> &LeafSummary {
        self.summary.get_or(|| match self.height {
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
                // An index that cannot be read is reported by whoever needs it, not by an estimate.
                let stretch = table_stretch(table, lower, upper).unwrap_or_default();
                let extent = stretch.extent;
                let properties = table.properties();
                if position == 0 {
                    summary.settled_bytes += extent.bytes;
                }
                summary.stretches.push(stretch);
                overlap.add(table, stretch);
                let counts = bundle.maplet.header().branch(ordinal as u8);
                let entries = properties.entries().max(1);
                // Versions of one key within the table share a fingerprint. Operands in blob files are mostly
                // there to stay.
                let versions = entries.saturating_sub(counts.entries + properties.blob_merges);
                let dead = (counts.superseded + versions + properties.deletes).min(entries);
                let part = |n: u64| (u128::from(n) * u128::from(dead) / u128::from(entries)) as u64;
                let dropped = Extent { bytes: part(extent.bytes), entries: part(extent.entries) };
                summary.reclaimable.add(dropped);
                let in_blobs: u64 = properties.blobs.iter().map(|blob| blob.bytes).sum();
                let share = |of: u64| (u128::from(in_blobs) * u128::from(of)) / u128::from(entries);
                summary.reclaimable_blob_bytes += share(dropped.entries) as u64;
                blob_bytes += share(extent.entries) as u64;
            }
        }
        // Maplets count what is superseded within their bundles alone; samples compare all branches.
        let dead = overlap.dead();
        if summary.stretches.len() > 1 && dead.keys >= SAMPLED_KEYS_MIN {
            let bytes = overlap.bytes();
            summary.reclaimable.bytes = (bytes as f64 * dead.share) as u64;
            summary.reclaimable_blob_bytes = (blob_bytes as f64 * dead.blob_share) as u64;
        }
        summary
    }

    /// The node's range.
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// What is live in the node itself.
    pub(super) fn live(&self) -> Extent {
        let mut total = Extent::default();
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
                pivot.live.add(bundle.extent(&pivot.lower, upper.as_deref())?);
            }
        }
        self.bundles.extend_from_slice(bundles);
        Ok(())
    }

    /// Estimates the pivots' live extents anew.
    pub(super) fn measure(&mut self) -> Result<()> {
        for position in 0..self.pivots.len() {
            let upper = self.pivot_upper(position).cloned();
            let mut live = Extent::default();
            for bundle in self.live_bundles(position) {
                live.add(bundle.extent(&self.pivots[position].lower, upper.as_deref())?);
            }
            self.pivots[position].live = live;
        }
        Ok(())
    }

    /// Drops the oldest bundles as far as no pivot needs them. A pivot into whose range no table of its
    /// live bundles reaches needs none: without this, pivots that nobody writes to would hold on to
    /// every bundle that passes by.
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

    /// Whether a table of the pivot's live bundles may hold a key of its range.
    fn reached(&self, position: usize) -> bool {
        let lower = &self.pivots[position].lower;
        let upper = self.pivot_upper(position).map(|upper| &**upper);
        let mut tables = self.live_bundles(position).iter().flat_map(|bundle| &bundle.branches);
        tables.any(|table| table_meets(table, lower, upper))
    }

    /// Replaces what is left of the bundles `inputs` (which stand together, oldest first, in the
    /// node, perhaps without the oldest of them) by `output`. Returns false, and changes nothing, if
    /// none is left.
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
                // A pivot that needs some of the inputs needs of the output just what stems from
                // them: the compaction read no others in the pivot's range.
                start if start <= from => start,
                start if start < to && planted(Bug::ReplaceSkipsOutput) => from + added,
                start if start < to => from,
                start => start - count + added,
            };
        }
        self.drop_dead_bundles();
        self.measure()?;
        Ok(true)
    }
}

/// Makes a node changeable: copies it if an older version still shares it, and marks it new.
pub(super) fn edit(node: &mut Arc<Node>) -> &mut Node {
    let node = Arc::make_mut(node);
    node.id = NEW;
    node.summary = Derived::default();
    node
}

/// Calls `f` for every node, parents before children, left to right.
pub(super) fn walk<'a>(root: &'a Arc<Node>, f: &mut dyn FnMut(&'a Arc<Node>)) {
    f(root);
    for pivot in &root.pivots {
        if let Some(child) = &pivot.child {
            walk(child, f);
        }
    }
}
