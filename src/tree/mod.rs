//! The trees, and the one trait by which the store knows them.
//!
//! A tree holds the part of one keyspace that has left the memtables: it takes packed memtables in commit order, answers
//! reads from immutable versions, and offers its upkeep as jobs. Kinds live in modules of their own
//! that do not name each other; [`kinds`] is the table of them.
//!
//! Invariants:
//! 1. A version is immutable; reading it takes no lock.
//! 2. A change is durable in the manifest before a version shows it. Versions are shown in the order in which the
//!    changes were submitted to the manifest.
//! 3. A version holds every entry of its keyspace up to its `flushed` number, and none above.
//! 4. A tree may keep operations of its keyspace that have not left the memtables ([`OperationLog`]): the journal
//!    merges them with its own.

mod context;
#[cfg(test)]
mod cost_tests;
mod dead_blobs;
pub(crate) mod description;
#[cfg(any(test, feature = "fuzz"))]
mod edits;
#[cfg(feature = "example")]
mod example;
mod files;
mod flsm;
pub(crate) mod kinds;
mod live;
mod operation_log;
pub(crate) mod options;
mod outlook;
mod output;
mod own_options;
mod placed;
pub(crate) mod placed_pass;
mod range;
mod range_deleted;
#[cfg(test)]
mod request_tests;
pub(crate) mod run;
mod slm;
#[cfg(feature = "example")]
mod sorted;
mod space;
mod stb;
#[cfg(test)]
mod test_support;
mod tph;
mod trunk;
mod union;
mod versioned;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::base::counter::ShardedCounters;
use crate::base::entry::{EntryRef, EntrySource};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::sync::ArcSwap;
use crate::base::sync::plain::AtomicU64;
use crate::cache::{Compression, DataFiles, ReadContext};
use crate::jobs::{Clock, Job};
use crate::manifest::Manifest;
use crate::merge::{DurableRangeDeletes, MergeContext, RangeDeletes};
use crate::table::{BlobFiles, Origin, Table};
use description::TreeDescription;
pub(crate) use operation_log::{BadBatch, Logged, LoggedBatch, OperationLog, OperationSource};
use own_options::OwnValues;
use run::Run;

use kinds::TreeKind;

/// The options of a tree. None of them fixes what is on the disk: all may change while the tree is open.
#[derive(Debug, Clone)]
pub(crate) struct TreeOptions {
    /// It never changes.
    pub(crate) kind: TreeKind,
    /// What new tables say of the keyspace.
    pub(crate) origin: Arc<Origin>,
    pub(crate) compression: Compression,
    /// The size at which memtables are frozen: what one incorporation brings, at most.
    pub(crate) memtable_bytes: u64,
    /// The options that the kind has alone.
    pub(crate) own: OwnValues,
    /// Whether what iterators read too much of is merged.
    pub(crate) seek_compaction: bool,
    /// Values and operands of at least this many bytes are in blob files; at most `INLINE_BYTES_MAX`.
    pub(crate) blob_bytes_min: usize,
    /// Disk bytes per live byte, in percent, above which space is reclaimed.
    pub(crate) space_amplification_max_percent: u64,
    /// Merges for reads that run at once.
    pub(crate) merges_for_reads_max: usize,
    /// Memory that one job may use for buffers.
    pub(crate) job_bytes_max: u64,
    /// The most bytes that a compaction folds at once.
    pub(crate) fold_bytes_max: u64,
}

