//! Who works on which bundles.
//!
//! Invariants:
//! 1. Two jobs never work on one bundle in one node. (Several nodes may have it: a job in another is in
//!    nobody's way, and so is one that works on other bundles.)
//! 2. Jobs of the background's own choice stay away from where damage was met.

use std::sync::Arc;

use super::node::{Bundle, BundleId, Node};
use super::plan::Plan;
use crate::tree::claims::{Claims, Place};
use crate::tree::damaged::Damaged;

/// What a job works on.
pub(super) struct Work {
    place: Place,
    bundles: Vec<BundleId>,
    /// Bytes that are merged.
    merge_bytes: u64,
}

impl Work {
    /// Whether it is done on some of the bundles, in a range of a level.
    fn meets(&self, height: u32, range: (&[u8], Option<&[u8]>), bundles: &[Arc<Bundle>]) -> bool {
        self.place.meets(height, range)
            && bundles.iter().any(|bundle| self.bundles.contains(&bundle.id))
    }
}

/// All jobs of a trunk.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) claims: Claims<Work>,
    pub(super) damaged: Damaged,
    /// Numbers for bundles, drawn by jobs.
    next_bundle: u64,
}

impl Jobs {
    /// No job; numbers for bundles begin behind the last one that was given.
    pub(super) fn new(last_bundle: u64) -> Jobs {
        Jobs { next_bundle: last_bundle + 1, ..Jobs::default() }
    }

    pub(super) fn allocate_bundle(&mut self) -> BundleId {
        self.next_bundle += 1;
        BundleId(self.next_bundle - 1)
    }

    /// Bytes that all jobs together merge.
    pub(super) fn merge_bytes(&self) -> u64 {
        self.claims.active().map(|work| work.merge_bytes).sum()
    }

    /// Whether nobody works on what a plan takes in.
    pub(super) fn is_free(&self, plan: &Plan) -> bool {
        !self.claims.any(|work| work.meets(plan.height, plan.range(), &plan.bundles))
    }

    /// Whether nobody works on a bundle of a node.
    pub(super) fn is_untouched(&self, node: &Node) -> bool {
        !self.claims.any(|work| work.meets(node.height, node.range(), &node.bundles))
    }

    /// Claims what a plan takes in and gives the job a number.
    pub(super) fn claim(&mut self, plan: &Plan, ended_before: u64) -> Option<u64> {
        let place = Place {
            height: plan.height,
            lower: Arc::clone(&plan.lower),
            upper: plan.upper.clone(),
        };
        let bundles = plan.bundles.iter().map(|bundle| bundle.id).collect();
        self.claims.claim(
            Work { place, bundles, merge_bytes: plan.merge_bytes },
            ended_before,
            |work| work.meets(plan.height, plan.range(), &plan.bundles),
        )
    }
}
