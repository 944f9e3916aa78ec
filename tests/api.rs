//! What the interface says, said by tests: sizes, bounds, options, handles, merges, checkpoints,
//! statistics and events.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Random, WatchedVfs, assert_prometheus, assert_sound, pairs, store_path};
use spinney::vfs::{Access, MemoryVfs, Vfs};
use spinney::{
    Builder, CheckLevel, Compression, Database, Durability, Error, Event, Keyspace,
    KeyspaceOptions, MIB, MergeOperator, Result, TreeKind,
};

of_every_kind! {
    keys_and_values_of_all_sizes_survive_everything large_values_are_not_copied_by_compaction
    options_are_kept_and_others_refused a_merge_operator_has_to_be_registered_each_time
    merges_fold_across_flushes_compactions_and_snapshots a_dropped_keyspace_does_not_come_back
    a_keyspace_can_be_dropped_while_it_is_written_and_flushed ranges_with_all_kinds_of_bounds
    an_iterator_is_met_from_both_ends_and_outlives_all_handles multi_get_keeps_order_duplicates_and_gaps
    batches_apply_in_order_and_refuse_strangers a_checkpoint_is_a_prefix_of_what_is_written_meanwhile
    statistics_are_plausible_and_prometheus_can_read_them
    listeners_hear_of_flushes_compactions_and_errors a_closed_store_refuses_everything_by_name
    stores_in_memory
}

fn builder(vfs: &MemoryVfs) -> Builder {
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(4 * MIB)
        .memtable_bytes(16 << 10)
        .deterministic(11)
}

fn memory_store(kind: TreeKind) -> (Database, Keyspace) {
    let db = builder(&MemoryVfs::new()).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    (db, keyspace)
}

fn conflict(result: Result<impl Sized>) -> String {
    match result {
        Err(Error::Conflict { what }) => what,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("accepted"),
    }
}

fn closed(result: Result<impl Sized>) {
    match result {
        Err(Error::Closed { what }) => assert!(!what.is_empty()),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("accepted"),
    }
}

fn invalid(result: Result<impl Sized>) -> String {
    match result {
        Err(Error::InvalidArgument { what }) => what,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("accepted"),
    }
}

/// A value that shows which it is and where a byte of it belongs.
fn value_of(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251) as u8 ^ (i % 251) as u8 ^ len as u8).collect()
}

fn keys_and_values_of_all_sizes_survive_everything(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let keys: Vec<Vec<u8>> =
        [0, 1, 255, 4096, 65_535, 65_536].iter().map(|&len| vec![b'k'; len]).collect();
    let lens = [0, 1, 4095, 4096, 4097, 70 << 10, 3 << 20, 40 << 20];
    for (compression, name) in [(Compression::None, "plain"), (Compression::Lz4, "packed")] {
        let db = builder(&vfs).open().unwrap();
        let options = KeyspaceOptions::new(kind).compression(compression);
        let keyspace = db.keyspace(name, options.clone()).unwrap();
        for key in &keys {
            keyspace.put(key, key).unwrap();
        }
        for len in lens {
            keyspace.put(format!("v{len}"), value_of(len)).unwrap();
        }
        let check = |keyspace: &Keyspace| {
            for key in &keys {
                assert!(keyspace.get(key).unwrap().as_deref() == Some(&**key), "{}", key.len());
            }
            for len in lens {
                let found = keyspace.get(format!("v{len}")).unwrap();
                assert!(found.as_deref() == Some(&*value_of(len)), "{name} {len}");
            }
            let all: Vec<usize> =
                keyspace.iter().map(|pair| pair.unwrap()).map(|(key, _)| key.len()).collect();
            assert_eq!(all.len(), keys.len() + lens.len());
            assert_eq!(all[..keys.len()], [0, 1, 255, 4096, 65_535, 65_536]);
        };
        check(&keyspace);
        assert!(invalid(keyspace.put(vec![0; 65_537], "")).contains("65537"));
        assert!(invalid(keyspace.delete(vec![0; 65_537])).contains("65536"));
        assert_eq!(keyspace.get(vec![b'k'; 65_537]).unwrap(), None);
        drop((keyspace, db));

        let db = builder(&vfs).open().unwrap();
        let keyspace = db.keyspace(name, options).unwrap();
        check(&keyspace);
        keyspace.flush().unwrap();
        check(&keyspace);
        keyspace.compact(..).unwrap();
        check(&keyspace);
        assert_sound(&db);
        drop((keyspace, db));
        let db = builder(&vfs).open().unwrap();
        check(&db.existing_keyspace(name).unwrap());
        // What follows is not to carry these about.
        db.drop_keyspace(name).unwrap();
    }
}

