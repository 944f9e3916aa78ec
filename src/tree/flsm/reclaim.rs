//! The gain of a full merge of a guard.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::FlsmTree;
use super::guard::Guard;
use crate::base::ids::{NodeId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::table::Table;
use crate::tree::dead_blobs::collected_gain;
use crate::tree::live::{Dead, Overlap};
use crate::tree::range::{table_overlaps, table_part};
use crate::tree::versioned::{Deleted, Gain, Now, Worth};

/// The gains of merging all that a guard and those below it hold down to the last level, by the guard.
pub(super) type PathGains = BTreeMap<NodeId, PathGain>;

/// A gain, and for each guard of the last level the dead part, and its bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct PathGain {
    pub(super) gain: Gain,
    dead: Vec<(Dead, u64)>,
}

/// The gains of merging what lies above the last level down to it, by the guard to begin with: the topmost that holds
/// something.
pub(super) fn path_gains(root: &Arc<Guard>) -> PathGains {
    let mut gains = BTreeMap::new();
    gather_path_gains(root, &mut Vec::new(), &mut gains);
    gains
}

/// Gathers the gains of the topmost guards that hold something. `above` are the guards above, the root first.
fn gather_path_gains<'a>(
    guard: &'a Arc<Guard>,
    above: &mut Vec<&'a Arc<Guard>>,
    gains: &mut PathGains,
) {
    if guard.height > 0 {
        above.push(guard);
        guard.children.iter().for_each(|child| gather_path_gains(child, above, gains));
        above.pop();
        return;
    }
    let Some(top) = above.iter().position(|guard| !guard.fragments.is_empty()) else { return };
    let (lower, upper) = guard.range();
    let mut overlap = Overlap::default();
    guard.fragments.iter().for_each(|f| overlap.add(&f.table, f.part()));
    let own_bytes = overlap.bytes();
    let mut reaches = false;
    for fragment in above[top..].iter().rev().flat_map(|guard| &guard.fragments) {
        reaches |= may_delete(&fragment.table) && table_overlaps(&fragment.table, lower, upper);
        // An index that cannot be read is reported by whoever needs it, not by an estimate.
        let part = table_part(&fragment.table, lower, upper).unwrap_or_default();
        overlap.add(&fragment.table, part);
    }
    if overlap.bytes() > own_bytes {
        let path = gains.entry(above[top].id).or_default();
        let dead = overlap.dead();
        let dropped = (overlap.bytes() as f64 * dead.share) as u64;
        path.gain.bytes += dropped;
        path.gain.merged_bytes += overlap.bytes();
        path.dead.push((dead, dropped));
    } else if reaches {
        let gain = &mut gains.entry(above[top].id).or_default().gain;
        gain.bytes += unknown_gain(own_bytes);
        gain.merged_bytes += own_bytes;
    }
}

/// Whether most of a table's entries are tombstones.
fn may_delete(table: &Table) -> bool {
    let properties = table.properties();
    properties.deletes * 2 > properties.entries()
}

/// The gain where tables of tombstones have less than one page in a guard of the last level. An index cannot tell how
/// much that is; the tombstones may delete everything in the guard.
fn unknown_gain(guard_bytes: u64) -> u64 {
    guard_bytes / 16
}

/// The gain of a full merge of a guard, estimated: what it holds that is superseded there (on the last level deleted,
/// too), what its tables hold on to outside of it, and blob files that are collected.
pub(super) fn gain(tree: &FlsmTree, guard: &Guard, now: &Now) -> Gain {
    if guard.fragments.is_empty() {
        return Gain::default();
    }
    // Less than a page is told by no index, but it may be all that holds on to a table.
    let merged_bytes = guard.bytes().max(guard.fragments.len() as u64 * UNIT_BYTES as u64);
    let tables = guard.fragments.iter().map(|fragment| &fragment.table);
    let (collected, copied) = collected_gain(tables, &now.collected);
    let bytes = table_gain(tree, guard, &now.snapshots) + collected;
    Gain { bytes, merged_bytes: merged_bytes + copied }
}

/// The merge of a guard of which most has been deleted, on the last level with nothing above it; or of the topmost guard
/// that holds something, for what it brings down to such guards.
pub(super) fn deleted(
    tree: &FlsmTree,
    path_gains: &PathGains,
    guard: &Guard,
    (worth, now): (Worth, &[Seqno]),
) -> Option<Deleted> {
    if let Some(path) = path_gains.get(&guard.id) {
        let deleted = path.dead.iter().filter(|(dead, _)| worth.is_deleted(*dead));
        let dropped: u64 = deleted.map(|(_, bytes)| bytes).sum();
        // Less than a page in each guard of the last level is told by no index. Together it is, one level down.
        let deletes = guard.fragments.iter().filter(|fragment| may_delete(&fragment.table));
        let delete_bytes: u64 = deletes.map(|fragment| fragment.size.bytes).sum();
        let is_brought = worth.brings_down && delete_bytes * 2 > guard.bytes();
        let by_path = worth.of(dropped, guard.bytes().max(1), true);
        return by_path.or(is_brought.then_some(Deleted { score: 1, by_path: true }));
    }
    let is_merged = match guard.fragments.as_slice() {
        _ if guard.height > 0 => true,
        [] => true,
        [only] => only.fully_merged || !tree.jobs.lock().gains(only.table.id(), now),
        _ => false,
    };
    let dead = dead_with_crumbs(guard);
    if is_merged || !worth.is_deleted(dead) {
        return None;
    }
    let dropped = (guard.bytes() as f64 * dead.share) as u64;
    worth.of(dropped, guard.bytes(), false)
}

/// The dead part of a guard. Of each table of tombstones of which it has less than a page, which no index tells, half a
/// page is assumed, with as many entries below that it deletes, unless samples tell more.
fn dead_with_crumbs(guard: &Guard) -> Dead {
    let crumbs = guard.fragments.iter().filter(|f| f.size.entries == 0 && may_delete(&f.table));
    let of_page = |table: &Table| {
        let properties = table.properties();
        properties.entries() / u64::from(properties.leaf_pages).max(1) / 2
    };
    let deletes = crumbs.map(|fragment| of_page(&fragment.table)).sum::<u64>() as f64;
    let entries: u64 = guard.fragments.iter().map(|fragment| fragment.size.entries).sum();
    let (dead, entries) = (guard.dead(), entries.max(1) as f64);
    let deleted_share = dead.deleted_share.max(2.0 * deletes / (entries + deletes));
    Dead {
        share: dead.share.max(deletes / entries).min(1.0),
        deleted_share: deleted_share.min(1.0),
        ..dead
    }
}

fn table_gain(tree: &FlsmTree, guard: &Guard, now: &[Seqno]) -> u64 {
    let outside: u64 = (guard.fragments.iter())
        .map(|f| f.table.properties().entry_bytes().saturating_sub(f.size.bytes))
        .sum();
    // Other guards may hold on to the same.
    let outside = outside / 4;
    let dead = (guard.bytes() as f64 * guard.dead().share) as u64;
    match guard.fragments.as_slice() {
        _ if guard.height > 0 => dead + outside / 4,
        [only] if only.fully_merged => outside,
        [only] if !tree.jobs.lock().gains(only.table.id(), now) => outside,
        fragments if fragments.iter().any(|f| f.size.bytes == 0 && may_delete(&f.table)) => {
            dead.max(unknown_gain(guard.bytes())) + outside
        }
        _ => dead + outside,
    }
}
