//! What the tests of promises share: a seeded generator, copies of stores, and a file system that
//! watches each call and fails the one it is told to.
#![allow(dead_code)] // each test crate uses its own part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use spinney::vfs::{
    Access, BlockingQueue, DirEntry, File, IoQueue, Lock, MappedFile, MemoryVfs, ReadRequest, Vfs,
};
use spinney::{CheckLevel, Database, Error, Iter, KeyspaceOptions, Result, TreeKind};

/// The kinds of trees that tests of every kind are for: those that `SPINNEY_KINDS` names, or all.
pub(crate) fn kinds() -> Vec<TreeKind> {
    let Ok(names) = std::env::var("SPINNEY_KINDS") else { return TreeKind::ALL.to_vec() };
    let kind = |name| TreeKind::from_name(name).unwrap_or_else(|| panic!("no kind {name:?}"));
    names.split(',').map(kind).collect()
}

/// Tests of what every kind of tree promises: each named function is called with each kind.
#[allow(unused_macros)]
macro_rules! of_every_kind {
    ($($name:ident)*) => {
        mod of_every_kind {
            $(
                #[test]
                fn $name() {
                    for kind in crate::common::kinds() {
                        println!("kind: {kind}");
                        super::$name(kind);
                    }
                }
            )*
        }
    };
}

/// Options with so many children of a node at most, if the kind has nodes with children.
pub(crate) fn with_fanout(options: KeyspaceOptions, fanout: u32) -> KeyspaceOptions {
    options.clone().kind_option("fanout_max", fanout).unwrap_or(options)
}

/// Options with which a tree reclaims space for the sake of its space target alone.
pub(crate) fn for_space_alone(options: KeyspaceOptions) -> KeyspaceOptions {
    let lazy = options.clone().kind_option("live_percent_min", 1);
    lazy.and_then(|lazy| lazy.kind_option("without_leaf_scans", 1)).unwrap_or(options)
}

