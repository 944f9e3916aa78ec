//! How much of the disk a store takes for what is live in it, at rest and while it is overwritten, and how well it
//! knows what is live. The truth is computed here: a store into which the same pairs have just been loaded, in
//! random order, and compacted.
//!
//! The bounds are those of README's promise 6. Two memtables are allowed beside them, and two more while
//! compactions run.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use common::Random;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB, TreeKind};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A number below `n`, small ones far more often (about Zipf's 0.99).
fn skewed(random: &mut Random, n: u64) -> u64 {
    let unit = random.next() as f64 / u64::MAX as f64;
    let rank = ((n as f64).powf(0.01) - 1.0) * unit + 1.0;
    Random(rank.powf(100.0) as u64).below(n)
}

/// A store, what it should hold, and what it may take.
struct Store {
    dir: tempfile::TempDir,
    db: Database,
    keyspace: Keyspace,
    options: KeyspaceOptions,
    budget: u64,
    pairs: Pairs,
    random: Random,
    value_bytes: usize,
    most_bytes: u64,
}

fn data_bytes(dir: &Path) -> u64 {
    let own = |name: &str| {
        ["SPINNEY", "LOCK", "DURABLE"].contains(&name)
            || name.starts_with("journal-")
            || name.starts_with("manifest-")
    };
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let data = entries.filter(|entry| !entry.file_name().to_str().is_none_or(own));
    data.filter_map(|entry| common::file_bytes(&entry)).sum()
}

fn key(number: u64) -> Vec<u8> {
    format!("user{:020}", Random(number).next()).into_bytes()
}

impl Store {
    fn new(options: KeyspaceOptions, budget: u64, value_bytes: usize) -> Store {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Database::builder(dir.path()).memory_budget(budget).open().expect("a store");
        let keyspace = db.keyspace("items", options.clone()).expect("a keyspace");
        Store {
            dir,
            db,
            keyspace,
            options,
            budget,
            pairs: Pairs::new(),
            random: Random(1),
            value_bytes,
            most_bytes: 0,
        }
    }

    fn of(kind: TreeKind, budget: u64) -> Store {
        Store::new(KeyspaceOptions::new(kind), budget, 100)
    }

    fn put(&mut self, number: u64) {
        let value = self.random.bytes(self.value_bytes);
        self.keyspace.put(key(number), &value[..]).expect("a put");
        self.pairs.insert(key(number), value);
    }

    fn delete(&mut self, number: u64) {
        self.keyspace.delete(key(number)).expect("a delete");
        self.pairs.remove(&key(number));
    }

    fn load(&mut self, keys: u64) {
        (0..keys).for_each(|number| self.put(number));
    }

    /// Overwrites at random, and notes the most that the data files took.
    fn overwrite(&mut self, keys: u64, writes: u64) {
        self.most_bytes = 0;
        for write in 0..writes {
            let number = self.random.below(keys);
            self.put(number);
            if write % 256 == 0 {
                self.most_bytes = self.most_bytes.max(data_bytes(self.dir.path()));
            }
        }
    }

    /// Waits until the store finds nothing more to do and its data files stay as they are. It flushes: three seconds after
    /// the last write the store would, and its merges then were at work while their space was measured.
    fn rest(&self) {
        self.rest_for(Duration::from_secs(2));
    }

