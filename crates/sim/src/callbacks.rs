//! User code that panics (merge operators, listeners, the file system), and files that are closed
//! for lack of descriptors.
//!
//! A store with threads gets an operator that panics on one key and a listener that panics on every
//! event, and later a file system that panics or is full once. No thread may wait indefinitely,
//! each caller must get its error, and acknowledged writes must exist.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use spinney::vfs::{Access, AlignedBuf, MemoryVfs, PosixOptions, PosixVfs, Vfs};
use spinney::{Builder, Database, Error, Event, Keyspace, KeyspaceOptions, MergeOperator};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Scenario, of_scenarios, panic_text};
use crate::random;
use crate::vfs::{WatchedVfs, Watcher};

/// What takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(15);

type Judged = Result<(), String>;

/// Carries the regime out once.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let scenarios: [(&str, Scenario); 4] = [
        ("callbacks", user_code),
        ("disk", own_code),
        ("descriptors", descriptors),
        ("refused", refused),
    ];
    of_scenarios("callbacks", (seed, kinds), &scenarios, |scenario| {
        soon(move || scenario(seed, kinds))
    })
}

/// Calls `f` on a thread of its own, which is left alone if it hangs.
fn soon(f: impl FnOnce() -> Judged + Send + 'static) -> Judged {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let done = catch_unwind(AssertUnwindSafe(f));
        let _ = sender.send(done.unwrap_or_else(|panic| Err(panic_text(&*panic))));
    });
    receiver
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| Err("somebody waits indefinitely".to_string()))
}

/// Appends, and panics on one operand.
struct Moody;

impl MergeOperator for Moody {
    fn name(&self) -> &str {
        "moody"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        assert!(!operands.contains(&&b"panic"[..]), "this operand");
        Ok([existing.unwrap_or_default(), &operands.concat()].concat())
    }
}

fn builder(vfs: impl Vfs + 'static) -> Builder {
    Database::builder("/store")
        .vfs(Arc::new(vfs))
        .memory_budget(1 << 20)
        .memtable_bytes(16 << 10)
        .background_threads(2)
        .merge_operator(Arc::new(Moody))
}

fn expect(what: &str, holds: bool, found: impl std::fmt::Debug) -> Judged {
    if holds { Ok(()) } else { Err(format!("{what}: {found:?}")) }
}

