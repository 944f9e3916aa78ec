//! The open store behind every handle.
//!
//! Invariants:
//! 1. Locks are taken in this order: batches `in_flight`, `registry`, `incorporation`, a memtable's stage, a tree's
//!    change lock, the manifest's. The commit barrier is entered only with the first two held. A commit
//!    locks keyspaces (`watch`), by their numbers, and then keys, after batches in flight and before a shard of the
//!    journal, with no other lock held.
//! 2. Once `poison` is set, no write is accepted until the store has been reopened.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::counters::Counters;
use super::events::Event;
use super::failures::{Cause, FailureCount, Failures};
use super::in_flight::InFlight;
use super::kept_state::Kept;
use super::key_locks::KeyLocks;
use super::open_iterators::OpenIterators;
use super::options::Switches;
use super::quarantine::Quarantine;
use super::recovery::RecoveryReport;
use super::rest_state::{JobMemory, Rest};
use super::sizes::Sizes;
use super::snapshots::Snapshots;
use super::state::KeyspaceState;
use super::transaction_locks::TransactionLocks;
use super::transaction_memory::TransactionMemory;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::panics::overheard;
use crate::base::planted::{Bug, planted};
use crate::base::poison::Poison;
use crate::base::process::Birthplace;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::base::sync::thread::ThreadId;
use crate::base::sync::{Condvar, Mutex, RwLock};
use crate::cache::{Cache, DataFiles};
use crate::commit::{Committer, Throttle};
use crate::jobs::{Clock, Courier, Executor};
use crate::journal::Journal;
use crate::manifest::{Edit, Manifest};
use crate::memtable::ChunkPool;
use crate::merge::MergeOperator;
use crate::table::BlobFiles;
use crate::vfs::{Lock, Vfs};

/// The parts of a store that keyspaces use. It is made before the store itself.
pub(crate) struct StoreContext {
    pub(crate) path: PathBuf,
    /// Nothing may be written.
    pub(crate) read_only: bool,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) sizes: Sizes,
    pub(crate) switches: Switches,
    pub(crate) manifest: Arc<Manifest>,
    /// Set once durability is in doubt: then nothing is written any more.
    pub(crate) poison: Arc<Poison>,
    pub(crate) files: Arc<DataFiles>,
    pub(crate) blobs: Arc<BlobFiles>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) pool: Arc<ChunkPool>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) merge_operators: BTreeMap<String, Arc<dyn MergeOperator>>,
    /// The store, once it is open.
    pub(crate) store: Arc<OnceLock<Weak<Store>>>,
}

/// An open store.
pub(crate) struct Store {
    pub(crate) context: StoreContext,
    pub(crate) journal: Arc<Journal>,
    pub(crate) committer: Committer,
    pub(crate) throttle: Throttle,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) open_iterators: OpenIterators,
    /// Held while memtables are frozen because all together use too much memory.
    pub(crate) pressure: Mutex<()>,
    pub(crate) executor: Executor,
    pub(crate) counters: Counters,
    pub(crate) events: Option<Courier<Event>>,
    pub(crate) recovery: RecoveryReport,
    /// By name; changed under `registry`.
    pub(crate) keyspaces: RwLock<BTreeMap<String, Arc<KeyspaceState>>>,
    /// Those that could not be opened; changed under `registry`.
    pub(crate) quarantine: Quarantine,
    /// Held while a keyspace is created, dropped, copied or given other options.
    pub(crate) registry: Mutex<()>,
    /// Bounds the large batches that are committed at once: memtables have little room beyond the size at which they are
    /// frozen.
    pub(crate) in_flight: InFlight,
    /// Held while memtables are incorporated.
    pub(crate) incorporation: Mutex<()>,
    pub(crate) next_keyspace_id: AtomicU32,
    /// Counted once one is marked as dropped or guarded, before the barrier behind which every commit sees it.
    pub(crate) keyspace_changes: AtomicU64,
    pub(crate) key_locks: KeyLocks,
    pub(crate) transaction_locks: Arc<TransactionLocks>,
    pub(crate) transaction_memory: TransactionMemory,
    pub(crate) closed: AtomicBool,
    pub(crate) closing: Mutex<Closing>,
    /// Signalled when `closing` is done.
    pub(crate) closed_by_one: Condvar,
    pub(crate) birthplace: Birthplace,
    /// Our own code has panicked. What it did may be half done, so background work ends.
    pub(crate) panicked: AtomicBool,
    /// Failures of the upkeep of journal and manifest. Keyspaces have their own.
    pub(crate) upkeep_failures: Failures,
    pub(crate) failure_count: FailureCount,
    pub(crate) upkeep_running: AtomicBool,
    /// The visible number at which nobody wrote any more.
    pub(crate) manifest_settled_at: AtomicU64,
    /// Background jobs that have completed work.
    pub(crate) work_done: AtomicU64,
    /// No upkeep before this time, after a failure.
    pub(crate) upkeep_backoff_until_nanos: AtomicU64,
    pub(crate) workers: usize,
    /// Threads that call [`Store::compact`] now: each uses the memory of one more background thread.
    pub(crate) compacting: AtomicU64,
    /// The memtables' present share of the budget, in bytes.
    pub(crate) memtables_share: AtomicU64,
    pub(crate) kept: Kept,
    pub(crate) rest: Rest,
    pub(crate) job_memory: JobMemory,
    /// What trees have got smaller since the page cache's share was computed for that.
    pub(crate) smaller_trees_bytes: AtomicU64,
    /// What mapped indexes have grown by since the same.
    pub(crate) grown_indexes_bytes: AtomicU64,
    /// The page cache's present share, in bytes. Locked while it is computed and applied.
    pub(crate) cache_share: Mutex<u64>,
    /// Bytes per second that background work has incorporated recently, as bits of an `f64`.
    pub(crate) drain_rate: AtomicU64,
    /// Declared last: released last.
    pub(crate) _lock: Box<dyn Lock>,
}

