//! A small tree for tests: the example of how to add a tree kind (`ARCHITECTURE.md`).
//!
//! A version is a sorted set of all entries, in memory. A packed memtable is such a set too. To *incorporate* it
//! merges both into a new set and writes that to the tree's one file, which changes in place (`pool`). It suits
//! trees that fit in memory, since each flush writes the whole tree. Batches of its keyspace alone are not in the
//! journal but in a log of its own (`log`), as far as that has room.
//!
//! Invariants:
//! 1. The tree is changed only under the `changes` lock, from the newest version; the file has the change first,
//!    then the manifest, and then a version shows it.
//! 2. Every merge has the whole tree as its input: superseded versions that no snapshot sees are dropped, and so is a
//!    tombstone with nothing below it.

mod edit;
mod kind;
mod log;
mod pool;
#[cfg(test)]
mod tests;
mod version;

use std::sync::Arc;

use self::edit::Named;
pub(super) use self::kind::KIND;
use self::log::{LogFile, OwnLog};
use self::pool::Pool;
use self::version::{Place, Version};
use super::context::{commit_edit, sync_names};
use super::sorted::{Sorted, SortedSource};
use super::versioned::Compaction;
use super::{
    ChangeLock, Helpers, OperationLog, PackSource, Packed, PackedBytes, Tree, TreeContext,
    TreeOptions, TreeState, TreeVersion,
};
use crate::base::entry::EntrySource;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::sync::{ArcSwap, Mutex, MutexGuard};
use crate::jobs::Job;
use crate::manifest::TreeEdit;
use crate::merge::{Bottom, CompactionIterator};

/// A tree of the kind `example`.
pub(super) struct ExampleTree {
    context: TreeContext,
    /// Excludes changes.
    changes: Mutex<()>,
    version: ArcSwap<Version>,
    log: Arc<OwnLog>,
}

impl ExampleTree {
    /// Reads the tree that the last edit names; without edits, it is empty.
    pub(super) fn open(
        context: TreeContext,
        edits: &[TreeEdit],
        flushed: Seqno,
    ) -> Result<Arc<ExampleTree>> {
        let version_of = |entries| Version::new(Arc::new(entries), flushed, &context.blobs);
        let (version, logs) = match edits.last() {
            Some(edit) => {
                let named = Named::decode(edit, &context.manifest.path())?;
                let (pool, entries) = Pool::open(&context.files, &named, flushed)?;
                let logs = LogFile::of_named(&context.files, &named.logs);
                (version_of(entries)?.at(Place { pool, named, logs: logs.clone() }), logs)
            }
            None => (version_of(Sorted::default())?, Vec::new()),
        };
        let log = Arc::new(OwnLog::new(&context.files, logs));
        let version = ArcSwap::from_pointee(version);
        Ok(Arc::new(ExampleTree { context, changes: Mutex::new(()), version, log }))
    }

    /// Merges a packed memtable, if any, with the tree. Everything up to `flushed` is in the tree then.
    fn change(&self, packed: Option<&Arc<Sorted>>, flushed: Seqno) -> Result<()> {
        let _changes = self.changes.lock();
        // Before an input is read: it asks for the snapshots.
        let mut compaction = Compaction::begin(&self.context, Vec::new());
        let before = self.version.load_full();
        let flushed = flushed.max(before.flushed);
        let sources = packed.into_iter().chain([&before.entries]).map(SortedSource::new).collect();
        let options = compaction.options(&self.context, Bottom::Always);
        let mut merged = CompactionIterator::new(sources, options);
        let mut entries = Sorted::default();
        loop {
            merged.next()?;
            let Some(entry) = merged.entry() else { break };
            let in_order = entries.push(entry);
            debug_assert!(in_order, "a merge returns entries in order");
        }
        let read_bytes = merged.counters().bytes_in;
        let pool = match &before.place {
            Some(place) => Arc::clone(&place.pool),
            None => Pool::create(&self.context.files)?,
        };
        let version = Version::new(Arc::new(entries), flushed, &self.context.blobs)?;
        let mut next_log = self.log.make_next()?;
        let logs = self.log.to_name(&mut next_log);
        let names = logs.iter().map(|log| log.named).collect();
        let commit = |named: &Named| {
            sync_names(&self.context)?;
            commit_edit(&self.context, named.encode(), flushed)
        };
        let (named, written_bytes) = pool.replace(&version.entries, flushed, names, commit)?;
        self.log.switch(next_log, &logs);
        let version = Arc::new(version.at(Place { pool, named, logs }));
        self.version.store(Arc::clone(&version));
        self.context.installed(version);
        match packed {
            Some(_) => self.context.packed(written_bytes),
            None => {
                compaction.wrote(written_bytes);
                compaction.end(&self.context, read_bytes);
            }
        }
        Ok(())
    }
}

