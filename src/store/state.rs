//! A keyspace as the store holds it: memtables in front of a tree.
//!
//! Invariants:
//! 1. A `ReadState` is immutable. Read newest first (active, frozen, version) it holds every entry
//!    committed before it was loaded.
//! 2. `active` is replaced only inside a commit barrier, so a memtable holds exactly the entries between the freeze
//!    before it and its own.
//! 3. A frozen memtable leaves the read state in the step that adds the version with its entries. Before that step the
//!    row cache learns of its keys: a memtable gets into the tree only once the read state shows it as frozen.
//! 4. A dropped keyspace is marked before its memtables leave the read state. A reader that loads the state, and then
//!    sees no mark, has all of them.
//! 5. What a read state has is complete up to the number that [`ReadState::seqno_at_most`] gives: a reader at
//!    that number, or at a snapshot taken before, finds all of it there, and nothing that came later.

use std::sync::{Arc, OnceLock, Weak};

use super::events::Event;
use super::failures::Failures;
use super::gaps::Gaps;
use super::memtable_state::MemtableState;
use super::range_deletes_look::RangeDeletesLook;
use super::retired::Retired;
use super::store::Store;
use super::watch::Watches;
use crate::base::entry::Cursor;
use crate::base::error::{Error, Result};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::key_hash::KeyHasher;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::range_delete::RangeDelete;
use crate::base::slice::Slice;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{ArcSwap, Mutex, yield_now};
use crate::cache::Cache;
use crate::commit::WriteDelay;
use crate::manifest::Manifest;
use crate::memtable::ChunkPool;
use crate::merge::{BlobReader, Contained, Cover, DurableRangeDeletes, MergeContext};
use crate::table::{BlobFiles, BlobPointer, Caching};
use crate::tree::options::KeyspaceOptions;
use crate::tree::{
    OperationLog, Tree, TreeCounters, TreeObserver, TreeOptions, TreeState, TreeVersion,
};

/// How often the read state and its tree's state are looked at to find both of one moment.
const TRIES_FOR_ONE_MOMENT: usize = 16;

/// What readers read.
pub(crate) struct ReadState {
    pub(crate) active: Arc<MemtableState>,
    /// Newest first.
    pub(crate) frozen: Vec<Arc<MemtableState>>,
    pub(crate) version: Arc<dyn TreeVersion>,
    /// Which of the keyspace's states of its tree `version` is: compactions do not count.
    pub(crate) generation: u64,
    /// The range deletes that `version` needs.
    pub(crate) range_deletes: Arc<DurableRangeDeletes>,
    /// Whether `frozen` or `range_deletes` have any.
    has_range_deletes: bool,
}

impl ReadState {
    pub(super) fn new(
        active: Arc<MemtableState>,
        frozen: Vec<Arc<MemtableState>>,
        (version, generation): (Arc<dyn TreeVersion>, u64),
        range_deletes: Arc<DurableRangeDeletes>,
    ) -> ReadState {
        let has_range_deletes = !range_deletes.list.is_empty()
            || frozen.iter().any(|memtable| memtable.range_deletes.are_there());
        ReadState { active, frozen, version, generation, range_deletes, has_range_deletes }
    }

    /// Whether there are range deletes. Asked once the reader has its number.
    #[inline]
    pub(crate) fn has_range_deletes(&self) -> bool {
        self.has_range_deletes || self.active.range_deletes.are_there()
    }

    /// The newest number, up to the snapshot's, that deletes a key by its range.
    #[cold]
    pub(crate) fn newest_range_delete(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        let mut newest = self.range_deletes.map.newest(key, snapshot);
        for memtable in self.memtables() {
            if memtable.range_deletes.are_there() {
                newest = newest.max(memtable.range_deletes.newest(key, snapshot));
            }
        }
        newest
    }

    /// How many range deletes there are.
    pub(crate) fn range_deletes(&self) -> usize {
        let of_memtables = self.memtables().map(|memtable| memtable.range_deletes.len());
        of_memtables.sum::<usize>() + self.range_deletes.list.len()
    }

    /// What range deletes delete at a snapshot, for who reads many keys.
    pub(crate) fn cover(&self, snapshot: Seqno) -> Option<Box<Cover>> {
        if !self.has_range_deletes() {
            return None;
        }
        let of_memtables = self.memtables().filter_map(|memtable| memtable.range_deletes.map());
        Cover::new(of_memtables.chain([Arc::clone(&self.range_deletes.map)]), snapshot)
    }

