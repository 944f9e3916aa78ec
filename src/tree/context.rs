//! A tree's keyspace as the tree uses it: questions, reports, counters, and durable edits.

use std::sync::Arc;

use super::{TreeContext, TreeOptions, TreeVersion};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit, Ticket};
use crate::merge::DurableRangeDeletes;
use crate::table::SampleLimit;

/// How many keys all tables' samples should have together.
const SAMPLE_KEYS_ALL: u64 = 8192;
/// How many a table's sample may always have.
const SAMPLE_KEYS_MIN: u64 = 64;
/// The same where memory is scarce.
const SAMPLE_KEYS_SCARCE: u64 = 16;
/// How many it may have in a tree of few tables, however small it is.
const SAMPLE_KEYS_FEW: u64 = 256;
/// The same of a large table.
const SAMPLE_KEYS_MAX: u64 = 1024;
/// How many all tables' samples have together at most, if they grow with their tables: each is looked at after each change.
const SAMPLE_KEYS_GROWN: u64 = 4096;
/// A table has a key for each so many bytes, at least, if the tree has few tables: its sample is a small part of it.
const SAMPLE_KEY_BYTES: u64 = 1024;

impl TreeContext {
    /// The options as they are now. A piece of work asks once, and so sees options of one moment.
    pub(super) fn options(&self) -> Arc<TreeOptions> {
        self.options.load_full()
    }

    /// The live snapshots, ascending, the newest visible state last.
    pub(super) fn snapshots(&self) -> Vec<Seqno> {
        self.observer.upgrade().map(|observer| observer.snapshots()).unwrap_or_default()
    }

    /// The range deletes of what the tree has, asked before the snapshots.
    pub(super) fn range_deletes(&self) -> Arc<DurableRangeDeletes> {
        self.observer.upgrade().map(|observer| observer.range_deletes()).unwrap_or_default()
    }

    /// A new version is to be read from now on.
    pub(super) fn installed(&self, version: Arc<dyn TreeVersion>) {
        if let Some(observer) = self.observer.upgrade() {
            observer.installed(version);
        }
    }

    /// The number of keys that the sample of a new table should have: a tree of few tables needs more of each, and so does
    /// one of which a few keys hold most. Where memtables are small, merged tables are larger than those.
    pub(super) fn sample_limit(&self) -> SampleLimit {
        let times = self.counters.sample_times.load(Ordering::Relaxed).max(1);
        let few = (self.options().memtable_bytes / SAMPLE_KEY_BYTES)
            .clamp(SAMPLE_KEYS_FEW, SAMPLE_KEYS_MAX);
        let tables = self.counters.tables.load(Ordering::Relaxed);
        let share = self.sample_share();
        let keys = |most: u64| {
            let keys =
                (times * SAMPLE_KEYS_ALL / (tables + 1)).clamp(SAMPLE_KEYS_MIN, times * most);
            ((keys as f64 * share) as u64).max(SAMPLE_KEYS_SCARCE) as usize
        };
        let grown = (SAMPLE_KEYS_GROWN / (tables + 1)).clamp(few, SAMPLE_KEYS_MAX);
        SampleLimit {
            keys_min: keys(few),
            keys_max: keys(grown),
            bytes_per_key: (SAMPLE_KEY_BYTES as f64 / (times as f64 * share).max(0.01)) as u64,
        }
    }

    /// For what part of the keys that would be sampled, and followed, there is memory.
    pub(super) fn sample_share(&self) -> f64 {
        match self.counters.sample_percent.load(Ordering::Relaxed) {
            0 => 1.0,
            percent => percent as f64 / 100.0,
        }
    }

    /// Of the tree as it is now.
    pub(super) fn count_tables(&self, tables: u64, sample_times: u64) {
        self.counters.tables.store(tables, Ordering::Relaxed);
        self.counters.sample_times.store(sample_times, Ordering::Relaxed);
    }

    /// A memtable has been packed.
    pub(super) fn packed(&self, written_bytes: u64) {
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.counters.flush_written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }

    /// A compaction that was counted with lists of `before` bytes keeps `now`.
    pub(super) fn recount_lists(&self, before: u64, now: u64) {
        if now == before {
            return;
        }
        self.files.recount_lists(before, now);
        if now > before
            && let Some(observer) = self.observer.upgrade()
        {
            observer.lists_grew();
        }
    }

    /// A compaction has ended.
    pub(super) fn compacted(&self, read_bytes: u64, written_bytes: u64, nanos: u64) {
        let counters = &self.counters;
        counters.compactions.fetch_add(1, Ordering::Relaxed);
        counters.compaction_read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        counters.compaction_written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        if let Some(observer) = self.observer.upgrade() {
            observer.compacted(read_bytes, written_bytes, nanos);
        }
    }
}

/// Makes the names of new data files durable: before the record that relies on them.
pub(super) fn sync_names(context: &TreeContext) -> Result<()> {
    match planted(Bug::DataNamesNotSynced) {
        true => Ok(()),
        false => context.files.vfs.sync_dir(context.files.dir()),
    }
}

/// Submits a tree edit to the manifest, with the number up to which the tree holds everything from then on. The caller
/// holds the tree's change lock; the files that the edit names are durable, and so are their names ([`sync_names`]).
/// Returns `None` if the edit `after`, on which this one builds, has been refused.
///
/// # Errors
/// As [`crate::manifest::Manifest::submit`]; `Closed` if the keyspace has been dropped.
pub(super) fn submit_edit(
    context: &TreeContext,
    payload: Vec<u8>,
    flushed: Seqno,
    after: Option<Ticket>,
) -> Result<Option<Ticket>> {
    let observer = context.observer.upgrade();
    if observer.is_some_and(|observer| observer.is_dropped()) {
        // The manifest knows it no more, or soon will not.
        let what = format!("keyspace {} (it was dropped)", context.keyspace);
        return Err(Error::Closed { what });
    }
    let id = context.keyspace;
    let edit = Edit {
        next_file_id: Some(context.files.next_file_id()),
        keyspaces: vec![
            KeyspaceEdit { id, change: KeyspaceChange::TreeEdit(payload) },
            KeyspaceEdit { id, change: KeyspaceChange::Flushed(flushed) },
        ],
        ..Edit::default()
    };
    context.manifest.submit(&edit, after)
}

/// Waits until an edit is decided. The caller does not hold the tree's change lock.
///
/// # Errors
/// It is unknown whether the record is on the disk. That has set the store's latch, and no file is deleted before the
/// next open has seen.
pub(super) fn wait_for_edit(context: &TreeContext, ticket: Ticket) -> Result<()> {
    context.manifest.wait_for(ticket)
}

/// Submits an edit and waits until it is durable: for a kind that makes one change after the other.
#[cfg(feature = "example")]
pub(super) fn commit_edit(context: &TreeContext, payload: Vec<u8>, flushed: Seqno) -> Result<()> {
    let Some(ticket) = submit_edit(context, payload, flushed, None)? else { return Ok(()) };
    wait_for_edit(context, ticket)?;
    context.manifest.take_decision(ticket).unwrap_or(Ok(()))
}
