//! Changes on their way to the readers, on a disk that is slow, or full, whenever the test says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::jobs::Step;
use crate::manifest::{Manifest, RecoveredKeyspace, SUPERBLOCK_FILE_NAME, TreeEdit};
use crate::tree::CheckScope;
use crate::tree::kinds::{self, TreeKind, repair_ranges};
use crate::tree::test_support::{Puts, context_on, key_of, with_first_option};
use crate::tree::{Packed, Tree, TreeContext, TreeObserver, TreeOptions, TreeVersion};
use crate::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, MemoryVfs, Vfs};

/// How long a thread may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(60);
const DIR: &str = "/store";

/// Where an append to the manifest stops.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// Syncs wait.
    is_shut: bool,
    /// Writes are refused, after a wait at the gate.
    is_full: bool,
    waiting: usize,
    /// Syncs of the manifest, and its bytes as of the last one.
    syncs: usize,
    durable: Vec<u8>,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn pass(&self) -> GateState {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
        GateState { is_full: state.is_full, ..GateState::default() }
    }

    /// Waits until an append waits here.
    fn await_append(&self) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| state.waiting == 0);
        assert!(!waited.unwrap().1.timed_out(), "nothing is appended");
    }
}

/// A disk in memory whose manifest is behind the gate.
#[derive(Debug)]
struct GatedVfs {
    inner: MemoryVfs,
    gate: Arc<Gate>,
}

impl GatedVfs {
    fn gated(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let name = path.file_name().unwrap().to_string_lossy();
        match name.starts_with("manifest-") {
            true => Arc::new(GatedFile { inner: file, gate: Arc::clone(&self.gate) }),
            false => file,
        }
    }
}

impl Vfs for GatedVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        Ok(self.gated(path, self.inner.create(path, access)?))
    }
    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        Ok(self.gated(path, self.inner.open(path, access, writable)?))
    }
    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        self.inner.create_mapped(path, len)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.hard_link(from, to)
    }
    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.inner.create_dir_all(path)
    }
    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.inner.remove_dir(path)
    }
    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.inner.read_dir(path)
    }
    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.inner.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock_shared(path)
    }
    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.inner.io_queue(depth)
    }
}

#[derive(Debug)]
struct GatedFile {
    inner: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GatedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.gate.state.lock().unwrap().is_full && self.gate.pass().is_full {
            let path = self.inner.path().to_path_buf();
            return Err(Error::Full { path, needed: bytes.len() as u64 });
        }
        self.inner.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.gate.pass();
        self.inner.sync()?;
        let mut bytes = vec![0; self.inner.len()? as usize];
        self.inner.read_at(0, &mut bytes)?;
        self.gate.set(|state| (state.syncs, state.durable) = (state.syncs + 1, bytes));
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.inner.truncate(len)
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

type OnShown = dyn Fn(&dyn TreeVersion) + Send + Sync;

/// What a tree tells its keyspace.
#[derive(Default)]
struct Watcher {
    /// Called with each version that is shown.
    on_shown: OnceLock<Box<OnShown>>,
    /// Called with the change lock held, before a change is submitted.
    on_submit: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl TreeObserver for Watcher {
    fn installed(&self, version: Arc<dyn TreeVersion>) {
        if let Some(on_shown) = self.on_shown.get() {
            on_shown(&*version);
        }
    }
    fn compacted(&self, _read_bytes: u64, _written_bytes: u64, _nanos: u64) {}
    fn snapshots(&self) -> Vec<Seqno> {
        vec![Seqno(u64::MAX >> 8)]
    }
    fn is_dropped(&self) -> bool {
        let on_submit = self.on_submit.lock().unwrap().take();
        on_submit.into_iter().for_each(|on_submit| on_submit());
        false
    }
}

/// A tree, and the disk under it.
struct Bed {
    kind: TreeKind,
    tree: Arc<dyn Tree>,
    context: TreeContext,
    gate: Arc<Gate>,
    vfs: Arc<GatedVfs>,
    watcher: Arc<Watcher>,
}

impl Bed {
    fn new(kind: TreeKind) -> Bed {
        let watcher = Arc::new(Watcher::default());
        let observer: Arc<dyn TreeObserver> = Arc::clone(&watcher) as Arc<dyn TreeObserver>;
        let gate = Arc::new(Gate::default());
        let vfs = Arc::new(GatedVfs { inner: MemoryVfs::new(), gate: Arc::clone(&gate) });
        let context = context_on(Arc::clone(&vfs) as Arc<dyn Vfs>, kind.name(), &observer);
        let own = with_first_option(kind, 4).own;
        context.options.store(Arc::new(TreeOptions { own, ..(*context.options()).clone() }));
        let tree = kinds::open(kind, context.clone(), &[], Seqno(0)).unwrap();
        Bed { kind, tree, context, gate, vfs, watcher }
    }

