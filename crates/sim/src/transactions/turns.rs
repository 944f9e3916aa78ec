//! Threads that lock the keys that they change, first, and in one order. So none of them may conflict, whatever others
//! write to these keys without a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use spinney::vfs::MemoryVfs;
use spinney::{Database, Isolation, Keyspace, KeyspaceOptions, Update};

use super::{Judged, name_of, plain};
use crate::kinds::Kinds;
use crate::random::Random;

const TRANSACTIONS: u64 = 60;
const KEYS: u32 = 3;

struct Counters {
    db: Database,
    spaces: Vec<Keyspace>,
    is_over: AtomicBool,
}

/// Carries the scenario out once.
pub(super) fn turns(seed: u64, kinds: Kinds) -> Judged {
    let mut random = Random::new(&[seed, 81]);
    let builder = Database::builder("/turns")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(4 << 20)
        .memtable_bytes([2048, 256 << 10][random.below(2)])
        .background_threads(1 + random.below(2));
    let db = plain("open", builder.open())?;
    let options = |number| KeyspaceOptions::new(kinds.of(number)).merge_operator("u64_add");
    let create =
        |number: usize| plain("create", db.keyspace(&format!("{number}"), options(number)));
    let spaces = (0..2).map(create).collect::<Result<Vec<_>, _>>()?;
    let counters = Counters { db, spaces, is_over: AtomicBool::new(false) };
    let added = std::thread::scope(|scope| {
        let counters = &counters;
        let others: Vec<_> = (0..2u64)
            .map(|n| scope.spawn(move || counters.add_plainly(Random::new(&[seed, 82, n]))))
            .collect();
        let lockers: Vec<_> = (0..3u64)
            .map(|n| scope.spawn(move || counters.add_locked(Random::new(&[seed, 83, n]))))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<u64, String>>| {
            thread.join().unwrap_or(Err("a panic".to_string()))
        };
        let locked: Vec<_> = lockers.into_iter().map(join).collect();
        counters.is_over.store(true, Ordering::SeqCst);
        let plainly: Vec<_> = others.into_iter().map(join).collect();
        locked.into_iter().chain(plainly).sum::<Result<u64, String>>()
    })?;
    let mut sum = 0;
    for space in &counters.spaces {
        for key in 0..KEYS {
            sum += number(plain("get", space.get(name_of(key)))?.as_deref())?;
        }
    }
    match sum == added {
        true => Ok(()),
        false => Err(format!("{added} was added, and the sum is {sum}")),
    }
}

fn number(value: Option<&[u8]>) -> Result<u64, String> {
    let Some(value) = value else { return Ok(0) };
    let bytes = value.try_into().map_err(|_| format!("no number: {value:?}"))?;
    Ok(u64::from_le_bytes(bytes))
}

impl Counters {
    /// Some different keys, in one order for all.
    fn keys(&self, random: &mut Random) -> Vec<(usize, u32)> {
        let all = (0..self.spaces.len()).flat_map(|space| (0..KEYS).map(move |key| (space, key)));
        let mut keys: Vec<_> = all.filter(|_| random.one_in(3)).collect();
        if keys.is_empty() {
            keys.push((0, random.below(KEYS as usize) as u32));
        }
        keys
    }

    fn add_locked(&self, mut random: Random) -> Result<u64, String> {
        let mut added = 0;
        for _ in 0..TRANSACTIONS {
            let isolation = [Isolation::Serializable, Isolation::Snapshot][random.below(2)];
            let mut transaction = self.db.begin(isolation);
            let keys = self.keys(&mut random);
            for (space, key) in &keys {
                plain("lock", transaction.lock(&self.spaces[*space], name_of(*key)))?;
            }
            for (space, key) in &keys {
                let (space, name) = (&self.spaces[*space], name_of(*key));
                let has = number(plain("get", transaction.get(space, &name))?.as_deref())?;
                plain("put", transaction.put(space, &name, (has + 1).to_le_bytes()))?;
            }
            if random.one_in(8) {
                continue;
            }
            plain("commit with all keys locked", transaction.commit())?;
            added += keys.len() as u64;
        }
        Ok(added)
    }

    fn add_plainly(&self, mut random: Random) -> Result<u64, String> {
        let mut added = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let keys = self.keys(&mut random);
            let (space, key) = (&self.spaces[keys[0].0], name_of(keys[0].1));
            match random.below(3) {
                0 => {
                    plain("merge", space.merge(key, 1u64.to_le_bytes()))?;
                    added += 1;
                }
                1 => {
                    let longer = |has: Option<&[u8]>| match number(has) {
                        Ok(has) => Update::Put((has + 1).to_le_bytes().to_vec()),
                        Err(_) => Update::Keep,
                    };
                    plain("fetch_update", space.fetch_update(key, longer))?;
                    added += 1;
                }
                _ => {
                    let mut batch = self.db.batch();
                    for (space, key) in &keys {
                        batch.merge(&self.spaces[*space], name_of(*key), 1u64.to_le_bytes());
                    }
                    plain("batch", batch.commit())?;
                    added += keys.len() as u64;
                }
            }
            if random.one_in(4) {
                plain("flush", self.spaces[0].flush())?;
            }
        }
        Ok(added)
    }
}
