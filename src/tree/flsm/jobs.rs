//! Who works on which guard.
//!
//! Invariants:
//! 1. Two jobs on one level never work on ranges that meet. A job on another level is in nobody's way:
//!    guards take fragments from above while they are compacted.
//! 2. A guard in which damage was met is left alone for a while, so that it does not keep the others from
//!    their turn. Nobody waits for it either.

use super::guard::Key;
use super::plan::Plan;
use crate::tree::claims::{Claims, Place};

/// A guard whose compaction met damage.
struct Refused {
    place: Place,
    until_nanos: u64,
}

/// How long a guard in which damage was met is left alone.
const REFUSED_NANOS: u64 = 60_000_000_000;

/// All jobs of a tree.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) claims: Claims<Place>,
    refused: Vec<Refused>,
}

impl Jobs {
    /// Whether background work may be done in a range of a level.
    pub(super) fn is_free(&self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) -> bool {
        let mut refused = self.refused.iter().filter(|refused| now < refused.until_nanos);
        !refused.any(|refused| refused.place.meets(height, range))
            && !self.claims.any(|place| place.meets(height, range))
    }

    /// Leaves a guard alone for a while.
    pub(super) fn refuse(&mut self, height: u32, range: (&[u8], Option<&[u8]>), now: u64) {
        self.refused.retain(|refused| now < refused.until_nanos);
        let until_nanos = now.saturating_add(REFUSED_NANOS);
        let place = Place { height, lower: Key::from(range.0), upper: range.1.map(Key::from) };
        self.refused.push(Refused { place, until_nanos });
    }

    /// Whether some guard is left alone.
    pub(super) fn refuses(&self, now: u64) -> bool {
        self.refused.iter().any(|refused| now < refused.until_nanos)
    }

    /// Claims a plan's guard and gives the job a number.
    pub(super) fn claim(&mut self, plan: &Plan, ended_before: u64) -> Option<u64> {
        let place =
            Place { height: plan.height, lower: plan.lower.clone(), upper: plan.upper.clone() };
        let meets = |place: &Place| place.meets(plan.height, plan.range());
        self.claims.claim(place, ended_before, meets)
    }
}
