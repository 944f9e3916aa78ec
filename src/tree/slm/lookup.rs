//! Point reads: the index says which table has a key.
//!
//! Where the index cannot say it, the tables are asked themselves: for a reader whose number it does not cover, or if
//! it has lacked room.
//!
//! Invariants:
//! 1. A value in a blob file is returned only from a table that the reader's version holds: the file is read later.
//! 2. Versions are returned newest first, each once. None is beyond what the version holds: what is younger is in
//!    memtables, also if the index has it by now.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::level_tables::{LevelTable, LevelTables};
use super::places::page_of;
use super::summary::Summary;
use super::versions::is_cut;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, hold_open, planted};
use crate::cache::{PagePointer, ReadContext};
use crate::location_index::IndexVersion;
use crate::table::Table;

/// How often a reader looks into the index again if it has changed meanwhile.
pub(super) const TRIES_MAX: u32 = 4;

/// A lookup of one key in a version.
pub(super) struct Lookup<'a> {
    pub(super) own: &'a Summary,
    pub(super) tables: &'a LevelTables,
    pub(super) flushed: Seqno,
    pub(super) key: &'a [u8],
    pub(super) snapshot: Seqno,
    pub(super) context: &'a ReadContext,
}

/// A version that has been read.
type Found = (Seqno, EntryKind, Vec<u8>);

/// What has been read so far.
enum Met {
    /// The newest version, which is no operand, has been returned.
    Returned,
    /// All versions that are needed have been read.
    All,
    /// Operands, or nothing yet: older versions matter.
    Some,
    /// A value in a blob file that may go before it has been read: the reader's version does not have the table.
    Unheld,
}

