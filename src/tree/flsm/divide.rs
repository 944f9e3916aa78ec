//! Structural changes: taking tables in, dividing guards, growing a level. All are pointer moves on new
//! copies of guards; no data is touched.
//!
//! A guard's key has a random height, as in a skip list; where a guard with too many children is
//! divided, the highest key near the middle is promoted to be a guard one level up. Promotion is lazy:
//! it waits until the guard is empty, right after its compaction, unless there are twice too many.
//!
//! Invariants:
//! 1. A change starts from the newest root, under the change lock, and keeps all invariants of `guard`.
//! 2. A table goes past a guard only if the guard is empty: nothing older stays behind above it.

use std::path::Path;
use std::sync::Arc;

use super::guard::{
    Extent, Fragment, Guard, Key, NEW, Stretch, edit, table_extent, table_meets, table_stretch,
};
use super::parameters::Parameters;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::wrong_node;

/// Appends tables (oldest first) to a guard as its youngest, or, where nothing is in the way and
/// nothing would be gained by gathering them here, to its children.
pub(super) fn receive(
    guard: &mut Arc<Guard>,
    at_root: bool,
    tables: &[Arc<Table>],
    parameters: &Parameters,
) -> Result<()> {
    let (lower, upper) = (Arc::clone(&guard.lower), guard.upper.clone());
    let meeting = |table: &&Arc<Table>| table_meets(table, &lower, upper.as_deref());
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

/// Whether the children's stretches of the tables are about as large as what a merge would make of
/// them.
pub(super) fn pieces_are_large(
    guard: &Guard,
    tables: &[Arc<Table>],
    parameters: &Parameters,
) -> Result<bool> {
    let (mut bytes, mut pieces) = (0, 0);
    for table in tables {
        bytes += table_extent(table, &guard.lower, guard.upper.as_deref())?.bytes;
        let meets = |child: &&Arc<Guard>| table_meets(table, &child.lower, child.upper.as_deref());
        pieces += guard.children.iter().filter(meets).count() as u64;
    }
    let each = bytes / pieces.max(1);
    // A table that lies in one child as a whole goes there, however small it is.
    Ok(each >= parameters.pass_bytes_min || pieces <= tables.len() as u64)
}

/// Divides what has become too large among the new guards below a root (or the parts that one has just
/// been divided into), and grows the tree by a level where there is no single root left.
///
/// # Errors
/// `Corruption`, which names the `manifest`, if a guard's parts would not fill its range.
pub(super) fn settle(
    roots: Vec<Arc<Guard>>,
    parameters: &Parameters,
    manifest: &Path,
) -> Result<Arc<Guard>> {
    let mut parts = Vec::with_capacity(roots.len());
    for root in roots {
        parts.extend(settled(root, parameters, manifest)?);
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
        parts = divided(root, parameters, manifest)?;
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

fn settled(guard: Arc<Guard>, parameters: &Parameters, manifest: &Path) -> Result<Vec<Arc<Guard>>> {
    if guard.id != NEW {
        return Ok(vec![guard]);
    }
    let mut guard = Arc::unwrap_or_clone(guard);
    let mut children = Vec::with_capacity(guard.children.len());
    for child in std::mem::take(&mut guard.children) {
        children.extend(settled(child, parameters, manifest)?);
    }
    guard.children = children;
    divided(guard, parameters, manifest)
}

/// The guard, or its parts if it has become too large.
fn divided(guard: Guard, parameters: &Parameters, manifest: &Path) -> Result<Vec<Arc<Guard>>> {
    let bounds = match guard.height {
        0 => last_level_bounds(&guard, parameters)?,
        _ => promoted_bounds(&guard, parameters),
    };
    divide_at(guard, &bounds, manifest)
}

/// Divides a guard at keys of its range, ascending; above the last level they are children's bounds. The
/// parts share the tables that reach over the bounds.
pub(super) fn divide_at(guard: Guard, bounds: &[Key], manifest: &Path) -> Result<Vec<Arc<Guard>>> {
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
        if table_meets(&fragment.table, lower, upper) {
            let Stretch { first, extent } = table_stretch(&fragment.table, lower, upper)?;
            part.fragments.push(Fragment { extent, first, ..fragment.clone() });
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
    // Each table offers keys that part its own bytes; each key stands for its share of them.
    let parts = bytes.div_ceil((parameters.guard_bytes * 5 / 4).max(1)).clamp(2, 64);
    let (lower, upper) = guard.range();
    let mut offers: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut total = 0;
    for Fragment { table, extent: Extent { bytes: fragment_bytes, .. }, .. } in &guard.fragments {
        if *fragment_bytes == 0 {
            continue;
        }
        let wanted = (fragment_bytes * parts * 8 / bytes.max(1)).clamp(2, 256) as usize;
        let mut keys = table.approximate_split_keys(Some(lower), upper, wanted)?;
        if *table.first_key() > *lower {
            keys.insert(0, table.first_key().to_vec());
        }
        let share = fragment_bytes / (keys.len() as u64 + 1);
        total += share * keys.len() as u64;
        offers.extend(keys.into_iter().map(|key| (key, share)));
    }
    offers.sort();
    let mut bounds: Vec<Key> = Vec::new();
    let mut seen = 0;
    for (key, share) in offers {
        seen += share;
        let due = total * (bounds.len() as u64 + 1) / parts;
        let above = bounds.last().is_none_or(|last| **last < *key) && *key > *guard.lower;
        if seen > due && above && (bounds.len() as u64) < parts - 1 {
            bounds.push(Arc::from(key));
        }
    }
    Ok(bounds)
}
