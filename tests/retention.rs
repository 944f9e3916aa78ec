//! Stores that delete behind themselves, as a queue or a window of time does: what a tree takes follows what is live in
//! it, not what was ever written.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Random, files};
use spinney::vfs::MemoryVfs;
use spinney::{CheckLevel, Database, Keyspace, KeyspaceOptions, MIB};

const WINDOW: u64 = 20_000;
const RECORDS: u64 = 300_000;

struct Store {
    vfs: MemoryVfs,
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
    manifest_bytes: u64,
    tree_bytes: u64,
    memory_bytes: u64,
}

impl Taken {
    /// Asserts that nothing is more than so many times that of another store.
    fn is_at_most(&self, times: f64, other: &Taken) {
        let both = format!("{self:?}, {other:?}");
        let pairs = [
            (self.nodes as u64, other.nodes as u64),
            (u64::from(self.height), u64::from(other.height)),
            (self.files, other.files),
            (self.disk_bytes, other.disk_bytes),
            // Less than a page is nothing.
            (self.manifest_bytes.max(4096), other.manifest_bytes.max(4096)),
            (self.tree_bytes, other.tree_bytes),
            (self.memory_bytes, other.memory_bytes),
        ];
        let times_most = pairs.map(|(one, other)| one as f64 / other.max(1) as f64);
        println!("{times_most:.2?}: {both}");
        assert!(times_most.iter().all(|found| *found <= times), "{times_most:.2?}: {both}");
    }
}

impl Store {
    fn new(options: KeyspaceOptions) -> Store {
        let vfs = MemoryVfs::new();
        let db = Database::builder("/data/store")
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(8 * MIB)
            .memtable_bytes(64 << 10)
            .deterministic(1)
            .open()
            .unwrap();
        let keyspace = db.keyspace("items", options).unwrap();
        Store { vfs, db, keyspace }
    }

    /// With threads of its own.
    fn threaded(options: KeyspaceOptions, memtable_bytes: u64) -> Store {
        let vfs = MemoryVfs::new();
        let builder = Database::builder("/data/store").vfs(Arc::new(vfs.clone()));
        let builder = builder.memory_budget(8 * MIB).memtable_bytes(memtable_bytes);
        let db = builder.open().unwrap();
        let keyspace = db.keyspace("items", options).unwrap();
        Store { vfs, db, keyspace }
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
        let files = files(&self.vfs, Path::new("/data/store"));
        let manifest = files.iter().filter(|(name, _)| name.starts_with("manifest-"));
        Taken {
            nodes: tree.nodes.len(),
            height: tree.nodes[0].height,
            files: statistics.keyspaces.iter().map(|keyspace| keyspace.tables).sum(),
            disk_bytes: tree.disk_bytes,
            manifest_bytes: manifest.map(|(_, len)| len).sum(),
            tree_bytes: statistics.memory_trees,
            // Without what is a share of the budget: one of the stores may rest, and the other one not yet.
            memory_bytes: statistics.memory_total()
                - statistics.memory_journal
                - statistics.memory_jobs
                - statistics.memory_cache,
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
        let old = Store::new(options);
        old.run(0, |_| false);
        let live = old.keyspace.iter().count();
        assert_eq!(live as u64, WINDOW);
        old.taken().is_at_most(1.5, &fresh.taken());
    }
}

/// The same with threads, after as many records as there may be in years: `SPINNEY_RETENTION=long cargo test --release
/// --test retention -- --nocapture a_long_window` keeps 2 of 40 million.
#[test]
fn a_long_window_takes_what_is_in_it() {
    let (window, records, memtable_bytes) = match std::env::var("SPINNEY_RETENTION").as_deref() {
        Ok("long") => (2_000_000, 40_000_000, 512 << 10),
        _ => (20_000, 400_000, 64 << 10),
    };
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        let run = |first: u64| {
            let store = Store::threaded(options.clone(), memtable_bytes);
            for number in first..records {
                store.keyspace.put(key(number), [7; 128]).unwrap();
                if let Some(old) = number.checked_sub(window).filter(|old| *old >= first) {
                    store.keyspace.delete(key(old)).unwrap();
                }
            }
            store.keyspace.flush().unwrap();
            store.db.wait_idle().unwrap();
            store
        };
        let began = std::time::Instant::now();
        let (fresh, old) = (run(records - window), run(0));
        println!("{}: {:?}", options.kind(), began.elapsed());
        assert_eq!(old.keyspace.iter().count() as u64, window);
        assert_eq!(fresh.keyspace.iter().count() as u64, window);
        old.taken().is_at_most(2.0, &fresh.taken());
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

/// All pairs are loaded in random order, and then nine of ten of a part of them deleted. The deletes reclaimed space only
/// where more than the allowed share of the whole tree was dead.
#[test]
fn what_is_deleted_in_a_part_goes() {
    let (records, memtable_bytes) = match std::env::var("SPINNEY_RETENTION").as_deref() {
        Ok("long") => (1_000_000, None),
        _ => (100_000, Some(64 << 10)),
    };
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        for part in [2, 10, 50] {
            let builder = Database::builder("/data/store").vfs(Arc::new(MemoryVfs::new()));
            let mut builder = builder.memory_budget(8 * MIB).deterministic(1);
            if let Some(bytes) = memtable_bytes {
                builder = builder.memtable_bytes(bytes);
            }
            let db = builder.open().unwrap();
            let keyspace = db.keyspace("items", options.clone()).unwrap();
            let mut random = Random(5);
            let mut shuffled = |from: u64, upto: u64| {
                let mut numbers: Vec<u64> = (from..upto).collect();
                for at in (1..numbers.len()).rev() {
                    numbers.swap(at, random.below(at as u64 + 1) as usize);
                }
                numbers
            };
            for number in shuffled(0, records) {
                keyspace.put(key(number), [7; 100]).unwrap();
                db.step().unwrap();
            }
            keyspace.flush().unwrap();
            db.wait_idle().unwrap();
            let written = |db: &Database| db.stats().compaction.written_bytes;
            let entries = |db: &Database| db.stats().keyspaces[0].table_entries;
            let before = (entries(&db), written(&db));
            let from = records / 4;
            let mut deleted = 0;
            for number in shuffled(from, from + records * part / 100) {
                if number % 10 > 0 {
                    keyspace.delete(key(number)).unwrap();
                    deleted += 1;
                    db.step().unwrap();
                }
            }
            keyspace.flush().unwrap();
            db.wait_idle().unwrap();
            let rewritten = written(&db) - before.1;
            let skipped = db.stats().dead_entries_read;
            let range = key(from)..key(from + records * part / 100);
            let found = keyspace.range(range.start..range.end).count() as u64;
            assert_eq!(found, records * part / 100 - deleted);
            // An iterator steps over a run of 512 twice.
            let skipped = db.stats().dead_entries_read - skipped;
            println!(
                "{}, {part}%: {deleted} deleted, {} entries before, {} after, {skipped} dead in the range, {rewritten} \
                 bytes written",
                options.kind(),
                before.0,
                entries(&db),
            );
            // The leaves at its ends have other keys, which are merged only for more.
            let part_max = if part == 2 { 2 } else { 4 };
            assert!(skipped <= deleted / part_max, "{skipped} dead entries of {deleted} deletes");
        }
    }
}
