//! Who works on what.
//!
//! Invariants:
//! 1. A plan is claimed only if nobody works on some of the same, and only if no job has ended since the plan
//!    was begun: what that one has swapped in, the plan may not have seen, and would bring the inputs back
//!    beside their output.

use std::collections::BTreeMap;

use super::extent::{Key, ranges_meet};
use crate::base::ids::{FileId, Seqno};

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
    /// Tables that hold versions which only snapshots need, with those snapshots: nothing is to be
    /// gained there before one of them has gone.
    retained: BTreeMap<FileId, Vec<Seqno>>,
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

    /// Remembers that a table holds what only `snapshots` need (the last of them is the newest state).
    pub(super) fn retain(&mut self, table: FileId, snapshots: &[Seqno]) {
        self.retained.insert(table, snapshots.to_vec());
    }

    /// Forgets a table that is no more.
    pub(super) fn forget(&mut self, table: FileId) {
        self.retained.remove(&table);
    }

    /// Whether merging the table by itself could drop something that the last merge could not.
    pub(super) fn gains(&self, table: FileId, now: &[Seqno]) -> bool {
        match self.retained.get(&table) {
            // The newest state moves on; what was a snapshot's is free once it has gone.
            Some(then) => {
                let held = then.len().saturating_sub(1);
                then[..held].iter().any(|snapshot| !now.contains(snapshot))
            }
            None => true,
        }
    }
}