    fn packed(&self, seqno: u64) -> Box<dyn Packed> {
        let keys = (0..8).map(|n| key_of(n << 20 | seqno)).collect();
        Arc::clone(&self.tree).pack(&mut Puts { seqno, keys, at: 0 }).unwrap()
    }

    fn incorporate(&self, seqno: u64) -> Result<()> {
        self.packed(seqno).incorporate(Seqno(seqno))
    }

    /// Waits until so many edits have been submitted.
    fn await_submitted(&self, edits: u64) {
        let began = Instant::now();
        while self.context.manifest.edits_submitted() < edits {
            assert!(began.elapsed() < PATIENCE, "changes wait for one another");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn submitted(&self) -> u64 {
        self.context.manifest.edits_submitted()
    }

    /// The keyspace as an open finds it after a loss of power.
    fn after_power_loss(&self) -> RecoveredKeyspace {
        let vfs = MemoryVfs::new();
        vfs.create_dir_all(Path::new(DIR)).unwrap();
        let copy = |path: &Path, bytes: &[u8]| {
            vfs.create(path, Access::Buffered).unwrap().write_at(0, bytes).unwrap();
        };
        let superblock = Path::new(DIR).join(SUPERBLOCK_FILE_NAME);
        let file = self.vfs.inner.open(&superblock, Access::Buffered, false).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        copy(&superblock, &bytes);
        copy(&self.context.manifest.path(), &self.gate.state.lock().unwrap().durable);
        let mut found = Manifest::inspect(&vfs, Path::new(DIR)).unwrap();
        found.keyspaces.remove(0)
    }

    /// The trees of all prefixes of the edits that a loss of power leaves.
    fn durable_trees(&self) -> Vec<BTreeSet<PathBuf>> {
        let found = self.after_power_loss();
        let edits = found.tree();
        (0..=edits.len()).map(|upto| self.tables_of(&found, &edits[..upto])).collect()
    }

    fn tables_of(&self, found: &RecoveredKeyspace, edits: &[TreeEdit]) -> BTreeSet<PathBuf> {
        let ranges = repair_ranges(&found.meta, edits, Path::new("manifest")).unwrap();
        let ids = ranges.into_iter().flat_map(|range| range.tables);
        ids.map(|id| Path::new(DIR).join(format!("{:08}.table", id.0))).collect()
    }

    /// What the tree shows is what is durable, and it is whole.
    fn check_all_durable(&self) {
        let version = self.tree.version();
        assert_eq!(Some(&tables(&*version)), self.durable_trees().last());
        assert_eq!(self.after_power_loss().flushed, version.flushed());
        let mut problems = 0;
        version.check(CheckScope::full(&self.context.manifest.path()), &mut |_| problems += 1);
        assert_eq!(problems, 0, "{}", self.kind);
    }
}

fn tables(version: &dyn TreeVersion) -> BTreeSet<PathBuf> {
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "table");
    version.files().into_iter().filter(is_table).collect()
}

/// Each change of a tree waited for the sync of the one before: a tree that several jobs had changed at once had its record
/// of each synced by itself. Now those that come during a sync share the next one.
#[test]
fn changes_of_one_tree_share_a_sync() {
    const THREADS: u64 = 7;
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        bed.incorporate(1).unwrap();
        let (syncs, edits) = (bed.gate.state.lock().unwrap().syncs, bed.submitted());
        bed.gate.set(|state| state.is_shut = true);
        thread::scope(|scope| {
            scope.spawn(|| bed.incorporate(2).unwrap());
            bed.gate.await_append();
            for n in 0..THREADS {
                let bed = &bed;
                scope.spawn(move || bed.incorporate(3 + n).unwrap());
            }
            // All have been submitted while the first is not durable.
            bed.await_submitted(edits + 1 + THREADS);
            bed.gate.set(|state| state.is_shut = false);
        });
        assert_eq!(bed.gate.state.lock().unwrap().syncs - syncs, 2, "{kind}");
        assert_eq!(bed.tree.version().flushed(), Seqno(2 + THREADS));
        assert_eq!(bed.tree.state().entries, 8 * (2 + THREADS));
        bed.check_all_durable();
    }
}

/// A version that is shown before its record is durable would be lost by a crash: with it go files that it has replaced,
/// and memtables that it holds. Whatever is shown is one of the trees that a loss of power leaves, each later than the one
/// before.
#[test]
fn no_version_is_shown_that_a_crash_would_lose() {
    for kind in TreeKind::ALL {
        let bed = Arc::new(Bed::new(kind));
        let (shown, last) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let (of_bed, of_shown): (Weak<Bed>, _) = (Arc::downgrade(&bed), Arc::clone(&shown));
        let on_shown = move |version: &dyn TreeVersion| {
            let Some(bed) = of_bed.upgrade() else { return };
            assert!(bed.after_power_loss().flushed >= version.flushed(), "{kind}");
            let tables = tables(version);
            let from = last.load(Ordering::SeqCst) as usize;
            let at = bed.durable_trees()[from..].iter().position(|durable| *durable == tables);
            let at = at.expect("a version that is durable and not older than the one before");
            last.store((from + at) as u64, Ordering::SeqCst);
            of_shown.fetch_add(1, Ordering::SeqCst);
        };
        assert!(bed.watcher.on_shown.set(Box::new(on_shown)).is_ok());
        thread::scope(|scope| {
            for n in 0..3 {
                let bed = &bed;
                scope.spawn(move || {
                    for round in 0..8 {
                        bed.incorporate(1 + n + 3 * round).unwrap();
                        while let Some(mut job) = Arc::clone(&bed.tree).next_job() {
                            while job.step().unwrap() == Step::Again {}
                        }
                    }
                });
            }
        });
        assert!(shown.load(Ordering::SeqCst) > 24, "{kind}");
        bed.check_all_durable();
    }
}

/// Readers see the tree as it was while the record of a change is being synced, and so does whoever had nothing to change
/// in it.
#[test]
fn readers_see_a_change_when_it_is_durable() {
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        bed.incorporate(1).unwrap();
        bed.gate.set(|state| state.is_shut = true);
        thread::scope(|scope| {
            let change = scope.spawn(|| bed.incorporate(2));
            bed.gate.await_append();
            for _ in 0..10 {
                assert_eq!(bed.tree.version().flushed(), Seqno(1));
                assert_eq!(bed.tree.state().entries, 8);
                thread::sleep(Duration::from_millis(1));
            }
            let lock = bed.tree.lock_changes();
            assert_ne!(lock.snapshot(), lock.shown(), "{kind}: one of them is submitted only");
            drop(lock);
            bed.gate.set(|state| state.is_shut = false);
            change.join().unwrap().unwrap();
        });
        assert_eq!(bed.tree.version().flushed(), Seqno(2));
        bed.check_all_durable();
    }
}

/// The disk is full in the middle of several changes that build on one another: all of them are refused, also the change of
/// options among them, which is made anew. What comes later builds on what is durable.
#[test]
fn a_refusal_refuses_what_was_built_on_it() {
    const THREADS: u64 = 4;
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        (1..6).for_each(|seqno| bed.incorporate(seqno).unwrap());
        let (before, edits) = (bed.tree.state(), bed.submitted());
        let files = bed.vfs.inner.read_names(Path::new(DIR)).unwrap().len();
        bed.gate.set(|state| (state.is_shut, state.is_full) = (true, true));
        let options =
            TreeOptions { own: with_first_option(kind, 5).own, ..(*bed.context.options()).clone() };
        let fanout = options.own.clone();
        thread::scope(|scope| {
            let first = scope.spawn(|| bed.incorporate(6));
            bed.gate.await_append();
            scope.spawn(|| bed.tree.set_options(options));
            let began = Instant::now();
            while bed.context.options().own != fanout {
                assert!(began.elapsed() < PATIENCE, "options wait for a change");
                thread::sleep(Duration::from_millis(1));
            }
            let others: Vec<_> = (0..THREADS)
                .map(|n| {
                    let bed = &bed;
                    scope.spawn(move || bed.incorporate(7 + n))
                })
                .collect();
            bed.await_submitted(edits + 1 + THREADS);
            bed.gate.set(|state| state.is_shut = false);
            for change in others.into_iter().chain([first]) {
                let error = change.join().unwrap().unwrap_err();
                assert!(matches!(error, Error::Full { .. }), "{kind}: {error}");
            }
        });
        let after = bed.tree.state();
        assert_eq!((after.entries, after.tables), (before.entries, before.tables), "{kind}");
        assert_eq!((after.live_keys, after.live_bytes), (before.live_keys, before.live_bytes));
        assert_eq!(bed.tree.version().flushed(), Seqno(5));
        let left = bed.vfs.inner.read_names(Path::new(DIR)).unwrap().len();
        assert_eq!(left, files, "{kind}: files of refused changes are removed");
        let parameters = bed.tree.version().describe().unwrap().parameters;
        let changed = kind.options().next().map(|(name, _)| name);
        let found = parameters.iter().find(|(name, _)| Some(name.as_str()) == changed);
        assert_eq!(found.map(|(_, count)| *count), Some(5), "{kind}");
        bed.check_all_durable();
        bed.gate.set(|state| state.is_full = false);
        (6..30).for_each(|seqno| bed.incorporate(seqno).unwrap());
        assert_eq!(bed.tree.state().entries, 8 * 29);
        bed.check_all_durable();
    }
}

