//! The open store behind every handle.
//!
//! Invariants:
//! 1. Locks are taken in this order: batches `in_flight`, `registry`, `incorporation`, a keyspace's `pipeline`, a tree's
//!    change lock, the manifest's. The commit barrier is entered with none of them but the first two.
//! 2. Once `failure` is set, no write is accepted until the store has been reopened.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::counters::{Counters, is_timed};
use super::database::RecoveryReport;
use super::events::Event;
use super::failures::{FailureCount, Failures};
use super::in_flight::{COUNTED_BYTES_MIN, InFlight};
use super::open_iterators::OpenIterators;
use super::options::{Builder, Switches};
use super::payload::{LARGE_BYTES, with_parts};
use super::quarantine::Quarantine;
use super::snapshots::Snapshots;
use super::state::{KeyspaceState, Slot};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::{
    BATCH_BYTES_MAX, BATCH_OPERATION_BYTES, INLINE_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::base::panics::{overheard, watched};
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::base::sync::thread::ThreadId;
use crate::base::sync::{Condvar, Mutex, RwLock};
use crate::cache::{Cache, DataFiles, Room};
use crate::commit::{Committer, Throttle};
use crate::jobs::{Clock, Courier, Executor};
use crate::journal::{Journal, Payload, encode_operation};
use crate::manifest::Manifest;
use crate::memtable::ChunkPool;
use crate::merge::{Contained, MergeOperator};
use crate::table::BlobFiles;
use crate::vfs::{Lock, Vfs};

/// What a background job's thread uses beside the buffers of inputs.
const JOB_REST_BYTES_MAX: u64 = 2 << 20;

/// A thread keeps its buffer for journal records up to this size.
const PAYLOAD_KEPT_BYTES_MAX: usize = 32 << 10;
/// On a full disk memtables are flushed from this part of a journal segment on: a table of less takes as much as it
/// gives back of the journal.
const FLUSHED_PART: u64 = 4;

/// Sizes derived from the memory budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) memory_budget: u64,
    pub(crate) memtable_bytes: u64,
    /// The cache's, if it is not what the others leave.
    pub(crate) cache_bytes_chosen: Option<u64>,
    /// Frozen memtables that may wait for the tree, per keyspace.
    pub(crate) frozen_max: usize,
    /// All memtables' chunks together.
    pub(crate) memtables_bytes_max: u64,
    /// Of these, chunks of memtables that have not been frozen.
    pub(crate) active_bytes_max: u64,
    /// Buffers of one background job.
    pub(crate) job_bytes_max: u64,
    /// Cursors of idle iterators.
    pub(crate) iterators_bytes_max: u64,
    /// Buffers of readers that look ahead.
    pub(crate) read_ahead_bytes_max: u64,
    pub(crate) segment_bytes: u64,
    /// What is left free of the disk for what makes room there: the memtables of a keyspace can be written, and deletes
    /// journaled. Not those of all: a large budget on a disk that has a few gigabytes left would take no write.
    pub(crate) free_bytes_min: u64,
    /// A manifest below this size is not rewritten.
    pub(crate) manifest_bytes_min: u64,
    /// Journal bytes beyond which the keyspace that holds on to the oldest is flushed.
    pub(crate) journal_bytes_max: u64,
    /// Values and operands of at least this many bytes go to a blob file at once, past journal and memtable.
    pub(crate) direct_value_bytes: usize,
    /// The most bytes that a compaction folds at once.
    pub(crate) fold_bytes_max: u64,
}

impl Sizes {
    pub(crate) fn new(builder: &Builder, shards: usize) -> Sizes {
        let budget = builder.memory_budget;
        let default = (budget / 16).clamp(256 << 10, 64 << 20);
        let memtable_bytes = builder.memtable_bytes.unwrap_or(default);
        let frozen_max = 3;
        let memtables_bytes_max = (memtable_bytes * (frozen_max as u64 + 1)).max(budget / 4);
        let segment_bytes = (memtable_bytes / 2).clamp(8 << 10, 16 << 20);
        Sizes {
            memory_budget: budget,
            memtable_bytes,
            cache_bytes_chosen: builder.cache_bytes,
            frozen_max,
            memtables_bytes_max,
            active_bytes_max: memtables_bytes_max / 8 * 5,
            job_bytes_max: (budget / 32).clamp(512 << 10, 16 << 20),
            iterators_bytes_max: (budget / 16).max(256 << 10),
            read_ahead_bytes_max: (budget / 16).clamp(256 << 10, 64 << 20),
            segment_bytes,
            free_bytes_min: memtable_bytes * (frozen_max as u64 + 1) + (1 << 20),
            manifest_bytes_min: (memtable_bytes * 4).min(1 << 20),
            journal_bytes_max: memtables_bytes_max * 3 + segment_bytes * 2 * shards as u64,
            direct_value_bytes: (memtable_bytes as usize / 4)
                .clamp(16 << 10, INLINE_BYTES_MAX as usize),
            fold_bytes_max: memtable_bytes.max(16 << 10),
        }
    }

