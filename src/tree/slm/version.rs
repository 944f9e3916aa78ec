//! How a version of the tree is read.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::Slm;
use super::describe::describe_level;
use super::lookup::{Lookup, TRIES_MAX};
use super::places::page_of;
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::cache::ReadContext;
use crate::location_index::LeafAt;
use crate::table::Table;
use crate::tree::description::TreeDescription;
use crate::tree::placed::{PlacedKeys, PlacedPart, PlacedRun, RangeReads};
use crate::tree::range::Key;
use crate::tree::run::Run;
use crate::tree::versioned;
use crate::tree::{
    CheckCounts, CheckScope, CheckpointFiles, RangeAt, RangeRuns, RangeTables, TreeVersion, files,
};

/// A version.
pub(super) type Version = versioned::Version<Slm>;

/// What a range reads of a table that the index names.
#[derive(Clone, Copy)]
enum TableUse {
    /// The table of this number among those of the range.
    Read(usize),
    /// Nothing: it is pending, or all of it is younger than the version.
    Elsewhere,
    /// The index does not name the table any more.
    Gone,
    /// The table cannot be read alone.
    Unsure,
}

/// What the index says of a range.
enum Placed {
    Runs(RangeRuns),
    /// It has changed while it was read.
    Changed,
    /// It cannot say what the reader sees.
    Unsure,
}

impl Version {
    /// Its tables, in the order of their numbers.
    pub(super) fn tables(&self) -> impl DoubleEndedIterator<Item = &Arc<Table>> {
        self.root.tables()
    }

    /// What a range has of the table of a number, which is not pending.
    fn table_use(&self, number: u32, keys: &mut PlacedKeys) -> TableUse {
        let Some(table) = self.own.table(&self.root.tables, number) else {
            return TableUse::Gone;
        };
        let properties = table.properties();
        // A compaction may have folded what this version and a memtable have into one.
        if properties.seqno_max > self.flushed && self.own.places.has_operands() {
            return TableUse::Unsure;
        }
        if properties.seqno_min > self.flushed {
            return TableUse::Elsewhere;
        }
        TableUse::Read(keys.add_table(table))
    }

    /// What a leaf of the index has of a range, for a reader at `snapshot`; forwards, as many leaves as range queries usually
    /// read from a key on.
    fn placed_runs(&self, at: RangeAt<'_>, snapshot: Seqno) -> Result<Placed> {
        let places = &self.own.places;
        let state = places.state();
        let pending = state.pending_in(self.flushed);
        let mut leaf = places.leaf(match at {
            RangeAt::Key(key) => LeafAt::Key(key),
            RangeAt::Before(Some(key)) => LeafAt::Below(key),
            RangeAt::Before(None) => LeafAt::Last,
        })?;
        let mut wanted = match at {
            RangeAt::Key(_) => self.own.scattered.expected(),
            RangeAt::Before(_) => 0,
        };
        let (lower, mut upper) = (leaf.lower.take(), leaf.upper.take());
        // What is superseded later is so by a memtable, or by a pending table, which the reader merges.
        let superseded_max = self.flushed.min(state.settled);
        let mut keys = PlacedKeys::with_capacity(leaf.entries.len(), leaf.entries.key_bytes());
        let mut tables = Vec::new();
        loop {
            wanted = wanted.saturating_sub(leaf.entries.len());
            for (key, versions) in leaf.entries.iter() {
                for version in places.all_versions(key, versions)?.iter() {
                    let number = version.location.table;
                    let table = match tables.binary_search_by_key(&number, |(number, _)| *number) {
                        Ok(at) => tables[at].1,
                        Err(at) => {
                            let is_pending = pending.iter().any(|pending| pending.number == number);
                            let found = match is_pending {
                                true => TableUse::Elsewhere,
                                false => self.table_use(number, &mut keys),
                            };
                            tables.insert(at, (number, found));
                            found
                        }
                    };
                    match table {
                        TableUse::Read(table) => {
                            let superseded = version.superseded.filter(|it| *it <= superseded_max);
                            let leaf = version.location.leaf.map(page_of);
                            keys.push_part(PlacedPart { table, leaf, superseded });
                        }
                        TableUse::Elsewhere => {}
                        TableUse::Gone => return Ok(Placed::Changed),
                        TableUse::Unsure => return Ok(Placed::Unsure),
                    }
                }
                keys.end_key(key);
            }
            let Some(from) = upper.as_ref().filter(|_| wanted > 0) else { break };
            // What a later leaf cannot say is left to who comes to it.
            let Ok(next) = places.leaf(LeafAt::Key(from)) else { break };
            leaf = next;
            upper = leaf.upper.take();
            if planted(Bug::SlmLaterLeafLeftOut) {
                leaf.entries = Default::default();
                wanted = 0;
            }
        }
        if !places.covers(&state, snapshot) {
            return Ok(Placed::Unsure);
        }
        // What was pending may have been merged by now.
        if !places.are_pending(pending) {
            return Ok(Placed::Changed);
        }
        let pending = if planted(Bug::SlmPendingLeftOutOfRanges) { &[] } else { pending };
        let mut runs: Vec<Run> =
            pending.iter().rev().map(|pending| Run::Table(Arc::clone(&pending.table))).collect();
        let reads = Arc::clone(&self.own.scattered) as Arc<dyn RangeReads>;
        let counts_tables = self.parameters.counts_range_reads;
        let placed = PlacedRun::new(keys, self.flushed, Some(reads), counts_tables);
        runs.extend(placed.map(|run| Run::Placed(Arc::new(run))));
        let lower = Key::from(lower.unwrap_or_default());
        Ok(Placed::Runs(RangeRuns { lower, upper: upper.map(Key::from), runs }))
    }
}

