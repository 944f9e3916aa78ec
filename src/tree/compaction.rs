//! What compactions of all kinds have in common: what they are begun with, how their inputs are read, and
//! what is reported of them.
//!
//! Invariants:
//! 1. Snapshots are asked for before an input is read: those that are taken later see nothing that could be
//!    dropped (see `merge`).

use std::sync::Arc;

use super::TreeContext;
use super::extent::Key;
use super::outlook::Outlook;
use super::output::TableOutput;
use crate::base::entry::{EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::cache::{ReserveTurn, Room};
use crate::merge::{Bottom, CompactionOptions, FoldLimits};
use crate::table::{Table, TableScan};

/// Input entries that one step looks at.
pub(super) const STEP_ENTRIES: u64 = 4096;

/// What becomes of a merge that there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// It begins anew at once.
    Now,
    /// Another one takes of the reserve: it is to end first.
    Later,
    /// It fails.
    Never,
}

/// What a compaction keeps from its beginning to its end.
pub(super) struct Compaction {
    pub(super) snapshots: Vec<Seqno>,
    /// Blob files whose values are to be copied out.
    collected_blobs: Vec<FileId>,
    started_nanos: u64,
    written_bytes: u64,
    /// What it may take of the disk, and the most that it may write.
    room: Room,
    bytes_max: u64,
    /// While it takes of the reserve.
    reserve_turn: Option<ReserveTurn>,
}

impl Compaction {
    pub(super) fn begin(context: &TreeContext, collected_blobs: Vec<FileId>) -> Compaction {
        let snapshots = context.snapshots();
        let started_nanos = context.clock.nanos();
        Compaction {
            snapshots,
            collected_blobs,
            started_nanos,
            written_bytes: 0,
            room: Room::BeyondReserve,
            bytes_max: u64::MAX,
            reserve_turn: None,
        }
    }

    /// How a merge of its inputs is to be done.
    pub(super) fn options(&self, context: &TreeContext, bottom: Bottom) -> CompactionOptions {
        CompactionOptions {
            snapshots: self.snapshots.clone(),
            bottom,
            context: context.merge.clone(),
            limits: FoldLimits {
                inline_bytes: context.options.blob_bytes_min as u64,
                fold_bytes_max: context.options.fold_bytes_max,
            },
        }
    }

    /// An output of the merge.
    ///
    /// # Errors
    /// As [`TableOutput::of_compaction`].
    pub(super) fn output(&self, context: &TreeContext, filter: bool) -> Result<TableOutput> {
        let bytes_max = self.bytes_max.saturating_sub(self.written_bytes);
        TableOutput::of_compaction(context, filter, self.room, bytes_max)
    }

    /// There was no room. Whether the merge is to begin anew and may take of the reserve: one at a time does, if it
    /// makes room. If there is none for the values to be copied, fewer are, or none; `outlook` tells what a merge does
    /// that copies values out of some blob files.
    pub(super) fn begin_anew(
        &mut self,
        context: &TreeContext,
        outlook: impl Fn(&[FileId]) -> Outlook,
    ) -> Retry {
        if self.reserve_turn.is_some() {
            return Retry::Never;
        }
        let files = &context.files;
        let mut room = outlook(&self.collected_blobs).room(files);
        while room.is_none() && !self.collected_blobs.is_empty() {
            self.collected_blobs.truncate(self.collected_blobs.len() / 2);
            room = outlook(&self.collected_blobs).room(files);
        }
        let Some((room, bytes_max)) = room else { return Retry::Never };
        let Some(turn) = files.take_reserve_turn() else { return Retry::Later };
        self.reserve_turn = Some(turn);
        (self.room, self.bytes_max, self.written_bytes) = (room, bytes_max, 0);
        Retry::Now
    }

    /// Appends a merged entry, with its key's hash, to an output.
    #[inline]
    pub(super) fn add(
        &self,
        output: &mut TableOutput,
        hash: u64,
        entry: EntryRef<'_>,
    ) -> Result<()> {
        output.add_old(hash, entry, &self.collected_blobs)
    }

    /// Makes an output a table.
    pub(super) fn finish(&mut self, output: TableOutput) -> Result<Arc<Table>> {
        let (table, written_bytes) = output.finish()?;
        self.written_bytes += written_bytes;
        Ok(table)
    }

    /// Counts bytes that were written elsewhere.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.written_bytes += bytes;
    }

    /// Reports the compaction once its result is in the tree.
    pub(super) fn end(&self, context: &TreeContext, read_bytes: u64) {
        let nanos = context.clock.nanos().saturating_sub(self.started_nanos);
        context.compacted(read_bytes, self.written_bytes, nanos);
    }
}

/// How much of each of so many inputs is read at once.
pub(super) fn chunk_bytes(context: &TreeContext, inputs: usize) -> usize {
    let buffers = context.options.job_bytes_max as usize / (2 * inputs.max(1));
    buffers.clamp(16 << 10, 256 << 10) & !4095
}

/// An input table, read range by range.
pub(super) struct InputScan {
    table: Arc<Table>,
    ranges: std::vec::IntoIter<(Key, Option<Key>)>,
    chunk_bytes: usize,
    current: Option<TableScan>,
}

impl InputScan {
    /// Reads nothing yet. The ranges are ascending.
    pub(super) fn new(
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