    /// What memtables may take where nothing is written: half of the budget, and never less than a writer's
    /// with some room for chunks that one memtable for each keyspace fills less well.
    pub(crate) fn read_only_memtables_bytes_max(&self) -> u64 {
        (self.memory_budget / 2).max(self.memtables_bytes_max / 4 * 5)
    }

    /// What a background job uses: beside its buffers it needs an output's, and lists of what it has written.
    pub(crate) fn job_bytes(&self) -> u64 {
        self.job_bytes_max + self.job_bytes_max.min(JOB_REST_BYTES_MAX)
    }

    /// What memtables may take while the journal is replayed: no cache needs the rest of the budget yet. Fewer
    /// and larger tables come of it.
    pub(crate) fn replay_memtables_bytes_max(&self) -> u64 {
        (self.memtable_bytes * 8).min(self.memory_budget / 2)
    }

    /// What is left of the budget for the page cache while memtables and trees hold so much.
    pub(crate) fn cache_bytes(
        &self,
        workers: usize,
        memtables_bytes: u64,
        trees_bytes: u64,
    ) -> u64 {
        if let Some(bytes) = self.cache_bytes_chosen {
            return bytes;
        }
        let used = memtables_bytes + trees_bytes + self.job_bytes() * workers as u64;
        self.memory_budget.saturating_sub(used).max(self.memory_budget / 8).max(128 << 10)
    }

    /// What of the cache single records may take at most.
    pub(crate) fn records_bytes_max(&self, workers: usize) -> u64 {
        self.cache_bytes(workers, self.memtables_bytes_max, 0) / 3
    }
}

/// What keyspaces stand on, made before the store itself.
pub(crate) struct Foundation {
    pub(crate) path: PathBuf,
    /// Whether nothing may be written.
    pub(crate) read_only: bool,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) sizes: Sizes,
    pub(crate) switches: Switches,
    pub(crate) manifest: Arc<Manifest>,
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
    pub(crate) foundation: Foundation,
    pub(crate) journal: Arc<Journal>,
    pub(crate) committer: Committer,
    pub(crate) throttle: Throttle,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) open_iterators: OpenIterators,
    /// Held by who freezes memtables because all together take too much.
    pub(crate) pressure: Mutex<()>,
    pub(crate) executor: Executor,
    pub(crate) counters: Counters,
    pub(crate) events: Option<Courier<Event>>,
    pub(crate) recovery: RecoveryReport,
    /// By name; changed under `registry`.
    pub(crate) keyspaces: RwLock<BTreeMap<String, Arc<KeyspaceState>>>,
    /// Those that could not be opened; changed under `registry`.
    pub(crate) quarantine: Quarantine,
    /// Held while a keyspace is created or dropped.
    pub(crate) registry: Mutex<()>,
    /// What large batches hold at once: memtables have room for little beyond the size at which they are frozen.
    pub(crate) in_flight: InFlight,
    /// Held while memtables become part of trees in an order that somebody relies on.
    pub(crate) incorporation: Mutex<()>,
    pub(crate) next_keyspace_id: AtomicU32,
    pub(crate) closed: AtomicBool,
    pub(crate) closing: Mutex<Closing>,
    /// Signalled when `closing` is done.
    pub(crate) closed_by_one: Condvar,
    pub(crate) birthplace: Birthplace,
    /// Our own code has panicked: what it was at may be half done, so nothing is built on it.
    pub(crate) panicked: AtomicBool,
    pub(crate) failure: Mutex<Option<Error>>,
    /// What upkeep of journal and manifest has failed with. Keyspaces have theirs.
    pub(crate) upkeep_failures: Failures,
    pub(crate) failure_count: FailureCount,
    pub(crate) upkeep_running: AtomicBool,
    /// Background jobs that have got something done.
    pub(crate) work_done: AtomicU64,
    /// No upkeep before this time: it has failed.
    pub(crate) upkeep_rest_until_nanos: AtomicU64,
    pub(crate) workers: usize,
    /// Bytes of the budget that memtables have at present.
    pub(crate) memtables_share: AtomicU64,
    /// What the page cache may hold. Held while that is worked out and applied.
    pub(crate) cache_share: Mutex<u64>,
    /// Bytes per second that the background has been seen to take in, as bits of an `f64`.
    pub(crate) drain_rate: AtomicU64,
    /// Declared last: released last.
    pub(crate) _lock: Box<dyn Lock>,
}

