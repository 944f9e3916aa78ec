//! The running jobs of a tree.
//!
//! Invariants:
//! 1. A plan is claimed only if no running job excludes it, and only if no job has ended since the plan was begun: what
//!    that job has installed, the plan may not have seen, and would bring the inputs back beside their output. A job ends
//!    when its change has been shown or refused, not when it has been submitted: a plan that is begun afterwards is made of
//!    a version that shows the change.
//! 2. Background work stays away from quarantined places.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use super::CompactionPlan;
use super::node::Place;
use super::quarantine::Quarantine;
use super::request::Request;
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::Key;

/// What a job works on.
struct Work {
    place: Place,
    /// `None`: everything in the place.
    bundles: Option<Vec<u64>>,
    bytes: RunningBytes,
}

/// What jobs read and write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::tree) struct RunningBytes {
    /// Bytes of tables that they merge.
    pub(in crate::tree) merged: u64,
    /// Bytes of values that they copy out of blob files, about.
    pub(in crate::tree) copied: u64,
}

impl Work {
    /// Whether it excludes work on some bundles (`None`: on everything) in a range of a level.
    fn excludes(
        &self,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        bundles: Option<&[u64]>,
    ) -> bool {
        self.place.overlaps(height, range)
            && match (&self.bundles, bundles) {
                (Some(own), Some(others)) => others.iter().any(|bundle| own.contains(bundle)),
                _ => true,
            }
    }
}

/// The jobs of a tree that are running, each with what it works on, and the quarantined places.
#[derive(Default)]
pub(in crate::tree) struct Jobs {
    pub(in crate::tree) quarantine: Quarantine,
    /// What callers have asked for and wait for.
    pub(super) requests: Vec<Arc<Request>>,
    next_number: u64,
    running: Vec<(u64, Work)>,
    /// How many have ended.
    ended: u64,
    /// Tables that hold versions which only snapshots need.
    retained: BTreeMap<FileId, Retained>,
    /// Those of them of which the sample has such versions: few have, while there are no snapshots.
    with_bytes: BTreeSet<FileId>,
    /// How many tables are remembered when those that are no more are forgotten.
    forget_at: usize,
}

/// A table with versions that only snapshots need: nothing is to be gained there before one of them has gone.
struct Retained {
    table: Weak<Table>,
    /// The last is the newest state.
    snapshots: Arc<[Seqno]>,
    /// Key and value bytes of those versions, about.
    bytes: u64,
}

impl Retained {
    /// Whether one of the snapshots has gone. The newest state moves on; what was a snapshot's is free once it has
    /// gone.
    fn is_freed(&self, now: &[Seqno]) -> bool {
        let held = self.snapshots.len().saturating_sub(1);
        self.snapshots[..held].iter().any(|snapshot| now.binary_search(snapshot).is_err())
    }
}

impl Jobs {
    /// How many jobs have ended; to be asked before the version is loaded that a plan is made from.
    pub(in crate::tree) fn ended(&self) -> u64 {
        self.ended
    }

    pub(in crate::tree) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Of all jobs together.
    pub(in crate::tree) fn running_bytes(&self) -> RunningBytes {
        let mut sum = RunningBytes::default();
        for (_, work) in &self.running {
            sum.merged += work.bytes.merged;
            sum.copied += work.bytes.copied;
        }
        sum
    }

    /// Whether no running job excludes work on some bundles (`None`: on everything) in a range of a level.
    pub(in crate::tree) fn is_free(
        &self,
        height: u32,
        range: (&[u8], Option<&[u8]>),
        bundles: Option<&[u64]>,
    ) -> bool {
        !self.running.iter().any(|(_, work)| work.excludes(height, range, bundles))
    }

