//! The content of a store and the steps of each writer, as functions of the seed: keyspaces, keys,
//! steps, values.
//!
//! Invariants:
//! 1. A step depends only on the seed, its writer and its number. A step's number is never reused,
//!    so a value identifies the step that wrote it.
//! 2. A key belongs to one writer, and nobody else writes it.
//! 3. The effect of a step on a key depends only on the seed, the key and the step's number.
//! 4. Each writer first fills its keys, each once; then it overwrites them uniformly.

use std::sync::OnceLock;

use spinney::{Builder, Compression, Database, KeyspaceOptions, TreeKind};

use crate::kinds::Kinds;
use crate::random::{Random, mix};

/// A batch takes no further operation once it has so many bytes.
const BATCH_BYTES: u64 = 1 << 20;
/// The longest value.
pub const VALUE_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a value that name the key and the step that wrote it.
pub const HEADER_BYTES: usize = 16;
const POOL_BYTES: usize = 1 << 20;
/// An odd number, and the number that undoes a multiplication by it.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const GATHER: u64 = inverse(SPREAD);

const fn inverse(odd: u64) -> u64 {
    let (mut found, mut round) = (odd, 0);
    while round < 6 {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        round += 1;
    }
    found
}

/// What a keyspace's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Most below a kilobyte, some of pages, some of 2 MiB.
    Mixed,
    /// Up to a kilobyte.
    Small,
    /// Operands of `append`, folded.
    Merged,
    /// Up to 128 KiB, one in sixteen up to 2 MiB.
    Large,
    /// Up to a hundred bytes.
    Tiny,
    /// Up to a kilobyte, compressed.
    Packed,
}

const CONTENTS: [Content; 6] = [
    Content::Mixed,
    Content::Small,
    Content::Merged,
    Content::Large,
    Content::Tiny,
    Content::Packed,
];

impl Content {
    /// The length of a value, or of an operand, that was drawn as `draw`.
    fn len(self, draw: u64, operand: bool) -> u64 {
        let rest = draw >> 12;
        let one_in = draw & 0xfff;
        match self {
            Content::Mixed if one_in < 4 => rest % (VALUE_BYTES_MAX + 1),
            Content::Mixed if one_in < 200 => rest % (64 << 10),
            Content::Mixed if one_in < 1200 => rest % (8 << 10),
            Content::Mixed => rest % 1000,
            Content::Small | Content::Packed => rest % 1000,
            Content::Merged if one_in < 8 => rest % 40_000,
            Content::Merged if operand => rest % 60,
            Content::Merged => rest % 300,
            Content::Large if one_in < 256 => rest % (VALUE_BYTES_MAX + 1),
            Content::Large => rest % (128 << 10),
            Content::Tiny => rest % 100,
        }
    }

    /// Whether values may be megabytes.
    pub fn has_large_values(self) -> bool {
        matches!(self, Content::Mixed | Content::Large)
    }

    /// What a key and its value take on the average, roughly.
    fn pair_bytes(self) -> u64 {
        let value = match self {
            Content::Mixed => 4600,
            Content::Small | Content::Packed => 500,
            Content::Merged => 250,
            Content::Large => 126 << 10,
            Content::Tiny => 50,
        };
        value + 20
    }
}

/// A keyspace.
#[derive(Debug, Clone)]
pub struct Space {
    /// Its name.
    pub name: String,
    /// Its tree.
    pub kind: TreeKind,
    /// Its values.
    pub content: Content,
    /// How many keys it has.
    pub keys: u32,
    /// Whether keys ascend as they are filled in.
    ordered: bool,
}

/// A store and what is done to it.
#[derive(Debug, Clone)]
pub struct Script {
    /// What everything is drawn from.
    pub seed: u64,
    /// The trees.
    pub kinds: Kinds,
    /// The bytes that live pairs take, roughly.
    pub bytes: u64,
    /// How many write at once.
    pub writers: usize,
    /// The keyspaces.
    pub spaces: Vec<Space>,
    /// Of each writer, the last filling step of each keyspace.
    filled: Vec<Vec<u32>>,
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has the value of the step.
    Put,
    /// It has none.
    Delete,
    /// Its value is longer by the step's operand.
    Append,
}

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The keyspace's number.
    pub space: usize,
    /// The key's number.
    pub index: u32,
    /// What becomes of it.
    pub change: Change,
}

