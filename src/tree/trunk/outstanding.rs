//! The work that there is in a node and all below it. It is derived once per node, so a search for work looks at what has
//! changed since the last, and goes where there is some.
//!
//! Invariants:
//! 1. It is derived with the tree's own parameters, not with those of a version's size: all versions that have the node
//!    share it. Only joins depend on the size, so they are derived for all sizes.
//! 2. No lock is held meanwhile: planning reads index pages.

use super::change::joins;
use super::node::{Node, Outstanding};
use super::parameters::Parameters;
use super::plan::{Trigger, plan};
use crate::tree::versioned::{Place, TreeNode};

impl Node {
    /// The work that there is in the node and all below it. `parameters` are the tree's own.
    pub(super) fn outstanding(&self, parameters: &Parameters) -> &Outstanding {
        self.derived.outstanding.get_or(|| {
            let own_urgency = match self.bundles.len() >= parameters.bundles_max {
                true => match plan(self, parameters, Trigger::Due) {
                    Ok(plan) => plan.map_or(0.0, |plan| plan.urgency),
                    Err(_) => f64::INFINITY,
                },
                false => 0.0,
            };
            let joins_from = joins(self, parameters).map(|(_, from)| from).min();
            let joins_from = joins_from.unwrap_or(u64::MAX);
            let mut outstanding = Outstanding { own_urgency, urgency: own_urgency, joins_from };
            for child in self.children() {
                let below = child.outstanding(parameters);
                outstanding.urgency = outstanding.urgency.max(below.urgency);
                outstanding.joins_from = outstanding.joins_from.min(below.joins_from);
            }
            outstanding
        })
    }

    /// The place of the first two neighbours below the node that can be joined while leaves are split above
    /// `leaf_bytes_max`, and of which `is_free` is true. `parameters` are the tree's own.
    pub(super) fn first_join(
        &self,
        parameters: &Parameters,
        leaf_bytes_max: u64,
        is_free: &dyn Fn(&Place) -> bool,
    ) -> Option<Place> {
        if self.outstanding(parameters).joins_from > leaf_bytes_max {
            return None;
        }
        let here = joins(self, parameters).filter(|(_, from)| *from <= leaf_bytes_max);
        let first = here.map(|(place, _)| place).find(is_free);
        let below =
            |child: &std::sync::Arc<Node>| child.first_join(parameters, leaf_bytes_max, is_free);
        first.or_else(|| self.children().find_map(below))
    }
}