/// Tells the keyspace of changes.
pub(crate) trait TreeObserver: Send + Sync {
    /// A new version is to be read from now on.
    fn installed(&self, version: Arc<dyn TreeVersion>);
    /// A compaction has ended.
    fn compacted(&self, read_bytes: u64, written_bytes: u64, nanos: u64);
    /// The live snapshots, ascending, with the newest visible number last.
    fn snapshots(&self) -> Vec<Seqno>;
    /// The range deletes that are durable, of everything that the tree has. Asked before the snapshots.
    fn range_deletes(&self) -> Arc<DurableRangeDeletes> {
        Arc::default()
    }
    /// Whether the keyspace has been dropped. Whoever is told no, with the change lock held, has submitted his change
    /// before the manifest is told of the drop.
    fn is_dropped(&self) -> bool;
    /// Compactions keep longer lists than before ([`DataFiles::list_bytes`](crate::cache::DataFiles::list_bytes)).
    fn lists_grew(&self) {}
}

/// The counters of a tree.
#[derive(Default)]
pub(crate) struct TreeCounters {
    pub(crate) flush_written_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) compaction_read_bytes: AtomicU64,
    pub(crate) compaction_written_bytes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    /// Probes of filters, the false positives among them, and reads that iterators wasted. These alone are counted for
    /// every read. A sharded counter uses 4 KiB, which thousands of keyspaces have to have.
    reads: ShardedCounters<3>,
    /// Tables of the newest version.
    pub(crate) tables: AtomicU64,
    /// How many times as many sampled keys the estimate of what is live wants as usual, if more than once.
    pub(crate) sample_times: AtomicU64,
    /// For what part of the keys that would be sampled there is memory, in percent; 0: for all.
    pub(crate) sample_percent: AtomicU64,
    /// Bytes of the mapped index that the store knows of.
    pub(crate) noted_index_bytes: AtomicU64,
}

impl TreeCounters {
    /// Counts what one lookup has asked of filters.
    #[inline]
    pub(crate) fn count_filters(&self, probes: u64, false_positives: u64) {
        self.reads.add(0, probes);
        if false_positives > 0 {
            self.reads.add(1, false_positives);
        }
    }

    /// Counts tables that an iterator opened beyond the one that would do.
    #[inline]
    fn count_wasted_reads(&self, reads: u64) {
        self.reads.add(2, reads);
    }

    fn wasted_reads(&self) -> u64 {
        self.reads.sum(2)
    }

    pub(crate) fn filter_probes(&self) -> u64 {
        self.reads.sum(0)
    }

    pub(crate) fn filter_false_positives(&self) -> u64 {
        self.reads.sum(1)
    }
}

/// What a tree is opened with.
#[derive(Clone)]
pub(crate) struct TreeContext {
    pub(crate) keyspace: KeyspaceId,
    /// The present options: see [`TreeContext::options`]. Changed by [`Tree::set_options`] alone.
    pub(crate) options: Arc<ArcSwap<TreeOptions>>,
    /// How merge operands are folded.
    pub(crate) merge: MergeContext,
    pub(crate) files: Arc<DataFiles>,
    pub(crate) blobs: Arc<BlobFiles>,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) counters: Arc<TreeCounters>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) observer: Weak<dyn TreeObserver>,
}

/// How far a tree is behind, and how large it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TreeState {
    /// See [`Tree::backlog`], of the tree alone.
    pub(crate) backlog: f64,
    pub(crate) compaction_pending_bytes: u64,
    pub(crate) tables: u64,
    pub(crate) entries: u64,
    pub(crate) disk_bytes: u64,
    /// What the data files would take if they held live pairs alone (estimate).
    pub(crate) live_bytes: u64,
    /// Keys that have a value (estimate).
    pub(crate) live_keys: u64,
    /// Of what was incorporated lately, the share of the bytes that took the place of others.
    pub(crate) superseding_share: f64,
    pub(crate) memory_bytes: u64,
    /// Of that, what samples of keys take.
    pub(crate) sample_bytes: u64,
    /// An index in a file, of which a part is in memory.
    pub(crate) mapped_index: MappedIndex,
}

impl TreeState {
    /// Memory that the tree uses, with all of its index. It does not depend on what else there is.
    pub(crate) fn whole_memory_bytes(&self) -> u64 {
        self.memory_bytes - self.mapped_index.memory_bytes() + self.mapped_index.bytes
    }
}

