//! The steps of each writer, as a function of its earlier steps, the step's number and the number
//! of the life. So the parent knows what a step wrote without a report.
//!
//! Invariants:
//! 1. The same seed, writer, life and earlier state give the same step.
//! 2. A writer's own keys begin with its number, and nobody else writes them. Its temporary
//!    keyspace is its own.
//! 3. A step that is retried in another life writes other bytes.
//! 4. A step that writes a shared key leaves a state of the writer's own keys that no other step
//!    leaves.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use spinney::vfs::{PosixOptions, PosixVfs};
use spinney::{Builder, Compression, Database, KeyspaceOptions};

use crate::kinds::{Kinds, with_fanout};
use crate::random::{Random, mix};

/// The keyspaces that all writers share.
pub const SHARED: [&str; 3] = ["plain", "packed", "merged"];
/// The number of a writer's own keyspace among those it writes to.
pub const PASSING: usize = SHARED.len();
/// Keys that all writers write, each in the first two keyspaces at once.
pub const SHARED_KEYS: usize = 8;

/// The pairs of one keyspace.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The sizes of a store and of what is done to it.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// What everything is drawn from.
    pub seed: u64,
    /// The trees.
    pub kinds: Kinds,
    /// How many write at once.
    pub writers: usize,
    memtable_bytes: u64,
    shards: usize,
    threads: usize,
    keys: usize,
    value_bytes: usize,
    /// Each key is a new one, so that the store grows.
    pub fills: bool,
    /// Without io_uring, which a tracer cannot see.
    pub blocking: bool,
}

/// What becomes of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It has this value.
    Put(Vec<u8>),
    /// It has none.
    Delete,
    /// Its value is longer by these bytes.
    Append(Vec<u8>),
}

/// A write to one of the writer's own keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// A place in [`SHARED`], or [`PASSING`].
    pub keyspace: usize,
    /// The key.
    pub key: Vec<u8>,
    /// What becomes of it.
    pub change: Change,
}

/// What a writer does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A batch.
    Batch {
        /// The writes to its own keys.
        writes: Vec<Write>,
        /// The shared key that it writes too.
        shared: Option<usize>,
        /// Whether it is durable when it returns.
        sync: bool,
    },
    /// Its passing keyspace comes into being.
    Create,
    /// Its passing keyspace goes.
    Drop,
}

impl Script {
    /// The script of that seed.
    pub fn new(seed: u64, kinds: Kinds) -> Script {
        let mut random = Random::new(&[seed, 11]);
        Script {
            seed,
            kinds,
            writers: 1 + random.below(4),
            memtable_bytes: [2048, 4096, 16384][random.below(3)],
            shards: 1 + random.below(3),
            threads: 1 + random.below(3),
            keys: [8, 60, 300][random.below(3)],
            value_bytes: [12, 60, 300][random.below(3)],
            fills: false,
            blocking: false,
        }
    }

    /// How to open the store in `dir`.
    pub fn builder(&self, dir: &Path) -> Builder {
        let builder = Database::builder(dir)
            .memory_budget(1 << 20)
            .memtable_bytes(if self.fills { 16 << 10 } else { self.memtable_bytes })
            .journal_shards(self.shards)
            .background_threads(self.threads);
        match self.blocking {
            true => builder.vfs(Arc::new(PosixVfs::with(PosixOptions {
                io_uring: false,
                ..PosixOptions::default()
            }))),
            false => builder,
        }
    }

    /// How to create a keyspace.
    pub fn options(&self, name: &str) -> KeyspaceOptions {
        let number = SHARED.iter().position(|known| *known == name).unwrap_or(PASSING);
        let options = with_fanout(KeyspaceOptions::new(self.kinds.of(number)), 2);
        match name {
            "packed" => options.compression(Compression::Lz4),
            "merged" => options.merge_operator("append").blob_bytes_min(100),
            _ => options,
        }
    }

    /// The value of a shared key after that step of that writer.
    pub fn shared_value(&self, key: usize, writer: usize, step: u64, life: u32) -> Vec<u8> {
        let numbers = [self.seed, 13, key as u64, writer as u64, step, u64::from(life)];
        let mut random = Random::new(&numbers);
        let mut value = format!("{writer}/{step}/{life}/").into_bytes();
        value.extend(bytes(&mut random, 40));
        value
    }
}

/// The name of a shared key.
pub fn shared_key(key: usize) -> Vec<u8> {
    format!("shared/{key}").into_bytes()
}

