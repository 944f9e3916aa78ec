//! What is live is known also where a few keys are written very often: those that the sample happens to have must not
//! decide what part of all others is live.

#[macro_use]
mod common;

use std::sync::Arc;

use common::{Random, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    keys_of_many_versions_count_once
    a_hot_key_says_nothing_of_what_is_live
    what_a_value_has_grown_to_is_known_without_opening_again
}

/// Once gets had filled the row cache of a store of 6 MiB, pages had no memory at all, since tables and memtables had taken
/// what both had shared. A scan of 50 pairs read 110 pages: each was gone before it was used.
#[test]
fn rows_of_a_small_store_leave_memory_to_pages() {
    let db = Database::builder(store_path()).vfs(Arc::new(MemoryVfs::new()));
    let db = db.memory_budget(6_360_000).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let keys = 150_000;
    (0..keys).for_each(|number| keyspace.put(key(number), Random(number).bytes(400)).unwrap());
    db.wait_idle().unwrap();
    let mut random = Random(1);
    for _ in 0..60_000 {
        keyspace.get(key(random.below(keys / 10))).unwrap().unwrap();
    }
    let stats = db.stats();
    let pages = stats.memory_cache - stats.memory_row_cache;
    assert!(stats.memory_row_cache > 50_000, "{} bytes of rows", stats.memory_row_cache);
    assert!(2 * pages >= stats.memory_row_cache, "{pages} of {} bytes", stats.memory_cache);
    let mut scan = |scans: u64| {
        let before = db.stats().pages_read;
        for _ in 0..scans {
            let from = key(random.below(keys));
            assert!(keyspace.range(&from[..]..).take(50).all(|pair| pair.is_ok()));
        }
        (db.stats().pages_read - before) / scans
    };
    scan(2000);
    db.wait_idle().unwrap();
    let pages = scan(500);
    assert!(pages < 30, "a scan reads {pages} pages");
}

fn key(number: u64) -> [u8; 8] {
    Random(number).next().to_be_bytes()
}

fn open(vfs: &MemoryVfs) -> Database {
    let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
    builder.memory_budget(8 * MIB).memtable_bytes(MIB / 4).deterministic(1).open().unwrap()
}

/// Writes, and lets the background do all that there is to do.
fn put(db: &Database, keyspace: &Keyspace, number: u64, bytes: usize) {
    keyspace.put(key(number), vec![number as u8; bytes]).unwrap();
    while db.step().unwrap() {}
}

fn live_bytes(db: &Database) -> u64 {
    db.stats().keyspaces[0].live_bytes
}

/// Ten keys over 20,000: the sample had none of them, what it had was live, and 84,544 keys were shown.
fn keys_of_many_versions_count_once(kind: TreeKind) {
    let db = open(&MemoryVfs::new());
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    (0..20_000).for_each(|number| put(&db, &keyspace, number, 100));
    (0..100_000).for_each(|number| put(&db, &keyspace, number % 10, 20));
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let keys = db.stats().keyspaces[0].keys_estimate;
    assert!((18_000..22_000).contains(&keys), "{keys} keys of 20,000");
}

/// Where the sample had a hot key, a fifth of the live bytes was shown, and writers were throttled for space that was not
/// to be had back.
fn a_hot_key_says_nothing_of_what_is_live(kind: TreeKind) {
    let db = Database::builder(store_path()).vfs(Arc::new(MemoryVfs::new()));
    let db = db.memory_budget(16 * MIB).memtable_bytes(MIB).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    (0..100_000).for_each(|number| keyspace.put(key(number), [7; 100]).unwrap());
    keyspace.flush().unwrap();
    keyspace.compact(..).unwrap();
    db.wait_idle().unwrap();
    let fresh = live_bytes(&db);
    for hot in 0..50 {
        for write in 0..10_000 {
            keyspace.put(key(hot), [7; 200]).unwrap();
            if write % 1000 == 0 {
                let live = live_bytes(&db);
                let near = live * 10 > fresh * 8 && live * 10 < fresh * 13;
                assert!(
                    near,
                    "key {hot}: {live} bytes shown as live of {fresh} {:?}",
                    db.stats().keyspaces[0]
                );
            }
        }
    }
}

/// A second put in one memtable made a size a guess, which a merge of what lay below corrected to what had been there
/// before.
fn what_a_value_has_grown_to_is_known_without_opening_again(kind: TreeKind) {
    for (from, to, keys) in [(10, 3000, 4_000), (10, 1000, 10_000)] {
        let vfs = MemoryVfs::new();
        let db = open(&vfs);
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
        (0..keys).for_each(|number| put(&db, &keyspace, number, from));
        for number in 0..keys {
            put(&db, &keyspace, number, to);
            put(&db, &keyspace, number, to);
        }
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
        let live = live_bytes(&db);
        drop(keyspace);
        db.close().unwrap();
        let db = open(&vfs);
        let keyspace = db.existing_keyspace("items").unwrap();
        let again = live_bytes(&db);
        drop(keyspace);
        assert!(live.abs_diff(again) * 10 < again, "{from} to {to} bytes: {live}, then {again}");
    }
}