/// A refusal and its settlement are two steps. A change that comes between them was made of the refused tree: its edit would
/// name nodes that no edit defines. The manifest does not accept it, and it is made anew.
#[test]
fn a_change_upon_a_refused_one_that_nobody_has_settled_is_made_anew() {
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        bed.incorporate(1).unwrap();
        let edits = bed.submitted();
        bed.gate.set(|state| (state.is_shut, state.is_full) = (true, true));
        thread::scope(|scope| {
            let first = scope.spawn(|| bed.incorporate(2));
            bed.gate.await_append();
            let (gate, manifest) = (Arc::clone(&bed.gate), Arc::clone(&bed.context.manifest));
            // The second holds the change lock meanwhile, so the first cannot settle anything.
            let refuse = move || {
                gate.set(|state| state.is_shut = false);
                while manifest.edits_decided() <= edits {
                    thread::yield_now();
                }
                gate.set(|state| state.is_full = false);
            };
            *bed.watcher.on_submit.lock().unwrap() = Some(Box::new(refuse));
            bed.incorporate(3).unwrap();
            assert!(matches!(first.join().unwrap(), Err(Error::Full { .. })), "{kind}");
        });
        assert_eq!(bed.submitted(), edits + 2, "{kind}: the second was accepted once");
        assert_eq!(bed.tree.state().entries, 16);
        bed.check_all_durable();
    }
}

