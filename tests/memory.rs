//! Promise 5: resident memory stays below the budget × 1.1 + 32 MiB, whatever users hold.
//!
//! Each row runs in a process of its own, which this test starts and which samples its resident memory
//! (`VmRSS`, mapped files included) every few milliseconds. What the row's own code holds (the bytes of a batch,
//! pairs that were read) comes on top and is said at the row.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use spinney::{Database, Iter, Keyspace, KeyspaceOptions, MIB};

/// A way of using a store.
struct Row {
    name: &'static str,
    budget: u64,
    /// What the row itself holds, and what the promise names as its exception.
    own_bytes: u64,
    run: fn(&Database),
}

const BATCH_BYTES: u64 = 100 * MIB;
const VALUE_BYTES: u64 = 100 * MIB;
/// Twice as many as the budget of 16 MiB has room for. Each adds 768 bytes, and the test's own handle.
const ITERATORS: u64 = 16_384;

const ROWS: &[Row] = &[
    Row { name: "held", budget: 64 * MIB, own_bytes: 0, run: iterators_held_during_writes },
    Row { name: "held_back", budget: 16 * MIB, own_bytes: 0, run: reverse_iterators_held },
    Row { name: "many", budget: 64 * MIB, own_bytes: 0, run: many_iterators },
    Row { name: "threads", budget: 64 * MIB, own_bytes: 0, run: many_iterators_in_threads },
    Row { name: "busy", budget: 64 * MIB, own_bytes: 0, run: busy_keyspaces },
    Row { name: "busy_1", budget: MIB, own_bytes: 0, run: busy_keyspaces_in_a_mebibyte },
    Row { name: "small", budget: 64 * MIB, own_bytes: 0, run: a_small_put_in_each_keyspace },
    Row { name: "scans", budget: 64 * MIB, own_bytes: 0, run: scanning_threads },
    Row { name: "scans_16", budget: 16 * MIB, own_bytes: 0, run: scanning_threads },
    // The batch itself, and its memtable.
    Row { name: "batch", budget: 64 * MIB, own_bytes: 2 * BATCH_BYTES, run: a_large_batch },
    Row { name: "dropped", budget: 64 * MIB, own_bytes: 0, run: iterators_over_dropped_keyspaces },
    // The keys and the values that are asked for.
    Row { name: "multi_get", budget: 16 * MIB, own_bytes: 48 * MIB, run: a_large_multi_get },
    // A batch for each writer, and the value that it is made of.
    Row { name: "writers", budget: 16 * MIB, own_bytes: 72 * MIB, run: many_writers_of_batches },
    Row { name: "crowd", budget: 24 * MIB, own_bytes: 0, run: many_keyspaces_overwritten },
    // The value, and what the promise names: its journal record or blob file is written from there.
    Row { name: "value", budget: 64 * MIB, own_bytes: 2 * VALUE_BYTES, run: a_large_value },
    // A batch and its values.
    Row {
        name: "copied",
        budget: 4 * MIB,
        own_bytes: 2 * MIB,
        run: values_copied_out_of_many_files,
    },
    Row { name: "one_level", budget: 32 * MIB, own_bytes: 0, run: scans_of_many_pieces },
    Row { name: "pinned", budget: 32 * MIB, own_bytes: 0, run: scans_while_all_is_overwritten },
    Row { name: "pinned_one", budget: 32 * MIB, own_bytes: 0, run: scans_of_one_level_meanwhile },
    Row { name: "keys", budget: 64 * MIB, own_bytes: 0, run: short_keys_alone },
    Row { name: "index", budget: 8 * MIB, own_bytes: 0, run: reads_of_all_of_a_large_index },
    Row { name: "indexes", budget: 32 * MIB, own_bytes: 0, run: reads_of_several_large_indexes },
    Row { name: "iterators", budget: 16 * MIB, own_bytes: ITERATORS * 1024, run: more_iterators },
];

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// What a child process does: carries out the row that the environment names. Nothing where it names none.
#[test]
fn child() {
    let Ok(name) = std::env::var("SPINNEY_MEMORY_ROW") else { return };
    let row = ROWS.iter().find(|row| row.name == name).expect("a row of that name");
    let dir = tempfile::tempdir().unwrap();
    let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut statistics = None;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(resident_bytes(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(3));
            }
        });
        let db = open(dir.path(), row.budget);
        (row.run)(&db);
        statistics = Some(db.stats());
        done.store(true, Ordering::Relaxed);
    });
    let limit = row.budget + row.budget / 10 + 32 * MIB + row.own_bytes;
    let peak = peak.into_inner();
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!("RESULT {name}: {:.1} MiB resident at most, promised {:.1}", mib(peak), mib(limit));
    assert!(peak <= limit, "{:.1} MiB of {:.1}\n{statistics:#?}", mib(peak), mib(limit));
}