impl Lookup<'_> {
    /// Calls `f` with the versions of the key, newest first, until it breaks.
    ///
    /// Nothing is returned before all that is needed has been read: whoever asks again, since a page was not resident
    /// or the index has changed, may meet the same versions folded into one.
    pub(super) fn run(&self, f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut found = Vec::new();
        for _ in 0..TRIES_MAX {
            found.clear();
            match self.follow(&mut found, f)? {
                Followed::Returned => return Ok(()),
                Followed::All => {
                    self.give(&found, f);
                    return Ok(());
                }
                Followed::Changed => {}
                Followed::Unsure => break,
            }
        }
        self.ask_tables(f)
    }

    /// Whether the key has a value, if the index says it: it has no tombstones.
    pub(super) fn presence(&self) -> Result<Option<bool>> {
        let places = &self.own.places;
        let state = places.state();
        let pending = state.pending_in(self.flushed);
        let versions = places.versions(self.key)?;
        if !places.covers(&state, self.snapshot) || !places.are_pending(pending) {
            return Ok(None);
        }
        if let Some(listed) = pending.iter().rev().find_map(|it| it.keys.find(self.key)) {
            let (newest, kind) = listed.versions.newest;
            return Ok((newest <= self.newest()).then_some(kind != EntryKind::Delete));
        }
        let is_seen = |version: &&IndexVersion| {
            version.superseded.is_none_or(|superseded| superseded > self.newest())
        };
        let Some(version) = versions.iter().find(is_seen) else {
            return Ok((!is_cut(&versions)).then_some(false));
        };
        if version.superseded.is_some() {
            return Ok(None);
        }
        let table = self.own.table(self.tables, version.location.table);
        let is_whole = |table: Arc<Table>| table.properties().seqno_max <= self.newest();
        Ok(table.is_some_and(is_whole).then_some(true))
    }

    fn give(&self, found: &[Found], f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>) {
        for (seqno, kind, value) in found {
            if f(EntryRef { key: self.key, seqno: *seqno, kind: *kind, value }).is_break() {
                return;
            }
        }
    }

    /// What is younger is in memtables.
    fn newest(&self) -> Seqno {
        self.snapshot.min(self.flushed)
    }

    /// Reads what the pending table has, and what the index names.
    fn follow(
        &self,
        found: &mut Vec<Found>,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<Followed> {
        let places = &self.own.places;
        // First what is pending: a table is in the index once it is not pending any more.
        let state = places.state();
        let pending = state.pending_in(self.flushed);
        hold_open(Bug::SlmCoversAny, 8);
        let versions = places.versions(self.key)?;
        if !places.covers(&state, self.snapshot) {
            return Ok(Followed::Unsure);
        }
        // What was pending may have been merged by now.
        if !places.are_pending(pending) {
            return Ok(Followed::Changed);
        }
        for at in (0..pending.len()).rev() {
            if planted(Bug::SlmPendingNotAsked) {
                break;
            }
            let oldest_first = planted(Bug::SlmOldestPendingFirst);
            let pending = &pending[if oldest_first { pending.len() - 1 - at } else { at }];
            if let Some(listed) = pending.keys.find(self.key) {
                match self.read((&pending.table, true), Some(listed.versions.leaf), found, f)? {
                    Met::Returned => return Ok(Followed::Returned),
                    Met::All => return Ok(Followed::All),
                    Met::Some | Met::Unheld => {}
                }
            }
        }
        for version in &versions {
            let number = version.location.table;
            let is_hidden = |superseded: Seqno| superseded <= self.newest();
            let is_pending = pending.iter().any(|pending| pending.number == number);
            if is_pending || version.superseded.is_some_and(is_hidden) {
                continue;
            }
            let Some(table) = self.own.table(self.tables, number) else {
                return Ok(Followed::Changed);
            };
            // A compaction may have folded what this version and a memtable have into one.
            if table.properties().seqno_max > self.flushed && places.has_operands() {
                return Ok(Followed::Unsure);
            }
            if table.properties().seqno_min > self.newest() {
                continue;
            }
            let leaf = version.location.leaf.map(page_of);
            let is_held = self.tables.has(number, &table);
            match self.read((&table, is_held), leaf, found, f)? {
                Met::Returned => return Ok(Followed::Returned),
                Met::All => return Ok(Followed::All),
                Met::Some => {}
                Met::Unheld => return Ok(Followed::Unsure),
            }
        }
        Ok(if is_cut(&versions) { Followed::Unsure } else { Followed::All })
    }

    /// Reads the versions that a table has, which the version holds or not. Returns the newest at once, if that is no
    /// operand.
    fn read(
        &self,
        (table, is_held): (&Table, bool),
        leaf: Option<(PagePointer, bool)>,
        found: &mut Vec<Found>,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<Met> {
        let mut met = Met::Some;
        table.get_at(self.key, leaf, self.newest(), self.context, |entry| {
            let is_operand = entry.kind.is_operand();
            if !is_held && entry.kind.is_blob() {
                met = Met::Unheld;
                return ControlFlow::Break(());
            }
            if found.is_empty() && !is_operand {
                met = Met::Returned;
                let _ = f(entry);
                return ControlFlow::Break(());
            }
            found.push((entry.seqno, entry.kind, entry.value.to_vec()));
            if is_operand {
                return ControlFlow::Continue(());
            }
            met = Met::All;
            ControlFlow::Break(())
        })?;
        Ok(met)
    }

    /// Calls `f` with the versions that the version's tables have.
    #[cold]
    fn ask_tables(&self, f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>) -> Result<()> {
        let mut found: Vec<Found> = Vec::new();
        for LevelTable { table, .. } in self.tables.iter() {
            if *table.first_key() > *self.key
                || *table.last_key() < *self.key
                || table.properties().seqno_min > self.newest()
            {
                continue;
            }
            table.get(self.key, self.newest(), self.context, |entry| {
                found.push((entry.seqno, entry.kind, entry.value.to_vec()));
                match entry.kind.is_operand() {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
        }
        // Of an operand that a compaction has folded over older versions, the result counts.
        found.sort_by_key(|(seqno, kind, _)| (Reverse(*seqno), kind.is_operand()));
        found.dedup_by_key(|(seqno, ..)| *seqno);
        let base = found.iter().position(|(_, kind, _)| !kind.is_operand());
        found.truncate(base.map_or(found.len(), |base| base + 1));
        self.give(&found, f);
        Ok(())
    }
}

/// How far the index has led.
enum Followed {
    /// To the newest version, which has been returned.
    Returned,
    /// To all that is needed.
    All,
    /// It has changed.
    Changed,
    /// To less than may be needed.
    Unsure,
}