    /// The number at which a reader without a snapshot reads this state: `visible`, which was loaded after the state,
    /// but at most the active memtable's freeze number if it has been frozen in the meantime.
    ///
    /// Later commits are in memtables that this state does not have. From there they get into the tree, and the row
    /// cache serves readers of older states too. Without the limit, one key of a batch would be answered from the row
    /// cache, and another from this state.
    ///
    /// No commit after the freeze is at or below the number returned, whether its number was seen here or not: the
    /// freeze number is set inside a commit barrier, so whoever finds such a commit visible finds it set. And nothing
    /// that was visible when the state was loaded is above it: the barrier ends after the state has been replaced.
    #[inline]
    pub(crate) fn seqno_at_most(&self, visible: Seqno) -> Seqno {
        match self.active.freeze_seqno.get() {
            Some(&frozen) if !planted(Bug::ReadBeyondCut) => visible.min(frozen),
            _ => visible,
        }
    }

    /// All of its memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<MemtableState>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }

    /// Whether an earlier state has memtables that this one has no more. They leave oldest first.
    pub(crate) fn lacks_memtables_of(&self, earlier: &ReadState) -> bool {
        let oldest = earlier.frozen.last().unwrap_or(&earlier.active);
        !self.memtables().any(|memtable| Arc::ptr_eq(memtable, oldest))
    }

    /// Its frozen memtables that a tree has which holds everything up to `flushed`, oldest first.
    fn leaving(&self, flushed: Seqno) -> impl Iterator<Item = &Arc<MemtableState>> {
        self.frozen.iter().rev().filter(move |memtable| memtable.is_frozen_upto(flushed))
    }
}

/// A keyspace.
pub(crate) struct KeyspaceState {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    /// As the manifest has them; changed under the store's `registry`.
    options: ArcSwap<KeyspaceOptions>,
    pub(crate) tree: Arc<dyn Tree>,
    /// The tree's own.
    pub(crate) log: Option<Arc<dyn OperationLog>>,
    pub(crate) read: ArcSwap<ReadState>,
    /// Earlier values of `read`; locked while it is replaced.
    retired: Mutex<Retired>,
    pub(crate) merge: MergeContext,
    /// The same for iterators, which do not cache the values that they fold.
    pub(crate) merge_of_scans: MergeContext,
    /// The operator of `merge`.
    pub(crate) operator: Option<Arc<Contained>>,
    /// The store's.
    pub(crate) hasher: Arc<KeyHasher>,
    pub(crate) counters: Arc<TreeCounters>,
    pub(crate) dropped: AtomicBool,
    /// It has had a conditional write or a transaction: commits lock their keys (`condition`).
    pub(crate) is_guarded: AtomicBool,
    /// No commit is under way that does not.
    pub(crate) is_guarded_throughout: AtomicBool,
    /// What commits that are being decided depend on.
    pub(crate) watches: Watches,
    /// The delay of its writers, from the backlog of its background work.
    pub(crate) write_delay: WriteDelay,
    /// No memtable is built before this time, after a failure.
    pub(crate) flush_backoff_until_nanos: AtomicU64,
    /// No job of the tree's own begins before this time, after a failure.
    pub(crate) compaction_backoff_until_nanos: AtomicU64,
    /// Why the last memtable did not get into the tree; cleared by one that does.
    pub(crate) flush_failure: Mutex<Option<Error>>,
    /// The failures of background flushes.
    pub(crate) flush_failures: Failures,
    /// The failures of compactions. The success of one says nothing of the place where another failed.
    pub(crate) compaction_failures: Failures,
    /// The last panic of the operator that `wait_idle` has not returned yet.
    pub(crate) operator_failure: Mutex<Option<Error>>,
    /// It has been dropped durably.
    is_gone: AtomicBool,
    /// Iterators on it.
    pub(crate) iterators: AtomicU64,
    /// What iterators have found to hold no visible pair.
    pub(crate) gaps: Arc<Gaps>,
    /// The newest generation of the tree; raised before a version with new entries is shown.
    generation: AtomicU64,
    /// The range deletes that the manifest has. Changed by one thread at a time, which holds `retired`.
    range_deletes: ArcSwap<DurableRangeDeletes>,
    pub(super) manifest: Arc<Manifest>,
    /// How many versions of its tree have been shown to readers.
    pub(super) versions_shown: AtomicU64,
    /// When range deletes that are not needed any more were looked for.
    pub(super) range_deletes_look: RangeDeletesLook,
    /// The tree knows it weakly.
    observer: Arc<Observer>,
}

