//! Trees that keep numbered operations themselves: what a flush does to a log that is being appended to, synced or
//! checked.
#![cfg(feature = "example")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::{copy, store_path};
use spinney::vfs::{
    Access, BlockingQueue, DirEntry, File, IoQueue, Lock, MappedFile, MemoryVfs, Vfs,
};
use spinney::{CheckLevel, Database, Durability, Error, KeyspaceOptions, MIB, Result, TreeKind};

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// What a log's file has on the disk, by name.
type Disk = Arc<Mutex<std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>>>;

/// Calls hooks, and knows what of the tree's logs has been synced.
#[derive(Clone)]
struct HookVfs {
    inner: MemoryVfs,
    /// Called when a log has been synced, before the sync returns.
    log_synced: Hook,
    /// Called when the pool is being synced.
    pool_synced: Hook,
    disk: Disk,
    /// Called when a log is being opened.
    log_opened: Hook,
    /// Called when something is being written to a log; from then on writes to that file fail.
    log_written: Hook,
}

impl HookVfs {
    fn new() -> HookVfs {
        HookVfs {
            inner: MemoryVfs::new(),
            log_synced: Hook::default(),
            pool_synced: Hook::default(),
            disk: Disk::default(),
            log_opened: Hook::default(),
            log_written: Hook::default(),
        }
    }
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "operations")
}

fn open(vfs: Arc<dyn Vfs>) -> Result<Database> {
    let builder = Database::builder(store_path()).vfs(vfs).memory_budget(16 * MIB);
    builder.memtable_bytes(256 << 10).background_threads(1).journal_shards(1).open()
}

impl std::fmt::Debug for HookVfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookVfs")
    }
}

fn call(hook: &Hook) {
    let hook = hook.lock().unwrap().take();
    if let Some(hook) = hook {
        hook();
    }
}

impl Vfs for HookVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        Ok(Arc::new(HookFile(self.inner.create(path, access)?, self.clone())))
    }
    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        if is_log(path) {
            call(&self.log_opened);
        }
        Ok(Arc::new(HookFile(self.inner.open(path, access, writable)?, self.clone())))
    }
    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        Ok(Arc::new(HookMapped(
            self.inner.create_mapped(path, len)?,
            self.clone(),
            AtomicBool::new(false),
        )))
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
    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::default())
    }
}

#[derive(Debug)]
struct HookFile(Arc<dyn File>, HookVfs);

