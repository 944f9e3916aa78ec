//! A store that nobody writes to: its memtables are flushed, and the page cache has their memory until it is needed.

use std::time::{Duration, Instant};

use spinney::{Database, Keyspace, KeyspaceOptions, MIB, Statistics};

const BUDGET: u64 = 16 * MIB;
/// A writer does not wait for what comes back: the README promises the budget and a tenth of it.
const SLACK_BYTES: u64 = BUDGET / 10;

struct Store {
    db: Database,
    keyspaces: Vec<Keyspace>,
    _dir: tempfile::TempDir,
}

impl Store {
    fn new(rest: Duration, keyspaces: u64) -> Store {
        let dir = tempfile::tempdir().expect("a directory");
        let builder = Database::builder(dir.path()).memory_budget(BUDGET).background_threads(1);
        let db = builder.rest_nanos(rest.as_nanos() as u64).open().expect("a store");
        let keyspaces = (0..keyspaces)
            .map(|number| {
                db.keyspace(&format!("k{number}"), KeyspaceOptions::stb()).expect("a keyspace")
            })
            .collect();
        Store { db, keyspaces, _dir: dir }
    }

    fn put(&self, from: u64, to: u64) {
        for number in from..to {
            let keyspace = &self.keyspaces[number as usize % self.keyspaces.len()];
            keyspace.put(key(number), value(number)).expect("a put");
        }
    }

    fn read(&self, from: u64, to: u64) {
        for number in from..to {
            let keyspace = &self.keyspaces[number as usize % self.keyspaces.len()];
            let found = keyspace.get(key(number)).expect("a get");
            assert!(found.is_some_and(|found| *found == value(number)[..]), "key {number}");
        }
    }

    /// Waits until it rests: no memory of memtables is idle, and little is in use.
    fn wait_for_rest(&self) {
        let began = Instant::now();
        loop {
            let statistics = self.db.stats();
            if statistics.memory_idle == 0 && statistics.memory_memtables < BUDGET / 64 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it does not rest");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// All but the mapped segments of the journal, which are beside the budget.
fn used(statistics: &Statistics) -> u64 {
    statistics.memory_total() - statistics.memory_journal
}

fn key(number: u64) -> [u8; 8] {
    // Spread over the tree.
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    let mut value = vec![number as u8; 500];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// Memtables kept for good what they had once used: a store that was only read had a quarter less for its pages.
#[test]
fn the_cache_has_the_memory_of_memtables_while_nobody_writes() {
    let store = Store::new(Duration::from_millis(100), 1);
    store.put(0, 36_000);
    // Now and then somebody writes, so it does not rest.
    for number in 0..36_000 {
        store.read(number, number + 1);
        if number % 100 == 0 {
            store.put(number, number + 1);
        }
    }
    let before = store.db.stats();
    store.wait_for_rest();
    // The cache takes what it may once it is used.
    store.read(0, 36_000);
    store.read(0, 36_000);
    let resting = store.db.stats();
    assert!(
        resting.memory_cache >= before.memory_cache + BUDGET / 10,
        "the cache had {} bytes, and has {}",
        before.memory_cache,
        resting.memory_cache
    );
    assert!(used(&resting) <= BUDGET, "{} bytes", used(&resting));
    // All of it comes back, and never more is used than there is.
    let mut most = 0;
    for number in 36_000..60_000 {
        store.put(number, number + 1);
        if number % 50 == 0 {
            most = most.max(used(&store.db.stats()));
        }
    }
    assert!(most <= BUDGET + SLACK_BYTES, "{most} bytes of {BUDGET}");
    let writing = store.db.stats();
    assert!(writing.memory_cache <= before.memory_cache + BUDGET / 20);
    store.read(0, 60_000);
}

/// Who writes a little now and then should not get a table for each time.
#[test]
fn a_few_entries_are_not_worth_a_table() {
    let store = Store::new(Duration::from_millis(20), 1);
    store.put(0, 20_000);
    store.wait_for_rest();
    let before = store.db.stats().flush.count;
    for round in 0..5 {
        store.put(20_000 + round * 10, 20_010 + round * 10);
        std::thread::sleep(Duration::from_millis(700));
    }
    assert_eq!(store.db.stats().flush.count, before);
    store.read(0, 20_050);
}

/// Each of many memtables is small, all together are not.
#[test]
fn many_small_memtables_are_flushed_when_together_they_are_large() {
    let store = Store::new(Duration::from_millis(100), 40);
    store.put(0, 4_000);
    assert!(store.db.stats().memory_memtables > BUDGET / 16);
    store.wait_for_rest();
    store.read(0, 4_000);
    store.put(4_000, 8_000);
    store.read(0, 8_000);
    assert!(used(&store.db.stats()) <= BUDGET + SLACK_BYTES);
}

/// What a rest has flushed need not be replayed.
#[test]
fn after_a_rest_there_is_little_to_replay() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = tempfile::tempdir().expect("a directory");
    let builder = Database::builder(dir.path()).memory_budget(BUDGET).background_threads(1);
    let db = builder.rest_nanos(50_000_000).open().expect("a store");
    let keyspace = db.keyspace("k", KeyspaceOptions::flsm()).expect("a keyspace");
    for number in 0..1_500 {
        keyspace.put(key(number), value(number)).expect("a put");
    }
    let began = Instant::now();
    while db.stats().memory_memtables >= BUDGET / 64 || db.stats().memory_idle > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not rest");
        std::thread::sleep(Duration::from_millis(20));
    }
    // As the end of the process leaves it.
    for entry in std::fs::read_dir(dir.path()).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() && entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), image.path().join(entry.file_name())).expect("a copy");
        }
    }
    drop((keyspace, db));
    let db = Database::builder(image.path()).open().expect("the image");
    let keyspace = db.existing_keyspace("k").expect("the keyspace");
    assert_eq!(keyspace.count(..).expect("a count"), 1_500);
    let replayed = db.recovery().records_replayed;
    assert!(replayed < 200, "{replayed} records were replayed");
}

/// The buffers of background threads were kept free for them, also while there was nothing to do: a tenth of all memory.
#[test]
fn the_cache_has_the_buffers_of_idle_threads_until_one_works() {
    let store = Store::new(Duration::from_millis(100), 1);
    let jobs = store.db.stats().memory_jobs;
    assert!(jobs >= BUDGET / 32, "{jobs} bytes");
    store.put(0, 40_000);
    store.db.wait_idle().expect("idle");
    store.wait_for_rest();
    let wait = |expected: u64| {
        let began = Instant::now();
        while store.db.stats().memory_jobs != expected {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", store.db.stats().memory_jobs);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(0);
    store.read(0, 40_000);
    store.read(0, 40_000);
    let resting = store.db.stats();
    assert!(resting.memory_cache >= BUDGET / 8 * 7, "{} bytes", resting.memory_cache);
    assert!(used(&resting) <= BUDGET, "{} bytes", used(&resting));
    // A compaction takes them back before it begins, though nobody writes. Later they are lent once more.
    let mut tries = 40_000..40_100;
    let working = loop {
        let number = tries.next().expect("they come back for a flush");
        store.put(number, number + 1);
        store.keyspaces[0].flush().expect("a flush");
        store.keyspaces[0].compact(..).expect("a compaction");
        let statistics = store.db.stats();
        // On a slow machine they may have been lent again.
        if statistics.memory_jobs >= jobs {
            break statistics;
        }
    };
    assert!(used(&working) <= BUDGET, "{} bytes", used(&working));
    wait(0);
    store.read(0, tries.start);
}