    /// The ranges of a level's keys in which no job works, and that are not quarantined, ascending.
    pub(in crate::tree) fn free_ranges(&self, height: u32, now: u64) -> Vec<(Key, Option<Key>)> {
        let works = self.running.iter().map(|(_, work)| &work.place);
        let taken = works.chain(self.quarantine.places(now)).filter(|it| it.height == height);
        let mut taken: Vec<&Place> = taken.collect();
        taken.sort_by(|a, b| a.lower.cmp(&b.lower));
        let (mut free, mut from) = (Vec::new(), Some(Key::from(&[][..])));
        for place in taken {
            let Some(start) = from else { break };
            from = place.upper.clone().map(|upper| upper.max(Key::clone(&start)));
            if start < place.lower {
                free.push((start, Some(Key::clone(&place.lower))));
            }
        }
        free.extend(from.map(|from| (from, None)));
        free
    }

    /// Whether no running job excludes a plan.
    pub(in crate::tree) fn admits(&self, plan: &impl CompactionPlan) -> bool {
        let place = plan.place();
        self.is_free(place.height, place.range(), plan.bundles().as_deref())
    }

    /// Claims what a plan works on for a job, which gets a number and copies so many bytes of values.
    pub(super) fn claim(
        &mut self,
        plan: &impl CompactionPlan,
        copied_bytes: u64,
        ended_before: u64,
    ) -> Option<u64> {
        if self.ended != ended_before || !self.admits(plan) {
            return None;
        }
        let (place, bundles) = (plan.place().clone(), plan.bundles());
        let number = self.next_number;
        self.next_number += 1;
        let bytes = RunningBytes { merged: plan.merge_bytes(), copied: copied_bytes };
        self.running.push((number, Work { place, bundles, bytes }));
        Some(number)
    }

    pub(super) fn end(&mut self, number: u64) {
        self.running.retain(|(running, _)| *running != number);
        self.ended += 1;
    }

    /// Remembers that tables hold what only `snapshots` need (the last of them is the newest state), and
    /// forgets those that are no more.
    pub(in crate::tree) fn retain(&mut self, tables: &[Arc<Table>], snapshots: &[Seqno]) {
        if self.retained.len() >= self.forget_at {
            self.retained.retain(|_, retained| retained.table.strong_count() > 0);
            self.with_bytes.retain(|id| self.retained.contains_key(id));
            // Each table that is remembered pays for a look at two.
            self.forget_at = self.retained.len() * 2;
        }
        let snapshots = Arc::<[Seqno]>::from(snapshots);
        for table in tables {
            let properties = table.properties();
            let bytes = (properties.entry_bytes() as f64 * properties.sample.old_share()) as u64;
            let (weak, snapshots) = (Arc::downgrade(table), Arc::clone(&snapshots));
            self.retained.insert(table.id(), Retained { table: weak, snapshots, bytes });
            if bytes > 0 {
                self.with_bytes.insert(table.id());
            }
        }
    }

    /// Key and value bytes that are kept for snapshots, and cannot be had back before one of those has gone.
    pub(in crate::tree) fn retained_bytes(&self, now: &[Seqno]) -> u64 {
        let retained = self.with_bytes.iter().filter_map(|id| self.retained.get(id));
        let held =
            |retained: &&Retained| retained.table.strong_count() > 0 && !retained.is_freed(now);
        retained.filter(held).map(|retained| retained.bytes).sum()
    }

    /// Whether merging the table by itself could drop something that the last merge could not. `now` is ascending.
    pub(in crate::tree) fn gains(&self, table: FileId, now: &[Seqno]) -> bool {
        match self.retained.get(&table) {
            Some(_) if planted(Bug::RetainedForever) => false,
            Some(retained) => retained.is_freed(now),
            None => true,
        }
    }
}

