//! Limits at their edges: what a write lets in goes through every later step, and what cannot be stored is
//! refused by name.
//!
//! `SPINNEY_LIMITS=long cargo test --release --test limits` does it at full size too.

#[macro_use]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Random, store_path};
use spinney::vfs::{MemoryVfs, PosixVfs, Vfs};
use spinney::{
    Builder, CheckLevel, Database, Error, GIB, Keyspace, KeyspaceOptions, MIB, MergeOperator,
    TreeKind,
};

of_every_kind! {
    a_large_operand_and_a_large_value_go_through_every_step
    many_large_operands_cost_what_they_are_worth
    a_fold_that_fails_stops_nothing_but_reads_of_its_key
    values_at_every_boundary_go_through_every_step
    the_largest_key_and_name_go_through_every_step
}

fn is_long() -> bool {
    std::env::var("SPINNEY_LIMITS").is_ok_and(|value| value == "long")
}

/// A store that is opened again and again.
struct Store {
    vfs: Arc<dyn Vfs>,
    budget: u64,
    adjust: fn(Builder) -> Builder,
    db: Option<Database>,
}

impl Store {
    fn new(vfs: Arc<dyn Vfs>, budget: u64) -> Store {
        Store { vfs, budget, adjust: |builder| builder, db: None }
    }

    fn in_memory(budget: u64) -> Store {
        Store::new(Arc::new(MemoryVfs::new()), budget)
    }

    fn builder(&self, dir: &Path) -> Builder {
        let builder = Database::builder(dir).vfs(Arc::clone(&self.vfs)).memory_budget(self.budget);
        (self.adjust)(builder)
    }

    fn open(&mut self, dir: &Path) -> &Database {
        if let Some(db) = self.db.take() {
            db.close().unwrap();
        }
        self.db.insert(self.builder(dir).open().unwrap())
    }