/// A change was refused while the manifest was about to be written anew: after the change locks had been taken, and before
/// the rewrite was submitted. The new log had the change, which was then taken back. It named files that were deleted, and
/// lacked what the change had replaced: the next open failed.
#[test]
fn a_rewrite_of_a_refused_change_that_is_not_settled_is_not_accepted() {
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        (1..6).for_each(|seqno| bed.incorporate(seqno).unwrap());
        let edits = bed.submitted();
        bed.gate.set(|state| (state.is_shut, state.is_full) = (true, true));
        thread::scope(|scope| {
            let first = scope.spawn(|| bed.incorporate(6));
            bed.gate.await_append();
            let lock = bed.tree.lock_changes();
            // The edit is refused. Its tree cannot settle that: the lock is held.
            bed.gate.set(|state| state.is_shut = false);
            while bed.context.manifest.edits_decided() <= edits {
                thread::yield_now();
            }
            bed.gate.set(|state| state.is_full = false);
            let trees = vec![(bed.context.keyspace, lock.snapshot().unwrap())];
            let submitted = bed.context.manifest.submit_rewrite(bed.submitted(), trees).unwrap();
            assert!(submitted.is_none(), "{kind}: the rewrite was accepted");
            drop(lock);
            assert!(matches!(first.join().unwrap(), Err(Error::Full { .. })), "{kind}");
        });
        // Once it is settled, the log is written anew.
        let trees = vec![(bed.context.keyspace, bed.tree.lock_changes().snapshot().unwrap())];
        let submitted = bed.context.manifest.submit_rewrite(bed.submitted(), trees).unwrap();
        assert!(bed.context.manifest.finish_rewrite(submitted.unwrap()).unwrap());
        bed.incorporate(6).unwrap();
        bed.check_all_durable();
    }
}

