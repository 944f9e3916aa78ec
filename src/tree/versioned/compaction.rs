//! A running compaction: its claim, its end, and its retry on a full disk. Its steps are the kind's.
//!
//! Invariants:
//! 1. Inputs are immutable and pinned by the job. The tree may change while the job runs.
//! 2. The result is durable before the manifest names it.
//! 3. The claim is held until the job is dropped.
//! 4. Snapshots are asked for before an input is read: those that are taken later see nothing that could be dropped (see
//!    `merge`).

use std::cell::Cell;
use std::sync::Arc;

use super::{CompactionPlan, Version, VersionedKind, VersionedTree};
use crate::base::entry::{EntryRef, EntrySource};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::cache::{ReserveTurn, Room};
use crate::jobs::{Job, Step};
use crate::merge::{Bottom, CompactionOptions, Cover, DurableRangeDeletes, FoldLimits};
use crate::table::{Table, TableFilter, TableScan};
use crate::tree::TreeContext;
use crate::tree::outlook::Outlook;
use crate::tree::output::TableOutput;
use crate::tree::range::{Key, table_size};
use crate::tree::range_deleted::RangeDeleted;

/// The steps of compactions of a kind of versioned tree: the kind's `compaction`.
pub(in crate::tree) trait Compact: VersionedKind {
    /// Carries out a part of a compaction.
    fn step(job: &mut CompactionJob<Self>) -> Result<Step>;

    /// The tables that a plan merges, if it can gain nothing but what it drops of one of them; else none.
    fn inputs_alone(plan: &Self::Plan) -> Vec<&Arc<Table>>;

    /// The tables that are quarantined after an error; none if the plan's place is.
    fn quarantined_tables(
        _plan: &Self::Plan,
        _version: &Version<Self>,
        _error: &Error,
    ) -> Vec<FileId> {
        Vec::new()
    }

    /// Whether merging a table by itself could drop something. `snapshots` are those that there are, ascending.
    fn gains(tree: &VersionedTree<Self>, table: &Table, snapshots: &[Seqno]) -> bool {
        tree.jobs.lock().gains(table.id(), snapshots)
    }

    /// Memory of the lists of keys that are kept until the index is written.
    fn list_bytes(progress: &Self::Progress) -> u64;

    /// What carrying out a plan gives back that copies values out of some blob files.
    fn outlook(plan: &Self::Plan, version: &Version<Self>, collected: &[FileId]) -> Outlook;
}

/// A running compaction.
pub(in crate::tree) struct CompactionJob<K: VersionedKind> {
    pub(in crate::tree) tree: Arc<VersionedTree<K>>,
    pub(in crate::tree) plan: K::Plan,
    pub(in crate::tree) compaction: Compaction,
    /// What has been done so far.
    pub(in crate::tree) progress: K::Progress,
    /// The merge has ended: what follows is no reason to begin it anew.
    ended: bool,
    claim: u64,
    /// What its lists were last counted with.
    list_bytes: u64,
}

impl<K: VersionedKind> CompactionJob<K> {
    pub(super) fn new(
        tree: Arc<VersionedTree<K>>,
        claim: u64,
        plan: K::Plan,
        collected_blobs: Vec<FileId>,
    ) -> CompactionJob<K> {
        let compaction = Compaction::begin(&tree.context, collected_blobs);
        CompactionJob {
            tree,
            plan,
            compaction,
            progress: K::Progress::default(),
            ended: false,
            claim,
            list_bytes: 0,
        }
    }

    /// Installs the result of the plan by `install`, which commits it to the tree.
    pub(in crate::tree) fn install(
        &mut self,
        install: impl FnOnce(&VersionedTree<K>, &K::Plan) -> Result<()>,
    ) -> Result<Step> {
        self.ended = true;
        install(&self.tree, &self.plan)?;
        Ok(Step::Done)
    }