    /// After `write`, everything that can be done to a store, with `check` behind each step.
    fn through_every_step(
        &mut self,
        dir: &Path,
        write: impl FnOnce(&Database),
        check: impl Fn(&Database),
    ) {
        let db = self.open(dir).clone();
        write(&db);
        db.sync().unwrap();
        check(&db);
        drop(db);
        // Replayed.
        let db = self.open(dir).clone();
        check(&db);
        let keyspaces = |db: &Database| -> Vec<Keyspace> {
            db.keyspaces().iter().map(|name| db.existing_keyspace(name).unwrap()).collect()
        };
        keyspaces(&db).iter().for_each(|keyspace| keyspace.flush().unwrap());
        check(&db);
        db.wait_idle().unwrap();
        keyspaces(&db).iter().for_each(|keyspace| keyspace.compact(..).unwrap());
        db.wait_idle().unwrap();
        check(&db);
        let copy_dir = dir.with_extension("copy");
        db.checkpoint(&copy_dir).unwrap();
        let copy = self.builder(&copy_dir).open().unwrap();
        check(&copy);
        copy.close().unwrap();
        drop(db);
        let db = self.open(dir).clone();
        check(&db);
        let report = db.check(CheckLevel::Full).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

/// Bytes by number.
fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut random = Random(number);
    let piece = random.bytes(len.min(4099));
    let mut bytes = piece.repeat(len.div_ceil(4099));
    bytes.truncate(len);
    bytes
}

/// One merge of 300 MiB was taken, synced and read; then flush, compaction and checkpoint failed for good with
/// "a page holds less than 256 MiB", and once closed the store could not be opened any more. So it was with a
/// put of a value below `blob_bytes_min`.
fn a_large_operand_and_a_large_value_go_through_every_step(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::new(Arc::new(PosixVfs::new()), 64 * MIB);
    let value = bytes(1, 300 << 20);
    let options = || KeyspaceOptions::new(kind).merge_operator("append").blob_bytes_min(u32::MAX);
    let is_there = |db: &Database| {
        let keyspace = db.existing_keyspace("items").unwrap();
        assert!(keyspace.get("put").unwrap().is_some_and(|found| *found == *value));
    };
    // The first time with the default options.
    store.through_every_step(
        &dir.path().join("merged"),
        |db| {
            let options = KeyspaceOptions::new(kind).merge_operator("append");
            db.keyspace("items", options).unwrap().merge("merged", &value).unwrap();
        },
        |db| {
            let found = db.existing_keyspace("items").unwrap().get("merged").unwrap();
            assert!(found.is_some_and(|found| *found == *value));
        },
    );
    if kind == TreeKind::Stb || is_long() {
        store.through_every_step(
            &dir.path().join("put"),
            |db| {
                let keyspace = db.keyspace("items", options()).unwrap();
                keyspace.put("put", &value).unwrap();
                keyspace.put("small", "value").unwrap();
            },
            is_there,
        );
    }
}

/// 5,120 appends of 64 KiB to one key stopped the compaction of its keyspace for good, and slowed writers of
/// other keys a thousandfold: each compaction wrote the value anew. (A sixteenth of it here.)
fn many_large_operands_cost_what_they_are_worth(kind: TreeKind) {
    let (count, len, budget) = match is_long() {
        true => (5120, 64 << 10, 256 * MIB),
        false => (1280, 16 << 10, 16 * MIB),
    };
    let dir = tempfile::tempdir().unwrap();
    let mut store = match is_long() {
        true => Store::new(Arc::new(PosixVfs::new()), budget),
        false => Store::in_memory(budget),
    };
    let path = if is_long() { dir.path().join("store") } else { store_path() };
    let operand = |i: u64| bytes(i, len);
    let longest = std::cell::Cell::new(Duration::ZERO);
    let written = std::cell::Cell::new(0.0);
    store.through_every_step(
        &path,
        |db| {
            let options = KeyspaceOptions::new(kind).merge_operator("append");
            let keyspace = db.keyspace("items", options).unwrap();
            for i in 0..count {
                keyspace.merge("key", operand(i)).unwrap();
                let started = Instant::now();
                keyspace.put(format!("other/{i:05}"), "value").unwrap();
                longest.set(longest.get().max(started.elapsed()));
                if i % 64 == 63 {
                    // As a store of gigabytes would have done.
                    keyspace.flush().unwrap();
                }
            }
            keyspace.compact(..).unwrap();
            db.wait_idle().unwrap();
            let stats = db.stats();
            let bytes = stats.flush.written_bytes + stats.compaction.written_bytes;
            written.set(bytes as f64 / (count * len as u64) as f64);
        },
        |db| {
            let keyspace = db.existing_keyspace("items").unwrap();
            let found = keyspace.get("key").unwrap().unwrap();
            assert_eq!(found.len(), count as usize * len);
            let whole = found.chunks(len).zip(0..).all(|(found, i)| *found == *operand(i));
            assert!(whole);
            assert_eq!(keyspace.prefix("other/").count(), count as usize);
            assert!(keyspace.iter().all(|pair| pair.is_ok()));
        },
    );
    println!("{kind}: {:.2} bytes written per byte merged in", written.get());
    assert!(written.get() < 8.0, "{:.2} bytes written per byte merged in", written.get());
    // The machine may be busy.
    assert!(longest.get() < Duration::from_secs(5), "{:?}", longest.get());
}

/// What nobody can store: more than a value may have.
struct Overflow;

impl MergeOperator for Overflow {
    fn name(&self) -> &str {
        "overflow"
    }

    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        match key {
            b"huge" => Ok(vec![0; 4 * GIB as usize]),
            b"refused" => Err("it does not want to".to_string()),
            _ => Ok([existing.unwrap_or_default(), &operands.concat()].concat()),
        }
    }

    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        match key {
            b"huge" => Some(vec![0; 4 * GIB as usize]),
            b"refused" => None,
            _ => Some([older, newer].concat()),
        }
    }
}

/// A fold that fails, or whose result is longer than a value may be, is the affair of whoever reads the key.
fn a_fold_that_fails_stops_nothing_but_reads_of_its_key(kind: TreeKind) {
    let mut store = Store::in_memory(MIB);
    store.adjust = |builder| builder.merge_operator(Arc::new(Overflow));
    store.through_every_step(
        &store_path(),
        |db| {
            let options = KeyspaceOptions::new(kind).merge_operator("overflow");
            let keyspace = db.keyspace("items", options).unwrap();
            for round in 0..40 {
                for key in ["fine", "huge", "refused"] {
                    keyspace.merge(key, bytes(round, 100 + (round as usize % 7) * 3000)).unwrap();
                }
                if round % 5 == 0 {
                    keyspace.flush().unwrap();
                }
            }
        },
        |db| {
            let keyspace = db.existing_keyspace("items").unwrap();
            let expected: Vec<u8> =
                (0..40).flat_map(|round| bytes(round, 100 + (round as usize % 7) * 3000)).collect();
            assert!(keyspace.get("fine").unwrap().is_some_and(|found| *found == *expected));
            for (key, expected) in [("huge", "4294967296 bytes"), ("refused", "does not want")] {
                let error = keyspace.get(key).unwrap_err();
                let named = matches!(
                    &error,
                    Error::Merge { keyspace, key: of, operator, what }
                        if keyspace == "items" && of == key && operator == "overflow"
                            && what.contains(expected)
                );
                assert!(named, "{error}");
            }
        },
    );
    // A put ends it.
    let db = store.open(&store_path());
    let keyspace = db.existing_keyspace("items").unwrap();
    keyspace.put("huge", "small").unwrap();
    assert_eq!(keyspace.get("huge").unwrap().as_deref(), Some(&b"small"[..]));
}