/// What a writer does at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The changes, each of another key.
    pub ops: Vec<Op>,
    /// Whether it is durable when it returns.
    pub sync: bool,
}

impl Script {
    /// The script of that seed, of a store of about so many bytes.
    pub fn new(seed: u64, kinds: Kinds, bytes: u64) -> Script {
        let mut random = Random::new(&[seed, 31]);
        let writers = 1 + random.below(3);
        let count = [1, 4, 12, 60, 200][random.below(5)];
        let first = random.below(CONTENTS.len());
        let weight = |number: usize| 1.0 / (1.0 + (number % 20) as f64);
        let sum: f64 = (0..count).map(weight).sum();
        let spaces = (0..count).map(|number| {
            let content = match count {
                1 => Content::Mixed,
                _ => CONTENTS[(first + number) % CONTENTS.len()],
            };
            let mut share = (bytes as f64 * weight(number) / sum) as u64;
            if content == Content::Tiny {
                share = share.min(64 << 20);
            }
            Space {
                name: format!("{number}-{}", format!("{content:?}").to_lowercase()),
                kind: kinds.of(number),
                content,
                keys: (share / content.pair_bytes()).clamp(8, 1 << 30) as u32,
                ordered: number % 3 == 2,
            }
        });
        let spaces: Vec<Space> = spaces.collect();
        let filled = (0..writers).map(|writer| {
            let steps = |space: &Space| own_keys(space, writers, writer).div_ceil(at_once(space));
            let sum = |sum: &mut u32, space: &Space| {
                *sum += steps(space);
                Some(*sum)
            };
            spaces.iter().scan(0, sum).collect()
        });
        let filled = filled.collect();
        Script { seed, kinds, bytes, writers, spaces, filled }
    }

    /// How to open the store in `dir`.
    pub fn builder(&self, dir: &std::path::Path, budget: u64) -> Builder {
        Database::builder(dir).memory_budget(budget)
    }

    /// How to create a keyspace.
    pub fn options(&self, space: usize) -> KeyspaceOptions {
        let options = KeyspaceOptions::new(self.spaces[space].kind);
        match self.spaces[space].content {
            Content::Packed => options.compression(Compression::Lz4),
            Content::Merged => options.merge_operator("append"),
            _ => options,
        }
    }

    /// The steps in which a writer fills its keys.
    pub fn filling_steps(&self, writer: usize) -> u32 {
        self.filled[writer].last().copied().unwrap_or(0)
    }

    /// The bytes of a key.
    pub fn key(&self, space: usize, index: u32) -> Vec<u8> {
        let number = u64::from(index) + 1;
        let first = match self.spaces[space].ordered {
            true => number,
            false => number.wrapping_mul(SPREAD),
        };
        let more = mix(number ^ self.seed);
        let len = 8 + (more % 24) as usize;
        let mut key = Vec::with_capacity(32);
        key.extend_from_slice(&first.to_be_bytes());
        for word in 0..3 {
            key.extend_from_slice(&mix(more ^ word).to_le_bytes());
        }
        key.truncate(len);
        key
    }

    /// The number of a key; none if there is no such key.
    pub fn index_of(&self, space: usize, key: &[u8]) -> Option<u32> {
        let first = u64::from_be_bytes(*key.first_chunk()?);
        let number = match self.spaces[space].ordered {
            true => first,
            false => first.wrapping_mul(GATHER),
        };
        let index = u32::try_from(number.checked_sub(1)?).ok()?;
        (index < self.spaces[space].keys && self.key(space, index) == key).then_some(index)
    }

    /// The writer to whom a key belongs.
    pub fn owner(&self, index: u32) -> usize {
        index as usize % self.writers
    }

    fn draw(&self, space: usize, index: u32, step: u32) -> u64 {
        let place = (space as u64) << 32 | u64::from(index);
        mix(mix(self.seed ^ mix(place)) ^ u64::from(step))
    }

