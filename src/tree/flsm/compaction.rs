//! The steps of a compaction: it merges a guard's fragments, cuts the output, and installs it.
//!
//! Invariants:
//! 1. The guard may be divided and receive younger fragments while the job runs. No other job moves the inputs.
//! 2. All versions of a key are in one output.

use std::sync::Arc;

use super::Flsm;
use super::change::{self, Rules};
use super::guard::{Fragment, Guard};
use super::plan::{Action, Output, Plan};
use super::version::Version;
use crate::base::entry::{EntryKind, EntrySource};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::jobs::Step;
use crate::merge::{Bottom, CompactionIterator};
use crate::table::{Table, TableFilter};
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;
use crate::tree::range::{Key, ranges_overlap};
use crate::tree::versioned::{
    self, Compact, InputScan, NewFiles, NewTables, STEP_ENTRIES, chunk_bytes, walk,
};

/// A running compaction.
type CompactionJob = versioned::CompactionJob<Flsm>;

struct Merging {
    entries: CompactionIterator<InputScan>,
    output: Option<TableOutput>,
    output_bytes: u64,
    /// The next of the plan's cuts that has not been passed.
    next_cut: usize,
}

/// What a compaction has done so far.
#[derive(Default)]
pub(in crate::tree) struct Progress {
    merging: Option<Box<Merging>>,
    output: Output,
}

impl Compact for Flsm {
    fn step(job: &mut CompactionJob) -> Result<Step> {
        match job.plan.action {
            Action::Merge => job.merge_some(),
            Action::Pass => {
                let tables = job.plan.inputs.iter().map(|input| Arc::clone(&input.table));
                let output = Output { tables: tables.collect(), ..Output::default() };
                job.install(|tree, plan| {
                    let pass = |root: &mut Arc<Guard>, rules: &Rules| {
                        replace(root, plan, &output, rules).map(|()| true)
                    };
                    tree.change(NewFiles::None, pass, Seqno(0), NewTables::None)
                })
            }
            Action::Join => job.install(|tree, plan| {
                let join = |root: &mut Arc<Guard>, rules: &Rules| {
                    let joined = change::join(root, plan, &rules.parameters);
                    if joined {
                        *root = change::rebalance(vec![Arc::clone(root)], rules)?;
                    }
                    Ok(joined)
                };
                tree.change(NewFiles::None, join, Seqno(0), NewTables::None)
            }),
        }
    }

    fn list_bytes(progress: &Progress) -> u64 {
        let output = progress.merging.as_ref().and_then(|merging| merging.output.as_ref());
        output.map_or(0, TableOutput::list_bytes)
    }

    fn inputs_alone(plan: &Plan) -> Vec<&Arc<Table>> {
        match plan.inputs.as_slice() {
            [only] if plan.in_place && plan.action == Action::Merge => vec![&only.table],
            _ => Vec::new(),
        }
    }

    fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
        let mut staying = Staying::default();
        walk(&version.root, &mut |guard| {
            let is_there = guard.height == plan.place.height
                && ranges_overlap(guard.range(), plan.place.range());
            for fragment in &guard.fragments {
                let id = fragment.table.id();
                if !is_there || !plan.inputs.iter().any(|input| input.table.id() == id) {
                    staying.add(&fragment.table);
                }
            }
        });
        let parts = plan.inputs.iter().map(|input| (&input.table, input.part()));
        Outlook::of(parts, !plan.older.is_empty(), &staying, collected)
    }
}

/// Replaces the inputs of a plan by its output.
fn replace(root: &mut Arc<Guard>, plan: &Plan, output: &Output, rules: &Rules) -> Result<()> {
    let parts = change::replace(Arc::clone(root), plan, output, rules)?;
    *root = change::rebalance(parts, rules)?;
    Ok(())
}

impl CompactionJob {
    fn begin(&mut self) -> Merging {
        let inputs = &self.plan.inputs;
        let context = &self.tree.context;
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let older = Arc::clone(&self.plan.older);
        self.progress.output.is_all = older.is_empty();
        let bottom = match older.is_empty() {
            true => Bottom::Always,
            false => Bottom::Ask(Box::new(move |key, _| !Plan::may_be_older(&older, key))),
        };
        let options = self.compaction.options(context, bottom);
        let range = (Arc::clone(&self.plan.place.lower), self.plan.place.upper.clone());
        let scan =
            |input: &Fragment| self.compaction.scan(&input.table, vec![range.clone()], chunk_bytes);
        Merging {
            entries: CompactionIterator::new(inputs.iter().rev().map(scan).collect(), options),
            output: None,
            output_bytes: 0,
            next_cut: 0,
        }
    }

    /// Merges some entries; at the end, puts the output in its place.
    fn merge_some(&mut self) -> Result<Step> {
        let mut merging = match self.progress.merging.take() {
            Some(merging) => merging,
            None => Box::new(self.begin()),
        };
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break };
            let last = merging.output.as_ref().and_then(TableOutput::last_key);
            let same_key = last == Some(entry.key);
            self.progress.output.has_old_versions |= same_key || entry.kind == EntryKind::Delete;
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
            let may_cut = (crosses || self.plan.place.height == 0) && !same_key;
            if may_cut
                && merging.output_bytes >= self.plan.output_bytes
                && let Some(output) = merging.output.take()
            {
                self.progress.output.tables.push(self.compaction.finish(output)?);
                merging.output_bytes = 0;
            }
            let output = match &mut merging.output {
                Some(output) => output,
                none => {
                    let context = &self.tree.context;
                    let has_filter = self.tree.version.load().parameters.filters;
                    let filter = TableFilter::blocks(has_filter);
                    none.insert(self.compaction.output(context, filter)?)
                }
            };
            let hash = self.tree.context.files.hasher.hash(entry.key);
            self.compaction.add(output, hash, entry)?;
            merging.output_bytes += (entry.key.len() + entry.value.len()) as u64;
            if merging.entries.counters().entries_in >= limit {
                self.progress.merging = Some(merging);
                return Ok(Step::Again);
            }
        }
        if let Some(output) = merging.output.take() {
            self.progress.output.tables.push(self.compaction.finish(output)?);
        }
        self.install_output()
    }

    fn install_output(&mut self) -> Result<Step> {
        let output = std::mem::take(&mut self.progress.output);
        let is_last_level = self.plan.place.height == 0;
        let retained: &[_] =
            if output.has_old_versions && is_last_level { &output.tables } else { &[] };
        self.install_merged(retained, |tree, plan| {
            let replace = |root: &mut Arc<Guard>, rules: &Rules| {
                replace(root, plan, &output, rules).map(|()| true)
            };
            let tables = match is_last_level && output.is_all {
                true => NewTables::Merged(&output.tables),
                false => NewTables::None,
            };
            tree.change(NewFiles::Some, replace, Seqno(0), tables)
        })
    }
}