/// Lengths on either side of what formats and thresholds tell apart, up to `most`.
fn lengths(most: usize) -> Vec<usize> {
    let edges = [
        0,
        64,
        0x80,
        0x100,
        1000,
        4064,
        4072,
        4096,
        8 << 10,
        16 << 10,
        0x4000 - 24,
        32 << 10,
        0x10000,
        0x10000 - 24,
        128 << 10,
        256 << 10,
        1 << 20,
        (2 << 20) + 4072,
    ];
    let edges = edges.into_iter().filter(|edge| *edge <= most);
    edges.flat_map(|edge: usize| [edge.saturating_sub(1), edge, edge + 1]).collect()
}

fn values_at_every_boundary_go_through_every_step(kind: TreeKind) {
    // Names, `blob_bytes_min`, the longest value.
    let keyspaces = [
        ("small", 64, 5000),
        ("default", 4096, 0x10000),
        ("odd", 0x10000 - 24, 128 << 10),
        ("none", u32::MAX, (2 << 20) + 4072),
    ];
    let budgets = if is_long() { vec![MIB, 64 * MIB, 8 * GIB] } else { vec![MIB] };
    for budget in budgets {
        let mut store = Store::in_memory(budget);
        store.through_every_step(
            &store_path(),
            |db| {
                for (name, threshold, most) in keyspaces {
                    let options = KeyspaceOptions::new(kind)
                        .merge_operator("append")
                        .blob_bytes_min(threshold);
                    let keyspace = db.keyspace(name, options).unwrap();
                    for (i, len) in lengths(most).into_iter().enumerate() {
                        let value = bytes(i as u64, len);
                        keyspace.put(format!("put/{i}"), &value).unwrap();
                        keyspace.merge(format!("merge/{i}"), &value).unwrap();
                        keyspace.put(format!("both/{i}"), &value).unwrap();
                        keyspace.merge(format!("both/{i}"), &value).unwrap();
                    }
                }
            },
            |db| {
                for (name, _, most) in keyspaces {
                    let keyspace = db.existing_keyspace(name).unwrap();
                    let lengths = lengths(most);
                    for (i, &len) in lengths.iter().enumerate() {
                        let value = bytes(i as u64, len);
                        for (key, times) in [("put", 1), ("merge", 1), ("both", 2)] {
                            let found = keyspace.get(format!("{key}/{i}")).unwrap().unwrap();
                            let is_whole = found.len() == times * len
                                && (len == 0 || found.chunks(len).all(|part| *part == *value));
                            assert!(is_whole, "{name}, {key} of {len} bytes: {}", found.len());
                        }
                    }
                    assert_eq!(
                        keyspace.iter().filter(|pair| pair.is_ok()).count(),
                        3 * lengths.len()
                    );
                }
            },
        );
    }
}

fn the_largest_key_and_name_go_through_every_step(kind: TreeKind) {
    let name = "n".repeat(255);
    let keys = [vec![], vec![0xff; 64 << 10], bytes(1, 64 << 10), bytes(2, (64 << 10) - 1)];
    let mut store = Store::in_memory(MIB);
    store.through_every_step(
        &store_path(),
        |db| {
            let options = KeyspaceOptions::new(kind).merge_operator("append");
            let keyspace = db.keyspace(&name, options.clone()).unwrap();
            for key in &keys {
                keyspace.put(key, "a").unwrap();
                keyspace.flush().unwrap();
                keyspace.merge(key, "b").unwrap();
            }
            let error = keyspace.put(vec![0; (64 << 10) + 1], "").unwrap_err();
            assert!(error.to_string().contains("a key has at most 65536 bytes"), "{error}");
            let error = db.keyspace(&"n".repeat(256), options).unwrap_err();
            assert!(error.to_string().contains("1 to 255 bytes"), "{error}");
        },
        |db| {
            let keyspace = db.existing_keyspace(&name).unwrap();
            for key in &keys {
                assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&b"ab"[..]));
            }
            assert_eq!(keyspace.iter().count(), keys.len());
            assert_eq!(keyspace.iter().rev().count(), keys.len());
        },
    );
}

#[test]
fn many_keyspaces_go_through_every_step() {
    let count = if is_long() { 2000 } else { 500 };
    let mut store = Store::in_memory(64 * MIB);
    store.through_every_step(
        &store_path(),
        |db| {
            for i in 0..count {
                let kind = TreeKind::ALL[i % TreeKind::ALL.len()];
                let keyspace = db.keyspace(&format!("k{i}"), KeyspaceOptions::new(kind)).unwrap();
                keyspace.put("key", i.to_be_bytes()).unwrap();
            }
            // One batch over all of them.
            let mut batch = db.batch();
            for name in db.keyspaces() {
                batch.put(&db.existing_keyspace(&name).unwrap(), "batch", &name);
            }
            batch.commit().unwrap();
        },
        |db| {
            assert_eq!(db.keyspaces().len(), count);
            for i in 0..count {
                let name = format!("k{i}");
                let keyspace = db.existing_keyspace(&name).unwrap();
                assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&i.to_be_bytes()[..]));
                assert_eq!(keyspace.get("batch").unwrap().as_deref(), Some(name.as_bytes()));
            }
        },
    );
}

