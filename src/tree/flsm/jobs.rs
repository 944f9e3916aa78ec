//! Who works on which guard.
//!
//! Invariants:
//! 1. Two jobs on one level never work on ranges that meet. A job on another level is in nobody's way:
//!    guards take fragments from above while they are compacted.

use super::plan::Plan;
use crate::tree::claims::{Claims, Place};
use crate::tree::damaged::Damaged;

/// All jobs of a tree.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) claims: Claims<Place>,
    pub(super) damaged: Damaged,
}

impl Jobs {
    /// Whether background work may be done in a range of a level.
    pub(super) fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        !self.damaged.meets(height, range, now)
            && !self.claims.any(|place| place.meets(height, range))
    }

    /// Claims a plan's guard and gives the job a number.
    pub(super) fn claim(&mut self, plan: &Plan, ended_before: u64) -> Option<u64> {
        let place =
            Place { height: plan.height, lower: plan.lower.clone(), upper: plan.upper.clone() };
        let meets = |place: &Place| place.meets(plan.height, plan.range());
        self.claims.claim(place, ended_before, meets)
    }
}
