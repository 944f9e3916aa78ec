//! Who works on what.
//!
//! Invariants:
//! 1. A plan is claimed only if nobody works on some of the same, and only if no job has ended since the plan
//!    was begun: what that one has swapped in, the plan may not have seen, and would bring the inputs back
//!    beside their output.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::extent::{Key, ranges_meet};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::table::Table;

/// A range of keys of one level.
pub(super) struct Place {
    pub(super) height: u32,
    pub(super) lower: Key,
    pub(super) upper: Option<Key>,
}

impl Place {
    /// Whether it has a key in common with a range of a level.
    pub(super) fn meets(&self, height: u32, range: (&[u8], Option<&[u8]>)) -> bool {
        self.height == height && ranges_meet((&self.lower, self.upper.as_deref()), range)
    }
}

/// The jobs of a tree that are under way, each with what it works on.
pub(super) struct Claims<W> {
    next_number: u64,
    active: Vec<(u64, W)>,
    /// How many have ended.
    ended: u64,
    /// Tables that hold versions which only snapshots need.
    retained: BTreeMap<FileId, Retained>,
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

impl<W> Default for Claims<W> {
    fn default() -> Claims<W> {
        Claims { next_number: 0, active: Vec::new(), ended: 0, retained: BTreeMap::new() }
    }
}

impl<W> Claims<W> {
    /// How many jobs have ended; to be asked before the version that a plan is made from is loaded.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// The work of all jobs that are under way.
    pub(super) fn active(&self) -> impl Iterator<Item = &W> {
        self.active.iter().map(|(_, work)| work)
    }

    /// Whether a job is under way of whose work `conflicts` says so.
    pub(super) fn any(&self, conflicts: impl Fn(&W) -> bool) -> bool {
        self.active.iter().any(|(_, work)| conflicts(work))
    }

    /// Claims work for a job, which gets a number.
    pub(super) fn claim(
        &mut self,
        work: W,
        ended_before: u64,
        conflicts: impl Fn(&W) -> bool,
    ) -> Option<u64> {
        if self.ended != ended_before || self.any(conflicts) {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.active.push((number, work));
        Some(number)
    }

    pub(super) fn end(&mut self, number: u64) {
        self.active.retain(|(active, _)| *active != number);
        self.ended += 1;
    }

    /// Remembers that tables hold what only `snapshots` need (the last of them is the newest state), and
    /// forgets those that are no more.
    pub(super) fn retain(&mut self, tables: &[Arc<Table>], snapshots: &[Seqno]) {
        self.retained.retain(|_, retained| retained.table.strong_count() > 0);
        let snapshots = Arc::<[Seqno]>::from(snapshots);
        let retained = |table: &Arc<Table>| {
            let properties = table.properties();
            let bytes = properties.entry_bytes() as f64 * properties.sample.old_share();
            let (table, snapshots) = (Arc::downgrade(table), Arc::clone(&snapshots));
            Retained { table, snapshots, bytes: bytes as u64 }
        };
        self.retained.extend(tables.iter().map(|table| (table.id(), retained(table))));
    }

    /// Key and value bytes that are kept for snapshots, and cannot be had back before one of those has gone.
    pub(super) fn retained_bytes(&self, now: &[Seqno]) -> u64 {
        let held =
            |retained: &&Retained| retained.table.strong_count() > 0 && !retained.is_freed(now);
        self.retained.values().filter(held).map(|retained| retained.bytes).sum()
    }

    /// Whether merging the table by itself could drop something that the last merge could not. `now` is ascending.
    pub(super) fn gains(&self, table: FileId, now: &[Seqno]) -> bool {
        match self.retained.get(&table) {
            Some(_) if planted(Bug::RetainedForever) => false,
            Some(retained) => retained.is_freed(now),
            None => true,
        }
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
        let mut claims = Claims::<Place>::default();
        assert!(claims.gains(table.id(), &[Seqno(5)]), "nothing is known of it");
        claims.retain(&[Arc::clone(&table)], &[Seqno(3), Seqno(5), Seqno(9)]);
        assert!(!claims.gains(table.id(), &[Seqno(3), Seqno(5), Seqno(12)]));
        assert!(claims.gains(table.id(), &[Seqno(3), Seqno(12)]));
    }

    /// A store with a snapshot that was held for long remembered every table that compactions had written
    /// meanwhile, also when they were long gone.
    #[test]
    fn tables_that_are_gone_are_forgotten() {
        let files = data_files();
        let mut claims = Claims::<Place>::default();
        let kept = table(&files, 1);
        claims.retain(&[Arc::clone(&kept)], &[Seqno(3), Seqno(9)]);
        for number in 2..100 {
            claims.retain(&[table(&files, number)], &[Seqno(3), Seqno(9)]);
            assert!(claims.retained.len() <= 3);
        }
        assert!(!claims.gains(kept.id(), &[Seqno(3), Seqno(9)]));
    }

    /// A plan that was begun before another job ended may have missed what that one did.
    #[test]
    fn a_claim_fails_where_somebody_works_and_after_any_job_has_ended() {
        let place = |lower: &str, upper: &str| Place {
            height: 0,
            lower: Key::from(lower.as_bytes()),
            upper: Some(Key::from(upper.as_bytes())),
        };
        let mut claims = Claims::default();
        let claim = |claims: &mut Claims<Place>, lower: &str, upper: &str, ended| {
            let (low, high) = (lower.as_bytes(), upper.as_bytes());
            claims.claim(place(lower, upper), ended, |other| other.meets(0, (low, Some(high))))
        };
        let first = claim(&mut claims, "b", "d", 0).unwrap();
        assert!(claim(&mut claims, "c", "e", 0).is_none(), "the first is in the way");
        assert!(claim(&mut claims, "d", "e", 0).is_some(), "it ends before");
        assert!(!claims.any(|place| place.meets(1, (b"b", None))), "another level");
        claims.end(first);
        assert!(claim(&mut claims, "b", "c", 0).is_none(), "a job has ended meanwhile");
        assert!(claim(&mut claims, "b", "c", 1).is_some());
    }
}
