//! Who works on which guard.
//!
//! Invariants:
//! 1. Two jobs on one level never work on ranges that meet. A job on another level is in nobody's way:
//!    guards take fragments from above while they are compacted.

use super::plan::Plan;
use crate::tree::claims::{Claims, Place};
use crate::tree::damaged::Damaged;

/// What a job works on.
pub(super) struct Work {
    place: Place,
    /// Bytes that are merged.
    merge_bytes: u64,
}

/// All jobs of a tree.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) claims: Claims<Work>,
    pub(super) damaged: Damaged,
}

impl Jobs {
    /// Whether background work may be done in a range of a level.
    pub(super) fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        !self.damaged.meets(height, range, now)
            && !self.claims.any(|work| work.place.meets(height, range))
    }

    /// Claims a plan's guard and gives the job a number.
    pub(super) fn claim(&mut self, plan: &Plan, ended_before: u64) -> Option<u64> {
        let place =
            Place { height: plan.height, lower: plan.lower.clone(), upper: plan.upper.clone() };
        let meets = |work: &Work| work.place.meets(plan.height, plan.range());
        let work = Work { place, merge_bytes: plan.merge_bytes() };
        self.claims.claim(work, ended_before, meets)
    }

    /// Bytes that all jobs together merge.
    pub(super) fn merge_bytes(&self) -> u64 {
        self.claims.active().map(|work| work.merge_bytes).sum()
    }
}