/// A batch is one record of the journal and goes into a memtable whole. One of gigabytes of small values got as far
/// as the memtable, which panicked: "filled far beyond a GiB".
#[test]
fn a_batch_that_is_too_large_is_refused_by_name() {
    let db = Database::builder_in_memory().memory_budget(MIB).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::stb().blob_bytes_min(u32::MAX)).unwrap();
    let value = vec![7; (15 << 10) + 900];
    let mut batch = db.batch();
    for i in 0..(512 << 20) / value.len() as u32 {
        batch.put(&keyspace, i.to_be_bytes(), &value);
    }
    let error = batch.commit().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("at most 536870912 bytes"), "{error}");
    assert_eq!(keyspace.iter().count(), 0);
    keyspace.put("key", "value").unwrap();
}

#[test]
fn the_largest_batches_go_through_every_step() {
    let dir = tempfile::tempdir().unwrap();
    // Bytes; operations.
    let (large, many) = if is_long() { (500 << 20, 14_000_000) } else { (24 << 20, 200_000) };
    let mut store = Store::new(Arc::new(PosixVfs::new()), 16 * MIB);
    let value = bytes(1, 4000);
    let rounds = large / value.len() as u64;
    store.through_every_step(
        &dir.path().join("store"),
        |db| {
            let keyspace = db.keyspace("large", KeyspaceOptions::stb()).unwrap();
            let mut batch = db.batch();
            (0..rounds).for_each(|i| batch.put(&keyspace, i.to_be_bytes(), &value));
            batch.commit().unwrap();
            let keyspace = db.keyspace("many", KeyspaceOptions::flsm()).unwrap();
            let mut batch = db.batch();
            (0..many as u32).for_each(|i| batch.put(&keyspace, i.to_be_bytes(), ""));
            batch.commit().unwrap();
        },
        |db| {
            let large = db.existing_keyspace("large").unwrap();
            assert_eq!(large.iter().filter(|pair| pair.is_ok()).count() as u64, rounds);
            let last = large.get((rounds - 1).to_be_bytes()).unwrap();
            assert!(last.is_some_and(|last| *last == *value));
            let all = db.existing_keyspace("many").unwrap();
            assert_eq!(all.iter().filter(|pair| pair.is_ok()).count(), many);
        },
    );
}

/// A keyspace whose merge operator was not registered kept the whole store from being opened.
#[test]
fn without_its_operator_a_keyspace_does_what_it_can() {
    let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
    let builder = || Database::builder(store_path()).vfs(Arc::clone(&vfs)).memory_budget(MIB);
    let options = KeyspaceOptions::stb().merge_operator("overflow");
    let db = builder().merge_operator(Arc::new(Overflow)).open().unwrap();
    let keyspace = db.keyspace("items", options.clone()).unwrap();
    keyspace.put("put", "value").unwrap();
    keyspace.merge("merged", "op").unwrap();
    keyspace.flush().unwrap();
    keyspace.merge("merged", "erand").unwrap();
    db.keyspace("others", KeyspaceOptions::stb()).unwrap().put("key", "value").unwrap();
    drop(keyspace);
    db.close().unwrap();

    let db = builder().open().unwrap();
    let others = db.existing_keyspace("others").unwrap();
    assert!(others.get("key").unwrap().is_some());
    drop(others);
    let error = db.keyspace("items", options).unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }) && error.to_string().contains("overflow"));
    let keyspace = db.existing_keyspace("items").unwrap();
    assert!(keyspace.get("put").unwrap().is_some());
    keyspace.put("new", "value").unwrap();
    keyspace.delete("put").unwrap();
    let error = keyspace.merge("merged", "more").unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }) && error.to_string().contains("overflow"));
    for round in 0..2 {
        let error = keyspace.get("merged").unwrap_err();
        let named = matches!(&error, Error::Merge { operator, .. } if operator == "overflow");
        assert!(named, "round {round}: {error}");
        keyspace.compact(..).unwrap();
    }
    drop(keyspace);
    db.close().unwrap();

    let db = builder().merge_operator(Arc::new(Overflow)).open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    assert_eq!(keyspace.get("merged").unwrap().as_deref(), Some(&b"operand"[..]));
    assert_eq!(keyspace.iter().count(), 2);
}
