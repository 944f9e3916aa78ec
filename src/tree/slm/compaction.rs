//! The steps of a compaction: it merges what is live of its inputs, cuts the output, installs it, and lets the index
//! name it.
//!
//! Invariants:
//! 1. The index names the inputs until the output is in the tree. No other job takes the output before the index
//!    names it.
//! 2. An entry that the index does not name is left out, but for tombstones: these are needed as long as older
//!    entries may exist.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::Slm;
use super::change::{self, Rules};
use super::level::Level;
use super::places::{Places, page_of};
use super::plan::{Action, Plan};
use super::version::Version;
use crate::base::entry::{EntryKind, EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::Mutex;
use crate::cache::ReadContext;
use crate::jobs::Step;
use crate::merge::{Bottom, CompactionIterator};
use crate::table::{Table, TableFilter};
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;
use crate::tree::range::{Key, table_part};
use crate::tree::versioned::{
    self, Compact, InputScan, NewFiles, NewTables, STEP_ENTRIES, chunk_bytes,
};

/// A running compaction.
type CompactionJob = versioned::CompactionJob<Slm>;

/// The live entries of an input, and its tombstones.
struct LiveScan {
    scan: InputScan,
    table: Arc<Table>,
    places: Arc<Places>,
    /// The last key, and whether the index names it.
    key: Vec<u8>,
    is_live: Option<bool>,
}

impl EntrySource for LiveScan {
    fn next(&mut self) -> Result<()> {
        loop {
            self.scan.next()?;
            let Some(entry) = self.scan.entry() else { return Ok(()) };
            if entry.kind == EntryKind::Delete {
                return Ok(());
            }
            let is_live = match self.is_live {
                Some(is_live) if *entry.key == *self.key => is_live,
                _ => {
                    let is_live = self.places.names(entry.key, &self.table)?;
                    self.key.clear();
                    self.key.extend_from_slice(entry.key);
                    self.is_live = Some(is_live);
                    is_live
                }
            };
            if is_live {
                return Ok(());
            }
        }
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.scan.entry()
    }
}

/// Of the keys that inputs and other tables have: the entries of the others, so that all versions of a key are merged.
struct StackScan {
    places: Arc<Places>,
    inputs: Vec<u32>,
    upper: Option<Key>,
    /// The key after which the next one is looked for.
    after: Bound<Vec<u8>>,
    key: Vec<u8>,
    /// Its entries, newest first, and the current one.
    entries: Vec<(Seqno, EntryKind, Vec<u8>)>,
    at: usize,
    /// Of each such key: the table that had its newest version.
    stacks: Arc<Mutex<BTreeMap<Vec<u8>, u32>>>,
}

impl StackScan {
    fn next_key(&mut self) -> Result<()> {
        self.entries.clear();
        self.at = 0;
        while self.entries.is_empty() {
            let after = self.after.as_ref().map(Vec::as_slice);
            let next = self.places.next_stacked(after, self.upper.as_deref(), &self.inputs)?;
            let Some((key, versions)) = next else { return Ok(()) };
            for version in &versions {
                let number = version.location.table;
                if self.inputs.contains(&number) {
                    continue;
                }
                let Some(table) = self.places.table(number) else { continue };
                let leaf = version.location.leaf.map(page_of);
                let context = ReadContext::blocking();
                table.get_at(&key, leaf, Seqno::MAX, &context, |entry| {
                    self.entries.push((entry.seqno, entry.kind, entry.value.to_vec()));
                    ControlFlow::Continue(())
                })?;
            }
            self.entries.sort_by_key(|(seqno, ..)| Reverse(*seqno));
            if let Some(newest) = versions.first() {
                self.stacks.lock().insert(key.clone(), newest.location.table);
            }
            self.after = Bound::Excluded(key.clone());
            self.key = key;
        }
        Ok(())
    }
}

impl EntrySource for StackScan {
    fn next(&mut self) -> Result<()> {
        self.at += 1;
        if self.at < self.entries.len() {
            return Ok(());
        }
        self.next_key()
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (seqno, kind, value) = self.entries.get(self.at)?;
        Some(EntryRef { key: &self.key, seqno: *seqno, kind: *kind, value })
    }
}

/// A source of a compaction.
enum Source {
    Live(LiveScan),
    Stack(StackScan),
}

impl EntrySource for Source {
    #[inline]
    fn next(&mut self) -> Result<()> {
        match self {
            Source::Live(scan) => scan.next(),
            Source::Stack(scan) => scan.next(),
        }
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        match self {
            Source::Live(scan) => scan.entry(),
            Source::Stack(scan) => scan.entry(),
        }
    }
}

struct Merging {
    entries: CompactionIterator<Source>,
    output: Option<TableOutput>,
    output_bytes: u64,
}

/// What a compaction has done so far.
#[derive(Default)]
pub(in crate::tree) struct Progress {
    merging: Option<Box<Merging>>,
    outputs: Vec<Arc<Table>>,
    has_old_versions: bool,
    stacks: Arc<Mutex<BTreeMap<Vec<u8>, u32>>>,
}

impl Compact for Slm {
    fn step(job: &mut CompactionJob) -> Result<Step> {
        match job.plan.action {
            Action::Merge | Action::MergeRange => job.merge_some(),
            Action::Drop => job.install(|tree, _plan| tree.drop_dead()),
        }
    }

    fn list_bytes(progress: &Progress) -> u64 {
        let output = progress.merging.as_ref().and_then(|merging| merging.output.as_ref());
        output.map_or(0, TableOutput::list_bytes)
    }

    fn only_input(plan: &Plan) -> Option<&Arc<Table>> {
        match plan.inputs.as_slice() {
            [only] if plan.action == Action::Merge => Some(only),
            _ => None,
        }
    }

    fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
        let mut staying = Staying::default();
        for table in version.tables() {
            let is_input = plan.inputs.iter().any(|input| input.id() == table.id());
            if plan.action == Action::MergeRange || !is_input {
                staying.add(table);
            }
        }
        let (lower, upper) = plan.place.range();
        let parts = plan
            .inputs
            .iter()
            .map(|table| (table, table_part(table, lower, upper).unwrap_or_default()));
        Outlook::of(parts, !plan.older.is_empty(), &staying, collected)
    }
}

