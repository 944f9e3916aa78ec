//! The tables of the newest version: which number each has, and how much of it is live.
//!
//! Invariants:
//! 1. Those of `registry` and `live_ranks`. A table's rank follows its counts, under one lock.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::live_ranks::{LiveCounts, NOT_READY, UNCHANGED, WITHOUT_KEYS};
use super::places::Places;
use super::registry::{LevelKey, Numbered};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::location_index::TABLE_MAX;
use crate::table::Table;

/// Tables that are looked at before the locks are let go.
const RANKED_AT_ONCE: usize = 64;

impl Places {
    /// The table of a number; `None` if the index does not name it any more.
    pub(super) fn table(&self, number: u32) -> Option<Arc<Table>> {
        self.registry.read().tables.get(&number).map(|numbered| Arc::clone(&numbered.table))
    }

    /// The number of a table, which it gets if it has none.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no numbers left.
    pub(super) fn number(&self, table: &Arc<Table>) -> Result<u32> {
        if let Some(number) = self.registry.read().numbers.get(&table.id()) {
            return Ok(*number);
        }
        let number = self.next_number()?;
        self.register(table, number);
        Ok(number)
    }

    /// A number for a table that is being made.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no numbers left.
    pub(super) fn next_number(&self) -> Result<u32> {
        let mut registry = self.registry.write();
        registry.forget_gone();
        if registry.tables.len() + registry.gone.len() > TABLE_MAX as usize {
            return Err(Error::invalid("a keyspace of this kind has at most four million tables"));
        }
        loop {
            registry.last = if registry.last == TABLE_MAX { 0 } else { registry.last + 1 };
            let is_taken = registry.tables.contains_key(&registry.last)
                || registry.gone.contains_key(&registry.last);
            if !is_taken {
                return Ok(registry.last);
            }
        }
    }

    /// The index may name a table by a number from now on.
    pub(super) fn register(&self, table: &Arc<Table>, number: u32) {
        let properties = table.properties();
        if properties.merges + properties.blob_merges > 0 {
            self.has_operands.store(true, Ordering::SeqCst);
        }
        let numbered = Numbered {
            table: Arc::clone(table),
            live: AtomicU64::new(0),
            named: AtomicU64::new(0),
            is_ready: AtomicBool::new(false),
        };
        let mut registry = self.registry.write();
        self.ranks.lock().set(number, numbered.counts().rank());
        registry.gone.remove(&number);
        registry.tables.insert(number, numbered);
        registry.numbers.insert(table.id(), number);
    }

    /// Registers the tables of a level that has been opened.
    pub(super) fn register_all(&self, level: &Level) {
        for LevelTable { table, number, .. } in level.tables.iter() {
            self.register(table, *number);
            self.usual.lock().add(table);
        }
        // The number after the last one that was given may be that of a table that has been removed since.
        let last = level.tables.iter().next_back().map(|it| it.number);
        self.registry.write().last = last.unwrap_or_default();
    }

    /// What the index has said of a table when it was opened.
    pub(super) fn set_live(&self, number: u32, live: u64) {
        if let Some(numbered) = self.registry.read().tables.get(&number) {
            numbered.live.store(live, Ordering::SeqCst);
            numbered.named.store(live, Ordering::SeqCst);
            self.ranks.lock().set(number, numbered.counts().rank());
        }
    }

    /// How many keys of a table were live when it came is not known any more: as many as it has, at most.
    pub(super) fn set_named(&self, number: u32) {
        if let Some(numbered) = self.registry.read().tables.get(&number) {
            let properties = numbered.table.properties();
            let live = numbered.live.load(Ordering::SeqCst);
            let named = properties.entries().saturating_sub(properties.deletes).max(live);
            numbered.named.store(named, Ordering::SeqCst);
            self.ranks.lock().set(number, numbered.counts().rank());
        }
    }

    /// A table has had so many keys with values when it was made. Some have been superseded before the index named it: they
    /// count as those that are superseded later.
    pub(super) fn has_had(&self, number: u32, keys: u64) {
        if let Some(numbered) = self.registry.read().tables.get(&number) {
            numbered.named.fetch_max(keys, Ordering::SeqCst);
        }
    }

    /// The number of a table that has one.
    pub(super) fn number_of(&self, table: &Table) -> Option<u32> {
        self.registry.read().numbers.get(&table.id()).copied()
    }

    /// All live keys of a table are in the index from now on.
    pub(super) fn set_ready(&self, number: u32) {
        if let Some(numbered) = self.registry.read().tables.get(&number) {
            numbered.is_ready.store(true, Ordering::SeqCst);
            self.ranks.lock().set(number, numbered.counts().rank());
        }
    }

