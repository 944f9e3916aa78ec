//! Reads an open store and reports what it has read; the receiver judges it.

use spinney::{CheckLevel, Database, Error, Keyspace, Slice};

use super::frames::{Seen, Told};
use super::ledger::Verdict;
use super::script::{Content, HEADER_BYTES, Script, digest};
use crate::random::Random;

/// What is to be looked at when a store has been opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Of each writer, the step that may be there or not.
    pub under_way: Vec<Option<u32>>,
    /// Whether all keyspaces must exist.
    pub created: bool,
    /// Keys to be read by name.
    pub sample: usize,
    /// Whether all pairs are read, and everything is checked.
    pub full: bool,
    /// What is drawn is drawn from it.
    pub draw: u64,
}

/// A value as it is told.
pub fn seen(value: Option<&Slice>) -> Seen {
    value.map(|value| (value.len() as u64, digest(value)))
}

/// Looks at a store and tells what it holds; gives its keyspaces, which are made if they need not
/// be there yet.
///
/// # Errors
/// What was promised and is not so.
pub fn look(
    db: &Database,
    script: &Script,
    extent: &Extent,
    tell: &mut dyn FnMut(Told) -> Verdict<()>,
) -> Verdict<Vec<Keyspace>> {
    let names = db.keyspaces();
    let mut spaces = Vec::new();
    for (number, space) in script.spaces.iter().enumerate() {
        if extent.created && !names.contains(&space.name) {
            return Err(format!("keyspace {} is missing", space.name));
        }
        let opened = db.keyspace(&space.name, script.options(number));
        spaces.push(opened.map_err(|error| format!("keyspace {}: {error}", space.name))?);
    }
    if let Some(name) = names.iter().find(|name| script.spaces.iter().all(|s| s.name != **name)) {
        return Err(format!("keyspace {name:?} should not be there"));
    }
    for (writer, step) in extent.under_way.iter().enumerate() {
        let Some(step) = *step else { continue };
        for op in script.step(writer, step).ops {
            let value = spaces[op.space].get(script.key(op.space, op.index));
            let value = value.map_err(|error| format!("reading {}: {error}", op.space))?;
            tell(Told::Read { space: op.space, index: op.index, seen: seen(value.as_ref()) })?;
        }
        tell(Told::Settled { writer })?;
    }
    sample(db, script, &spaces, extent, tell)?;
    if extent.full {
        for (number, space) in spaces.iter().enumerate() {
            let backwards = (number as u64 + extent.draw) % 2 == 1;
            scan(script, number, space, backwards, tell)?;
        }
        let report = db.check(CheckLevel::Full).map_err(|error| format!("check: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("check: {:?}", report.problems));
        }
        tell(Told::Counted { what: 6, count: 1 })?;
    }
    Ok(spaces)
}

/// Reads keys by name: one at a time, many at once, through a snapshot.
fn sample(
    db: &Database,
    script: &Script,
    spaces: &[Keyspace],
    extent: &Extent,
    tell: &mut dyn FnMut(Told) -> Verdict<()>,
) -> Verdict<()> {
    let mut random = Random::new(&[script.seed, 33, extent.draw]);
    let snapshot = db.snapshot();
    let failed = |error: Error| format!("reading: {error}");
    let mut left = extent.sample;
    while left > 0 {
        let space = random.below(spaces.len());
        let keys = script.spaces[space].keys as usize;
        // Not too many large values at once: whoever asks for them holds them.
        let most = if script.spaces[space].content.has_large_values() { 4 } else { 24 };
        let count = (1 + random.below(most)).min(left);
        left -= count;
        let indices: Vec<u32> = (0..count).map(|_| random.below(keys) as u32).collect();
        let keys: Vec<Vec<u8>> = indices.iter().map(|index| script.key(space, *index)).collect();
        let values = match random.below(4) {
            0 => spaces[space].multi_get(&keys).map_err(failed)?,
            1 => snapshot.multi_get(&spaces[space], &keys).map_err(failed)?,
            2 => {
                let get = |key: &Vec<u8>| snapshot.get(&spaces[space], key);
                keys.iter().map(get).collect::<Result<_, _>>().map_err(failed)?
            }
            _ => {
                let get = |key: &Vec<u8>| spaces[space].get(key);
                keys.iter().map(get).collect::<Result<_, _>>().map_err(failed)?
            }
        };
        for (index, value) in indices.into_iter().zip(&values) {
            tell(Told::Read { space, index, seen: seen(value.as_ref()) })?;
        }
    }
    tell(Told::Counted { what: 7, count: extent.sample as u64 })
}

/// Reads all pairs of a keyspace, in strict order.
fn scan(
    script: &Script,
    number: usize,
    space: &Keyspace,
    backwards: bool,
    tell: &mut dyn FnMut(Told) -> Verdict<()>,
) -> Verdict<()> {
    tell(Told::ScanBegun { space: number })?;
    let mut last: Option<Slice> = None;
    let mut pairs = 0;
    let mut iter = space.iter();
    while let Some(pair) = if backwards { iter.next_back() } else { iter.next() } {
        let (key, value) = pair.map_err(|error| format!("scanning {}: {error}", space.name()))?;
        let in_order = last.as_ref().is_none_or(|last| match backwards {
            true => last[..] > key[..],
            false => last[..] < key[..],
        });
        if !in_order {
            return Err(format!("a scan of {} is out of order", space.name()));
        }
        let index = script.index_of(number, &key).ok_or_else(|| {
            format!("{}: nobody wrote {:?}", space.name(), key.escape_ascii().to_string())
        })?;
        tell(Told::Read { space: number, index, seen: seen(Some(&value)) })?;
        last = Some(key);
        pairs += 1;
    }
    tell(Told::ScanEnded { space: number })?;
    tell(Told::Counted { what: 0, count: pairs })
}

/// Whether a pair is one that may be there at some time: a key of the script, and a value that says
/// that it is that key's.
///
/// # Errors
/// If not.
pub fn plausible(script: &Script, space: usize, key: &[u8], value: &[u8]) -> Verdict<u32> {
    let name = &script.spaces[space].name;
    let index = script.index_of(space, key);
    let index = index
        .ok_or_else(|| format!("{name}: nobody wrote {:?}", key.escape_ascii().to_string()))?;
    if script.spaces[space].content == Content::Merged || value.len() < HEADER_BYTES {
        return Ok(index);
    }
    let word = |at: usize| value[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    if (word(0) as usize, word(4), word(12)) != (space, index, script.seed as u32) {
        return Err(format!(
            "{name} has at key {index} a value of key {} of keyspace {}",
            word(4),
            word(0)
        ));
    }
    match value.len() as u64 == script.len(space, index, word(8)) {
        true => Ok(index),
        false => Err(format!(
            "{name} has at key {index} {} bytes of step {}, which wrote {}",
            value.len(),
            word(8),
            script.len(space, index, word(8))
        )),
    }
}
