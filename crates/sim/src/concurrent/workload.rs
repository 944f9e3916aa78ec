//! A workload on a store so small that memtables freeze, nodes flush, leaves split, pages are
//! evicted and space is reclaimed all the time.
//!
//! Invariants:
//! 1. Every operation is in the history. Problems that are visible without it are there as `Odd`.
//! 2. A thread that hangs ends the run, not the process: it keeps its store.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::Duration;

use spinney::vfs::{MemoryVfs, PosixVfs, Vfs};
use spinney::{Builder, CheckLevel, Compression, Database, Keyspace, KeyspaceOptions, Snapshot};

use super::Extent;
use super::history::{Action, Clock, History, Operation};
use super::slow::{Pace, Rest};
use super::upkeep::Upkeep;
use super::worker::Worker;
use crate::kinds::{Kinds, with_fanout};
use crate::outcome::panic_text;
use crate::random::Random;
use crate::vfs::WatchedVfs;

/// After so many looks without anything having been done, a run is over. Looks are counted, not
/// time: a machine may stand still as a whole.
const STALL_LOOKS: u32 = 150;
const LOOK: Duration = Duration::from_millis(200);

/// The keyspace that comes and goes.
pub(super) const PASSING: &str = "passing";

/// The sizes of a run's store.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) keys: u32,
    pub(super) value_bytes: usize,
    pub(super) keyspaces: usize,
    pub(super) theme: Theme,
    memtable_bytes: u64,
    shards: usize,
    background_threads: usize,
    fanout: u32,
    /// What the page cache may take, if it is to be tiny.
    cache_bytes: Option<u64>,
    /// How many deleted entries iterators remember as a gap.
    gap_entries: u32,
    rest_nanos: u64,
}

/// What a run has more of than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Theme {
    /// A little of everything.
    Plain,
    /// Reads of keys that the row cache has room for a few of, in several keyspaces.
    Records,
    /// Segments that are full after a few commits, and keyspaces that come and go under them.
    Rolls,
}

impl Sizes {
    fn new(seed: u64) -> Sizes {
        let sizes = Sizes::plain(seed);
        let mut random = Random::new(&[seed, 23]);
        match random.below(4) {
            // So few that memtables leave, and records are superseded and written once more, all
            // the time. The cache is so small that half of what is read comes from the disk:
            // nothing else becomes a record.
            0 => Sizes {
                theme: Theme::Records,
                keys: [4, 12][random.below(2)],
                value_bytes: [200, 1200][random.below(2)],
                keyspaces: 2 + random.below(2),
                memtable_bytes: [1024, 4096][random.below(2)],
                background_threads: 1 + random.below(3),
                cache_bytes: Some([25 << 10, 40 << 10][random.below(2)]),
                ..sizes
            },
            // A segment is half a memtable, 8 KiB at least.
            1 => Sizes {
                theme: Theme::Rolls,
                value_bytes: [1500, 4000][random.below(2)],
                keyspaces: 1 + random.below(2),
                memtable_bytes: 16_384,
                shards: 1 + random.below(2),
                ..sizes
            },
            _ => sizes,
        }
    }

    fn plain(seed: u64) -> Sizes {
        let mut random = Random::new(&[seed, 21]);
        Sizes {
            theme: Theme::Plain,
            keys: [6, 30, 120][random.below(3)],
            value_bytes: [8, 40, 200][random.below(3)],
            keyspaces: 1 + random.below(3),
            memtable_bytes: [1024, 2048, 4096, 16_384][random.below(4)],
            shards: random.below(4),
            background_threads: 1 + random.below(3),
            fanout: 2 + random.below(3) as u32,
            cache_bytes: [Some(32 << 10), Some(128 << 10), None][random.below(3)],
            gap_entries: 1 + random.below(4) as u32,
            rest_nanos: [0, 1_000_000, u64::MAX][random.below(3)],
        }
    }
}

/// A keyspace, from its creation on.
#[derive(Clone)]
pub(super) struct Space {
    pub(super) number: u32,
    pub(super) keyspace: Keyspace,
}