/// Entries that will come to a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntries {
    pub(crate) entries: u64,
    /// Bytes of their keys and values.
    pub(crate) data_bytes: u64,
    /// More of them may come, with records of so many bytes in the journal.
    pub(crate) record_bytes: u64,
}

/// An index that is mapped from a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MappedIndex {
    pub(crate) bytes: u64,
    /// No more of it than this stays in memory: see [`Tree::set_index_memory`].
    pub(crate) memory_bytes_max: u64,
}

impl MappedIndex {
    /// What counts as memory of the tree.
    pub(crate) fn memory_bytes(self) -> u64 {
        self.bytes.min(self.memory_bytes_max)
    }
}

/// The sizes of a packed memtable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PackedBytes {
    /// Bytes of the memtable's keys and values.
    pub(crate) data: u64,
    /// Bytes written to files.
    pub(crate) written: u64,
}

/// A packed memtable: its files are durable, but not yet part of the tree that packed it.
pub(crate) trait Packed: Send + Sync {
    /// Its sizes.
    fn bytes(&self) -> PackedBytes;

    /// Makes it part of the tree: everything up to `flushed` is now in the tree. Called in commit order.
    fn incorporate(self: Box<Self>, flushed: Seqno) -> Result<()>;
}

/// The runs that hold a range of keys.
pub(crate) struct RangeRuns {
    /// The first key of the range.
    pub(crate) lower: Arc<[u8]>,
    /// The first key behind it.
    pub(crate) upper: Option<Arc<[u8]>>,
    /// Every run that may hold an entry of the range, youngest first. Their entries outside it do not count.
    pub(crate) runs: Vec<Run>,
}

/// The tables that may hold an entry of a range of keys.
pub(crate) struct RangeTables {
    /// The first key behind the range.
    pub(crate) upper: Option<Arc<[u8]>>,
    pub(crate) tables: Vec<Arc<Table>>,
}

impl RangeRuns {
    /// Returns true if an iterator advances by this range: the next place that it asks for is another. A tree's bounds
    /// are checked when it is opened and whenever it changes, so this always holds. It is asserted all the same, for one
    /// comparison per range: where it did not hold, an iterator would loop endlessly.
    pub(crate) fn advances(&self, asked: RangeAt<'_>) -> bool {
        match asked {
            RangeAt::Key(key) => self.upper.as_deref().is_none_or(|upper| key < upper),
            RangeAt::Before(key) => key.is_none_or(|key| *self.lower < *key),
        }
    }
}

/// The files of a checkpoint that is being made.
pub(crate) trait CheckpointFiles {
    /// Adds a file that never changes: by a hard link, or a copy where the file system cannot make one. A file that
    /// has been added before is left as it is.
    fn link(&mut self, file: &Path) -> Result<()>;

    /// Adds a file of this name with these contents, durably.
    fn write(&mut self, file: &Path, contents: &[u8]) -> Result<()>;
}

