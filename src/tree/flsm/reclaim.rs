//! The gain of a full merge of a guard.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::FlsmTree;
use super::guard::Guard;
use crate::base::ids::{FileId, NodeId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::table::Table;
use crate::tree::files::dead_blob_gain;
use crate::tree::live::Overlap;
use crate::tree::range::{table_overlaps, table_part};
use crate::tree::versioned::Gain;

/// The gains of merging all that a guard and those below it hold down to the last level, by the guard.
pub(super) type PathGains = BTreeMap<NodeId, Gain>;

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
    gains: &mut BTreeMap<NodeId, Gain>,
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
        let gain = gains.entry(above[top].id).or_default();
        gain.bytes += (overlap.bytes() as f64 * overlap.dead().share) as u64;
        gain.merged_bytes += overlap.bytes();
    } else if reaches {
        let gain = gains.entry(above[top].id).or_default();
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
/// too), what its tables hold on to outside of it, and mostly dead blob files.
pub(super) fn gain(tree: &FlsmTree, guard: &Guard, dead_blobs: &[FileId], now: &[Seqno]) -> Gain {
    if guard.fragments.is_empty() {
        return Gain::default();
    }
    // Less than a page is told by no index, but it may be all that holds on to a table.
    let merged_bytes = guard.bytes().max(guard.fragments.len() as u64 * UNIT_BYTES as u64);
    let tables = guard.fragments.iter().map(|fragment| &fragment.table);
    let blobs: u64 = tables.map(|table| dead_blob_gain(table, dead_blobs)).sum();
    Gain { bytes: table_gain(tree, guard, now) + blobs, merged_bytes }
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