fn large_values_are_not_copied_by_compaction(kind: TreeKind) {
    let (db, keyspace) = memory_store(kind);
    let value = Random(1).bytes(20_000);
    for round in 0..5 {
        for number in 0..100u64 {
            keyspace.put(number.to_be_bytes(), &value[round..]).unwrap();
        }
        keyspace.flush().unwrap();
    }
    let before = db.stats().compaction.written_bytes;
    keyspace.compact(..).unwrap();
    let stats = db.stats();
    let written = stats.compaction.written_bytes;
    assert!(stats.compaction.count > 0);
    assert!(written < 200_000, "{before} before, {written} after, of {} bytes", 500 * 20_000);
    for number in 0..100u64 {
        assert!(*keyspace.get(number.to_be_bytes()).unwrap().unwrap() == value[4..]);
    }
    // What was overwritten is gone.
    db.wait_idle().unwrap();
    let disk = db.stats().keyspaces[0].disk_bytes;
    assert!(disk < 3 * 100 * 20_000, "{disk}");
    assert_sound(&db);
}

fn options_are_kept_and_others_refused(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let options = KeyspaceOptions::new(kind)
        .compression(Compression::Lz4)
        .merge_operator("u64_add")
        .blob_bytes_min(1000)
        .seek_compaction(false)
        .space_amplification_max(1.7);
    let db = builder(&vfs).open().unwrap();
    db.keyspace("items", options.clone()).unwrap();
    drop(db);
    let db = builder(&vfs).open().unwrap();
    assert_eq!(db.existing_keyspace("items").unwrap().options(), options);
    db.keyspace("items", options.clone()).unwrap();
    for other in [
        KeyspaceOptions::new(kind),
        options.clone().compression(Compression::None),
        options.clone().merge_operator("append"),
        options.clone().blob_bytes_min(1001),
        options.clone().seek_compaction(true),
        options.clone().space_amplification_max(1.8),
    ] {
        let what = conflict(db.keyspace("items", other));
        assert!(what.contains("\"items\"") && what.contains("existing_keyspace"), "{what}");
    }
    assert_eq!(db.keyspaces(), ["items"]);
    let Err(Error::NotFound { what }) = db.existing_keyspace("other") else { panic!() };
    assert!(what.contains("\"other\"") && what.contains("\"items\""), "{what}");
    for name in [String::new(), "x".repeat(256)] {
        invalid(db.keyspace(&name, KeyspaceOptions::new(kind)));
    }
    db.keyspace(&"x".repeat(255), KeyspaceOptions::new(kind)).unwrap();
    conflict(db.keyspace("unknown", KeyspaceOptions::new(kind).merge_operator("nobody's")));
    assert!(!db.keyspaces().contains(&"unknown".to_string()));
}

/// Keeps the longest operand.
struct Longest;

