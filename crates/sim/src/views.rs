//! Real threads that overwrite the same few keys in whole batches, and readers that compare what
//! they see.
//!
//! [`concurrent`](crate::concurrent) asks whether one order of commits explains a whole history.
//! This regime makes a few checks that need no search, some thousand times per second:
//!
//! 1. *Views.* All keys always have the value of one round. Each batched read and each snapshot
//!    sees one round, which is not earlier than those acknowledged before. Memtables become part of
//!    the trees all the time, and the row cache has room for only a few rows.
//! 2. *Drops.* Once a keyspace has been dropped, no batch that writes to it takes effect in
//!    another. A reader of a dropped keyspace gets an error, or sees what had been acknowledged.
//! 3. *Queues.* What iterators yield over ranges that are mostly deleted is what single reads find.

mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use spinney::vfs::MemoryVfs;
use spinney::{Builder, Database, Error, Keyspace, KeyspaceOptions};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Scenario, of_scenarios};
use crate::random::Random;

/// Batches of a run.
const ROUNDS: u64 = 100;
const READERS: u64 = 3;
/// Keys beside the ones that are compared: their records and pages are in the way of those.
const OTHERS: usize = 100;
/// Keyspaces that are dropped in a run.
const DROPS: u64 = 8;

type Judged = Result<(), String>;

/// Carries the regime out once.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let scenarios: [(&str, Scenario); 3] =
        [("views", views), ("drops", drops), ("queues", queues::queues)];
    of_scenarios("views", (seed, kinds), &scenarios, |scenario| scenario(seed, kinds))
}

fn plain<T>(what: &str, result: spinney::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn builder(random: &mut Random) -> Builder {
    Database::builder("/views")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(1 << 20)
        .background_threads(1 + random.below(3))
}

/// The number that a value begins with.
fn number(value: Option<&[u8]>) -> Result<u64, String> {
    let bytes = value.and_then(|value| value.first_chunk::<8>());
    bytes.map(|bytes| u64::from_be_bytes(*bytes)).ok_or_else(|| format!("no number: {value:?}"))
}

/// What all threads of a run look at.
struct Shared {
    db: Database,
    spaces: Vec<Keyspace>,
    keys: Vec<String>,
    others: Vec<String>,
    value_bytes: usize,
    acknowledged: AtomicU64,
    is_over: AtomicBool,
}

fn views(seed: u64, kinds: Kinds) -> Judged {
    let mut random = Random::new(&[seed, 51]);
    let builder = builder(&mut random)
        .memtable_bytes([2048, 8192][random.below(2)])
        .cache_bytes([25 << 10, 40 << 10][random.below(2)]);
    let db = plain("open", builder.open())?;
    let create = |number: usize| {
        plain("create", db.keyspace(&format!("{number}"), KeyspaceOptions::new(kinds.of(number))))
    };
    let shared = Shared {
        spaces: (0..[1, 1, 2, 3][random.below(4)]).map(create).collect::<Result<_, _>>()?,
        keys: (0..[2, 6][random.below(2)]).map(|number| format!("key {number}")).collect(),
        others: (0..OTHERS).map(|number| format!("other {number}")).collect(),
        value_bytes: [20, 300][random.below(2)],
        acknowledged: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        db,
    };
    shared.write_round(0)?;
    shared.write_others()?;
    let judged = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|n| {
                let shared = &shared;
                scope.spawn(move || shared.read(Random::new(&[seed, 52, n])))
            })
            .collect();
        let flushers: Vec<_> =
            shared.spaces.iter().map(|space| scope.spawn(|| shared.flush(space))).collect();
        let idler = scope.spawn(|| shared.wait_idle());
        let written = shared.write(&mut random);
        shared.is_over.store(true, Ordering::SeqCst);
        let others = readers.into_iter().chain(flushers).chain([idler]);
        let ended = others.map(|thread| thread.join().unwrap_or(Err("a panic".to_string())));
        ended.fold(written, Result::and)
    });
    judged?;
    shared.look_by_snapshot(&mut random)
}

impl Shared {
    fn write_round(&self, round: u64) -> Judged {
        let mut value = round.to_be_bytes().to_vec();
        value.resize(self.value_bytes, 7);
        let mut batch = self.db.batch();
        for space in &self.spaces {
            self.keys.iter().for_each(|key| batch.put(space, key, &value));
        }
        plain("commit", batch.commit())
    }

    fn write_others(&self) -> Judged {
        for space in &self.spaces {
            for key in &self.others {
                plain("put", space.put(key, [7; 400]))?;
            }
            plain("flush", space.flush())?;
        }
        Ok(())
    }

    fn write(&self, random: &mut Random) -> Judged {
        for round in 1..=ROUNDS {
            self.write_round(round)?;
            self.acknowledged.store(round, Ordering::SeqCst);
            // Now and then the keys are in the trees alone: what is read from there becomes a
            // record. And memtables are frozen that have none of them.
            std::thread::sleep(Duration::from_micros(random.below(600) as u64));
            for space in &self.spaces {
                plain("put", space.put("neither", ""))?;
            }
            std::thread::sleep(Duration::from_micros(random.below(300) as u64));
        }
        Ok(())
    }