fn plain<T>(what: &str, result: spinney::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn fill(keyspace: &Keyspace, seed: u64) -> spinney::Result<()> {
    (0..500u64)
        .try_for_each(|number| keyspace.put(random::mix(seed ^ number).to_be_bytes(), [7; 100]))
}

fn user_code(seed: u64, kinds: Kinds) -> Judged {
    let listener = |event: &Event| panic!("not now: {event:?}");
    let db = plain("open", builder(MemoryVfs::new()).events(Arc::new(listener)).open())?;
    let options = |number| KeyspaceOptions::new(kinds.of(number)).merge_operator("moody");
    let bad = plain("create", db.keyspace("bad", options(0)))?;
    let good = plain("create", db.keyspace("good", options(1)))?;
    for (key, operand) in [("a", "+"), ("k", "panic"), ("z", "+")] {
        plain("put", bad.put(key, "base"))?;
        plain("merge", bad.merge(key, operand))?;
    }
    for keyspace in [&bad, &good] {
        plain("writing", fill(keyspace, seed))?;
        plain("flush", keyspace.flush())?;
        plain("compact", keyspace.compact(..))?;
    }
    let told = |result: &spinney::Result<()>| match result {
        Err(Error::Merge { keyspace, what, .. }) => keyspace == "bad" && what.contains("panicked"),
        _ => false,
    };
    let idle = db.wait_idle();
    expect("wait_idle", told(&idle), &idle)?;
    plain("wait_idle again", db.wait_idle())?;
    plain("sync", db.sync())?;
    let read = bad.get("k").map(drop);
    expect("get", told(&read), &read)?;
    for key in ["a", "z"] {
        let value = plain("get", bad.get(key))?;
        expect("another key", value.as_deref() == Some(&b"base+"[..]), value)?;
    }
    let count = good.iter().filter(Result::is_ok).count();
    expect("another keyspace", count == 500, count)?;
    let start = Instant::now();
    while db.stats().listener_panics < 3 {
        expect(
            "the listener's panics",
            start.elapsed() < PATIENCE / 2,
            db.stats().listener_panics,
        )?;
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((bad, good));
    plain("close", db.close())
}

/// Panics once.
#[derive(Debug)]
struct Bug {
    left: AtomicU64,
    in_syncs: bool,
}

impl Bug {
    fn strike(&self, path: &Path) {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        assert!(left != Ok(1), "a bug in {}", path.display());
    }
}

impl Watcher for Bug {
    const FILES: bool = true;

    fn writing(&self, path: &Path) {
        // A commit's own write is the caller's panic, not the background's.
        if !self.in_syncs && path.extension().is_some_and(|it| it != "log") {
            self.strike(path);
        }
    }

    fn synced(&self, path: &Path) {
        if self.in_syncs {
            self.strike(path);
        }
    }
}

fn own_code(seed: u64, kinds: Kinds) -> Judged {
    let memory = MemoryVfs::new();
    let bug = Bug { left: AtomicU64::new(0), in_syncs: seed.is_multiple_of(2) };
    let vfs = WatchedVfs::new(memory.clone(), bug);
    let db = plain("open", builder(vfs.clone()).open())?;
    let items = plain("create", db.keyspace("items", KeyspaceOptions::new(kinds.of(0))))?;
    plain("put", items.put("key", "value"))?;
    plain("sync", db.sync())?;
    vfs.watcher().left.store(1 + random::mix(seed) % 40, Ordering::SeqCst);
    let writer = |sync: bool| {
        let (db, items) = (db.clone(), items.clone());
        std::thread::spawn(move || {
            catch_unwind(AssertUnwindSafe(|| {
                (0..200_000u64).try_for_each(|number| {
                    items.put(number.to_be_bytes(), [7; 100])?;
                    if sync && number.is_multiple_of(50) { db.sync() } else { Ok(()) }
                })
            }))
        })
    };
    let poisoned = |result: &spinney::Result<()>| match result {
        Err(Error::Poisoned { reason }) => reason.contains("panicked"),
        _ => false,
    };
    let writers = [false, true, true].map(writer);
    for writer in writers {
        if let Ok(Ok(written)) = writer.join() {
            expect("a writer", poisoned(&written), &written)?;
        }
    }
    let idle = db.wait_idle();
    expect("wait_idle", poisoned(&idle), &idle)?;
    let synced = db.sync();
    expect("sync", poisoned(&synced), &synced)?;
    let compacted = items.compact(..);
    expect("compact", poisoned(&compacted), &compacted)?;
    let read = plain("get", items.get("key"))?;
    expect("get", read.as_deref() == Some(&b"value"[..]), read)?;
    drop(items);
    let closed = db.close();
    expect("close", poisoned(&closed), &closed)?;
    let db = plain("reopen", builder(memory).open())?;
    let items = plain("existing", db.existing_keyspace("items"))?;
    let read = plain("get", items.get("key"))?;
    expect("get after reopening", read.as_deref() == Some(&b"value"[..]), read)
}

/// Refuses the first write to the manifest, once both keyspaces' memtables have been packed.
#[derive(Debug, Default)]
struct Refusal {
    is_due: AtomicBool,
    tables: AtomicU64,
}

/// How long the memtable of one keyspace may be packed behind that of the other.
const BEHIND_MAX: Duration = Duration::from_millis(500);

impl Watcher for Refusal {
    const FILES: bool = true;

    fn writing(&self, _path: &Path) {}

    fn refuses(&self, path: &Path) -> bool {
        let is_manifest =
            path.extension().is_none_or(|it| it != "table" && it != "maplet" && it != "head");
        if !is_manifest || !self.is_due.swap(false, Ordering::SeqCst) {
            return false;
        }
        let start = Instant::now();
        while self.tables.load(Ordering::SeqCst) < 2 && start.elapsed() < BEHIND_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The other one is on its way from a table to the tree, and finds that somebody is at it.
        std::thread::sleep(Duration::from_millis(5));
        true
    }

    fn synced(&self, path: &Path) {
        if path.extension().is_some_and(|it| it == "table") {
            self.tables.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The disk has no room for what one keyspace wants to say: that keeps the other's memtable waiting
/// no longer.
fn refused(seed: u64, kinds: Kinds) -> Judged {
    // Once may be this machine: that nobody looked for a second.
    match one_is_refused(seed, kinds)? {
        true => Ok(()),
        false => {
            let again = one_is_refused(seed, kinds)?;
            expect("a keyspace whose memtable is packed, and another that failed", again, "waits")
        }
    }
}

/// Returns whether one keyspace's memtable was in its tree while the other's had to wait.
fn one_is_refused(_seed: u64, kinds: Kinds) -> Result<bool, String> {
    let vfs = WatchedVfs::new(MemoryVfs::new(), Refusal::default());
    let db = plain("open", builder(vfs.clone()).memtable_bytes(64 << 10).open())?;
    for number in 0..2 {
        let name = ["a", "b"][number];
        plain("create", db.keyspace(name, KeyspaceOptions::new(kinds.of(number))))?;
    }
    let both = [plain("a", db.existing_keyspace("a"))?, plain("b", db.existing_keyspace("b"))?];
    plain("wait_idle", db.wait_idle())?;
    vfs.watcher().is_due.store(true, Ordering::SeqCst);
    let waiting = || {
        let keyspaces = db.stats().keyspaces;
        keyspaces.iter().filter(|keyspace| keyspace.memtables_frozen > 0).count()
    };
    // Both are full at the same time.
    for number in 0u64.. {
        let mut batch = db.batch();
        both.iter().for_each(|keyspace| batch.put(keyspace, number.to_be_bytes(), [7; 1000]));
        plain("commit", batch.commit())?;
        if waiting() == 2 || number > 1000 {
            break;
        }
    }
    let start = Instant::now();
    // It is tried again after a second.
    while start.elapsed() < PATIENCE / 2 {
        match waiting() {
            1 => return Ok(true),
            0 => return Ok(false),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    Err("neither memtable gets into its tree".to_string())
}

/// A directory that goes with it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn descriptors(seed: u64, _kinds: Kinds) -> Judged {
    const MAX: u64 = 4;
    let name = format!("spinney-callbacks-{}-{seed}", std::process::id());
    let dir = Directory(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&dir.0).map_err(|error| error.to_string())?;
    let vfs = PosixVfs::with(PosixOptions { open_files_max: MAX, ..PosixOptions::default() });
    let mut files = Vec::new();
    for number in 0..16u8 {
        let path = dir.0.join(number.to_string());
        let file = plain("create", vfs.create(&path, Access::Direct))?;
        let mut buf = AlignedBuf::new(4096);
        buf.fill(number);
        plain("write", file.write_at(0, &buf))?;
        plain("sync", file.sync())?;
        files.push(file);
    }
    for turn in 0..100u64 {
        let number = random::mix(seed ^ turn) as usize % files.len();
        let mut buf = AlignedBuf::new(4096);
        plain("read", files[number].read_at(0, &mut buf))?;
        expect("a file's byte", buf[100] == number as u8, (number, buf[100]))?;
    }
    let Ok(links) = std::fs::read_dir("/proc/self/fd") else { return Ok(()) };
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    let open = targets.filter(|target| target.starts_with(&dir.0)).count() as u64;
    expect("open files", open <= MAX, open)
}
