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
use crate::table::Table;
use crate::tree::range::{ranges_overlap, table_is_inside};
use crate::tree::range_deleted::RangeDeleted;
use crate::tree::versioned::{Choose, Deleted, Gain, Intent, Now, Worth};

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
        tree.find_join(&version.root, &version.parameters)
    }

    fn plan_of(_tree: &FlsmTree, plan: Plan) -> Result<Option<Plan>> {
        Ok(Some(plan))
    }

    fn gain(tree: &FlsmTree, _version: &Version, guard: &Guard, now: &Now) -> Gain {
        reclaim::gain(tree, guard, now)
    }

    fn path_gain(version: &Version, guard: &Guard) -> Gain {
        version.path_gains().get(&guard.id).map_or(Gain::default(), |path| path.gain)
    }

    fn deleted(
        tree: &FlsmTree,
        version: &Version,
        guard: &Guard,
        worth: (Worth, &[Seqno]),
    ) -> Option<Deleted> {
        reclaim::deleted(tree, version.path_gains(), guard, worth)
    }

    fn tables_of_full_merge(_version: &Version, guard: &Guard) -> Vec<Arc<Table>> {
        guard.fragments.iter().map(|fragment| Arc::clone(&fragment.table)).collect()
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
        _whole: (&[u8], Option<&[u8]>),
    ) -> Result<Option<Plan>> {
        let version = tree.version.load_full();
        let deleted = RangeDeleted::of(&tree.context);
        match first_unclean(&version.root, height, range, deleted.as_ref()) {
            Some(guard) => plan(guard, Trigger::Full, &version.parameters),
            None => Ok(None),
        }
    }
}

/// The first guard of a level in a range that is not as a full merge leaves it.
fn first_unclean<'a>(
    guard: &'a Arc<Guard>,
    height: u32,
    range: (&[u8], Option<&[u8]>),
    deleted: Option<&RangeDeleted>,
) -> Option<&'a Arc<Guard>> {
    if guard.height < height || !ranges_overlap(guard.range(), range) {
        return None;
    }
    if guard.height > height {
        let mut children = guard.children.iter();
        return children.find_map(|child| first_unclean(child, height, range, deleted));
    }
    let clean = match guard.fragments.as_slice() {
        [] => true,
        [only] if height == 0 => {
            let (lower, upper) = guard.range();
            let is_deleted_from =
                |deleted: &RangeDeleted| deleted.is_deleted_from(&only.table, (lower, upper));
            only.fully_merged
                && table_is_inside(&only.table, lower, upper)
                && !deleted.is_some_and(is_deleted_from)
        }
        _ => false,
    };
    (!clean).then_some(guard)
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

    /// The join of two neighbours at or below the guard's children in which no job is running.
    fn find_join(&self, guard: &Guard, parameters: &Parameters) -> Option<Plan> {
        if !guard.totals(parameters).joinable {
            return None;
        }
        let pairs = 0..guard.children.len().saturating_sub(1);
        let is_free = |plan: &Plan| self.is_free(plan.place.height, plan.place.range());
        let here = pairs.filter_map(|left| join_plan(guard, left, parameters)).find(is_free);
        here.or_else(|| guard.children.iter().find_map(|child| self.find_join(child, parameters)))
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
