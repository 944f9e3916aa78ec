//! Sums over the guards of a subtree, kept with each guard, and what guards refer to.

use super::guard::{Guard, Totals, is_joinable};
use super::parameters::Parameters;
use crate::tree::files::FileRefs;
use crate::tree::live::{Dead, Overlap};
use crate::tree::versioned::NodeRefs;

impl Guard {
    /// Sums over the guard and all below it.
    pub(super) fn totals(&self, parameters: &Parameters) -> &Totals {
        self.totals.get_or(|| {
            let mut totals = self.own_totals(parameters);
            for child in &self.children {
                let below = child.totals(parameters);
                totals.guards += below.guards;
                totals.fragments += below.fragments;
                totals.pending_bytes += below.pending_bytes;
                totals.urgency = totals.urgency.max(below.urgency);
                totals.joinable |= below.joinable;
            }
            totals
        })
    }

    /// The same of the guard alone.
    pub(super) fn own_totals(&self, parameters: &Parameters) -> Totals {
        let urgency = self.urgency(parameters);
        Totals {
            guards: 1,
            fragments: self.fragments.len() as u64,
            urgency,
            joinable: self.children.windows(2).any(|two| is_joinable(&two[0], &two[1], parameters)),
            pending_bytes: if urgency >= 1.0 { self.bytes() } else { 0 },
        }
    }

    /// What a merge of all that the guard holds would drop, of what it holds: none if it is one fragment that a
    /// merge has made.
    pub(super) fn dead(&self) -> Dead {
        *self.dead.get_or(|| {
            let mut overlap = Overlap::default();
            self.fragments.iter().for_each(|f| overlap.add(&f.table, f.part()));
            overlap.dead()
        })
    }

    /// How near the guard is to being due for compaction: from 1 on it is.
    pub(super) fn urgency(&self, parameters: &Parameters) -> f64 {
        let depth = self.depth();
        if depth <= 1 {
            // Nothing lies over anything: there is nothing to merge, and no reader has to wait.
            return 0.0;
        }
        let due = self.due_depth(parameters);
        let by_depth = depth as f64 / (due + 1) as f64;
        match self.height {
            0 => {
                let bytes = self.bytes() as f64 / (parameters.guard_bytes_max() + 1) as f64;
                by_depth.max(if depth > 2 { bytes } else { 0.0 })
            }
            _ => by_depth,
        }
    }

    /// Whether what a compaction could hand on to each of the guards below would be too small to be
    /// worth a fragment.
    pub(super) fn crumbles(&self, parameters: &Parameters) -> bool {
        self.bytes() < parameters.fragment_bytes_min * self.children.len() as u64
    }

    /// The depth up to which the guard is not compacted: more than is allowed while what a compaction could
    /// hand on would be small.
    fn due_depth(&self, parameters: &Parameters) -> usize {
        match self.crumbles(parameters) {
            true => parameters.tables_per_guard_max * 2,
            false => parameters.tables_per_guard_max,
        }
    }
}

/// What guards refer to.
#[derive(Default, PartialEq)]
pub(in crate::tree) struct GuardRefs(FileRefs);

impl NodeRefs<Guard> for GuardRefs {
    fn add(&mut self, guard: &Guard) {
        guard.fragments.iter().for_each(|fragment| self.0.add(&fragment.table));
    }

    fn remove(&mut self, guard: &Guard) {
        guard.fragments.iter().for_each(|fragment| self.0.remove(&fragment.table));
    }

    fn files(&self) -> &FileRefs {
        &self.0
    }
}
