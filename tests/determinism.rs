//! The same seed does the same I/O. A file, and so a process, of its own: readers of other stores in the
//! same process delay the reuse of cached pages, and so may add reads.

mod common;

use std::sync::Arc;

use common::{Random, WatchedVfs, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB};

/// What a session does to the files, from a seed.
fn session(seed: u64) -> common::Trace {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    vfs.trace();
    let make = || {
        Database::builder(store_path())
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(MIB)
            .memtable_bytes(4 << 10)
            .deterministic(seed)
    };
    let mut random = Random(1);
    for _ in 0..3 {
        let db = make().open().unwrap();
        let keyspaces: Vec<Keyspace> = ["a", "b"]
            .iter()
            .map(|name| db.keyspace(name, KeyspaceOptions::stb().blob_bytes_min(500)).unwrap())
            .collect();
        for number in 0..1500 {
            let keyspace = &keyspaces[random.below(2) as usize];
            let len = if number % 100 == 0 { 20_000 } else { random.below(600) as usize };
            keyspace.put(random.below(400).to_be_bytes(), random.bytes(len)).unwrap();
            let _ = keyspace.get(random.below(400).to_be_bytes()).unwrap();
            if random.below(3) == 0 {
                db.step().unwrap();
            }
        }
        keyspaces[0].compact::<&[u8]>(..).unwrap();
        assert_eq!(keyspaces[1].iter().count(), keyspaces[1].iter().rev().count());
        db.checkpoint(format!("/copy-{}", random.next())).unwrap();
    }
    vfs.traced()
}

/// A session on a thread of its own: when a thread's readers let cached pages be reused depends on how
/// many reads it has done before.
fn on_a_fresh_thread(seed: u64) -> common::Trace {
    std::thread::spawn(move || session(seed)).join().unwrap()
}

#[test]
fn the_same_seed_makes_the_same_calls() {
    let (first, second) = (on_a_fresh_thread(5), on_a_fresh_thread(5));
    let same = first.calls.iter().zip(&second.calls).take_while(|(a, b)| a == b).count();
    assert_eq!(
        first.hash,
        second.hash,
        "they part at call {same}:\n{:?}\n{:?}",
        first.calls.get(same),
        second.calls.get(same)
    );
    assert!(first.calls.len() > 3000, "{}", first.calls.len());
    assert_ne!(first.hash, on_a_fresh_thread(6).hash, "another seed has another order of steps");
}