/// Receives the tree's calls. It is apart from the keyspace since the tree is made first.
pub(crate) struct Observer {
    pub(crate) store: Arc<OnceLock<Weak<Store>>>,
    pub(crate) name: String,
    pub(crate) keyspace: OnceLock<Weak<KeyspaceState>>,
}

impl Observer {
    fn store(&self) -> Option<Arc<Store>> {
        self.store.get()?.upgrade()
    }
}

impl TreeObserver for Observer {
    fn installed(&self, version: Arc<dyn TreeVersion>) {
        let store = self.store();
        if let Some(keyspace) = self.keyspace.get().and_then(Weak::upgrade) {
            keyspace.installed(version, store.as_ref().map(|store| &*store.cache));
            // Threads do so when they next look for work: not under the tree's change lock.
            if store.as_ref().is_none_or(|store| store.executor.is_stepped()) {
                keyspace.drop_unheld();
            }
        }
        if let Some(store) = store {
            store.structure_changed();
        }
    }

    fn compacted(&self, read_bytes: u64, written_bytes: u64, nanos: u64) {
        if let Some(store) = self.store() {
            store.emit(|| Event::Compaction {
                keyspace: self.name.clone(),
                read_bytes,
                written_bytes,
                elapsed: std::time::Duration::from_nanos(nanos),
            });
        }
    }

    fn snapshots(&self) -> Vec<Seqno> {
        self.store().map(|store| store.live_snapshots()).unwrap_or_default()
    }

    fn range_deletes(&self) -> Arc<DurableRangeDeletes> {
        let keyspace = self.keyspace.get().and_then(Weak::upgrade);
        keyspace.map(|keyspace| keyspace.range_deletes.load_full()).unwrap_or_default()
    }

    fn lists_grew(&self) {
        if let Some(store) = self.store() {
            store.provide_for_lists();
        }
    }

    fn is_dropped(&self) -> bool {
        let keyspace = self.keyspace.get().and_then(Weak::upgrade);
        keyspace.is_some_and(|keyspace| keyspace.is_dropped())
    }
}

/// Reads blob values.
pub(crate) struct Blobs {
    pub(crate) files: Arc<BlobFiles>,
    pub(crate) caching: Caching,
}

impl Blobs {
    pub(crate) fn read(&self, pointer: &[u8]) -> Result<Slice> {
        self.files.value(&BlobPointer::of_entry(pointer)?, self.caching)
    }
}

impl BlobReader for Blobs {
    fn read_blob(&self, pointer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if self.caching == Caching::Bypasses {
            let pointer = BlobPointer::of_entry(pointer)?;
            *out = self.files.open(pointer.file)?.read(&pointer)?;
            return Ok(());
        }
        out.clear();
        out.extend_from_slice(&self.read(pointer)?);
        Ok(())
    }

    fn blob_bytes(&self, pointer: &[u8]) -> Option<u64> {
        BlobPointer::decode(pointer).map(|pointer| u64::from(pointer.length))
    }
}

/// What a keyspace is made of.
pub(crate) struct KeyspaceParts {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    pub(crate) options: KeyspaceOptions,
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) merge: MergeContext,
    /// The same for iterators, which do not cache the values that they fold.
    pub(crate) merge_of_scans: MergeContext,
    pub(crate) operator: Option<Arc<Contained>>,
    pub(crate) hasher: Arc<KeyHasher>,
    pub(crate) counters: Arc<TreeCounters>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) manifest: Arc<Manifest>,
    /// Those that the manifest has.
    pub(crate) range_deletes: Arc<DurableRangeDeletes>,
}

