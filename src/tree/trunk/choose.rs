//! Which compaction is next: the node with most that is small, or the full compaction of a leaf, perhaps with the data
//! above it. The order is that of every versioned tree.

use std::sync::Arc;

use super::change::{self, Rules};
use super::node::Node;
use super::parameters::Parameters;
use super::plan::{Plan, Trigger, plan};
use super::version::Version;
use super::{Trunk, TrunkTree};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::sync::plain::Ordering;
use crate::table::Table;
use crate::tree::TreeVersion;
use crate::tree::dead_blobs::collected_gain;
use crate::tree::range::{Key, table_is_inside};
use crate::tree::range_deleted::RangeDeleted;
use crate::tree::versioned::{
    Choose, Deleted, Gain, Intent, NewFiles, NewTables, Now, Place, TreeNode, VersionedKind, Worth,
    rebalance_undamaged,
};
use crate::tree::wrong_node;

/// What is to be done next.
pub(in crate::tree) enum Choice {
    Plan(Plan),
    /// All data on the path to a leaf is to be flushed down to it, and merged there.
    Path(Place),
}

impl Choose for Trunk {
    type Choice = Choice;

    /// Whether background work may be done on all bundles of a node. `by_path` a merge takes more than the node has.
    fn is_free(tree: &TrunkTree, node: &Node, by_path: bool) -> bool {
        let now = tree.context.clock.nanos();
        let bundles: Vec<u64> = node.bundles.iter().map(|bundle| bundle.id.0).collect();
        let jobs = tree.jobs.lock();
        let quarantined = match by_path {
            // On a full disk, the data on the path may be the deletes of what there was no room for.
            true => jobs.quarantine.overlaps_but_for_room(node.height, node.range(), now),
            false => jobs.quarantine.overlaps(node.height, node.range(), now),
        };
        !quarantined && jobs.is_free(node.height, node.range(), Some(&bundles))
    }

    /// The compaction of the node that holds most that is small.
    fn choose_due(tree: &TrunkTree, version: &Version, intent: Intent) -> Result<Option<Choice>> {
        let mut best = None;
        tree.find_due(&version.root, &version.parameters, intent, &mut best)?;
        Ok(best.or_else(|| tree.free_join(version)).map(Choice::Plan))
    }

    /// The full compaction of a leaf, or of a leaf with all data on its path.
    fn choose_full(
        tree: &TrunkTree,
        leaf: &Node,
        by_path: bool,
        intent: Intent,
    ) -> Result<Option<Choice>> {
        match by_path {
            true => Ok(Some(Choice::Path(Place::of(leaf)))),
            false => Ok(tree.plan(leaf, Trigger::Full, intent)?.map(Choice::Plan)),
        }
    }

    /// The merge of a leaf, with all data on its path, that iterators read too much of.
    fn choose_for_reads(_tree: &TrunkTree, leaf: &Node, intent: Intent) -> Result<Option<Choice>> {
        if intent == Intent::Start {
            leaf.wasted_reads.store(0, Ordering::Relaxed);
        }
        Ok(Some(Choice::Path(Place::of(leaf))))
    }

    /// The plan of a choice. Flushes the data on a path first. Quarantines the leaf if that fails: else the same path
    /// would be chosen again at once, and nothing else.
    fn plan_of(tree: &TrunkTree, choice: Choice) -> Result<Option<Plan>> {
        match choice {
            Choice::Plan(plan) => Ok(Some(plan)),
            Choice::Path(leaf) => tree
                .flush_range(leaf.range())
                .and_then(|()| Trunk::next_uncompacted(tree, 0, leaf.range(), (b"", None)))
                .inspect_err(|error| tree.note_damage(error, &leaf)),
        }
    }

