//! The steps of a compaction: it merges what is live of its inputs, and cuts the output. Each table of that becomes
//! part of the tree, and the index names it, before the next one is begun. At the end the inputs go.
//!
//! Invariants:
//! 1. The inputs stay in the tree, with all that they have, until the index names none of them. A crash before that
//!    leaves entries that are in two tables, of which the index names one.
//! 2. Operands are folded over a value or over nothing alone: tables that are no inputs keep those that have been
//!    taken in, so a reader that meets both has to tell from an entry's kind that it includes all older ones.

use std::sync::Arc;

use super::change::{self, Rules};
use super::erase::Erasing;
use super::level::Level;
use super::level_tables::LevelTable;
use super::live_entries::{Input, LiveEntries, Notes};
use super::merged_keys::keys_of;
use super::plan::{Action, Plan};
use super::prune::Pruning;
use super::rebuild::Rebuild;
use super::receive::Output;
use super::version::Version;
use super::{Slm, SlmTree};
use crate::base::entry::EntrySource;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::Ordering;
use crate::jobs::Step;
use crate::merge::{Bottom, CompactionIterator};
use crate::table::Table;
use crate::tree::live::Dead;
use crate::tree::outlook::{Outlook, Staying};
use crate::tree::output::TableOutput;
use crate::tree::range::table_part;
use crate::tree::versioned::{
    self, Compact, InputScan, NewFiles, NewTables, STEP_ENTRIES, chunk_bytes,
};

/// A running compaction.
type CompactionJob = versioned::CompactionJob<Slm>;

struct Merging {
    entries: CompactionIterator<LiveEntries>,
    /// The numbers of the inputs.
    numbers: Vec<u32>,
    notes: Arc<Mutex<Notes>>,
    output: Option<TableOutput>,
    output_bytes: u64,
    /// The live keys of which nothing has been written since the last output.
    ended: Vec<Vec<u8>>,
    /// Of each key of the output, whether it was live when it was read.
    were_live: Vec<bool>,
    /// The output has versions that only snapshots need.
    has_old_versions: bool,
}

/// What a compaction has done so far.
#[derive(Default)]
pub(in crate::tree) struct Progress {
    merging: Option<Box<Merging>>,
    rebuild: Option<Box<Rebuild>>,
    pruning: Option<Box<Pruning>>,
    erasing: Option<Box<Erasing>>,
}

impl Compact for Slm {
    fn step(job: &mut CompactionJob) -> Result<Step> {
        match job.plan.action {
            Action::Merge | Action::MergeRange => match job.merge_some() {
                // What is live is not known before the index has been built anew.
                Err(Error::InvalidArgument { .. }) if job.tree.own.places.is_partial() => {
                    Ok(Step::Postponed)
                }
                merged => merged,
            },
            Action::Drop => job.install(|tree, _plan| tree.drop_dead()),
            Action::Prune => job.prune_some(),
            Action::Erase => job.erase_some(),
            Action::Receive => job.receive_some(),
            Action::Rebuild => job.rebuild_some(),
        }
    }

    fn list_bytes(progress: &Progress) -> u64 {
        let output = progress.merging.as_ref().and_then(|merging| merging.output.as_ref());
        output.map_or(0, TableOutput::list_bytes)
    }