/// A packed memtable: in memory, since its entries reach the file when it is incorporated.
struct PackedSet {
    tree: Arc<ExampleTree>,
    entries: Arc<Sorted>,
    bytes: PackedBytes,
}

impl Packed for PackedSet {
    fn bytes(&self) -> PackedBytes {
        self.bytes
    }

    fn incorporate(self: Box<Self>, flushed: Seqno) -> Result<()> {
        self.tree.change(Some(&self.entries), flushed)
    }
}

impl Tree for ExampleTree {
    fn version(&self) -> Arc<dyn TreeVersion> {
        self.version.load_full()
    }

    fn pack(self: Arc<Self>, source: &mut dyn PackSource) -> Result<Box<dyn Packed>> {
        // A failure to open it is harmless here; the store is poisoned if it fails to incorporate.
        if let Some(place) = &self.version.load().place {
            place.pool.make_writable()?;
        }
        let (mut entries, mut bytes) = (Sorted::default(), PackedBytes::default());
        loop {
            source.next()?;
            let Some(entry) = source.entry() else { break };
            bytes.data += (entry.key.len() + entry.value.len()) as u64;
            let in_order = entries.push(entry);
            debug_assert!(in_order, "a memtable is in order");
        }
        Ok(Box::new(PackedSet { tree: self, entries: Arc::new(entries), bytes }))
    }

    // Incorporating leaves nothing to do: there are no jobs, and nothing to retry.
    fn next_job(self: Arc<Self>) -> Option<Box<dyn Job>> {
        None
    }

    fn has_work(&self) -> bool {
        false
    }

    fn retry_refused(&self) -> Option<Error> {
        None
    }

    fn retry_damaged(&self) {}

    fn tell_damage(&self, _error: &Error) -> bool {
        false
    }

    /// Merges the whole tree: for what snapshots no longer hold.
    fn compact(
        self: Arc<Self>,
        _lower: &[u8],
        _upper: Option<&[u8]>,
        _helpers: &dyn Helpers,
    ) -> Result<()> {
        match self.version.load().entries.is_empty() {
            true => Ok(()),
            false => self.change(None, Seqno::default()),
        }
    }

    fn backlog(&self, _frozen_bytes: u64) -> f64 {
        0.0
    }

    fn state(&self) -> TreeState {
        self.version.load().state
    }

    fn set_options(&self, options: TreeOptions) {
        self.context.options.store(Arc::new(options));
    }

    fn lock_changes(&self) -> Box<dyn ChangeLock + '_> {
        let changes = self.changes.lock();
        let named = self.version.load().place.as_ref().map(|place| place.named.clone());
        Box::new(Unchanged { _changes: changes, named })
    }

    fn operation_log(&self) -> Option<Arc<dyn OperationLog>> {
        Some(Arc::<OwnLog>::clone(&self.log))
    }
}

/// The tree while nobody can change it.
struct Unchanged<'a> {
    _changes: MutexGuard<'a, ()>,
    named: Option<Named>,
}

impl ChangeLock for Unchanged<'_> {
    fn snapshot(&self) -> Option<Vec<u8>> {
        self.named.as_ref().map(Named::encode)
    }
}