    /// The gain of a full compaction of a leaf.
    fn gain(tree: &TrunkTree, version: &Version, node: &Node, now: &Now) -> Gain {
        if node.height > 0 || node.bundles.is_empty() {
            return Gain::default();
        }
        let summary = node.leaf_summary();
        let mut bytes = version.dead_parts().gain(node);
        if tree.gains(node, &now.snapshots) {
            bytes += summary.reclaimable.bytes + summary.reclaimable_blob_bytes;
        }
        let tables = node.bundles.iter().flat_map(|bundle| &bundle.branches);
        let (collected, copied) = collected_gain(tables, &now.collected);
        Gain { bytes: bytes + collected, merged_bytes: node.live().bytes.max(1) + copied }
    }

    fn path_gain(version: &Version, node: &Node) -> Gain {
        version.path_gains().of(node)
    }

    fn deleted(
        tree: &TrunkTree,
        version: &Version,
        leaf: &Node,
        (worth, now): (Worth, &[Seqno]),
    ) -> Option<Deleted> {
        if leaf.height > 0 {
            return None;
        }
        let (dead, by_path) = match version.path_gains().get(leaf) {
            Some(path) => (path.dead, true),
            None if tree.gains(leaf, now) => (leaf.leaf_summary().dead, false),
            None => return None,
        };
        let dropped = (dead.share * 1000.0) as u64;
        worth.is_deleted(dead).then(|| worth.of(dropped, 1000, by_path)).flatten()
    }

    fn tables_of_full_merge(version: &Version, leaf: &Node) -> Vec<Arc<Table>> {
        match leaf.height {
            0 => version.tables_at(&leaf.lower).map_or_else(Vec::new, |range| range.tables),
            _ => Vec::new(),
        }
    }

    fn first_merge_bytes(version: &Version, node: &Node, by_path: bool) -> u64 {
        match by_path {
            true => version.path_gains().of(node).merged_bytes,
            false => node.live().bytes,
        }
    }

    /// A merge reads and writes the leaf, in order, at a quarter of what reads here and there cost.
    fn wasted_bytes_max(node: &Node) -> Option<u64> {
        (node.height == 0).then(|| node.live().bytes / 2)
    }

    fn begin_compact(tree: &TrunkTree, range: (&[u8], Option<&[u8]>)) -> Result<u32> {
        tree.flush_range(range)?;
        Ok(0)
    }

    /// The next leaf in the range that is not yet one clean branch, as a plan.
    fn next_uncompacted(
        tree: &TrunkTree,
        _height: u32,
        (from, upper): (&[u8], Option<&[u8]>),
        _whole: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Plan>> {
        let version = tree.version.load_full();
        let deleted = RangeDeleted::of(&tree.context);
        let mut cursor: Key = Arc::from(from);
        loop {
            let node = tree.node_at(0, &version.root, &cursor)?;
            let has_deleted =
                || deleted.as_ref().is_some_and(|deleted| deletes_from(deleted, node));
            if (!is_clean(node) || has_deleted())
                && let Some(plan) = plan(node, &version.parameters, Trigger::Full)?
            {
                return Ok(Some(plan));
            }
            match &node.upper {
                Some(next) if upper.is_none_or(|upper| **next < *upper) => {
                    cursor = Arc::clone(next);
                }
                _ => return Ok(None),
            }
        }
    }
}

impl TrunkTree {
    /// Moves everything in a range down to the leaves: one change for the leaves of each node above them, so that none is
    /// long enough to be overtaken by others.
    pub(super) fn flush_range(&self, (lower, upper): (&[u8], Option<&[u8]>)) -> Result<()> {
        let mut from: Key = Arc::from(lower);
        loop {
            let end = self.node_at(1, &self.version.load().root, &from)?.upper.clone();
            let end = end.filter(|end| upper.is_none_or(|upper| **end < *upper));
            self.flush_part((&from, end.as_deref().or(upper)))?;
            match end {
                Some(end) => from = end,
                None => return Ok(()),
            }
        }
    }