    /// The same for the result of a merge, which is reported. `retained` are tables of it that hold versions which
    /// only snapshots need.
    pub(in crate::tree) fn install_merged(
        &mut self,
        retained: &[Arc<Table>],
        install: impl FnOnce(&VersionedTree<K>, &K::Plan) -> Result<()>,
    ) -> Result<Step> {
        if !retained.is_empty() {
            self.tree.jobs.lock().retain(retained, &self.compaction.snapshots);
        }
        let step = self.install(install)?;
        self.compaction.end(&self.tree.context, self.plan.merge_bytes());
        Ok(step)
    }
}

impl<K: Compact> CompactionJob<K> {
    /// Whether it would copy tables from which nothing can be dropped, and no value out of a blob file.
    fn gains_nothing(&self) -> bool {
        let Compaction { collected_blobs, snapshots, .. } = &self.compaction;
        let tables = K::inputs_alone(&self.plan);
        let gains = |table: &&Arc<Table>| {
            let mut blobs = table.blobs().iter();
            blobs.any(|blob| collected_blobs.binary_search(&blob.id()).is_ok())
                || K::gains(&self.tree, table, snapshots)
        };
        !tables.is_empty() && !tables.iter().any(gains)
    }

    /// There was no room. Begins anew, if it may use the reserve.
    #[cold]
    fn begin_anew(&mut self, error: Error) -> Result<Step> {
        // What has been written goes first: its room counts.
        self.progress = K::Progress::default();
        let (tree, plan) = (&self.tree, &self.plan);
        let version = tree.version.load();
        match self.compaction.begin_anew(&tree.context, |blobs| K::outlook(plan, &version, blobs)) {
            // It would be chosen for the same blob files again, and copied without end.
            Retry::Now if self.gains_nothing() => Err(error),
            Retry::Now => Ok(Step::Again),
            Retry::Later => Ok(Step::Postponed),
            Retry::Never => Err(error),
        }
    }
}

impl<K: Compact> Job for CompactionJob<K> {
    fn step(&mut self) -> Result<Step> {
        if self.ended {
            return Ok(Step::Done);
        }
        let step = match K::step(self) {
            // A manifest that cannot grow has no use for another merge.
            Err(error @ Error::Full { .. }) if !self.ended => self.begin_anew(error),
            step => step,
        };
        let list_bytes = K::list_bytes(&self.progress);
        let before = std::mem::replace(&mut self.list_bytes, list_bytes);
        self.tree.context.recount_lists(before, list_bytes);
        step.inspect_err(|error| {
            let tree = &self.tree;
            let tables = K::quarantined_tables(&self.plan, &tree.version.load(), error);
            let now = tree.context.clock.nanos();
            let place = self.plan.place();
            tree.jobs.lock().quarantine.note_tables(error, place, tables, now);
        })
    }
}

impl<K: VersionedKind> Drop for CompactionJob<K> {
    fn drop(&mut self) {
        self.tree.context.recount_lists(self.list_bytes, 0);
        if !planted(Bug::ClaimKept) || self.ended {
            self.tree.jobs.lock().end(self.claim);
        }
    }
}

/// A job that reports what went wrong while work was looked for.
pub(super) struct Failed(pub(super) Error);

impl Job for Failed {
    fn step(&mut self) -> Result<Step> {
        Err(self.0.clone())
    }
}

/// Input entries that one step looks at.
pub(in crate::tree) const STEP_ENTRIES: u64 = 4096;

/// What becomes of a merge that there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) enum Retry {
    /// It begins anew at once.
    Now,
    /// Another one takes of the reserve: it is to end first.
    Later,
    /// It fails.
    Never,
}