/// The progress of closing the store.
#[derive(Default)]
pub(crate) enum Closing {
    #[default]
    Not,
    By(ThreadId),
    Done(Result<()>),
}

/// The reference that handles share. The store is closed when the last handle is dropped, though a job may keep the
/// store itself a little longer.
pub(crate) struct OpenStore(pub(crate) Arc<Store>);

impl Deref for OpenStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.0
    }
}

impl Drop for OpenStore {
    fn drop(&mut self) {
        if !self.0.birthplace.is_here() {
            // A forked child may not clean up: threads, locks and files are the parent's.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // `close` returns the result to those who want it.
        let _ = self.0.close();
    }
}

impl Deref for Store {
    type Target = StoreContext;

    fn deref(&self) -> &StoreContext {
        &self.context
    }
}

/// The longest time that a writer sleeps before it checks again whether it may continue.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(5);

impl Store {
    pub(crate) fn check_open(&self) -> Result<()> {
        if !self.birthplace.is_here() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { what: format!("the store in {}", self.path.display()) });
        }
        Ok(())
    }

    /// Refuses writes on a handle that is for reading.
    #[inline]
    pub(crate) fn check_not_read_only(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::ReadOnly { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Refuses writes once something has failed that makes durability uncertain.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.check_not_read_only()?;
        self.poison.check()
    }

    /// The store has been poisoned: no file is deleted, since it is unknown what the next open will find.
    pub(super) fn poisoned(&self, error: &Error) {
        if !planted(Bug::FilesGoInDoubt) {
            self.files.retain_all();
        }
        self.emit(|| Event::Error { error: error.clone() });
    }

    /// Our own code has panicked: refuses writes from now on and ends background work.
    #[cold]
    pub(crate) fn panicked(&self, what: &str) {
        self.panicked.store(true, Ordering::Release);
        self.poison.set(&Error::Poisoned { reason: what.to_string() });
        self.executor.notify();
    }

    /// Calls `f`, which changes the store. If it panics, the store is poisoned, so that nobody builds on what is half
    /// done, or waits for it.
    pub(crate) fn changing<R>(&self, what: &str, f: impl FnOnce() -> R) -> R {
        overheard(f, |message| self.panicked(&format!("{what} panicked: {message}")))
    }

    /// Sends an event to the listener, which receives it later: locks may be held.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.send(event());
        }
    }

    /// Delivers the events of a stepped store. Called with no lock held. In a forked child it delivers nothing: the events
    /// are the parent's.
    pub(crate) fn deliver_events(&self) {
        if let Some(events) = self.events.as_ref().filter(|_| self.birthplace.is_here()) {
            events.deliver_here();
        }
    }

    /// Snapshots that compactions must respect.
    pub(crate) fn live_snapshots(&self) -> Vec<Seqno> {
        self.snapshots.list(|| self.committer.visible())
    }

    /// No reader has a lower number.
    pub(crate) fn oldest_reader(&self) -> Seqno {
        self.live_snapshots().first().copied().unwrap_or_default()
    }

    /// All keyspaces that exist.
    pub(crate) fn all_keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        self.keyspaces.read().values().cloned().collect()
    }

    /// Makes an edit durable in the manifest.
    ///
    /// # Errors
    /// As [`Manifest::commit`]. All but a refusal poison the store: what the manifest refuses contradicts the store.
    pub(crate) fn commit_edit(&self, edit: &Edit) -> Result<()> {
        self.poison.unless_refused(self.manifest.commit(edit))
    }

    /// Freezes the active memtables of those keyspaces for which `wanted` holds once no commit is
    /// under way.
    pub(crate) fn freeze(
        &self,
        keyspaces: &[Arc<KeyspaceState>],
        wanted: impl Fn(&KeyspaceState) -> bool,
    ) -> Seqno {
        self.changing("freezing a memtable", || {
            let nanos = self.clock.nanos();
            let seqno = self.committer.barrier(|last| {
                for keyspace in keyspaces {
                    if wanted(keyspace) {
                        keyspace.freeze(last, &self.pool, nanos);
                    }
                }
                last
            });
            self.divide_memory();
            self.update_backlog();
            self.executor.notify();
            seqno
        })
    }

    /// Makes everything committed so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_writable()?;
        let result = self.journal.sync_all();
        self.deliver_events();
        result
    }

    /// The tree of a keyspace has changed.
    pub(crate) fn structure_changed(&self) {
        self.update_backlog();
        self.executor.notify();
    }

    /// Sets the writers' delays from the backlogs.
    pub(crate) fn update_backlog(&self) {
        let memory = self.memory_backlog();
        self.keyspaces.read().values().for_each(|keyspace| self.update_delay(keyspace, memory));
    }

    /// The same of one keyspace.
    pub(super) fn update_backlog_of(&self, keyspace: &KeyspaceState) {
        self.update_delay(keyspace, self.memory_backlog());
    }

    fn update_delay(&self, keyspace: &KeyspaceState, memory: f64) {
        let rate = f64::from_bits(self.drain_rate.load(Ordering::Relaxed));
        let read = keyspace.read.load();
        let waiting = read.frozen.len() as f64 / (self.sizes.frozen_max as f64 + 1.0);
        let frozen_bytes = read.frozen.iter().map(|memtable| memtable.exact_bytes()).sum();
        let backlog = waiting.max(keyspace.tree.backlog(frozen_bytes)).max(memory);
        if keyspace.write_delay.set(backlog, rate) {
            let delay_per_mib = keyspace.write_delay.per_mib();
            let keyspace = keyspace.name.clone();
            self.emit(|| Event::Throttle { keyspace, delay_per_mib });
        }
    }

    /// Notes a failure of background work.
    pub(super) fn note_failure(&self, failures: &Failures, error: &Error, is_quarantined: bool) {
        if !matches!(error, Error::Closed { .. }) {
            failures.note(&self.failure_count, error, is_quarantined);
        }
    }

    /// Marks the failures noted so far: see `failed_since`.
    pub(crate) fn failure_mark(&self) -> u64 {
        self.failure_count.last()
    }

    /// The failure of background work with this cause that was noted after `mark`.
    pub(super) fn failed_since(&self, mark: u64, cause: Cause) -> Option<Error> {
        let of_keyspace = |keyspace: Arc<KeyspaceState>| {
            let of_flushes = keyspace.flush_failures.since(mark, cause);
            of_flushes.or_else(|| keyspace.compaction_failures.since(mark, cause))
        };
        let of_upkeep = self.upkeep_failures.since(mark, cause);
        of_upkeep.or_else(|| self.all_keyspaces().into_iter().find_map(of_keyspace))
    }

    /// Forgets the failures that a full disk caused: the work is tried again.
    pub(super) fn forget_full_failures(&self) {
        self.upkeep_failures.forget_full();
        for keyspace in self.all_keyspaces() {
            keyspace.flush_failures.forget_full();
            keyspace.compaction_failures.forget_full();
        }
    }

    /// Refuses an operation that needs all keyspaces while one is quarantined.
    pub(crate) fn check_whole(&self) -> Result<()> {
        self.quarantine.errors().into_iter().next().map_or(Ok(()), Err)
    }

    /// Lets failed background work be tried again at once.
    pub(crate) fn clear_backoff(&self) {
        self.upkeep_backoff_until_nanos.store(0, Ordering::Relaxed);
        for keyspace in self.keyspaces.read().values() {
            keyspace.flush_backoff_until_nanos.store(0, Ordering::Relaxed);
            keyspace.compaction_backoff_until_nanos.store(0, Ordering::Relaxed);
        }
    }
}
