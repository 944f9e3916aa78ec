//! What opening costs after a crash: the journal's bytes, whatever the number of keyspaces.

mod common;

use std::sync::Arc;

use common::{copy, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Builder, Database, KeyspaceOptions, MIB, TreeKind};

const RECORDS: u64 = 40_000;

fn builder(vfs: &MemoryVfs) -> Builder {
    Database::builder(store_path()).vfs(Arc::new(vfs.clone())).deterministic(1)
}

/// What the death of the process leaves of a store into whose keyspaces records were put in turn: all of them in
/// the journal.
fn crashed(kind: TreeKind, keyspaces: u64) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).memory_budget(512 * MIB).memtable_bytes(64 * MIB).open().unwrap();
    let create = |n| db.keyspace(&format!("keyspace {n}"), KeyspaceOptions::new(kind)).unwrap();
    let keyspaces: Vec<_> = (0..keyspaces).map(create).collect();
    for n in 0..RECORDS {
        let keyspace = &keyspaces[n as usize % keyspaces.len()];
        keyspace.put(n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [1; 100]).unwrap();
    }
    copy(&vfs, &store_path())
}

/// Nanoseconds of the processor's time that this thread has had.
fn processor_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// After each record, replay summed the memtables of all keyspaces: 208 MiB of journal took 50 s with a hundred of
/// them. Only here is no other thread, and time is the processor's, so that other work does not count.
#[test]
fn replaying_costs_the_journal_s_bytes() {
    for kind in TreeKind::ALL {
        let cost = |keyspaces: u64| {
            let vfs = crashed(kind, keyspaces);
            (0..3)
                .map(|_| {
                    let copied = copy(&vfs, &store_path());
                    let before = processor_nanos();
                    let db = builder(&copied).memory_budget(8 * MIB).open().unwrap();
                    let nanos = processor_nanos() - before;
                    let recovery = db.recovery();
                    assert_eq!(recovery.records_replayed, RECORDS);
                    // Room is made once for so many bytes, and at the end.
                    let share = 8 * MIB / 16 * 8 / 3;
                    let times = recovery.bytes_replayed * 2 / share + 8;
                    assert!(recovery.memtables_weighed <= times * keyspaces, "{recovery:?}");
                    assert_eq!(db.keyspaces().len() as u64, keyspaces);
                    nanos
                })
                .min()
                .unwrap()
        };
        let (one, many) = (cost(1), cost(400));
        println!("{kind}: one keyspace {one} ns, 400 keyspaces {many} ns");
        // Guarded by the count above; time only catches what that does not count. (400 keyspaces are opened,
        // and their small tables are written.)
        assert!(many < one * 16, "{many} ns with 400 keyspaces, {one} ns with one");
    }
}

/// The same at the size of the story, where nothing has to be flushed: what is left is to read the journal and to insert
/// into memtables. When each operation went into its memtable at once, a hundred keyspaces took 1.23 times as long as one
/// and a thousand 2.0 times: each memtable has lines of its own to fetch. (Seen since operations are gathered by keyspace:
/// 0.87 to 0.98 times with a hundred, 1.01 to 1.17 with a thousand, 330 MB of journal per second of processor time.)
#[test]
fn a_hundred_keyspaces_open_about_as_fast_as_one() {
    const RECORDS: u64 = 1_700_000;
    let open = |vfs: &MemoryVfs| {
        builder(vfs).memory_budget(2048 * MIB).memtable_bytes(512 * MIB).open().unwrap()
    };
    let crashed = [1, 100, 1000].map(|keyspaces: usize| {
        let vfs = MemoryVfs::new();
        let db = open(&vfs);
        let create = |n| db.keyspace(&format!("keyspace {n}"), KeyspaceOptions::stb()).unwrap();
        let keyspaces: Vec<_> = (0..keyspaces).map(create).collect();
        for n in 0..RECORDS {
            let keyspace = &keyspaces[n as usize % keyspaces.len()];
            keyspace.put(n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), [1; 100]).unwrap();
        }
        copy(&vfs, &store_path())
    });
    let cost = |crashed: &MemoryVfs| {
        let copied = copy(crashed, &store_path());
        let before = processor_nanos();
        let db = open(&copied);
        let nanos = processor_nanos() - before;
        let recovery = db.recovery();
        assert_eq!(recovery.records_replayed, RECORDS);
        assert!(recovery.bytes_replayed > 208 * MIB);
        nanos
    };
    // In turn, and as often as it takes: what works beside this has the processor's caches too, at one time more than at
    // another.
    let mut least = [u64::MAX; 3];
    for _ in 0..10 {
        for (least, crashed) in least.iter_mut().zip(&crashed) {
            *least = cost(crashed).min(*least);
        }
        let [one, hundred, thousand] = least;
        println!("one keyspace {one} ns, a hundred {hundred} ns, a thousand {thousand} ns");
        if hundred < one * 3 / 2 && thousand < one * 2 {
            return;
        }
    }
    panic!("one, a hundred and a thousand keyspaces take {least:?} ns");
}
