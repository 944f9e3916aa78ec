//! When the disk fails, is full or is not ours: writes are refused by name, reads go on, and what was
//! promised is there after the next open.

#[macro_use]
mod common;
#[path = "common/mount.rs"]
mod mount;

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Calls, Random, WatchedVfs, assert_sound, copy, pairs, store_path, with_fanout};
use mount::Mount;
use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{
    Builder, CheckLevel, Database, Durability, Error, Keyspace, KeyspaceOptions, TreeKind,
};

of_every_kind! {
    an_open_that_fails_can_be_repeated
    whichever_change_fails_nothing_promised_is_lost
    a_process_that_dies_after_a_failure_has_lost_nothing_promised
    reads_that_fail_are_told_and_can_be_repeated
    a_full_disk_refuses_writes_and_goes_on_when_there_is_room
    a_full_disk_in_deterministic_mode_does_not_hang
    a_full_file_system_refuses_writes_and_goes_on_when_there_is_room
    damage_in_old_tables_does_not_refuse_writes
    opening_writes_no_more_tables_than_the_journal_has_memtables a_checkpoint_that_fails_is_not_a_store
    a_sync_that_finds_no_room_is_no_refusal
}

fn builder(vfs: &WatchedVfs) -> Builder {
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(4 << 10)
        .deterministic(3)
}

fn value(number: u64) -> Vec<u8> {
    Random(number).bytes(100 + (number % 3) as usize * 40)
}

/// Writes numbers from `from` until one is refused; gives how many have been written in all, and the
/// refusal.
fn write_until_refused(
    db: &Database,
    keyspace: &Keyspace,
    from: u64,
    to: u64,
) -> (u64, Option<Error>) {
    for number in from..to {
        let mut batch = db.batch();
        if number % 10 == 0 {
            batch = batch.durability(Durability::Sync);
        }
        batch.put(keyspace, number.to_be_bytes(), value(number));
        if let Err(error) = batch.commit() {
            return (number, Some(error));
        }
        // A step's failure is told to writers too.
        let _ = db.step();
    }
    (to, None)
}

fn assert_holds(keyspace: &Keyspace, written: u64) {
    for number in 0..written {
        let found = keyspace.get(number.to_be_bytes()).unwrap();
        assert!(found.as_deref() == Some(&*value(number)), "{number} of {written}");
    }
    let keys = keyspace.iter().map(|pair| pair.unwrap().0);
    let numbers: Vec<u64> =
        keys.map(|key| u64::from_be_bytes(key.to_vec().try_into().unwrap())).collect();
    // The write that was refused may or may not be there after a failed sync; none after it is.
    assert!(numbers.len() as u64 == written || numbers.len() as u64 == written + 1);
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "{numbers:?}");
}

/// Each change of the disk, one after another, fails once and for good, or for a moment.
fn whichever_change_fails_nothing_promised_is_lost(kind: TreeKind) {
    let mut poisoned = 0;
    let mut refused = 0;
    let mut opened = 0;
    for number in (1..140).step_by(3) {
        for (calls, count) in [(Calls::Changes, u64::MAX), (Calls::Changes, 1), (Calls::Syncs, 1)] {
            let context = format!("{calls:?} {number}, {count} times");
            let memory = MemoryVfs::new();
            let vfs = WatchedVfs::new(memory.clone());
            let db = builder(&vfs).open().unwrap();
            let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
            vfs.fail(calls, number, count, ErrorKind::Other);
            let (written, error) = write_until_refused(&db, &keyspace, 0, 200);
            if vfs.failed() == 0 {
                assert!(error.is_none(), "{context}: {error:?}");
                continue;
            }
            if let Some(error) = &error {
                refused += 1;
                assert!(error.to_string().contains("/store"), "{context}: {error}");
            }
            // Reads go on.
            for number in (0..written).step_by(7) {
                let found = keyspace.get(number.to_be_bytes()).unwrap();
                assert!(found.as_deref() == Some(&*value(number)), "{context}: {number}");
            }
            if matches!(error, Some(Error::Poisoned { .. })) || keyspace.put("x", "y").is_err() {
                let again = keyspace.put("x", "y");
                if let Err(error @ Error::Poisoned { .. }) = again {
                    poisoned += 1;
                    assert!(error.to_string().contains("close and reopen"), "{context}: {error}");
                    // Mending the disk alone does not bring it back.
                    vfs.mend();
                    let error = keyspace.put("x", "y").unwrap_err();
                    assert!(matches!(error, Error::Poisoned { .. }), "{context}: {error}");
                    let error = db.sync().unwrap_err();
                    assert!(matches!(error, Error::Poisoned { .. }), "{context}: {error}");
                }
            } else {
                keyspace.delete("x").unwrap();
            }
            vfs.mend();
            drop(keyspace);
            let _ = db.close();
            let db = builder(&vfs).open().unwrap_or_else(|error| panic!("{context}: {error}"));
            let keyspace = db.existing_keyspace("items").unwrap();
            keyspace.delete("x").unwrap();
            assert_holds(&keyspace, written);
            let report = db.check(CheckLevel::Full).unwrap();
            assert!(report.problems.is_empty(), "{context}: {:?}", report.problems);
            opened += 1;
        }
    }
    println!("{opened} reopened, {refused} refused, {poisoned} poisoned");
    assert!(opened > 50 && poisoned > 10, "{opened} {poisoned}");
}