    /// Each table's live keys stay, whatever else is merged with it.
    fn inputs_alone(plan: &Plan) -> Vec<&Arc<Table>> {
        match plan.action {
            Action::Merge => plan.inputs.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The inputs that are damaged, or that failed to be read, and none of the others: tables of random keys lie over nearly
    /// all keys, so nothing would be merged beside a place that has them. If what could not be read is in another table of
    /// the level, which has older versions of a key, all inputs.
    fn quarantined_tables(plan: &Plan, version: &Version, error: &Error) -> Vec<FileId> {
        let file = match error {
            Error::Corruption { file, .. } => file,
            Error::Io { path, .. } if error.is_failed_read() => path,
            _ => return Vec::new(),
        };
        if !matches!(plan.action, Action::Merge | Action::MergeRange) {
            return Vec::new();
        }
        let has_file = |table: &Arc<Table>| {
            table.pages().path() == *file || table.blobs().iter().any(|blob| blob.path() == *file)
        };
        let is_here = plan.inputs.iter().any(has_file);
        if !is_here && !version.tables().any(has_file) {
            return Vec::new();
        }
        let inputs = plan.inputs.iter().filter(|input| !is_here || has_file(input));
        inputs.map(|input| input.id()).collect()
    }

    fn gains(tree: &SlmTree, table: &Table, snapshots: &[Seqno]) -> bool {
        tree.dead_bytes(table, snapshots) > 0
    }

    fn outlook(plan: &Plan, version: &Version, collected: &[FileId]) -> Outlook {
        let mut staying = Staying::default();
        let stays = |table: &&Arc<Table>| {
            let is_input = || plan.inputs.iter().any(|input| Arc::ptr_eq(input, table));
            plan.action == Action::MergeRange || !is_input()
        };
        // Other tables matter for the values in blob files that they share with the inputs.
        match plan.inputs.iter().any(|input| !input.blobs().is_empty()) {
            true => version.tables().filter(stays).for_each(|table| staying.add(table)),
            false => plan.inputs.iter().filter(stays).for_each(|table| staying.add(table)),
        }
        let (lower, upper) = plan.place.range();
        let parts = plan
            .inputs
            .iter()
            .map(|table| (table, table_part(table, lower, upper).unwrap_or_default()));
        let dead = dead_of(version, &plan.inputs);
        Outlook::of_known(parts, dead, plan.keeps_deletes(), &staying, collected)
    }
}

/// What is dead of tables, as the index knows it.
fn dead_of(version: &Version, tables: &[Arc<Table>]) -> Dead {
    let (mut bytes, mut dead_bytes, mut blob_bytes, mut dead_blob_bytes) = (0.0, 0.0, 0.0, 0.0);
    for table in tables {
        let (live, named) = version.own.places.live_of_named(table).unwrap_or((1, 1));
        let dead = 1.0 - live.min(named) as f64 / named.max(1) as f64;
        let properties = table.properties();
        let of_table = properties.entry_bytes() as f64;
        let of_blobs: u64 = properties.blobs.iter().map(|blob| blob.bytes).sum();
        bytes += of_table;
        dead_bytes += of_table * dead;
        blob_bytes += of_blobs as f64;
        dead_blob_bytes += of_blobs as f64 * dead;
    }
    Dead {
        share: dead_bytes / f64::max(bytes, 1.0),
        blob_share: dead_blob_bytes / f64::max(blob_bytes, 1.0),
        ..Dead::default()
    }
}

impl CompactionJob {
    fn begin(&mut self) -> Result<Merging> {
        let inputs = &self.plan.inputs;
        let (context, places) = (&self.tree.context, &self.tree.own.places);
        places.has_pruned.store(false, Ordering::SeqCst);
        let chunk_bytes = chunk_bytes(context, inputs.len());
        let notes = Arc::new(Mutex::new(Notes::default()));
        let (older, open) = (self.plan.older.clone(), Arc::clone(&notes));
        // Tables have entries that the index does not name: a tombstone has to stay above them.
        let bottom = Bottom::Ask(Box::new(move |key, kind| {
            (kind.is_operand() && open.lock().is_open(key))
                || !Plan::may_be_older(older.as_deref(), key)
        }));
        let mut options = self.compaction.options(context, bottom);
        // A reader that asks all tables would apply an operand twice: folded here, and as it is in a table that stays.
        options.limits.folds_operands = false;
        let range = (Arc::clone(&self.plan.place.lower), self.plan.place.upper.clone());
        // One without a number has been dropped since: nobody needs what it has.
        let scan = |input: &Arc<Table>| {
            let scan = InputScan::new(input, vec![range.clone()], chunk_bytes);
            places.number_of(input).map(|number| Input { scan, number })
        };
        let scans: Vec<Input> = inputs.iter().filter_map(scan).collect();
        let numbers = scans.iter().map(|input| input.number).collect();
        let newest = self.plan.settled;
        let listed = self.compaction.snapshots.last().copied();
        let of_inputs = inputs.iter().map(|input| input.properties().seqno_max).max();
        assert!(of_inputs <= Some(newest), "{of_inputs:?} is beyond {newest}");
        assert!(listed.is_none_or(|listed| newest <= listed), "{newest} is beyond {listed:?}");
        let source = LiveEntries::new(places, scans, newest, &notes);
        Ok(Merging {
            entries: CompactionIterator::new(vec![source], options),
            numbers,
            notes,
            output: None,
            output_bytes: 0,
            ended: Vec::new(),
            were_live: Vec::new(),
            has_old_versions: false,
        })
    }

    /// Merges some entries; at the end, lets the inputs go.
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
            if !same_key {
                if merging.output_bytes >= table_bytes {
                    self.show_output(&mut merging, false)?;
                }
                let Merging { entries, notes, ended, were_live, .. } = &mut *merging;
                let is_live = notes.lock().wrote(entries.entry().map(|entry| entry.key), ended);
                were_live.push(is_live);
            }
            let Some(entry) = merging.entries.entry() else { break };
            merging.has_old_versions |= same_key;
            let output = match &mut merging.output {
                Some(output) => output,
                none => {
                    let context = &self.tree.context;
                    let filter = self.tree.version.load().parameters.filter();
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
        {
            let Merging { notes, ended, .. } = &mut *merging;
            notes.lock().wrote(None, ended);
        }
        self.show_output(&mut merging, true)?;
        self.end()
    }

    /// Makes the output a table of the tree, which the index names from then on.
    fn show_output(&mut self, merging: &mut Merging, is_last: bool) -> Result<()> {
        let output = merging.output.take().map(|output| self.compaction.finish(output));
        let output = output.transpose()?;
        merging.output_bytes = 0;
        let places = &self.tree.own.places;
        let snapshots = &self.compaction.snapshots;
        let number = output.as_ref().map(|table| places.number(table)).transpose()?;
        let forget = || output.iter().for_each(|it| places.forget(std::slice::from_ref(it)));
        let keys = output.as_ref().map(keys_of).transpose().inspect_err(|_| forget())?;
        if let Some((table, number)) = output.as_ref().zip(number) {
            let is_for_snapshots = std::mem::take(&mut merging.has_old_versions);
            if is_for_snapshots && snapshots.len() > 1 {
                self.tree.jobs.lock().retain(std::slice::from_ref(table), snapshots);
            }
            let early = planted(Bug::SlmSettledEarly);
            let settled = if early { Seqno(u64::MAX >> 8) } else { self.plan.settled };
            let added = LevelTable { table: Arc::clone(table), settled, number };
            let add = |root: &mut Arc<Level>, _rules: &Rules| {
                change::add(root, added.clone(), places.file_id());
                Ok(true)
            };
            let added = self.tree.change(NewFiles::Some, add, Seqno(0), NewTables::None);
            added.inspect_err(|_| forget())?;
        }
        // Keys have been read that the next output will have.
        let stacks = match &output {
            Some(table) if !is_last => merging.notes.lock().take_stacks(table.last_key()),
            _ => std::mem::take(&mut merging.notes.lock().stacks),
        };
        let ended = std::mem::take(&mut merging.ended);
        let were_live = std::mem::take(&mut merging.were_live);
        let made = number.zip(keys.as_ref());
        let made = made.map(|(number, keys)| Output { number, keys, were_live: &were_live });
        let replaced = places.replace(made, &merging.numbers, &stacks, &ended, snapshots);
        // The output is part of the tree, and the index does not name it, or not wholly.
        replaced.inspect_err(|_| places.distrust())
    }

    /// Lets the inputs go.
    fn end(&mut self) -> Result<Step> {
        if self.plan.action == Action::Merge {
            self.tree.own.places.require_unnamed(&self.plan.inputs)?;
        }
        let step = self.install_merged(&[], |tree, plan| {
            if plan.action == Action::MergeRange {
                return Ok(());
            }
            let inputs = tree.own.places.numbered(&plan.inputs);
            let remove = |root: &mut Arc<Level>, _rules: &Rules| {
                Ok(change::remove(root, &inputs, tree.own.places.file_id()))
            };
            tree.change(NewFiles::None, remove, Seqno(0), NewTables::None)
        })?;
        if self.plan.action == Action::Merge {
            self.tree.own.places.forget(&self.plan.inputs);
            self.tree.own.scattered.forget(&self.plan.inputs);
        }
        self.tree.drop_dead()?;
        self.tree.own.places.shrink();
        Ok(step)
    }

    /// Puts memtables into the index.
    fn receive_some(&mut self) -> Result<Step> {
        match self.tree.receive_some(STEP_ENTRIES as usize) {
            true => Ok(Step::Again),
            false => self.install(|_tree, _plan| Ok(())),
        }
    }

    /// Builds the index anew.
    fn rebuild_some(&mut self) -> Result<Step> {
        let (tree, places) = (&self.tree, &self.tree.own.places);
        let mut rebuild = match self.progress.rebuild.take() {
            Some(rebuild) => rebuild,
            None => {
                let version = tree.version.load();
                let snapshots = tree.context.snapshots();
                Box::new(Rebuild::begin(places, &version.root, version.flushed, snapshots)?)
            }
        };
        let keys_max = STEP_ENTRIES as usize;
        let goes_on = rebuild.compare_some(places, keys_max)? || tree.receive_newer(keys_max)?;
        if !goes_on {
            places.shrink();
            tree.begin_erasing_anew();
            return self.install(|_tree, _plan| Ok(()));
        }
        self.progress.rebuild = Some(rebuild);
        Ok(Step::Again)
    }

    /// Removes what a range delete has deleted from the index.
    fn erase_some(&mut self) -> Result<Step> {
        const LEAVES_OF_STEP: usize = 64;
        let erasing = match self.progress.erasing.take() {
            Some(erasing) => Some(erasing),
            None => {
                let (place, snapshots) = (&self.plan.place, &self.compaction.snapshots);
                self.tree.begin_erasing(place, snapshots).map(Box::new)
            }
        };
        // Another one may have done it.
        let Some(mut erasing) = erasing else { return self.install(|_tree, _plan| Ok(())) };
        for _ in 0..LEAVES_OF_STEP {
            let goes_on = erasing.erase_leaf()?;
            if !goes_on || erasing.is_long() {
                self.tree.end_erasing(&erasing, !goes_on);
                self.tree.own.places.shrink();
                return self.install(|tree, _plan| tree.drop_dead());
            }
        }
        self.progress.erasing = Some(erasing);
        Ok(Step::Again)
    }

    /// Removes what only snapshots needed that have gone.
    fn prune_some(&mut self) -> Result<Step> {
        const LEAVES_OF_STEP: usize = 64;
        let places = &self.tree.own.places;
        let mut pruning = match self.progress.pruning.take() {
            Some(pruning) => pruning,
            None => {
                let (place, snapshots) = (&self.plan.place, &self.compaction.snapshots);
                Box::new(Pruning::begin(places, place, snapshots))
            }
        };
        for _ in 0..LEAVES_OF_STEP {
            if !pruning.prune_leaf()? {
                drop(pruning);
                places.has_pruned.store(true, Ordering::SeqCst);
                places.shrink();
                return self.install(|tree, _plan| tree.drop_dead());
            }
        }
        self.progress.pruning = Some(pruning);
        Ok(Step::Again)
    }
}
