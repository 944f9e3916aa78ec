//! Stores that delete behind themselves, as a queue or a window of time does: what a tree takes follows what is live in
//! it, not what was ever written.

mod common;

use std::sync::Arc;

use common::Random;
use spinney::vfs::MemoryVfs;
use spinney::{CheckLevel, Database, Keyspace, KeyspaceOptions, MIB};

const WINDOW: u64 = 20_000;
const RECORDS: u64 = 300_000;

struct Store {
    db: Database,
    keyspace: Keyspace,
}

/// What a store takes.
#[derive(Debug)]
struct Taken {
    nodes: usize,
    height: u32,
    files: u64,
    disk_bytes: u64,
    tree_bytes: u64,
}

impl Store {
    fn new(options: KeyspaceOptions) -> Store {
        let db = Database::builder("/data/store")
            .vfs(Arc::new(MemoryVfs::new()))
            .memory_budget(8 * MIB)
            .memtable_bytes(64 << 10)
            .deterministic(1)
            .open()
            .unwrap();
        let keyspace = db.keyspace("items", options).unwrap();
        Store { db, keyspace }
    }

    /// Writes the records from `first` on, each with a key behind the last one, and deletes those that have left the
    /// window.
    fn run(&self, first: u64, stays: impl Fn(u64) -> bool) {
        for number in first..RECORDS {
            self.keyspace.put(key(number), [7; 128]).unwrap();
            if let Some(old) = number.checked_sub(WINDOW)
                && old >= first
                && !stays(old)
            {
                self.keyspace.delete(key(old)).unwrap();
            }
            self.db.step().unwrap();
        }
        self.keyspace.flush().unwrap();
        self.db.wait_idle().unwrap();
    }

    fn taken(&self) -> Taken {
        let report = self.db.check(CheckLevel::Full).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let tree = self.keyspace.describe().unwrap();
        let statistics = self.db.stats();
        Taken {
            nodes: tree.nodes.len(),
            height: tree.nodes[0].height,
            files: statistics.keyspaces.iter().map(|keyspace| keyspace.tables).sum(),
            disk_bytes: tree.disk_bytes,
            tree_bytes: statistics.memory_trees,
        }
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// A leaf stayed in the trunk for every 2.5 memtables that were ever written.
#[test]
fn a_window_takes_what_is_in_it() {
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        let options = options.fanout_max(8);
        let fresh = Store::new(options.clone());
        fresh.run(RECORDS - WINDOW, |_| false);
        let fresh = fresh.taken();
        let old = Store::new(options);
        old.run(0, |_| false);
        let live = old.keyspace.iter().count();
        assert_eq!(live as u64, WINDOW);
        let old = old.taken();
        let both = format!("{fresh:?} {old:?}");
        assert!(old.nodes <= fresh.nodes * 3 / 2 && old.height <= fresh.height, "{both}");
        assert!(old.files <= fresh.files * 3 / 2, "{both}");
        assert!(old.disk_bytes <= fresh.disk_bytes * 3 / 2, "{both}");
        assert!(old.tree_bytes <= fresh.tree_bytes * 3 / 2, "{both}");
    }
}

/// With the least fan-outs, index nodes were never joined, and a trunk became so high (87 levels) that the store could
/// not be opened again.
#[test]
fn a_trunk_of_little_fan_out_stays_low() {
    for fanout in [2, 3, 4, 5] {
        let store = Store::new(KeyspaceOptions::stb().fanout_max(fanout));
        store.run(RECORDS - 6 * WINDOW, |_| false);
        let taken = store.taken();
        assert!(taken.nodes < 80 && taken.height < 8, "{fanout}: {taken:?}");
    }
}

/// Every 500th record is never deleted. The nodes that the deletes leave small are joined.
#[test]
fn what_stays_here_and_there_is_joined() {
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        let store = Store::new(options.fanout_max(8));
        store.run(0, |number| number % 500 == 0);
        let taken = store.taken();
        // 20,560 records are left; a tree of them has some thirty nodes.
        assert!(taken.nodes < 60, "{taken:?}");
    }
}

/// All records are deleted, in random order. An `flsm` store kept a quarter of its bytes: a table with less than one page
/// in a guard counted as 0 bytes there, so its tombstones were never merged with the records below.
#[test]
fn an_emptied_tree_is_one_node() {
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        let store = Store::new(options.fanout_max(8));
        store.run(RECORDS - 3 * WINDOW, |_| true);
        let full = store.taken();
        let mut left: Vec<u64> = (RECORDS - 3 * WINDOW..RECORDS).collect();
        let mut random = Random(3);
        while !left.is_empty() {
            let number = left.swap_remove(random.below(left.len() as u64) as usize);
            store.keyspace.delete(key(number)).unwrap();
            store.db.step().unwrap();
        }
        store.keyspace.flush().unwrap();
        store.db.wait_idle().unwrap();
        assert_eq!(store.keyspace.iter().count(), 0);
        let emptied = store.taken();
        assert!(emptied.nodes == 1 && emptied.disk_bytes <= 256 << 10, "{full:?} {emptied:?}");
    }
}
