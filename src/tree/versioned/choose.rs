//! Which job is next: the order is the same for every kind, and so is the search for space to reclaim.

use std::sync::Arc;

use super::node::walk;
use super::version::Version;
use super::worth::{Deleted, Worth};
use super::{VersionedKind, VersionedTree};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::sync::plain::Ordering;
use crate::table::Table;
use crate::tree::dead_blobs::BlobUse;
use crate::tree::space::PRESSING_SHARE;

/// A gain, in thousandths of the bytes merged for it, with which merges of more than one level are not looked for.
const GAIN_ENOUGH: u64 = 200;

/// Why a job is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Intent {
    /// To start it. Damage that is found is quarantined, and reported by the job.
    Start,
    /// To tell whether there is one.
    Ask,
}

/// What a merge gives back, and the bytes that it reads for that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::tree) struct Gain {
    pub(in crate::tree) bytes: u64,
    pub(in crate::tree) merged_bytes: u64,
}

impl Gain {
    /// In thousandths of the merged bytes; 0 if it is not worth a merge.
    fn score(self) -> u64 {
        match self.bytes * 20 < self.merged_bytes {
            true => 0,
            false => self.bytes * 1000 / self.merged_bytes.max(1),
        }
    }
}

/// What decides on what a merge drops.
pub(in crate::tree) struct Now {
    /// Ascending.
    pub(in crate::tree) snapshots: Vec<Seqno>,
    /// The blob files out of which it copies values, ascending.
    pub(in crate::tree) collected: Vec<BlobUse>,
}

/// Which jobs there are in a kind of versioned tree: the kind's `choose`.
pub(in crate::tree) trait Choose: VersionedKind {
    /// A plan, or what leads to one.
    type Choice;

    /// Whether background work may be done in a node; with `by_path` a merge of more than one level.
    fn is_free(tree: &VersionedTree<Self>, node: &Self::Node, by_path: bool) -> bool;

    /// What comes before all compactions, also if space is short: it writes no files, and others wait for it.
    fn choose_first(_tree: &VersionedTree<Self>, _version: &Version<Self>) -> Option<Self::Choice> {
        None
    }

    /// The most urgent compaction of a node that holds too many tables.
    fn choose_due(
        tree: &VersionedTree<Self>,
        version: &Version<Self>,
        intent: Intent,
    ) -> Result<Option<Self::Choice>>;

    /// The full merge of a node, or by path.
    fn choose_full(
        tree: &VersionedTree<Self>,
        node: &Self::Node,
        by_path: bool,
        intent: Intent,
    ) -> Result<Option<Self::Choice>>;

    /// The merge of a node that iterators read too much of.
    fn choose_for_reads(
        tree: &VersionedTree<Self>,
        node: &Self::Node,
        intent: Intent,
    ) -> Result<Option<Self::Choice>>;

    /// What is done if there is nothing else.
    fn choose_idle(_tree: &VersionedTree<Self>, _version: &Version<Self>) -> Option<Self::Choice> {
        None
    }

    /// Does what is needed before the choice can be planned.
    fn plan_of(tree: &VersionedTree<Self>, choice: Self::Choice) -> Result<Option<Self::Plan>>;

    /// The gain of a full merge of a node.
    fn gain(
        tree: &VersionedTree<Self>,
        version: &Version<Self>,
        node: &Self::Node,
        now: &Now,
    ) -> Gain;

    /// The gain of a full merge of a node by path.
    fn path_gain(version: &Version<Self>, node: &Self::Node) -> Gain;

    /// The merge of a node, alone or by path, if most of what it reads has been deleted. Of the nodes that a merge by path
    /// would take in, one names it. Beside what is worth a merge stand the snapshots.
    fn deleted(
        tree: &VersionedTree<Self>,
        version: &Version<Self>,
        node: &Self::Node,
        worth: (Worth, &[Seqno]),
    ) -> Option<Deleted>;

    /// Whether nodes are merged for range deletes.
    const MERGES_FOR_RANGE_DELETES: bool = true;

