//! Tables whose keys lie scattered among those of many others: they are merged so that neighbours in order are
//! neighbours on the disk (section 3.3).
//!
//! Two schemes find them. After each flush the leaves of the index are scanned for as many keys as two tables have,
//! each time from where the last scan ended. And each range query counts the tables that it reads for 30 keys.
//!
//! Such tables are merged with those of like ranges, as many as a merge may have: tables of a memtable lie over all keys, those
//! that a merge of eight makes have an eighth of them each. A merge of both would write again what is in order
//! already. So a key that is written in random order is written again once for each factor of eight in the number of
//! tables.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::SlmTree;
use super::registry::LevelKey;
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::base::sync::Mutex;
use crate::table::{RunLength, Table};
use crate::tree::placed::RangeReads;

/// A leaf scan that meets more tables makes them candidates (the paper's leaf node threshold).
const SCANNED_TABLES_MAX: usize = 10;
/// A range query that reads more tables for 30 keys makes them candidates (its sequentiality degree threshold).
const READ_TABLES_MAX: usize = 8;
/// A leaf scan has as many keys as so many tables.
const SCANNED_TABLES: u64 = 2;
/// A read of a table that a merge would have saved counts as much as the merge of so many bytes (LevelDB's measure, which the
/// paper keeps).
const MERGED_BYTES_PER_READ: u64 = 16 << 10;
/// The most keys that a range query is expected to read.
const KEYS_EXPECTED_MAX: u32 = 128;
/// No more tables of a stretch are looked at: the oldest.
const STRETCH_TABLES_MAX: usize = 256;
/// So many stretches of each scheme are remembered.
const STRETCHES_MAX: usize = 4;

/// A stretch of neighbouring keys, and the tables that they are in: more than there should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Ascending.
    tables: Vec<FileId>,
    /// A range query met it.
    pub(super) is_read: bool,
}

impl Stretch {
    /// Those of its tables that lie over one key, where they are most, unless they are few enough now. `find` finds a table.
    pub(super) fn crowded(
        &self,
        find: impl Fn(FileId) -> Option<LevelKey>,
    ) -> Option<Vec<LevelKey>> {
        let max = if self.is_read { READ_TABLES_MAX } else { SCANNED_TABLES_MAX };
        let tables: Vec<LevelKey> = self.tables.iter().filter_map(|id| find(*id)).collect();
        if tables.len() <= max {
            return None;
        }
        // There are most over the first key of one of them. A long stretch of tables in order is not crowded.
        let is_over =
            |key: &[u8], table: &Table| table.first_key() <= key && key <= table.last_key();
        let over = |key: &[u8]| tables.iter().filter(|(_, table)| is_over(key, table)).count();
        let (_, most) = tables.iter().max_by_key(|(_, table)| over(table.first_key()))?;
        let key = most.first_key().to_vec();
        let crowd: Vec<LevelKey> =
            tables.into_iter().filter(|(_, table)| is_over(&key, table)).collect();
        (crowd.len() > max).then_some(crowd)
    }

    /// Whether fewer tables than a merge may have are worth one, where so many lie over one key.
    pub(super) fn is_urgent(&self, crowd: &[LevelKey]) -> bool {
        self.is_read || crowd.len() > 2 * SCANNED_TABLES_MAX
    }
}

/// The candidates of both schemes.
#[derive(Default)]
pub(super) struct Scattered {
    /// The oldest first: those of leaf scans, and those of range queries.
    stretches: Mutex<[VecDeque<Stretch>; 2]>,
    /// How often range queries have read a table in a crowded stretch.
    reads: Mutex<BTreeMap<FileId, u64>>,
    /// How many keys range queries read.
    passes: RunLength<KEYS_EXPECTED_MAX>,
    /// Where the next leaf scan begins.
    from: Mutex<Vec<u8>>,
}

impl Scattered {
    /// Adds a stretch; if there are many, in place of the oldest of its kind.
    fn add(&self, mut stretch: Stretch) {
        // All of them are compared with one another.
        stretch.tables.truncate(STRETCH_TABLES_MAX);
        let stretches = &mut self.stretches.lock()[usize::from(stretch.is_read)];
        if stretches.contains(&stretch) {
            return;
        }
        if stretches.len() == STRETCHES_MAX {
            stretches.pop_front();
        }
        stretches.push_back(stretch);
    }

