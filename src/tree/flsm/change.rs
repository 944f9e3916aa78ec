//! Structural changes: receiving tables, dividing and joining guards, growing a level, and replacing the inputs of a
//! compaction by its output. All are pointer moves on new copies of guards; no data is touched.
//!
//! A guard's key has a random height, as in a skip list; where a guard with too many children is
//! divided, the highest key near the middle is promoted to be a guard one level up. Promotion is lazy:
//! it waits until the guard is empty, right after its compaction, unless there are twice too many.
//!
//! Invariants:
//! 1. A change starts from a root, is committed only if that is still the newest, and keeps all invariants of `guard`.
//! 2. A table goes past a guard only if the guard is empty: nothing older stays behind above it.
//! 3. Only inputs that were planned are replaced. What has arrived meanwhile stays, and is younger.
//! 4. The output of a merge in place takes the inputs' place; any other becomes the youngest of the guards below.

use std::collections::BTreeSet;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use super::Flsm;
use super::guard::{Fragment, Guard, fragments_of, is_joinable, pieces_are_large};
use super::parameters::Parameters;
use super::plan::{Output, Plan};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::table::Table;
use crate::tree::range::{Key, TablePart, ranges_overlap, table_overlaps, table_part};
use crate::tree::versioned::{Change, NEW, edit, split_keys};
use crate::tree::wrong_node;

/// The rules that changes of one version follow.
pub(super) type Rules = crate::tree::versioned::Rules<Parameters>;

impl Change for Flsm {
    fn receive(root: &mut Arc<Guard>, packed: &Arc<Table>, rules: &Rules) -> Result<()> {
        receive(root, true, slice::from_ref(packed), &rules.parameters)
    }

    fn rebalance(root: &mut Arc<Guard>, rules: &Rules) -> Result<()> {
        *root = rebalance(vec![Arc::clone(root)], rules)?;
        Ok(())
    }
}

/// Appends tables (oldest first) to a guard as its youngest, or, where nothing is in the way and
/// nothing would be gained by gathering them here, to its children.
fn receive(
    guard: &mut Arc<Guard>,
    at_root: bool,
    tables: &[Arc<Table>],
    parameters: &Parameters,
) -> Result<()> {
    let (lower, upper) = (Arc::clone(&guard.lower), guard.upper.clone());
    let meeting = |table: &&Arc<Table>| table_overlaps(table, &lower, upper.as_deref());
    let tables: Vec<Arc<Table>> = tables.iter().filter(meeting).cloned().collect();
    if tables.is_empty() {
        return Ok(());
    }
    let passes = guard.height > 0
        && (guard.fragments.is_empty() || planted(Bug::GuardPassedOver))
        && (at_root || pieces_are_large(guard, &tables, parameters)?);
    let guard = edit(guard);
    if !passes {
        return guard.append(&tables, false);
    }
    for child in &mut guard.children {
        receive(child, false, &tables, parameters)?;
    }
    Ok(())
}

/// Divides what has become too large among the new guards below a root (or the parts that one has just
/// been divided into), and grows the tree by a level where there is no single root left.
///
/// # Errors
/// `Corruption`, which names the `manifest`, if a guard's parts would not fill its range.
pub(super) fn rebalance(roots: Vec<Arc<Guard>>, rules: &Rules) -> Result<Arc<Guard>> {
    let mut parts = Vec::with_capacity(roots.len());
    for root in roots {
        parts.extend(rebalanced(root, rules)?);
    }
    loop {
        if parts.len() == 1
            && let Some(root) = parts.pop()
        {
            return Ok(shrunk(root));
        }
        let Some(first) = parts.first() else {
            return Err(Error::invalid("a guard was divided into nothing"));
        };
        let mut root = Guard::empty(first.height + 1, Arc::clone(&first.lower), None);
        root.children = parts;
        parts = divided(root, rules)?;
    }
}

/// Without levels of a single guard that has nothing of its own at the top.
fn shrunk(mut root: Arc<Guard>) -> Arc<Guard> {
    while let [child] = root.children.as_slice()
        && root.fragments.is_empty()
    {
        root = Arc::clone(child);
    }
    root
}

fn rebalanced(guard: Arc<Guard>, rules: &Rules) -> Result<Vec<Arc<Guard>>> {
    if guard.id != NEW {
        return Ok(vec![guard]);
    }
    let mut guard = Arc::unwrap_or_clone(guard);
    let mut children = Vec::with_capacity(guard.children.len());
    for child in std::mem::take(&mut guard.children) {
        children.extend(rebalanced(child, rules)?);
    }
    guard.children = children;
    divided(guard, rules)
}

