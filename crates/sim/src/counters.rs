//! Counters: keys whose values are made of operands, which come to lie in many tables.
//!
//! Lists of actions merge into few keys a few times each. Here every memtable has an operand of every key, short keys and
//! long ones, and snapshots see different sums.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spinney::vfs::MemoryVfs;
use spinney::{Database, Error, Keyspace, KeyspaceOptions, MIB, Snapshot, TreeKind};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;

/// Stores of counters come with seeds that leave this remainder, divided by [`crate::space::EVERY`].
pub const REMAINDER: u64 = 7;
const ROUNDS: u64 = 40;
const MEMTABLE_BYTES: u64 = 64 << 10;
/// The least that keys are filled up to.
const KEY_BYTES: [usize; 4] = [8, 100, 300, 2000];
const KEYS_OF_EACH: u64 = 3;
const SNAPSHOTS_MAX: usize = 2;

/// Counts in a store in memory, flushes every round, and compares all sums, those of snapshots too.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.count("stores of counters");
    let kind = kinds.of(seed as usize / 7);
    let went = catch_unwind(AssertUnwindSafe(|| count(seed, kind, &mut outcome.operations)));
    if let Err(what) = went.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
        let command = format!("spinney-sim model --kind {kinds} --seed {seed} --runs 1");
        outcome.violations.push(Violation { what, command });
    }
    outcome
}

fn count(seed: u64, kind: TreeKind, operations: &mut u64) -> Result<(), String> {
    let failed = |error: Error| format!("a store of counters: {error}");
    let mut random = Random::new(&[seed, 0xc0de]);
    let db = Database::builder("/store")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(MIB)
        .memtable_bytes(MEMTABLE_BYTES)
        .deterministic(seed)
        .open()
        .map_err(failed)?;
    let options = KeyspaceOptions::new(kind).merge_operator("u64_add");
    let counters = db.keyspace("counters", options).map_err(failed)?;
    let names = KEY_BYTES.iter().flat_map(|bytes| {
        (0..KEYS_OF_EACH).map(move |number| format!("{number}{:x>bytes$}", "").into_bytes())
    });
    let names: Vec<Vec<u8>> = names.collect();
    let mut sums: Vec<Option<u64>> = vec![None; names.len()];
    let mut held: Vec<(Snapshot, Vec<Option<u64>>)> = Vec::new();
    for _ in 0..ROUNDS {
        for (name, sum) in names.iter().zip(&mut sums) {
            match random.below(20) {
                0 => {
                    counters.delete(name).map_err(failed)?;
                    *sum = None;
                }
                1..4 => continue,
                by => {
                    counters.merge(name, (by as u64).to_le_bytes()).map_err(failed)?;
                    *sum = Some(sum.unwrap_or_default() + by as u64);
                }
            }
            *operations += 1;
        }
        if random.one_in(4) {
            held.push((db.snapshot(), sums.clone()));
        }
        if held.len() > SNAPSHOTS_MAX {
            held.remove(random.below(held.len()));
        }
        counters.flush().map_err(failed)?;
        let now = (db.snapshot(), sums.clone());
        for (snapshot, sums) in held.iter().chain([&now]) {
            compare(snapshot, &counters, &names, sums)?;
            *operations += 2 * names.len() as u64;
        }
    }
    Ok(())
}

/// Gets every counter, and iterates over them.
fn compare(
    snapshot: &Snapshot,
    counters: &Keyspace,
    names: &[Vec<u8>],
    sums: &[Option<u64>],
) -> Result<(), String> {
    let failed = |error: Error| format!("reading counters: {error}");
    let wrong = |name: &[u8], how: &str, got: Option<u64>, sum: Option<u64>| {
        let number = name.first().copied().map(char::from).unwrap_or_default();
        Err(format!("{how} of counter {number} of {} bytes: {got:?}, not {sum:?}", name.len()))
    };
    let number = |value: &[u8]| value.try_into().ok().map(u64::from_le_bytes);
    for (name, sum) in names.iter().zip(sums) {
        let got = snapshot.get(counters, name).map_err(failed)?;
        let got = got.and_then(|value| number(&value));
        if got != *sum {
            return wrong(name, "get", got, *sum);
        }
    }
    let mut shown = snapshot.iter(counters).collect::<Result<Vec<_>, Error>>().map_err(failed)?;
    for (name, sum) in names.iter().zip(sums) {
        let at = shown.iter().position(|(key, _)| **key == **name);
        let got = at.map(|at| shown.swap_remove(at)).and_then(|(_, value)| number(&value));
        if got != *sum {
            return wrong(name, "iteration", got, *sum);
        }
    }
    if shown.is_empty() { Ok(()) } else { Err("iteration has shown a key twice".to_string()) }
}
