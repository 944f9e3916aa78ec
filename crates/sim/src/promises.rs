//! Promises besides data, on stores in memory that are large enough for meaningful figures: space
//! after uniform overwrites, memory while views are held, opening work.
//!
//! Invariants:
//! 1. Stores are deterministic: the same seed does the same work on one thread, so nothing depends
//!    on the speed or load of the machine. Opening work is measured by this thread's processor
//!    time, as a ratio of two measurements.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{Builder, Database, Iter, Keyspace, KeyspaceOptions, MIB, Snapshot};

use crate::disk::Disk;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};
use crate::random::Random;
use crate::torture::promise;
use crate::vfs::{CrashVfs, WatchedVfs, Watcher};

const DIR: &str = "/store";
/// Overwrites between two looks at the store.
const LOOK_EVERY: usize = 1000;

/// Judges all of it on the stores of a seed.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = run_opening(seed, kinds);
    if !kinds.is_for_tests() {
        outcome.add(run_overwrites(seed, kinds));
    }
    outcome
}

/// Judges space and memory.
pub fn run_overwrites(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = Outcome::default();
    let mut random = Random::new(&[seed, 41]);
    let verdict = overwrites(seed, kinds, &mut random, &mut outcome);
    conclude(outcome, "space and memory", verdict, seed, kinds)
}

/// Judges work to open.
pub fn run_opening(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = Outcome::default();
    let verdict = opening(seed, kinds, &mut outcome);
    conclude(outcome, "openings", verdict, seed, kinds)
}

fn conclude(
    mut outcome: Outcome,
    judged: &str,
    verdict: Result<(), String>,
    seed: u64,
    kinds: Kinds,
) -> Outcome {
    match verdict {
        Ok(()) => outcome.count(judged),
        Err(what) => outcome.violations.push(Violation {
            what: format!("seed {seed}, {kinds}: {what}"),
            command: format!("spinney-sim promises --kind {kinds} --seed {seed} --runs 1"),
        }),
    }
    outcome
}

fn failed(error: spinney::Error) -> String {
    format!("the store failed: {error}")
}

/// The bytes of the data files.
fn data_bytes(vfs: &dyn Vfs) -> Result<u64, String> {
    let entries = vfs.read_dir(Path::new(DIR)).map_err(failed)?;
    let is_data =
        |name: &str| [".table", ".maplet", ".head", ".blob"].iter().any(|end| name.ends_with(end));
    Ok(entries.iter().filter(|entry| is_data(&entry.name)).map(|entry| entry.len).sum())
}

/// Sizes of a store that is overwritten.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    seed: u64,
    memtable_bytes: u64,
    keys: usize,
    value_bytes: usize,
}

impl Sizes {
    fn builder(&self, vfs: &Arc<dyn Vfs>) -> Builder {
        Database::builder(DIR)
            .vfs(Arc::clone(vfs))
            .memory_budget(4 * MIB)
            .memtable_bytes(self.memtable_bytes)
            .journal_shards(1)
            .deterministic(self.seed)
    }

    fn open(&self, vfs: &CrashVfs) -> Result<Database, String> {
        self.builder(&(Arc::new(vfs.clone()) as Arc<dyn Vfs>)).open().map_err(failed)
    }

