//! Counts what puts and gets write that other threads write too, and how long they wait for locks, at 1 to 16 threads.
//!
//! `RUSTFLAGS="--cfg lock_counts" cargo test --release --locked --lib -p spinney --target-dir target/lock_counts --
//! lock_waits --nocapture` prints the tables of `docs/performance-notebook.md`. Nothing is judged but that the counts are
//! complete: how long threads wait depends on the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::base::random::SplitMix;
use crate::base::sync::counted::{self, Counts};
use crate::{Database, Keyspace, KeyspaceOptions, MIB};

const THREADS: [u64; 5] = [1, 2, 4, 8, 16];
const KEYS: u64 = 1_000_000;
const VALUE: [u8; 100] = [7; 100];

fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&SplitMix::new(number).next().to_be_bytes());
    key
}

/// Lets `threads` threads share `operations` calls of `f`, and prints a row.
fn measure(what: &str, threads: u64, operations: u64, f: impl Fn(&mut SplitMix) + Sync) {
    let began = Instant::now();
    let run = |seed| {
        let mut random = SplitMix::new(seed);
        counted::take();
        let before = thread_cpu();
        (0..operations / threads).for_each(|_| f(&mut random));
        (thread_cpu() - before, counted::take())
    };
    let all: Vec<(Duration, Counts)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(1000 + n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let elapsed = began.elapsed();
    let done = (operations / threads * threads) as f64;
    let cpu: Duration = all.iter().map(|(cpu, _)| *cpu).sum();
    let sum = |f: fn(&Counts) -> u64| all.iter().map(|(_, counts)| f(counts)).sum::<u64>() as f64;
    let mut waits: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (lock, (count, nanos)) in all.iter().flat_map(|(_, counts)| &counts.waits) {
        let entry = waits.entry(lock.rsplit("::").next().unwrap_or(lock)).or_default();
        *entry = (entry.0 + count, entry.1 + nanos);
    }
    assert!(sum(|counts| counts.writes) >= sum(|counts| counts.fetched));
    let total: u64 = waits.values().map(|(_, nanos)| nanos).sum();
    let mut by_lock: Vec<_> = waits.iter().collect();
    by_lock.sort_by_key(|(_, (_, nanos))| std::cmp::Reverse(*nanos));
    let by_lock: Vec<String> = by_lock
        .iter()
        .take(4)
        .map(|(lock, (count, nanos))| {
            let thousand = *count as f64 * 1e3 / done;
            format!("{lock} {thousand:.2}, {:.0} ns", *nanos as f64 / done)
        })
        .collect();
    println!(
        "| {what} | {threads} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {} |",
        done / elapsed.as_secs_f64() / 1e3,
        cpu.as_secs_f64() * 1e6 / done,
        sum(|counts| counts.writes) / done,
        sum(|counts| counts.fetched) / done,
        total as f64 / done,
        by_lock.join("; ")
    );
}

/// A store on the disk, which is removed when the test ends.
fn store(dir: &Path, cache_bytes: Option<u64>) -> (Database, Keyspace) {
    let mut builder = Database::builder(dir).memory_budget(256 * MIB);
    if let Some(bytes) = cache_bytes {
        builder = builder.cache_bytes(bytes);
    }
    let db = builder.open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    (db, items)
}

#[test]
fn lock_waits() {
    println!(
        "| operation | threads | thousand/s | CPU µs/op | shared writes/op | of lines of others/op | ns waited/op | \
         longest waits: lock, waits per 1000 ops, ns/op |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for threads in THREADS {
        let dir = tempfile::tempdir().unwrap();
        let (db, items) = store(dir.path(), None);
        measure("put", threads, KEYS / 2, |random| {
            items.put(key(random.next() % KEYS), VALUE).unwrap();
        });
        drop(items);
        db.close().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let (db, items) = store(dir.path(), None);
    (0..KEYS).for_each(|n| items.put(key(n), VALUE).unwrap());
    items.flush().unwrap();
    db.wait_idle().unwrap();
    let get = |items: &Keyspace, random: &mut SplitMix| {
        assert!(items.get(key(random.next() % KEYS)).unwrap().is_some());
    };
    (0..KEYS).for_each(|n| assert!(items.get(key(n)).unwrap().is_some()));
    for threads in THREADS {
        measure("get, cached", threads, KEYS, |random| get(&items, random));
    }
    drop(items);
    db.close().unwrap();
    let (db, items) = store(dir.path(), Some(32 * MIB));
    measure("get, to warm up", 2, 20_000, |random| get(&items, random));
    for threads in THREADS {
        measure("get, a quarter cached", threads, 40_000, |random| get(&items, random));
    }
    db.close().unwrap();
}