    /// Whether range queries have read so many of these tables in crowded stretches that a merge would have been cheaper.
    pub(super) fn are_read_enough(&self, tables: &[Arc<Table>]) -> bool {
        let reads = self.reads.lock();
        let count: u64 = tables.iter().filter_map(|table| reads.get(&table.id())).sum();
        let bytes: u64 = tables.iter().map(|table| table.properties().entry_bytes()).sum();
        count.saturating_mul(MERGED_BYTES_PER_READ) >= bytes
    }

    /// Forgets what has been read of tables that are gone.
    pub(super) fn forget(&self, tables: &[Arc<Table>]) {
        let mut reads = self.reads.lock();
        for table in tables {
            reads.remove(&table.pages().id());
        }
    }

    /// The same, of those that a range query has read when they were gone already.
    fn forget_gone(&self, is_there: impl Fn(FileId) -> bool) {
        self.reads.lock().retain(|id, _| is_there(*id));
    }

    /// Calls `choose` with one stretch after the other until it has chosen something. Those of which nothing will come are
    /// forgotten.
    pub(super) fn choose<T>(&self, mut choose: impl FnMut(&Stretch) -> Chosen<T>) -> Option<T> {
        let stretches: Vec<Stretch> = self.stretches.lock().iter().flatten().cloned().collect();
        for stretch in stretches {
            match choose(&stretch) {
                Chosen::Plan(plan) => return Some(plan),
                Chosen::NotYet => {}
                Chosen::Never => {
                    let of_kind = usize::from(stretch.is_read);
                    self.stretches.lock()[of_kind].retain(|other| *other != stretch);
                }
            }
        }
        None
    }
}

/// What comes of a stretch.
pub(super) enum Chosen<T> {
    Plan(T),
    /// Nothing before jobs end, or more is read.
    NotYet,
    Never,
}

impl RangeReads for Scattered {
    fn note(&self, _keys: usize, tables: &[FileId]) {
        let mut tables = tables.to_vec();
        tables.sort_unstable();
        tables.dedup();
        if tables.len() > READ_TABLES_MAX {
            let mut reads = self.reads.lock();
            tables.iter().for_each(|table| *reads.entry(*table).or_default() += 1);
            drop(reads);
            self.add(Stretch { tables, is_read: true });
        }
    }

    fn ended(&self, keys: usize) {
        self.passes.note(u32::try_from(keys).unwrap_or(u32::MAX));
    }

    fn expected(&self) -> usize {
        self.passes.expected()
    }
}

impl SlmTree {
    /// Scans leaves of the index for tables that are scattered.
    pub(super) fn look_for_scattered(&self) -> Result<()> {
        let version = self.version.load();
        let (files, places) = (&version.files, &self.own.places);
        let scattered = &self.own.scattered;
        scattered.forget_gone(|id| places.of_file(id).is_some());
        if !version.parameters.scans_leaves
            || files.tables <= SCANNED_TABLES_MAX as u64
            || places.is_partial()
        {
            return Ok(());
        }
        let keys = SCANNED_TABLES * files.entries / files.tables;
        // Nobody waits while the index is read. Another scan begins at the first key then.
        let mut from = std::mem::take(&mut *scattered.from.lock());
        let (mut numbers, mut scanned) = (BTreeSet::new(), 0);
        while scanned < keys {
            let (tables, rest) = places.tables_from(&from)?;
            scanned += tables.len() as u64;
            numbers.extend(tables);
            let is_end = rest.is_none();
            from = rest.unwrap_or_default();
            if is_end {
                break;
            }
        }
        *scattered.from.lock() = from;
        if numbers.len() > SCANNED_TABLES_MAX {
            let tables = numbers.into_iter().filter_map(|number| places.table(number));
            let mut tables: Vec<FileId> = tables.map(|table| table.pages().id()).collect();
            tables.sort_unstable();
            scattered.add(Stretch { tables, is_read: false });
        }
        Ok(())
    }
}