impl TreeVersion for Version {
    fn flushed(&self) -> Seqno {
        self.flushed
    }

    fn get(
        &self,
        key: &[u8],
        _hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (own, tables, flushed) = (&self.own, &self.root.tables, self.flushed);
        Lookup { own, tables, flushed, key, snapshot, context }.run(f)
    }

    fn presence(&self, key: &[u8], snapshot: Seqno) -> Result<Option<bool>> {
        let (own, tables, flushed) = (&self.own, &self.root.tables, self.flushed);
        let context = ReadContext::blocking();
        Lookup { own, tables, flushed, key, snapshot, context: &context }.presence()
    }

    /// What a leaf of the index has from the key on, or below it. If that does not cover the reader, all keys: everything that the tables have.
    fn runs_at(&self, at: RangeAt<'_>, snapshot: Seqno) -> RangeRuns {
        for _ in 0..TRIES_MAX {
            match self.placed_runs(at, snapshot) {
                Ok(Placed::Runs(runs)) => return runs,
                Ok(Placed::Changed) => {}
                // Damage is reported by whoever needs the index.
                Ok(Placed::Unsure) | Err(_) => break,
            }
        }
        let runs = match self.own.places.has_operands() {
            true => vec![Run::Union(self.tables().cloned().collect())],
            // What two tables have is the same.
            false => self.tables().rev().cloned().map(Run::Table).collect(),
        };
        RangeRuns { lower: Arc::default(), upper: None, runs }
    }

    /// All tables: any of them may have a key that the index does not name.
    fn tables_at(&self, _key: &[u8]) -> Option<RangeTables> {
        Some(RangeTables { upper: None, tables: self.tables().cloned().collect() })
    }

    fn files(&self) -> Vec<PathBuf> {
        files::paths(&self.tables().collect::<Vec<_>>(), self.own.places.file_path())
    }

    /// Instead of the index, which changes in place, the copy has a file without bytes: whoever opens it builds the index.
    fn write_down(&self, copy: &mut dyn CheckpointFiles) -> Result<()> {
        let files = files::paths(&self.tables().collect::<Vec<_>>(), []);
        files.iter().try_for_each(|file| copy.link(file))?;
        let index = self.own.places.file_path();
        index.iter().try_for_each(|index| copy.write(index, &[]))
    }

    fn describe(&self) -> Result<TreeDescription> {
        let describe = |level: &Arc<_>| Ok(describe_level(level, &self.own.places));
        self.described(super::KIND.name, self.parameters.named(), describe)
    }

    fn check(&self, scope: CheckScope<'_>, problem: &mut dyn FnMut(Error)) -> CheckCounts {
        self.check_totals(scope.manifest, problem);
        super::check::check((&self.root, self.flushed), &self.own.places, scope, problem)
    }
}
