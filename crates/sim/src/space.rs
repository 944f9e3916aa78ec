//! Checks that a store's directory has exactly the files that the store needs, and that it uses no
//! more space than promised.
//!
//! Invariants:
//! 1. Only names in the format's documents are relied on: `SPINNEY`, `LOCK`, `manifest-…` and
//!    `journal-…` are the store's own; all other files hold data.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use spinney::vfs::{MemoryVfs, Vfs};
use spinney::{CheckLevel, Database, Error, Keyspace, KeyspaceOptions, MIB, TreeKind};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;

/// Stores whose seed is a multiple of this are judged by what space they take, beside the lists of
/// actions.
pub const EVERY: u64 = 32;
/// What data files may take at rest, as a multiple of what the same pairs take freshly loaded and
/// compacted.
const TIMES_MAX: f64 = 1.4;
/// A memtable of these stores, the least that a budget of memory makes: with smaller ones the pages
/// of indexes count for more than is promised.
const MEMTABLE_BYTES: u64 = 256 << 10;
/// What estimates may be off by beside a tenth.
const PAGES_BYTES: u64 = 32 << 10;

/// Moves everything into the trees, waits until nothing is left to do, and looks whether the
/// directory then holds more than the trees name. Nobody may hold a snapshot or an iterator.
///
/// # Errors
/// What there is too much of; or what fails.
pub fn check_settled(vfs: &dyn Vfs, dir: &str, db: &Database) -> Result<(), String> {
    settle(db).map_err(|error| format!("settling: {error}"))?;
    let failed = |error: Error| format!("counting files: {error}");
    let (mut files, mut bytes, mut manifests) = (0, 0, 0);
    let mut names = Vec::new();
    for entry in vfs.read_dir(Path::new(dir)).map_err(failed)? {
        if entry.name.starts_with("manifest-") {
            manifests += 1;
        } else if !is_own(&entry.name) {
            files += 1;
            bytes += entry.len;
            names.push(entry.name);
        }
    }
    let known_bytes: u64 = db.stats().keyspaces.iter().map(|keyspace| keyspace.disk_bytes).sum();
    // A file that two keyspaces share counts twice there, so these are upper bounds.
    let known_files = db.check(CheckLevel::Structure).map_err(failed)?.files;
    if files > known_files || bytes > known_bytes {
        return Err(format!(
            "when all is settled the directory has {files} data files of {bytes} bytes, and the store \
             knows {known_files} of {known_bytes}: {}",
            names.join(", ")
        ));
    }
    match manifests {
        1 => Ok(()),
        _ => Err(format!("when all is settled there are {manifests} manifests")),
    }
}

fn settle(db: &Database) -> spinney::Result<()> {
    db.wait_idle()?;
    for name in db.keyspaces() {
        db.existing_keyspace(&name)?.flush()?;
    }
    db.wait_idle()
}

fn is_own(name: &str) -> bool {
    ["SPINNEY", "LOCK", "DURABLE", "MEMORY"].contains(&name) || name.starts_with("journal-")
}

/// Loads a store in memory, overwrites and deletes, with a snapshot held or without, as the seed
/// says; then judges what its files take at rest and what it says is live.
pub fn run(seed: u64, kinds: Kinds) -> Outcome {
    let mut outcome = Outcome::default();
    // It promises nothing of space.
    if kinds.is_for_tests() {
        return outcome;
    }
    outcome.count("stores judged by their space");
    let kind = kinds.of(seed as usize / 7);
    let judged = catch_unwind(AssertUnwindSafe(|| {
        judge(seed, kind, &mut outcome.operations)?;
        judge_deleted(seed, kind, &mut outcome.operations)
    }));
    if let Err(what) = judged.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
        let command = format!("spinney-sim model --kind {kinds} --seed {seed} --runs 1");
        outcome.violations.push(Violation { what, command });
    }
    outcome
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

struct Judged {
    vfs: MemoryVfs,
    db: Database,
    keyspace: Keyspace,
}

impl Judged {
    fn new(seed: u64, kind: TreeKind, memtable_bytes: u64) -> spinney::Result<Judged> {
        let vfs = MemoryVfs::new();
        let db = Database::builder("/store")
            .vfs(Arc::new(vfs.clone()))
            .memory_budget(MIB)
            .memtable_bytes(memtable_bytes)
            .journal_shards(1)
            .deterministic(seed)
            .open()?;
        let keyspace = db.keyspace("items", KeyspaceOptions::new(kind))?;
        Ok(Judged { vfs, db, keyspace })
    }

    fn data_bytes(&self) -> Result<u64, String> {
        let entries = self.vfs.read_dir(Path::new("/store"));
        let entries = entries.map_err(|error| format!("counting files: {error}"))?;
        let data = entries.iter().filter(|e| !is_own(&e.name) && !e.name.starts_with("manifest-"));
        Ok(data.map(|entry| entry.len).sum())
    }
}