/// What the keys of a writer begin with.
pub fn own_prefix(writer: usize) -> String {
    format!("w{writer}/")
}

/// The name of a writer's passing keyspace.
pub fn passing_name(writer: usize) -> String {
    format!("passing-{writer}")
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut state = random.draw();
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        // Halves of words, so that there is something to compress.
        state = mix(state);
        out.extend_from_slice(&(state & 0xffff_ffff).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What a writer's own keys hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterState {
    /// Which writer.
    pub writer: usize,
    /// How many steps it has done.
    pub steps: u64,
    /// By keyspace, as in [`Write`].
    pub pairs: [Pairs; SHARED.len() + 1],
    /// Whether its passing keyspace exists.
    pub passing: bool,
}

impl WriterState {
    /// Before its first step.
    pub fn new(writer: usize) -> WriterState {
        WriterState { writer, steps: 0, pairs: Default::default(), passing: false }
    }

    /// Its next step, if it is done in `life`.
    pub fn next(&self, script: &Script, life: u32) -> Step {
        let numbers = [script.seed, 12, self.writer as u64, self.steps + 1, u64::from(life)];
        let mut random = Random::new(&numbers);
        if random.one_in(60) {
            return if self.passing { Step::Drop } else { Step::Create };
        }
        let count = if random.one_in(3) { 1 + random.below(8) } else { 1 };
        let favourite = random.below(SHARED.len() + usize::from(self.passing));
        let writes = (0..count).map(|_| {
            let keyspace = match random.one_in(3) {
                true => random.below(SHARED.len() + usize::from(self.passing)),
                false => favourite,
            };
            let key = match script.fills {
                true => format!("{}{:010}", own_prefix(self.writer), random.draw() % (1 << 30)),
                false => {
                    let n = random.below(script.keys) * 7919 % 1009;
                    format!("{}{n:04}", own_prefix(self.writer))
                }
            };
            let change = match random.below(10) {
                0..2 if !script.fills => Change::Delete,
                2..5 if SHARED.get(keyspace) == Some(&"merged") => {
                    Change::Append(value(script, &mut random))
                }
                _ => Change::Put(value(script, &mut random)),
            };
            Write { keyspace, key: key.into_bytes(), change }
        });
        let mut writes: Vec<Write> = writes.collect();
        let shared = random.one_in(6).then(|| random.below(SHARED_KEYS));
        if shared.is_some() {
            let key = format!("{}#", own_prefix(self.writer)).into_bytes();
            let change = Change::Put(format!("{}/{life}", self.steps + 1).into_bytes());
            writes.push(Write { keyspace: 0, key, change });
        }
        Step::Batch { writes, shared, sync: random.one_in(24) }
    }

    /// Does a step.
    pub fn apply(&mut self, step: &Step) {
        self.steps += 1;
        match step {
            Step::Create => self.passing = true,
            Step::Drop => {
                self.passing = false;
                self.pairs[PASSING].clear();
            }
            Step::Batch { writes, .. } => {
                for write in writes {
                    let pairs = &mut self.pairs[write.keyspace];
                    match &write.change {
                        Change::Put(value) => {
                            pairs.insert(write.key.clone(), value.clone());
                        }
                        Change::Delete => {
                            pairs.remove(&write.key);
                        }
                        Change::Append(operand) => {
                            pairs.entry(write.key.clone()).or_default().extend_from_slice(operand);
                        }
                    }
                }
            }
        }
    }
}

fn value(script: &Script, random: &mut Random) -> Vec<u8> {
    let len = match random.below(300) {
        0 => 17_000,
        1..8 => random.below(3000),
        _ => random.below(script.value_bytes),
    };
    let len = if script.fills { 200 + len } else { len };
    bytes(random, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(life: u32) -> Vec<WriterState> {
        let script = Script::new(5, Kinds::Mixed);
        let mut state = WriterState::new(1);
        let next = |_| {
            let step = state.next(&script, life);
            state.apply(&step);
            state.clone()
        };
        (0..500).map(next).collect()
    }

    #[test]
    fn steps_depend_on_nothing_but_their_place() {
        assert_eq!(states(3), states(3));
        assert_ne!(states(3).last(), states(4).last(), "another life writes other bytes");
        assert!(states(3).iter().any(|state| state.passing && !state.pairs[PASSING].is_empty()));
        let own = |state: &WriterState| {
            state.pairs.iter().all(|pairs| pairs.keys().all(|key| key.starts_with(b"w1/")))
        };
        assert!(states(3).iter().all(own));
    }
}