impl KeyspaceState {
    pub(crate) fn new(parts: KeyspaceParts, pool: &Arc<ChunkPool>) -> Arc<KeyspaceState> {
        let version = parts.tree.version();
        let active = MemtableState::new(pool);
        let range_deletes = Arc::clone(&parts.range_deletes);
        let read = ReadState::new(active, Vec::new(), (version, 0), range_deletes);
        let keyspace = Arc::new(KeyspaceState {
            id: parts.id,
            name: parts.name,
            options: ArcSwap::from_pointee(parts.options),
            log: parts.tree.operation_log(),
            tree: parts.tree,
            read: ArcSwap::from_pointee(read),
            retired: Mutex::default(),
            merge: parts.merge,
            merge_of_scans: parts.merge_of_scans,
            operator: parts.operator,
            hasher: parts.hasher,
            counters: parts.counters,
            dropped: AtomicBool::new(false),
            is_guarded: AtomicBool::new(false),
            is_guarded_throughout: AtomicBool::new(false),
            watches: Watches::default(),
            write_delay: WriteDelay::default(),
            flush_backoff_until_nanos: AtomicU64::new(0),
            compaction_backoff_until_nanos: AtomicU64::new(0),
            flush_failure: Mutex::new(None),
            flush_failures: Failures::default(),
            compaction_failures: Failures::default(),
            operator_failure: Mutex::new(None),
            is_gone: AtomicBool::new(false),
            iterators: AtomicU64::new(0),
            gaps: Arc::default(),
            generation: AtomicU64::new(0),
            range_deletes: ArcSwap::from_pointee(DurableRangeDeletes::default()),
            manifest: parts.manifest,
            versions_shown: AtomicU64::new(0),
            range_deletes_look: RangeDeletesLook::default(),
            observer: parts.observer,
        });
        keyspace.range_deletes.store(parts.range_deletes);
        // Set once: the observer is new.
        let _ = keyspace.observer.keyspace.set(Arc::downgrade(&keyspace));
        keyspace
    }

    /// The present options.
    pub(crate) fn options(&self) -> Arc<KeyspaceOptions> {
        self.options.load_full()
    }

    /// Makes other options, which the manifest has, those of the keyspace and its tree.
    pub(super) fn follow(&self, options: Arc<KeyspaceOptions>, of_tree: TreeOptions) {
        self.options.store(options);
        self.tree.set_options(of_tree);
    }

    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Returns true once it has been dropped durably.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// One more iterator reads it.
    ///
    /// # Errors
    /// If it has been dropped.
    pub(crate) fn begin_iterator(&self) -> Result<()> {
        // Before it is looked whether the keyspace was dropped: who drops it looks the other way round.
        self.iterators.fetch_add(1, Ordering::SeqCst);
        if self.dropped.load(Ordering::SeqCst) {
            self.end_iterator();
            return self.check_exists();
        }
        Ok(())
    }

    /// One less.
    pub(crate) fn end_iterator(&self) {
        if self.iterators.fetch_sub(1, Ordering::SeqCst) == 1 && self.dropped.load(Ordering::SeqCst)
        {
            self.forget_memtables();
        }
    }

    /// Nobody reads it any more if it has been dropped for good and no iterator is left: handles alone must not keep
    /// its memtables.
    pub(crate) fn forget_memtables(&self) {
        let mut retired = self.retired.lock();
        if !self.is_gone() || self.iterators.load(Ordering::SeqCst) > 0 {
            return;
        }
        let read = self.read.load_full();
        let active = MemtableState::new(&read.active.memtable.pool());
        let of_tree = (Arc::clone(&read.version), read.generation);
        let range_deletes = Arc::clone(&read.range_deletes);
        self.read.store(Arc::new(ReadState::new(active, Vec::new(), of_tree, range_deletes)));
        retired.add(read);
        let unheld = retired.take_unheld();
        drop(retired);
        drop(unheld);
    }

    /// Refuses to go on with a keyspace that has been dropped.
    #[inline]
    pub(crate) fn check_exists(&self) -> Result<()> {
        if self.is_dropped() {
            let what = format!("keyspace {:?} (it was dropped)", self.name);
            return Err(Error::Closed { what });
        }
        Ok(())
    }

    /// Whether the state's version has all that the tree has.
    #[inline]
    pub(crate) fn is_current(&self, read: &ReadState) -> bool {
        read.generation == self.generation.load(Ordering::SeqCst)
            || planted(Bug::RowCacheOfAnyGeneration)
    }