impl CompactionJob {
    fn begin(&mut self) -> Result<Merging> {
        let inputs = &self.plan.inputs;
        let context = &self.tree.context;
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let older = Arc::clone(&self.plan.older);
        let bottom = match older.is_empty() {
            true => Bottom::Always,
            false => Bottom::Ask(Box::new(move |key| !Plan::may_be_older(&older, key))),
        };
        let options = self.compaction.options(context, bottom);
        let range = (Arc::clone(&self.plan.place.lower), self.plan.place.upper.clone());
        let scan = |input: &Arc<Table>| LiveScan {
            scan: InputScan::new(input, vec![range.clone()], chunk_bytes),
            table: Arc::clone(input),
            places: Arc::clone(&self.tree.own.places),
            key: Vec::new(),
            is_live: None,
        };
        let mut sources: Vec<Source> = inputs.iter().rev().map(scan).map(Source::Live).collect();
        sources.push(Source::Stack(StackScan {
            places: Arc::clone(&self.tree.own.places),
            inputs: self.tree.own.places.numbers(inputs)?,
            upper: range.1.clone(),
            after: Bound::Included(range.0.to_vec()),
            key: Vec::new(),
            entries: Vec::new(),
            at: 0,
            stacks: Arc::clone(&self.progress.stacks),
        }));
        Ok(Merging {
            entries: CompactionIterator::new(sources, options),
            output: None,
            output_bytes: 0,
        })
    }

    /// Merges some entries; at the end, puts the output in its place.
    fn merge_some(&mut self) -> Result<Step> {
        let mut merging = match self.progress.merging.take() {
            Some(merging) => merging,
            None => Box::new(self.begin()?),
        };
        let table_bytes = self.tree.version.load().parameters.table_bytes;
        let limit = merging.entries.counters().entries_in + STEP_ENTRIES;
        loop {
            merging.entries.next()?;
            let Some(entry) = merging.entries.entry() else { break };
            let last = merging.output.as_ref().and_then(TableOutput::last_key);
            let same_key = last == Some(entry.key);
            self.progress.has_old_versions |= same_key || entry.kind == EntryKind::Delete;
            if !same_key
                && merging.output_bytes >= table_bytes
                && let Some(output) = merging.output.take()
            {
                self.progress.outputs.push(self.compaction.finish(output)?);
                merging.output_bytes = 0;
            }
            let output = match &mut merging.output {
                Some(output) => output,
                none => {
                    let context = &self.tree.context;
                    none.insert(self.compaction.output(context, TableFilter::None)?)
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
            self.progress.outputs.push(self.compaction.finish(output)?);
        }
        self.install_output()
    }

    fn install_output(&mut self) -> Result<Step> {
        let outputs = std::mem::take(&mut self.progress.outputs);
        let retained: &[_] = if self.progress.has_old_versions { &outputs } else { &[] };
        let step = self.install_merged(retained, |tree, plan| {
            let removed: &[_] = if plan.action == Action::Merge { &plan.inputs } else { &[] };
            let replace = |root: &mut Arc<Level>, _rules: &Rules| {
                Ok(change::replace(root, &plan.inputs, removed, &outputs))
            };
            tree.change(NewFiles::Some, replace, Seqno(0), NewTables::None)
        })?;
        let (plan, places) = (&self.plan, &self.tree.own.places);
        let stacks = std::mem::take(&mut *self.progress.stacks.lock());
        places.replace(&plan.inputs, &outputs, &stacks, plan.place.range())?;
        if plan.action == Action::Merge {
            places.forget(&plan.inputs);
        }
        self.tree.drop_dead()?;
        Ok(step)
    }
}