impl MergeOperator for Longest {
    fn name(&self) -> &str {
        "longest"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> std::result::Result<Vec<u8>, String> {
        if operands.contains(&&b"refuse"[..]) {
            return Err("it was asked to".to_string());
        }
        let all = existing.iter().copied().chain(operands.iter().copied());
        Ok(all.max_by_key(|bytes| bytes.len()).unwrap_or_default().to_vec())
    }
}

fn a_merge_operator_has_to_be_registered_each_time(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let options = KeyspaceOptions::new(kind).merge_operator("longest");
    let db = builder(&vfs).merge_operator(Arc::new(Longest)).open().unwrap();
    let keyspace = db.keyspace("items", options.clone()).unwrap();
    for operand in ["a", "abc", "ab"] {
        keyspace.merge("key", operand).unwrap();
        keyspace.flush().unwrap();
    }
    keyspace.merge("bad", "refuse").unwrap();
    let error = keyspace.get("bad").unwrap_err();
    assert!(matches!(&error, Error::Merge { operator, .. } if operator == "longest"), "{error:?}");
    assert!(error.to_string().contains("it was asked to"), "{error}");
    drop((keyspace, db));
    let db = builder(&vfs).open().unwrap();
    let what = conflict(db.keyspace("items", options));
    assert!(what.contains("\"longest\"") && what.contains("Builder::merge_operator"), "{what}");
    drop(db);
    let db = builder(&vfs).merge_operator(Arc::new(Longest)).open().unwrap();
    let keyspace = db.existing_keyspace("items").unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), b"abc");
    keyspace.compact(..).unwrap();
    assert_eq!(keyspace.get("key").unwrap().unwrap(), b"abc");
    assert!(matches!(keyspace.get("bad"), Err(Error::Merge { .. })), "kept as it is");
    keyspace.put("bad", "good").unwrap();
    assert_eq!(keyspace.get("bad").unwrap().unwrap(), b"good");
}

fn merges_fold_across_flushes_compactions_and_snapshots(kind: TreeKind) {
    let (db, _) = memory_store(kind);
    let counts =
        db.keyspace("counts", KeyspaceOptions::new(kind).merge_operator("u64_add")).unwrap();
    let lists = db.keyspace("lists", KeyspaceOptions::new(kind).merge_operator("append")).unwrap();
    let mut snapshots = Vec::new();
    let mut text = Vec::new();
    for round in 1..=40u64 {
        counts.merge("n", 1u64.to_le_bytes()).unwrap();
        let piece = format!("{round},");
        lists.merge("l", &piece).unwrap();
        text.extend_from_slice(piece.as_bytes());
        if round == 20 {
            lists.delete("l").unwrap();
            text.clear();
        }
        if round == 30 {
            lists.put("l", "start:").unwrap();
            text = b"start:".to_vec();
        }
        match round % 4 {
            0 => lists.flush().unwrap(),
            1 => counts.flush().unwrap(),
            2 => lists.compact(..).unwrap(),
            _ => counts.compact(..).unwrap(),
        }
        if round % 5 == 0 {
            snapshots.push((db.snapshot(), round, text.clone()));
        }
        for (snapshot, n, text) in &snapshots {
            let found = snapshot.get(&counts, "n").unwrap().unwrap();
            assert_eq!(found, &n.to_le_bytes());
            let found = snapshot.get(&lists, "l").unwrap();
            assert_eq!(found.as_deref().unwrap_or_default(), text);
            assert_eq!(found.is_none(), *n == 20, "{n}");
            assert_eq!(snapshot.iter(&lists).count(), usize::from(*n != 20));
        }
    }
    assert_eq!(lists.get("l").unwrap().unwrap().to_vec(), text);
    let what = invalid(memory_store(kind).1.merge("key", "operand"));
    assert!(what.contains("KeyspaceOptions::merge_operator"), "{what}");
}