/// What all threads share.
pub(super) struct Shared {
    pub(super) seed: u64,
    pub(super) kinds: Kinds,
    pub(super) sizes: Sizes,
    pub(super) clock: Clock,
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) dir: PathBuf,
    /// Those one may use; some of them have been dropped.
    pub(super) spaces: RwLock<Vec<Space>>,
    /// Snapshots that any thread may take over.
    pub(super) pool: Mutex<Vec<(u32, Snapshot)>>,
    /// The number of the keyspace that comes and goes, while it is there.
    pub(super) passing: Mutex<Option<u32>>,
    views: AtomicU32,
    created: AtomicU32,
    /// The options of keyspaces that have been given others than they were created with.
    pub(super) altered: Mutex<BTreeMap<String, KeyspaceOptions>>,
    pub(super) working: AtomicUsize,
    pub(super) stop: AtomicBool,
    rest: Arc<Rest>,
}

/// A lock, whoever panicked while holding it.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn next_view(&self) -> u32 {
        self.views.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn next_space(&self) -> u32 {
        self.created.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn spaces(&self) -> Vec<Space> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_spaces(&self, spaces: Vec<Space>) {
        *self.spaces.write().unwrap_or_else(PoisonError::into_inner) = spaces;
    }

    pub(super) fn builder(&self, dir: &Path) -> Builder {
        let builder = Database::builder(dir)
            .vfs(Arc::clone(&self.vfs))
            .memory_budget(1 << 20)
            .memtable_bytes(self.sizes.memtable_bytes)
            .gap_entries_min(self.sizes.gap_entries)
            .rest_nanos(self.sizes.rest_nanos)
            .journal_shards(self.sizes.shards)
            .cache_stripes(self.sizes.shards)
            .background_threads(self.sizes.background_threads);
        match self.sizes.cache_bytes {
            Some(bytes) => builder.cache_bytes(bytes),
            None => builder,
        }
    }

    /// The options of the keyspace of that name and number.
    pub(super) fn options(&self, name: &str, number: usize) -> KeyspaceOptions {
        let kind = self.kinds.of(number);
        let options = with_fanout(KeyspaceOptions::new(kind), self.sizes.fanout)
            .merge_operator("append")
            .blob_bytes_min(if number == 1 { 100 } else { 4096 });
        match name.len() % 2 {
            0 => options.compression(Compression::Lz4),
            _ => options,
        }
    }
}

/// What one thread notes.
pub(super) struct Recorder {
    pub(super) shared: Arc<Shared>,
    pub(super) thread: u32,
    pub(super) operations: Vec<Operation>,
}

impl Recorder {
    pub(super) fn note(&mut self, begun: u64, action: Action) {
        let ended = self.shared.clock.tick();
        self.operations.push(Operation { thread: self.thread, begun, ended, action });
    }

    /// Carries something out and notes what came of it.
    pub(super) fn record<T>(&mut self, f: impl FnOnce() -> T, action: impl FnOnce(T) -> Action) {
        let begun = self.shared.clock.tick();
        let result = f();
        let ended = self.shared.clock.tick();
        let action = action(result);
        self.operations.push(Operation { thread: self.thread, begun, ended, action });
    }

    /// Does something that must not fail.
    pub(super) fn must<T>(
        &mut self,
        what: &str,
        f: impl FnOnce() -> spinney::Result<T>,
    ) -> Option<T> {
        let begun = self.shared.clock.tick();
        match f() {
            Ok(done) => {
                self.note(begun, Action::Note(what.to_string()));
                Some(done)
            }
            Err(error) => {
                self.note(begun, Action::Odd(format!("{what}: {error}")));
                None
            }
        }
    }
}

/// Works on a store and tells all that was done.
pub(super) fn record(seed: u64, kinds: Kinds, extent: &Extent) -> History {
    let mut random = Random::new(&[seed, 22]);
    let threads = match extent.threads {
        0 => 2 + random.below(7),
        threads => threads,
    };
    let rest = Arc::new(Rest::default());
    let (vfs, dir): (Arc<dyn Vfs>, PathBuf) = match &extent.dir {
        None => {
            let vfs = WatchedVfs::new(MemoryVfs::new(), Pace::new(seed, &rest));
            (Arc::new(vfs), PathBuf::from("/threads"))
        }
        Some(dir) => (Arc::new(PosixVfs::new()), dir.join(format!("threads-{kinds}-{seed}"))),
    };
    let shared = Arc::new(Shared {
        seed,
        kinds,
        sizes: Sizes::new(seed),
        clock: Clock::default(),
        vfs,
        dir,
        spaces: RwLock::new(Vec::new()),
        pool: Mutex::new(Vec::new()),
        passing: Mutex::new(None),
        views: AtomicU32::new(0),
        created: AtomicU32::new(0),
        altered: Mutex::default(),
        working: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        rest,
    });
    let mut main = Main {
        recorder: Recorder { shared: Arc::clone(&shared), thread: 0, operations: Vec::new() },
        random,
        written: vec![0; threads],
        upkeeps: 0,
        passing: None,
    };
    let note = format!("seed {seed} kind {kinds} threads {threads} {:?}", shared.sizes);
    let begun = shared.clock.tick();
    main.recorder.note(begun, Action::Note(note));
    let names = main.names();
    let whole = main.sessions(&names, extent);
    if whole {
        main.finish(&names);
    }
    let mut operations = std::mem::take(&mut main.recorder.operations);
    operations.sort_by_key(|operation| operation.begun);
    if whole && shared.vfs.exists(&shared.dir).unwrap_or(false) {
        let _ = remove_all(&*shared.vfs, &shared.dir);
    }
    History { operations }
}