    /// The tables that a full merge of a node by path reads, or would, in its range. None if there is no such merge.
    fn tables_of_full_merge(_version: &Version<Self>, _node: &Self::Node) -> Vec<Arc<Table>> {
        Vec::new()
    }

    /// Bytes that the first compaction reads of a full merge.
    fn first_merge_bytes(version: &Version<Self>, node: &Self::Node, by_path: bool) -> u64;

    /// Bytes of wasted reads that a merge of the node costs about as much as; `None` if one would spare no reads.
    fn wasted_bytes_max(node: &Self::Node) -> Option<u64>;

    /// Returns the highest level of which each node is merged when all is compacted, after what lies above in the range
    /// has been moved down to it.
    fn begin_compact(tree: &VersionedTree<Self>, range: (&[u8], Option<&[u8]>)) -> Result<u32>;

    /// What is to be done once all of the range has been merged.
    fn end_compact(_tree: &VersionedTree<Self>, _range: (&[u8], Option<&[u8]>)) {}

    /// The compaction of the first node of a level in the range that is not yet as a full merge leaves it.
    /// `whole` is all that is compacted. Other threads may be at work in its other parts.
    fn next_uncompacted(
        tree: &VersionedTree<Self>,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        whole: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Self::Plan>>;
}

impl<K: Choose> VersionedTree<K> {
    /// The most urgent of the jobs that no running job excludes.
    pub(in crate::tree) fn choose(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        match self.choose_needed(version, intent)? {
            Some(choice) => Ok(Some(choice)),
            None => match self.choose_for_reads(version, intent)? {
                Some(choice) => Ok(Some(choice)),
                None => self.choose_useful(version, intent),
            },
        }
    }

    /// The most urgent of the jobs for which writers may have to wait.
    pub(super) fn choose_needed(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        if let Some(choice) = K::choose_first(self, version) {
            return Ok(Some(choice));
        }
        // A full merge leaves nothing else to do in its node, so it comes first when space is short.
        if self.space(version).excess() > PRESSING_SHARE
            && let Some(choice) = self.choose_reclaiming(version, intent)?
        {
            return Ok(Some(choice));
        }
        if let Some(choice) = K::choose_due(self, version, intent)? {
            return Ok(Some(choice));
        }
        self.choose_reclaiming(version, intent)
    }

    /// The most useful of the others.
    pub(super) fn choose_useful(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        if let Some(choice) = self.choose_range_deleted(version, intent)? {
            return Ok(Some(choice));
        }
        match self.choose_deleted(version, intent)? {
            Some(choice) => Ok(Some(choice)),
            None => Ok(K::choose_idle(self, version)),
        }
    }

    /// If the tree uses too much space: the full merge that gives back most for the bytes it reads. It is of one node,
    /// or of a node and those above or below it.
    pub(in crate::tree) fn choose_reclaiming(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        if self.space(version).excess() <= 0.0 {
            return Ok(None);
        }
        let (snapshots, collected) = (self.context.snapshots(), self.collected_blobs(version));
        let now = Now { snapshots, collected };
        let mut best: Option<(u64, &Arc<K::Node>, bool)> = None;
        for by_path in [false, true] {
            if best.is_some_and(|(score, ..)| score >= GAIN_ENOUGH) {
                break;
            }
            // Levels would be merged later for less, with what arrives by then.
            let least = best.map_or(0, |(score, ..)| score + score / 2);
            walk(&version.root, &mut |node| {
                let gain = match by_path {
                    true => K::path_gain(version, node),
                    false => K::gain(self, version, node, &now),
                };
                let score = gain.score();
                if score > least
                    && best.is_none_or(|(most, ..)| most < score)
                    && K::is_free(self, node, by_path)
                {
                    best = Some((score, node, by_path));
                }
            });
        }
        if let Some((_, node, by_path)) = best
            && !self.has_room(version, K::first_merge_bytes(version, node, by_path), 0)
        {
            return Ok(None);
        }
        let nothing = best.is_none() && self.jobs.lock().is_idle();
        self.nothing_to_reclaim.store(nothing, Ordering::Relaxed);
        match best {
            Some((_, node, by_path)) => K::choose_full(self, node, by_path, intent),
            None => Ok(None),
        }
    }
}
