//! Runs: the sorted parts of a tree that an iterator merges, whatever they are stored in.
//!
//! Invariants:
//! 1. A call per entry is a `match`, never a call through a table of functions.

use std::sync::Arc;

use super::placed::{PlacedCursor, PlacedRun};
use super::placed_pass::PlacedPass;
#[cfg(feature = "example")]
use super::sorted::{Sorted, SortedCursor};
use super::union::{UnionCursor, union_hole};
use crate::base::entry::{Cursor, EntryRef};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::cache::PageMiss;
use crate::merge::MergeSource;
use crate::table::{BlobPointer, Hole, HoleAt, Table, TableCursor};

/// A sorted part of a tree.
#[derive(Clone)]
pub(crate) enum Run {
    Table(Arc<Table>),
    #[cfg(feature = "example")]
    Sorted(Arc<Sorted>),
    Placed(Arc<PlacedRun>),
    /// Tables that may have entries in common.
    Union(Arc<[Arc<Table>]>),
}

impl Run {
    /// The first key of an entry.
    pub(crate) fn first_key(&self) -> &[u8] {
        match self {
            Run::Table(table) => table.first_key(),
            #[cfg(feature = "example")]
            Run::Sorted(set) => set.first_key(),
            Run::Placed(run) => run.first_key(),
            Run::Union(tables) => {
                tables.iter().map(|table| table.first_key()).min().unwrap_or_default()
            }
        }
    }

    /// The last key of an entry.
    pub(crate) fn last_key(&self) -> &[u8] {
        match self {
            Run::Table(table) => table.last_key(),
            #[cfg(feature = "example")]
            Run::Sorted(set) => set.last_key(),
            Run::Placed(run) => run.last_key(),
            Run::Union(tables) => {
                tables.iter().map(|table| table.last_key()).max().unwrap_or_default()
            }
        }
    }

    pub(crate) fn cursor<M>(&self) -> RunCursor<M> {
        match self {
            Run::Table(table) => RunCursor::Table(Box::new(table.cursor())),
            #[cfg(feature = "example")]
            Run::Sorted(set) => RunCursor::Sorted(SortedCursor::new(set)),
            Run::Placed(run) => RunCursor::Placed(Box::new(PlacedCursor::new(run))),
            Run::Union(tables) => RunCursor::Union(Box::new(UnionCursor::new(tables))),
        }
    }

    /// The first range of keys at or behind a place whose entries cannot be read.
    ///
    /// # Errors
    /// If the run cannot tell where it is.
    pub(crate) fn hole(&self, at: HoleAt<'_>) -> Result<Option<Hole>> {
        match self {
            Run::Table(table) => table.hole(at),
            #[cfg(feature = "example")]
            Run::Sorted(_) => Ok(None),
            Run::Placed(run) => run.hole(at),
            Run::Union(tables) => union_hole(tables, at),
        }
    }
}

/// A cursor over a run or a memtable, whose cursor `M` is of a module above this one.
pub(crate) enum RunCursor<M> {
    Memtable(Box<M>),
    Table(Box<TableCursor>),
    #[cfg(feature = "example")]
    Sorted(SortedCursor),
    Placed(Box<PlacedCursor>),
    Union(Box<UnionCursor>),
}

macro_rules! each {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            RunCursor::Memtable($cursor) => $call,
            RunCursor::Table($cursor) => $call,
            #[cfg(feature = "example")]
            RunCursor::Sorted($cursor) => $call,
            RunCursor::Placed($cursor) => $call,
            RunCursor::Union($cursor) => $call,
        }
    };
}

impl<M: Cursor> Cursor for RunCursor<M> {
    fn seek_first(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_first())
    }

    fn seek_last(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_last())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        each!(self, cursor => cursor.seek(key))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        each!(self, cursor => cursor.seek_before(key))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        each!(self, cursor => cursor.prev())
    }

    // Called several times for each pair of a scan. As a call, or with all cursors in each caller, it cost a tenth.
    #[inline(always)]
    fn entry(&self) -> Option<EntryRef<'_>> {
        match self {
            RunCursor::Memtable(cursor) => cursor.entry(),
            RunCursor::Table(cursor) => cursor.entry(),
            _ => self.entry_apart(),
        }
    }
}

impl<M: Cursor> MergeSource for RunCursor<M> {
    fn lower_bound(&self, from: Option<&[u8]>) -> Option<&[u8]> {
        match self {
            RunCursor::Memtable(_) => None,
            RunCursor::Table(cursor) => {
                let first = cursor.table().first_key();
                // Only a bound ahead of the sought key puts anything off.
                (from.is_none_or(|from| first > from)).then_some(first)
            }
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => None,
            RunCursor::Placed(_) | RunCursor::Union(_) => None,
        }
    }
}