/// What a compaction keeps from its beginning to its end.
pub(in crate::tree) struct Compaction {
    pub(in crate::tree) snapshots: Vec<Seqno>,
    /// Known before the snapshots: what they delete, later snapshots do not see.
    range_deletes: Arc<DurableRangeDeletes>,
    /// Blob files whose values are to be copied out.
    collected_blobs: Vec<FileId>,
    started_nanos: u64,
    written_bytes: u64,
    /// Bytes of its inputs that it has not read, since range deletes have deleted them as a whole.
    skipped_bytes: Cell<u64>,
    /// What it may take of the disk, and the most that it may write.
    room: Room,
    bytes_max: u64,
    /// While it takes of the reserve.
    reserve_turn: Option<ReserveTurn>,
}

impl Compaction {
    pub(in crate::tree) fn begin(
        context: &TreeContext,
        collected_blobs: Vec<FileId>,
    ) -> Compaction {
        let range_deletes = context.range_deletes();
        let snapshots = context.snapshots();
        let started_nanos = context.clock.nanos();
        Compaction {
            snapshots,
            range_deletes,
            collected_blobs,
            started_nanos,
            written_bytes: 0,
            skipped_bytes: Cell::new(0),
            room: Room::BeyondReserve,
            bytes_max: u64::MAX,
            reserve_turn: None,
        }
    }

    /// How a merge of its inputs is to be done.
    pub(in crate::tree) fn options(
        &self,
        context: &TreeContext,
        bottom: Bottom,
    ) -> CompactionOptions {
        let chosen = context.options();
        CompactionOptions {
            snapshots: self.snapshots.clone(),
            bottom,
            cover: Cover::new([Arc::clone(&self.range_deletes.map)], Seqno::MAX),
            context: context.merge.clone(),
            limits: FoldLimits {
                inline_bytes: chosen.blob_bytes_min as u64,
                fold_bytes_max: chosen.fold_bytes_max,
                folds_operands: true,
            },
        }
    }

    /// An input of the merge, read range by range, but for what range deletes have deleted as a whole. The ranges are
    /// ascending.
    pub(in crate::tree) fn scan(
        &self,
        table: &Arc<Table>,
        ranges: Vec<(Key, Option<Key>)>,
        chunk_bytes: usize,
    ) -> InputScan {
        let ranges = match self.range_deletes.list.is_empty() {
            true => ranges,
            false => {
                let size = |ranges: &[(Key, Option<Key>)]| {
                    let sizes = ranges.iter().map(|(lower, upper)| {
                        table_size(table, lower, upper.as_deref()).unwrap_or_default().bytes
                    });
                    sizes.sum::<u64>()
                };
                let deleted = RangeDeleted::new(&self.range_deletes, &self.snapshots);
                let before = size(&ranges);
                let left = deleted.left_of(table, ranges);
                let skipped = self.skipped_bytes.get() + before.saturating_sub(size(&left));
                self.skipped_bytes.set(skipped);
                left
            }
        };
        InputScan::new(table, ranges, chunk_bytes)
    }

    /// An output of the merge.
    ///
    /// # Errors
    /// As [`TableOutput::of_compaction`].
    pub(in crate::tree) fn output(
        &self,
        context: &TreeContext,
        filter: TableFilter,
    ) -> Result<TableOutput> {
        let bytes_max = self.bytes_max.saturating_sub(self.written_bytes);
        TableOutput::of_compaction(context, filter, self.room, bytes_max)
    }

