//! Which job is the most urgent: the guard with most tables one over the other, the guard that takes
//! most space for nothing, the guard whose readers have wasted most, or guards too small to be kept.

use std::sync::Arc;

use super::FlsmTree;
use super::guard::{Guard, walk};
use super::plan::{Plan, Wish, join_plan, plan};
use super::version::Version;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::sync::plain::Ordering;
use crate::tree::damaged::Met;
use crate::tree::files::dead_blob_gain;
use crate::tree::space::PRESSING_SHARE;

/// Reads of iterators that a guard has to have wasted, beyond what merging it costs, to be merged.
const SEEK_BYTES_MIN: u64 = 64 << 10;

/// A gain, in thousandths of what is merged for it, that is good enough not to look for more above the last level.
const GAIN_ENOUGH: u64 = 200;

impl FlsmTree {
    /// The plan that is most urgent among those nobody works on.
    pub(super) fn choose(&self, version: &Version, met: Met) -> Result<Option<Plan>> {
        if self.space(version).excess() > PRESSING_SHARE
            && let Some(plan) = self.choose_reclaiming(version, met)?
        {
            return Ok(Some(plan));
        }
        if let Some(guard) = self.most_urgent(version) {
            return self.plan(guard, Wish::Due, met);
        }
        if let Some(plan) = self.choose_reclaiming(version, met)? {
            return Ok(Some(plan));
        }
        if let Some(guard) = self.most_sought(version) {
            return self.plan(guard, Wish::Full, met);
        }
        Ok(self.choose_join(version))
    }

    fn plan(&self, guard: &Guard, wish: Wish, met: Met) -> Result<Option<Plan>> {
        let plan = plan(guard, wish, &self.parameters);
        if met == Met::Noted
            && let Err(error) = &plan
        {
            self.note_damage(error, guard.height, guard.range());
        }
        plan
    }

    fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>)) -> bool {
        self.jobs.lock().is_free(height, range, self.context.clock.nanos())
    }

    /// The guard that is due most.
    fn most_urgent<'a>(&self, version: &'a Version) -> Option<&'a Arc<Guard>> {
        let mut best: Option<(f64, &Arc<Guard>)> = None;
        self.find_urgent(&version.root, &mut best);
        best.map(|(_, guard)| guard)
    }

    fn find_urgent<'a>(&self, guard: &'a Arc<Guard>, best: &mut Option<(f64, &'a Arc<Guard>)>) {
        let least = best.map_or(1.0, |(urgency, _)| urgency);
        let all = guard.totals(&self.parameters).urgency;
        if all < least || (all == least && best.is_some()) {
            return;
        }
        let own = guard.urgency(&self.parameters);
        let more = own >= 1.0 && best.is_none_or(|(most, _)| most < own);
        if more && self.is_free(guard.height, guard.range()) {
            *best = Some((own, guard));
        }
        guard.children.iter().for_each(|child| self.find_urgent(child, best));
    }

    /// Of the guards that nobody works on, the one in which a full merge gives back most for what it costs, if
    /// the tree takes too much space.
    fn choose_reclaiming(&self, version: &Version, met: Met) -> Result<Option<Plan>> {
        if self.space(version).excess() <= 0.0 {
            return Ok(None);
        }
        let now = self.context.snapshots();
        let dead_blobs = version.mostly_dead_blobs();
        let score_of = |gain: u64, bytes: u64| match gain * 20 < bytes {
            true => 0,
            false => gain * 1000 / bytes.max(1),
        };
        let mut best: Option<(u64, &Arc<Guard>)> = None;
        for by_path in [false, true] {
            if best.is_some_and(|(score, _)| score >= GAIN_ENOUGH) {
                break;
            }
            // What lies above the last level would be merged there later for less, with what comes after it.
            let least = best.map_or(0, |(score, _)| score + score / 2);
            walk(&version.root, &mut |guard| {
                let bytes = guard.bytes();
                if bytes == 0 {
                    return;
                }
                let score = match by_path {
                    true => {
                        let path = version.path_gains().get(&guard.id).copied().unwrap_or_default();
                        score_of(path.gain, path.bytes)
                    }
                    false => {
                        let tables = guard.fragments.iter().map(|fragment| &fragment.table);
                        let blobs: u64 = tables.map(|t| dead_blob_gain(t, &dead_blobs)).sum();
                        score_of(self.gain(guard, &now) + blobs, bytes)
                    }
                };
                if score > least
                    && best.is_none_or(|(most, _)| most < score)
                    && self.is_free(guard.height, guard.range())
                {
                    best = Some((score, guard));
                }
            });
        }
        if let Some((_, guard)) = best {
            // What is being merged takes space of its own until it is done.
            let (merging, idle) = {
                let jobs = self.jobs.lock();
                (jobs.merge_bytes(), jobs.claims.is_idle())
            };
            let space = self.space(version);
            if !idle && !space.has_room(space.left_of(merging + guard.bytes())) {
                return Ok(None);
            }
        }
        let nothing = best.is_none() && self.jobs.lock().claims.is_idle();
        self.nothing_to_reclaim.store(nothing, Ordering::Relaxed);
        match best {
            Some((_, guard)) => self.plan(guard, Wish::Full, met),
            None => Ok(None),
        }
    }

    /// Bytes that a full merge of a guard would give back, estimated: what it holds that is superseded there
    /// (on the last level deleted, too), and what its tables hold on to outside of it.
    fn gain(&self, guard: &Guard, now: &[Seqno]) -> u64 {
        let outside: u64 = (guard.fragments.iter())
            .map(|f| f.table.properties().entry_bytes().saturating_sub(f.extent.bytes))
            .sum();
        // Other guards may hold on to the same.
        let outside = outside / 4;
        let dead = (guard.bytes() as f64 * guard.dead().share) as u64;
        match guard.fragments.as_slice() {
            _ if guard.height > 0 => dead + outside / 4,
            [only] if only.settled => outside,
            [only] if !self.jobs.lock().claims.gains(only.table.id(), now) => outside,
            _ => dead + outside,
        }
    }

    /// The guard of whose tables iterators have read most that they would not have to, if that has cost
    /// more than merging it would (PebblesDB's seek-triggered compaction). From the top down: what is
    /// merged on one level is read with what lies below it on the next.
    fn most_sought<'a>(&self, version: &'a Version) -> Option<&'a Arc<Guard>> {
        if !self.context.options.seek_compaction {
            return None;
        }
        let mut best: Option<(u64, &Arc<Guard>)> = None;
        walk(&version.root, &mut |guard| {
            let seeks = guard.seeks.load(Ordering::Relaxed);
            let wasted_bytes = seeks * UNIT_BYTES as u64;
            if wasted_bytes <= SEEK_BYTES_MIN {
                return;
            }
            // A merge reads and writes the guard.
            let worth = wasted_bytes > 2 * guard.bytes() + SEEK_BYTES_MIN
                && guard.fragments.len() > usize::from(guard.height == 0);
            if worth
                && best.is_none_or(|(most, _)| most < seeks)
                && self.is_free(guard.height, guard.range())
            {
                best = Some((seeks, guard));
            }
        });
        best.map(|(_, guard)| guard)
    }

    /// Neighbouring guards that hold too little to be kept apart.
    fn choose_join(&self, version: &Version) -> Option<Plan> {
        let mut found: Option<Plan> = None;
        if !version.totals.joinable {
            return None;
        }
        walk(&version.root, &mut |guard| {
            for left in 0..guard.children.len().saturating_sub(1) {
                if found.is_some() {
                    return;
                }
                found = join_plan(guard, left, &self.parameters)
                    .filter(|plan| self.is_free(plan.height, plan.range()));
            }
        });
        found
    }

    /// The next guard of a level in a range that is not yet as a full merge leaves it, as a plan.
    pub(super) fn next_uncompacted(
        &self,
        version: &Version,
        height: u32,
        from: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<Plan>> {
        let mut found = None;
        walk(&version.root, &mut |guard| {
            let meets = super::guard::ranges_meet(guard.range(), (from, upper));
            if found.is_some() || guard.height != height || !meets {
                return;
            }
            let clean = match guard.fragments.as_slice() {
                [] => true,
                [only] if height == 0 => {
                    let (lower, upper) = guard.range();
                    only.settled && super::guard::table_is_inside(&only.table, lower, upper)
                }
                _ => false,
            };
            if !clean {
                found = Some(guard);
            }
        });
        match found {
            Some(guard) => plan(guard, Wish::Full, &self.parameters),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
