//! A compaction: merges a guard's fragments, cuts the output, and puts it in its place.
//!
//! Invariants:
//! 1. Inputs are immutable and pinned by the job; the guard may be divided and take in younger fragments
//!    while it runs. Nobody else moves the inputs (see `jobs`).
//! 2. All versions of a key are in one output.
//! 3. The output is durable before the manifest names it.

use std::sync::Arc;

use super::FlsmTree;
use super::guard::{Fragment, Key, ranges_meet, walk};
use super::plan::{Action, Plan};
use super::version::Version;
use crate::base::entry::{EntryKind, EntrySource};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::planted::{Bug, planted};
use crate::jobs::{Job, Step};
use crate::merge::{Bottom, CompactionIterator};
use crate::table::Table;
use crate::tree::compaction::{Compaction, InputScan, Retry, STEP_ENTRIES, chunk_bytes};
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;

struct Merging {
    entries: CompactionIterator<InputScan>,
    output: Option<TableOutput>,
    output_bytes: u64,
    /// The next of the plan's cuts that has not been passed.
    next_cut: usize,
}

/// What a compaction has made of its inputs.
#[derive(Default)]
pub(super) struct Made {
    /// In key order.
    pub(super) tables: Vec<Arc<Table>>,
    /// Whether they hold more than one version of a key, or tombstones.
    pub(super) unsettled: bool,
    /// Whether nothing older was left out.
    pub(super) is_all: bool,
}

/// A compaction under way.
pub(super) struct CompactionJob {
    tree: Arc<FlsmTree>,
    number: u64,
    plan: Plan,
    compaction: Compaction,
    merging: Option<Box<Merging>>,
    made: Made,
    ended: bool,
}

impl CompactionJob {
    pub(super) fn new(tree: Arc<FlsmTree>, number: u64, plan: Plan) -> CompactionJob {
        let collected_blobs = tree.version.load().mostly_dead_blobs();
        let compaction = Compaction::begin(&tree.context, collected_blobs);
        let made = Made::default();
        CompactionJob { tree, number, plan, compaction, merging: None, made, ended: false }
    }

    fn begin(&mut self) -> Merging {
        let inputs = &self.plan.inputs;
        let context = &self.tree.context;
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let older = Arc::clone(&self.plan.older);
        self.made.is_all = older.is_empty();
        let bottom = match older.is_empty() {
            true => Bottom::Always,
            false => Bottom::Ask(Box::new(move |key| !Plan::may_be_older(&older, key))),
        };
        let options = self.compaction.options(context, bottom);
        let range = (Arc::clone(&self.plan.lower), self.plan.upper.clone());
        let scan =
            |input: &Fragment| InputScan::new(&input.table, vec![range.clone()], chunk_bytes);
        Merging {
            entries: CompactionIterator::new(inputs.iter().rev().map(scan).collect(), options),
            output: None,
            output_bytes: 0,
            next_cut: 0,
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
            let last = merging.output.as_ref().and_then(TableOutput::last_key);
            let same_key = last == Some(entry.key);
            self.made.unsettled |= same_key || entry.kind == EntryKind::Delete;
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
                self.made.tables.push(self.compaction.finish(output)?);
                merging.output_bytes = 0;
            }
            let output = match &mut merging.output {
                Some(output) => output,
                none => {
                    let context = &self.tree.context;
                    none.insert(self.compaction.output(context, self.tree.parameters.filters)?)
                }
            };
            let hash = self.tree.context.files.hasher.hash(entry.key);
            self.compaction.add(output, hash, entry)?;
            merging.output_bytes += (entry.key.len() + entry.value.len()) as u64;
            if merging.entries.counters().entries_in >= limit {
                self.merging = Some(merging);
                return Ok(Step::Again);
            }
        }
        if let Some(output) = merging.output.take() {
            self.made.tables.push(self.compaction.finish(output)?);
        }
        self.install()
    }

    fn install(&mut self) -> Result<Step> {
        self.ended = true;
        let made = std::mem::take(&mut self.made);
        if made.unsettled && self.plan.height == 0 {
            self.tree.note_retained(&made.tables, &self.compaction.snapshots);
        }
        self.tree.install(&self.plan, &made)?;
        self.compaction.end(&self.tree.context, self.plan.merge_bytes());
        Ok(Step::Done)
    }
}

impl CompactionJob {
    /// There was no room. Begins anew, if it may take of the reserve.
    #[cold]
    fn begin_anew(&mut self, error: Error) -> Result<Step> {
        // What has been written goes first: its room counts.
        (self.merging, self.made) = (None, Made::default());
        let (tree, plan) = (&self.tree, &self.plan);
        let version = tree.version.load();
        match self.compaction.begin_anew(&tree.context, |blobs| outlook(plan, &version, blobs)) {
            Retry::Now => Ok(Step::Again),
            Retry::Later => Ok(Step::Postponed),
            Retry::Never => Err(error),
        }
    }

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

/// What carrying out a plan gives back that copies values out of some blob files.
fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
    let mut staying = Staying::default();
    walk(&version.root, &mut |guard| {
        let is_there = guard.height == plan.height && ranges_meet(guard.range(), plan.range());
        for fragment in &guard.fragments {
            let id = fragment.table.id();
            if !is_there || !plan.inputs.iter().any(|input| input.table.id() == id) {
                staying.add(&fragment.table);
            }
        }
    });
    let stretches = plan.inputs.iter().map(|input| (&input.table, input.stretch()));
    Outlook::of(stretches, !plan.older.is_empty(), &staying, collected)
}

impl Job for CompactionJob {
    fn step(&mut self) -> Result<Step> {
        let step = match self.work() {
            // A manifest that cannot grow has no use for another merge.
            Err(error @ Error::Full { .. }) if !self.ended => self.begin_anew(error),
            step => step,
        };
        step.inspect_err(|error| self.tree.note_damage(error, self.plan.height, self.plan.range()))
    }
}

impl Drop for CompactionJob {
    fn drop(&mut self) {
        if planted(Bug::ClaimKept) && !self.ended {
            return;
        }
        self.tree.jobs.lock().claims.end(self.number);
    }
}