    fn key(&self, index: usize) -> [u8; 8] {
        (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    fn value(&self, random: &mut Random) -> Vec<u8> {
        let len = self.value_bytes / 2 + random.below(self.value_bytes);
        (0..len.div_ceil(8)).flat_map(|_| random.draw().to_le_bytes()).take(len).collect()
    }
}

/// What the files of these pairs take when they are freshly loaded, in random order, and compacted.
fn fresh_bytes(
    sizes: &Sizes,
    options: KeyspaceOptions,
    pairs: &BTreeMap<usize, Vec<u8>>,
) -> Result<u64, String> {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let db = sizes.builder(&vfs).open().map_err(failed)?;
    let space = db.keyspace("fresh", options).map_err(failed)?;
    let mut order: Vec<usize> = pairs.keys().copied().collect();
    order.sort_by_key(|index| crate::random::mix(*index as u64));
    for (number, index) in order.into_iter().enumerate() {
        space.put(sizes.key(index), &pairs[&index]).map_err(failed)?;
        if number % LOOK_EVERY == 0 {
            db.wait_idle().map_err(failed)?;
        }
    }
    space.flush().map_err(failed)?;
    space.compact(..).map_err(failed)?;
    db.wait_idle().map_err(failed)?;
    data_bytes(&*vfs)
}

/// What users hold for a while.
#[derive(Default)]
struct Held {
    snapshots: Vec<Snapshot>,
    iterators: Vec<Iter>,
}

/// Overwrites uniformly what was loaded, for some rounds, in one of which views are held.
fn overwrites(
    seed: u64,
    kinds: Kinds,
    random: &mut Random,
    outcome: &mut Outcome,
) -> Result<(), String> {
    let sizes = Sizes {
        seed,
        memtable_bytes: [64 << 10, 128 << 10][random.below(2)],
        keys: 6000,
        value_bytes: [100, 200][random.below(2)],
    };
    let options = KeyspaceOptions::new(kinds.of(random.below(4)));
    let mut vfs = CrashVfs::new(&Disk::with_a_directory());
    let mut db = sizes.open(&vfs)?;
    let mut space = db.keyspace("overwritten", options.clone()).map_err(failed)?;
    let mut pairs = BTreeMap::new();
    for index in 0..sizes.keys {
        let value = sizes.value(random);
        space.put(sizes.key(index), &value).map_err(failed)?;
        pairs.insert(index, value);
    }
    db.wait_idle().map_err(failed)?;
    let fresh = fresh_bytes(&sizes, options, &pairs)?;
    let rounds = 4 + random.below(2);
    // Not in the last: what was held must have been given back by the end.
    let holding = if random.one_in(2) { Some(random.below(rounds - 1)) } else { None };
    let killed = random.one_in(2).then(|| (random.below(rounds), random.below(sizes.keys)));
    for round in 0..rounds {
        let mut held = Held::default();
        for number in 0..sizes.keys {
            let index = random.below(sizes.keys);
            let value = sizes.value(random);
            space.put(sizes.key(index), &value).map_err(failed)?;
            pairs.insert(index, value);
            if number % LOOK_EVERY == 0 {
                db.wait_idle().map_err(failed)?;
                let was_held = holding.is_some_and(|holding| holding <= round);
                look(&db, &sizes, (!was_held).then_some((&vfs, fresh)))?;
                vfs.take_log();
                if holding == Some(round) {
                    held.snapshots.push(db.snapshot());
                    for _ in 0..20 {
                        held.iterators.push(begun(&space, &sizes, random)?);
                    }
                }
            }
            if killed == Some((round, number)) {
                // The process dies, with all that it held: what the system has of the files stays.
                held = Held::default();
                let (names, files) = vfs.view();
                vfs = CrashVfs::of_files(names, files);
                db = sizes.open(&vfs)?;
                space = db.existing_keyspace("overwritten").map_err(failed)?;
                outcome.count("killed and opened again");
            }
            outcome.operations += 1;
        }
    }
    db.wait_idle().map_err(failed)?;
    settled(&db, &vfs, &sizes, fresh)
}

fn begun(space: &Keyspace, sizes: &Sizes, random: &mut Random) -> Result<Iter, String> {
    let mut iterator = space.range(sizes.key(random.below(sizes.keys))..);
    match iterator.next() {
        Some(Err(error)) => Err(failed(error)),
        _ => Ok(iterator),
    }
}

/// Memory, and space if nothing is or was held, at any moment.
fn look(db: &Database, sizes: &Sizes, space: Option<(&dyn Vfs, u64)>) -> Result<(), String> {
    let stats = db.stats();
    let memory = stats.memory_memtables + stats.memory_cache + stats.memory_trees;
    if memory > stats.memory_budget + stats.memory_budget / 10 {
        return Err(format!(
            "memtables take {}, the cache {}, trees {} bytes of a budget of {}",
            stats.memory_memtables, stats.memory_cache, stats.memory_trees, stats.memory_budget
        ));
    }
    let Some((vfs, fresh)) = space else { return Ok(()) };
    let files = data_bytes(vfs)?;
    match files as f64 <= fresh as f64 * promise::SPACE_BUSY + 2.0 * sizes.memtable_bytes as f64 {
        true => Ok(()),
        false => Err(format!(
            "while pairs are overwritten data files take {files} bytes, freshly loaded {fresh} (× {:.2})",
            files as f64 / fresh as f64
        )),
    }
}

/// What holds once nobody writes or holds anything any more.
fn settled(db: &Database, vfs: &dyn Vfs, sizes: &Sizes, fresh: u64) -> Result<(), String> {
    let (files, two) = (data_bytes(vfs)?, 2 * sizes.memtable_bytes);
    if files as f64 > fresh as f64 * promise::SPACE_IDLE + two as f64 {
        return Err(format!(
            "when all is idle data files take {files} bytes, freshly loaded {fresh} (× {:.2})",
            files as f64 / fresh as f64
        ));
    }
    let stats = db.stats();
    let live: u64 = stats.keyspaces.iter().map(|keyspace| keyspace.live_bytes).sum();
    if live.abs_diff(fresh) as f64 > fresh as f64 * promise::LIVE_ERROR + two as f64 {
        return Err(format!(
            "the store says that {live} bytes are live where pairs freshly loaded take {fresh}"
        ));
    }
    match stats.memory_memtables <= 4 * sizes.memtable_bytes {
        true => Ok(()),
        false => Err(format!(
            "when nothing is held memtables take {} bytes, each {}",
            stats.memory_memtables, sizes.memtable_bytes
        )),
    }
}

/// Counts what is read.
#[derive(Debug, Default)]
struct Reads {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Watcher for Reads {
    const FILES: bool = true;

    fn writing(&self, _path: &Path) {}

    fn reading(&self, _path: &Path, bytes: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A record's share of the work to open may be so many times what it is with one keyspace.
const RECORD_TIMES_MAX: f64 = 3.0;
/// Records of the shorter journal.
const RECORDS: usize = 4000;
const KEYSPACES: usize = 120;

/// Other processes may have the cores while one of two is measured: what is seen so many times in a
/// row is so.
const MEASURED_TIMES: usize = 4;

/// Work to open follows the journal's bytes, not the keyspaces that they are of.
fn opening(seed: u64, kinds: Kinds, outcome: &mut Outcome) -> Result<(), String> {
    let mut measured = Ok(());
    for _ in 0..MEASURED_TIMES {
        measured = opening_once(seed, kinds, outcome);
        if measured.is_ok() {
            break;
        }
    }
    measured
}

fn opening_once(seed: u64, kinds: Kinds, outcome: &mut Outcome) -> Result<(), String> {
    let mut cost = |keyspaces| -> Result<f64, String> {
        let short = open_time(seed, kinds, keyspaces, RECORDS, outcome)?;
        let long = open_time(seed, kinds, keyspaces, 3 * RECORDS, outcome)?;
        Ok(long.saturating_sub(short).as_nanos() as f64 / (2 * RECORDS) as f64)
    };
    let (one, many) = (cost(1)?, cost(KEYSPACES)?);
    // What the clock cannot tell from nothing is nothing.
    match many <= one.max(200.0) * RECORD_TIMES_MAX {
        true => Ok(()),
        false => Err(format!(
            "to replay a record costs {many:.0} ns with {KEYSPACES} keyspaces and {one:.0} ns with one"
        )),
    }
}

/// The processor time of opening a store whose journal holds so many records; the least of three.
fn open_time(
    seed: u64,
    kinds: Kinds,
    keyspaces: usize,
    records: usize,
    outcome: &mut Outcome,
) -> Result<Duration, String> {
    let vfs = WatchedVfs::new(MemoryVfs::new(), Reads::default());
    let builder = || {
        let budget = 64 * MIB;
        Database::builder(DIR)
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(budget)
            .journal_shards(1)
            .deterministic(seed)
    };
    let db = builder().open().map_err(failed)?;
    let open = |n: usize| db.keyspace(&n.to_string(), KeyspaceOptions::new(kinds.of(n)));
    let spaces: Vec<Keyspace> =
        (0..keyspaces).map(open).collect::<Result<_, _>>().map_err(failed)?;
    for record in 0..records {
        let key = crate::random::mix(record as u64).to_be_bytes();
        spaces[record % keyspaces].put(key, [7; 100]).map_err(failed)?;
        outcome.operations += 1;
    }
    drop(spaces);
    db.close().map_err(failed)?;
    let journal: u64 = vfs
        .read_dir(Path::new(DIR))
        .map_err(failed)?
        .iter()
        .filter(|entry| entry.name.starts_with("journal-") || entry.name.starts_with("manifest-"))
        .map(|entry| entry.len)
        .sum();
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let reads = vfs.watcher();
        let before = (reads.calls.load(Ordering::Relaxed), reads.bytes.load(Ordering::Relaxed));
        let begun = processor_time();
        let db = builder().open().map_err(failed)?;
        least = least.min(processor_time().saturating_sub(begun));
        let calls = reads.calls.load(Ordering::Relaxed) - before.0;
        let bytes = reads.bytes.load(Ordering::Relaxed) - before.1;
        let replayed = db.recovery().records_replayed;
        db.close().map_err(failed)?;
        if replayed != records as u64 {
            return Err(format!("{replayed} records of {records} were replayed"));
        }
        if bytes > 2 * journal + (64 << 10) || calls > 64 + journal / 2048 {
            return Err(format!(
                "opening read {bytes} bytes in {calls} calls; journal and manifest have {journal}"
            ));
        }
    }
    Ok(least)
}

/// What this thread has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
