//! Which compaction is the most urgent: the node with most that is small, the leaf that takes most space for
//! nothing, or the leaf whose readers have wasted most.

use std::sync::Arc;

use super::StbTree;
use super::node::{Key, Node, table_is_inside, walk};
use super::plan::{Plan, Wish, plan};
use super::version::Version;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::sync::plain::Ordering;
use crate::tree::damaged::Met;
use crate::tree::space::PRESSING_SHARE;
use crate::tree::wrong_node;

/// Reads of iterators that a leaf has to have wasted, beyond what merging it costs, to be merged.
const SEEK_BYTES_MIN: u64 = 64 << 10;

/// A gain, in thousandths of what is merged for it, that is good enough not to look for more above leaves.
const GAIN_ENOUGH: u64 = 200;

/// What is to be done next.
pub(super) enum Choice {
    Plan(Plan),
    /// What is on its way to the leaf of a range is to be handed down to it, and merged there.
    Path {
        lower: Key,
        upper: Option<Key>,
    },
}

impl StbTree {
    /// The plan that is most urgent among those nobody works on.
    pub(super) fn choose(&self, version: &Version, met: Met) -> Result<Option<Choice>> {
        // A full compaction tidies its leaf too, so when space is short it comes first.
        if self.space(version).excess() > PRESSING_SHARE
            && let Some(choice) = self.choose_reclaiming(version, met)?
        {
            return Ok(Some(choice));
        }
        let mut best: Option<Plan> = None;
        let mut failure = None;
        walk(&version.root, &mut |node| {
            if failure.is_some()
                || node.bundles.len() < self.parameters.bundles_max
                || self.is_left_alone(node)
            {
                return;
            }
            match self.plan(node, Wish::Tidy, met) {
                Ok(Some(plan))
                    if best.as_ref().is_none_or(|best| best.urgency < plan.urgency)
                        && self.jobs.lock().is_free(&plan) =>
                {
                    best = Some(plan);
                }
                Ok(_) => {}
                Err(error) => failure = Some(error),
            }
        });
        match failure {
            Some(error) => Err(error),
            None if best.is_some() => Ok(best.map(Choice::Plan)),
            None => self.choose_reclaiming(version, met),
        }
    }

    /// Of the leaves that nobody works on, the one in which a full compaction gives back most for its size, by
    /// itself or with what is on its way to it, if the tree takes too much space.
    fn choose_reclaiming(&self, version: &Version, met: Met) -> Result<Option<Choice>> {
        if self.space(version).excess() <= 0.0 {
            return Ok(None);
        }
        let now = self.context.snapshots();
        let dead = version.dead_parts();
        let score_of = |gain: u64, bytes: u64| match gain * 20 < bytes {
            true => 0,
            false => gain * 1000 / bytes.max(1),
        };
        let mut best: Option<(u64, &Arc<Node>, bool)> = None;
        for by_path in [false, true] {
            if best.is_some_and(|(score, ..)| score >= GAIN_ENOUGH) {
                break;
            }
            // What is on its way to a leaf would be merged later for less, with what comes after it.
            let least = best.map_or(0, |(score, ..)| score + score / 2);
            walk(&version.root, &mut |node| {
                if node.height > 0 {
                    return;
                }
                let live = node.live().bytes.max(1);
                let score = match by_path {
                    true => {
                        let path = version.path_gains().of(node);
                        score_of(path.gain, live + path.index_bytes)
                    }
                    false if node.bundles.is_empty() || !self.gains(node, &now) => 0,
                    false => score_of(dead.gain(node), live),
                };
                if score > least
                    && best.is_none_or(|(most, ..)| most < score)
                    // On a full disk, what is on its way may be the deletes of what there was no room for.
                    && !if by_path { self.is_damaged(node) } else { self.is_left_alone(node) }
                    && self.jobs.lock().is_untouched(node)
                {
                    best = Some((score, node, by_path));
                }
            });
        }
        if let Some((_, node, by_path)) = best {
            // What is being merged takes space of its own until it is done.
            let (merging, idle) = {
                let jobs = self.jobs.lock();
                (jobs.merge_bytes(), jobs.claims.is_idle())
            };
            let path_bytes = if by_path { version.path_gains().of(node).index_bytes } else { 0 };
            let space = self.space(version);
            let bytes = space.left_of(merging + node.live().bytes + path_bytes);
            if !idle && !space.has_room(bytes) {
                return Ok(None);
            }
        }
        let nothing = best.is_none() && self.jobs.lock().claims.is_idle();
        self.nothing_to_reclaim.store(nothing, Ordering::Relaxed);
        match best {
            Some((_, node, true)) => {
                let (lower, upper) = (Arc::clone(&node.lower), node.upper.clone());
                Ok(Some(Choice::Path { lower, upper }))
            }
            Some((_, node, false)) => Ok(self.plan(node, Wish::Full, met)?.map(Choice::Plan)),
            None => Ok(None),
        }
    }

