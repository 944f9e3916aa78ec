//! [`PlacedPass`]: what a cursor over [placed keys](super::placed) hands on from run to run.
//!
//! Invariants:
//! 1. Its streams have tables of the run that it is at.
//! 2. Together its scans lease no more than an eighth of the read-ahead budget.

use std::cell::Cell;
use std::sync::Arc;

use crate::base::limits::UNIT_BYTES;
use crate::cache::PagePointer;
use crate::table::{LeafStream, Table};

/// After so many keys, a pass reads past the cache; the fewer, the smaller that is.
const KEYS_CACHED_MIN: u64 = 64;
pub(super) const KEYS_CACHED_MAX: u64 = 1024;

/// See the module's description.
#[derive(Default)]
pub(crate) struct PlacedPass {
    /// Keys that have been read one after the other.
    pub(super) keys: usize,
    /// The same, since what was read ahead could not be read.
    pub(super) ahead: usize,
    /// What was read ahead could not be read: no more than has been read is read ahead.
    pub(super) is_slow: bool,
    /// The tables that it reads leaf by leaf.
    streams: Vec<LeafStream>,
    /// A stream has failed: there are none any more.
    pub(super) has_failed: bool,
    /// Entries ahead are looked at, for the sake of values in blob files: their leaves have to be in the cache.
    pub(super) looks_ahead: Cell<bool>,
}

impl PlacedPass {
    /// The stream of a table.
    pub(super) fn stream(&mut self, table: &Arc<Table>) -> &mut LeafStream {
        let found = self.streams.iter().position(|stream| stream.table().id() == table.id());
        let at = found.unwrap_or_else(|| {
            self.streams.push(LeafStream::new(table));
            self.streams.len() - 1
        });
        &mut self.streams[at]
    }

    /// Whether a stream has a leaf, or comes to it.
    pub(super) fn has(&self, table: &Table, leaf: PagePointer) -> bool {
        let stream = self.streams.iter().find(|stream| stream.table().id() == table.id());
        stream.is_some_and(|stream| stream.has(leaf))
    }

    /// Keeps the streams of these tables, and of their scans those that take no more than their share.
    pub(super) fn retain(&mut self, tables: &[Arc<Table>]) {
        self.streams.retain(|it| tables.iter().any(|table| table.id() == it.table().id()));
        let share = self.scan_bytes_max(tables).unwrap_or_default();
        self.streams.iter_mut().for_each(|stream| stream.keep_scan(share));
    }

    /// A stream has failed.
    pub(super) fn give_up_streams(&mut self) {
        self.streams.clear();
        self.has_failed = true;
    }

    /// What could be read ahead was not.
    pub(super) fn slow_down(&mut self) {
        self.ahead = 0;
        self.is_slow = true;
    }

    /// How many bytes a scan of each of the tables may take, if the pass is so long that it leaves the cache alone: what point
    /// reads need stays there.
    pub(super) fn scan_bytes_max(&self, tables: &[Arc<Table>]) -> Option<usize> {
        let files = tables.first()?.pages().files();
        // A small cache is not given to one pass.
        let pages = files.cache.capacity_bytes() / UNIT_BYTES as u64;
        let is_long = self.keys as u64 > (pages / 16).clamp(KEYS_CACHED_MIN, KEYS_CACHED_MAX);
        let share = files.read_ahead.bytes_max() / 8 / tables.len();
        (is_long && !self.looks_ahead.get()).then_some(share)
    }

    /// Memory used, except the buffers of scans, which are leased.
    pub(super) fn memory_bytes(&self) -> usize {
        self.streams.iter().map(LeafStream::memory_bytes).sum()
    }
}