impl File for HookFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(offset, bytes)
    }
    fn sync(&self) -> Result<()> {
        if self.path().extension().is_some_and(|extension| extension == "pool") {
            call(&self.1.pool_synced);
        }
        self.0.sync()
    }
    fn len(&self) -> Result<u64> {
        self.0.len()
    }
    fn truncate(&self, len: u64) -> Result<()> {
        self.0.truncate(len)
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[derive(Debug)]
struct HookMapped(Arc<dyn MappedFile>, HookVfs, AtomicBool);

impl MappedFile for HookMapped {
    fn write(&self, offset: u64, bytes: &[u8]) {
        if is_log(self.path()) {
            let hook = self.1.log_written.lock().unwrap().take();
            if let Some(hook) = hook {
                self.2.store(true, Ordering::SeqCst);
                hook();
            }
        }
        if !self.2.load(Ordering::SeqCst) {
            self.0.write(offset, bytes);
        }
    }
    fn check(&self) -> Result<()> {
        match self.2.load(Ordering::SeqCst) {
            true => Err(Error::Io {
                op: "write",
                path: self.path().to_path_buf(),
                offset: None,
                source: Arc::new(std::io::ErrorKind::Other.into()),
            }),
            false => self.0.check(),
        }
    }
    fn sync(&self) -> Result<()> {
        self.check()?;
        self.0.sync()?;
        if is_log(self.path()) {
            let bytes = common::contents(&self.1.inner, self.path());
            self.1.disk.lock().unwrap().insert(self.path().to_path_buf(), bytes);
            call(&self.1.log_synced);
        }
        Ok(())
    }
    fn seal(&self) -> Result<()> {
        self.0.seal()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// While a round synced the log's file, a batch was appended to that file, and a flush sealed it. When the round ended, it
/// took the sealed file for synced as a whole: no later round synced the batch, and it was lost with a `Sync` commit
/// behind it that had been acknowledged.
#[test]
fn a_batch_appended_during_a_sync_to_a_file_that_a_flush_then_seals_is_synced_later() {
    let vfs = HookVfs::new();
    let db = open(Arc::new(vfs.clone())).unwrap();
    let own = db.keyspace("own", KeyspaceOptions::new(TreeKind::FOR_TESTS[0])).unwrap();
    own.put("a", "1").unwrap();
    own.flush().unwrap();
    // More than half of the log's file.
    for i in 0..5u32 {
        own.put(format!("b{i}"), vec![7; 8000]).unwrap();
    }
    let (flushed, late) = (own.clone(), own.clone());
    let hooks = vfs.clone();
    *vfs.log_synced.lock().unwrap() = Some(Box::new(move || {
        *hooks.pool_synced.lock().unwrap() =
            Some(Box::new(move || late.put("late", "value").unwrap()));
        std::thread::spawn(move || flushed.flush().unwrap()).join().unwrap();
    }));
    // The round during which all that happens.
    db.sync().unwrap();
    assert!(vfs.pool_synced.lock().unwrap().is_none(), "the flush took place");
    // And one after it: from now on all of it is promised.
    let mut batch = db.batch().durability(Durability::Sync);
    batch.put(&own, "last", "value");
    batch.commit().unwrap();
    db.sync().unwrap();
    // The power fails.
    let left = copy(&vfs.inner, &store_path());
    for (path, bytes) in &*vfs.disk.lock().unwrap() {
        if left.exists(path).unwrap() {
            left.open(path, Access::Buffered, true).unwrap().write_at(0, bytes).unwrap();
        }
    }
    let again = open(Arc::new(left)).expect("a store that lost its power opens");
    let own = again.existing_keyspace("own").unwrap();
    let keys: Vec<_> = own.iter().map(|pair| pair.unwrap().0).collect();
    assert_eq!(keys.len(), 8, "a, b0 to b4, late, last: {keys:?}");
}

/// A check of a store in use: a flush removed a log's file that the version being checked named.
#[test]
fn a_check_finds_no_damage_where_a_flush_removes_a_file_of_the_log() {
    let vfs = HookVfs::new();
    let db = open(Arc::new(vfs.clone())).unwrap();
    let own = db.keyspace("own", KeyspaceOptions::new(TreeKind::FOR_TESTS[0])).unwrap();
    let stb = db.keyspace("stb", KeyspaceOptions::new(TreeKind::Stb)).unwrap();
    own.put("a", "1").unwrap();
    own.flush().unwrap();
    for i in 0..5u32 {
        own.put(format!("b{i}"), vec![7; 8000]).unwrap();
    }
    own.flush().unwrap();
    // Until the journal goes on to the next segment, so that the floor is raised.
    for i in 0..1000u32 {
        stb.put(i.to_be_bytes(), vec![7; 2000]).unwrap();
    }
    stb.flush().unwrap();
    db.wait_idle().unwrap();
    let flushed = own.clone();
    *vfs.log_opened.lock().unwrap() = Some(Box::new(move || {
        flushed.put("c", "1").unwrap();
        std::thread::spawn(move || flushed.flush().unwrap()).join().unwrap();
    }));
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(vfs.log_opened.lock().unwrap().is_none(), "the flush took place");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// A batch whose write to the log failed was acknowledged, if a flush went on to the next file before the writer asked.
#[test]
fn a_failed_append_is_told_although_a_flush_seals_the_file() {
    for attempt in 0..60 {
        failed_append(attempt);
    }
}

fn failed_append(attempt: u32) {
    let vfs = HookVfs::new();
    let db = open(Arc::new(vfs.clone())).unwrap();
    let own = db.keyspace("own", KeyspaceOptions::new(TreeKind::FOR_TESTS[0])).unwrap();
    own.put("a", "1").unwrap();
    own.flush().unwrap();
    for i in 0..5u32 {
        own.put(format!("b{i}"), vec![7; 8000]).unwrap();
    }
    let (here, is_here) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    *vfs.pool_synced.lock().unwrap() = Some(Box::new(move || {
        here.send(()).unwrap();
        may_go.recv().unwrap();
    }));
    let flushed = own.clone();
    let flush = std::thread::spawn(move || flushed.flush());
    is_here.recv().unwrap();
    *vfs.log_written.lock().unwrap() = Some(Box::new(move || {
        go.send(()).unwrap();
        // The flush gets to where it wants the log's lock.
        std::thread::sleep(Duration::from_millis(10));
    }));
    // Many operations: to insert them into the memtable takes a while.
    let mut batch = db.batch();
    for i in 0..800u32 {
        batch.put(&own, format!("late{i}"), "value");
    }
    let put = batch.commit();
    let flush = flush.join().unwrap();
    let poisoned = own.put("later", "value");
    // The process is killed.
    let left = copy(&vfs.inner, &store_path());
    let again = open(Arc::new(left)).unwrap();
    let is_there = again.existing_keyspace("own").unwrap().get("late0").unwrap().is_some();
    assert!(
        put.is_err() || is_there,
        "attempt {attempt}: acknowledged and lost; flush {flush:?}, the next put {poisoned:?}"
    );
}