    fn plan(&self, node: &Node, wish: Wish, met: Met) -> Result<Option<Plan>> {
        let plan = plan(node, &self.parameters, wish);
        if met == Met::Noted
            && let Err(error) = &plan
        {
            self.note_damage(error, node.height, node.range());
        }
        plan
    }

    /// The leaf whose iterators have read most from more tables than one, if that has cost more than
    /// merging the leaf would (PebblesDB's seek-triggered compaction, generalised).
    pub(super) fn most_sought<'a>(&self, version: &'a Version) -> Option<&'a Arc<Node>> {
        if !self.context.options.seek_compaction {
            return None;
        }
        let mut best: Option<(u64, &Arc<Node>)> = None;
        walk(&version.root, &mut |node| {
            let seeks = node.seeks.load(Ordering::Relaxed);
            let wasted_bytes = seeks * UNIT_BYTES as u64;
            // A merge reads and writes the leaf, in order, at a quarter of what reads here and there cost.
            let worth = node.height == 0 && wasted_bytes > node.live().bytes / 2 + SEEK_BYTES_MIN;
            if worth && best.is_none_or(|(most, _)| most < seeks) && !self.is_left_alone(node) {
                best = Some((seeks, node));
            }
        });
        best.map(|(_, node)| node)
    }

    /// Moves all that a much sought leaf's path holds down to it, and plans to merge it there.
    pub(super) fn plan_sought(&self, version: &Version) -> Result<Option<Plan>> {
        let Some(leaf) = self.most_sought(version) else { return Ok(None) };
        leaf.seeks.store(0, Ordering::Relaxed);
        let (lower, upper) = (Arc::clone(&leaf.lower), leaf.upper.clone());
        self.flush_range(&lower, upper.as_deref())?;
        Ok(self.next_uncompacted(&lower, upper.as_deref())?.map(|(plan, _)| plan))
    }

    /// Whether a full compaction of the leaf could drop something that the last one could not.
    fn gains(&self, node: &Node, now: &[Seqno]) -> bool {
        let mut branches = node.bundles.iter().flat_map(|bundle| &bundle.branches);
        match (branches.next(), branches.next()) {
            (Some(only), None) => self.jobs.lock().claims.gains(only.id(), now),
            (first, _) => first.is_some(),
        }
    }

    /// The next leaf in the range that is not yet one clean branch, as a plan.
    pub(super) fn next_uncompacted(
        &self,
        from: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<(Plan, Option<Key>)>> {
        let version = self.version.load_full();
        let mut cursor: Key = Arc::from(from);
        loop {
            let mut node = &version.root;
            while let Some(child) = &node.pivots[node.pivot_of(&cursor)].child {
                node = child;
            }
            if node.upper.as_ref().is_some_and(|upper| *upper <= cursor) {
                // The trunk's bounds are checked when it is opened and whenever it changes. If they were wrong all the
                // same, the way from here would lead to this leaf again, and so on without end.
                return Err(wrong_node(
                    &self.context.manifest.path(),
                    node.id.0,
                    "upper bound of a leaf",
                    format_args!(
                        "above \"{}\", for which the pivots lead to it",
                        cursor.escape_ascii()
                    ),
                    format_args!("{:?}", node.upper),
                ));
            }
            let clean = match node.bundles.as_slice() {
                [] => true,
                [bundle] => match bundle.branches.as_slice() {
                    [table] => {
                        let (lower, upper) = node.range();
                        table_is_inside(table, lower, upper)
                            && node.leaf_summary().reclaimable.entries == 0
                    }
                    _ => false,
                },
                _ => false,
            };
            if !clean && let Some(plan) = plan(node, &self.parameters, Wish::Full)? {
                return Ok(Some((plan, node.upper.clone())));
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

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