/// How far closing the store has come.
#[derive(Default)]
pub(crate) enum Closing {
    #[default]
    Not,
    By(ThreadId),
    Done(Result<()>),
}

/// What handles share: the store is closed when the last handle goes, though a job may hold on to the
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
            // Nothing of it may be tidied up in a forked child: threads, locks and files are the parent's.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // Whoever wants to know how closing went calls `close`.
        let _ = self.0.close();
    }
}

impl Deref for Store {
    type Target = Foundation;

    fn deref(&self) -> &Foundation {
        &self.foundation
    }
}

/// How long a writer sleeps at most before it looks again whether it may go on.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(5);

/// An operation of a commit, borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) keyspace: &'a Arc<KeyspaceState>,
    pub(crate) kind: EntryKind,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Refuses keys and values that the formats cannot take.
pub(crate) fn check_sizes(key: &[u8], value: &[u8]) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a key has at most {KEY_BYTES_MAX} bytes, not {}; store long identifiers in the value \
             and key by their hash",
            key.len()
        )));
    }
    if value.len() as u64 > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a value has at most {VALUE_BYTES_MAX} bytes, not {}; split it over several keys",
            value.len()
        )));
    }
    Ok(())
}

/// Why a merge is refused.
#[cold]
fn no_operator(keyspace: &KeyspaceState) -> Error {
    match &keyspace.options.merge_operator {
        Some(name) => Error::Conflict {
            what: format!(
                "keyspace {:?} needs the merge operator {name:?} for merges; register it with \
                 Builder::merge_operator before opening",
                keyspace.name
            ),
        },
        None => Error::invalid(format!(
            "keyspace {:?} has no merge operator; create it with one \
             (KeyspaceOptions::merge_operator)",
            keyspace.name
        )),
    }
}

/// Why a batch is refused that counts so many bytes.
#[cold]
fn too_large(bytes: u64) -> Error {
    Error::invalid(format!(
        "a batch has at most {BATCH_BYTES_MAX} bytes of keys and values ({BATCH_OPERATION_BYTES} more for each \
         operation; values that go to blob files do not count), not {bytes}; commit it in parts"
    ))
}

