//! Counters: keys whose values are made of operands, which come to lie in many tables.
//!
//! Lists of actions merge into few keys a few times each. Here every memtable has an operand of every key, short keys and
//! long ones, or some of each; others have deletes alone. Snapshots see different sums. Now and then a range is compacted, or
//! the store is closed in the middle of its background work, and opened again. At last, one memtable has more keys than a step of that work takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spinney::vfs::MemoryVfs;
use spinney::{Database, Error, Keyspace, KeyspaceOptions, Slice, Snapshot, TreeKind};

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
/// Some stores have others that are changed now and then: they keep tables of which the rest is dead.
const COLD_KEYS: u64 = 60;
const SNAPSHOTS_MAX: usize = 2;
/// A memtable may have so many operands of a key.
const OPERANDS_MAX: usize = 5;
/// More than a step of any work takes.
const CROWD: u64 = 5000;
const CROWD_MEMTABLE_BYTES: u64 = 2 << 20;

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

/// A store of counters, and what they should be.
struct Counters {
    vfs: MemoryVfs,
    seed: u64,
    kind: TreeKind,
    memtable_bytes: u64,
    names: Vec<Vec<u8>>,
    sums: Vec<Option<u64>>,
    /// Counters from here on are changed in one of so many rounds.
    cold: (usize, usize),
    has_deletes: bool,
    /// Behind what is read through it.
    held: Vec<(Snapshot, Vec<Option<u64>>)>,
    open: Option<(Database, Keyspace)>,
}

fn failed(error: Error) -> String {
    format!("a store of counters: {error}")
}

impl Counters {
    fn new(seed: u64, kind: TreeKind, memtable_bytes: u64, names: Vec<Vec<u8>>) -> Counters {
        let (sums, held) = (vec![None; names.len()], Vec::new());
        let (vfs, cold) = (MemoryVfs::new(), (names.len(), 1));
        let (has_deletes, open) = (true, None);
        Counters { vfs, seed, kind, memtable_bytes, names, sums, cold, has_deletes, held, open }
    }

    fn store(&mut self) -> Result<(Database, Keyspace), String> {
        if let Some((db, counters)) = &self.open {
            return Ok((db.clone(), counters.clone()));
        }
        let db = Database::builder("/store")
            .vfs(Arc::new(self.vfs.clone()))
            .memory_budget(16 * self.memtable_bytes)
            .memtable_bytes(self.memtable_bytes)
            .deterministic(self.seed)
            .open()
            .map_err(failed)?;
        let options = KeyspaceOptions::new(self.kind).merge_operator("u64_add");
        let counters = db.keyspace("counters", options).map_err(failed)?;
        self.open = Some((db.clone(), counters.clone()));
        Ok((db, counters))
    }

    /// Closes the store with its work half done, or ends the process (what is durable is what was written: the disk is
    /// memory). The next use opens it.
    fn close(&mut self) -> Result<(), String> {
        self.held.clear();
        let Some((db, counters)) = self.open.take() else { return Ok(()) };
        drop(counters);
        db.close().map_err(failed)
    }

    fn merge(&mut self, at: usize, by: u64) -> Result<(), String> {
        let (_, counters) = self.store()?;
        counters.merge(&self.names[at], by.to_le_bytes()).map_err(failed)?;
        self.sums[at] = Some(self.sums[at].unwrap_or_default() + by);
        Ok(())
    }

    fn delete(&mut self, at: usize) -> Result<(), String> {
        let (_, counters) = self.store()?;
        counters.delete(&self.names[at]).map_err(failed)?;
        self.sums[at] = None;
        Ok(())
    }

    fn hold(&mut self, random: &mut Random) -> Result<(), String> {
        let (db, _) = self.store()?;
        self.held.push((db.snapshot(), self.sums.clone()));
        if self.held.len() > SNAPSHOTS_MAX {
            self.held.remove(random.below(self.held.len()));
        }
        Ok(())
    }

    /// Changes most counters, or deletes some.
    fn change(&mut self, random: &mut Random) -> Result<u64, String> {
        let mut operations = 0;
        let times = if random.one_in(6) { 1 + random.below(OPERANDS_MAX) } else { 1 };
        let only_deletes = self.has_deletes && random.one_in(5);
        for time in 0..times {
            if time > 0 {
                self.hold(random)?;
            }
            for at in 0..self.names.len() {
                if at >= self.cold.0 && !random.one_in(self.cold.1) {
                    continue;
                }
                match random.below(20) {
                    _ if only_deletes && self.sums[at].is_none() => continue,
                    0..10 if only_deletes => self.delete(at)?,
                    _ if only_deletes => continue,
                    0 if self.has_deletes => self.delete(at)?,
                    0..4 => continue,
                    by => self.merge(at, by as u64)?,
                }
                operations += 1;
            }
        }
        Ok(operations)
    }

