//! The small stores that workloads are counted on.
//!
//! Invariants:
//! 1. Everything is in memory and in deterministic mode: no thread, no clock, no file of the operating
//!    system. The same kind and stage give the same store, instruction by instruction.
//! 2. Keys, values and choices are made before anything is counted, all of them for every workload, so
//!    that they cost all runs of a stage the same.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use spinney::vfs::MemoryVfs;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB, Snapshot, TreeKind};

use crate::data::keys::KeyMaker;
use crate::data::random::Random;

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 100;
const SEED: u64 = 1;
/// More than there is to cache.
const MEMORY_BYTES: u64 = 128 * MIB;
/// About 1,700 pairs: a store of 32,768 pairs has gone through all that trees do.
const MEMTABLE_BYTES: u64 = 256 << 10;
/// How often background work is let come to rest while a store is written: several times a memtable, as
/// where it keeps up.
const PUTS_BETWEEN_RESTS: usize = 512;
/// The range deletes of a store with holes.
const HOLES: usize = 10_000;
/// The source of values.
const FILLER_BYTES: usize = 64 << 10;

/// The state of a store when counting begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Half as many pairs, all of them in a memtable that has room for as many again.
    Roomy,
    /// Half as many pairs, loaded in key order; everything is cached.
    Ordered,
    /// All pairs, loaded in random order, as the background leaves them; everything is cached.
    Loaded,
    /// The same, merged whole.
    Merged,
    /// As loaded, with a cache for an eighth of it.
    Cold,
    /// As loaded, with 10,000 range deletes between the pairs, which stay because a snapshot needs what they delete.
    Holed,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 6] =
        [Stage::Roomy, Stage::Ordered, Stage::Loaded, Stage::Merged, Stage::Cold, Stage::Holed];

    /// The name by which a process is told.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Roomy => "roomy",
            Stage::Ordered => "ordered",
            Stage::Loaded => "loaded",
            Stage::Merged => "merged",
            Stage::Cold => "cold",
            Stage::Holed => "holed",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Stage, String> {
        let found = Stage::ALL.into_iter().find(|stage| stage.name() == text);
        found.ok_or_else(|| format!("no stage {text:?}"))
    }
}

/// A store with the work to do on it.
pub struct Store {
    pub(super) db: Database,
    pub(super) keyspace: Keyspace,
    stage: Stage,
    records: usize,
    /// Those of the records in the order of loading, then as many that are not there.
    keys: Vec<[u8; KEY_BYTES]>,
    /// Records in random order.
    picks: Vec<u32>,
    filler: Vec<u8>,
    held: Cell<Option<Snapshot>>,
}

