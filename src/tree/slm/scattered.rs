//! Tables whose keys lie scattered among those of many others: they are merged so that neighbours in order are
//! neighbours on the disk (section 3.3).
//!
//! Two schemes find them. After each flush the leaves of the index are scanned for as many keys as two tables have,
//! each time from where the last scan ended. And each range query counts the tables that it reads for 30 keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::SlmTree;
use super::registry::LevelKey;
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::base::sync::Mutex;
use crate::table::Table;
use crate::tree::placed::RangeReads;

/// A leaf scan that meets more tables makes them candidates (the paper's leaf node threshold).
const SCANNED_TABLES_MAX: usize = 10;
/// A range query that reads more tables for 30 keys makes them candidates (its sequentiality degree threshold).
const READ_TABLES_MAX: usize = 8;
/// A leaf scan has as many keys as so many tables.
const SCANNED_TABLES: u64 = 2;

/// The candidates of both schemes.
#[derive(Default)]
pub(super) struct Scattered {
    tables: Mutex<BTreeSet<FileId>>,
    /// Where the next leaf scan begins.
    from: Mutex<Vec<u8>>,
}

impl Scattered {
    fn add(&self, tables: &BTreeSet<FileId>) {
        self.tables.lock().extend(tables);
    }

    /// The oldest candidates that are free, at most so many. `find` finds a table; one that is gone is forgotten.
    pub(super) fn first(
        &self,
        tables_max: usize,
        find: impl Fn(FileId) -> Option<LevelKey>,
        is_free: impl Fn(&LevelKey) -> bool,
    ) -> Vec<LevelKey> {
        let mut candidates = self.tables.lock();
        let (mut found, mut gone) = (Vec::new(), Vec::new());
        for id in candidates.iter() {
            match find(*id) {
                Some(table) if is_free(&table) => found.push(table),
                Some(_) => {}
                None => gone.push(*id),
            }
            if found.len() >= tables_max {
                break;
            }
        }
        candidates.retain(|id| !gone.contains(id));
        found
    }

    /// Forgets candidates that are being merged.
    pub(super) fn taken(&self, tables: &[Arc<Table>]) {
        let mut candidates = self.tables.lock();
        for table in tables {
            candidates.remove(&table.id());
        }
    }
}

impl RangeReads for Scattered {
    fn note(&self, _keys: usize, tables: &[FileId]) {
        let tables: BTreeSet<FileId> = tables.iter().copied().collect();
        if tables.len() > READ_TABLES_MAX {
            self.add(&tables);
        }
    }
}

impl SlmTree {
    /// Scans leaves of the index for tables that are scattered.
    pub(super) fn look_for_scattered(&self) -> Result<()> {
        let version = self.version.load();
        let (files, places) = (&version.files, &self.own.places);
        if !version.parameters.scans_leaves
            || files.tables <= SCANNED_TABLES_MAX as u64
            || places.is_partial()
        {
            return Ok(());
        }
        let keys = SCANNED_TABLES * files.entries / files.tables;
        let mut from = self.own.scattered.from.lock();
        let (mut numbers, mut scanned) = (BTreeSet::new(), 0);
        while scanned < keys {
            let (tables, rest) = places.tables_from(&from)?;
            scanned += tables.len() as u64;
            numbers.extend(tables);
            let is_end = rest.is_none();
            *from = rest.unwrap_or_default();
            if is_end {
                break;
            }
        }
        if numbers.len() > SCANNED_TABLES_MAX {
            let tables = numbers.into_iter().filter_map(|number| places.table(number));
            self.own.scattered.add(&tables.map(|table| table.id()).collect());
        }
        Ok(())
    }
}
