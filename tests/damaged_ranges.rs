//! Iterators on damaged stores: they tell which keys cannot be read, and show all others.

#[macro_use]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{Random, files, flip, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{DamagedRange, Database, Iter, Keyspace, KeyspaceOptions, MIB, TreeKind};

of_every_kind! {
    a_damaged_page_costs_its_range_and_no_more
    a_damaged_page_of_split_values_costs_its_range_and_no_more
    a_damaged_value_costs_its_key
    all_pages_may_be_damaged
    a_damaged_range_is_met_once_from_both_ends
    a_seek_leaves_damage_behind
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(vfs: &MemoryVfs) -> Database {
    Database::builder(store_path())
        .vfs(Arc::new(vfs.clone()))
        .memory_budget(2 * MIB)
        .memtable_bytes(64 << 10)
        .deterministic(5)
        .open()
        .unwrap()
}

/// A keyspace of many tables that lie over one another.
fn made(vfs: &MemoryVfs, options: &KeyspaceOptions, keys: u64, value_bytes: usize) -> Pairs {
    let db = open(vfs);
    let keyspace = db.keyspace("items", options.clone()).unwrap();
    let mut random = Random(3);
    let mut pairs = Pairs::new();
    for write in 0..keys * 2 {
        let number = if write < keys { write } else { random.below(keys) };
        let key = format!("key {:08}", number * 7919 % keys).into_bytes();
        if random.below(9) == 0 {
            keyspace.delete(&key).unwrap();
            pairs.remove(&key);
        } else {
            let value = random.bytes(value_bytes);
            keyspace.put(&key, &value).unwrap();
            pairs.insert(key, value);
        }
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    pairs
}

#[derive(Default)]
struct Walk {
    shown: Pairs,
    holes: Vec<DamagedRange>,
}

/// Walks to the end; `is_back` says of each step from which end it is.
fn walk(mut iter: Iter, mut is_back: impl FnMut(u64) -> bool) -> Walk {
    let mut walk = Walk::default();
    for step in 0.. {
        let next = if is_back(step) { iter.next_back() } else { iter.next() };
        match next {
            None => break,
            Some(Ok((key, value))) => {
                let before = walk.shown.insert(key.to_vec(), value.to_vec());
                assert!(before.is_none(), "a key is shown twice");
            }
            Some(Err(error)) => {
                assert!(error.is_corruption(), "{error}");
                let range = iter.damaged_range().expect("a range, and to go on").clone();
                walk.holes.push(range);
            }
        }
    }
    assert!(iter.next().is_none() && iter.next_back().is_none());
    walk
}

fn walks(keyspace: &Keyspace) -> [Walk; 3] {
    let mut random = Random(8);
    [
        walk(keyspace.iter(), |_| false),
        walk(keyspace.iter(), |_| true),
        walk(keyspace.iter(), move |_| random.below(2) == 0),
    ]
}

/// What is shown is right, and what is not lies in a hole. Returns how much is not shown.
fn judge(walk: &Walk, pairs: &Pairs) -> usize {
    let in_hole = |key: &[u8]| walk.holes.iter().filter(|hole| hole.contains(key)).count();
    for (key, value) in &walk.shown {
        assert_eq!(Some(value), pairs.get(key));
        assert_eq!(in_hole(key), 0, "{} is shown and said to be lost", key.escape_ascii());
    }
    let lost: Vec<_> = pairs.keys().filter(|key| !walk.shown.contains_key(*key)).collect();
    for key in &lost {
        assert_eq!(in_hole(key), 1, "{} is missing", key.escape_ascii());
    }
    lost.len()
}

fn tables(vfs: &MemoryVfs) -> Vec<(String, u64)> {
    let mut tables = files(vfs, &store_path());
    tables.retain(|(name, _)| name.ends_with(".table"));
    tables
}

fn flip_page(vfs: &MemoryVfs, name: &str, unit: u64) {
    flip(vfs, &Path::new(&store_path()).join(name), unit * 4096 + 777);
}

fn a_damaged_page_costs_its_range_and_no_more(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let pairs = made(&vfs, &KeyspaceOptions::new(kind), 20_000, 60);
    let mut random = Random(9);
    for round in 0..12 {
        let vfs = common::copy(&vfs, &store_path());
        let tables = tables(&vfs);
        let (name, len) = &tables[random.below(tables.len() as u64) as usize];
        let unit = random.below(len / 4096 - 3);
        flip_page(&vfs, name, unit);
        let db = open(&vfs);
        let Ok(keyspace) = db.existing_keyspace("items") else { continue };
        for (order, walk) in walks(&keyspace).iter().enumerate() {
            let lost = judge(walk, &pairs);
            let story =
                format!("round {round}, unit {unit} of {name}, order {order}: {:?}", walk.holes);
            // A leaf of sixty pairs may lie over a hundred times as many, and an index page over all of a table.
            assert!(lost < pairs.len() / 2, "{lost} lost: {story}");
            assert!(walk.holes.len() <= 2, "{story}");
        }
    }
}

/// With values of 6,000 bytes a leaf may have no more than the rest of a value. A walk from the end met such leaves, and
/// ended at a damaged one behind them without a range.
fn a_damaged_page_of_split_values_costs_its_range_and_no_more(kind: TreeKind) {
    for value_bytes in [1000, 6000] {
        let vfs = MemoryVfs::new();
        let options = KeyspaceOptions::new(kind).blob_bytes_min(1 << 20);
        let pairs = made(&vfs, &options, 150, value_bytes);
        for (name, len) in tables(&vfs) {
            for unit in 0..(len / 4096 - 3).min(24) {
                flip_page(&vfs, &name, unit);
                let db = open(&vfs);
                if let Ok(keyspace) = db.existing_keyspace("items") {
                    for (order, walk) in walks(&keyspace).iter().enumerate() {
                        let lost = judge(walk, &pairs);
                        let story = format!("unit {unit} of {name}, order {order}");
                        // A leaf of one table may lie over several of another.
                        assert!(lost < 60 && walk.holes.len() <= 2, "{lost} lost: {story}");
                    }
                }
                drop(db);
                flip_page(&vfs, &name, unit);
            }
        }
    }
}

fn a_damaged_value_costs_its_key(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let options = KeyspaceOptions::new(kind).blob_bytes_min(2000);
    let pairs = made(&vfs, &options, 300, 5000);
    let blobs = files(&vfs, &store_path());
    for (name, _) in blobs.iter().filter(|(name, _)| name.ends_with(".blob")) {
        flip_page(&vfs, name, 3);
    }
    let db = open(&vfs);
    let keyspace = db.existing_keyspace("items").unwrap();
    for walk in walks(&keyspace) {
        let lost = judge(&walk, &pairs);
        assert!(lost > 0 && lost == walk.holes.len(), "{lost}: {:?}", walk.holes);
        let is_one = |hole: &DamagedRange| hole.to_string().starts_with("key \"key ");
        assert!(walk.holes.iter().all(is_one), "{:?}", walk.holes);
    }
}

fn all_pages_may_be_damaged(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let pairs = made(&vfs, &KeyspaceOptions::new(kind), 10_000, 60);
    // The last pages, which are needed for opening, are left.
    for (name, len) in tables(&vfs) {
        (0..(len / 4096).saturating_sub(6))
            .step_by(3)
            .for_each(|unit| flip_page(&vfs, &name, unit));
    }
    let db = open(&vfs);
    let keyspace = db.existing_keyspace("items").unwrap();
    for walk in walks(&keyspace) {
        assert!(judge(&walk, &pairs) > 1000);
    }
    let range = || keyspace.range(&b"key 00002"[..]..&b"key 00004"[..]);
    let inside = |key: &[u8]| (&b"key 00002"[..]..&b"key 00004"[..]).contains(&key);
    let pairs: Pairs = pairs.into_iter().filter(|(key, _)| inside(key)).collect();
    for is_back in [false, true] {
        let walk = walk(range(), |_| is_back);
        judge(&walk, &pairs);
        for hole in &walk.holes {
            let upper = hole.upper.as_deref().expect("a bound");
            assert!(
                hole.lower.as_slice() >= &b"key 00002"[..] && upper <= &b"key 00004"[..],
                "{hole}"
            );
        }
    }
}

fn a_damaged_range_is_met_once_from_both_ends(kind: TreeKind) {
    let vfs = MemoryVfs::new();
    let pairs = made(&vfs, &KeyspaceOptions::new(kind), 10_000, 60);
    let (name, len) = tables(&vfs).into_iter().max_by_key(|(_, len)| *len).unwrap();
    flip_page(&vfs, &name, len / 4096 / 3);
    let db = open(&vfs);
    let keyspace = db.existing_keyspace("items").unwrap();
    let holes = walk(keyspace.iter(), |_| false).holes;
    let lower = holes.first().expect("a hole").lower.clone();
    // Up to the hole from the front, past it from the back, and on from the front.
    let before = pairs.range(..lower).count() as u64;
    for stop in [before.saturating_sub(1), before] {
        let walk = walk(keyspace.iter(), |step| step >= stop && step % 50 != 0);
        judge(&walk, &pairs);
        assert_eq!(walk.holes.len(), holes.len());
    }
}

/// After a seek back, the back of an iterator that met an unreadable value reported its end, and the pairs below were lost. A
/// seek over a damaged page told of it, and pairs before the sought key came.
fn a_seek_leaves_damage_behind(kind: TreeKind) {
    for (keys, value_bytes, suffix) in [(300, 5000, ".blob"), (10_000, 60, ".table")] {
        let vfs = MemoryVfs::new();
        let options = KeyspaceOptions::new(kind).blob_bytes_min(2000);
        let pairs = made(&vfs, &options, keys, value_bytes);
        match suffix {
            ".blob" => {
                let all = files(&vfs, &store_path());
                all.iter().filter(|(name, _)| name.ends_with(suffix)).for_each(|(name, _)| {
                    flip_page(&vfs, name, 3);
                });
            }
            _ => {
                let (name, len) = tables(&vfs).into_iter().max_by_key(|(_, len)| *len).unwrap();
                (1..4).for_each(|part| flip_page(&vfs, &name, len / 4096 * part / 5));
            }
        }
        let db = open(&vfs);
        let keyspace = db.existing_keyspace("items").unwrap();
        let (mut random, mut lost) = (Random(17), 0);
        for _ in 0..60 {
            let mut iter = keyspace.iter();
            for _ in 0..random.below(keys / 4) {
                let _ = iter.next();
            }
            if random.below(3) == 0 {
                iter.next_back();
            }
            let number = random.below(keys);
            let key = format!("key {number:08}").into_bytes();
            let is_left =
                |other: &Vec<u8>, back: bool| if back { *other <= key } else { *other >= key };
            let back = random.below(2) == 0;
            match back {
                true => iter.seek_for_prev(&key),
                false => iter.seek(&key),
            }
            let left = pairs.iter().filter(|(other, _)| is_left(other, back));
            let left: Pairs = left.map(|(key, value)| (key.clone(), value.clone())).collect();
            let share = random.below(3);
            let walk = walk(iter, |step| [false, true, step % 3 == 0][share as usize]);
            lost += judge(&walk, &left);
            let inside = |key: &Vec<u8>| is_left(key, back);
            assert!(walk.shown.keys().all(inside), "what was left behind is shown");
        }
        assert!(lost > 0, "{suffix}: nothing was damaged");
    }
}
