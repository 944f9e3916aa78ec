//! Real threads whose transactions append to lists and read them, and a judge of what they saw.
//!
//! Each append is unique, so a list that was read tells which appends were before it and in which order: from that follows
//! which transaction depends on which (as in Elle). A circle of dependencies shows that no order of the transactions
//! explains what they saw.
//!
//! 1. `history` has the transactions of a run.
//! 2. `worker` is a thread that runs some; `workload`, here, makes the store and starts the threads.
//! 3. `turns` has threads that lock what they change, which then may not conflict.
//! 4. `judge` finds what is wrong with a history, and `graph` finds circles.

mod graph;
mod history;
mod judge;
mod turns;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use spinney::vfs::MemoryVfs;
use spinney::{Database, Isolation, Keyspace, KeyspaceOptions};

use self::history::{Key, Transaction};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Scenario, of_scenarios};
use crate::random::Random;

/// Transactions of each thread.
const TRANSACTIONS: usize = 120;

type Judged = Result<(), String>;

/// Carries the regime out once.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let scenarios: [(&str, Scenario); 3] =
        [("serializable", serializable), ("snapshot", snapshot), ("turns", turns::turns)];
    of_scenarios("transactions", (seed, kinds), &scenarios, |scenario| scenario(seed, kinds))
}

fn serializable(seed: u64, kinds: Kinds) -> Judged {
    work(seed, kinds, Isolation::Serializable)
}

fn snapshot(seed: u64, kinds: Kinds) -> Judged {
    work(seed, kinds, Isolation::Snapshot)
}

/// What all threads of a run share.
struct Shared {
    db: Database,
    spaces: Vec<Keyspace>,
    isolation: Isolation,
    /// How many lists of a keyspace are appended to at a time, and after how many appends there is another one.
    keys: u32,
    appends_per_key: u32,
    /// What a list is filled up with besides its appends, so that memtables are soon full.
    padding: usize,
    clock: AtomicU64,
    next_id: AtomicU32,
    is_over: AtomicBool,
}

impl Shared {
    /// A moment after all moments that were returned before.
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// The first of the lists that are appended to now.
    fn first_key(&self) -> u32 {
        self.next_id.load(Ordering::Relaxed) / self.appends_per_key
    }

    fn id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

fn name_of(key: u32) -> String {
    format!("key {key:06}")
}

fn plain<T>(what: &str, result: spinney::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn work(seed: u64, kinds: Kinds, isolation: Isolation) -> Judged {
    let mut random = Random::new(&[seed, 71]);
    let builder = Database::builder("/transactions")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(16 << 20)
        .memtable_bytes([2048, 8192, 256 << 10][random.below(3)])
        .background_threads(1 + random.below(3));
    let db = plain("open", builder.open())?;
    let options = |number| KeyspaceOptions::new(kinds.of(number)).merge_operator("append");
    let create =
        |number: usize| plain("create", db.keyspace(&format!("{number}"), options(number)));
    let shared = Shared {
        spaces: (0..[1, 2, 4][random.below(3)]).map(create).collect::<Result<_, _>>()?,
        isolation,
        keys: [2, 5, 12][random.below(3)],
        appends_per_key: [8, 40, 1000][random.below(3)],
        padding: [0, 200][random.below(2)],
        clock: AtomicU64::new(1),
        next_id: AtomicU32::new(1),
        is_over: AtomicBool::new(false),
        db,
    };
    let threads = [2, 4, 8][random.below(3)];
    let flushes = random.below(3) > 0;
    let transactions = std::thread::scope(|scope| {
        let shared = &shared;
        let upkeep = scope.spawn(move || keep_up(shared, flushes));
        let worker = |thread: u64| {
            scope.spawn(move || worker::run(shared, Random::new(&[seed, 72, thread])))
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<Vec<Transaction>, String>>| {
            worker.join().unwrap_or(Err("a panic".to_string()))
        };
        let mut all = Ok(Vec::new());
        for worker in workers {
            let theirs = join(worker);
            all = all.and_then(|mut all: Vec<Transaction>| {
                all.extend(theirs?);
                Ok(all)
            });
        }
        shared.is_over.store(true, Ordering::SeqCst);
        let kept_up = upkeep.join().unwrap_or(Err("a panic".to_string()));
        all.and_then(|all| kept_up.map(|()| all))
    })?;
    let statistics = shared.db.stats();
    if statistics.memory_transactions != 0 || statistics.snapshots != 0 {
        return Err(format!(
            "without transactions there are {} bytes of them, and {} snapshots",
            statistics.memory_transactions, statistics.snapshots
        ));
    }
    judge::judge(&transactions, &last_lists(&shared)?, isolation)
}

/// Flushes and compacts, so that what a transaction has read leaves the memtables while it runs.
fn keep_up(shared: &Shared, flushes: bool) -> Judged {
    let mut round = 0;
    while !shared.is_over.load(Ordering::SeqCst) {
        for space in shared.spaces.iter().filter(|_| flushes) {
            plain("flush", space.flush())?;
            round += 1;
            if round % 5 == 0 {
                plain("compact", space.compact(..))?;
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// The lists as they are at the end.
fn last_lists(shared: &Shared) -> Result<Vec<(Key, Vec<u32>)>, String> {
    let mut lists = Vec::new();
    for (space, keyspace) in (0..).zip(&shared.spaces) {
        for key in 0..shared.first_key() + 3 * shared.keys + 16 {
            let value = plain("get", keyspace.get(name_of(key)))?;
            lists.push((Key { space, key }, history::ids(value.as_deref())?));
        }
    }
    Ok(lists)
}
