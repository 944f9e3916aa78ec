//! Checks that the memory that a store counts stays within its shares, whatever is held. Each run
//! takes about 10 ms.
//!
//! Counted and resident memory are compared elsewhere: by `tests/memory.rs` of the engine, and by
//! [`torture`](crate::torture).
//!
//! Invariants:
//! 1. A run is identified by its seed and kinds, and is repeatable.

use spinney::{Database, Iter, Keyspace, KeyspaceOptions, MIB};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};
use crate::random::Random;

/// The budget is the least there is: memtables have 1 MiB together, a single one 256 KiB.
const BUDGET: u64 = MIB;
const MEMTABLES_BYTES_MAX: u64 = MIB;
/// The last write and chunks that are used in part.
const SLACK_BYTES: u64 = 64 << 10;
const KEYSPACES: usize = 14;

/// Carries out one run.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.count("memories");
    let judged = match seed % 2 {
        0 => judge_rest(seed, kinds, &mut outcome.operations),
        _ => judge(seed, kinds, &mut outcome.operations),
    };
    if let Err(what) = judged {
        let command = format!("spinney-sim planted (regime memory, seed {seed}, kinds {kinds})");
        outcome.violations.push(Violation { what, command });
    }
    outcome
}

fn judge(seed: u64, kinds: Kinds, operations: &mut u64) -> Result<(), String> {
    let failed = |error: spinney::Error| error.to_string();
    let mut random = Random::new(&[seed, 7]);
    let builder = Database::builder_in_memory().memory_budget(BUDGET).deterministic(seed);
    let db = builder.open().map_err(failed)?;
    let keyspaces = (0..KEYSPACES)
        .map(|number| db.keyspace(&format!("k{number}"), KeyspaceOptions::new(kinds.of(number))))
        .collect::<Result<Vec<Keyspace>, _>>()
        .map_err(failed)?;
    let mut held: Vec<Iter> = Vec::new();
    let mut written = 0;
    for number in 0..1500u64 {
        // First all get their share, then two are written to.
        let among = if number < 700 { KEYSPACES } else { 2 };
        let keyspace = &keyspaces[random.below(among)];
        let value = vec![number as u8; 500 + random.below(2000)];
        written += value.len() as u64;
        keyspace.put(number.to_be_bytes(), value).map_err(failed)?;
        if number >= 700 && number % 50 == 0 {
            let mut iter = keyspaces[0].iter();
            iter.next().transpose().map_err(failed)?;
            held.push(iter);
        }
        *operations += 1;
        let counted = db.stats().memory_memtables;
        // What is held is given back when the background next looks for work.
        if number < 700 && counted > MEMTABLES_BYTES_MAX + SLACK_BYTES {
            return Err(format!("memtables take {counted} bytes of {MEMTABLES_BYTES_MAX}"));
        }
    }
    let flushes = db.stats().flush.count;
    // Of fourteen keyspaces two are busy: most tables have several tenths of what a memtable may.
    if flushes > written / (32 << 10) + KEYSPACES as u64 {
        return Err(format!("{flushes} tables were made of {written} bytes"));
    }
    for keyspace in &keyspaces {
        keyspace.flush().map_err(failed)?;
    }
    db.wait_idle().map_err(failed)?;
    let statistics = db.stats();
    let known: u64 = statistics.keyspaces.iter().map(|keyspace| keyspace.memtable_bytes).sum();
    if statistics.memory_memtables != known {
        return Err(format!(
            "idle, memtables of keyspaces hold {known} bytes, and {} are counted: {} idle iterators are held",
            statistics.memory_memtables,
            held.len()
        ));
    }
    drop(held);
    Ok(())
}

/// What a store has of which memtables lend the page cache memory.
const RESTING_BUDGET: u64 = 8 * MIB;
/// Chunks of memtables are up to 256 KiB.
const RESTING_SLACK_BYTES: u64 = 512 << 10;

/// A store rests, and the cache is filled. Then it is written to, and all must have room.
fn judge_rest(seed: u64, kinds: Kinds, operations: &mut u64) -> Result<(), String> {
    let failed = |error: spinney::Error| error.to_string();
    let mut random = Random::new(&[seed, 8]);
    let builder = Database::builder_in_memory().memory_budget(RESTING_BUDGET).rest_nanos(0);
    let builder = builder.cache_stripes([1, 4][random.below(2)]);
    let db = builder.deterministic(seed).open().map_err(failed)?;
    let keyspaces = (0..3)
        .map(|number| db.keyspace(&format!("k{number}"), KeyspaceOptions::new(kinds.of(number))))
        .collect::<Result<Vec<Keyspace>, _>>()
        .map_err(failed)?;
    let records = 2400 + random.below(600) as u64;
    // Half of them are in blob files, and cached as values.
    let value = |number: u64| vec![number as u8; [2000, 5000][number as usize / 3 % 2]];
    let put = |number: u64| keyspaces[number as usize % 3].put(number.to_be_bytes(), value(number));
    let mut kept = Vec::new();
    let used = || {
        let statistics = db.stats();
        statistics.memory_total() - statistics.memory_journal
    };
    (0..records).try_for_each(put).map_err(failed)?;
    let before = db.stats();
    while db.step().map_err(failed)? {}
    // Pages must be used to be cached, and more of them are asked for than there is room for.
    for number in 0..2 * records {
        let number = number % records;
        let keyspace = &keyspaces[number as usize % 3];
        let found = keyspace.get(number.to_be_bytes()).map_err(failed)?;
        let Some(found) = found.filter(|found| found[..] == value(number)) else {
            return Err(format!("key {number} has another value, or none"));
        };
        // From the cache now, if it is a value there.
        if number % 40 < 6 {
            kept.extend(
                keyspace.get(number.to_be_bytes()).map_err(failed)?.map(|value| (number, value)),
            );
        }
        drop(found);
    }
    if let Some((number, _)) = kept.iter().find(|(number, kept)| kept[..] != value(*number)) {
        return Err(format!("the value of key {number} changed while it was kept"));
    }
    drop(kept);
    *operations += 3 * records;
    let resting = db.stats();
    if resting.memory_memtables > RESTING_BUDGET / 64 || resting.memory_idle > 0 {
        return Err(format!(
            "memtables of a store that rests use {} bytes, and {} are idle",
            resting.memory_memtables, resting.memory_idle
        ));
    }
    // The example tree is in memory.
    if resting.memory_trees > RESTING_BUDGET / 4 {
        return Ok(());
    }
    if resting.memory_cache < before.memory_cache || used() > RESTING_BUDGET {
        return Err(format!("a store that rests uses {} bytes of {RESTING_BUDGET}", used()));
    }
    for number in 0..1500 {
        put(random.below(5000) as u64).map_err(failed)?;
        let used = used();
        if used > RESTING_BUDGET + RESTING_SLACK_BYTES {
            return Err(format!("after {number} puts {used} bytes of {RESTING_BUDGET} are used"));
        }
        if random.one_in(4) {
            db.step().map_err(failed)?;
        }
    }
    *operations += 1500;
    Ok(())
}
