//! What a poisoned store does, and what it says: nothing more is written, and nobody is told to try again.

#[macro_use]
mod common;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use common::{Calls, Random, WatchedVfs, files, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Database, Durability, Error, KeyspaceOptions};

of_every_kind! {
    background_work_of_a_poisoned_store_ends
}

/// After a failed sync of the journal, flushes and compactions wrote their output again after every pause, and failed
/// only when they committed it. All of it stayed on the disk until the store was opened again.
fn background_work_of_a_poisoned_store_ends(kind: spinney::TreeKind) {
    let memory = MemoryVfs::new();
    let vfs = WatchedVfs::new(memory.clone());
    let db = Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(8 << 20)
        .memtable_bytes(256 << 10)
        .open()
        .unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    let mut random = Random(7);
    for _ in 0..20_000 {
        keyspace.put(random.below(1 << 40).to_be_bytes(), random.bytes(300)).unwrap();
    }
    // All of them: a single failure could be that of a spare segment, while this commit's own sync succeeds.
    vfs.fail(Calls::MappedSyncs, 1, u64::MAX, ErrorKind::Other);
    let mut batch = db.batch().durability(Durability::Sync);
    batch.put(&keyspace, "key", "value");
    batch.commit().unwrap_err();
    let count = || files(&memory, &store_path()).len();
    std::thread::sleep(Duration::from_millis(1500));
    let before = count();
    std::thread::sleep(Duration::from_millis(3000));
    assert_eq!(count(), before, "{kind}");
}

/// A manifest was written anew, and its old copy could not be removed for want of room, which poisons the store. Whoever
/// waited was told that there was no space left and to try again.
#[test]
fn a_refusal_that_poisons_is_not_told_as_one() {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(1 << 20)
        .memtable_bytes(4 << 10)
        .deterministic(3)
        .open()
        .unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    vfs.fail_named("remove", "manifest-", ErrorKind::StorageFull);
    for number in 0..100_000u64 {
        if keyspace.put((number % 5000).to_be_bytes(), [1; 100]).is_err() {
            break;
        }
        let _ = db.step();
    }
    let put = keyspace.put("key", "value").unwrap_err();
    assert!(matches!(put, Error::Poisoned { .. }), "{put:?}");
    let idle = db.wait_idle().unwrap_err();
    assert!(matches!(idle, Error::Poisoned { .. }), "{idle:?}");
}

/// Of a store that is poisoned, the first conditional write that would have written nothing said so, and later ones did
/// not: only the first looked.
#[test]
fn conditional_writes_of_a_poisoned_store_fail_alike() {
    for used_before in [false, true] {
        let vfs = WatchedVfs::new(MemoryVfs::new());
        let db = Database::builder(store_path()).vfs(Arc::new(vfs.clone())).open().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
        keyspace.put("key", "value").unwrap();
        if used_before {
            assert!(!keyspace.insert_if_absent("key", "other").unwrap());
        }
        vfs.fail(Calls::MappedSyncs, 1, u64::MAX, ErrorKind::Other);
        db.sync().unwrap_err();
        for _ in 0..2 {
            let refused = keyspace.insert_if_absent("key", "other").unwrap_err();
            assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
            let refused = keyspace.take("absent").unwrap_err();
            assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
            let mut batch = db.batch();
            batch.require_present(&keyspace, "key");
            let refused = batch.commit().unwrap_err();
            assert!(matches!(refused, Error::Poisoned { .. }), "{refused:?}");
        }
        assert_eq!(keyspace.get("key").unwrap().unwrap(), b"value");
    }
}