/// What a file takes of the disk: of an index, which has holes, less than its length.
pub(crate) fn file_bytes(entry: &std::fs::DirEntry) -> Option<u64> {
    let metadata = entry.metadata().ok()?;
    #[cfg(unix)]
    if entry.path().extension().is_some_and(|extension| extension == "index") {
        return Some(std::os::unix::fs::MetadataExt::blocks(&metadata) * 512);
    }
    Some(metadata.len())
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The pairs of an iterator that meets no error.
pub(crate) fn pairs(iter: Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Nothing in the store is damaged, lost or contradicts something else.
pub(crate) fn assert_sound(db: &Database) {
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// The names of the files of a store, and their lengths.
pub(crate) fn files(vfs: &dyn Vfs, dir: &Path) -> Vec<(String, u64)> {
    let entries = vfs.read_dir(dir).unwrap();
    entries.into_iter().filter(|entry| !entry.is_dir).map(|entry| (entry.name, entry.len)).collect()
}

/// All of a file's bytes.
pub(crate) fn contents(vfs: &dyn Vfs, path: &Path) -> Vec<u8> {
    let file = vfs.open(path, Access::Buffered, false).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The files of `dir` as they are at this moment, in a file system of their own: what is left of a
/// store whose process dies now.
pub(crate) fn copy(vfs: &dyn Vfs, dir: &Path) -> MemoryVfs {
    let copy = MemoryVfs::new();
    copy.create_dir_all(dir).unwrap();
    for (name, _) in files(vfs, dir) {
        let path = dir.join(&name);
        let file = copy.create(&path, Access::Buffered).unwrap();
        file.write_at(0, &contents(vfs, &path)).unwrap();
    }
    copy
}

/// Turns the bits of one byte over.
pub(crate) fn flip(vfs: &dyn Vfs, path: &Path, offset: u64) {
    let file = vfs.open(path, Access::Buffered, true).unwrap();
    let mut byte = [0];
    file.read_at(offset, &mut byte).unwrap();
    file.write_at(offset, &[!byte[0]]).unwrap();
}

/// Which kind of file a name belongs to, by the part of it that is no number.
pub(crate) fn kind_of(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphabetic()).collect()
}

/// Which calls a [`WatchedVfs`] fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Everything that changes something: writes, syncs, names.
    Changes,
    /// Syncs of files and directories.
    Syncs,
    /// Syncs of mapped files.
    MappedSyncs,
    /// Reads.
    Reads,
    /// Second names of files.
    Links,
}

#[derive(Debug, Default)]
struct Watch {
    changes: AtomicU64,
    syncs: AtomicU64,
    mapped: AtomicU64,
    reads: AtomicU64,
    links: AtomicU64,
    /// The most reads of one batch.
    batch_most: AtomicU64,
    /// Kind and number of the first call to fail, and how many fail from there.
    plan: Mutex<Option<(Calls, u64, u64, std::io::ErrorKind)>>,
    failed: AtomicU64,
    /// What is to fail panics instead.
    panics: AtomicBool,
    /// Calls of this name on paths with this part fail.
    named: Mutex<Option<(&'static str, &'static str, std::io::ErrorKind)>>,
    traced: AtomicBool,
    trace: Mutex<Trace>,
}

/// What has been called: a hash of everything, and the latest calls in words.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub hash: u64,
    pub calls: Vec<String>,
}

/// A file system that passes everything on, and fails or writes down what it is told to.
#[derive(Debug, Clone)]
pub(crate) struct WatchedVfs {
    inner: Arc<dyn Vfs>,
    watch: Arc<Watch>,
}

impl WatchedVfs {
    pub(crate) fn new(inner: impl Vfs + 'static) -> WatchedVfs {
        WatchedVfs { inner: Arc::new(inner), watch: Arc::default() }
    }

    /// From the `number`th call of that kind on (1 is the next), `count` of them fail.
    pub(crate) fn fail(&self, calls: Calls, number: u64, count: u64, error: std::io::ErrorKind) {
        let now = self.count(calls);
        self.watch.failed.store(0, Ordering::SeqCst);
        *self.watch.plan.lock().unwrap() = Some((calls, now + number, count, error));
    }

    /// As `fail`, and what is to fail panics instead, as code with a bug would.
    pub(crate) fn panic(&self, calls: Calls, number: u64, count: u64) {
        self.fail(calls, number, count, std::io::ErrorKind::Other);
        self.watch.panics.store(true, Ordering::SeqCst);
    }

    /// Makes all calls named `op` fail on paths that contain `part`.
    pub(crate) fn fail_named(
        &self,
        op: &'static str,
        part: &'static str,
        error: std::io::ErrorKind,
    ) {
        *self.watch.named.lock().unwrap() = Some((op, part, error));
    }

    /// Nothing fails any more.
    pub(crate) fn mend(&self) {
        *self.watch.plan.lock().unwrap() = None;
    }

    /// How many calls have failed since `fail`.
    pub(crate) fn failed(&self) -> u64 {
        self.watch.failed.load(Ordering::SeqCst)
    }

    /// How many calls of that kind there have been.
    pub(crate) fn count(&self, calls: Calls) -> u64 {
        match calls {
            Calls::Changes => &self.watch.changes,
            Calls::Syncs => &self.watch.syncs,
            Calls::MappedSyncs => &self.watch.mapped,
            Calls::Reads => &self.watch.reads,
            Calls::Links => &self.watch.links,
        }
        .load(Ordering::SeqCst)
    }

    /// The most reads that have been asked for at once since this was last asked.
    pub(crate) fn take_batch_most(&self) -> u64 {
        self.watch.batch_most.swap(0, Ordering::SeqCst)
    }

    /// Writes down every call from now on.
    pub(crate) fn trace(&self) {
        self.watch.traced.store(true, Ordering::SeqCst);
    }

    pub(crate) fn traced(&self) -> Trace {
        self.watch.trace.lock().unwrap().clone()
    }
}

impl Watch {
    /// Counts a call, writes it down, and says whether it is to fail.
    fn call(
        &self,
        op: &'static str,
        path: &Path,
        offset: u64,
        bytes: &[u8],
        kinds: &[Calls],
    ) -> Result<()> {
        if self.traced.load(Ordering::SeqCst) {
            let mut trace = self.trace.lock().unwrap();
            let mut hash = trace.hash;
            let mut mix = |bytes: &[u8]| {
                for &byte in bytes {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            };
            mix(op.as_bytes());
            mix(path.as_os_str().as_encoded_bytes());
            mix(&offset.to_le_bytes());
            mix(&(bytes.len() as u64).to_le_bytes());
            mix(bytes);
            trace.hash = hash;
            trace.calls.push(format!(
                "{op} {} at {offset}, {} bytes: {hash:x}",
                path.display(),
                bytes.len()
            ));
        }
        let mut result = Ok(());
        if let Some((name, part, error)) = *self.named.lock().unwrap()
            && name == op
            && path.to_string_lossy().contains(part)
        {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(Error::io(op, path, None, error.into()));
        }
        for &kind in kinds {
            let counter = match kind {
                Calls::Changes => &self.changes,
                Calls::Syncs => &self.syncs,
                Calls::MappedSyncs => &self.mapped,
                Calls::Reads => &self.reads,
                Calls::Links => &self.links,
            };
            let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
            let plan = *self.plan.lock().unwrap();
            if let Some((calls, first, count, error)) = plan
                && calls == kind
                && number >= first
                && number - first < count
            {
                self.failed.fetch_add(1, Ordering::SeqCst);
                assert!(!self.panics.load(Ordering::SeqCst), "a bug in {op} of {}", path.display());
                result = Err(Error::io(op, path, None, error.into()));
            }
        }
        result
    }
}

const CHANGE: &[Calls] = &[Calls::Changes];
const SYNC: &[Calls] = &[Calls::Changes, Calls::Syncs];
const READ: &[Calls] = &[Calls::Reads];
const LINK: &[Calls] = &[Calls::Changes, Calls::Links];

impl Vfs for WatchedVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        self.watch.call("create", path, 0, &[], CHANGE)?;
        let inner = self.inner.create(path, access)?;
        Ok(Arc::new(WatchedFile { inner, watch: Arc::clone(&self.watch) }))
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        self.watch.call("open", path, 0, &[], READ)?;
        let inner = self.inner.open(path, access, writable)?;
        Ok(Arc::new(WatchedFile { inner, watch: Arc::clone(&self.watch) }))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        self.watch.call("reserve", path, len, &[], CHANGE)?;
        let inner = self.inner.create_mapped(path, len)?;
        Ok(Arc::new(WatchedMapped { inner, watch: Arc::clone(&self.watch) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.watch.call("rename", from, 0, to.as_os_str().as_encoded_bytes(), CHANGE)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.watch.call("remove", path, 0, &[], CHANGE)?;
        self.inner.remove(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.watch.call("link", from, 0, to.as_os_str().as_encoded_bytes(), LINK)?;
        self.inner.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.watch.call("create directory", path, 0, &[], CHANGE)?;
        self.inner.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.watch.call("remove directory", path, 0, &[], CHANGE)?;
        self.inner.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.watch.call("list", path, 0, &[], READ)?;
        self.inner.read_dir(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.watch.call("sync directory", path, 0, &[], SYNC)?;
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock_shared(path)
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.watch.batch_most.fetch_max(requests.len() as u64, Ordering::SeqCst);
        for request in requests {
            request.result = request.file.read_at(request.offset, request.buf);
        }
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::default())
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn File>,
    watch: Arc<Watch>,
}

impl File for WatchedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.watch.call("read", self.path(), offset, &(buf.len() as u64).to_le_bytes(), READ)?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.watch.call("write", self.path(), offset, bytes, CHANGE)?;
        self.inner.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.watch.call("sync", self.path(), 0, &[], SYNC)?;
        self.inner.sync()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.watch.call("truncate", self.path(), len, &[], CHANGE)?;
        self.inner.truncate(len)
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[derive(Debug)]
struct WatchedMapped {
    inner: Arc<dyn MappedFile>,
    watch: Arc<Watch>,
}

impl MappedFile for WatchedMapped {
    fn write(&self, offset: u64, bytes: &[u8]) {
        // Memory: it cannot fail, and does not count.
        let _ = self.watch.call("store", self.path(), offset, bytes, &[]);
        self.inner.write(offset, bytes);
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn sync(&self) -> Result<()> {
        self.watch.call(
            "sync",
            self.path(),
            0,
            &[],
            &[Calls::Changes, Calls::Syncs, Calls::MappedSyncs],
        )?;
        self.inner.sync()
    }

    fn seal(&self) -> Result<()> {
        self.inner.seal()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

/// The last part of a path, as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The path of a store in memory.
pub(crate) fn store_path() -> PathBuf {
    PathBuf::from("/store")
}

/// The text format: each family has one type line before its samples, no sample comes twice, and each
/// number is one.
pub(crate) fn assert_prometheus(text: &str) {
    let mut families: BTreeMap<String, String> = BTreeMap::new();
    let mut samples: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "summary", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_string(), kind.to_string()).is_none(), "{line}");
            continue;
        }
        let (series, number) = line.rsplit_once(' ').unwrap();
        let number: f64 = number.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(samples.insert(series.to_string(), number).is_none(), "twice: {line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit()));
        assert!(labels.ends_with('}'), "{line}");
        let family = ["_count", "_sum", "_bucket"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .filter(|family| families.contains_key(*family))
            .unwrap_or(name);
        let kind = families.get(family).unwrap_or_else(|| panic!("no type for {line}"));
        assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
    }
    for (family, kind) in &families {
        if kind == "histogram" || kind == "summary" {
            let count = samples.get(&format!("{family}_count"));
            assert!(count.is_some(), "{family} has no count");
            assert!(samples.contains_key(&format!("{family}_sum")), "{family} has no sum");
            let last = samples.get(&format!("{family}_bucket{{le=\"+Inf\"}}"));
            assert!(kind == "summary" || last == count, "{family}");
        }
    }
    assert!(samples["spinney_gets_total"] == 6000.0);
    let strange = "spinney_keyspace_tables{keyspace=\"strange \\\"name\\\"\\\\\\n\"}";
    assert!(samples.contains_key(strange), "{text}");
}