fn run(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("SPINNEY_MEMORY_ROW", name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let result = said.lines().find(|line| line.contains("RESULT")).unwrap_or("no result");
    println!("{result}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Two at a time: each waits for the disk, or for its own threads, for a part of its time.
#[test]
fn resident_memory_stays_within_the_promise_in_every_row() {
    let (left, failed) = (Mutex::new(ROWS.iter()), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap().next();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(row) = next() {
                    if std::panic::catch_unwind(|| run(row.name)).is_err() {
                        failed.lock().unwrap().push(row.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "beyond the promise: {failed:?}");
}

fn open(dir: &Path, budget: u64) -> Database {
    Database::builder(dir.join("store")).memory_budget(budget).background_threads(2).open().unwrap()
}

fn keyspace(db: &Database, name: &str) -> Keyspace {
    db.keyspace(name, KeyspaceOptions::stb()).unwrap()
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// Not compressible, and different for each number.
fn value(number: u64, len: usize) -> Vec<u8> {
    let mut state = number;
    let mut value = Vec::with_capacity(len + 8);
    while value.len() < len {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    value.truncate(len);
    value
}

fn fill(keyspace: &Keyspace, numbers: std::ops::Range<u64>, len: usize) {
    for number in numbers {
        keyspace.put(key(number), value(number, len)).unwrap();
    }
}

/// How many pairs an iterator still has, in the order of a `step`.
fn rest(
    mut step: impl FnMut() -> Option<spinney::Result<(spinney::Slice, spinney::Slice)>>,
) -> u64 {
    let mut count = 0;
    let mut last: Option<spinney::Slice> = None;
    while let Some(pair) = step() {
        let (key, _) = pair.unwrap();
        assert_ne!(last.as_deref(), Some(&*key), "a key twice");
        last = Some(key);
        count += 1;
    }
    count
}

/// 265 iterators, one before each next 384 KiB: each pinned the memtables and the version that it began with,
/// 7.6 times the budget after a gigabyte.
fn iterators_held_during_writes(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..1000, 1000);
    let mut held: Vec<(u64, Iter)> = Vec::new();
    for round in 0..265 {
        let mut iter = items.iter();
        iter.next().unwrap().unwrap();
        held.push((1000 + round * 384, iter));
        fill(&items, 1000 + round * 384..1000 + (round + 1) * 384, 1000);
    }
    // Each still shows its own moment.
    for (pairs, mut iter) in held.into_iter().step_by(60) {
        assert_eq!(rest(|| iter.next()), pairs - 1);
    }
}

fn reverse_iterators_held(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..1000, 1000);
    let mut held: Vec<(u64, Iter)> = Vec::new();
    for round in 0..100 {
        let mut iter = items.iter();
        iter.next_back().unwrap().unwrap();
        held.push((1000, iter));
        // The same keys again: the iterators see older versions of them.
        fill(&items, 0..1000, 1000 + round as usize % 7);
    }
    for (pairs, mut iter) in held.into_iter().step_by(25) {
        assert_eq!(rest(|| iter.next_back()), pairs - 1);
    }
}

/// Each had a copy of a leaf for each table: 14 times the budget with 10,000.
fn many_iterators(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..40_000, 1000);
    let mut held: Vec<Iter> = (0..10_000).map(|_| items.iter()).collect();
    for _ in 0..2 {
        held.iter_mut().for_each(|iter| drop(iter.next().unwrap().unwrap()));
    }
}

/// 25 times the budget with 20,000 iterators.
fn many_iterators_in_threads(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..40_000, 1000);
    thread::scope(|scope| {
        for number in 0..16 {
            let items = &items;
            scope.spawn(move || {
                let mut held: Vec<Iter> =
                    (0..1250).map(|n| items.range(key(number * 1250 + n)..)).collect();
                held.iter_mut().for_each(|iter| drop(iter.next()));
            });
        }
    });
}

/// A hundred memtables grew each as if it were alone: 2.2 times the budget.
fn busy_keyspaces(db: &Database) {
    write_in_turns(db, 100, 100_000);
}

fn busy_keyspaces_in_a_mebibyte(db: &Database) {
    write_in_turns(db, 10, 5_000);
}

fn write_in_turns(db: &Database, keyspaces: u64, pairs: u64) {
    let all: Vec<Keyspace> = (0..keyspaces).map(|n| keyspace(db, &format!("k{n}"))).collect();
    for number in 0..pairs {
        all[(number % keyspaces) as usize].put(key(number), value(number, 1000)).unwrap();
    }
    let statistics = db.stats();
    let flushes = statistics.flush.count;
    println!("{flushes} tables of {} bytes", statistics.flush.written_bytes / flushes.max(1));
    // All memtables together have a quarter of the budget, and 1 MiB at least.
    let share = (statistics.memory_budget / 4).max(MIB) / keyspaces;
    assert!(statistics.flush.written_bytes / flushes.max(1) > share / 2, "absurdly small tables");
}

/// A chunk of 256 KiB for each: 2.9 times the budget.
fn a_small_put_in_each_keyspace(db: &Database) {
    for number in 0..1000u64 {
        keyspace(db, &format!("k{number}")).put(key(number), value(number, 100)).unwrap();
    }
}

/// Each scan had its own buffers for reading ahead: 1.4 times the budget with 64 threads, 1.7 with 16 MiB.
fn scanning_threads(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..80_000, 1000);
    items.flush().unwrap();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                assert_eq!(items.iter().take(8_000).filter(|pair| pair.is_ok()).count(), 8_000)
            });
        }
    });
}