    fn rest_for(&self, unchanged: Duration) {
        self.keyspace.flush().expect("a flush");
        self.db.wait_idle().expect("an idle store");
        let started = Instant::now();
        let mut since = (0, started);
        while started.elapsed() < Duration::from_secs(60) && since.1.elapsed() < unchanged {
            let bytes = data_bytes(self.dir.path());
            if bytes != since.0 {
                since = (bytes, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Bytes of the data files of the same pairs, freshly loaded in random order and compacted.
    fn truth(&self) -> u64 {
        let mut pairs: Vec<_> = self.pairs.iter().collect();
        let mut random = Random(2);
        for i in (1..pairs.len()).rev() {
            pairs.swap(i, random.below(i as u64 + 1) as usize);
        }
        let fresh = Store::new(self.options.clone(), self.budget, 0);
        pairs.into_iter().for_each(|(key, value)| fresh.keyspace.put(key, value).expect("a put"));
        fresh.keyspace.compact(..).expect("a compaction");
        // Whoever still holds an older version releases its files a moment later.
        fresh.rest_for(Duration::from_millis(200));
        data_bytes(fresh.dir.path())
    }

    /// Two memtables.
    fn allowed(&self) -> u64 {
        (self.budget / 16).clamp(256 << 10, 64 << 20) * 2
    }

    /// Rests, and judges what the data files take and what is said to be live.
    fn judge(&self, case: &str) {
        self.rest();
        let bytes = data_bytes(self.dir.path());
        let live = self.db.stats().keyspaces[0].live_bytes;
        let truth = self.truth();
        let most = truth as f64 * 1.4 + self.allowed() as f64;
        let times = bytes.saturating_sub(self.allowed()) as f64 / truth.max(1) as f64;
        assert!(bytes as f64 <= most, "{case}: {bytes} bytes at rest, {times:.2} times {truth}");
        let off = live.abs_diff(truth);
        // A page or two are a tenth of very little.
        assert!(off <= truth / 10 + 16384, "{case}: {live} bytes are said to be live of {truth}");
    }

    /// Judges the most that the data files took.
    fn judge_most(&self, case: &str) {
        let truth = self.truth();
        let allowed = self.allowed() * 2;
        // In less than 25 memtables, what has just been loaded is merged for the first time, all of it at once.
        let times_max = if truth > self.allowed() / 2 * 25 { 1.6 } else { 2.0 };
        let most = truth as f64 * times_max + allowed as f64;
        let times = self.most_bytes.saturating_sub(allowed) as f64 / truth as f64;
        assert!(self.most_bytes as f64 <= most, "{case}: {times:.2} times {truth} at most");
    }
}

/// 100,000 pairs that were overwritten four times over settled at 4.07 times the data: what one bundle overwrites of
/// another was not known to the estimate, which took 30.7 MiB for live where 12.2 were.
#[test]
fn overwritten_pairs_are_not_live() {
    for kind in TreeKind::ALL {
        for (keys, budget) in [(8_000, MIB), (50_000, MIB), (100_000, 64 * MIB)] {
            let case = format!("{kind:?}, {keys} pairs, a budget of {} MiB", budget / MIB);
            let mut store = Store::of(kind, budget);
            store.load(keys);
            store.overwrite(keys, keys * 3);
            store.judge_most(&case);
            store.judge(&case);
        }
    }
}

/// The most that is taken while pairs are overwritten, where first merges are no longer all that counts.
#[test]
fn overwriting_many_memtables_takes_little_for_a_moment() {
    for options in TreeKind::ALL.map(KeyspaceOptions::new) {
        overwrite_many_memtables(options);
    }
}

fn overwrite_many_memtables(options: KeyspaceOptions) {
    let case = format!("{options:?}, 120,000 pairs, a budget of 8 MiB");
    let mut store = Store::new(options, 8 * MIB, 100);
    store.load(120_000);
    store.overwrite(120_000, 240_000);
    store.judge_most(&case);
    store.judge(&case);
}

/// One level is within the bounds of the default: many memtables in the root, and leaves of sixteen.
#[test]
fn one_level_is_within_the_same_bounds() {
    let options = KeyspaceOptions::tph().one_level(true);
    overwrite_many_memtables(options.clone());
    for (keys, budget) in [(8_000, MIB), (50_000, MIB), (100_000, 64 * MIB)] {
        let case = format!("one level, {keys} pairs, a budget of {} MiB", budget / MIB);
        let mut store = Store::new(options.clone(), budget, 100);
        store.load(keys);
        store.overwrite(keys, keys * 3);
        store.judge_most(&case);
        for _ in 0..keys * 2 {
            let number = skewed(&mut store.random, keys);
            store.put(number);
        }
        store.judge(&case);
    }
}

/// Stores of some thirty memtables took up to 1.79 times the data on a busy machine. Their first merges still went on
/// while they were overwritten: many nodes shared tables of a fifth to a third of all data, which stayed until the last
/// node had merged its part.
#[test]
fn small_stores_are_within_the_bounds_on_a_busy_machine() {
    for options in [KeyspaceOptions::tph().one_level(true), KeyspaceOptions::flsm()] {
        for half in [45_000, 50_000] {
            std::thread::scope(|scope| {
                for keys in (half..half + 5_000).step_by(1_000) {
                    let options = options.clone();
                    scope.spawn(move || {
                        let case =
                            format!("{options:?}, {keys} pairs in one of five stores at once");
                        let mut store = Store::new(options, MIB, 100);
                        store.load(keys);
                        store.overwrite(keys, keys / 5);
                        store.judge_most(&case);
                    });
                }
            });
        }
    }
}

/// Skewed overwrites (YCSB A's) settled at 1.96.
#[test]
fn pairs_that_are_overwritten_again_and_again_are_live_once() {
    for kind in TreeKind::ALL {
        for (keys, budget) in [(50_000, MIB), (100_000, 64 * MIB)] {
            let mut store = Store::of(kind, budget);
            store.load(keys);
            for _ in 0..keys * 4 {
                let number = skewed(&mut store.random, keys);
                store.put(number);
            }
            store.judge(&format!("{kind:?}, {keys} pairs, a budget of {} MiB", budget / MIB));
        }
    }
}

/// After a snapshot that had been held through eight overwrites was gone, `stb` stayed at 1.63 to 1.85 and `flsm` at
/// 3.07, whose own estimate was twice the truth.
#[test]
fn what_a_snapshot_held_is_given_back() {
    for kind in TreeKind::ALL {
        for (keys, budget) in [(20_000, MIB), (60_000, 64 * MIB)] {
            let mut store = Store::of(kind, budget);
            store.load(keys);
            let snapshot = store.db.snapshot();
            store.overwrite(keys, keys * 8);
            store.rest();
            drop(snapshot);
            store.judge(&format!("{kind:?}, {keys} pairs, a budget of {} MiB", budget / MIB));
        }
    }
}

/// A store that deletes had emptied kept most of its files: nothing told that what was on its way down would end what
/// lay below.
#[test]
fn a_store_that_deletes_have_emptied_takes_next_to_nothing() {
    for kind in TreeKind::ALL {
        for (keys, budget) in [(60_000, MIB), (100_000, 64 * MIB)] {
            let mut store = Store::of(kind, budget);
            store.load(keys);
            (0..keys).for_each(|number| store.delete(number));
            // What is deleted in a memtable alone is still in the tables below.
            store.keyspace.flush().expect("a flush");
            store.judge(&format!("{kind:?}, {keys} pairs, a budget of {} MiB", budget / MIB));
            let live = store.db.stats().keyspaces[0].live_bytes;
            assert!(live < 16384, "{live} bytes of nothing are said to be live");
        }
    }
}

/// Deletes among overwrites, and what is live after the store has been opened again.
#[test]
fn what_is_live_is_known_after_opening() {
    for kind in TreeKind::ALL {
        let mut store = Store::of(kind, 4 * MIB);
        store.load(60_000);
        for _ in 0..120_000 {
            let number = store.random.below(60_000);
            if store.random.below(3) == 0 { store.delete(number) } else { store.put(number) }
        }
        store.judge(&format!("{kind:?}"));
        let truth = store.truth();
        let Store { dir, db, keyspace, budget, .. } = store;
        drop(keyspace);
        db.close().expect("a close");
        let db = Database::builder(dir.path()).memory_budget(budget).open().expect("a store");
        let live = db.stats().keyspaces[0].live_bytes;
        assert!(
            live.abs_diff(truth) <= truth / 10,
            "{kind:?}: {live} are said to be live of {truth}"
        );
    }
}

/// Values of a kibibyte, of which a page wastes a fourth, and values in blob files.
#[test]
fn large_values_that_are_overwritten_are_given_back() {
    for kind in TreeKind::ALL {
        for (value_bytes, budget) in [(1024, MIB), (1024, 64 * MIB), (20_000, 16 * MIB)] {
            let mut store = Store::new(KeyspaceOptions::new(kind), budget, value_bytes);
            let keys = 16_000_000 / value_bytes as u64;
            store.load(keys);
            store.overwrite(keys, keys * 3);
            store.judge(&format!("{kind:?}, values of {value_bytes}, {} MiB", budget / MIB));
        }
    }
}

/// Only blob files of which tables pointed to less than half were collected. Uniform overwrites leave them all above that
/// for long: at its peak, the store took 2.29 times its data.
#[test]
fn blob_files_are_collected_when_space_is_short() {
    for kind in TreeKind::ALL {
        for (value_bytes, keys, budget) in [(1_000, 30_000, 4 * MIB), (6_000, 5_000, 4 * MIB)] {
            let options = KeyspaceOptions::new(kind).blob_bytes_min(512);
            let mut store = Store::new(options, budget, value_bytes);
            store.load(keys);
            store.overwrite(keys, keys * 3);
            let case = format!("{kind:?}, values of {value_bytes} in blob files");
            store.judge_most(&case);
            store.judge(&case);
        }
    }
}

/// The large values of a batch were one blob file, however many: while what was dead in it was too little to copy the
/// rest, the store took up to twice its data.
#[test]
fn large_values_of_one_batch_are_given_back() {
    for kind in TreeKind::ALL {
        let (keys, budget) = (1_500, 4 * MIB);
        let mut store = Store::new(KeyspaceOptions::new(kind), budget, 40_000);
        let mut batch = store.db.batch();
        for number in 0..keys {
            let value = store.random.bytes(store.value_bytes);
            batch.put(&store.keyspace, key(number), &value[..]);
            store.pairs.insert(key(number), value);
        }
        batch.commit().expect("a batch");
        store.overwrite(keys, keys * 3);
        let case = format!("{kind:?}, values of one batch");
        store.judge_most(&case);
        store.judge(&case);
    }
}

/// Operands of a value in a blob file stay operands, so a merge leaves several versions of a key. A leaf with such keys
/// counted as one that a snapshot holds back, and of one that had none to wait for no merge was a gain any more: blob
/// files whose other values were overwritten stayed, a third of them live.
#[test]
fn blob_files_go_that_only_keys_with_operands_point_to() {
    for kind in TreeKind::ALL {
        let options = KeyspaceOptions::new(kind).merge_operator("append").blob_bytes_min(4096);
        let mut store = Store::new(options, 4 * MIB, 6_000);
        let keys = 6_000;
        store.load(keys);
        let all: Vec<_> = store.pairs.keys().cloned().collect();
        for key in &all {
            store.keyspace.merge(key, b"and more").expect("an operand");
            store.pairs.get_mut(key).expect("a pair").extend_from_slice(b"and more");
        }
        store.keyspace.compact(..).expect("a compaction");
        for key in &all[all.len() / 3..] {
            let value = store.random.bytes(6_000);
            store.keyspace.put(key, &value[..]).expect("a put");
            store.pairs.insert(key.clone(), value);
        }
        store.judge(&format!("{kind:?}"));
    }
}

/// What operands replace is not live either, and what they add to is.
#[test]
fn operands_are_as_large_as_what_they_make() {
    for kind in TreeKind::ALL {
        let dir = tempfile::tempdir().expect("a directory");
        let db = Database::builder(dir.path()).memory_budget(MIB).open().expect("a store");
        let counts = KeyspaceOptions::new(kind).merge_operator("u64_add");
        let keyspace = db.keyspace("counts", counts).expect("a keyspace");
        let mut random = Random(3);
        for _ in 0..200_000 {
            keyspace.merge(key(random.below(20_000)), 1u64.to_le_bytes()).expect("an operand");
        }
        keyspace.flush().expect("a flush");
        db.wait_idle().expect("an idle store");
        let live = db.stats().keyspaces[0].live_bytes;
        keyspace.compact(..).expect("a compaction");
        db.wait_idle().expect("an idle store");
        let truth = data_bytes(dir.path());
        assert!(
            live.abs_diff(truth) <= truth / 5,
            "{kind:?}: {live} are said to be live of {truth}"
        );
    }
}

/// A memtable with a put and operands of one key was taken for one with operands alone, which were added to what the
/// put had replaced: a fifth too much was said to be live.
#[test]
fn operands_after_a_put_add_to_that_put() {
    for kind in TreeKind::ALL {
        let options = KeyspaceOptions::new(kind).merge_operator("append");
        let mut store = Store::new(options, 16 * MIB, 300);
        let keys = 5_000;
        store.load(keys);
        for _ in 0..keys * 20 {
            let number = store.random.below(keys);
            let draw = store.random.below(16);
            store.value_bytes = store.random.below(300) as usize;
            match draw {
                0 => store.delete(number),
                1..10 => {
                    let operand = store.random.bytes(store.value_bytes / 5);
                    store.keyspace.merge(key(number), &operand[..]).expect("an operand");
                    store.pairs.entry(key(number)).or_default().extend(operand);
                }
                _ => store.put(number),
            }
        }
        store.judge(&format!("{kind:?}"));
    }
}
