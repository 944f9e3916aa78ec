//! A compaction: merges a guard's fragments, cuts the output, and puts it in its place.
//!
//! Invariants:
//! 1. Inputs are immutable and pinned by the job; the guard may be divided and take in younger fragments
//!    while it runs. Nobody else moves the inputs (see `jobs`).
//! 2. All versions of a key are in one output.
//! 3. The output is durable before the manifest names it.

use std::sync::Arc;

use super::FlsmTree;
use super::guard::{Fragment, Key};
use super::plan::{Action, Plan};
use crate::base::checksum::hash_key;
use crate::base::entry::{EntryKind, EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::jobs::{Job, Step};
use crate::merge::{Bottom, CompactionIterator, CompactionOptions};
use crate::table::{Table, TableScan};
use crate::tree::output::TableOutput;

/// Input entries that one step looks at.
const STEP_ENTRIES: u64 = 4096;

/// A fragment read from its guard's lower bound to its upper.
struct FragmentScan {
    table: Arc<Table>,
    lower: Key,
    upper: Option<Key>,
    chunk_bytes: usize,
    scan: Option<TableScan>,
}

impl EntrySource for FragmentScan {
    #[inline]
    fn next(&mut self) -> Result<()> {
        match &mut self.scan {
            Some(scan) => scan.next(),
            none => {
                let scan =
                    self.table.scan(Some(&self.lower), self.upper.as_deref(), self.chunk_bytes)?;
                *none = Some(scan);
                Ok(())
            }
        }
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.scan.as_ref()?.entry()
    }
}

struct Merging {
    entries: CompactionIterator<'static, FragmentScan>,
    output: Option<TableOutput>,
    output_bytes: u64,
    /// The next of the plan's cuts that has not been passed.
    next_cut: usize,
    last_hash: Option<u64>,
}

/// What a compaction has made of its inputs.
#[derive(Default)]
pub(super) struct Made {
    /// In key order.
    pub(super) tables: Vec<Arc<Table>>,
    /// Whether they hold more than one version of a key, or tombstones.
    pub(super) unsettled: bool,
    /// Bytes of keys and values read and written.
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

/// A compaction under way.
pub(super) struct CompactionJob {
    tree: Arc<FlsmTree>,
    number: u64,
    plan: Plan,
    snapshots: Vec<Seqno>,
    /// Blob files whose values are to be copied out.
    collected_blobs: Vec<FileId>,
    merging: Option<Box<Merging>>,
    made: Made,
    started_nanos: u64,
    written_bytes: u64,
    ended: bool,
}

impl CompactionJob {
    pub(super) fn new(tree: Arc<FlsmTree>, number: u64, plan: Plan) -> CompactionJob {
        let snapshots = tree.snapshots();
        let started_nanos = tree.context.clock.nanos();
        let collected_blobs = tree.version.load().mostly_dead_blobs();
        CompactionJob {
            tree,
            number,
            plan,
            snapshots,
            collected_blobs,
            merging: None,
            made: Made::default(),
            started_nanos,
            written_bytes: 0,
            ended: false,
        }
    }

    fn begin(&mut self) -> Merging {
        let inputs = &self.plan.inputs;
        let buffers = self.tree.context.options.job_bytes_max as usize / (2 * inputs.len().max(1));
        let chunk_bytes = buffers.clamp(16 << 10, 256 << 10) & !4095;
        let older = std::mem::take(&mut self.plan.older);
        let options = CompactionOptions {
            snapshots: self.snapshots.clone(),
            bottom: match older.is_empty() {
                true => Bottom::Always,
                false => Bottom::Ask(Box::new(move |key| !Plan::may_be_older(&older, key))),
            },
            operator: self.tree.context.operator.clone(),
            on_blob_dropped: None,
        };
        let scan = |input: &Fragment| FragmentScan {
            table: Arc::clone(&input.table),
            lower: Arc::clone(&self.plan.lower),
            upper: self.plan.upper.clone(),
            chunk_bytes,
            scan: None,
        };
        Merging {
            entries: CompactionIterator::new(inputs.iter().rev().map(scan).collect(), options),
            output: None,
            output_bytes: 0,
            next_cut: 0,
            last_hash: None,
        }
    }

    /// Merges some entries; at the end, puts the output in its place.
    fn merge_some(&mut self) -> Result<Step> {
        let mut merging = match self.merging.take() {
            Some(merging) => merging,
            None => Box::new(self.begin()),
        };
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break };
            let hash = hash_key(entry.key);
            let same_key = merging.last_hash.replace(hash) == Some(hash);
            self.made.unsettled |= same_key || entry.kind == EntryKind::Delete;
            // (Keys that differ under one hash are only not cut between.)
            let crosses =
                self.plan.cuts.get(merging.next_cut).is_some_and(|cut| **cut <= *entry.key);
            if crosses {
                let passed = |cut: &&Key| ***cut <= *entry.key;
                let cuts = &self.plan.cuts[merging.next_cut..];
                merging.next_cut += cuts.iter().take_while(passed).count();
            }
            if same_key
                && planted(Bug::GuardCutsVersions)
                && merging.output_bytes >= self.plan.output_bytes
            {
                continue;
            }
            let may_cut = (crosses || self.plan.height == 0) && !same_key;
            if may_cut
                && merging.output_bytes >= self.plan.output_bytes
                && let Some(output) = merging.output.take()
            {
                let (table, written_bytes) = output.finish()?;
                self.made.tables.push(table);
                self.written_bytes += written_bytes;
                merging.output_bytes = 0;
            }
            let output = match &mut merging.output {
                Some(output) => output,
                none => {
                    let context = &self.tree.context;
                    none.insert(TableOutput::new(context, context.options.filters)?)
                }
            };
            output.add_old(entry, &self.collected_blobs)?;
            merging.output_bytes += (entry.key.len() + entry.value.len()) as u64;
            if merging.entries.counters().entries_in >= limit {
                self.merging = Some(merging);
                return Ok(Step::Again);
            }
        }
        if let Some(output) = merging.output.take() {
            let (table, written_bytes) = output.finish()?;
            self.made.tables.push(table);
            self.written_bytes += written_bytes;
        }
        let counters = merging.entries.counters();
        (self.made.bytes_in, self.made.bytes_out) = (counters.bytes_in, counters.bytes_out);
        self.install()
    }

    fn install(&mut self) -> Result<Step> {
        self.ended = true;
        let made = std::mem::take(&mut self.made);
        if made.unsettled && self.plan.height == 0 {
            self.tree.note_retained(&made.tables, &self.snapshots);
        }
        self.tree.install(&self.plan, &made)?;
        let nanos = self.tree.context.clock.nanos().saturating_sub(self.started_nanos);
        self.tree.note_compaction(self.plan.merge_bytes(), self.written_bytes, nanos);
        Ok(Step::Done)
    }
}

impl CompactionJob {
    fn work(&mut self) -> Result<Step> {
        if self.ended {
            return Ok(Step::Done);
        }
        match self.plan.action {
            Action::Merge => self.merge_some(),
            Action::Pass => {
                let tables = self.plan.inputs.iter().map(|input| Arc::clone(&input.table));
                self.ended = true;
                self.tree
                    .install(&self.plan, &Made { tables: tables.collect(), ..Made::default() })?;
                Ok(Step::Done)
            }
            Action::Join => {
                self.ended = true;
                self.tree.join(&self.plan)?;
                Ok(Step::Done)
            }
        }
    }
}

impl Job for CompactionJob {
    fn step(&mut self) -> Result<Step> {
        let step = self.work();
        step.inspect_err(|error| self.tree.note_damage(error, self.plan.height, self.plan.range()))
    }
}

impl Drop for CompactionJob {
    fn drop(&mut self) {
        self.tree.jobs.lock().end(self.number);
    }
}