/// The process dies just after something has failed: what is on the disk then opens too.
fn a_process_that_dies_after_a_failure_has_lost_nothing_promised(kind: TreeKind) {
    for number in (1..120).step_by(7) {
        let memory = MemoryVfs::new();
        let vfs = WatchedVfs::new(memory.clone());
        let db = builder(&vfs).open().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        vfs.fail(Calls::Changes, number, u64::MAX, ErrorKind::Other);
        let (written, _) = write_until_refused(&db, &keyspace, 0, 200);
        let left = WatchedVfs::new(copy(&memory, &store_path()));
        let db = builder(&left).open().unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_holds(&db.existing_keyspace("items").unwrap(), written);
    }
}

/// An open that fails half way leaves the store as it was.
fn an_open_that_fails_can_be_repeated(kind: TreeKind) {
    let memory = MemoryVfs::new();
    let vfs = WatchedVfs::new(memory.clone());
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let (written, error) = write_until_refused(&db, &keyspace, 0, 150);
    assert!(error.is_none());
    let left = copy(&memory, &store_path());
    let mut failed = 0;
    for calls in [Calls::Changes, Calls::Reads] {
        for number in 1.. {
            let vfs = WatchedVfs::new(copy(&left, &store_path()));
            vfs.fail(calls, number, 1, ErrorKind::Other);
            let result = builder(&vfs).open();
            if vfs.failed() == 0 {
                break;
            }
            vfs.mend();
            match result {
                Err(error) => {
                    failed += 1;
                    assert!(error.to_string().contains("/store"), "{calls:?} {number}: {error}");
                }
                // Nothing depends on the file `DURABLE`.
                Ok(db) => drop(db),
            }
            let db = builder(&vfs).open().unwrap_or_else(|e| panic!("{calls:?} {number}: {e}"));
            assert_holds(&db.existing_keyspace("items").unwrap(), written);
        }
    }
    assert!(failed > 5, "{failed}");
}

/// A read that fails is an error of that read.
fn reads_that_fail_are_told_and_can_be_repeated(kind: TreeKind) {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..3000 {
        keyspace.put(u64::to_be_bytes(number), value(number)).unwrap();
    }
    keyspace.flush().unwrap();
    let mut failed = 0;
    vfs.fail(Calls::Reads, 1, u64::MAX, ErrorKind::Other);
    for number in 0..3000 {
        match keyspace.get(u64::to_be_bytes(number)) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&*value(number))),
            Err(error @ Error::Io { .. }) => {
                failed += 1;
                assert!(error.to_string().contains("/store/"), "{error}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(failed > 0);
    let last = keyspace.iter().last().unwrap();
    assert!(matches!(last, Err(Error::Io { .. })), "an iterator ends in the error");
    assert!(keyspace.multi_get((0..3000).map(u64::to_be_bytes)).is_err());
    keyspace.put("written", "meanwhile").unwrap();
    vfs.mend();
    assert_eq!(pairs(keyspace.iter()).len(), 3001);
}

fn full_disk(kind: TreeKind, vfs: &MemoryVfs, builder: impl Fn() -> Builder, make_room: impl Fn()) {
    let db = builder().open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let mut written = 0;
    let error = loop {
        match keyspace.put(u64::to_be_bytes(written), value(written)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1_000_000, "the disk never got full; it holds {}", vfs.used_bytes());
    };
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("no space left") && text.contains("free some space"), "{text}");
    assert!(written > 100, "{written}");
    let check = |keyspace: &Keyspace, written| {
        for number in 0..written {
            let found = keyspace.get(u64::to_be_bytes(number)).unwrap();
            assert!(found.as_deref() == Some(&*value(number)), "{number} of {written}");
        }
        assert_eq!(pairs(keyspace.iter()).len() as u64, written);
    };
    check(&keyspace, written);
    // Refused again, whatever is tried, but never poisoned.
    for _ in 0..20 {
        match keyspace.put(u64::to_be_bytes(written), value(written)) {
            Ok(()) => written += 1,
            Err(error) => assert!(matches!(error, Error::Full { .. }), "{error:?}"),
        }
    }
    check(&keyspace, written);
    make_room();
    // Without reopening.
    let patience = Instant::now();
    let more = written + 2000;
    while written < more {
        match keyspace.put(u64::to_be_bytes(written), value(written)) {
            Ok(()) => written += 1,
            Err(error) => {
                assert!(matches!(error, Error::Full { .. }), "{error:?}");
                assert!(patience.elapsed() < Duration::from_secs(10), "{written}: {error}");
                std::thread::sleep(Duration::from_millis(5));
                let _ = db.step();
            }
        }
    }
    check(&keyspace, written);
    assert!(db.check(CheckLevel::Full).unwrap().problems.is_empty());
    drop(keyspace);
    db.close().unwrap();
    let db = builder().open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    check(&keyspace, written);
    keyspace.put("after", "reopening").unwrap();
}

