//! Who works on which guard.
//!
//! Invariants:
//! 1. Two jobs on one level never work on ranges that meet. A job on another level is in nobody's way:
//!    guards take fragments from above while they are compacted.
//! 2. A plan is claimed only if no job has ended since it was begun: what that one has moved, the plan
//!    may not have seen.
//! 3. A guard in which damage was met is left alone for a while, so that it does not keep the others from
//!    their turn. Nobody waits for it either.

use std::collections::BTreeMap;

use super::guard::{Key, ranges_meet};
use super::plan::Plan;
use crate::base::ids::{FileId, Seqno};

/// A job that is under way, and what it works on.
struct ActiveJob {
    number: u64,
    height: u32,
    lower: Key,
    upper: Option<Key>,
}

/// A guard whose compaction met damage.
struct Refused {
    height: u32,
    lower: Key,
    upper: Option<Key>,
    until_nanos: u64,
}

/// How long a guard in which damage was met is left alone.
const REFUSED_NANOS: u64 = 60_000_000_000;

/// All jobs of a tree.
#[derive(Default)]
pub(super) struct Jobs {
    next_number: u64,
    active: Vec<ActiveJob>,
    /// How many have ended.
    ended: u64,
    refused: Vec<Refused>,
    /// Tables that hold what only snapshots need, with those snapshots: nothing is to be gained there
    /// before one of them has gone.
    retained: BTreeMap<FileId, Vec<Seqno>>,
}

impl Jobs {
    /// How many jobs have ended; to be asked before the version that a plan is made from is loaded.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether a job works on some of a range of a level.
    pub(super) fn conflicts(&self, height: u32, range: (&[u8], Option<&[u8]>)) -> bool {
        self.active.iter().any(|job| {
            job.height == height && ranges_meet((&job.lower, job.upper.as_deref()), range)
        })
    }

    /// Whether background work may be done in a range of a level.
    pub(super) fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        let refused = self.refused.iter().any(|refused| {
            now < refused.until_nanos
                && refused.height == height
                && ranges_meet((&refused.lower, refused.upper.as_deref()), range)
        });
        !refused && !self.conflicts(height, range)
    }

    /// Leaves a guard alone for a while.
    pub(super) fn refuse(&mut self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) {
        self.refused.retain(|refused| now < refused.until_nanos);
        let until_nanos = now.saturating_add(REFUSED_NANOS);
        let (lower, upper) = (Key::from(range.0), range.1.map(Key::from));
        self.refused.push(Refused { height, lower, upper, until_nanos });
    }

    /// Whether some guard is left alone.
    pub(super) fn refuses(&self, now: u64) -> bool {
        self.refused.iter().any(|refused| now < refused.until_nanos)
    }

    /// Claims a plan's guard and gives the job a number.
    pub(super) fn claim(&mut self, plan: &Plan, ended_before: u64) -> Option<u64> {
        if self.ended != ended_before || self.conflicts(plan.height, plan.range()) {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.active.push(ActiveJob {
            number,
            height: plan.height,
            lower: plan.lower.clone(),
            upper: plan.upper.clone(),
        });
        Some(number)
    }

    pub(super) fn end(&mut self, number: u64) {
        self.active.retain(|job| job.number != number);
        self.ended += 1;
    }

    /// Remembers that a table holds what only `snapshots` need.
    pub(super) fn retain(&mut self, table: FileId, snapshots: &[Seqno]) {
        self.retained.insert(table, snapshots.to_vec());
    }

    /// Forgets tables that are no more.
    pub(super) fn forget(&mut self, table: FileId) {
        self.retained.remove(&table);
    }

    /// Whether merging the table by itself could drop anything.
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