/// Threads that scan what lies in some hundred pieces. The copies of leaves were not counted while a call opened them,
/// and had a sixteenth of the budget that was not taken from the cache: 72.6 MiB.
fn scans_of_many_pieces(db: &Database) {
    short_scans(db, KeyspaceOptions::tph().one_level(true).space_amplification_max(2.0));
}

fn short_scans(db: &Database, options: KeyspaceOptions) {
    let items = db.keyspace("items", options).unwrap();
    fill(&items, 0..500_000, 1000);
    thread::scope(|scope| {
        for thread in 0..48 {
            let items = &items;
            scope.spawn(move || {
                for scan in 0..40 {
                    let from = key(thread * 1000 + scan);
                    assert_eq!(
                        items.range(from..).take(50).filter(|pair| pair.is_ok()).count(),
                        50
                    );
                }
            });
        }
    });
}

/// A scan that was called all the time was never found idle, so it kept the memtables of the moment when it had begun,
/// and writers did not wait for that: 78 and 80 MiB.
fn scans_while_all_is_overwritten(db: &Database) {
    scan_and_overwrite(db, KeyspaceOptions::stb(), 32);
}

/// The same where a call takes long: 97 and 100 MiB; with 96 threads, and more to write, 248.
fn scans_of_one_level_meanwhile(db: &Database) {
    let options = KeyspaceOptions::tph().one_level(true).space_amplification_max(2.0);
    scan_and_overwrite(db, options, 48);
}