/// A job whose change has been submitted still has its claim: the version from which others plan has its inputs. A plan with
/// them would bring them back beside their output.
#[test]
fn a_job_keeps_its_claim_until_its_change_is_shown() {
    // The first job of a tree of one level puts a memtable into its index, and changes nothing else.
    let has_nodes = |kind: &TreeKind| kind.options().any(|(name, _)| name == "fanout_max");
    for kind in TreeKind::ALL.into_iter().filter(has_nodes) {
        let bed = Bed::new(kind);
        let mut jobs = Vec::new();
        for seqno in 1.. {
            bed.incorporate(seqno).unwrap();
            while let Some(job) = Arc::clone(&bed.tree).next_job() {
                jobs.push(job);
            }
            if !jobs.is_empty() {
                break;
            }
        }
        bed.gate.set(|state| state.is_shut = true);
        let mut running = jobs.remove(0);
        thread::scope(|scope| {
            let job = scope.spawn(move || while running.step().unwrap() == Step::Again {});
            bed.gate.await_append();
            let other = Arc::clone(&bed.tree).next_job();
            bed.gate.set(|state| state.is_shut = false);
            assert!(other.is_none(), "{kind}: the job's change is not shown yet");
            job.join().unwrap();
        });
        bed.check_all_durable();
    }
}

/// The manifest was written anew with all change locks held, and so with all changes kept waiting. What is submitted while
/// it is being written is appended to the new one.
#[test]
fn a_rewrite_has_what_is_submitted_and_keeps_nobody_out() {
    for kind in TreeKind::ALL {
        let bed = Bed::new(kind);
        (1..4).for_each(|seqno| bed.incorporate(seqno).unwrap());
        let edits = bed.submitted();
        bed.gate.set(|state| state.is_shut = true);
        thread::scope(|scope| {
            let changes = [4, 5].map(|seqno| {
                let bed = &bed;
                let change = scope.spawn(move || bed.incorporate(seqno));
                // The first is being synced, the other waits.
                bed.await_submitted(edits + seqno - 3);
                bed.gate.await_append();
                change
            });
            let submitted = {
                let lock = bed.tree.lock_changes();
                let trees = vec![(bed.context.keyspace, lock.snapshot().unwrap())];
                bed.context.manifest.submit_rewrite(bed.submitted(), trees).unwrap()
            };
            let later = scope.spawn(|| bed.incorporate(6));
            bed.await_submitted(edits + 3);
            bed.gate.set(|state| state.is_shut = false);
            assert!(bed.context.manifest.finish_rewrite(submitted.unwrap()).unwrap());
            changes.into_iter().chain([later]).for_each(|change| change.join().unwrap().unwrap());
        });
        assert!(bed.context.manifest.path().ends_with("manifest-00000002"));
        assert_eq!(bed.tree.state().entries, 8 * 6);
        bed.check_all_durable();
        bed.incorporate(7).unwrap();
        bed.check_all_durable();
    }
}
