//! What a compaction of a guard reads, where its output goes, and what it may drop.
//!
//! Above the last level a compaction takes all of a guard's fragments (the oldest with them), and what it
//! makes of them is appended to the children as their youngest, whatever is there: each byte is written
//! once a level. On the last level, where there is no further down, it takes a run of the youngest
//! fragments, and older ones as far as those are at most half as large as all younger ones together: so
//! small ones are merged with each other, and the large old one is written again only when there is enough
//! to divide the guard, or when space is to be had back. A guard above it does the same with its own
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

use super::divide::pieces_are_large;
use super::guard::{Fragment, Guard, Key};
use super::parameters::Parameters;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};

/// The most fragments that one compaction takes in.
const INPUTS_MAX: usize = 96;

/// What is to be done with the inputs.
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
pub(super) struct Plan {
    pub(super) action: Action,
    pub(super) height: u32,
    pub(super) lower: Key,
    pub(super) upper: Option<Key>,
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
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.lower, self.upper.as_deref())
    }

    /// Bytes to be read and merged.
    pub(super) fn merge_bytes(&self) -> u64 {
        match self.action {
            Action::Merge => self.inputs.iter().map(|input| input.extent.bytes).sum(),
            Action::Pass | Action::Join => 0,
        }
    }

    /// Whether versions older than the inputs' may exist for a key.
    pub(super) fn may_be_older(older: &[(Vec<u8>, Vec<u8>)], key: &[u8]) -> bool {
        let after = older.partition_point(|(first, _)| **first <= *key);
        after.checked_sub(1).is_some_and(|at| *key <= *older[at].1)
    }
}

/// Whether a compaction is wanted because the guard is due, or to merge all that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Due,
    Full,
}

/// The compaction of a guard; `None` if it holds nothing.
pub(super) fn plan(guard: &Guard, wish: Wish, parameters: &Parameters) -> Result<Option<Plan>> {
    if guard.fragments.is_empty() {
        return Ok(None);
    }
    let all: Vec<_> = guard.fragments.iter().map(|input| Arc::clone(&input.table)).collect();
    let passes = guard.height > 0 && pieces_are_large(guard, &all, parameters)?;
    let crumbles = wish == Wish::Due && !passes && guard.crumbles(parameters);
    let in_place = guard.height == 0 || crumbles;
    let from = match wish {
        // Estimates of how large crumbs are say little: a good number of them goes together.
        Wish::Due if crumbles => young_run(guard, parameters.tables_per_guard_max, parameters),
        Wish::Due if in_place => young_run(guard, 2, parameters),
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
        height: guard.height,
        lower: Arc::clone(&guard.lower),
        upper: guard.upper.clone(),
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
        let bytes = fragments[from - 1].extent.bytes;
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

/// The ranges in order, those that meet made one.
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
        height: a.height,
        lower: Arc::clone(&a.lower),
        upper: b.upper.clone(),
        in_place: true,
        inputs: Vec::new(),
        older: Arc::new([]),
        cuts: Vec::new(),
        output_bytes: u64::MAX,
    })
}

/// Whether two neighbours are better one guard. None of their tables may reach from one into the other:
/// what such a table holds beyond a guard may have been moved on there.
pub(super) fn is_joinable(a: &Guard, b: &Guard, parameters: &Parameters) -> bool {
    let small = match a.height {
        0 => {
            a.bytes() + b.bytes() <= parameters.guard_bytes / 2
                && (a.fragments.is_empty()
                    || b.fragments.is_empty()
                    || a.depth().max(b.depth()) <= 1)
        }
        _ => {
            let few = a.children.len().min(b.children.len()) <= parameters.fanout_max / 8;
            few && a.children.len() + b.children.len() <= parameters.fanout_max / 2
        }
    };
    let own = |guard: &Guard| {
        let (lower, upper) = guard.range();
        let inside = |f: &Fragment| super::guard::table_is_inside(&f.table, lower, upper);
        guard.fragments.iter().all(inside)
    };
    small && own(a) && own(b)
}