    /// Compares all sums, those of snapshots too.
    fn compare(&mut self) -> Result<u64, String> {
        let (db, counters) = self.store()?;
        let now = (db.snapshot(), self.sums.clone());
        let mut operations = 0;
        for (snapshot, sums) in self.held.iter().chain([&now]) {
            compare(snapshot, &counters, &self.names, sums)?;
            operations += 2 * self.names.len() as u64;
        }
        Ok(operations)
    }
}

fn count(seed: u64, kind: TreeKind, operations: &mut u64) -> Result<(), String> {
    let mut random = Random::new(&[seed, 0xc0de]);
    let names = KEY_BYTES.iter().flat_map(|bytes| {
        (0..KEYS_OF_EACH).map(move |number| format!("{number}{:x>bytes$}", "").into_bytes())
    });
    let mut names: Vec<Vec<u8>> = names.collect();
    names.sort();
    let hot = names.len();
    let cold_one_in = [0, 4, 10, 30][random.below(4)];
    if cold_one_in > 0 {
        names.extend((0..COLD_KEYS).map(|number| format!("cold {number:02}").into_bytes()));
    }
    let mut store = Counters::new(seed, kind, MEMTABLE_BYTES, names);
    store.cold = (hot, cold_one_in);
    // Without them, more and more is added to what a compaction has made.
    store.has_deletes = random.one_in(2);
    let compact_one_in = if random.one_in(2) { 4 } else { 12 };
    // Half of the stores do nothing that they are not made to do.
    let steps = if random.one_in(2) { 0 } else { 12 };
    for _ in 0..ROUNDS {
        *operations += store.change(&mut random)?;
        if random.one_in(4) {
            store.hold(&mut random)?;
        }
        let (db, counters) = store.store()?;
        counters.flush().map_err(failed)?;
        *operations += store.compare()?;
        if random.one_in(compact_one_in) {
            let (first, last) = (random.below(store.names.len()), random.below(store.names.len()));
            counters.compact(&store.names[first]..&store.names[last]).map_err(failed)?;
        }
        for _ in 0..random.below(steps + 1) {
            db.step().map_err(failed)?;
        }
        drop((db, counters));
        if random.one_in(4) {
            store.close()?;
        }
        *operations += store.compare()?;
    }
    store.close()?;
    crowd(seed, kind, operations)
}

/// Many counters in one memtable, and most of them in the next.
fn crowd(seed: u64, kind: TreeKind, operations: &mut u64) -> Result<(), String> {
    let mut random = Random::new(&[seed, 0xc0de, 1]);
    let names = (0..CROWD).map(|number| number.to_be_bytes().to_vec()).collect();
    let mut store = Counters::new(seed, kind, CROWD_MEMTABLE_BYTES, names);
    for _ in 0..2 {
        *operations += store.change(&mut random)?;
        let (db, counters) = store.store()?;
        counters.flush().map_err(failed)?;
        for _ in 0..random.below(4) {
            db.step().map_err(failed)?;
        }
        *operations += store.compare()?;
    }
    Ok(())
}

/// Gets every counter, and iterates over them in both directions.
fn compare(
    snapshot: &Snapshot,
    counters: &Keyspace,
    names: &[Vec<u8>],
    sums: &[Option<u64>],
) -> Result<(), String> {
    let failed = |error: Error| format!("reading counters: {error}");
    let number = |value: &Slice| (**value).try_into().ok().map(u64::from_le_bytes);
    for (name, sum) in names.iter().zip(sums) {
        let got = snapshot.get(counters, name).map_err(failed)?;
        let got = got.as_ref().and_then(number);
        if got != *sum {
            return Err(format!("get of {}: {got:?}, not {sum:?}", shown(name)));
        }
    }
    let expected = names.iter().zip(sums).filter_map(|(name, sum)| Some((name, (*sum)?)));
    let check = |pair: Option<Result<(Slice, Slice), Error>>, next: Option<(&Vec<u8>, u64)>| {
        let pair = pair.transpose().map_err(failed)?;
        let got = pair.as_ref().map(|(key, value)| (&**key, number(value)));
        if got == next.map(|(name, sum)| (&**name, Some(sum))) {
            return Ok(());
        }
        let got = got.map(|(key, value)| (shown(key), value));
        Err(format!("iteration: {got:?}, not {:?}", next.map(|(name, sum)| (shown(name), sum))))
    };
    let (mut pairs, mut backwards) = (snapshot.iter(counters), snapshot.iter(counters));
    for next in expected.clone() {
        check(pairs.next(), Some(next))?;
    }
    check(pairs.next(), None)?;
    for next in expected.rev() {
        check(backwards.next_back(), Some(next))?;
    }
    check(backwards.next_back(), None)
}

/// Tells keys of long and short names apart.
fn shown(name: &[u8]) -> String {
    format!("counter {:02x?} of {} bytes", &name[..name.len().min(8)], name.len())
}