/// Threads scan all, each from elsewhere, while another one overwrites it.
fn scan_and_overwrite(db: &Database, options: KeyspaceOptions, threads: u64) {
    let items = db.keyspace("items", options).unwrap();
    fill(&items, 0..200_000, 1000);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (items, done) = (&items, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let pairs = items.range(key(thread * 1000)..);
                    for pair in pairs.take_while(|_| !done.load(Ordering::Relaxed)) {
                        pair.unwrap();
                    }
                }
            });
        }
        for number in 0..50_000 {
            items.put(key(number * 7919 % 200_000), value(number, 1000)).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The index of 300,000 long keys, which is several times the budget, is read from end to end.
fn reads_of_all_of_a_large_index(db: &Database) {
    const KEYS: u64 = 300_000;
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    let key = |number: u64| format!("{:060}", number * 7919 % KEYS);
    (0..KEYS).for_each(|number| keyspace.put(key(number), b"v").unwrap());
    keyspace.flush().unwrap();
    thread::scope(|scope| {
        for reader in 0..4 {
            let (keyspace, key) = (&keyspace, &key);
            scope.spawn(move || {
                for number in (reader..KEYS).step_by(4) {
                    assert!(keyspace.contains_key(key(number)).unwrap());
                }
            });
        }
        scope.spawn(|| assert_eq!(keyspace.iter().count() as u64, KEYS));
    });
}

/// Six indexes, of which each is half as large as the budget, also of keyspaces that have been dropped. Each had a quarter of
/// the budget for itself.
fn reads_of_several_large_indexes(db: &Database) {
    const KEYS: u64 = 120_000;
    let key = |number: u64| format!("{:060}", number * 7919 % KEYS);
    let made = |name: &str| {
        let keyspace = db.keyspace(name, KeyspaceOptions::slm()).unwrap();
        (0..KEYS).for_each(|number| keyspace.put(key(number), b"v").unwrap());
        keyspace
    };
    let read = |keyspaces: &[Keyspace]| {
        for number in 0..KEYS {
            let mut all = keyspaces.iter();
            assert!(all.all(|keyspace| keyspace.contains_key(key(number * 31)).unwrap()));
        }
    };
    let mut keyspaces: Vec<Keyspace> = (0..4).map(|at| made(&format!("items{at}"))).collect();
    read(&keyspaces);
    let gone = keyspaces.split_off(1);
    gone.iter().for_each(|keyspace| db.drop_keyspace(keyspace.name()).unwrap());
    keyspaces.extend((4..6).map(|at| made(&format!("items{at}"))));
    read(&keyspaces);
    drop(gone);
}

/// A merge keeps eight bytes of each key in memory. Of small pairs that was more than a job's part of the budget: 103 to 106
/// MiB.
fn short_keys_alone(db: &Database) {
    let items = db.keyspace("items", KeyspaceOptions::tph()).unwrap();
    for number in 0..14_000_000_u64 {
        items.put(number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(), []).unwrap();
    }
    db.wait_idle().unwrap();
}

/// It lay in the batch, in the journal's record before it was copied, in the mapped journal and in the memtable:
/// six times its bytes.
fn a_large_batch(db: &Database) {
    let items = keyspace(db, "items");
    let mut batch = db.batch();
    for number in 0..BATCH_BYTES / 1024 {
        batch.put(&items, key(number), value(number, 1000));
    }
    batch.commit().unwrap();
    items.flush().unwrap();
}

/// All of them found the same room in the memtables, and had it.
fn many_writers_of_batches(db: &Database) {
    let items = keyspace(db, "items");
    thread::scope(|scope| {
        for thread in 0..16 {
            let items = &items;
            scope.spawn(move || {
                let mut batch = db.batch();
                for round in 0..4 {
                    batch.clear();
                    for number in 0..1000 {
                        let number = thread << 32 | round << 16 | number;
                        batch.put(items, key(number), value(number, 4000));
                    }
                    db.write(&batch).unwrap();
                }
            });
        }
    });
}

/// Small keyspaces have small tables, and many of them: each had a filter in a page of its own, and each keyspace
/// counters of 29 KiB.
fn many_keyspaces_overwritten(db: &Database) {
    let keyspaces: Vec<Keyspace> = (0..200)
        .map(|number| {
            let options = match number % 2 {
                0 => KeyspaceOptions::stb(),
                _ => KeyspaceOptions::flsm(),
            };
            db.keyspace(&format!("k{number}"), options).unwrap()
        })
        .collect();
    for write in 0..500_000_u64 {
        let number = write.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & 0x3_ffff;
        // A quarter goes to all of them, the rest to twenty.
        let keyspace = match number % 4 {
            0 => &keyspaces[(number / 4 % 200) as usize],
            _ => &keyspaces[(number / 4 % 20) as usize],
        };
        keyspace.put(key(number), value(write, 20 + (write % 480) as usize)).unwrap();
    }
}

fn a_large_value(db: &Database) {
    let items = keyspace(db, "items");
    let large = value(1, VALUE_BYTES as usize);
    items.put("large", &large).unwrap();
    items.flush().unwrap();
    drop(large);
    assert_eq!(items.get("large").unwrap().unwrap().len() as u64, VALUE_BYTES);
}

/// A compaction that copied values out of many blob files kept what it had read last of each: 115 MB with 2,000 files.
fn values_copied_out_of_many_files(db: &Database) {
    let items = keyspace(db, "items");
    let (mut first, mut second) = (value(1, 320_000), value(2, 280_000));
    for number in 0..1_200_u64 {
        first[..8].copy_from_slice(&number.to_le_bytes());
        second[..8].copy_from_slice(&number.to_le_bytes());
        let mut batch = db.batch();
        batch.put(&items, key(2 * number), &first);
        batch.put(&items, key(2 * number + 1), &second);
        batch.commit().unwrap();
    }
    items.flush().unwrap();
    (0..1_200).for_each(|number| items.put(key(2 * number), &first).unwrap());
    items.flush().unwrap();
    db.wait_idle().unwrap();
}

/// Beyond the number that the promise counts.
fn more_iterators(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..30_000, 500);
    let mut iterators: Vec<Iter> = (0..ITERATORS).map(|_| items.iter()).collect();
    for iterator in &mut iterators {
        iterator.next().unwrap().unwrap();
    }
    fill(&items, 0..30_000, 500);
    for iterator in &mut iterators {
        iterator.next().unwrap().unwrap();
    }
}

/// Iterators go on after their keyspace has been dropped, and keep its memtables until they are dropped: those
/// are never more than all memtables may take.
fn iterators_over_dropped_keyspaces(db: &Database) {
    for round in 0..12u64 {
        let name = format!("k{round}");
        let items = keyspace(db, &name);
        fill(&items, 0..8000, 1000);
        let mut iter = items.iter();
        iter.next().unwrap().unwrap();
        db.drop_keyspace(&name).unwrap();
        assert_eq!(rest(|| iter.next()), 7999);
    }
}

/// The pages of all keys were read into one buffer.
fn a_large_multi_get(db: &Database) {
    let items = keyspace(db, "items");
    fill(&items, 0..60_000, 500);
    items.flush().unwrap();
    let found = items.multi_get((0..60_000).map(key)).unwrap();
    assert!(found.iter().all(Option::is_some));
}