impl Jobs {
    /// The tables with key and value bytes that were kept for snapshots of which one has gone. `now` is ascending.
    pub(in crate::tree) fn freed(&self, now: &[Seqno]) -> Vec<(FileId, u64)> {
        let freed = self.with_bytes.iter().map(|id| (*id, self.freed_bytes(*id, now)));
        freed.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Key and value bytes of a table that were kept for snapshots of which one has gone, about. `now` is ascending.
    pub(in crate::tree) fn freed_bytes(&self, table: FileId, now: &[Seqno]) -> u64 {
        let freed = self.retained.get(&table).filter(|retained| retained.is_freed(now));
        freed.map_or(0, |retained| retained.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::edits::tests::{data_files, table};

    /// What the last merge kept for snapshots can go once one of them has gone; that the newest state has moved
    /// on changes nothing.
    #[test]
    fn what_snapshots_retain_is_no_gain_before_one_of_them_goes() {
        let table = table(&data_files(), 1);
        let mut jobs = Jobs::default();
        assert!(jobs.gains(table.id(), &[Seqno(5)]), "nothing is known of it");
        jobs.retain(&[Arc::clone(&table)], &[Seqno(3), Seqno(5), Seqno(9)]);
        assert!(!jobs.gains(table.id(), &[Seqno(3), Seqno(5), Seqno(12)]));
        assert!(jobs.gains(table.id(), &[Seqno(3), Seqno(12)]));
    }

    /// A store with a snapshot that was held for long remembered every table that compactions had written
    /// meanwhile, also when they were long gone.
    #[test]
    fn tables_that_are_gone_are_forgotten() {
        let files = data_files();
        let mut jobs = Jobs::default();
        let kept = table(&files, 1);
        jobs.retain(&[Arc::clone(&kept)], &[Seqno(3), Seqno(9)]);
        for number in 2..100 {
            jobs.retain(&[table(&files, number)], &[Seqno(3), Seqno(9)]);
            assert!(jobs.retained.len() <= 4);
        }
        assert!(!jobs.gains(kept.id(), &[Seqno(3), Seqno(9)]));
    }

    struct OnBundles(Place, Vec<u64>);

    impl CompactionPlan for OnBundles {
        fn place(&self) -> &Place {
            &self.0
        }

        fn merge_bytes(&self) -> u64 {
            10
        }

        fn merged_tables(&self) -> Vec<&Arc<Table>> {
            Vec::new()
        }

        fn bundles(&self) -> Option<Vec<u64>> {
            (!self.1.is_empty()).then(|| self.1.clone())
        }
    }

    /// A plan that was begun before another job ended may have missed what that one did.
    #[test]
    fn a_claim_fails_where_another_job_works_and_after_any_job_has_ended() {
        let mut jobs = Jobs::default();
        let claim = |jobs: &mut Jobs, lower: &str, upper: &str, bundles: &[u64], ended| {
            let (lower, upper) = (Key::from(lower.as_bytes()), Some(Key::from(upper.as_bytes())));
            let place = Place { height: 0, lower, upper };
            jobs.claim(&OnBundles(place, bundles.to_vec()), 5, ended)
        };
        let first = claim(&mut jobs, "b", "d", &[], 0).unwrap();
        assert!(claim(&mut jobs, "c", "e", &[], 0).is_none(), "the first excludes it");
        assert!(claim(&mut jobs, "c", "e", &[7], 0).is_none(), "the first works on all bundles");
        assert!(claim(&mut jobs, "d", "e", &[5, 6], 0).is_some(), "the first ends before");
        assert!(claim(&mut jobs, "d", "e", &[6, 7], 0).is_none(), "bundle 6 is another's");
        assert!(claim(&mut jobs, "d", "e", &[7], 0).is_some(), "another bundle of the same node");
        assert!(jobs.is_free(1, (b"b", None), None), "another level");
        let free = |height| -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
            let free = jobs.free_ranges(height, 0).into_iter();
            free.map(|(lower, upper)| (lower.to_vec(), upper.map(|it| it.to_vec()))).collect()
        };
        let (before, behind) = ((b"".to_vec(), Some(b"b".to_vec())), (b"e".to_vec(), None));
        assert_eq!(free(0), [before, behind]);
        assert_eq!(free(1), [(b"".to_vec(), None)]);
        assert_eq!(jobs.running_bytes(), RunningBytes { merged: 30, copied: 15 });
        jobs.end(first);
        assert!(claim(&mut jobs, "b", "c", &[], 0).is_none(), "a job has ended meanwhile");
        assert!(claim(&mut jobs, "b", "c", &[], 1).is_some());
    }
}
