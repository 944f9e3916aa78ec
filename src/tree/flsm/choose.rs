//! Which compaction is next: the guard with most tables one over the other, the full merge of a guard, or the join of
//! guards that are too small to be kept apart. The order is that of every versioned tree.

use std::sync::Arc;

use super::guard::Guard;
use super::parameters::Parameters;
use super::plan::{Plan, Trigger, join_plan, plan};
use super::reclaim;
use super::version::Version;
use super::{Flsm, FlsmTree};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::tree::range::{ranges_overlap, table_is_inside};
use crate::tree::versioned::{Choose, Gain, Intent, walk};

impl Choose for Flsm {
    type Choice = Plan;

    fn is_free(tree: &FlsmTree, guard: &Guard, _by_path: bool) -> bool {
        tree.is_free(guard.height, guard.range())
    }

    fn choose_due(tree: &FlsmTree, version: &Version, intent: Intent) -> Result<Option<Plan>> {
        match tree.most_urgent(version) {
            Some(guard) => tree.plan(guard, Trigger::Due, intent),
            None => Ok(None),
        }
    }

    /// By path, this is its first compaction. The next are due, or chosen for space.
    fn choose_full(
        tree: &FlsmTree,
        guard: &Guard,
        _by_path: bool,
        intent: Intent,
    ) -> Result<Option<Plan>> {
        tree.plan(guard, Trigger::Full, intent)
    }

    /// From the top down: what is merged on one level is read with what lies below it on the next.
    fn choose_for_reads(tree: &FlsmTree, guard: &Guard, intent: Intent) -> Result<Option<Plan>> {
        tree.plan(guard, Trigger::Full, intent)
    }

    /// Joins neighbouring guards that hold too little to be kept apart.
    fn choose_idle(tree: &FlsmTree, version: &Version) -> Option<Plan> {
        let mut found: Option<Plan> = None;
        if !version.own.totals.joinable {
            return None;
        }
        walk(&version.root, &mut |guard| {
            for left in 0..guard.children.len().saturating_sub(1) {
                if found.is_some() {
                    return;
                }
                found = join_plan(guard, left, &version.parameters)
                    .filter(|plan| tree.is_free(plan.place.height, plan.place.range()));
            }
        });
        found
    }

    fn plan_of(_tree: &FlsmTree, plan: Plan) -> Result<Option<Plan>> {
        Ok(Some(plan))
    }

    fn gain(tree: &FlsmTree, version: &Version, guard: &Guard, now: &[Seqno]) -> Gain {
        reclaim::gain(tree, guard, version.mostly_dead_blobs(), now)
    }

    fn path_gain(version: &Version, guard: &Guard) -> Gain {
        version.path_gains().get(&guard.id).copied().unwrap_or_default()
    }

    fn first_merge_bytes(_version: &Version, guard: &Guard, _by_path: bool) -> u64 {
        guard.bytes()
    }

    /// A merge reads and writes the guard.
    fn wasted_bytes_max(guard: &Guard) -> Option<u64> {
        let is_merged = guard.fragments.len() <= usize::from(guard.height == 0);
        (!is_merged).then(|| 2 * guard.bytes())
    }

    fn begin_compact(tree: &FlsmTree, _range: (&[u8], Option<&[u8]>)) -> Result<u32> {
        Ok(tree.version.load().root.height)
    }

    fn next_uncompacted(
        tree: &FlsmTree,
        height: u32,
        range: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Plan>> {
        let version = tree.version.load_full();
        let mut found = None;
        walk(&version.root, &mut |guard| {
            let overlaps = ranges_overlap(guard.range(), range);
            if found.is_some() || guard.height != height || !overlaps {
                return;
            }
            let clean = match guard.fragments.as_slice() {
                [] => true,
                [only] if height == 0 => {
                    let (lower, upper) = guard.range();
                    only.fully_merged && table_is_inside(&only.table, lower, upper)
                }
                _ => false,
            };
            if !clean {
                found = Some(guard);
            }
        });
        match found {
            Some(guard) => plan(guard, Trigger::Full, &version.parameters),
            None => Ok(None),
        }
    }
}

impl FlsmTree {
    /// Whether background work may be done in a range of a level.
    fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>)) -> bool {
        let now = self.context.clock.nanos();
        let jobs = self.jobs.lock();
        !jobs.quarantine.overlaps(height, range, now) && jobs.is_free(height, range, None)
    }

    /// The compaction of a guard.
    fn plan(&self, guard: &Guard, trigger: Trigger, intent: Intent) -> Result<Option<Plan>> {
        let planned = plan(guard, trigger, &self.version.load().parameters);
        self.planned(planned, guard, intent)
    }

    /// The guard that is due most.
    fn most_urgent<'a>(&self, version: &'a Version) -> Option<&'a Arc<Guard>> {
        let mut best: Option<(f64, &Arc<Guard>)> = None;
        self.find_urgent(&version.root, &version.parameters, &mut best);
        best.map(|(_, guard)| guard)
    }

    fn find_urgent<'a>(
        &self,
        guard: &'a Arc<Guard>,
        parameters: &Parameters,
        best: &mut Option<(f64, &'a Arc<Guard>)>,
    ) {
        let least = best.map_or(1.0, |(urgency, _)| urgency);
        let all = guard.totals(parameters).urgency;
        if all < least || (all == least && best.is_some()) {
            return;
        }
        let own = guard.urgency(parameters);
        let more = own >= 1.0 && best.is_none_or(|(most, _)| most < own);
        if more && self.is_free(guard.height, guard.range()) {
            *best = Some((own, guard));
        }
        guard.children.iter().for_each(|child| self.find_urgent(child, parameters, best));
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