    /// What a step does to a key.
    pub fn change(&self, space: usize, index: u32, step: u32) -> Change {
        if step <= self.filling_steps(self.owner(index)) {
            return Change::Put;
        }
        match self.draw(space, index, step) >> 60 {
            0 => Change::Delete,
            1..10 if self.spaces[space].content == Content::Merged => Change::Append,
            _ => Change::Put,
        }
    }

    /// The length of what a step writes at a key.
    pub fn len(&self, space: usize, index: u32, step: u32) -> u64 {
        let operand = self.change(space, index, step) == Change::Append;
        self.spaces[space].content.len(mix(self.draw(space, index, step)), operand)
    }

    /// Appends what a step writes at a key: a header that names both, and bytes.
    pub fn write(&self, space: usize, index: u32, step: u32, out: &mut Vec<u8>) {
        let end = out.len() + self.len(space, index, step) as usize;
        out.extend_from_slice(&(space as u32).to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        out.extend_from_slice(&step.to_le_bytes());
        out.extend_from_slice(&(self.seed as u32).to_le_bytes());
        let pool = pool();
        let mut from = mix(self.draw(space, index, step) ^ 1) as usize % (POOL_BYTES - 8);
        while out.len() < end {
            let bytes = (end - out.len()).min(POOL_BYTES - from);
            out.extend_from_slice(&pool[from..from + bytes]);
            from = 0;
        }
        out.truncate(end);
    }

    /// The step of that number.
    pub fn step(&self, writer: usize, step: u32) -> Step {
        match step <= self.filling_steps(writer) {
            true => self.filling(writer, step),
            false => self.overwriting(writer, step),
        }
    }

    fn filling(&self, writer: usize, step: u32) -> Step {
        let filled = &self.filled[writer];
        let space = filled.partition_point(|last| *last < step);
        let before = space.checked_sub(1).map_or(0, |before| filled[before]);
        let at_once = at_once(&self.spaces[space]);
        let from = (step - before - 1) * at_once;
        let to = (from + at_once).min(own_keys(&self.spaces[space], self.writers, writer));
        let op = |own: u32| {
            let index = own * self.writers as u32 + writer as u32;
            Op { space, index, change: Change::Put }
        };
        Step { ops: (from..to).map(op).collect(), sync: false }
    }

    fn overwriting(&self, writer: usize, step: u32) -> Step {
        let mut random = Random::new(&[self.seed, 32, writer as u64, u64::from(step)]);
        let count = match random.below(20) {
            0..12 => 1,
            12..18 => 2 + random.below(7),
            _ => 9 + random.below(56),
        };
        let several = random.one_in(3);
        let mut space = self.space(&mut random);
        let mut ops: Vec<Op> = Vec::with_capacity(count);
        let mut bytes = 0;
        while ops.len() < count && bytes < BATCH_BYTES {
            if several {
                space = self.space(&mut random);
            }
            let own = random.below(own_keys(&self.spaces[space], self.writers, writer) as usize);
            let index = (own * self.writers + writer) as u32;
            // Also ends a batch that has all keys of a small keyspace.
            if ops.iter().any(|op| (op.space, op.index) == (space, index)) {
                break;
            }
            bytes += self.len(space, index, step);
            ops.push(Op { space, index, change: self.change(space, index, step) });
        }
        Step { ops, sync: random.one_in(300) }
    }

    /// Keyspaces get as many steps as they have keys, or bytes.
    fn space(&self, random: &mut Random) -> usize {
        let by_bytes = random.one_in(4);
        let weight = |space: &Space| match by_bytes {
            true => u64::from(space.keys) * space.content.pair_bytes(),
            false => u64::from(space.keys),
        };
        let sum: u64 = self.spaces.iter().map(weight).sum();
        let mut at = random.draw() % sum;
        for (number, space) in self.spaces.iter().enumerate() {
            match at.checked_sub(weight(space)) {
                Some(rest) => at = rest,
                None => return number,
            }
        }
        0
    }

    /// The most bytes that a writer holds of its own at once.
    pub fn step_bytes_max(&self) -> u64 {
        match self.spaces.iter().any(|space| space.content.has_large_values()) {
            true => BATCH_BYTES + 2 * VALUE_BYTES_MAX,
            false => BATCH_BYTES + 64 * 1000,
        }
    }
}

/// How many keys belong to a writer: at least two.
fn own_keys(space: &Space, writers: usize, writer: usize) -> u32 {
    (space.keys - writer as u32).div_ceil(writers as u32)
}

/// How many keys one filling step writes.
fn at_once(space: &Space) -> u32 {
    ((128 << 10) / space.content.pair_bytes()).clamp(1, 128) as u32
}

/// Bytes that values are cut from; half of each word is blank, so that there is something to
/// compress.
fn pool() -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    POOL.get_or_init(|| {
        let word = |n: usize| (mix(n as u64) & 0xffff_ffff).to_le_bytes();
        (0..POOL_BYTES / 8).flat_map(word).collect()
    })
}