/// A file that takes up room, and gives it back.
fn ballast(vfs: &dyn Vfs, path: &Path, bytes: usize) -> impl Fn() {
    let file = vfs.create(path, spinney::vfs::Access::Buffered).unwrap();
    file.write_at(0, &vec![1; bytes]).unwrap();
    move || file.truncate(0).unwrap()
}

fn a_full_disk_refuses_writes_and_goes_on_when_there_is_room(kind: TreeKind) {
    let vfs = MemoryVfs::with_capacity(6 << 20);
    let room = ballast(&vfs, Path::new("/ballast"), 4 << 20);
    let make = || {
        Database::builder(store_path())
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(1 << 20)
            .memtable_bytes(32 << 10)
            .background_threads(2)
    };
    full_disk(kind, &vfs, make, room);
}

fn a_full_disk_in_deterministic_mode_does_not_hang(kind: TreeKind) {
    let vfs = MemoryVfs::with_capacity(5 << 20);
    let room = ballast(&vfs, Path::new("/ballast"), 4 << 20);
    let make = || {
        Database::builder(store_path())
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(1 << 20)
            .memtable_bytes(16 << 10)
            .deterministic(5)
    };
    full_disk(kind, &vfs, make, room);
}

fn a_full_file_system_refuses_writes_and_goes_on_when_there_is_room(kind: TreeKind) {
    let Some(mount) = Mount::new("size=6m") else { return };
    let ballast = mount.path().join("ballast");
    std::fs::write(&ballast, vec![1; 3 << 20]).unwrap();
    let store = mount.path().join("store");
    let make = || Database::builder(&store).memory_budget(2 << 20).memtable_bytes(64 << 10);
    full_disk(kind, &MemoryVfs::new(), make, || std::fs::remove_file(&ballast).unwrap());
}

#[test]
fn a_directory_that_cannot_be_written_is_told_by_name() {
    let error = Database::builder("/proc/spinney-store").open().unwrap_err();
    assert!(error.to_string().contains("/proc/spinney-store"), "{error}");
    assert!(matches!(error, Error::Io { .. }), "{error:?}");

    let Some(mount) = Mount::new("size=8m") else { return };
    let store = mount.path().join("store");
    let make = || Database::builder(&store).memory_budget(2 << 20);
    let db = make().open().unwrap();
    db.keyspace("items", KeyspaceOptions::stb()).unwrap().put("a", "1").unwrap();
    db.close().unwrap();
    let remount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(mount.path()).status().unwrap();
        assert!(status.success());
    };
    remount("remount,ro");
    let error = make().open().unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    assert!(error.to_string().contains(&*store.to_string_lossy()), "{error}");
    remount("remount,rw");
    let db = make().open().unwrap();
    assert_eq!(db.existing_keyspace("items").unwrap().get("a").unwrap().unwrap(), b"1");
}