    fn flush(&self, space: &Keyspace) -> Judged {
        while !self.is_over.load(Ordering::SeqCst) {
            plain("flush", space.flush())?;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Wakes background threads whenever there is a memtable.
    fn wait_idle(&self) -> Judged {
        while !self.is_over.load(Ordering::SeqCst) {
            plain("wait_idle", self.db.wait_idle())?;
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn read(&self, mut random: Random) -> Judged {
        while !self.is_over.load(Ordering::SeqCst) {
            let space = &self.spaces[random.below(self.spaces.len())];
            match random.below(4) {
                0 => self.look_at_once(space)?,
                1 => self.look_by_snapshot(&mut random)?,
                2 => {
                    let must = self.acknowledged.load(Ordering::SeqCst);
                    let key = &self.keys[random.below(self.keys.len())];
                    let seen = number(plain("get", space.get(key))?.as_deref())?;
                    if seen < must {
                        return Err(format!("get: {key} of round {seen}, {must} was acknowledged"));
                    }
                }
                _ => {
                    for _ in 0..20 {
                        let key = &self.others[random.below(OTHERS)];
                        if plain("get", space.get(key))?.as_deref() != Some(&[7; 400]) {
                            return Err(format!("{key} is not what was written"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn look_at_once(&self, space: &Keyspace) -> Judged {
        let must = self.acknowledged.load(Ordering::SeqCst);
        let values = plain("multi_get", space.multi_get(&self.keys))?;
        let seen = values.iter().map(|value| number(value.as_deref()));
        one_round("multi_get", seen, must).map(drop)
    }

    fn look_by_snapshot(&self, random: &mut Random) -> Judged {
        let must = self.acknowledged.load(Ordering::SeqCst);
        let snapshot = self.db.snapshot();
        let mut seen = Vec::new();
        let first = random.below(3);
        for (way, space) in
            (first..first + 3).flat_map(|way| self.spaces.iter().map(move |s| (way % 3, s)))
        {
            match way {
                0 => {
                    let values = plain("multi_get", snapshot.multi_get(space, &self.keys))?;
                    seen.extend(values.iter().map(|value| number(value.as_deref())));
                }
                1 => {
                    for key in &self.keys {
                        seen.push(number(plain("get", snapshot.get(space, key))?.as_deref()));
                    }
                }
                _ => {
                    let pairs = snapshot.prefix(space, "key ");
                    let before = seen.len();
                    for pair in pairs {
                        seen.push(number(Some(&plain("scan", pair)?.1)));
                    }
                    if seen.len() - before != self.keys.len() {
                        return Err(format!("a scan of {} keys", seen.len() - before));
                    }
                }
            }
        }
        one_round("a snapshot", seen.into_iter(), must).map(drop)
    }
}

/// The one round that all these are of.
fn one_round(
    what: &str,
    seen: impl Iterator<Item = Result<u64, String>>,
    must: u64,
) -> Result<u64, String> {
    let seen: Vec<u64> = seen.collect::<Result<_, _>>()?;
    let first = seen.first().copied().unwrap_or_default();
    if seen.iter().any(|&round| round != first) {
        return Err(format!("{what}: keys of rounds {seen:?}"));
    }
    if first < must {
        return Err(format!("{what}: round {first}, {must} was acknowledged"));
    }
    Ok(first)
}

fn drops(seed: u64, kinds: Kinds) -> Judged {
    let mut random = Random::new(&[seed, 53]);
    // A segment is 8 KiB: it is full after a few batches, and who commits has to wait for the next.
    let builder = builder(&mut random).memtable_bytes(16 << 10).journal_shards(1);
    let db = plain("open", builder.open())?;
    let stays = plain("create", db.keyspace("stays", KeyspaceOptions::new(kinds.of(0))))?;
    let value = [7; 1500];
    plain("put", stays.put("round", 0u64.to_be_bytes()))?;
    for _ in 0..DROPS {
        let passing = plain("create", db.keyspace("passing", KeyspaceOptions::new(kinds.of(1))))?;
        let written = AtomicU64::new(0);
        let write = || {
            for round in 1.. {
                let mut batch = db.batch();
                batch.put(&stays, "round", u64::to_be_bytes(round));
                batch.put(&passing, "value", value);
                batch.put(&passing, "round", u64::to_be_bytes(round));
                match batch.commit() {
                    Ok(()) => written.store(round, Ordering::SeqCst),
                    Err(Error::Closed { .. }) => break,
                    Err(error) => return Err(format!("commit: {error}")),
                }
            }
            Ok(())
        };
        let read = |batched: bool| {
            loop {
                let must = written.load(Ordering::SeqCst);
                let value = match batched {
                    true => passing.multi_get(["round"]).map(|mut values| values.remove(0)),
                    false => passing.get("round"),
                };
                let seen = match value {
                    Ok(_) if must == 0 => continue,
                    Ok(value) => number(value.as_deref())?,
                    Err(Error::Closed { .. }) => return Ok(()),
                    Err(error) => return Err(format!("get: {error}")),
                };
                if seen < must {
                    return Err(format!(
                        "a read of a keyspace that is being dropped: round {seen}, {must} was acknowledged"
                    ));
                }
            }
        };
        let enough = 1 + random.below(20) as u64;
        let after_drop = std::thread::scope(|scope| {
            let writer = scope.spawn(write);
            let readers = [true, false].map(|batched| scope.spawn(move || read(batched)));
            while written.load(Ordering::SeqCst) < enough && !writer.is_finished() {
                std::thread::yield_now();
            }
            plain("drop", db.drop_keyspace("passing"))?;
            let seen = number(plain("get", stays.get("round"))?.as_deref());
            for thread in readers.into_iter().chain([writer]) {
                thread.join().unwrap_or(Err("a panic".to_string()))?;
            }
            seen
        })?;
        let at_last = number(plain("get", stays.get("round"))?.as_deref())?;
        if at_last != after_drop {
            return Err(format!(
                "batch {at_last} got in, of which a part was for a keyspace that had been dropped \
                 when batch {after_drop} was the last"
            ));
        }
    }
    Ok(())
}