/// Refuses a batch if one of its keyspaces has been dropped. To be asked once more with the shard
/// locked: a keyspace that is there then stays until the batch has been applied.
pub(crate) fn still_there<'a, I>(operations: &impl Fn() -> I) -> Result<()>
where
    I: Iterator<Item = Operation<'a>>,
{
    operations().try_for_each(|operation| operation.keyspace.check_exists())
}

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
        if let Some(error) = &*self.failure.lock() {
            return Err(poisoned(error));
        }
        Ok(())
    }

    /// Refuses writes from now on.
    pub(crate) fn fail(&self, error: &Error) {
        if planted(Bug::PoisonForgotten) {
            return;
        }
        {
            let mut failure = self.failure.lock();
            if failure.is_some() {
                return;
            }
            *failure = Some(error.clone());
        }
        self.files.retain_all();
        self.journal.poison(error);
        self.emit(|| Event::Error { error: error.clone() });
    }

    /// Our own code has panicked: refuses writes from now on and ends background work.
    #[cold]
    pub(crate) fn panicked(&self, what: &str) {
        self.panicked.store(true, Ordering::Release);
        let error = Error::Poisoned { reason: what.to_string() };
        self.fail(&error);
        self.executor.notify();
    }

    /// Calls `f`, which changes the store. Should it panic, the store is poisoned, so that nobody builds on
    /// what is half done, or waits for it.
    pub(crate) fn changing<R>(&self, what: &str, f: impl FnOnce() -> R) -> R {
        overheard(f, |message| self.panicked(&format!("{what} panicked: {message}")))
    }

    /// Tells of an event. It may be called with locks held: the listener hears of it later.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.events {
            events.send(event());
        }
    }

    /// Lets the listener of a stepped store hear what has happened. Called with no lock held.
    pub(crate) fn deliver_events(&self) {
        if let Some(events) = &self.events {
            events.deliver_here();
        }
    }

    /// Snapshots that compactions must respect.
    pub(crate) fn live_snapshots(&self) -> Vec<Seqno> {
        self.snapshots.list(|| self.committer.visible())
    }

    /// All keyspaces that exist.
    pub(crate) fn all_keyspaces(&self) -> Vec<Arc<KeyspaceState>> {
        self.keyspaces.read().values().cloned().collect()
    }

    /// Commits a batch whose operations `operations` yields each time it is called.
    pub(crate) fn commit<'a, I>(
        &self,
        operations: impl Fn() -> I,
        durability: Durability,
    ) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let timed = is_timed().then(|| self.clock.nanos());
        self.check_open()?;
        self.check_not_read_only()?;
        let mut count = 0u32;
        let mut bytes = 0u64;
        // What journal and memtable get to hold.
        let mut held = 0u64;
        let mut large = false;
        for operation in operations() {
            check_sizes(operation.key, operation.value)?;
            operation.keyspace.check_exists()?;
            if operation.kind == EntryKind::Merge && operation.keyspace.merge.operator.is_none() {
                return Err(no_operator(operation.keyspace));
            }
            // A batch that is let through has fewer operations than a `u32` counts.
            count = count.wrapping_add(1);
            let is_large = self.is_large(&operation);
            let value_bytes = if is_large { 0 } else { operation.value.len() };
            bytes += (operation.key.len() + operation.value.len()) as u64;
            held += (operation.key.len() + value_bytes) as u64 + BATCH_OPERATION_BYTES;
            large |= is_large;
        }
        if held > BATCH_BYTES_MAX {
            return Err(too_large(held));
        }
        if count == 0 {
            return if durability == Durability::Sync { self.sync() } else { Ok(()) };
        }
        let last = if large || held >= COUNTED_BYTES_MIN {
            let _flight = self.begin_flight(held, large)?;
            self.commit_counted(&operations, (count, bytes, large), durability)?
        } else {
            self.admit(bytes, &operations)?;
            self.commit_admitted(&operations, count, bytes, durability)?
        };
        if durability == Durability::Sync && !planted(Bug::CommitBeforeSync) {
            self.journal.sync_upto(last).inspect_err(|error| self.fail(error))?;
            self.counters.commits_sync.add(1);
        }
        if self.journal.is_maintenance_new() {
            // The next segment wants to be ready before this one is full.
            self.executor.notify();
        }
        self.counters.count_commit(count, bytes);
        if let Some(start) = timed {
            self.counters.commit_latency.record(self.clock.nanos().saturating_sub(start));
        }
        Ok(())
    }

    /// Whether the operation's value is too large for journal and memtable.
    #[inline]
    pub(crate) fn is_large(&self, operation: &Operation<'_>) -> bool {
        operation.value.len() >= self.sizes.direct_value_bytes
            && operation.value.len() >= operation.keyspace.options.blob_bytes_min as usize
            && operation.kind != EntryKind::Delete
    }

    #[inline]
    pub(super) fn commit_admitted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        count: u32,
        bytes: u64,
        durability: Durability,
    ) -> Result<Seqno>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        thread_local! {
            // `with` and a `Cell` rather than `take` and `set`: 26 instructions fewer.
            static PAYLOAD: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
        }
        let makes_room = || {
            let is_delete = |operation: Operation<'_>| operation.kind == EntryKind::Delete;
            operations().all(is_delete) && self.leaves_room_to_compact(bytes)
        };
        let check = || still_there(operations);
        let apply = |first: Seqno| {
            for (mut seqno, operation) in (first.0..).zip(operations()) {
                if planted(Bug::CommitOneNumberABatch) {
                    seqno = first.0;
                }
                let read = operation.keyspace.read.load();
                read.active.memtable.insert(
                    operation.key,
                    Seqno(seqno),
                    operation.kind,
                    operation.value,
                );
            }
        };
        let half_done = || self.panicked("a commit panicked half-way");
        let commit = |payload: Payload<'_>| {
            watched(
                || self.committer.commit(payload, count, durability, makes_room, check, apply),
                half_done,
            )
        };
        let result = if bytes >= LARGE_BYTES {
            with_parts(operations, commit)
        } else {
            let mut payload = PAYLOAD.with(std::cell::Cell::take);
            payload.clear();
            for operation in operations() {
                let Operation { keyspace, kind, key, value } = operation;
                encode_operation(&mut payload, keyspace.id, kind, key, value);
            }
            let result = commit(Payload::Whole(&payload));
            if payload.capacity() <= PAYLOAD_KEPT_BYTES_MAX {
                PAYLOAD.with(|kept| kept.replace(payload));
            }
            result
        };
        match result {
            Ok(last) => Ok(last),
            Err(error) => self.not_committed(error),
        }
    }

    /// A commit has failed: with what it ends.
    #[cold]
    fn not_committed(&self, error: Error) -> Result<Seqno> {
        if matches!(error, Error::Full { .. }) {
            if planted(Bug::CommitFullSwallowed) {
                return Ok(self.committer.visible());
            }
            self.flush_for_room();
        }
        self.journal_failed(&error);
        Err(error)
    }

    /// Whether a batch of so many bytes, which makes room, leaves what memtables need to get into trees, and a
    /// compaction to drop what was deleted.
    #[cold]
    fn leaves_room_to_compact(&self, bytes: u64) -> bool {
        self.files.check_room(Room::ButForCompactions, bytes).is_ok()
    }

    /// A batch was refused for want of room. The journal takes as much of it as memtables have, and gives that back
    /// once they are in the trees, where compactions can drop what they delete.
    #[cold]
    fn flush_for_room(&self) {
        let keyspaces = self.all_keyspaces();
        let is_flushing =
            |keyspace: &Arc<KeyspaceState>| !keyspace.pipeline.lock().slots.is_empty();
        if keyspaces.iter().any(is_flushing) {
            return;
        }
        let active_bytes = |keyspace: &KeyspaceState| keyspace.read.load().active.exact_bytes();
        let all: u64 = keyspaces.iter().map(|keyspace| active_bytes(keyspace)).sum();
        // Each refused batch would make a table of less.
        if all >= self.sizes.segment_bytes / FLUSHED_PART {
            self.freeze(&keyspaces, |keyspace| active_bytes(keyspace) > 0);
        }
    }

    /// A full disk or a refused argument leaves the journal whole; anything else does not.
    pub(crate) fn journal_failed(&self, error: &Error) {
        match error {
            Error::InvalidArgument { .. } | Error::Closed { .. } => {}
            error if error.is_refusal() => {}
            error => self.fail(error),
        }
    }

    /// A full disk leaves the manifest as it was; anything else does not.
    pub(crate) fn manifest_failed(&self, error: &Error) {
        if !error.is_refusal() {
            self.fail(error);
        }
    }

    /// Refuses writes from now on if the manifest does, which a tree may have met alone.
    pub(crate) fn hear_of_manifest(&self) {
        if let Some(error) = self.manifest.poisoned() {
            self.fail(&error);
        }
    }

    /// Lets a writer of `bytes` in: slowed by how far the background is behind, and not before there
    /// is room in the memtables.
    pub(super) fn admit<'a, I>(&self, bytes: u64, operations: &impl Fn() -> I) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let mut last: Option<&Arc<KeyspaceState>> = None;
        let mut dearest: Option<&Arc<KeyspaceState>> = None;
        for operation in operations() {
            if last.is_some_and(|last| Arc::ptr_eq(last, operation.keyspace)) {
                continue;
            }
            last = Some(operation.keyspace);
            if self.is_full(&operation.keyspace.read.load().active) {
                self.make_room(operation.keyspace)?;
            }
            if dearest
                .is_none_or(|dearest| dearest.price.per_mib() < operation.keyspace.price.per_mib())
            {
                dearest = last;
            }
        }
        if self.is_pressed() {
            self.relieve_pressure(operations)?;
        }
        if let Some(dearest) = dearest {
            self.throttle.pay(bytes, &dearest.price, &self.clock);
        }
        Ok(())
    }

    #[inline]
    fn is_full(&self, slot: &Slot) -> bool {
        let limit = self.sizes.memtable_bytes;
        if limit >= 4 << 20 {
            slot.bytes() >= limit
        } else {
            !slot.memtable.is_empty() && slot.exact_bytes() >= limit
        }
    }

    /// Freezes a full memtable, once there is room for one more that waits.
    #[cold]
    fn make_room(&self, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let made = self.wait_for_room(keyspace);
        self.deliver_events();
        made
    }

    fn wait_for_room(&self, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let mut waited_from = None;
        let mut tried_again = false;
        loop {
            let ended = self.executor.ended();
            self.check_writable()?;
            let read = keyspace.read.load_full();
            if !self.is_full(&read.active) || keyspace.is_dropped() {
                break;
            }
            let memtables = self.pool.bytes_in_use() as u64;
            let crowded = memtables > self.sizes.memtables_bytes_max && !read.frozen.is_empty();
            if read.frozen.len() < self.sizes.frozen_max && !crowded {
                self.freeze(std::slice::from_ref(keyspace), |keyspace| {
                    self.is_full(&keyspace.read.load().active)
                });
                break;
            }
            if let Some(error) = &*keyspace.flush_failure.lock() {
                // No time passes for a stepped executor that would end the rest after a failure.
                if tried_again || !self.executor.is_stepped() {
                    return Err(error.clone());
                }
                tried_again = true;
                self.clear_rests();
            }
            Contained::refuse_inside("a write that must wait for room")?;
            waited_from.get_or_insert_with(|| self.clock.nanos());
            self.executor.notify();
            if !self.executor.wait(ended, WAIT_MAX) {
                // A stepped executor without work although memtables wait: their job has failed.
                self.clear_rests();
                if !self.executor.wait(ended, WAIT_MAX) {
                    break;
                }
            }
        }
        if let Some(from) = waited_from {
            self.throttle.record(self.clock.nanos().saturating_sub(from));
        }
        Ok(())
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
            let cut = self.committer.barrier(|last| {
                for keyspace in keyspaces {
                    if wanted(keyspace) {
                        keyspace.freeze(last, &self.pool, nanos);
                    }
                }
                last
            });
            self.share_memory();
            self.update_backlog();
            self.executor.notify();
            cut
        })
    }

    /// Makes everything committed so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.check_writable()?;
        let result = self.journal.sync_all().inspect_err(|error| self.fail(error));
        self.deliver_events();
        result
    }

    /// The tree of a keyspace has changed.
    pub(crate) fn structure_changed(&self) {
        self.update_backlog();
        self.executor.notify();
    }

    /// Sets the writers' price from how far the background is behind.
    pub(crate) fn update_backlog(&self) {
        let rate = f64::from_bits(self.drain_rate.load(Ordering::Relaxed));
        let memory = self.memory_backlog();
        for keyspace in self.keyspaces.read().values() {
            let read = keyspace.read.load();
            let waiting = read.frozen.len() as f64 / (self.sizes.frozen_max as f64 + 1.0);
            let frozen_bytes = read.frozen.iter().map(|slot| slot.exact_bytes()).sum();
            let backlog = waiting.max(keyspace.tree.backlog(frozen_bytes)).max(memory);
            if keyspace.price.set(backlog, rate) {
                let delay_per_mib = keyspace.price.per_mib();
                let keyspace = keyspace.name.clone();
                self.emit(|| Event::Throttle { keyspace, delay_per_mib });
            }
        }
    }

    /// Lets keyspaces whose background work failed try again at once.
    pub(crate) fn clear_rests(&self) {
        self.upkeep_rest_until_nanos.store(0, Ordering::Relaxed);
        for keyspace in self.keyspaces.read().values() {
            keyspace.rest_until_nanos.store(0, Ordering::Relaxed);
            keyspace.tree_rest_until_nanos.store(0, Ordering::Relaxed);
        }
    }
}

/// What a refused writer is told.
pub(crate) fn poisoned(error: &Error) -> Error {
    match error {
        Error::Poisoned { .. } => error.clone(),
        error => Error::Poisoned { reason: error.to_string() },
    }
}