impl<M: Cursor> RunCursor<M> {
    /// [`Cursor::entry`] of what few kinds of trees have.
    #[inline(never)]
    fn entry_apart(&self) -> Option<EntryRef<'_>> {
        each!(self, cursor => cursor.entry())
    }
}

impl<M> RunCursor<M> {
    /// Memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            RunCursor::Memtable(cursor) => size_of_val(&**cursor),
            RunCursor::Table(cursor) => cursor.memory_bytes(),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => 0,
            RunCursor::Placed(cursor) => cursor.memory_bytes(),
            RunCursor::Union(cursor) => cursor.memory_bytes(),
        }
    }

    /// Pages that it has read one by one.
    pub(crate) fn pages_read(&self) -> u64 {
        match self {
            RunCursor::Memtable(_) => 0,
            RunCursor::Table(cursor) => u64::from(cursor.pages_read()),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => 0,
            RunCursor::Placed(cursor) => cursor.pages_read(),
            RunCursor::Union(cursor) => cursor.pages_read(),
        }
    }

    /// Calls `f` with entries that it will probably reach next, and with their pointers if they are puts in blob files:
    /// at least `count` of these, if the loaded leaf has so many.
    pub(crate) fn entries_ahead(
        &self,
        forward: bool,
        count: usize,
        f: &mut dyn FnMut(Vec<u8>, Seqno, Option<BlobPointer>),
    ) {
        match self {
            RunCursor::Memtable(_) => {}
            RunCursor::Table(cursor) => cursor.entries_ahead(forward, count, f),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => {}
            RunCursor::Placed(cursor) => cursor.entries_ahead(forward, count, f),
            RunCursor::Union(_) => {}
        }
    }

    /// Told to a cursor that goes on with a pass over other ranges, if there was one, and no further than to `limit`.
    pub(crate) fn go_on(
        &mut self,
        before: &mut Option<Box<PlacedPass>>,
        limit: Option<&[u8]>,
        forward: bool,
    ) {
        if let RunCursor::Placed(cursor) = self {
            cursor.go_on(
                before.take().map_or_else(PlacedPass::default, |pass| *pass),
                limit,
                forward,
            );
        }
    }

    /// What it has read, for [`RunCursor::go_on`].
    pub(crate) fn take_pass(&mut self) -> Option<Box<PlacedPass>> {
        match self {
            RunCursor::Placed(cursor) => Some(Box::new(cursor.take_pass())),
            _ => None,
        }
    }

    /// Told to a cursor that reads no more, if none goes on where it is.
    pub(crate) fn end(&self) {
        if let RunCursor::Placed(cursor) = self {
            cursor.end();
        }
    }

    /// Reads no page ahead, and none that is only behind `limit`.
    pub(crate) fn go_carefully(&mut self, limit: Option<&[u8]>, forward: bool) {
        match self {
            RunCursor::Memtable(_) => {}
            RunCursor::Table(cursor) => cursor.go_carefully(limit, forward),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => {}
            RunCursor::Placed(cursor) => cursor.go_carefully(limit, forward),
            RunCursor::Union(cursor) => cursor.go_carefully(limit, forward),
        }
    }

    /// Returns true if [`RunCursor::prefetch`] can do something for a seek to `key`.
    pub(crate) fn can_prefetch(&self, key: &[u8]) -> bool {
        match self {
            RunCursor::Memtable(_) => false,
            RunCursor::Table(cursor) => {
                cursor.table().first_key() <= key && cursor.table().last_key() >= key
            }
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => false,
            RunCursor::Placed(_) | RunCursor::Union(_) => false,
        }
    }

    /// Returns true if a seek forward is worth reading ahead for.
    pub(crate) fn expects_more(&self) -> bool {
        match self {
            RunCursor::Memtable(_) => false,
            RunCursor::Table(cursor) => cursor.expects_more(),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => false,
            RunCursor::Placed(_) | RunCursor::Union(_) => false,
        }
    }

    /// Adds the pages that a seek to `key` needs next and that are not cached to `misses`. Returns true once it
    /// needs none.
    pub(crate) fn prefetch(
        &mut self,
        key: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
        misses: &mut Vec<PageMiss>,
    ) -> Result<bool> {
        match self {
            RunCursor::Memtable(_) => Ok(true),
            RunCursor::Table(cursor) => cursor.prefetch(key, upper, forward, misses),
            #[cfg(feature = "example")]
            RunCursor::Sorted(_) => Ok(true),
            RunCursor::Placed(_) | RunCursor::Union(_) => Ok(true),
        }
    }
}