/// Which range of keys is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeAt<'a> {
    /// The range that holds this key.
    Key(&'a [u8]),
    /// The range that holds the keys just below this one, or the last one.
    Before(Option<&'a [u8]>),
}

/// One immutable state of a tree.
pub(crate) trait TreeVersion: Send + Sync {
    /// Everything up to this number has been incorporated.
    fn flushed(&self) -> Seqno;

    /// Calls `f` with the versions of `key` numbered at most `snapshot`, newest first, until it
    /// breaks. `hash` is the key's.
    fn get(
        &self,
        key: &[u8],
        hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        f: &mut dyn FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Whether `key` has a value at `snapshot`, if the tree knows that without reading a page. Merge operands add up to one.
    fn presence(&self, _key: &[u8], _snapshot: Seqno) -> Result<Option<bool>> {
        Ok(None)
    }

    /// A range of keys with a key, or one that ends at a key or behind it, with its runs: see [`RangeAt`]. The tree counts it as a read of the range: what is read from
    /// many runs is compacted. They are read at `snapshot`, which is registered.
    fn runs_at(&self, at: RangeAt<'_>, snapshot: Seqno) -> RangeRuns;

    /// The tables that may hold an entry of a range of keys that has `key`, counted by no one. `None` if the kind has none.
    fn tables_at(&self, _key: &[u8]) -> Option<RangeTables> {
        None
    }

    /// Every data file that the version needs.
    fn files(&self) -> Vec<PathBuf>;

    /// Writes the version down in the directory of a checkpoint, under the names of [`TreeVersion::files`]. By
    /// default the copy has the files themselves: a kind whose files change in place writes what this version
    /// holds.
    fn write_down(&self, copy: &mut dyn CheckpointFiles) -> Result<()> {
        self.files().iter().try_for_each(|file| copy.link(file))
    }

    /// What it looks like.
    fn describe(&self) -> Result<TreeDescription>;

    /// Reads it and calls `problem` for what is wrong; returns files, pages and entries read.
    fn check(&self, scope: CheckScope<'_>, problem: &mut dyn FnMut(Error)) -> CheckCounts;
}

/// Reports a node (or guard) that contradicts itself or its neighbours. The manifest is the only file that has nodes. It
/// is named as a whole, by offset 0: where in it the edit lies that defines the node is known to those alone who read it.
fn wrong_node(
    manifest: &Path,
    node: u64,
    what: &'static str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Error {
    match node {
        // Not numbered yet: a change is making it.
        0 => Error::corruption(manifest, 0, what, expected, format_args!("{found} in a new node")),
        _ => Error::corruption(manifest, 0, what, expected, format_args!("{found} in node {node}")),
    }
}

/// What a check is to read, and what it has to know.
#[derive(Clone, Copy)]
pub(crate) struct CheckScope<'a> {
    /// The file that has the nodes.
    pub(crate) manifest: &'a Path,
    /// Everything is read. Otherwise only what does not need the tables' pages.
    pub(crate) full: bool,
    /// What they delete need not be found.
    pub(crate) range_deletes: &'a RangeDeletes,
}

#[cfg(test)]
impl CheckScope<'_> {
    /// Everything, in a keyspace without range deletes.
    pub(crate) fn full(manifest: &Path) -> CheckScope<'_> {
        static NONE: std::sync::OnceLock<RangeDeletes> = std::sync::OnceLock::new();
        CheckScope { manifest, full: true, range_deletes: NONE.get_or_init(RangeDeletes::default) }
    }
}

/// What a check has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CheckCounts {
    pub(crate) files: u64,
    pub(crate) pages: u64,
    pub(crate) entries: u64,
}

/// Holds a tree's structure still. Whoever has it waits for no disk.
pub(crate) trait ChangeLock {
    /// One tree edit that says all that the edits submitted so far say; `None` if there were none.
    fn snapshot(&self) -> Option<Vec<u8>>;

    /// The same of the edits that the newest version shows. They are durable. By default, that is all: for kinds that hold
    /// the lock until a change is shown.
    fn shown(&self) -> Option<Vec<u8>> {
        self.snapshot()
    }
}

/// The background threads, as who calls [`Tree::compact`] sees them. They may be busy, or stopped.
pub(crate) trait Helpers {
    /// Says that there is work for them.
    fn invite(&self);

    /// The caller is between two steps of its own. Helpers that are no threads do a step now.
    fn interleave(&self);

    /// Lets them make progress: the caller cannot go on before they have.
    ///
    /// # Errors
    /// If the caller has to give up.
    fn wait(&self) -> Result<()>;
}

/// No helpers: others are in the way at most.
impl<F: Fn() -> Result<()>> Helpers for F {
    fn invite(&self) {}

    fn interleave(&self) {}