/// The guard, or its parts if it has become too large.
fn divided(guard: Guard, rules: &Rules) -> Result<Vec<Arc<Guard>>> {
    let bounds = match guard.height {
        0 => last_level_bounds(&guard, &rules.parameters)?,
        _ => promoted_bounds(&guard, &rules.parameters),
    };
    divide_at(guard, &bounds, &rules.manifest)
}

/// Divides a guard at keys of its range, ascending; above the last level they are children's bounds. The
/// parts share the tables that reach over the bounds.
fn divide_at(guard: Guard, bounds: &[Key], manifest: &Path) -> Result<Vec<Arc<Guard>>> {
    if bounds.is_empty() {
        return Ok(vec![Arc::new(guard)]);
    }
    let uppers = bounds.iter().cloned().map(Some).chain([guard.upper.clone()]);
    let mut lower = Arc::clone(&guard.lower);
    let mut parts = Vec::with_capacity(bounds.len() + 1);
    for upper in uppers {
        let next = upper.clone();
        parts.push(Arc::new(part(&guard, lower, upper)?));
        match next {
            Some(next) => lower = next,
            None => break,
        }
    }
    // All but the last part lie side by side by construction; the last ends where the guard did.
    let ascends = parts.iter().all(|part| part.upper.as_ref().is_none_or(|u| part.lower < *u));
    let filled = guard.height == 0 || parts.iter().all(|part| !part.children.is_empty());
    if !ascends || !filled || parts.last().is_none_or(|last| last.upper != guard.upper) {
        return Err(wrong_node(
            manifest,
            guard.id.0,
            "bounds of a divided guard",
            format_args!("ascending within {:?}, none empty", guard.range()),
            format_args!("{bounds:?}"),
        ));
    }
    Ok(parts)
}

fn part(guard: &Guard, lower: Key, upper: Option<Key>) -> Result<Guard> {
    let inside = |child: &&Arc<Guard>| {
        child.lower >= lower && upper.as_ref().is_none_or(|upper| child.lower < *upper)
    };
    let children = guard.children.iter().filter(inside).cloned().collect();
    let mut part = Guard::empty(guard.height, lower, upper);
    part.children = children;
    if planted(Bug::GuardPartEmpty) && part.lower != guard.lower {
        return Ok(part);
    }
    for fragment in &guard.fragments {
        let (lower, upper) = part.range();
        if table_overlaps(&fragment.table, lower, upper) {
            let TablePart { first, size } = table_part(&fragment.table, lower, upper)?;
            part.fragments.push(Fragment { size, first, ..fragment.clone() });
        }
    }
    Ok(part)
}

/// How high a key's guard may stand: a coin that comes up once in `fanout` says whether it is promoted
/// another level.
fn random_height(key: &[u8], parameters: &Parameters) -> u32 {
    let fanout = parameters.fanout_max;
    let mut random = parameters.hasher.hash(key);
    let mut height = 0;
    while random.is_multiple_of(fanout as u64) && height < 64 {
        random /= fanout as u64;
        height += 1;
    }
    height
}

/// The children's bounds at which a guard above the last level is divided: the highest keys near those
/// that would make equal parts.
fn promoted_bounds(guard: &Guard, parameters: &Parameters) -> Vec<Key> {
    let count = guard.children.len();
    let patience = if guard.fragments.is_empty() { 1 } else { 2 };
    if count <= parameters.fanout_max * patience {
        return Vec::new();
    }
    let parts = count.div_ceil((parameters.fanout_max * 2 / 3).max(2)).clamp(2, count);
    let reach = count / (parts * 4);
    let mut bounds: Vec<Key> = Vec::with_capacity(parts - 1);
    for part in 1..parts {
        let ideal = part * count / parts;
        let near = (ideal - reach.min(ideal - 1))..=(ideal + reach).min(count - 1);
        let height = |at: &usize| {
            let key = &guard.children[*at].lower;
            (random_height(key, parameters), std::cmp::Reverse(at.abs_diff(ideal)))
        };
        if let Some(at) = near.max_by_key(height) {
            let key = &guard.children[at].lower;
            if bounds.last().is_none_or(|last| last < key) && *key > guard.lower {
                bounds.push(Arc::clone(key));
            }
        }
    }
    bounds
}

/// Where a guard of the last level that holds too much is divided without a merge: where its tables lie
/// beside one another, so that a merge would gain nothing, or where there is so much that a merge would
/// take long. (Otherwise its next merge divides it.) The keys part its bytes equally.
fn last_level_bounds(guard: &Guard, parameters: &Parameters) -> Result<Vec<Key>> {
    let bytes = guard.bytes();
    let beside = bytes > parameters.guard_bytes_max() && guard.depth() <= 2;
    if !beside && bytes <= parameters.guard_bytes_max() * 3 {
        return Ok(Vec::new());
    }
    let parts = bytes.div_ceil((parameters.guard_bytes * 5 / 4).max(1)).clamp(2, 64);
    let tables: Vec<(&Arc<Table>, u64)> =
        guard.fragments.iter().map(|it| (&it.table, it.size.bytes)).collect();
    split_keys(guard.range(), parts, &tables)
}