pub(super) fn text<T>(result: spinney::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn keys(sequential_percent: u64, count: usize) -> Result<Vec<[u8; KEY_BYTES]>, String> {
    let maker = KeyMaker::new(KEY_BYTES, sequential_percent, SEED)?;
    let mut key = Vec::new();
    let make = |index| {
        maker.key(maker.number(index as u64), &mut key);
        <[u8; KEY_BYTES]>::try_from(key.as_slice()).map_err(|error| error.to_string())
    };
    (0..count).map(make).collect()
}

impl Store {
    /// A store of that kind with this number of records, or half of it, depending on the stage.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open(kind: TreeKind, stage: Stage, records: usize) -> Result<Store, String> {
        let data_bytes = (records * (KEY_BYTES + VALUE_BYTES)) as u64;
        let builder = Database::builder("/store").vfs(Arc::new(MemoryVfs::new()));
        let builder = builder.memory_budget(MEMORY_BYTES).deterministic(SEED);
        let db = text(match stage {
            Stage::Roomy => builder.memtable_bytes(data_bytes * 4).open(),
            Stage::Cold => {
                builder.memtable_bytes(MEMTABLE_BYTES).cache_bytes(data_bytes / 8).open()
            }
            Stage::Ordered | Stage::Loaded | Stage::Merged | Stage::Holed => {
                builder.memtable_bytes(MEMTABLE_BYTES).open()
            }
        })?;
        let keyspace = text(db.keyspace("counted", KeyspaceOptions::new(kind)))?;
        let (records, sequential_percent) = match stage {
            Stage::Roomy => (records / 2, 0),
            Stage::Ordered => (records / 2, 100),
            Stage::Loaded | Stage::Merged | Stage::Cold | Stage::Holed => (records, 0),
        };
        let keys = keys(sequential_percent, records * 2)?;
        let mut random = Random::new(SEED);
        let filler = (0..FILLER_BYTES).map(|_| random.next_u64() as u8).collect();
        let picks = (0..records).map(|_| random.below(records as u64) as u32).collect();
        let held = Cell::new(None);
        let store = Store { db, keyspace, stage, records, keys, picks, filler, held };
        store.fill()?;
        Ok(store)
    }

    fn fill(&self) -> Result<(), String> {
        self.put(0..self.records)?;
        if self.stage == Stage::Roomy {
            return Ok(());
        }
        if self.stage == Stage::Merged {
            text(self.keyspace.compact(..))?;
            text(self.db.wait_idle())?;
        }
        if self.stage == Stage::Holed {
            self.make_holes()?;
        }
        // What can be cached is; and what is done for the first time has been done once.
        (0..self.records).try_for_each(|index| self.get(index))?;
        // Trees may leave a filter unread until a key is looked for that is not there.
        for index in self.records..self.keys.len() {
            if text(self.keyspace.get(self.key(index)))?.is_some() {
                return Err("a key is there that was never put".to_string());
            }
        }
        if self.keyspace.iter().count() != self.records {
            return Err("the load has left something else than was put".to_string());
        }
        Ok(())
    }

    /// Puts pairs between the records, and deletes them by a range delete each.
    fn make_holes(&self) -> Result<(), String> {
        let count = HOLES.min(self.records);
        let holes = self.records..self.records + count;
        self.put(holes.clone())?;
        self.held.set(Some(self.db.snapshot()));
        for index in holes {
            let key = self.key(index);
            text(self.keyspace.delete_range(key..=key))?;
        }
        text(self.keyspace.flush())?;
        text(self.db.wait_idle())?;
        let there = self.db.stats().keyspaces.iter().map(|it| it.range_deletes).sum::<u64>();
        match there == count as u64 {
            true => Ok(()),
            false => Err(format!("{there} of {count} range deletes are left")),
        }
    }

    /// How many pairs there are.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// The key of a record, or, from [`Store::records`] on, of none.
    #[inline]
    pub(super) fn key(&self, index: usize) -> &[u8; KEY_BYTES] {
        &self.keys[index]
    }

    /// This many records in random order.
    pub(super) fn picks(&self, count: usize) -> impl Iterator<Item = usize> {
        self.picks[..count].iter().map(|&pick| pick as usize)
    }

    /// The value of that number.
    #[inline]
    pub(super) fn value(&self, index: usize) -> &[u8] {
        let at = index * 97 % (FILLER_BYTES - VALUE_BYTES);
        &self.filler[at..at + VALUE_BYTES]
    }

    /// Reads a record and checks it.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Result<(), String> {
        let found = text(self.keyspace.get(self.key(index)))?;
        if found.as_deref() == Some(self.value(index)) { Ok(()) } else { Err(wrong(index)) }
    }

    /// Puts the keys of these numbers. But for roomy stores all of them are then in the tree, and no
    /// background work is left: so much of it is counted as was caused.
    pub(super) fn put(&self, indexes: impl Iterator<Item = usize>) -> Result<(), String> {
        for (count, index) in indexes.enumerate() {
            text(self.keyspace.put(self.key(index), self.value(index)))?;
            if count % PUTS_BETWEEN_RESTS == PUTS_BETWEEN_RESTS - 1 {
                text(self.db.wait_idle())?;
            }
        }
        if self.stage == Stage::Roomy {
            return Ok(());
        }
        text(self.keyspace.flush())?;
        text(self.db.wait_idle())
    }
}

/// The message for a wrong result of a read.
pub(super) fn wrong(index: usize) -> String {
    format!("record {index} is missing or not what was put")
}