fn a_dropped_keyspace_does_not_come_back(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let fill = |keyspace: &Keyspace, len: usize| {
        for number in 0..500u64 {
            keyspace.put(number.to_be_bytes(), value_of(len)).unwrap();
        }
    };
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    fill(&keyspace, 100);
    keyspace.put("large", value_of(100_000)).unwrap();
    let mut iter = keyspace.iter();
    iter.next().unwrap().unwrap();
    let snapshot = db.snapshot();
    db.drop_keyspace("items").unwrap();
    assert!(db.keyspaces().is_empty());
    assert!(matches!(db.drop_keyspace("items"), Err(Error::NotFound { .. })));
    closed(keyspace.put("a", "1"));
    closed(keyspace.get("a"));
    closed(keyspace.multi_get(["a"]));
    closed(keyspace.flush());
    closed(keyspace.compact(..));
    closed(snapshot.get(&keyspace, "a"));
    closed(keyspace.iter().next().unwrap());
    let mut batch = db.batch();
    batch.put(&keyspace, "a", "1");
    closed(batch.commit());
    assert_eq!(iter.inspect(|pair| assert!(pair.is_ok())).count(), 500, "an open iterator goes on");

    let again = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    assert_eq!(again.iter().count(), 0);
    assert_eq!(again.get(0u64.to_be_bytes()).unwrap(), None);
    again.put("new", "1").unwrap();
    closed(keyspace.get("new"));
    drop((snapshot, keyspace, again));
    db.close().unwrap();

    let db = builder(&vfs).open().unwrap();
    let again = db.existing_keyspace("items").unwrap();
    assert_eq!(pairs(again.iter()), [(b"new".to_vec(), b"1".to_vec())]);
    assert_sound(&db);
    // Nor does its space stay taken.
    fill(&again, 100);
    again.flush().unwrap();
    db.drop_keyspace("items").unwrap();
    drop(again);
    while db.step().unwrap() {}
    drop(db);
    let db = builder(&vfs).open().unwrap();
    let left: Vec<String> = common::files(&vfs, &store_path())
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.ends_with(".table") || name.ends_with(".blob"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(db.keyspaces().is_empty());
}

/// Dropping a keyspace while its memtables were on their way into its tree poisoned the store.
fn a_keyspace_can_be_dropped_while_it_is_written_and_flushed(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let db = Database::builder(dir.path())
        .memory_budget(2 * MIB)
        .memtable_bytes(8 << 10)
        .background_threads(3)
        .open()
        .unwrap();
    let kept = db.keyspace("kept", KeyspaceOptions::new(kind)).unwrap();
    for round in 0..40u64 {
        let keyspace = db.keyspace("short-lived", KeyspaceOptions::new(kind)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let keyspace = &keyspace;
                scope.spawn(move || {
                    for number in 0.. {
                        let key = (thread * 1_000_000 + number).to_be_bytes();
                        match keyspace.put(key, [7; 100]) {
                            Ok(()) => {}
                            Err(Error::Closed { .. }) => break,
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(round % 8));
            db.drop_keyspace("short-lived").unwrap();
        });
        kept.put(round.to_be_bytes(), [1; 500]).unwrap();
        kept.flush().unwrap();
    }
    db.wait_idle().unwrap();
    assert_eq!(kept.iter().count(), 40);
    assert_sound(&db);
}

fn ranges_with_all_kinds_of_bounds(kind: TreeKind) {
    let (_db, keyspace) = memory_store(kind);
    let keys: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        b"a".to_vec(),
        b"a\0".to_vec(),
        b"ab".to_vec(),
        b"b".to_vec(),
        vec![0xff],
        vec![0xff, 0xff],
        vec![0xff, 0xff, 0],
    ];
    let model: BTreeMap<Vec<u8>, ()> = keys.iter().map(|key| (key.clone(), ())).collect();
    for (number, key) in keys.iter().enumerate() {
        keyspace.put(key, "").unwrap();
        if number % 3 == 0 {
            keyspace.flush().unwrap();
        }
    }
    let mut probes = keys.clone();
    probes.extend([b"aa".to_vec(), b"c".to_vec(), vec![0xff; 4]]);
    let bounds: Vec<Bound<Vec<u8>>> = probes
        .iter()
        .flat_map(|key| [Bound::Included(key.clone()), Bound::Excluded(key.clone())])
        .chain([Bound::Unbounded])
        .collect();
    let value = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    for lower in &bounds {
        for upper in &bounds {
            let panics = match (lower, upper) {
                (Bound::Excluded(a), Bound::Excluded(b)) if a == b => true,
                _ => value(lower).zip(value(upper)).is_some_and(|(a, b)| a > b),
            };
            let range = (lower.clone(), upper.clone());
            let expected: Vec<Vec<u8>> = match panics {
                true => Vec::new(),
                false => model.range(range.clone()).map(|(key, ())| key.clone()).collect(),
            };
            let found: Vec<Vec<u8>> =
                pairs(keyspace.range(range.clone())).into_iter().map(|(key, _)| key).collect();
            assert_eq!(found, expected, "{lower:?} {upper:?}");
            let mut back: Vec<Vec<u8>> =
                keyspace.range(range).rev().map(|pair| pair.unwrap().0.to_vec()).collect();
            back.reverse();
            assert_eq!(back, expected, "{lower:?} {upper:?} from behind");
        }
    }
    for prefix in probes {
        let found: Vec<Vec<u8>> =
            pairs(keyspace.prefix(&prefix)).into_iter().map(|(key, _)| key).collect();
        let expected: Vec<Vec<u8>> =
            model.keys().filter(|key| key.starts_with(&prefix)).cloned().collect();
        assert_eq!(found, expected, "{prefix:?}");
    }
    assert_eq!(keyspace.range("a".."b").count(), 3);
    assert_eq!(keyspace.range("a"..="b").count(), 4);
    assert_eq!(keyspace.range(.."a").count(), 2);
    assert_eq!(keyspace.range(..).count(), keys.len());
    // Compacting an empty or inverted range does nothing.
    keyspace.compact("b".."a").unwrap();
    keyspace.compact("a".."a").unwrap();
}

fn an_iterator_is_met_from_both_ends_and_outlives_all_handles(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let db = builder(&vfs).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..2000u32 {
        keyspace.put(number.to_be_bytes(), number.to_le_bytes()).unwrap();
    }
    let mut random = Random(4);
    let mut iter = keyspace.iter();
    keyspace.compact(..).unwrap();
    drop((keyspace, db));
    let (mut front, mut back) = (0u32, 2000u32);
    while front < back {
        let (pair, expected) = if random.below(3) > 0 {
            front += 1;
            (iter.next(), front - 1)
        } else {
            back -= 1;
            (iter.next_back(), back)
        };
        let (key, value) = pair.unwrap().unwrap();
        assert_eq!(key, &expected.to_be_bytes());
        assert_eq!(value, &expected.to_le_bytes());
    }
    assert!(iter.next().is_none() && iter.next_back().is_none());
    assert!(iter.next_back().is_none() && iter.next().is_none());
    drop(iter);
    builder(&vfs).open().expect("the last handle closes the store");
}

fn multi_get_keeps_order_duplicates_and_gaps(kind: TreeKind) {
    let (db, keyspace) = memory_store(kind);
    for number in 0..3000u32 {
        keyspace.put(number.to_be_bytes(), number.to_le_bytes()).unwrap();
    }
    keyspace.put("large", value_of(30_000)).unwrap();
    assert_eq!(keyspace.multi_get(Vec::<&[u8]>::new()).unwrap(), []);
    let mut random = Random(9);
    for _ in 0..20 {
        let numbers: Vec<u32> = (0..100).map(|_| random.below(4000) as u32 / 3 * 3).collect();
        let found = keyspace.multi_get(numbers.iter().map(|n| n.to_be_bytes())).unwrap();
        let snapshot = db.snapshot();
        assert_eq!(
            found,
            snapshot.multi_get(&keyspace, numbers.iter().map(|n| n.to_be_bytes())).unwrap()
        );
        assert_eq!(found.len(), numbers.len());
        for (number, found) in numbers.iter().zip(found) {
            let expected = (*number < 3000).then(|| number.to_le_bytes());
            assert_eq!(found.as_deref(), expected.as_ref().map(|bytes| &bytes[..]));
        }
    }
    let found = keyspace.multi_get(["large", "none", "large"]).unwrap();
    assert!(found[0] == found[2] && found[1].is_none());
    assert!(found[0].as_deref() == Some(&*value_of(30_000)));
}

fn batches_apply_in_order_and_refuse_strangers(kind: TreeKind) {
    let (db, keyspace) = memory_store(kind);
    let lists = db.keyspace("lists", KeyspaceOptions::new(kind).merge_operator("append")).unwrap();
    let mut batch = db.batch();
    batch.put(&keyspace, "a", "1");
    batch.delete(&keyspace, "a");
    batch.put(&keyspace, "b", "1");
    batch.put(&keyspace, "b", "2");
    batch.put(&lists, "l", "x");
    batch.merge(&lists, "l", "y");
    batch.merge(&lists, "l", "z");
    batch.put(&keyspace, "big", value_of(100_000));
    batch.put(&keyspace, "big", "small");
    assert_eq!(batch.len(), 9);
    assert!(!batch.is_empty() && batch.bytes() > 100_000);
    batch.commit().unwrap();
    for _ in 0..2 {
        assert_eq!(keyspace.get("a").unwrap(), None);
        assert_eq!(keyspace.get("b").unwrap().unwrap(), b"2");
        assert_eq!(keyspace.get("big").unwrap().unwrap(), b"small");
        assert_eq!(lists.get("l").unwrap().unwrap(), b"xyz");
        keyspace.compact(..).unwrap();
        lists.compact(..).unwrap();
    }

    let (other, theirs) = memory_store(kind);
    let mut batch = db.batch();
    batch.put(&keyspace, "c", "1");
    batch.put(&theirs, "c", "1");
    assert!(invalid(batch.commit()).contains("another store"));
    assert!(invalid(other.snapshot().get(&keyspace, "a")).contains("another store"));
    invalid(other.snapshot().iter(&keyspace).next().unwrap());
    // One that is refused for one of its writes leaves nothing of the others.
    let mut batch = db.batch();
    batch.put(&keyspace, "c", "1");
    batch.put(&keyspace, vec![0; 70_000], "1");
    invalid(batch.commit());
    let mut batch = db.batch();
    batch.put(&keyspace, "c", "1");
    batch.merge(&keyspace, "c", "1");
    invalid(batch.commit());
    assert_eq!(keyspace.get("c").unwrap(), None);
    // Nor does one that is dropped.
    let mut batch = db.batch();
    batch.put(&keyspace, "c", "1");
    drop(batch);
    assert_eq!(keyspace.get("c").unwrap(), None);

    let commits = db.stats().commits;
    db.batch().commit().unwrap();
    db.batch().durability(Durability::Sync).commit().unwrap();
    assert_eq!(db.stats().commits, commits);
}

fn a_checkpoint_is_a_prefix_of_what_is_written_meanwhile(kind: TreeKind) {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        Database::builder(dir.path().join(name)).memory_budget(4 * MIB).memtable_bytes(64 << 10)
    };
    let db = make("store").open().unwrap();
    let keyspaces: Vec<Keyspace> = ["a", "b"]
        .iter()
        .map(|name| db.keyspace(name, KeyspaceOptions::new(kind)).unwrap())
        .collect();
    let written = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // While a copy is read, the next one need not grow.
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                if number > most.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                // Now a batch over both, now a large value.
                let mut batch = db.batch();
                batch.put(&keyspaces[0], number.to_be_bytes(), [number as u8; 60]);
                let len = if number % 500 == 7 { 50_000 } else { 30 };
                batch.put(&keyspaces[1], number.to_be_bytes(), vec![number as u8; len]);
                batch.commit().unwrap();
                number += 1;
                written.store(number, Ordering::SeqCst);
            }
        });
        for round in 0..5 {
            most.store(written.load(Ordering::SeqCst) + 6000, Ordering::Relaxed);
            while written.load(Ordering::SeqCst) < (round + 1) * 1500 {
                std::thread::yield_now();
            }
            let name = format!("checkpoint-{round}");
            let before = written.load(Ordering::SeqCst);
            db.checkpoint(dir.path().join(&name)).unwrap();
            let after = written.load(Ordering::SeqCst);
            let copy = make(&name).open().unwrap();
            let counts: Vec<u64> = ["a", "b"]
                .iter()
                .map(|name| {
                    let keyspace = copy.existing_keyspace(name).unwrap();
                    let mut count = 0u64;
                    for pair in keyspace.iter() {
                        let (key, value) = pair.unwrap();
                        assert_eq!(key, &count.to_be_bytes(), "{name}: a hole");
                        assert!(value.iter().all(|byte| *byte == count as u8));
                        count += 1;
                    }
                    count
                })
                .collect();
            assert_eq!(counts[0], counts[1], "a batch was cut");
            assert!((before..=after + 1).contains(&counts[0]), "{before} {counts:?} {after}");
            assert_sound(&copy);
            // It is a store of its own.
            copy.existing_keyspace("a").unwrap().put("own", "1").unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(keyspaces[0].get("own").unwrap(), None);
    conflict(db.checkpoint(dir.path().join("checkpoint-0")));
    conflict(db.checkpoint(dir.path().join("store")));
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    db.checkpoint(dir.path().join("empty")).unwrap();
    assert_sound(&db);
}