/// Removes a directory and what is in it.
pub(super) fn remove_all(vfs: &dyn Vfs, dir: &Path) -> spinney::Result<()> {
    for entry in vfs.read_dir(dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_all(vfs, &path)? } else { vfs.remove(&path)? }
    }
    vfs.remove_dir(dir)
}

/// What a thread leaves at the end of a session.
struct Done {
    thread: u32,
    operations: Vec<Operation>,
    count: u32,
}

/// The thread that opens and closes.
struct Main {
    recorder: Recorder,
    random: Random,
    /// How many things each worker has written.
    written: Vec<u32>,
    upkeeps: u32,
    /// The keyspace that comes and goes, while it is there.
    passing: Option<u32>,
}

impl Main {
    /// The names of the keyspaces that stay.
    fn names(&self) -> Vec<&'static str> {
        ["plain", "packed", "more"][..self.recorder.shared.sizes.keyspaces].to_vec()
    }

    /// False if a thread hangs.
    fn sessions(&mut self, names: &[&str], extent: &Extent) -> bool {
        for session in 0..extent.sessions {
            let Some(db) = self.open(names, session == 0) else { return true };
            let went = self.session(&db, session, extent);
            if !went {
                return false;
            }
            self.close(db);
            let odd = |operation: &Operation| matches!(operation.action, Action::Odd(_));
            if self.recorder.operations.iter().any(odd) {
                return true;
            }
        }
        true
    }

    fn open(&mut self, names: &[&str], first: bool) -> Option<Database> {
        let shared = Arc::clone(&self.recorder.shared);
        if !shared.rest.end() {
            let what = "the journal was written after the store had been closed".to_string();
            self.recorder.note(shared.clock.tick(), Action::Odd(what));
        }
        let db = self.recorder.must("open", || shared.builder(&shared.dir).open())?;
        let mut spaces = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let begun = shared.clock.tick();
            let altered = locked(&shared.altered).get(*name).cloned();
            let options = altered.unwrap_or_else(|| shared.options(name, number));
            let keyspace = match db.keyspace(name, options) {
                Ok(keyspace) => keyspace,
                Err(error) => {
                    self.recorder.note(begun, Action::Odd(format!("keyspace {name}: {error}")));
                    return None;
                }
            };
            let number = if first { shared.next_space() } else { number as u32 };
            if first {
                self.recorder.note(begun, Action::Create { space: number, name: (*name).into() });
            }
            spaces.push(Space { number, keyspace });
        }
        let passing = db.keyspaces().into_iter().any(|name| name == PASSING);
        if passing != self.passing.is_some() {
            let what = format!("{PASSING} is {}there", if passing { "" } else { "not " });
            self.recorder.note(shared.clock.tick(), Action::Odd(what));
            return None;
        }
        if let Some(number) = self.passing {
            let found = self.recorder.must(PASSING, || db.existing_keyspace(PASSING));
            spaces.extend(found.map(|keyspace| Space { number, keyspace }));
        }
        shared.set_spaces(spaces);
        let mut reader = self.worker(0, &db, &[9]);
        reader.read_all();
        self.recorder.operations.append(&mut reader.recorder.operations);
        Some(db)
    }

    fn worker(&self, thread: u32, db: &Database, seeds: &[u64]) -> Worker {
        let shared = &self.recorder.shared;
        let written = thread.checked_sub(1).map_or(0, |at| self.written[at as usize]);
        Worker::new(shared, thread, db, Random::new(&[&[shared.seed], seeds].concat()), written)
    }

    fn session(&mut self, db: &Database, session: usize, extent: &Extent) -> bool {
        let shared = Arc::clone(&self.recorder.shared);
        let threads = self.written.len();
        shared.working.store(threads, Ordering::SeqCst);
        shared.stop.store(false, Ordering::SeqCst);
        let (sender, receiver) = mpsc::channel();
        for thread in 1..=threads as u32 {
            let mut worker = self.worker(thread, db, &[session as u64, u64::from(thread)]);
            let (sender, shared) = (sender.clone(), Arc::clone(&shared));
            let operations = extent.operations;
            std::thread::spawn(move || {
                let begun = shared.clock.tick();
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.work(operations))) {
                    worker.recorder.note(begun, Action::Odd(panic_text(&*panic)));
                }
                worker.let_go();
                shared.working.fetch_sub(1, Ordering::SeqCst);
                let operations = std::mem::take(&mut worker.recorder.operations);
                let count = worker.written;
                // And its handles: when the last one is dropped, the store closes.
                drop(worker);
                let _ = sender.send(Done { thread, operations, count });
            });
        }
        let random = Random::new(&[shared.seed, session as u64, 99]);
        let mut upkeep = Upkeep::new(&shared, threads as u32 + 1, db, random, self.upkeeps);
        std::thread::spawn(move || {
            let begun = upkeep.recorder.shared.clock.tick();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| upkeep.work())) {
                upkeep.recorder.note(begun, Action::Odd(panic_text(&*panic)));
            }
            let operations = std::mem::take(&mut upkeep.recorder.operations);
            let (thread, count) = (upkeep.recorder.thread, upkeep.copies);
            drop(upkeep);
            let _ = sender.send(Done { thread, operations, count });
        });
        let mut missing = threads + 1;
        let (mut last, mut idle) = (0, 0);
        while missing > 0 {
            match receiver.recv_timeout(LOOK) {
                Ok(Done { thread, mut operations, count }) => {
                    self.recorder.operations.append(&mut operations);
                    match self.written.get_mut(thread as usize - 1) {
                        Some(written) => *written = count,
                        None => self.upkeeps = count,
                    }
                    missing -= 1;
                }
                Err(_) => {
                    // This looks at the clock by moving it; only more than that counts.
                    let now = shared.clock.tick();
                    idle = if now > last + 1 { 0 } else { idle + 1 };
                    last = now;
                    if idle > STALL_LOOKS {
                        let what = format!(
                            "{missing} threads have done nothing in {STALL_LOOKS} looks, one each {LOOK:?}"
                        );
                        self.recorder.note(now, Action::Odd(what));
                        return false;
                    }
                }
            }
        }
        locked(&shared.pool).clear();
        self.passing = *locked(&shared.passing);
        true
    }

    fn close(&mut self, db: Database) {
        let shared = Arc::clone(&self.recorder.shared);
        if self.random.one_in(2) {
            self.close_all(db);
            shared.set_spaces(Vec::new());
        } else {
            let begun = shared.clock.tick();
            shared.set_spaces(Vec::new());
            drop(db);
            self.recorder.note(begun, Action::Note("drop all handles".to_string()));
        }
    }

    /// Closes the store, now and then by several threads at once: it is closed when the first of
    /// them returns.
    fn close_all(&mut self, db: Database) {
        let shared = Arc::clone(&self.recorder.shared);
        let others = if self.random.one_in(2) { 1 + self.random.below(2) } else { 0 };
        let close = |db: Database| {
            let closed = db.close();
            shared.rest.begin();
            closed
        };
        let closed = std::thread::scope(|scope| {
            let others: Vec<_> = (0..others)
                .map(|_| {
                    let db = db.clone();
                    scope.spawn(|| close(db))
                })
                .collect();
            let mut closed = vec![close(db)];
            closed.extend(others.into_iter().flat_map(std::thread::ScopedJoinHandle::join));
            closed
        });
        for closed in closed {
            self.recorder.must("close", || closed);
        }
    }

    /// Opens the store once more, reads it all and checks it.
    fn finish(&mut self, names: &[&str]) {
        let Some(db) = self.open(names, false) else { return };
        let report = self.recorder.must("check", || db.check(CheckLevel::Full));
        if let Some(report) = report.filter(|report| !report.problems.is_empty()) {
            let begun = self.recorder.shared.clock.tick();
            self.recorder.note(begun, Action::Odd(format!("a check finds {report:?}")));
        }
        self.recorder.shared.set_spaces(Vec::new());
        self.recorder.must("close", || db.close());
    }
}