/// Swaps the inputs of a plan for what was made of them, below `guard` (which may be divided by that).
///
/// # Errors
/// `Corruption`, which names the `manifest`, if the inputs do not lie in the guards as they were planned.
pub(super) fn replace(
    guard: Arc<Guard>,
    plan: &Plan,
    output: &Output,
    rules: &Rules,
) -> Result<Vec<Arc<Guard>>> {
    if !ranges_overlap(guard.range(), plan.place.range()) {
        return Ok(vec![guard]);
    }
    let inputs: BTreeSet<FileId> = plan.inputs.iter().map(|input| input.table.id()).collect();
    replace_below(guard, plan, &inputs, output, rules)
}

fn replace_below(
    mut guard: Arc<Guard>,
    plan: &Plan,
    inputs: &BTreeSet<FileId>,
    output: &Output,
    rules: &Rules,
) -> Result<Vec<Arc<Guard>>> {
    if !ranges_overlap(guard.range(), plan.place.range()) {
        return Ok(vec![guard]);
    }
    if guard.height > plan.place.height {
        let copy = edit(&mut guard);
        let mut children = Vec::with_capacity(copy.children.len());
        for child in std::mem::take(&mut copy.children) {
            children.extend(replace_below(child, plan, inputs, output, rules)?);
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
            &rules.manifest,
            guard.id.0,
            "inputs of a compaction in their guard",
            "side by side, and the oldest if they move down",
            format_args!("at {found:?}"),
        ));
    }
    guard.wasted_reads.store(0, Ordering::Relaxed);
    if !plan.in_place {
        let copy = edit(&mut guard);
        match planted(Bug::GuardTakesArrived) {
            true => copy.fragments.clear(),
            false => drop(copy.fragments.drain(first..=last)),
        }
        let lost = usize::from(planted(Bug::GuardFragmentLost) && copy.children.len() > 1);
        let count = copy.children.len() - lost;
        for child in &mut copy.children[..count] {
            receive(child, false, &output.tables, &rules.parameters)?;
        }
        return Ok(vec![guard]);
    }
    let fully_merged = plan.place.height == 0 && first == 0 && !output.has_old_versions;
    let fragments = fragments_of(&output.tables, fully_merged, guard.range())?;
    let bounds: Vec<Key> = (output.tables.iter().skip(1))
        .filter(|table| *table.first_key() > *guard.lower)
        .filter(|table| guard.upper.as_ref().is_none_or(|upper| *table.first_key() < **upper))
        .map(|table| Arc::from(table.first_key()))
        .collect();
    if planted(Bug::GuardReplacedAsYoungest) {
        edit(&mut guard).fragments.drain(first..=last);
        edit(&mut guard).fragments.extend(fragments);
        return divide_at(Arc::unwrap_or_clone(guard), &bounds, &rules.manifest);
    }
    edit(&mut guard).fragments.splice(first..=last, fragments);
    divide_at(Arc::unwrap_or_clone(guard), &bounds, &rules.manifest)
}

/// Makes one guard of the two that take up a plan's range, if they are still there and small. Whether it
/// did.
pub(super) fn join(guard: &mut Arc<Guard>, plan: &Plan, parameters: &Parameters) -> bool {
    if guard.height <= plan.place.height || !ranges_overlap(guard.range(), plan.place.range()) {
        return false;
    }
    if guard.height > plan.place.height + 1 {
        let at = guard.child_of(&plan.place.lower);
        let Some(child) = guard.children.get(at) else { return false };
        let mut child = Arc::clone(child);
        let joined = join(&mut child, plan, parameters);
        if joined {
            edit(guard).children[at] = child;
        }
        return joined;
    }
    let at = guard.child_of(&plan.place.lower);
    let (Some(a), Some(b)) = (guard.children.get(at), guard.children.get(at + 1)) else {
        return false;
    };
    if a.lower != plan.place.lower || b.upper != plan.place.upper || !is_joinable(a, b, parameters)
    {
        return false;
    }
    let mut one = Guard::empty(a.height, Arc::clone(&a.lower), b.upper.clone());
    one.fragments = a.fragments.iter().chain(&b.fragments).cloned().collect();
    one.children = a.children.iter().chain(&b.children).cloned().collect();
    edit(guard).children.splice(at..at + 2, [Arc::new(one)]);
    true
}
