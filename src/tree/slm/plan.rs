//! The input of a compaction.
//!
//! A compaction of *candidates* merges whole tables. One of a *range* merges what all tables have of a range of keys:
//! the tables stay until no key of theirs is live. Tables without live keys are *dropped*.
//!
//! Invariants:
//! 1. A tombstone is needed while another table that reaches over its key may have older entries that it hides: one
//!    that is [settled](Level::settled) up to a lower number.
//! 2. No two compactions have a key in common: each takes in all versions of its keys.

use std::sync::Arc;

use super::version::Version;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::{Key, table_overlaps, table_part};
use crate::tree::versioned::{CompactionPlan, Place};

/// What is done with the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Whole tables are merged.
    Merge,
    /// What tables have of a range is merged.
    MergeRange,
    /// Tables are dropped.
    Drop,
    /// What only snapshots needed that have gone is removed from the index.
    Prune,
    /// Memtables are put into the index.
    Receive,
    /// The index is built anew.
    Rebuild,
}

/// A compaction to do.
pub(in crate::tree) struct Plan {
    pub(super) action: Action,
    pub(super) place: Place,
    pub(super) inputs: Vec<Arc<Table>>,
    /// What the index had when it was made. Of a memtable that has come since, nothing counts.
    pub(super) settled: Seqno,
    /// The ranges of keys of tables beside the inputs of which a tombstone of the inputs may hide entries, ascending,
    /// none overlapping another.
    pub(super) older: Arc<[(Vec<u8>, Vec<u8>)]>,
}

impl Plan {
    pub(super) fn new(
        version: &Version,
        action: Action,
        place: Place,
        inputs: Vec<Arc<Table>>,
    ) -> Plan {
        let older = match action {
            Action::Merge => older(version, &inputs),
            _ => Vec::new(),
        };
        let settled = version.own.places.state().settled;
        Plan { action, place, inputs, settled, older: older.into() }
    }

    /// Returns true if entries older than the inputs' may exist for a key.
    pub(super) fn may_be_older(older: &[(Vec<u8>, Vec<u8>)], key: &[u8]) -> bool {
        let after = older.partition_point(|(first, _)| **first <= *key);
        let after = if planted(Bug::SlmTombstonesDropped) { 0 } else { after };
        after.checked_sub(1).is_some_and(|at| *key <= *older[at].1)
    }
}

/// See [`Plan::older`].
fn older(version: &Version, inputs: &[Arc<Table>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let youngest = inputs.iter().map(|table| table.properties().seqno_max).max();
    let youngest = youngest.unwrap_or(Seqno(0));
    let is_input = |table: &Arc<Table>| inputs.iter().any(|input| input.id() == table.id());
    let tables = version.tables().iter().zip(&version.root.placed);
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = tables
        .filter(|(table, placed)| {
            placed.settled < youngest && !is_input(table) && may_hide_dead(version, table)
        })
        .map(|(table, _)| (table.first_key().to_vec(), table.last_key().to_vec()))
        .collect();
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

impl CompactionPlan for Plan {
    fn place(&self) -> &Place {
        &self.place
    }

    fn is_preparation(&self) -> bool {
        self.action == Action::Rebuild
    }

    fn merge_bytes(&self) -> u64 {
        let bytes = |table: &Arc<Table>| match self.action {
            Action::Merge => table.properties().entry_bytes(),
            Action::MergeRange => {
                let (lower, upper) = self.place.range();
                // An index that cannot be read is reported by whoever needs it, not by an estimate.
                table_part(table, lower, upper).unwrap_or_default().size.bytes
            }
            Action::Drop | Action::Prune | Action::Receive | Action::Rebuild => 0,
        };
        self.inputs.iter().map(bytes).sum()
    }

    fn merged_tables(&self) -> Vec<&Arc<Table>> {
        match self.action {
            Action::Drop | Action::Prune | Action::Receive | Action::Rebuild => Vec::new(),
            Action::Merge | Action::MergeRange => self.inputs.iter().collect(),
        }
    }
}

/// Whether a table may have entries that a tombstone elsewhere hides: not if all are live, and none for a snapshot alone.
fn may_hide_dead(version: &Version, table: &Table) -> bool {
    let properties = table.properties();
    let values = properties.entries() - properties.deletes;
    version.own.places.live(table) != Some(values) || version.own.places.superseded() > 0
}

/// The tables without live keys that can be dropped together: no tombstone of theirs is needed by a table that stays.
pub(super) fn droppable(version: &Version) -> Vec<Arc<Table>> {
    let is_dead = |table: &&Arc<Table>| version.own.places.live(table) == Some(0);
    let mut dead: Vec<Arc<Table>> = version.tables().iter().filter(is_dead).cloned().collect();
    loop {
        let stays = |table: &&Arc<Table>| !dead.iter().any(|it| it.id() == table.id());
        let tables = version.tables().iter().zip(&version.root.placed);
        let staying: Vec<_> = tables.filter(|(table, _)| stays(table)).collect();
        let is_needed = |table: &Arc<Table>| {
            table.properties().deletes > 0
                && staying.iter().any(|(other, placed)| {
                    placed.settled < table.properties().seqno_max
                        && overlap(other, table)
                        && may_hide_dead(version, other)
                })
        };
        let needed: Vec<_> =
            dead.iter().filter(|table| is_needed(table)).map(|it| it.id()).collect();
        if needed.is_empty() || planted(Bug::SlmNeededTombstonesDropped) {
            return dead;
        }
        dead.retain(|table| !needed.contains(&table.id()));
    }
}

/// Whether two tables have keys that lie among one another.
pub(super) fn overlap(a: &Table, b: &Table) -> bool {
    a.first_key() <= b.last_key() && b.first_key() <= a.last_key()
}

/// How much of the range of two tables' keys both have, in thousandths (the paper's overlapping ratio).
pub(super) fn overlap_permille(a: &Table, b: &Table) -> u64 {
    if !overlap(a, b) {
        return 0;
    }
    let (first, last) = (a.first_key().min(b.first_key()), a.last_key().max(b.last_key()));
    let (low, high) = (a.first_key().max(b.first_key()), a.last_key().min(b.last_key()));
    let shared = first.iter().zip(last).take_while(|(first, last)| first == last).count();
    // The first bytes that differ, as a number.
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = key.get(shared..).unwrap_or_default();
        let count = rest.len().min(8);
        bytes[..count].copy_from_slice(&rest[..count]);
        u128::from(u64::from_be_bytes(bytes))
    };
    let (all, both) = (number(last) - number(first), number(high).saturating_sub(number(low)));
    (both * 1000).checked_div(all).map_or(1000, |permille| permille as u64)
}

/// The tables that reach into a range, but for those of which the index does not know all yet.
pub(super) fn range_tables(
    version: &Version,
    lower: &[u8],
    upper: Option<&Key>,
) -> Vec<Arc<Table>> {
    let is_over = |table: &&Arc<Table>| {
        let is_ready = version.own.places.live(table).is_some();
        is_ready && table_overlaps(table, lower, upper.map(|upper| &**upper))
    };
    version.tables().iter().filter(is_over).cloned().collect()
}