/// A digest of a value.
pub fn digest(value: &[u8]) -> u64 {
    let mut words = value.chunks_exact(8);
    let mut state = mix(value.len() as u64);
    let step = |state: u64, word: u64| (state.rotate_left(5) ^ word).wrapping_mul(SPREAD);
    for word in &mut words {
        state = step(state, word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
    }
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(step(state, u64::from_le_bytes(rest)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn script(seed: u64) -> Script {
        Script::new(seed, Kinds::Mixed, 4 << 20)
    }

    #[test]
    fn filling_writes_each_key_once_and_overwriting_only_ones_own() {
        for seed in 1..12 {
            let script = script(seed);
            let mut seen = BTreeSet::new();
            for writer in 0..script.writers {
                for step in 1..=script.filling_steps(writer) {
                    for op in script.step(writer, step).ops {
                        assert_eq!(op.change, Change::Put);
                        assert_eq!(script.change(op.space, op.index, step), Change::Put);
                        assert!(seen.insert((op.space, op.index)));
                    }
                }
            }
            let keys: usize = script.spaces.iter().map(|space| space.keys as usize).sum();
            assert_eq!(seen.len(), keys);
            let mut changes = [0; 3];
            for step in 1..2000 {
                let writer = seed as usize % script.writers;
                let step = script.filling_steps(writer) + step;
                let ops = script.step(writer, step).ops;
                assert_eq!(script.step(writer, step).ops, ops);
                for op in ops {
                    assert_eq!(script.owner(op.index), writer);
                    assert!(seen.contains(&(op.space, op.index)));
                    changes[op.change as usize] += 1;
                }
            }
            assert!(changes[0] > changes[1] && changes[1] > 0, "{changes:?}");
        }
    }

    #[test]
    fn keys_are_known_by_their_bytes() {
        let script = script(3);
        for space in 0..script.spaces.len() {
            let mut keys = BTreeSet::new();
            for index in 0..script.spaces[space].keys {
                let key = script.key(space, index);
                assert_eq!(script.index_of(space, &key), Some(index));
                assert!(keys.insert(key));
            }
            assert_eq!(script.index_of(space, b"other"), None);
            let mut longer = script.key(space, 0);
            longer.push(0);
            assert_eq!(script.index_of(space, &longer), None);
        }
    }

    #[test]
    fn values_have_the_length_that_is_said_and_differ_by_step() {
        let script = script(4);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for index in 0..8 {
            script.write(0, index, 5, &mut one);
            script.write(0, index, 6, &mut other);
        }
        let len: u64 = (0..8).map(|index| script.len(0, index, 5)).sum();
        assert_eq!(one.len() as u64, len);
        assert_ne!(digest(&one), digest(&other));
        assert_ne!(digest(b""), digest(b"\0"));
    }

    #[test]
    fn stores_have_about_the_bytes_that_were_asked_for() {
        for seed in 1..40 {
            let bytes = 64 << 20;
            let script = Script::new(seed, Kinds::Mixed, bytes);
            let mut sum = 0;
            for (number, space) in script.spaces.iter().enumerate() {
                let len = |index| script.len(number, index, 1);
                sum += (0..space.keys).map(len).sum::<u64>() + u64::from(space.keys) * 20;
            }
            assert!(sum > bytes / 2 && sum < bytes * 2, "{seed}: {sum}");
        }
    }
}