fn judge(seed: u64, kind: TreeKind, operations: &mut u64) -> Result<(), String> {
    let failed = |error: Error| format!("a store judged by its space: {error}");
    let mut random = Random::new(&[seed, 0x5bace]);
    let store = Judged::new(seed, kind, MEMTABLE_BYTES).map_err(failed)?;
    let keys = 8000 + random.below(12_000);
    let value_bytes = 60 + random.below(140);
    let deletes_one_in = [0, 0, 2, 4][random.below(4)];
    let (rounds, holds) = (1 + random.below(4), random.one_in(3));
    let mut pairs = Pairs::new();
    let mut snapshot = None;
    for write in 0..keys * (1 + rounds) {
        let number = if write < keys { write } else { random.below(keys) };
        let key = crate::random::mix(number as u64).to_be_bytes().to_vec();
        if write == keys && holds {
            snapshot = Some(store.db.snapshot());
        }
        if write >= keys && deletes_one_in > 0 && random.one_in(deletes_one_in) {
            store.keyspace.delete(&key).map_err(failed)?;
            pairs.remove(&key);
        } else {
            let value: Vec<u8> = (0..value_bytes).map(|_| random.draw() as u8).collect();
            store.keyspace.put(&key, &value).map_err(failed)?;
            pairs.insert(key, value);
        }
    }
    *operations += (keys * (1 + rounds)) as u64;
    store.keyspace.flush().map_err(failed)?;
    store.db.wait_idle().map_err(failed)?;
    drop(snapshot);
    store.db.wait_idle().map_err(failed)?;
    let fresh = Judged::new(seed, kind, MEMTABLE_BYTES).map_err(failed)?;
    let mut order: Vec<_> = pairs.iter().collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    for (key, value) in order {
        fresh.keyspace.put(key, value).map_err(failed)?;
    }
    fresh.keyspace.compact(..).map_err(failed)?;
    fresh.db.wait_idle().map_err(failed)?;
    let (bytes, truth) = (store.data_bytes()?, fresh.data_bytes()?);
    let live = store.db.stats().keyspaces.first().map_or(0, |keyspace| keyspace.live_bytes);
    let story = format!(
        "{kind}, {} pairs of {keys} keys with values of {value_bytes} bytes after {rounds} rounds of overwrites{}{}",
        pairs.len(),
        if deletes_one_in > 0 { " and deletes" } else { "" },
        if holds { ", a snapshot held meanwhile" } else { "" },
    );
    if bytes as f64 > truth as f64 * TIMES_MAX + (MEMTABLE_BYTES * 2) as f64 {
        return Err(format!(
            "{story}: at rest the data files take {bytes} bytes, and {truth} freshly loaded and compacted"
        ));
    }
    if live.abs_diff(truth) > truth / 10 + PAGES_BYTES {
        return Err(format!("{story}: {live} bytes are said to be live, and {truth} are"));
    }
    Ok(())
}

/// Loads a store, deletes most of a part of it, and judges what a scan of that part steps over when nothing is left to
/// do. The part is so small that the whole takes little more than it may.
fn judge_deleted(seed: u64, kind: TreeKind, operations: &mut u64) -> Result<(), String> {
    let failed = |error: Error| format!("a store judged by its deletes: {error}");
    let mut random = Random::new(&[seed, 0xde1e]);
    // Nodes are small, so the part has several.
    let store = Judged::new(seed, kind, MEMTABLE_BYTES / 16).map_err(failed)?;
    let keys = 16_000u64;
    let key = |number: u64| number.to_be_bytes();
    let mut order: Vec<u64> = (0..keys).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    for number in order {
        store.keyspace.put(key(number), [7; 100]).map_err(failed)?;
    }
    store.keyspace.flush().map_err(failed)?;
    store.db.wait_idle().map_err(failed)?;
    let from = random.below(keys as usize * 9 / 10) as u64;
    let part = from..from + keys / 10;
    let mut deleted = 0;
    for number in part.clone().filter(|number| number % 10 > 0) {
        store.keyspace.delete(key(number)).map_err(failed)?;
        deleted += 1;
    }
    *operations += keys + deleted;
    store.keyspace.flush().map_err(failed)?;
    store.db.wait_idle().map_err(failed)?;
    let before = store.db.stats().dead_entries_read;
    let left = store.keyspace.range(key(part.start)..key(part.end)).count() as u64;
    let dead = store.db.stats().dead_entries_read - before;
    if left != keys / 10 - deleted {
        return Err(format!("{kind}: {left} pairs are left of {deleted} deleted"));
    }
    if dead > deleted * 2 / 3 {
        return Err(format!(
            "{kind}: at rest a scan steps over {dead} dead entries where {deleted} of {} pairs were deleted",
            keys / 10
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_take_what_is_promised() {
        for seed in 0..12 {
            for kind in TreeKind::ALL {
                let outcome = run(seed, Kinds::One(kind));
                assert_eq!(outcome.violations, [], "seed {seed}");
            }
        }
    }
}