    /// There was no room. Whether the merge is to begin anew and may take of the reserve: one at a time does, if it
    /// makes room. If there is none for the values to be copied, fewer are, or none; `outlook` tells what a merge does
    /// that copies values out of some blob files. It estimates, so the reserve may turn out to be too little as well.
    pub(in crate::tree) fn begin_anew(
        &mut self,
        context: &TreeContext,
        outlook: impl Fn(&[FileId]) -> Outlook,
    ) -> Retry {
        let files = &context.files;
        if self.reserve_turn.is_some() {
            if self.collected_blobs.is_empty() {
                return Retry::Never;
            }
            self.collected_blobs.truncate(self.collected_blobs.len() / 2);
        }
        let mut room = outlook(&self.collected_blobs).room(files);
        while room.is_none() && !self.collected_blobs.is_empty() {
            self.collected_blobs.truncate(self.collected_blobs.len() / 2);
            room = outlook(&self.collected_blobs).room(files);
        }
        let Some((room, bytes_max)) = room else { return Retry::Never };
        let turn = self.reserve_turn.take().or_else(|| files.take_reserve_turn());
        let Some(turn) = turn else { return Retry::Later };
        self.reserve_turn = Some(turn);
        (self.room, self.bytes_max, self.written_bytes) = (room, bytes_max, 0);
        self.skipped_bytes.set(0);
        Retry::Now
    }

    /// Appends a merged entry, with its key's hash, to an output.
    #[inline]
    pub(in crate::tree) fn add(
        &self,
        output: &mut TableOutput,
        hash: u64,
        entry: EntryRef<'_>,
    ) -> Result<()> {
        output.add_old(hash, entry, &self.collected_blobs)
    }

    /// Makes an output a table.
    pub(in crate::tree) fn finish(&mut self, output: TableOutput) -> Result<Arc<Table>> {
        let (table, written_bytes) = output.finish()?;
        table.note_range_deletes_applied(self.range_deletes_applied());
        self.written_bytes += written_bytes;
        Ok(table)
    }

    /// The output has nothing that range deletes up to this number delete: no snapshot needs it.
    fn range_deletes_applied(&self) -> Seqno {
        self.snapshots.first().copied().unwrap_or(Seqno::MAX).min(self.range_deletes.upto)
    }

    /// Counts bytes that were written elsewhere.
    pub(in crate::tree) fn wrote(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }

    /// Reports the compaction once its result is in the tree.
    pub(in crate::tree) fn end(&self, context: &TreeContext, read_bytes: u64) {
        let nanos = context.clock.nanos().saturating_sub(self.started_nanos);
        let read_bytes = read_bytes.saturating_sub(self.skipped_bytes.get());
        context.compacted(read_bytes, self.written_bytes, nanos);
    }
}

/// Less is not read at once, even if a job may use little memory.
const CHUNK_BYTES_MIN: usize = 4 << 10;

/// How much of each of so many inputs is read at once.
pub(in crate::tree) fn chunk_bytes(context: &TreeContext, inputs: usize) -> usize {
    let buffers = context.options().job_bytes_max as usize / (2 * inputs.max(1));
    buffers.clamp(CHUNK_BYTES_MIN, 256 << 10) & !4095
}

/// An input table, read range by range.
pub(in crate::tree) struct InputScan {
    table: Arc<Table>,
    ranges: std::vec::IntoIter<(Key, Option<Key>)>,
    chunk_bytes: usize,
    current: Option<TableScan>,
}

impl InputScan {
    /// Reads nothing yet. The ranges are ascending.
    pub(in crate::tree) fn new(
        table: &Arc<Table>,
        ranges: Vec<(Key, Option<Key>)>,
        chunk_bytes: usize,
    ) -> InputScan {
        let ranges = ranges.into_iter();
        InputScan { table: Arc::clone(table), ranges, chunk_bytes, current: None }
    }

    #[cold]
    fn next_range(&mut self) -> Result<()> {
        self.current = None;
        for (lower, upper) in self.ranges.by_ref() {
            let scan = self.table.scan(Some(&lower), upper.as_deref(), self.chunk_bytes)?;
            if scan.entry().is_some() {
                self.current = Some(scan);
                break;
            }
        }
        Ok(())
    }
}

impl EntrySource for InputScan {
    #[inline]
    fn next(&mut self) -> Result<()> {
        if let Some(scan) = &mut self.current {
            scan.next()?;
            if scan.entry().is_some() {
                return Ok(());
            }
        }
        self.next_range()
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.current.as_ref()?.entry()
    }
}