    /// The node of a height that has a key; the root if that is lower.
    fn node_at<'a>(&self, height: u32, root: &'a Arc<Node>, key: &[u8]) -> Result<&'a Arc<Node>> {
        let mut node = root;
        while node.height > height
            && let Some(child) = &node.pivots[node.pivot_of(key)].child
        {
            node = child;
        }
        if node.upper.as_ref().is_some_and(|upper| **upper <= *key) {
            // The trunk's bounds are checked when it is opened and whenever it changes. If they were wrong all the
            // same, the way from here would lead to this node again, and so on without end.
            return Err(wrong_node(
                &self.context.manifest.path(),
                node.id.0,
                "upper bound of a node",
                format_args!("above \"{}\", for which the pivots lead to it", key.escape_ascii()),
                format_args!("{:?}", node.upper),
            ));
        }
        Ok(node)
    }

    fn flush_part(&self, range: (&[u8], Option<&[u8]>)) -> Result<()> {
        let flush = |root: &mut Arc<Node>, rules: &Rules| {
            let changed = change::flush_range(root, range, rules)?;
            if changed {
                rebalance_undamaged::<Trunk>(root, rules)?;
            }
            Ok(changed)
        };
        self.change(NewFiles::None, flush, Seqno(0), NewTables::None)
    }

    /// Finds the most urgent compaction of a node at or below `node`, if it is more urgent than `best`.
    fn find_due(
        &self,
        node: &Node,
        parameters: &Parameters,
        intent: Intent,
        best: &mut Option<Plan>,
    ) -> Result<()> {
        let outstanding = node.outstanding(parameters);
        let least = best.as_ref().map_or(0.0, |best| best.urgency);
        if outstanding.urgency <= least {
            return Ok(());
        }
        let now = self.context.clock.nanos();
        let is_quarantined =
            || self.jobs.lock().quarantine.overlaps(node.height, node.range(), now);
        if outstanding.own_urgency > least
            && !is_quarantined()
            && let Some(plan) = self.plan(node, Trigger::Due, intent)?
            // What planning failed for once may be less urgent.
            && plan.urgency > least
            && self.jobs.lock().admits(&plan)
        {
            *best = Some(plan);
        }
        node.children().try_for_each(|child| self.find_due(child, parameters, intent, best))
    }

    /// The join of two nodes in which no job is running.
    pub(super) fn free_join(&self, version: &Version) -> Option<Plan> {
        let now = self.context.clock.nanos();
        let failed = self.own.failed_joins.lock();
        let is_free = |place: &Place| {
            let jobs = self.jobs.lock();
            let (height, range) = (place.height, place.range());
            !failed.iter().any(|(failed, until)| now < *until && failed.overlaps(height, range))
                && !jobs.quarantine.overlaps(height, range, now)
                && jobs.is_free(height, range, None)
        };
        let leaf_bytes_max = Trunk::sized(&version.parameters, version).leaf_bytes_max;
        let place = version.root.first_join(&version.parameters, leaf_bytes_max, &is_free);
        place.map(Plan::join)
    }

    fn plan(&self, node: &Node, trigger: Trigger, intent: Intent) -> Result<Option<Plan>> {
        let planned = plan(node, &self.version.load().parameters, trigger);
        self.planned(planned, node, intent)
    }

    /// Whether a full compaction of the leaf could drop entries of its own that the last one could not.
    fn gains(&self, node: &Node, now: &[Seqno]) -> bool {
        let mut branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
        match (branches.next(), branches.next()) {
            (Some(only), None) => self.jobs.lock().gains(only.id(), now),
            (first, _) => first.is_some(),
        }
    }
}

/// Whether range deletes have deleted something of a leaf.
fn deletes_from(deleted: &RangeDeleted, leaf: &Node) -> bool {
    let mut tables = leaf.bundles.iter().flat_map(|bundle| &bundle.branches);
    tables.any(|table| deleted.is_deleted_from(table, leaf.range()))
}

/// Whether a leaf is as a full compaction leaves it: one branch, without dead entries.
fn is_clean(leaf: &Node) -> bool {
    let mut branches = leaf.bundles.iter().flat_map(|bundle| &bundle.branches);
    match (branches.next(), branches.next()) {
        (None, _) => true,
        (Some(table), None) => {
            let (lower, upper) = leaf.range();
            table_is_inside(table, lower, upper) && leaf.leaf_summary().reclaimable.entries == 0
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
