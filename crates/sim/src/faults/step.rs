//! The steps of work on a failing disk: a list drawn in advance, independent of what happens.

use spinney::Compression;

use crate::action::{Operator, Options};
use crate::model::Effect;
use crate::random::Random;

/// How many keyspaces there are; the last one comes and goes.
pub(super) const KEYSPACES: usize = 4;
/// The one whose values are merged.
const MERGED: usize = 2;

/// How a keyspace is created.
pub(super) fn options(keyspace: usize) -> Options {
    Options {
        compression: if keyspace == 1 { Compression::Lz4 } else { Compression::None },
        operator: if keyspace == MERGED { Operator::Append } else { Operator::None },
        blob_bytes_min: if keyspace == MERGED { 100 } else { 1024 },
        fanout_max: 2,
        space_percent_max: 150,
        ..Options::default()
    }
}

/// Options that a keyspace may have later. Which, goes by a number.
pub(super) fn other_options(keyspace: usize, number: u8) -> Options {
    let bit = |bit: u8| number >> bit & 1 == 1;
    let choice = |at: u8, low: u32, high: u32| if bit(at) { high } else { low };
    Options {
        compression: if bit(0) { Compression::Lz4 } else { Compression::None },
        blob_bytes_min: choice(1, 100, 4096),
        space_percent_max: choice(2, 110, 300),
        fanout_max: choice(3, 2, 5),
        tables_per_guard_max: choice(4, 1, 8),
        filters: bit(5),
        ..options(keyspace)
    }
}

/// One thing that is done. Keyspaces are named by their numbers.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A batch.
    Commit {
        sync: bool,
        writes: Vec<(usize, Vec<u8>, Effect)>,
    },
    /// A key is read.
    Get(usize, Vec<u8>),
    /// Keys are read at once.
    MultiGet(usize, Vec<Vec<u8>>),
    /// Everything is read.
    Compare,
    /// A step of background work.
    Turn,
    Sync,
    Flush(usize),
    Compact(usize),
    /// A keyspace gets other options: see [`other_options`].
    Alter(usize, u8),
    Idle,
    Checkpoint,
    /// The last keyspace is dropped if it is there, else created.
    Toggle,
    Reopen,
}

/// How many keyspaces there always are, and how many keys they have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) keyspaces: usize,
    keys: usize,
    value_bytes: usize,
    /// Not in every run, so that runs that have told a story once still tell it.
    range_deletes: bool,
}

impl Shape {
    pub(super) fn new(seed: u64) -> Shape {
        let mut random = Random::new(&[seed, 21]);
        Shape {
            keyspaces: 1 + random.below(3),
            keys: [8, 30, 90][random.below(3)],
            value_bytes: [60, 300, 300][random.below(3)],
            range_deletes: random.one_in(2),
        }
    }

    fn key(self, random: &mut Random) -> Vec<u8> {
        format!("key/{:04}", random.below(self.keys) * 7919 % 1009).into_bytes()
    }

    fn value(self, random: &mut Random) -> Vec<u8> {
        let len = match random.below(60) {
            0 => 17_000,
            1..4 => random.below(3000),
            _ => random.below(self.value_bytes),
        };
        let byte = random.draw() as u8;
        (0..len).map(|i| byte.wrapping_add(i as u8)).collect()
    }

    fn write(self, random: &mut Random, favourite: usize) -> (usize, Vec<u8>, Effect) {
        let keyspace = match random.below(8) {
            0 => KEYSPACES - 1,
            1 | 2 => random.below(self.keyspaces),
            _ => favourite,
        };
        let change = match random.below(10) {
            0 | 1 => Effect::Delete,
            2..5 if keyspace == MERGED => Effect::Merge(self.value(random)),
            _ => Effect::Put(self.value(random)),
        };
        let key = self.key(random);
        if self.range_deletes && random.one_in(20) {
            let to = (!random.one_in(8)).then(|| self.key(random));
            let (key, to) = match to {
                Some(to) if to < key => (to, Some(key)),
                to => (key, to),
            };
            return (keyspace, key, Effect::DeleteRange(to));
        }
        (keyspace, key, change)
    }

    fn step(self, random: &mut Random) -> Step {
        let keyspace = random.below(self.keyspaces);
        match random.below(100) {
            0..41 => {
                let count = if random.one_in(3) { 2 + random.below(5) } else { 1 };
                let writes = (0..count).map(|_| self.write(random, keyspace)).collect();
                Step::Commit { sync: random.one_in(7), writes }
            }
            41..44 => Step::Alter(keyspace, random.draw() as u8),
            44..50 => Step::Get(keyspace, self.key(random)),
            50..53 => {
                let keys = (0..6).map(|_| self.key(random)).collect();
                Step::MultiGet(keyspace, keys)
            }
            53..56 => Step::Compare,
            56..76 => Step::Turn,
            76..80 => Step::Sync,
            80..85 => Step::Flush(keyspace),
            85..88 => Step::Compact(keyspace),
            88..91 => Step::Idle,
            91..93 => Step::Checkpoint,
            93..97 => Step::Toggle,
            _ => Step::Reopen,
        }
    }
}

/// The steps of a seed.
pub(super) fn steps(seed: u64, count: usize) -> Vec<Step> {
    let shape = Shape::new(seed);
    let mut random = Random::new(&[seed, 22]);
    (0..count).map(|_| shape.step(&mut random)).collect()
}
