//! The input of a compaction of a guard, where its output goes, and what it may drop.
//!
//! Above the last level a compaction takes all of a guard's fragments (the oldest with them), and what it
//! makes of them is appended to the children as their youngest, whatever is there: each byte is written
//! once a level. On the last level, where there is no further down, it takes a run of the youngest
//! fragments, and older ones as far as those are at most half as large as all younger ones together. So
//! small ones are merged with each other, and the large old one is written again only when there is enough
//! to divide the guard, or when space is reclaimed. A guard above it does the same with its own
//! fragments while they are so small that its children would get crumbs of them, each of which would have
//! to be merged with others there before long: keys that are few and written often are rewritten where
//! they are few.
//!
//! Invariants:
//! 1. Inputs are neighbours in age. What moves down begins with the oldest; what is merged in place may
//!    be any run, whose place the output takes.
//! 2. `older` names a range of keys for every table that may hold versions older than the inputs':
//!    those below the guard, and the older ones beside the inputs.

use std::sync::Arc;

use super::guard::{Fragment, Guard, is_joinable, pieces_are_large};
use super::parameters::Parameters;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::Key;
use crate::tree::versioned::{CompactionPlan, Place};

/// The most fragments that one compaction takes in.
const INPUTS_MAX: usize = 96;

/// What is done with the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// They are merged.
    Merge,
    /// They move down as they are: merging would gain nothing.
    Pass,
    /// Two neighbouring guards, which take up the range, become one.
    Join,
}

/// A compaction to do.
pub(in crate::tree) struct Plan {
    pub(super) action: Action,
    pub(super) place: Place,
    /// The output takes the inputs' place; else it goes to the guards below.
    pub(super) in_place: bool,
    /// Oldest first.
    pub(super) inputs: Vec<Fragment>,
    /// Where versions older than the inputs' may lie: from the first to the last key of each, ascending,
    /// none meeting another.
    pub(super) older: Arc<[(Vec<u8>, Vec<u8>)]>,
    /// Where the output may be cut: the children's bounds.
    pub(super) cuts: Vec<Key>,
    /// Size at which the output is cut, where it may be.
    pub(super) output_bytes: u64,
}

impl Plan {
    /// Whether versions older than the inputs' may exist for a key.
    pub(super) fn may_be_older(older: &[(Vec<u8>, Vec<u8>)], key: &[u8]) -> bool {
        let after = older.partition_point(|(first, _)| **first <= *key);
        after.checked_sub(1).is_some_and(|at| *key <= *older[at].1)
    }
}

impl CompactionPlan for Plan {
    fn place(&self) -> &Place {
        &self.place
    }

    fn merge_bytes(&self) -> u64 {
        match self.action {
            Action::Merge => self.inputs.iter().map(|input| input.size.bytes).sum(),
            Action::Pass | Action::Join => 0,
        }
    }

    fn merged_tables(&self) -> Vec<&Arc<Table>> {
        match self.action {
            Action::Merge => self.inputs.iter().map(|input| &input.table).collect(),
            Action::Pass | Action::Join => Vec::new(),
        }
    }
}

/// The output of a compaction.
#[derive(Default)]
pub(super) struct Output {
    /// In key order.
    pub(super) tables: Vec<Arc<Table>>,
    /// Whether they hold more than one version of a key, or tombstones.
    pub(super) has_old_versions: bool,
    /// Whether nothing older was left out.
    pub(super) is_all: bool,
}

/// Why a compaction is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    /// The guard is due.
    Due,
    /// All that the guard holds is to be merged.
    Full,
}

