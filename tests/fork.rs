//! A forked child has its parent's handles and none of its threads: it is refused by name, and does no harm.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use spinney::{
    Batch, CheckLevel, Database, Durability, Error, Keyspace, KeyspaceOptions, Statistics, TreeKind,
};

/// One test at a time forks, while no other starts or ends threads: the standard library has a lock of its own for that,
/// which a child that starts threads would wait for.
static ALONE: Mutex<()> = Mutex::new(());

/// Forks, and calls `f` in the child, which ends then.
fn in_child(report: &Path, f: impl FnMut() -> Result<(), String> + Send + Sync + 'static) {
    let path = report.to_path_buf();
    let f = Mutex::new(f);
    let mut command = Command::new("true");
    let child = move || {
        let result = (f.lock().unwrap())();
        std::fs::write(&path, result.err().unwrap_or_else(|| "well".to_string()))
    };
    // SAFETY: the child allocates and opens files, which glibc allows between fork and exec.
    let status = unsafe { command.pre_exec(child) }.status().unwrap();
    assert!(status.success());
    assert_eq!(std::fs::read_to_string(report).unwrap(), "well");
    std::fs::remove_file(report).unwrap();
}

fn refused<T>(what: &str, result: Result<T, Error>) -> Result<(), String> {
    match result {
        Err(Error::Forked { .. }) => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
        Ok(_) => Err(format!("{what} was accepted")),
    }
}

fn fill(items: &Keyspace, round: u8) {
    for number in 0..2000u64 {
        items.put(number.to_be_bytes(), [round; 100]).unwrap();
    }
}

fn check(items: &Keyspace, round: u8) {
    assert_eq!(items.iter().count(), 2000);
    for pair in items.iter() {
        assert_eq!(*pair.unwrap().1, [round; 100]);
    }
}

/// A child's `put` once returned `Ok` and was lost; what it dropped unlocked its parent's store. `wait_idle` took a lock
/// before it refused: if a background thread held it at the moment of the fork, the child waited indefinitely. (With debug
/// assertions, a child that waits for any lock of its parent's panics, and a child that panics fails.)
#[test]
fn a_forked_child_is_refused_and_does_no_harm() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in TreeKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let report = dir.path().join("report");
        let open = || Database::builder(&store).memory_budget(1 << 20).open();
        let db = open().unwrap();
        let items = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        fill(&items, 1);
        items.flush().unwrap();
        // Old versions that the child's handles alone will hold, in its memory.
        let held = Mutex::new(Some((db.clone(), items.clone(), db.snapshot(), items.iter())));
        let path = store.clone();
        in_child(&report, move || {
            let Some((db, items, snapshot, mut iter)) = held.lock().unwrap().take() else {
                return Ok(());
            };
            refused("put", items.put("key", "of the child"))?;
            refused("delete", items.delete_with("key", Durability::Sync))?;
            refused("insert_if_absent", items.insert_if_absent("key", "of the child"))?;
            refused("take", items.take("key"))?;
            refused("alter", items.alter(|options| options.blob_bytes_min(10_000)))?;
            let mut batch = Batch::new().durability(Durability::Sync);
            batch.put(&items, "key", "of the child");
            refused("write", db.write(&batch))?;
            batch.require_absent(&items, "key");
            refused("write if", db.write(&batch))?;
            refused("get", items.get("key"))?;
            refused("multi_get", items.multi_get(["key", "other"]))?;
            refused("contains_key", items.contains_key("key"))?;
            refused("count", items.count(..))?;
            refused("describe", items.describe())?;
            refused("flush", items.flush())?;
            refused("compact", items.compact(..))?;
            refused("keyspace", db.keyspace("new", KeyspaceOptions::stb()))?;
            refused("existing_keyspace", db.existing_keyspace("items"))?;
            refused("check", db.check(CheckLevel::Structure))?;
            refused("step", db.step())?;
            refused("sync", db.sync())?;
            refused("wait_idle", db.wait_idle())?;
            refused("drop_keyspace", db.drop_keyspace("items"))?;
            refused("checkpoint", db.checkpoint(path.join("copy")))?;
            let of_none = (db.keyspaces(), db.stats(), format!("{db:?} {items:?}"));
            if !of_none.0.is_empty() || of_none.1 != Statistics::default() {
                return Err(format!("{of_none:?}"));
            }
            if items.options().kind() != kind || db.recovery().stopped.is_some() {
                return Err("what does not change has changed".to_string());
            }
            iter.next();
            let mut last = snapshot.iter(&items);
            refused("a new iterator", last.next_back().unwrap_or(Ok(Default::default())))?;
            refused("a snapshot of the child's", db.snapshot().get(&items, "key"))?;
            refused("close", db.clone().close())?;
            // The parent still holds it.
            match Database::builder(&path).open() {
                Err(Error::Locked { .. }) => {}
                other => return Err(format!("opening: {other:?}")),
            }
            drop((batch, iter, snapshot, items, db));
            // And after all handles have been dropped, too.
            match Database::builder(&path).open() {
                Err(Error::Locked { .. }) => {}
                other => return Err(format!("opening again: {other:?}")),
            }
            // A store of its own is as good as any.
            let own = path.with_extension("own");
            let db = Database::builder(&own).open().map_err(|error| error.to_string())?;
            let mine = db.keyspace("mine", KeyspaceOptions::stb()).map_err(|e| e.to_string())?;
            mine.put("key", "value").map_err(|error| error.to_string())?;
            mine.flush().map_err(|error| error.to_string())?;
            drop(mine);
            db.close().map_err(|error| error.to_string())
        });
        // The parent goes on, and nothing of it has gone.
        check(&items, 1);
        fill(&items, 2);
        items.compact(..).unwrap();
        check(&items, 2);
        drop(items);
        db.close().unwrap();
        let db = open().unwrap();
        check(&db.existing_keyspace("items").unwrap(), 2);
        assert!(db.recovery().stopped.is_none(), "{:?}", db.recovery());
    }
}

