//! The input of a compaction.
//!
//! A compaction of *candidates* merges whole tables. One of a *range* merges what all tables have of a range of keys:
//! the tables stay until no key of theirs is live. Tables without live keys are *dropped*.
//!
//! Invariants:
//! 1. A tombstone is needed while another table that reaches over its key may have older entries that it hides: one
//!    that is [settled](Level::settled) up to a lower number.
//! 2. No two compactions have a key in common: each takes in all versions of its keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::SlmTree;
use super::level_tables::LevelTable;
use super::live_ranks::{LiveCounts, WITHOUT_KEYS};
use super::registry::LevelKey;
use super::version::Version;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::table::Table;
use crate::tree::range::{Key, table_overlaps, table_part};
use crate::tree::versioned::{CompactionPlan, Place};

/// Of the tables that are wholly dead, and of those that have had no live keys, so many are looked at.
const DROPPED_MAX: usize = 64;

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
    /// What a range delete has deleted is removed from the index.
    Erase,
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
    /// none overlapping another. `None` if that has not been looked at: in all.
    pub(super) older: Option<Arc<OlderRanges>>,
}

/// The first and the last key of each.
pub(super) type OlderRanges = [(Vec<u8>, Vec<u8>)];

impl Plan {
    pub(super) fn new(
        version: &Version,
        action: Action,
        place: Place,
        inputs: Vec<Arc<Table>>,
    ) -> Plan {
        let settled = version.own.places.state().settled;
        let older = (action != Action::Merge).then(|| Arc::from([]));
        Plan { action, place, inputs, settled, older }
    }

    /// The plan, to be carried out: a merge knows then which tombstones are needed.
    pub(super) fn looked_at(self, version: &Version) -> Plan {
        match self.action {
            Action::Merge => {
                let older = Some(older(version, &self.inputs).into());
                Plan { older, ..self }
            }
            _ => self,
        }
    }

    /// Whether tombstones of the inputs may be needed.
    pub(super) fn keeps_deletes(&self) -> bool {
        self.older.as_ref().is_none_or(|older| !older.is_empty())
    }

    /// Returns true if entries older than the inputs' may exist for a key.
    pub(super) fn may_be_older(older: Option<&OlderRanges>, key: &[u8]) -> bool {
        let Some(older) = older else { return true };
        let after = older.partition_point(|(first, _)| **first <= *key);
        let after = if planted(Bug::SlmTombstonesDropped) { 0 } else { after };
        after.checked_sub(1).is_some_and(|at| *key <= *older[at].1)
    }
}

/// See [`Plan::older`].
fn older(version: &Version, inputs: &[Arc<Table>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let youngest = inputs.iter().map(|table| table.properties().seqno_max).max();
    let youngest = youngest.unwrap_or(Seqno(0));
    let is_input = |table: &Arc<Table>| inputs.iter().any(|input| Arc::ptr_eq(input, table));
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = hiding(version)
        .into_iter()
        .filter(|it| it.settled < youngest && !is_input(&it.table))
        .map(|it| (it.table.first_key().to_vec(), it.table.last_key().to_vec()))
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
            Action::Drop | Action::Prune | Action::Erase | Action::Receive | Action::Rebuild => 0,
        };
        self.inputs.iter().map(bytes).sum()
    }

    fn merged_tables(&self) -> Vec<&Arc<Table>> {
        match self.action {
            Action::Drop | Action::Prune | Action::Erase | Action::Receive | Action::Rebuild => {
                Vec::new()
            }
            Action::Merge | Action::MergeRange => self.inputs.iter().collect(),
        }
    }
}

/// The tables that may have entries which a tombstone elsewhere hides.
fn hiding(version: &Version) -> Vec<&LevelTable> {
    let tables = &version.root.tables;
    match version.own.places.hiding() {
        Some(numbers) => numbers.into_iter().filter_map(|number| tables.get(number)).collect(),
        None => tables.iter().collect(),
    }
}

/// The tables without live keys that can be dropped together: no tombstone of theirs is needed by a table that stays. That
/// holds if the version is still the newest when this returns: what other jobs have made since is in no list.
fn droppable_in(version: &Version) -> Vec<LevelKey> {
    let (places, tables) = (&version.own.places, &version.root.tables);
    let is_dead = |(number, table): &LevelKey, counts: &LiveCounts| {
        counts.live == 0 && tables.has(*number, table)
    };
    let mut dead = places.ranked(0..=0, DROPPED_MAX, is_dead);
    dead.extend(places.ranked(WITHOUT_KEYS..=WITHOUT_KEYS, DROPPED_MAX, is_dead));
    if dead.iter().all(|(_, table)| table.properties().deletes == 0) {
        return dead;
    }
    let hiding = hiding(version);
    loop {
        let dead_numbers: BTreeSet<u32> = dead.iter().map(|(number, _)| *number).collect();
        let is_needed = |(_, table): &LevelKey| {
            table.properties().deletes > 0
                && hiding.iter().any(|other| {
                    other.settled < table.properties().seqno_max
                        && overlap(&other.table, table)
                        && !dead_numbers.contains(&other.number)
                })
        };
        let (needed, unneeded): (Vec<LevelKey>, Vec<LevelKey>) =
            dead.into_iter().partition(is_needed);
        if needed.is_empty() {
            return unneeded;
        }
        if planted(Bug::SlmNeededTombstonesDropped) {
            return needed.into_iter().chain(unneeded).collect();
        }
        dead = unneeded;
    }
}

impl SlmTree {
    /// The tables of the newest version that can be dropped together.
    ///
    /// One job had replaced a table by its output between a look at the version and one at the list of tables that may
    /// hide something dead: neither was in both, and a tombstone over what they had was dropped.
    pub(super) fn droppable(&self) -> Vec<LevelKey> {
        loop {
            let version = self.version.load_full();
            let tables = droppable_in(&version);
            if tables.is_empty() || Arc::ptr_eq(&version, &self.version.load_full()) {
                return tables;
            }
        }
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
    version.tables().filter(is_over).cloned().collect()
}