/// The compaction of a guard; `None` if it holds nothing.
pub(super) fn plan(
    guard: &Guard,
    trigger: Trigger,
    parameters: &Parameters,
) -> Result<Option<Plan>> {
    if guard.fragments.is_empty() {
        return Ok(None);
    }
    let all: Vec<_> = guard.fragments.iter().map(|input| Arc::clone(&input.table)).collect();
    let passes = guard.height > 0 && pieces_are_large(guard, &all, parameters)?;
    let crumbles = trigger == Trigger::Due && !passes && guard.crumbles(parameters);
    let in_place = guard.height == 0 || crumbles;
    let from = match trigger {
        // Estimates of how large crumbs are say little: a good number of them goes together.
        Trigger::Due if crumbles => young_run(guard, parameters.tables_per_guard_max, parameters),
        Trigger::Due if in_place => young_run(guard, 2, parameters),
        _ => 0,
    };
    let to = guard.fragments.len().min(from + INPUTS_MAX);
    let inputs = &guard.fragments[from..to];
    let mut older: Vec<(Vec<u8>, Vec<u8>)> = guard.fragments[..from].iter().map(keys_of).collect();
    if planted(Bug::GuardTombstonesBeside) {
        older.clear();
    }
    if !planted(Bug::GuardTombstonesEarly) {
        guard.children.iter().for_each(|child| gather_keys(child, &mut older));
    }
    let mut plan = Plan {
        action: if passes { Action::Pass } else { Action::Merge },
        place: Place::of(guard),
        in_place,
        inputs: inputs.to_vec(),
        older: joined(older).into(),
        cuts: guard.children.iter().skip(1).map(|child| Arc::clone(&child.lower)).collect(),
        output_bytes: parameters.file_bytes_min,
    };
    if in_place {
        plan.cuts.clear();
        plan.output_bytes = u64::MAX;
    }
    if guard.height == 0 {
        // Parts of one size, each as large as a guard should be.
        let bytes = plan.merge_bytes();
        let parts = (bytes / parameters.guard_bytes.max(1)).max(1);
        plan.output_bytes = match bytes > parameters.guard_bytes_max() && from == 0 {
            true => bytes / parts + 1,
            false => u64::MAX,
        };
    }
    Ok(Some(plan))
}

/// Where the youngest fragments of a guard that is merged in place begin: behind the first (from the youngest
/// on) that is too large to be worth writing again for them, and no fewer than `least`.
fn young_run(guard: &Guard, least: usize, parameters: &Parameters) -> usize {
    let fragments = &guard.fragments;
    if guard.bytes() > parameters.guard_bytes_max() {
        return 0;
    }
    let mut from = fragments.len();
    let mut younger = 0;
    while from > 0 {
        let bytes = fragments[from - 1].size.bytes;
        let is_run = fragments.len() - from >= least.max(2);
        if is_run && bytes * 2 > younger {
            break;
        }
        younger += bytes;
        from -= 1;
    }
    from
}

fn keys_of(fragment: &Fragment) -> (Vec<u8>, Vec<u8>) {
    (fragment.table.first_key().to_vec(), fragment.table.last_key().to_vec())
}

fn gather_keys(guard: &Guard, keys: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    keys.extend(guard.fragments.iter().map(keys_of));
    guard.children.iter().for_each(|child| gather_keys(child, keys));
}

/// The ranges in order; those that overlap are joined.
fn joined(mut ranges: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    ranges.sort();
    let mut joined: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            Some(before) if first <= before.1 => before.1 = last.max(std::mem::take(&mut before.1)),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// Two neighbouring children of `parent` that hold too little to be guards by themselves, as one; `left`
/// is the first one's position.
pub(super) fn join_plan(parent: &Guard, left: usize, parameters: &Parameters) -> Option<Plan> {
    let (a, b) = (parent.children.get(left)?, parent.children.get(left + 1)?);
    is_joinable(a, b, parameters).then(|| Plan {
        action: Action::Join,
        place: Place { upper: b.upper.clone(), ..Place::of(a) },
        in_place: true,
        inputs: Vec::new(),
        older: Arc::new([]),
        cuts: Vec::new(),
        output_bytes: u64::MAX,
    })
}