/// Run again as another process, this test opens the store it is told to.
#[test]
fn a_second_opener_is_told_who_has_the_store() {
    const STORE: &str = "SPINNEY_TEST_STORE";
    if let Some(store) = std::env::var_os(STORE) {
        match Database::builder(store).open() {
            Ok(_) => println!("outcome: opened"),
            Err(error) => println!("outcome: {error}"),
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let db = Database::builder(&store).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    keyspace.put("a", "1").unwrap();

    let error = Database::builder(&store).open().unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error:?}");
    let says = |text: &str| {
        assert!(text.contains("already open") && text.contains("close it first"), "{text}");
        assert!(text.contains(&*store.to_string_lossy()), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
    };
    says(&error.to_string());

    let other = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_second_opener_is_told_who_has_the_store", "--nocapture"])
            .env(STORE, &store)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = other();
    says(told.lines().find(|line| line.contains("outcome: ")).unwrap());

    // The refused openers have done no harm.
    keyspace.put("b", "2").unwrap();
    drop((keyspace, db));
    let told = other();
    assert!(told.contains("outcome: opened"), "{told}");
    let db = Database::builder(&store).open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    assert_eq!(keyspace.iter().count(), 2);
}

/// A page that could not be read when new data moved down the trunk poisoned the store, and one that a
/// compaction could not read failed writers that only waited for room in the memtables. In `flsm` the
/// damaged guard was the most urgent forever: no other was compacted, and these 12,000 writes took 42 s,
/// nearly all of it the throttle's. In `stb` it took up to 84 s, if a node with damage was chosen soon.
fn damage_in_old_tables_does_not_refuse_writes(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(8 << 10)
        .background_threads(2)
        .open()
        .unwrap();
    let keyspace = db.keyspace("items", with_fanout(KeyspaceOptions::new(kind), 3)).unwrap();
    for number in 0..300 {
        keyspace.put(u64::to_be_bytes(number), value(number)).unwrap();
    }
    db.wait_idle().unwrap();
    for (name, len) in common::files(&vfs, &store_path()) {
        if name.ends_with(".table") {
            (0..len - 4096).step_by(4096).for_each(|unit| {
                common::flip(&vfs, &store_path().join(&name), unit + 100);
            });
        }
    }
    for number in 0..6000 {
        let key = u64::to_be_bytes(number % 1000);
        keyspace.put(key, value(number)).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    for number in 5000..6000 {
        let found = keyspace.get(u64::to_be_bytes(number % 1000)).unwrap();
        assert!(found.as_deref() == Some(&*value(number)), "{number}");
    }
    // All that the damaged tables have is dead by now: a tree of one level knows it, and drops them unread.
    let has_levels = kind.options().any(|(name, _)| name == "fanout_max");
    match keyspace.compact(..) {
        Ok(()) => {
            assert!(!has_levels, "{kind}: no damage is met");
            assert_sound(&db);
        }
        Err(error) => assert!(error.is_corruption(), "{error}"),
    }
    for number in 6000..12_000 {
        let key = u64::to_be_bytes(number % 1000);
        keyspace.put(key, value(number)).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    let throttled = db.stats().throttled;
    assert!(throttled < Duration::from_secs(2), "{throttled:?}");
}

/// Replay wrote a table for each record where the chunks of memory that memtables come in are larger
/// than what the budget gives them.
fn opening_writes_no_more_tables_than_the_journal_has_memtables(kind: TreeKind) {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let make = || builder(&vfs).memtable_bytes(64 << 10);
    let db = make().open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..1000 {
        keyspace.put(u64::to_be_bytes(number), value(number)).unwrap();
    }
    drop(keyspace);
    db.close().unwrap();
    let before = vfs.count(Calls::Changes);
    let db = make().open().unwrap();
    let changes = vfs.count(Calls::Changes) - before;
    assert!(changes < 100, "{changes} changes of the disk");
    assert_holds(&db.existing_keyspace("items").unwrap(), 1000);
}

/// A checkpoint that fails leaves no store that could be taken for one, and the store itself as it was.
fn a_checkpoint_that_fails_is_not_a_store(kind: TreeKind) {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..200 {
        keyspace.put(u64::to_be_bytes(number), value(number)).unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let at = |dir: &str| Database::builder(dir).vfs(Arc::new(vfs.clone())).create_if_missing(false);
    let mut failed = 0;
    for number in 1.. {
        let dir = format!("/checkpoint-{number}");
        vfs.fail(Calls::Changes, number, 1, ErrorKind::Other);
        let result = db.checkpoint(&dir);
        vfs.mend();
        if vfs.failed() == 0 {
            result.unwrap();
            assert_holds(&at(&dir).open().unwrap().existing_keyspace("items").unwrap(), 200);
            break;
        }
        failed += 1;
        assert!(result.unwrap_err().to_string().contains("failed on /"), "{number}");
        match at(&dir).open() {
            Err(Error::NotAStore { .. }) => {}
            Err(error) => panic!("{number}: {error:?}"),
            // Only its directory's last sync had failed.
            Ok(copy) => assert_holds(&copy.existing_keyspace("items").unwrap(), 200),
        }
        assert!(number < 500, "the same checkpoint takes ever more calls");
    }
    assert!(failed > 5, "{failed}");
    assert_holds(&keyspace, 200);
    keyspace.put("still", "written").unwrap();
}

/// Where a file system finds out only in a sync that it has no room, a commit that asked for one was
/// told "no space left", which is what a write is told of which nothing has been stored. It was stored,
/// and seen by readers, and there after the process had died.
fn a_sync_that_finds_no_room_is_no_refusal(kind: TreeKind) {
    let mut stored = 0;
    for number in 1..8 {
        let vfs = WatchedVfs::new(MemoryVfs::new());
        let db = builder(&vfs).open().unwrap();
        let keyspace = db.keyspace("a", KeyspaceOptions::new(kind)).unwrap();
        vfs.fail(Calls::Syncs, number, 1, ErrorKind::StorageFull);
        let mut batch = db.batch().durability(Durability::Sync);
        batch.put(&keyspace, "key", "value");
        match batch.commit() {
            Ok(()) => {}
            Err(Error::Full { .. }) => assert_eq!(keyspace.get("key").unwrap(), None),
            Err(error) => {
                assert!(matches!(error, Error::Io { .. } | Error::Poisoned { .. }), "{error}");
                let later = keyspace.put("later", "value").unwrap_err();
                assert!(matches!(later, Error::Poisoned { .. }), "{later}");
                stored += u64::from(keyspace.get("key").unwrap().is_some());
            }
        }
    }
    assert!(stored > 0, "none of the failed syncs was the commit's own");
}

/// Whoever waited was told of damage in one keyspace before another's work had been done, each time again: the damaged
/// place was met first. It is told once there is nothing else left to do.
#[test]
fn damage_in_one_keyspace_is_told_after_the_work_of_others() {
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    // Leaves, met by merges; in `flsm` also index pages, met while work is looked for.
    let cases = [
        (TreeKind::Stb, true, false),
        (TreeKind::Stb, false, false),
        (TreeKind::Flsm, true, false),
        (TreeKind::Flsm, false, false),
        (TreeKind::Flsm, true, true),
        (TreeKind::Flsm, false, true),
    ];
    for (kind, is_stepped, indexes_too) in cases {
        let vfs = MemoryVfs::new();
        let open = || {
            let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
            let builder = builder.memory_budget(2 << 20).memtable_bytes(64 << 10);
            let builder =
                if is_stepped { builder.deterministic(7) } else { builder.background_threads(2) };
            builder.open().unwrap()
        };
        let db = open();
        let options = with_fanout(KeyspaceOptions::new(kind), 4);
        let damaged = db.keyspace("damaged", options).unwrap();
        (0..4000).for_each(|n| damaged.put(key(n), [1; 100]).unwrap());
        damaged.flush().unwrap();
        db.wait_idle().unwrap();
        drop((damaged, db));
        for (name, len) in common::files(&vfs, &store_path()) {
            if name.ends_with(".table") {
                let end = if indexes_too { len / 4096 - 4 } else { len / 4096 / 2 };
                let pages = (0..end).step_by(if indexes_too { 1 } else { 3 });
                pages.for_each(|page| {
                    common::flip(&vfs, &store_path().join(&name), page * 4096 + 100)
                });
            }
        }
        let db = open();
        let damaged = db.existing_keyspace("damaged").unwrap();
        let healthy = db.keyspace("healthy", KeyspaceOptions::new(kind)).unwrap();
        for n in 0..4000 {
            damaged.put(key(n), [2; 100]).unwrap();
            healthy.put(key(n), [2; 100]).unwrap();
        }
        let _ = (damaged.flush(), healthy.flush());
        for _ in 0..3 {
            let idle = db.wait_idle();
            assert!(idle.as_ref().is_err_and(Error::is_corruption), "{kind}: {idle:?}");
            let stats = db.stats();
            let pending = |name: &str| {
                let keyspace = stats.keyspaces.iter().find(|keyspace| keyspace.name == name);
                keyspace.unwrap().compaction_pending_bytes
            };
            assert_eq!(pending("healthy"), 0, "{kind}, {is_stepped}, {indexes_too}");
        }
    }
}