    /// Shows a new version, without the memtables that it holds. The tree calls it for one version
    /// after the other.
    ///
    /// The row cache learns of the memtables before that, without `retired`: that takes as long as reading them does,
    /// and a freeze, which all writers wait for, needs that lock. The same memtables leave before and after.
    /// The version holds only memtables that were found frozen in the read state, and no other call takes one away.
    fn installed(&self, version: Arc<dyn TreeVersion>, cache: Option<&Cache>) {
        let flushed = version.flushed();
        let before = self.read.load_full();
        let leaving: Vec<&Arc<MemtableState>> = before.leaving(flushed).collect();
        if !leaving.is_empty() {
            self.generation.fetch_add(1, Ordering::SeqCst);
            if let Some(cache) = cache {
                self.supersede_records(&leaving, cache);
            }
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let mut retired = self.retired.lock();
        let read = self.read.load_full();
        let same =
            read.leaving(flushed).map(Arc::as_ptr).eq(leaving.iter().map(|m| Arc::as_ptr(m)));
        assert!(
            same || planted(Bug::FreezeAnnouncedEarly),
            "a memtable of keyspace {:?} leaves, and the row cache does not know",
            self.name
        );
        let frozen = read
            .frozen
            .iter()
            .filter(|memtable| !memtable.is_frozen_upto(flushed))
            .filter(|_| !planted(Bug::FrozenForgotten))
            .cloned()
            .collect();
        let active = Arc::clone(&read.active);
        let range_deletes = self.range_deletes.load_full();
        let state = ReadState::new(active, frozen, (version, generation), range_deletes);
        self.read.store(Arc::new(state));
        self.versions_shown.fetch_add(1, Ordering::SeqCst);
        retired.add(read);
    }

    /// About the memory of the range deletes that the manifest has.
    pub(crate) fn range_deletes_bytes(&self) -> u64 {
        self.range_deletes.load().memory_bytes
    }

    /// The range deletes that the manifest has.
    pub(super) fn durable_range_deletes(&self) -> Arc<DurableRangeDeletes> {
        self.range_deletes.load_full()
    }

    /// The manifest has some more, which are complete up to a number. A memtable that has them gets into the tree after this:
    /// so a compaction knows those of all that it merges.
    pub(super) fn add_range_deletes(&self, more: &[RangeDelete], upto: Seqno) {
        let _replacing = self.retired.lock();
        self.range_deletes.store(Arc::new(self.range_deletes.load().with(more, upto)));
    }

    /// The tree needs some of them no more: nor does a reader who loads the read state from now on.
    pub(super) fn remove_range_deletes(&self, gone: &[Seqno]) {
        let mut retired = self.retired.lock();
        let left = Arc::new(self.range_deletes.load().without(gone));
        self.range_deletes.store(Arc::clone(&left));
        let read = self.read.load_full();
        let of_tree = (Arc::clone(&read.version), read.generation);
        let (active, frozen) = (Arc::clone(&read.active), read.frozen.clone());
        self.read.store(Arc::new(ReadState::new(active, frozen, of_tree, left)));
        retired.add(read);
    }

    /// Drops earlier states that no reader holds any more: may take its time. Returns true if readers hold
    /// others.
    pub(crate) fn drop_unheld(&self) -> bool {
        let mut retired = self.retired.lock();
        let unheld = retired.take_unheld();
        let are_held = !retired.is_empty();
        drop(retired);
        drop(unheld);
        are_held
    }

    /// Drops memtables of earlier states that no reader holds any more. Returns the bytes of those that readers hold.
    pub(super) fn drop_unheld_memtables(&self) -> u64 {
        let mut retired = self.retired.lock();
        let unheld = retired.take_unheld_states();
        let kept = retired.memtable_bytes_besides(&self.read.load());
        drop(retired);
        drop(unheld);
        kept
    }

    /// Before the tree is shown with what these memtables hold, oldest first: see `cache::RowCache`.
    fn supersede_records(&self, memtables: &[&Arc<MemtableState>], cache: &Cache) {
        let records = cache.row_cache();
        records.wait_for_admissions();
        // The rows of a range are not known. Nothing is admitted that a range delete has, and nothing from before.
        let delete_ranges = memtables.iter().any(|memtable| memtable.range_deletes.are_there());
        if delete_ranges && !planted(Bug::RangeDeleteRowsKept) {
            records.clear();
            return;
        }
        if records.is_empty() || planted(Bug::RowCacheNotSuperseded) {
            return;
        }
        // Others write records once more from here on.
        hold_open(Bug::RowCacheLookedUpUnlocked, 2);
        let mut have_grown = false;
        for memtable in memtables {
            let mut cursor = memtable.memtable.cursor();
            let mut last: Option<Vec<u8>> = None;
            // A memtable's cursor does not fail.
            let mut moved = cursor.seek_first();
            while let (Ok(()), Some(entry)) = (&moved, cursor.entry()) {
                // The first of a key's versions is the newest.
                if last.as_deref() != Some(entry.key) {
                    have_grown |= records.supersede(self.id, self.hasher.hash(entry.key), entry);
                    let last = last.get_or_insert_default();
                    last.clear();
                    last.extend_from_slice(entry.key);
                }
                moved = cursor.next();
            }
        }
        if have_grown {
            cache.row_cache_has_grown();
        }
        #[cfg(planted)]
        records.check_bytes();
    }

    /// It has been dropped for good: nothing is frozen any more, and what is frozen stays where it is.
    pub(crate) fn leave_for_good(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        // A freeze that has not seen it holds this until its memtable is in the read state.
        let freezing = self.retired.lock();
        let read = self.read.load_full();
        drop(freezing);
        read.frozen.iter().for_each(|memtable| memtable.discard());
    }

    /// Freezes the active memtable at `seqno` unless it is empty, or the keyspace is gone: nobody would take it into
    /// the tree. Only inside a commit barrier.
    pub(crate) fn freeze(&self, seqno: Seqno, pool: &Arc<ChunkPool>, nanos: u64) -> bool {
        let mut retired = self.retired.lock();
        let read = self.read.load_full();
        if read.active.memtable.is_empty() || self.is_gone() {
            return false;
        }
        let mut frozen = Vec::with_capacity(read.frozen.len() + 1);
        frozen.push(Arc::clone(&read.active));
        frozen.extend_from_slice(&read.frozen);
        let of_tree = (Arc::clone(&read.version), read.generation);
        let active = MemtableState::new(pool);
        let range_deletes = Arc::clone(&read.range_deletes);
        let state = Arc::new(ReadState::new(active, frozen, of_tree, range_deletes));
        // All that can fail comes before: an active memtable that is frozen would take in commits that readers do not
        // see.
        read.active.freeze(Seqno(seqno.0 + u64::from(planted(Bug::FreezeCutTooHigh))), nanos);
        hold_open(Bug::FreezeAnnouncedEarly, 1);
        self.read.store(state);
        retired.add(read);
        true
    }

    /// The read state and the state of its tree, of one moment, so that each memtable is counted in one of them. Where
    /// memtables get into the tree all the time, one may be counted in both, and none is missed.
    pub(crate) fn with_tree_state(&self) -> (Arc<ReadState>, TreeState) {
        self.with_tree_state_while(|| ())
    }

    /// The same; calls `meanwhile` between the two for the first time.
    pub(crate) fn with_tree_state_while(
        &self,
        meanwhile: impl FnOnce(),
    ) -> (Arc<ReadState>, TreeState) {
        let mut meanwhile = Some(meanwhile);
        for _ in 0..TRIES_FOR_ONE_MOMENT {
            let read = self.read.load_full();
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            let state = self.tree.state();
            // A version that has been replaced does not come back.
            if Arc::ptr_eq(&self.tree.version(), &read.version) {
                return (read, state);
            }
            // It has been replaced in the tree, and soon will be here.
            yield_now();
        }
        let read = self.read.load_full();
        let state = self.tree.state();
        (read, state)
    }

    /// Why its last memtable did not get into the tree, if it did not.
    pub(crate) fn failure_to_flush(&self) -> Option<Error> {
        self.flush_failure.lock().clone()
    }

    /// Everything of this keyspace up to here is in its tree, as far as `visible` is applied.
    pub(crate) fn persisted_upto(&self, visible: Seqno) -> Seqno {
        let read = self.read.load();
        let memtables = read.frozen.iter().filter(|_| !planted(Bug::FrozenNotCounted));
        let memtables = memtables.chain([&read.active]);
        let oldest = memtables
            .filter_map(|memtable| memtable.memtable.seqno_bounds())
            .map(|(min, _)| min)
            .min();
        oldest.map_or(visible, |oldest| visible.min(Seqno(oldest.0.saturating_sub(1))))
    }
}
