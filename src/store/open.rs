//! Opening a store: manifest, trees, journal, orphans.
//!
//! Invariants:
//! 1. Nothing is written before the lock is held, and the lock file is not made where no store is or may be.
//! 2. What replay delivers is what was committed, up to the first gap; the manifest records that limit
//!    before anything new is written, so what lies beyond it never comes back.
//! 3. A data file that neither a tree nor a replayed pointer names is an orphan of a crash: it goes. Where one
//!    proves that the manifest has lost its end (`strangers`), opening is refused, and none goes.
//! 4. A read-only open writes nothing: its file system refuses to (`ReadOnlyVfs`), and what replay brings
//!    stays in memory, within the budget (`Room`).
//! 5. An open that fails leaves each data file that was there, and of those that it made itself only
//!    what a tree has taken in: or each try would take more of a disk that is full.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use super::background::{UNSETTLED, initial_drain_rate};
use super::counters::Counters;
use super::events::Event;
use super::failures::{FailureCount, Failures};
use super::in_flight::InFlight;
use super::kept_state::Kept;
use super::key_locks::KeyLocks;
use super::open_iterators::OpenIterators;
use super::options::{BackgroundMode, Builder};
use super::persistent_memory::{self, Attached, Claim, Opening};
use super::quarantine::{Quarantine, Quarantined, concerns_one};
use super::recovery::RecoveryReport;
use super::replay::{Replayed, epoch_number};
use super::rest_state::{JobMemory, Rest};
use super::sizes::{Parallelism, Sizes, cache_stripes};
use super::snapshots::Snapshots;
use super::state::{Blobs, KeyspaceParts, KeyspaceState, Observer};
use super::store::{Store, StoreContext};
use super::strangers::{origins_of_unknown, stranger};
use super::transaction_locks::TransactionLocks;
use super::transaction_memory::TransactionMemory;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::key_hash::{HashSecret, KeyHasher};
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::random::SplitMix;
use crate::base::range_delete::RangeDelete;
use crate::base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::base::sync::{ArcSwap, Condvar, Mutex, RwLock};
use crate::cache::{Cache, CacheOptions, DataFiles, FileType};
use crate::commit::{Committer, Throttle};
use crate::jobs::{Clock, Courier, Executor, Mode, WorkSource, unpredictable};
use crate::journal::{Journal, JournalOptions, ReplayReport};
use crate::manifest::{
    Edit, Epochs, LOCK_FILE_NAME, Manifest, NewStore, OpenOptions, RecoveredKeyspace,
    RecoveredState, TreeEdit,
};
use crate::memtable::ChunkPool;
use crate::merge::{BlobReader, Contained, DurableRangeDeletes, MergeContext, MergeOperator};
use crate::table::{BlobFiles, Caching, Origin};
use crate::tree::kinds::{self, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::{OperationSource, TreeContext, TreeCounters, TreeObserver, TreeOptions};
use crate::vfs::{Lock, ReadOnlyVfs, Vfs, create_dir_durably};

/// More background threads, or journal shards, than this are taken for a mistake in the options. What is chosen from the
/// machine has no such limit.
const WORKERS_MAX: usize = 1024;
const SHARDS_MAX: usize = 1024;

/// Everything about a keyspace but its edits.
pub(crate) struct KeyspaceSeed {
    pub(crate) id: KeyspaceId,
    pub(crate) name: String,
    pub(crate) options: KeyspaceOptions,
    pub(crate) flushed: Seqno,
    pub(crate) range_deletes: Vec<RangeDelete>,
}

/// What the manifest's keyspaces have become.
#[derive(Default)]
struct Opened {
    keyspaces: BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
    /// Those that could not be opened.
    quarantined: BTreeMap<String, Quarantined>,
    /// The operations that trees keep themselves, also of quarantined keyspaces: the others need their numbers.
    logs: Vec<Arc<dyn OperationSource>>,
}

impl StoreContext {
    /// Makes the state of a keyspace from what the manifest has of it.
    pub(crate) fn make_keyspace(
        &self,
        seed: KeyspaceSeed,
        edits: &[TreeEdit],
    ) -> Result<Arc<KeyspaceState>> {
        // Without its operator a keyspace is opened all the same: only what needs the operator fails.
        let operator_name = seed.options.merge_operator.as_deref();
        let operator = operator_name.and_then(|name| {
            let operator = Arc::clone(self.merge_operators.get(name)?);
            Some(Contained::new(&seed.name, name, operator))
        });
        let merge = MergeContext {
            keyspace: Arc::from(&*seed.name),
            operator_name: operator_name.map(Arc::from),
            operator: operator.clone().map(|operator| operator as Arc<dyn MergeOperator>),
            blobs: Some(self.blob_reader(Caching::Bypasses)),
        };
        let counters = Arc::new(TreeCounters::default());
        let observer = Arc::new(Observer {
            store: Arc::clone(&self.store),
            name: seed.name.clone(),
            keyspace: OnceLock::new(),
        });
        let as_tree_observer: Arc<dyn TreeObserver> = Arc::<Observer>::clone(&observer);
        let options = &seed.options;
        let context = TreeContext {
            keyspace: seed.id,
            options: Arc::new(ArcSwap::from_pointee(
                self.tree_options(seed.id, &seed.name, options),
            )),
            merge: merge.clone(),
            files: Arc::clone(&self.files),
            blobs: Arc::clone(&self.blobs),
            manifest: Arc::clone(&self.manifest),
            counters: Arc::clone(&counters),
            clock: Arc::clone(&self.clock),
            observer: Arc::downgrade(&as_tree_observer),
        };
        let tree = kinds::open(options.kind, context, edits, seed.flushed)?;
        let merge_of_scans =
            MergeContext { blobs: Some(self.blob_reader(Caching::Looks)), ..merge.clone() };
        let merge = MergeContext { blobs: Some(self.blob_reader(Caching::Caches)), ..merge };
        let (id, name, options) = (seed.id, seed.name, seed.options);
        let range_deletes = DurableRangeDeletes::new(seed.range_deletes, seed.flushed);
        let hasher = Arc::clone(&self.files.hasher);
        let parts = KeyspaceParts {
            id,
            name,
            options,
            tree,
            merge,
            merge_of_scans,
            operator,
            hasher,
            counters,
            observer,
            manifest: Arc::clone(&self.manifest),
            range_deletes: Arc::new(range_deletes),
        };
        Ok(KeyspaceState::new(parts, &self.pool))
    }

    fn blob_reader(&self, caching: Caching) -> Arc<dyn BlobReader> {
        Arc::new(Blobs { files: Arc::clone(&self.blobs), caching })
    }

    /// The options of a keyspace's tree.
    pub(super) fn tree_options(
        &self,
        keyspace: KeyspaceId,
        name: &str,
        options: &KeyspaceOptions,
    ) -> TreeOptions {
        TreeOptions {
            kind: options.kind,
            origin: Arc::new(Origin { keyspace, meta: options.meta(name) }),
            compression: options.compression.page_compression(),
            memtable_bytes: self.sizes.memtable_bytes,
            own: options.own.clone(),
            seek_compaction: self.switches.seek_compaction && options.has_seek_compaction(),
            merges_for_reads_max: self.sizes.merges_for_reads_max,
            blob_bytes_min: options.blob_bytes_min as usize,
            space_amplification_max_percent: u64::from(options.space_amplification_max_percent),
            job_bytes_max: self.sizes.job_bytes_max,
            fold_bytes_max: self.sizes.fold_bytes_max,
        }
    }

    /// Numbers of files that exist are not handed out again, even if the manifest does not know them.
    /// Returns the first number that is.
    fn reserve_file_ids(&self) -> Result<FileId> {
        for name in self.vfs.read_names(&self.path)? {
            if let Some((id, _)) = DataFiles::parse_name(&name) {
                self.files.reserve(FileId(id.0.saturating_add(1)));
            }
        }
        Ok(self.files.next_file_id())
    }

    /// Opens the keyspaces that the manifest has, and tells of those that could not be opened.
    fn recover_keyspaces(&self, recovered: &mut RecoveredState) -> Result<Opened> {
        let mut opened = Opened::default();
        let manifest = self.manifest.path();
        for found in std::mem::take(&mut recovered.keyspaces) {
            let (id, name, flushed) = (found.id, found.meta.name.clone(), found.flushed);
            let mut has_log = false;
            if let Some(kind) = TreeKind::from_name(&found.meta.kind) {
                let edits = || found.tree();
                let logs = kinds::operation_sources(kind, &self.files, edits, &manifest)?;
                has_log = !logs.is_empty();
                opened.logs.extend(logs);
            }
            match self.recover_keyspace(found) {
                Ok(keyspace) => {
                    opened.keyspaces.insert(id, keyspace);
                }
                // A manifest that ends in bytes that are no record may be what is damaged.
                Err(error)
                    if recovered.torn_bytes == 0
                        && concerns_one(&error, |file| *file == manifest) =>
                {
                    let quarantined = Quarantined { id, flushed, has_log, error };
                    opened.quarantined.insert(name, quarantined);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(opened)
    }

    fn recover_keyspace(&self, found: RecoveredKeyspace) -> Result<Arc<KeyspaceState>> {
        let kind = TreeKind::of_stored(&found.meta.kind, &found.meta.name)?;
        let edits = found.tree();
        let options = KeyspaceOptions::decode(
            kind,
            found.meta.operator,
            &found.meta.options,
            (&self.manifest.path(), found.options_offset),
        )?;
        let (id, name, flushed) = (found.id, found.meta.name, found.flushed);
        let range_deletes = found.range_deletes;
        self.make_keyspace(KeyspaceSeed { id, name, options, flushed, range_deletes }, &edits)
    }

    /// The data files that trees and replayed pointers name.
    fn named_files(
        &self,
        keyspaces: &BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
    ) -> BTreeSet<PathBuf> {
        let mut named: BTreeSet<PathBuf> = BTreeSet::new();
        for keyspace in keyspaces.values() {
            let read = keyspace.read.load();
            named.extend(read.version.files());
            for memtable in read.frozen.iter().chain([&read.active]) {
                if planted(Bug::OpenRemovesBlobs) {
                    continue;
                }
                let blobs = memtable.blobs.lock();
                named.extend(blobs.iter().map(|blob| self.files.path(blob.id(), FileType::Blob)));
            }
        }
        named
    }

    /// Makes sure that no table is of a keyspace that the manifest does not know yet.
    ///
    /// # Errors
    /// `Corruption` that names the manifest.
    fn check_strangers(
        &self,
        keyspaces: &BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
        next: KeyspaceId,
    ) -> Result<()> {
        let named = self.named_files(keyspaces);
        let names = self.vfs.read_names(&self.path)?;
        let known = |id| named.contains(&self.files.path(id, FileType::Table));
        let (manifest, end) = (self.manifest.path(), self.manifest.bytes_total());
        let mut unknown = origins_of_unknown(&self.files, names.iter(), known);
        match unknown.find_map(|table| stranger((&manifest, end), next, &table)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Removes data files that nothing names, of those with this number or a higher one.
    fn remove_orphans(
        &self,
        keyspaces: &BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
        first: FileId,
    ) -> Result<u64> {
        if planted(Bug::OpenKeepsOrphans) {
            return Ok(0);
        }
        let named = self.named_files(keyspaces);
        let mut removed = 0;
        for name in self.vfs.read_names(&self.path)? {
            let path = self.path.join(&name);
            let id = DataFiles::parse_name(&name).map(|(id, _)| id);
            if id.is_some_and(|id| id >= first) && !named.contains(&path) {
                self.vfs.remove(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Replays the journal, and returns the last number that has been used too: an error if the journal ends
    /// before what is known to have been durable.
    fn replay_checked(
        &self,
        recovered: &RecoveredState,
        Opened { keyspaces, quarantined, logs }: &mut Opened,
        salvage: bool,
    ) -> Result<(ReplayReport, u64, Seqno)> {
        let Replayed { mut report, failed, memtables_weighed } =
            self.replay(recovered, keyspaces, logs, salvage)?;
        for (id, error) in failed {
            if let Some(keyspace) = keyspaces.remove(&id) {
                let flushed = keyspace.read.load().version.flushed();
                let has_log = keyspace.log.is_some();
                let failed = Quarantined { id, flushed, has_log, error };
                quarantined.insert(keyspace.name.clone(), failed);
            }
        }
        let flushed = keyspaces.values().map(|keyspace| keyspace.read.load().version.flushed());
        let flushed = flushed.chain(quarantined.values().map(|keyspace| keyspace.flushed)).max();
        let replayed = report.last.max(recovered.journal_floor);
        let found = replayed.max(flushed.unwrap_or_default());
        if replayed < recovered.last_seqno && (!salvage || report.damage_salvaged.is_empty()) {
            // Everything up to there was durable once: when the store was closed, or opened, or when one
            // tree got ahead of the others. So what seems torn is damaged.
            let (file, offset, what) = match report.torn.first() {
                Some(torn) => (
                    torn.file.clone(),
                    torn.offset,
                    match salvage {
                        false => {
                            "journal record (opening with `salvage_journal` takes what is before it)"
                        }
                        true => "journal record",
                    },
                ),
                None => (
                    self.path.join(format!("journal-{:08}-*.log", recovered.epochs.current)),
                    0,
                    match salvage {
                        false => {
                            "journal (a file of it is missing; opening with `salvage_journal` takes what is left)"
                        }
                        true => "journal (a file of it is missing)",
                    },
                ),
            };
            let damage = Error::corruption(
                &file,
                offset,
                what,
                format_args!("commits up to {}", recovered.last_seqno),
                format_args!("commits up to {replayed}"),
            );
            // Several shards may seem torn, of which only one need be damaged; none says which.
            let damage = (report.torn.iter().skip(1))
                .fold(damage, |damage, torn| damage.or_damaged(&torn.file, torn.offset));
            if !salvage {
                return Err(damage);
            }
            report.damage_salvaged.push(damage);
        }
        let last = match planted(Bug::OpenNumbersTooLow) {
            true => report.last,
            false => found.max(recovered.last_seqno),
        };
        Ok((report, memtables_weighed, last))
    }

    /// Replays the journal and makes the manifest begin a new epoch, unless the store is only read.
    fn begin_epoch(
        &self,
        recovered: &RecoveredState,
        opened: &mut Opened,
        salvage: bool,
        claim: Option<&Claim>,
    ) -> Result<Begun> {
        let (report, memtables_weighed, last) = self.replay_checked(recovered, opened, salvage)?;
        let Opened { keyspaces, quarantined, .. } = opened;
        if self.read_only {
            let epoch = epoch_number(recovered.epochs.current)?;
            return Ok(Begun { report, memtables_weighed, epoch, last, orphans_removed: 0 });
        }
        let epoch = epoch_number(recovered.epochs.current + claim.map_or(1, Claim::epoch_step))?;
        let older =
            report.limits.iter().map(|limit| (u64::from(limit.epoch), limit.last)).collect();
        // A power loss took journal records of what was in the trees already. New records will start
        // behind a gap, so nothing before it may be needed from the journal any more.
        let is_behind = last > report.last && !planted(Bug::OpenFloorNotRaised);
        if is_behind
            && let Some(quarantined) = quarantined.values().find(|q| q.flushed < report.last)
        {
            return Err(quarantined.error.clone());
        }
        // What can be known to fail has not: a memory that is lost may be found again until here.
        claim.map_or(Ok(()), Claim::give_up_lost)?;
        let mut journal_floor = None;
        if is_behind {
            let all: Vec<_> = keyspaces.values().collect();
            self.freeze_and_flush(&all, last, None)?;
            journal_floor = Some(last);
        }
        self.manifest.commit(&Edit {
            journal_floor,
            epochs: Some(Epochs { current: u64::from(epoch), older }),
            last_seqno: Some(last),
            next_file_id: Some(self.files.next_file_id()),
            ..Edit::default()
        })?;
        let orphans_removed = match quarantined.is_empty() || planted(Bug::QuarantineOrphans) {
            true => self.remove_orphans(keyspaces, FileId(0))?,
            false => 0,
        };
        Ok(Begun { report, memtables_weighed, epoch, last, orphans_removed })
    }
}

/// A new epoch, durable in the manifest, and what came before it.
struct Begun {
    epoch: u32,
    /// The last sequence number that has been used.
    last: Seqno,
    report: ReplayReport,
    memtables_weighed: u64,
    orphans_removed: u64,
}

/// What a store gets if this open makes it: a number that no other store has, and a secret that nobody
/// knows. In deterministic mode both follow from the seed.
fn new_identity(builder: &Builder) -> Result<NewStore> {
    if let BackgroundMode::Stepped(seed) = builder.background {
        let mut random = SplitMix::new(seed);
        let hash_secret = HashSecret::of_words([random.next(), random.next()]);
        return Ok(NewStore { store_id: seed ^ 0x5350_494e_4e45_5921, hash_secret });
    }
    let [store_id, low, high] = unpredictable()?;
    Ok(NewStore { store_id, hash_secret: HashSecret::of_words([low, high]) })
}

/// Opens the store that `builder` describes.
pub(crate) fn open(builder: Builder) -> Result<Arc<Store>> {
    let vfs = Arc::clone(&builder.vfs);
    let path = &builder.path;
    if !vfs.exists(path)? {
        if !builder.create {
            let reason = "the directory does not exist".to_string();
            return Err(Error::NotAStore { path: path.clone(), reason });
        }
        create_dir_durably(&*vfs, path)?;
    }
    // What is no store is left as it is.
    Manifest::find_or_free(&*vfs, path, builder.create)?;
    let lock = vfs.lock(&path.join(LOCK_FILE_NAME))?;
    let options = OpenOptions { create: builder.create, new_store: new_identity(&builder)? };
    let opened = Manifest::open(&vfs, path, options)?;
    open_locked(builder, vfs, lock, opened, false)
}

/// Opens the store that `builder` describes for reading.
pub(crate) fn open_read_only(builder: Builder) -> Result<Arc<Store>> {
    let vfs: Arc<dyn Vfs> = Arc::new(ReadOnlyVfs(Arc::clone(&builder.vfs)));
    let path = &builder.path;
    // What is no store is told to be none before anything is said of locks.
    Manifest::find(&*vfs, path)?;
    let lock = vfs.lock_shared(&path.join(LOCK_FILE_NAME))?;
    let opened = Manifest::open_read_only(&vfs, path)?;
    open_locked(builder, vfs, lock, opened, true)
}

/// Opens the store whose lock is held and whose manifest has been read.
fn open_locked(
    builder: Builder,
    vfs: Arc<dyn Vfs>,
    lock: Box<dyn Lock>,
    (manifest, mut recovered): (Manifest, RecoveredState),
    read_only: bool,
) -> Result<Arc<Store>> {
    let path = builder.path.clone();
    if let BackgroundMode::Threads(n) = builder.background
        && n > WORKERS_MAX
    {
        return Err(Error::invalid(format!(
            "a store has 1 to {WORKERS_MAX} background threads, not {n} \
             (Builder::background_threads)"
        )));
    }
    if builder.journal_shards > SHARDS_MAX {
        return Err(Error::invalid(format!(
            "a journal has 1 to {SHARDS_MAX} shards, not {} (Builder::journal_shards)",
            builder.journal_shards
        )));
    }
    let opening = Opening {
        dir: &path,
        memory: builder.persistent_memory.as_ref(),
        epoch: epoch_number(recovered.epochs.current)?,
        salvage: builder.salvage,
        read_only,
        is_stepped: builder.is_stepped(),
    };
    let attached = persistent_memory::attach(&opening, vfs, lock, recovered.store_id)?;
    let Attached { vfs, lock, lost, claim } = attached;
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let mut parallelism = Parallelism::new(&builder, cores);
    if read_only {
        // Nothing is done in the background.
        parallelism.workers = 0;
    }
    let Parallelism { workers, shards } = parallelism;
    let (mode, clock) = match builder.background {
        BackgroundMode::Threads(_) => (Mode::Threads(workers), Clock::real()),
        BackgroundMode::Stepped(seed) => (Mode::Stepped(seed), Clock::simulated()),
    };
    let mut sizes = Sizes::new(&builder, parallelism);
    if read_only {
        sizes.memtables_bytes_max = sizes.read_only_memtables_bytes_max();
    }
    let memtables_share = (sizes.memtable_bytes * 2).min(sizes.memtables_bytes_max);
    let cache_bytes =
        sizes.cache_bytes(sizes.job_bytes() * workers as u64, memtables_share, 0) as usize;
    let is_stepped = matches!(builder.background, BackgroundMode::Stepped(_));
    let row_cache_bytes_max = sizes.row_cache_bytes_max(workers) as usize;
    let stripes = cache_stripes(&builder, cores, sizes.cache_bytes_min() as usize);
    let cache_options = CacheOptions { row_cache_bytes_max, stripes, deterministic: is_stepped };
    let cache = Arc::new(Cache::with_options(cache_bytes, cache_options));
    let files = Arc::new(DataFiles::new(
        Arc::clone(&vfs),
        Arc::clone(&cache),
        &path,
        recovered.next_file_id.max(FileId(1)),
        Arc::new(KeyHasher::new(recovered.hash_secret)),
    ));
    files.read_ahead.set_bytes_max(sizes.read_ahead_bytes_max as usize);
    let pool = Arc::new(ChunkPool::new(sizes.memtables_bytes_max as usize));
    let opened: Arc<OnceLock<Weak<Store>>> = Arc::new(OnceLock::new());
    files.keep_free(sizes.free_bytes_min, {
        let (pool, opened) = (Arc::clone(&pool), Arc::clone(&opened));
        move || {
            let store = opened.get().and_then(Weak::upgrade);
            let unbuilt = store.and_then(|store| store.unbuilt_bytes());
            unbuilt.unwrap_or(pool.bytes_in_use() as u64)
        }
    });
    let context = StoreContext {
        blobs: BlobFiles::new(&files),
        files,
        path,
        read_only,
        vfs,
        sizes,
        switches: builder.switches,
        poison: Arc::clone(manifest.poison()),
        manifest: Arc::new(manifest),
        cache,
        pool,
        clock: Arc::new(clock),
        merge_operators: builder.merge_operators,
        store: opened,
    };
    // An open that fails leaves the files as they were.
    context.files.retain_for_now();
    let first_new = context.reserve_file_ids()?;
    let mut opened = context
        .recover_keyspaces(&mut recovered)
        .map_err(|error| blame_manifest(error, &context.manifest, &recovered))?;
    context.check_strangers(&opened.keyspaces, recovered.next_keyspace_id)?;
    let begun = context
        .begin_epoch(&recovered, &mut opened, builder.salvage, claim.as_ref())
        .inspect_err(|_| {
            // Where the manifest is in doubt, so is what it names.
            if !read_only && !context.poison.is_set() {
                // What cannot be removed now is an orphan of the next open that succeeds.
                let _ = context.remove_orphans(&opened.keyspaces, first_new);
            }
        })
        .map_err(|error| blame_manifest(error, &context.manifest, &recovered))?;
    let Begun { mut report, memtables_weighed, epoch, last, orphans_removed } = begun;
    report.damage_salvaged.extend(lost);
    if let Some(claim) = claim {
        claim.settle(epoch)?;
    }
    let Opened { keyspaces, quarantined, .. } = opened;
    let quarantine = Quarantine::new(quarantined);
    let journal = Arc::new(Journal::create(
        Arc::clone(&context.vfs),
        &context.path,
        JournalOptions {
            shards,
            segment_bytes: sizes.segment_bytes,
            free_bytes_min: sizes.free_bytes_min,
            store_id: recovered.store_id,
            epoch,
        },
        report.segments.clone(),
        Arc::clone(&context.poison),
    )?);
    if !read_only {
        let logs = keyspaces.values().filter_map(|keyspace| keyspace.log.as_ref());
        logs.for_each(|log| journal.attach(log, last));
        if quarantine.is_empty() {
            context.files.retain_no_longer();
        }
    }
    let by_name =
        keyspaces.into_values().map(|keyspace| (keyspace.name.clone(), keyspace)).collect();
    let events = match builder.listener {
        Some(listener) => {
            let deliver = Box::new(move |event: &Event| listener.event(event));
            Some(Courier::new(is_stepped, deliver)?)
        }
        None => None,
    };
    let store = Arc::new(Store {
        committer: Committer::new(
            Arc::clone(&journal),
            last,
            matches!(builder.background, BackgroundMode::Stepped(_)),
        ),
        journal,
        throttle: Throttle::default(),
        snapshots: Arc::new(Snapshots::default()),
        pressure: Mutex::new(()),
        open_iterators: OpenIterators::new(sizes.iterators_bytes_max),
        executor: Executor::new(mode),
        counters: Counters::default(),
        events,
        recovery: RecoveryReport {
            keyspaces_not_opened: quarantine.names(),
            memtables_weighed,
            ..recovery_report(&report, recovered.torn_bytes, orphans_removed)
        },
        keyspaces: RwLock::new(by_name),
        quarantine,
        registry: Mutex::new(()),
        in_flight: InFlight::new(sizes.memtable_bytes / 2),
        incorporation: Mutex::new(()),
        next_keyspace_id: AtomicU32::new(recovered.next_keyspace_id.0.max(1)),
        keyspace_changes: AtomicU64::new(0),
        smaller_trees_bytes: AtomicU64::new(0),
        grown_indexes_bytes: AtomicU64::new(0),
        key_locks: KeyLocks::default(),
        transaction_locks: Arc::new(TransactionLocks::default()),
        transaction_memory: TransactionMemory::new(sizes.memory_budget),
        closed: AtomicBool::new(false),
        closing: Mutex::default(),
        closed_by_one: Condvar::new(),
        birthplace: Birthplace::here(),
        panicked: AtomicBool::new(false),
        upkeep_failures: Failures::default(),
        failure_count: FailureCount::default(),
        upkeep_running: AtomicBool::new(false),
        manifest_settled_at: AtomicU64::new(UNSETTLED),
        work_done: AtomicU64::new(0),
        upkeep_backoff_until_nanos: AtomicU64::new(0),
        workers,
        compacting: AtomicU64::new(0),
        memtables_share: AtomicU64::new(memtables_share),
        kept: Kept::new(sizes.memory_budget),
        rest: Rest::default(),
        job_memory: JobMemory::new(),
        cache_share: Mutex::new(cache_bytes as u64),
        drain_rate: initial_drain_rate(),
        context,
        _lock: lock,
    });
    // Set once: the context is new.
    let _ = store.store.set(Arc::downgrade(&store));
    store.leave_room_for_indexes();
    let listening = Arc::downgrade(&store);
    store.poison.listen(move |error| {
        if let Some(store) = listening.upgrade() {
            store.poisoned(error);
        }
    });
    if !read_only {
        let source: Arc<dyn WorkSource> = Arc::<Store>::clone(&store);
        store.executor.start(Arc::downgrade(&source))?;
        store.update_backlog();
    }
    store.share_memory();
    for error in store.quarantine.errors() {
        store.emit(|| Event::Error { error });
    }
    Ok(store)
}

/// Files go only once the manifest durably has them no more, and segments of the journal only once it
/// durably has what they held. So where the manifest ends with bytes that are no record, and what it then
/// asks for is gone, the record may have been durable, and is damaged. What was gone may itself be what
/// is damaged: both are named, and opening tells of neither as the one.
fn blame_manifest(error: Error, manifest: &Manifest, recovered: &RecoveredState) -> Error {
    let Error::Corruption { file, offset, what, expected, found } = &error else { return error };
    if recovered.torn_bytes == 0 || *file == manifest.path() {
        return error;
    }
    Error::corruption(
        &manifest.path(),
        manifest.bytes_total(),
        "last record",
        format_args!("one that does without {}, or that in order", file.display()),
        format_args!(
            "{} bytes that are none (or damaged: {} at byte {offset}: {what}: expected {expected}, found \
             {found})",
            recovered.torn_bytes,
            file.display()
        ),
    )
}

fn recovery_report(
    report: &ReplayReport,
    manifest_bytes_dropped: u64,
    orphans_removed: u64,
) -> RecoveryReport {
    let mut stops: Vec<String> = Vec::new();
    stops.extend(report.torn.iter().map(|torn| {
        format!(
            "{} ends at byte {} with a torn record ({}), {} whole ones behind it",
            torn.file.display(),
            torn.offset,
            torn.what,
            torn.records_dropped
        )
    }));
    stops.extend(report.gap.map(|gap| {
        format!("commit {} is missing; the next one found was {}", gap.expected, gap.found)
    }));
    let journal_damage: Vec<String> =
        report.damage_salvaged.iter().map(Error::description).collect();
    stops.extend(journal_damage.iter().cloned());
    RecoveryReport {
        records_replayed: report.records,
        bytes_replayed: report.bytes,
        records_dropped: report.records_dropped,
        bytes_dropped: report.bytes_dropped,
        manifest_bytes_dropped,
        stopped: (!stops.is_empty()).then(|| stops.join("; ")),
        journal_damage,
        journal_damage_skipped: report.damage_skipped.iter().map(Error::description).collect(),
        orphans_removed,
        keyspaces_not_opened: Vec::new(),
        memtables_weighed: 0,
    }
}