    fn wait(&self) -> Result<()> {
        self()
    }
}

/// A tree.
pub(crate) trait Tree: Send + Sync {
    /// The newest version.
    fn version(&self) -> Arc<dyn TreeVersion>;

    /// Writes a frozen memtable's entries (in order) as tables. May run for several memtables at
    /// once.
    fn pack(self: Arc<Self>, entries: &mut dyn PackSource) -> Result<Box<dyn Packed>>;

    /// The most urgent job that is not running yet.
    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>>;

    /// Whether `next_job` would find something.
    fn has_work(&self) -> bool;

    /// Adds to the work what is worth it only while nobody writes. It is forgotten with the next memtable.
    fn settle(&self) {}

    /// Ends the quarantine of places that there was no room for. Returns the last of their errors.
    fn retry_refused(&self) -> Option<Error>;

    /// Ends the quarantine of damaged places.
    fn retry_damaged(&self);

    /// Returns true, once for each place, if a place is quarantined for this damage.
    fn tell_damage(&self, error: &Error) -> bool;

    /// Compacts everything in `[lower, upper)` down to one version a key (and snapshot), on the calling thread and on
    /// those of `helpers`, which find a part of it by [`Tree::next_job`].
    fn compact(
        self: Arc<Self>,
        lower: &[u8],
        upper: Option<&[u8]>,
        helpers: &dyn Helpers,
    ) -> Result<()>;

    /// How far behind it is, with frozen memtables of so many bytes: 0 if there is nothing to do; at 1, writers
    /// must not go on before something has been done.
    fn backlog(&self, frozen_bytes: u64) -> f64;

    /// How far behind and how large it is.
    fn state(&self) -> TreeState;

    /// From now on new work follows these options. The manifest has them already. Work that is under way may end by
    /// the options with which it began.
    fn set_options(&self, options: TreeOptions);

    /// An index that is mapped from a file.
    fn mapped_index(&self) -> MappedIndex {
        MappedIndex::default()
    }

    /// From now on, about so much of an index that is mapped from a file may stay in memory at most; more, if that is little.
    /// Returns how much. What is there beyond that goes when more comes, or with [`Tree::trim_index`].
    fn set_index_memory(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Takes what is beyond that out of memory.
    fn trim_index(&self) {}

    /// Disk space that an index which is mapped from a file may need, about. Tables need less than memtables take; this comes
    /// to that.
    fn index_room_bytes(&self, _new: NewEntries) -> u64 {
        0
    }

    /// The store is being closed, and nothing changes the tree any more: what the tree derives from its files can be
    /// made durable. If that fails, the next open derives it again.
    fn closing(&self) {}

    /// Holds the structure still until the lock is dropped. What has been decided by then is shown, or gone.
    fn lock_changes(&self) -> Box<dyn ChangeLock + '_>;

    /// The tree's own log, if its kind has one: for batches of this keyspace alone.
    fn operation_log(&self) -> Option<Arc<dyn OperationLog>> {
        None
    }
}

/// A frozen memtable as `pack` reads it.
pub(crate) trait PackSource {
    /// Goes to the next entry.
    fn next(&mut self) -> Result<()>;
    /// The current entry, `None` past the last.
    fn entry(&self) -> Option<EntryRef<'_>>;
    /// About how many entries there are.
    fn entries(&self) -> usize;
}

impl EntrySource for &mut dyn PackSource {
    fn next(&mut self) -> Result<()> {
        (**self).next()
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        (**self).entry()
    }
}

/// A key range of a tree, as edits define it without a file being opened: for repairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepairRange {
    /// The first key of the range.
    pub(crate) lower: Vec<u8>,
    /// The first key behind it.
    pub(crate) upper: Option<Vec<u8>>,
    /// Every table that may hold an entry of the range. What they hold outside it does not count.
    pub(crate) tables: Vec<FileId>,
}
