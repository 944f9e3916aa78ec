//! Merges for reads: a node of which iterators read too much is merged (PebblesDB's seek-triggered compaction,
//! generalised).
//!
//! Nobody waits for such a merge, but the iterators that caused it go on reading while it runs. Random scans bring all
//! nodes to their limits at about the same time. Merged by all threads at once, these nodes took the disk away from the
//! scans for as long.
//!
//! Invariants:
//! 1. Of a store's background threads, half carry out merges for reads of a tree at most; one does in any case.

use std::sync::Arc;

use super::choose::{Choose, Intent};
use super::compaction::{Compact, CompactionJob};
use super::node::walk;
use super::version::Version;
use super::{VersionedKind, VersionedTree};
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::sync::plain::Ordering;
use crate::jobs::{Job, Step};

/// Bytes of wasted reads, beyond the node's own limit, from which on it is merged for them.
const WASTE_BYTES_MIN: u64 = 64 << 10;

impl<K: Choose> VersionedTree<K> {
    /// The merge of the node whose iterators have wasted most reads, if these have cost more than the merge would.
    pub(super) fn choose_for_reads(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        match self.most_wasteful(version) {
            Some(node) => K::choose_for_reads(self, node, intent),
            None => Ok(None),
        }
    }

    /// All nodes are looked at. If there is none, that is done again after as many more wasted reads as there are nodes,
    /// so it costs each of these reads about a node.
    pub(in crate::tree) fn most_wasteful<'a>(
        &self,
        version: &'a Version<K>,
    ) -> Option<&'a Arc<K::Node>> {
        let wasted_reads = version.counters.wasted_reads();
        if !self.context.options().seek_compaction
            || wasted_reads < self.look_for_waste_from.load(Ordering::Relaxed)
        {
            return None;
        }
        let mut best: Option<(u64, &Arc<K::Node>)> = None;
        let mut nodes = 0;
        let mut is_refused = false;
        walk(&version.root, &mut |node| {
            nodes += 1;
            let reads = node.wasted_reads.load(Ordering::Relaxed);
            let wasted_bytes = reads * UNIT_BYTES as u64;
            if wasted_bytes > WASTE_BYTES_MIN
                && K::wasted_bytes_max(node).is_some_and(|max| wasted_bytes > max + WASTE_BYTES_MIN)
                && best.is_none_or(|(most, _)| most < reads)
            {
                match K::is_free(self, node, false) {
                    true => best = Some((reads, node)),
                    false => is_refused = true,
                }
            }
        });
        // One in which a job is running is looked at again when that has ended.
        if best.is_none() && !is_refused {
            self.look_for_waste_from.store(wasted_reads + nodes, Ordering::Relaxed);
        }
        best.map(|(_, node)| node)
    }
}

/// The turn of one of a tree's merges for reads.
struct Turn<K: VersionedKind>(Arc<VersionedTree<K>>);

impl<K: VersionedKind> Turn<K> {
    fn take(tree: &Arc<VersionedTree<K>>) -> Option<Turn<K>> {
        let most = tree.context.options().merges_for_reads_max;
        let next = |running: usize| (running < most).then_some(running + 1);
        let taken = tree.merges_for_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.ok().map(|_| Turn(Arc::clone(tree)))
    }
}

impl<K: VersionedKind> Drop for Turn<K> {
    fn drop(&mut self) {
        self.0.merges_for_reads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A merge for reads.
struct MergeForReads<K: VersionedKind> {
    job: CompactionJob<K>,
    /// Until the job has ended.
    _turn: Turn<K>,
}

impl<K: Compact> Job for MergeForReads<K> {
    fn step(&mut self) -> Result<Step> {
        self.job.step()
    }
}

impl<K: Choose + Compact> VersionedTree<K> {
    /// Begins the next merge for reads.
    pub(in crate::tree) fn begin_for_reads(self: &Arc<Self>) -> Option<Box<dyn Job>> {
        let turn = Turn::take(self)?;
        self.begin(Self::choose_for_reads, |job| Box::new(MergeForReads { job, _turn: turn }))
    }
}
