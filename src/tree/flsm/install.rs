//! Putting the result of a job into the newest tree.
//!
//! Invariants:
//! 1. Only inputs that were planned are taken out. What has arrived meanwhile stays, and is younger.
//! 2. The output of a merge in place takes the inputs' place; any other becomes the youngest of the
//!    guards below.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::compaction::Made;
use super::divide::{divide_at, receive};
use super::guard::{Guard, Key, edit, fragments_of, ranges_meet};
use super::parameters::Parameters;
use super::plan::{Plan, is_joinable};
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::tree::wrong_node;

/// Swaps the inputs of a plan for what was made of them, below `guard` (which may be divided by that).
///
/// # Errors
/// `Corruption`, which names the `manifest`, if the inputs do not lie in the guards as they were planned.
pub(super) fn replace(
    guard: Arc<Guard>,
    plan: &Plan,
    made: &Made,
    parameters: &Parameters,
    manifest: &Path,
) -> Result<Vec<Arc<Guard>>> {
    if !ranges_meet(guard.range(), plan.range()) {
        return Ok(vec![guard]);
    }
    let inputs: BTreeSet<FileId> = plan.inputs.iter().map(|input| input.table.id()).collect();
    replace_below(guard, plan, &inputs, made, parameters, manifest)
}

fn replace_below(
    mut guard: Arc<Guard>,
    plan: &Plan,
    inputs: &BTreeSet<FileId>,
    made: &Made,
    parameters: &Parameters,
    manifest: &Path,
) -> Result<Vec<Arc<Guard>>> {
    if !ranges_meet(guard.range(), plan.range()) {
        return Ok(vec![guard]);
    }
    if guard.height > plan.height {
        let copy = edit(&mut guard);
        let mut children = Vec::with_capacity(copy.children.len());
        for child in std::mem::take(&mut copy.children) {
            children.extend(replace_below(child, plan, inputs, made, parameters, manifest)?);
        }
        copy.children = children;
        return Ok(vec![guard]);
    }
    let is_input = |at: &usize| inputs.contains(&guard.fragments[*at].table.id());
    let found: Vec<usize> = (0..guard.fragments.len()).filter(is_input).collect();
    let (Some(&first), Some(&last)) = (found.first(), found.last()) else {
        // A part of the guard into whose range none of the inputs reaches.
        return Ok(vec![guard]);
    };
    if last - first + 1 != found.len() || (!plan.in_place && first > 0) {
        return Err(wrong_node(
            manifest,
            guard.id.0,
            "inputs of a compaction in their guard",
            "side by side, and the oldest if they move down",
            format_args!("at {found:?}"),
        ));
    }
    guard.seeks.store(0, Ordering::Relaxed);
    if !plan.in_place {
        let copy = edit(&mut guard);
        match planted(Bug::GuardTakesArrived) {
            true => copy.fragments.clear(),
            false => drop(copy.fragments.drain(first..=last)),
        }
        let lost = usize::from(planted(Bug::GuardFragmentLost) && copy.children.len() > 1);
        let count = copy.children.len() - lost;
        for child in &mut copy.children[..count] {
            receive(child, false, &made.tables, parameters)?;
        }
        return Ok(vec![guard]);
    }
    let settled = plan.height == 0 && first == 0 && !made.unsettled;
    let output = fragments_of(&made.tables, settled, guard.range())?;
    let bounds: Vec<Key> = (made.tables.iter().skip(1))
        .filter(|table| *table.first_key() > *guard.lower)
        .filter(|table| guard.upper.as_ref().is_none_or(|upper| *table.first_key() < **upper))
        .map(|table| Arc::from(table.first_key()))
        .collect();
    if planted(Bug::GuardReplacedAsYoungest) {
        edit(&mut guard).fragments.drain(first..=last);
        edit(&mut guard).fragments.extend(output);
        return divide_at(Arc::unwrap_or_clone(guard), &bounds, manifest);
    }
    edit(&mut guard).fragments.splice(first..=last, output);
    divide_at(Arc::unwrap_or_clone(guard), &bounds, manifest)
}

/// Makes one guard of the two that take up a plan's range, if they are still there and small. Whether it
/// did.
pub(super) fn join(guard: &mut Arc<Guard>, plan: &Plan, parameters: &Parameters) -> bool {
    if guard.height <= plan.height || !ranges_meet(guard.range(), plan.range()) {
        return false;
    }
    if guard.height > plan.height + 1 {
        let at = guard.child_of(&plan.lower);
        let Some(child) = guard.children.get(at) else { return false };
        let mut child = Arc::clone(child);
        let joined = join(&mut child, plan, parameters);
        if joined {
            edit(guard).children[at] = child;
        }
        return joined;
    }
    let at = guard.child_of(&plan.lower);
    let (Some(a), Some(b)) = (guard.children.get(at), guard.children.get(at + 1)) else {
        return false;
    };
    if a.lower != plan.lower || b.upper != plan.upper || !is_joinable(a, b, parameters) {
        return false;
    }
    let mut one = Guard::empty(a.height, Arc::clone(&a.lower), b.upper.clone());
    one.fragments = a.fragments.iter().chain(&b.fragments).cloned().collect();
    one.children = a.children.iter().chain(&b.children).cloned().collect();
    edit(guard).children.splice(at..at + 2, [Arc::new(one)]);
    true
}