    /// The first tables of some ranks that `is_wanted`, at most so many, those of which least is live first. None while the
    /// index is partial. A version may not have them yet, or not any more. No lock is held when `is_wanted` is asked.
    pub(super) fn ranked(
        &self,
        ranks: RangeInclusive<u8>,
        tables_max: usize,
        is_wanted: impl Fn(&LevelKey, &LiveCounts) -> bool,
    ) -> Vec<LevelKey> {
        let (mut found, mut after) = (Vec::new(), None);
        while found.len() < tables_max {
            let part = self.ranked_after(ranks.clone(), after);
            let Some((last, ..)) = part.last() else { break };
            after = Some(*last);
            let wanted = part.into_iter().filter(|(_, table, counts)| is_wanted(table, counts));
            found.extend(wanted.map(|(_, table, _)| table));
        }
        found.truncate(tables_max);
        // A key that there was no room for has been counted out, and its entry is needed. No rebuild ends meanwhile.
        if self.is_partial() { Vec::new() } else { found }
    }

    fn ranked_after(
        &self,
        ranks: RangeInclusive<u8>,
        after: Option<(u8, u32)>,
    ) -> Vec<((u8, u32), LevelKey, LiveCounts)> {
        if self.is_partial() {
            return Vec::new();
        }
        let registry = self.registry.read();
        let numbers = self.ranks.lock();
        let of = |(rank, number): (u8, u32)| {
            let numbered = registry.tables.get(&number)?;
            Some(((rank, number), (number, Arc::clone(&numbered.table)), numbered.counts()))
        };
        numbers.of(ranks, after).filter_map(of).take(RANKED_AT_ONCE).collect()
    }

    /// The numbers of the tables that may have entries which a tombstone elsewhere hides; `None` if all may.
    pub(super) fn hiding(&self) -> Option<Vec<u32>> {
        if self.superseded() > 0 || self.is_partial() {
            return None;
        }
        let registry = self.registry.read();
        let ranks = self.ranks.lock();
        let may_hide = |number: &u32| {
            registry.tables.get(number).is_some_and(|it| it.counts().may_hide_dead())
        };
        let below = ranks.of(0..=UNCHANGED, None);
        let above = ranks.of(WITHOUT_KEYS..=NOT_READY, None);
        let numbers: Vec<u32> = below.chain(above).map(|it| it.1).filter(may_hide).collect();
        drop(ranks);
        (self.superseded() == 0 && !self.is_partial()).then_some(numbers)
    }

    /// Tables, each with its number. Those that have none any more are left out.
    pub(super) fn numbered(&self, tables: &[Arc<Table>]) -> Vec<LevelKey> {
        let registry = self.registry.read();
        let of = |table: &Arc<Table>| {
            registry.numbers.get(&table.id()).map(|number| (*number, Arc::clone(table)))
        };
        tables.iter().filter_map(of).collect()
    }

    /// The table of a file, with its number, if the newest version has it.
    pub(super) fn of_file(&self, file: FileId) -> Option<LevelKey> {
        let registry = self.registry.read();
        let number = *registry.numbers.get(&file)?;
        Some((number, Arc::clone(&registry.tables.get(&number)?.table)))
    }

    /// Forgets tables that the newest version has no more.
    pub(super) fn forget(&self, tables: &[Arc<Table>]) {
        let mut registry = self.registry.write();
        for table in tables {
            if let Some(number) = registry.numbers.remove(&table.id()) {
                registry.tables.remove(&number);
                self.ranks.lock().remove(number);
                registry.gone.insert(number, Arc::downgrade(table));
            }
        }
        registry.forget_gone();
    }

    /// The number of versions of a table that are live; `None` while a job is at work on that.
    pub(super) fn live(&self, table: &Table) -> Option<u64> {
        self.live_of_named(table).map(|(live, _)| live)
    }

    /// The same, and how many were live when the table came.
    pub(super) fn live_of_named(&self, table: &Table) -> Option<(u64, u64)> {
        if self.is_partial() {
            return None;
        }
        let registry = self.registry.read();
        let numbered = registry.tables.get(registry.numbers.get(&table.id())?)?;
        let counts = numbered.counts();
        // A key that there was no room for has been counted out, and its entry is needed. No rebuild ends meanwhile.
        (counts.is_ready && !self.is_partial()).then_some((counts.live, counts.named))
    }

    /// Checks that the index names none of the inputs of a compaction that has ended.
    ///
    /// # Errors
    /// `Corruption`: a table has not had what the index says of it.
    pub(super) fn require_unnamed(&self, inputs: &[Arc<Table>]) -> Result<()> {
        let registry = self.registry.read();
        for table in inputs {
            let number = registry.numbers.get(&table.id());
            let numbered = number.and_then(|number| registry.tables.get(number));
            let live = numbered.map_or(0, |it| it.live.load(Ordering::SeqCst));
            if live > 0 {
                let (file, what) = (table.pages().path(), "keys that the index names");
                return Err(Error::corruption(&file, 0, what, live, "less"));
            }
        }
        Ok(())
    }
}