fn statistics_are_plausible_and_prometheus_can_read_them(kind: TreeKind) {
    let (db, keyspace) = memory_store(kind);
    db.keyspace("strange \"name\"\\\n", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..5000u64 {
        keyspace.put((number * 7919 % 5000).to_be_bytes(), [3; 100]).unwrap();
    }
    db.wait_idle().unwrap();
    for number in 0..6000u64 {
        let _ = keyspace.get(number.to_be_bytes()).unwrap();
    }
    keyspace.multi_get([0u64.to_be_bytes(), 9999u64.to_be_bytes()]).unwrap();
    assert_eq!(keyspace.iter().count(), 5000);
    let held = db.snapshot();
    let stats = db.stats();
    assert_eq!((stats.writes, stats.commits, stats.commits_sync), (5000, 5000, 0));
    assert_eq!((stats.gets, stats.gets_absent), (6000, 1000));
    assert_eq!((stats.multi_get_keys, stats.iterators, stats.snapshots), (2, 1, 1));
    assert_eq!(stats.user_bytes_written, 5000 * 108);
    assert_eq!(stats.user_bytes_read, (5000 + 1 + 5000) * 108);
    assert_eq!(stats.journal.count, 5000);
    assert!(stats.journal.written_bytes > 5000 * 108);
    assert!(stats.flush.count > 10 && stats.flush.written_bytes > 400_000, "{:?}", stats.flush);
    assert!(stats.write_amplification() > 0.8 && stats.write_amplification() < 30.0);
    assert!(stats.write_amplification_with_journal() > stats.write_amplification() + 1.0);
    assert!(stats.space_amplification() >= 0.9 && stats.space_amplification() < 3.0);
    assert!(stats.get_latency.p50 <= stats.get_latency.p99);
    assert!(stats.get_latency.p99 <= stats.get_latency.max);
    let items = stats.keyspaces.iter().find(|k| k.name == "items").unwrap();
    assert_eq!(items.kind, kind.name());
    assert!(items.tables > 0 && items.table_entries > 4000 && items.disk_bytes > 400_000);
    assert!(stats.memory_memtables <= stats.memory_budget);
    drop(held);
    assert_eq!(db.stats().snapshots, 0);
    assert_prometheus(&stats.to_prometheus());
}

fn listeners_hear_of_flushes_compactions_and_errors(kind: TreeKind) {
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let heard = Arc::clone(&events);
    let db = Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memtable_bytes(16 << 10)
        .deterministic(2)
        .events(Arc::new(move |event: &Event| heard.lock().unwrap().push(event.clone())))
        .open()
        .unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    // Twice: a kind may have nothing to compact in tables that share no key.
    for number in (0..3000u64).chain(0..3000) {
        keyspace.put(number.to_be_bytes(), [1; 100]).unwrap();
    }
    keyspace.compact(..).unwrap();
    let heard = std::mem::take(&mut *events.lock().unwrap());
    let flushed: u64 = heard
        .iter()
        .map(|event| match event {
            Event::Flush { keyspace, data_bytes, written_bytes, .. } => {
                assert_eq!(keyspace, "items");
                assert!(written_bytes >= data_bytes);
                *data_bytes
            }
            _ => 0,
        })
        .sum();
    assert!(flushed >= 3000 * 108, "{flushed}");
    let compactions =
        heard.iter().filter(|event| matches!(event, Event::Compaction { .. })).count() as u64;
    assert!(compactions > 0);
    assert_eq!(compactions, db.stats().compaction.count);
    assert!(!heard.iter().any(|event| matches!(event, Event::Error { .. })));

    vfs.fail(common::Calls::Syncs, 1, 1, std::io::ErrorKind::Other);
    db.sync().unwrap_err();
    let heard = events.lock().unwrap();
    let is_io = |event: &&Event| matches!(event, Event::Error { error: Error::Io { .. } });
    assert_eq!(heard.iter().filter(is_io).count(), 1, "{heard:?}");
}

fn a_closed_store_refuses_everything_by_name(kind: TreeKind) {
    let (db, keyspace) = memory_store(kind);
    keyspace.put("a", "1").unwrap();
    let snapshot = db.snapshot();
    let mut batch = db.batch();
    batch.put(&keyspace, "b", "1");
    let mut iter = keyspace.iter();
    let other = db.clone();
    db.close().unwrap();
    closed(keyspace.get("a"));
    closed(keyspace.put("a", "2"));
    closed(keyspace.delete("a"));
    closed(keyspace.multi_get(["a"]));
    closed(keyspace.contains_key("a"));
    closed(keyspace.flush());
    closed(keyspace.describe());
    closed(keyspace.iter().next().unwrap());
    closed(snapshot.get(&keyspace, "a"));
    closed(batch.commit());
    closed(other.keyspace("items", KeyspaceOptions::new(kind)));
    closed(other.existing_keyspace("items"));
    closed(other.drop_keyspace("items"));
    closed(other.sync());
    closed(other.wait_idle());
    closed(other.step());
    closed(other.check(CheckLevel::Structure));
    closed(other.checkpoint("/elsewhere"));
    other.close().expect("closing twice is closing");
    // What it had read before.
    if let Some(Ok((key, _))) = iter.next() {
        assert_eq!(key, b"a");
    }
}

/// As the documentation has it: gone when it is closed, a store like any other before.
fn stores_in_memory(kind: TreeKind) {
    let db = Database::builder_in_memory().open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::new(kind)).unwrap();
    for number in 0..10_000u32 {
        keyspace.put(number.to_be_bytes(), [5; 100]).unwrap();
    }
    keyspace.flush().unwrap();
    db.sync().unwrap();
    assert_eq!(keyspace.iter().count(), 10_000);
    db.checkpoint("/copy").unwrap();
    assert_sound(&db);
    drop(keyspace);
    db.close().unwrap();
    assert!(Database::builder_in_memory().open().unwrap().keyspaces().is_empty());
    // Two at once do not meet.
    let (a, b) = (Database::builder_in_memory().open(), Database::builder_in_memory().open());
    a.unwrap().keyspace("x", KeyspaceOptions::new(kind)).unwrap();
    assert!(b.unwrap().keyspaces().is_empty());
    // One that is given its file system can be opened again, as long as that lives.
    let vfs = MemoryVfs::new();
    let make = || Database::builder("/kept").vfs(Arc::new(vfs.clone()));
    make()
        .open()
        .unwrap()
        .keyspace("x", KeyspaceOptions::new(kind))
        .unwrap()
        .put("a", "1")
        .unwrap();
    let db = make().open().unwrap();
    assert_eq!(db.existing_keyspace("x").unwrap().get("a").unwrap().unwrap(), b"1");
    assert!(vfs.exists(Path::new("/kept/SPINNEY")).unwrap());
    assert!(vfs.open(Path::new("/kept/SPINNEY"), Access::Buffered, false).is_ok());
}