/// Closing a file that a child has too does not unlock it. A store that had been read could not be written for as long as a
/// child, started meanwhile by any thread, had not executed its program yet. And a child must not unlock its parent's.
#[test]
fn a_store_that_was_read_is_free_while_a_child_has_a_copy_of_its_lock() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for has_lock_file in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (store, report) = (dir.path().join("store"), dir.path().join("report"));
        drop(Database::builder(&store).open().unwrap());
        if !has_lock_file {
            std::fs::remove_file(store.join("LOCK")).unwrap();
        }
        let read = || Database::open_read_only(&store).unwrap();
        let is_locked = |path: &Path| match Database::builder(path).open() {
            Err(Error::Locked { .. }) => Ok(()),
            other => Err(format!("opening beside a reader: {other:?}")),
        };
        let held = Mutex::new(Some(read()));
        let path = store.clone();
        in_child(&report, move || {
            drop(held.lock().unwrap().take());
            is_locked(&path)
        });

        let reader = read();
        let (mut wait, mut go) = std::io::pipe().unwrap();
        let begun = report.with_extension("begun");
        let child = std::thread::spawn({
            let begun = begun.clone();
            let mut begin = move || {
                std::fs::write(&begun, "")?;
                wait.read_exact(&mut [0])
            };
            move || in_child(&report, move || begin().map_err(|error| error.to_string()))
        });
        while !begun.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        is_locked(&store).unwrap();
        drop(reader);
        let db = Database::builder(&store).open();
        go.write_all(&[0]).unwrap();
        child.join().unwrap();
        db.unwrap().close().unwrap();
    }
}

/// The store's locks kept a table of waiting threads in the process. A child had the table without the threads, and
/// its own threads got the memory in which those had waited: it ended in 22 of 300 runs of the test above.
#[test]
fn a_child_s_own_store_knows_nothing_of_its_parent_s_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let db = Database::builder(dir.path().join("store")).background_threads(8).open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    for round in 0..20 {
        fill(&items, round);
        items.flush().unwrap();
        let own = dir.path().join(format!("own-{round}"));
        in_child(&report, move || {
            let work = || {
                let db = Database::builder(&own).background_threads(8).open()?;
                let mine = db.keyspace("mine", KeyspaceOptions::stb())?;
                for key in 0..20u64 {
                    mine.put(key.to_be_bytes(), "value")?;
                    mine.flush()?;
                }
                db.wait_idle()?;
                drop(mine);
                db.close()
            };
            work().map_err(|error: Error| error.to_string())
        });
    }
    check(&items, 19);
}

/// A value that is kept without a copy, and the memtables of a keyspace that is gone, took a lock of the cache or of the
/// memtables' pool when a child dropped them.
#[test]
fn what_a_child_drops_takes_no_lock_of_its_parent_s() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for kind in TreeKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report");
        let db = Database::builder(dir.path().join("store")).memory_budget(1 << 20).open().unwrap();
        let options = KeyspaceOptions::new(kind).blob_bytes_min(1000);
        let items = db.keyspace("items", options.clone()).unwrap();
        let gone = db.keyspace("gone", options).unwrap();
        fill(&gone, 1);
        let mut batch = Batch::new();
        batch.put(&gone, "key", "value");
        db.drop_keyspace("gone").unwrap();
        for number in 0..500u64 {
            items.put(number.to_be_bytes(), [number as u8; 8000]).unwrap();
        }
        items.flush().unwrap();
        let read = |number: u64| items.get(number.to_be_bytes()).unwrap().unwrap();
        drop(read(0));
        let kept = read(0);
        // Other values take its place in the cache.
        for number in (1..500).chain(1..500).chain(1..500) {
            drop(read(number));
        }
        let held = Mutex::new(Some((kept, gone, batch)));
        in_child(&report, move || {
            drop(held.lock().unwrap().take());
            Ok(())
        });
        drop(items);
        db.close().unwrap();
    }
}
