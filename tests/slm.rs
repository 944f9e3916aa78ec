//! SLM-DB's single level under its index.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Random, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Database, Keyspace, KeyspaceOptions, MIB};

fn open(vfs: &MemoryVfs) -> Database {
    let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
    builder.memory_budget(8 * MIB).memtable_bytes(MIB / 4).deterministic(1).open().unwrap()
}

fn items() -> (Database, Keyspace) {
    let db = open(&MemoryVfs::new());
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    (db, keyspace)
}

fn key(number: u64) -> Vec<u8> {
    format!("user{:016}", Random(number).next()).into_bytes()
}

fn put(keyspace: &Keyspace, keys: std::ops::Range<u64>, round: u64) {
    for number in keys {
        keyspace.put(key(number), Random(number + round * 1_000_000).bytes(100)).unwrap();
    }
}

/// Whether a key exists is known from the index: neither pages of tables nor filters are read for it.
#[test]
fn existence_costs_no_read() {
    let (db, keyspace) = items();
    put(&keyspace, 0..50_000, 0);
    (0..50_000).step_by(5).for_each(|number| keyspace.delete(key(number)).unwrap());
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let before = db.stats().pages_read;
    for number in 0..60_000 {
        let is_there = number < 50_000 && number % 5 != 0;
        assert_eq!(keyspace.contains_key(key(number)).unwrap(), is_there, "{number}");
    }
    for number in 60_000..61_000 {
        assert_eq!(keyspace.get(key(number)).unwrap(), None);
        assert!(keyspace.take(key(number)).unwrap().is_none());
    }
    assert_eq!(db.stats().pages_read, before);
    let before = db.stats().pages_read;
    (0..500).for_each(|number| drop(keyspace.get(key(number * 97 % 50_000)).unwrap()));
    let read = db.stats().pages_read - before;
    assert!(read <= 600, "{read} pages for 500 gets, of which 100 find nothing");
}

/// Of a table that is mostly dead, little is copied, and its file goes: what is overwritten again and again takes no
/// more than promised.
#[test]
fn tables_that_are_mostly_dead_are_merged() {
    let (db, keyspace) = items();
    for round in 0..12 {
        put(&keyspace, 0..20_000, round);
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let stats = db.stats().keyspaces.remove(0);
    let live = 20_000 * 120;
    assert!(
        stats.disk_bytes < live * 3 / 2 + 4 * (MIB / 4),
        "{} of {live} bytes",
        stats.disk_bytes
    );
    assert!(db.stats().compaction.count > 0);
    let seen = keyspace.iter().map(|pair| pair.unwrap().1.len()).collect::<Vec<_>>();
    assert_eq!((seen.len(), seen.iter().all(|bytes| *bytes == 100)), (20_000, true));
}

/// Memtables of random keys all reach over the whole range. Leaf scans find that, and neighbours become neighbours on
/// the disk: a scan then reads pages that are full of its keys.
#[test]
fn scattered_tables_are_merged_until_scans_read_neighbours() {
    let (db, keyspace) = items();
    put(&keyspace, 0..80_000, 0);
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let before = db.stats().pages_read;
    let mut pairs = 0;
    for number in 0..200 {
        pairs += keyspace.range(&key(number * 391)[..]..).take(100).filter(|it| it.is_ok()).count();
    }
    let pages = db.stats().pages_read - before;
    assert!(pairs > 19_000);
    // 30 pairs fill a page. Keys of 36 tables that all reach over the range would need a page each.
    assert!(pages < 200 * 45, "{pages} pages for 200 scans of 100 pairs");
}

/// The first pair, the last, and the two that lie beside a leaf's bound: a scan that begins or ends at the bound of a leaf
/// took its place for that of a long pass, and read the pages of all keys of the leaf.
#[test]
fn short_scans_read_no_more_than_they_need() {
    let vfs = MemoryVfs::new();
    let key = |number: u64| number.to_be_bytes();
    let db = open(&vfs);
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    for number in 0..2_000 {
        keyspace.put(key(number), Random(number).bytes(3_000)).unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    drop((keyspace, db));
    let pages = |scan: &dyn Fn(&Keyspace) -> usize, pairs: usize| {
        let db = open(&vfs);
        let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
        let before = db.stats().pages_read;
        assert_eq!(scan(&keyspace), pairs);
        db.stats().pages_read - before
    };
    assert!(pages(&|keyspace| keyspace.iter().next().into_iter().count(), 1) <= 3);
    assert!(pages(&|keyspace| keyspace.iter().next_back().into_iter().count(), 1) <= 3);
    for number in 0..200 {
        let read = pages(&|keyspace| keyspace.range(key(number)..key(number + 2)).count(), 2);
        // As many as before tables were read ahead. A pair begins in one page and ends in another.
        assert!(read <= 6, "{read} pages for two pairs from {number} on");
    }
}

/// Pages that had been read ahead were evicted before they were needed, by those of other scans, and read again and again.
#[test]
fn scans_read_each_page_about_once_in_a_small_cache() {
    let vfs = MemoryVfs::new();
    let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
    let builder = builder.memory_budget(64 * MIB).cache_bytes(MIB).memtable_bytes(MIB);
    let db = builder.deterministic(1).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    put(&keyspace, 0..100_000, 0);
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let leaves = db.stats().keyspaces[0].disk_bytes / 4096;
    let pages = |scan: &dyn Fn()| {
        let before = db.stats().pages_read;
        scan();
        db.stats().pages_read - before
    };
    let one = pages(&|| assert_eq!(keyspace.iter().count(), 100_000));
    let back = pages(&|| assert_eq!(keyspace.iter().rev().count(), 100_000));
    let several = pages(&|| {
        let starts = (0..8u8).map(|n| keyspace.range(&[b"user", &[b'1' + n][..]].concat()[..]..));
        let mut scans: Vec<_> = starts.collect();
        for _ in 0..10_000 {
            scans.iter_mut().for_each(|scan| assert!(scan.next().is_none_or(|it| it.is_ok())));
        }
    });
    assert!(one.max(back) <= leaves * 3 / 2, "{one} pages forward, {back} back, of {leaves}");
    assert!(several <= leaves * 3 / 2, "{several} pages of {leaves}");
}

/// Of large pairs, a leaf of the index names many pages: scans beside each other evicted those that others had read ahead.
/// And a scan of what is mostly cached read all of that again behind each page that is not, and one that ends soon read
/// far beyond its end.
#[test]
fn scans_of_large_pairs_read_each_page_about_once() {
    let vfs = MemoryVfs::new();
    let open = |cache: Option<u64>| {
        let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
        let builder = builder.memory_budget(64 * MIB).memtable_bytes(4 * MIB).deterministic(1);
        let db = cache.map_or(builder.clone(), |bytes| builder.cache_bytes(bytes)).open().unwrap();
        let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
        (db, keyspace)
    };
    let key = |number: u64| number.to_be_bytes();
    let (db, keyspace) = open(None);
    for number in 0..8_000 {
        keyspace.put(key(number), Random(number).bytes(3_950)).unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    drop((keyspace, db));
    // Ten scans in a cache of 256 pages, less what has another use.
    let (db, keyspace) = open(Some(MIB));
    let before = db.stats().pages_read;
    let mut scans: Vec<_> = (0..10).map(|n| keyspace.range(&key(n * 700)[..]..)).collect();
    for _ in 0..600 {
        scans.iter_mut().for_each(|scan| drop(scan.next().unwrap().unwrap()));
    }
    drop(scans);
    let read = db.stats().pages_read - before;
    assert!(read <= 6_000 * 2, "{read} pages for 6,000 pairs");
    drop((keyspace, db));
    // One page in 34 is missing.
    let (db, keyspace) = open(None);
    for number in (0..3_400).filter(|number| number % 34 != 33) {
        keyspace.get(key(number)).unwrap().unwrap();
    }
    let before = db.stats().pages_read;
    assert_eq!(keyspace.range(key(0)..key(3_400)).count(), 3_400);
    let read = db.stats().pages_read - before;
    assert!(read <= 150, "{read} pages, of which 100 had been missing");
    // Scans that end inside a leaf of the index. Where one begins a leaf that it soon leaves, it reads as much in vain.
    let starts: Vec<u64> = (4_000..7_000).step_by(100).collect();
    let before = db.stats().pages_read;
    for number in &starts {
        assert_eq!(keyspace.range(key(*number)..key(*number + 33)).count(), 33);
    }
    let read = (db.stats().pages_read - before) / starts.len() as u64;
    assert!(read <= 44, "{read} pages for 33 pairs");
}

/// Counters that are only added to, at snapshots that come and go, in a store that is opened again: operands lie in
/// many tables, and each counts once.
#[test]
fn operands_in_many_tables_count_once() {
    let vfs = MemoryVfs::new();
    let mut random = Random(7);
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for session in 0..3 {
        let db = open(&vfs);
        let options = KeyspaceOptions::slm().merge_operator("u64_add");
        let keyspace = db.keyspace("counters", options).unwrap();
        let mut views = Vec::new();
        for step in 0..40_000 {
            let counter = random.below(300);
            match random.below(40) {
                0 => {
                    keyspace.delete(key(counter)).unwrap();
                    sums.remove(&counter);
                }
                _ => {
                    keyspace.merge(key(counter), 1u64.to_le_bytes()).unwrap();
                    *sums.entry(counter).or_default() += 1;
                }
            }
            if step % 500 == 0 {
                views.push((db.snapshot(), sums.clone()));
                if views.len() > 40 {
                    views.remove(random.below(40) as usize);
                }
            }
            if step % 333 == 0 {
                keyspace.flush().unwrap();
            }
            if step % 5_000 == 0 {
                db.wait_idle().unwrap();
            }
        }
        let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        for (view, sums) in &views {
            for counter in 0..300 {
                let seen = view.get(&keyspace, key(counter)).unwrap().map(|bytes| value(&bytes));
                assert_eq!(
                    seen,
                    sums.get(&counter).copied(),
                    "counter {counter}, session {session}"
                );
            }
            let seen: u64 = view.iter(&keyspace).map(|pair| value(&pair.unwrap().1)).sum();
            assert_eq!(seen, sums.values().sum::<u64>());
        }
        drop(views);
        db.wait_idle().unwrap();
        keyspace.compact(..).unwrap();
        let seen: BTreeMap<Vec<u8>, u64> = keyspace
            .iter()
            .map(|pair| pair.unwrap())
            .map(|(k, v)| (k.to_vec(), value(&v)))
            .collect();
        let expected = sums.iter().map(|(counter, sum)| (key(*counter), *sum)).collect();
        assert_eq!(seen, expected, "session {session}");
        db.close().unwrap();
    }
}

/// A snapshot that is held while everything is overwritten costs the space of what it sees, and gives it back when it
/// goes.
#[test]
fn what_a_snapshot_needed_goes_with_it() {
    let (db, keyspace) = items();
    put(&keyspace, 0..20_000, 0);
    let view = db.snapshot();
    for round in 1..6 {
        put(&keyspace, 0..20_000, round);
    }
    (0..10_000).for_each(|number| keyspace.delete(key(number)).unwrap());
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    for number in (0..20_000).step_by(7) {
        let value = view.get(&keyspace, key(number)).unwrap().unwrap();
        assert_eq!(value.to_vec(), Random(number).bytes(100));
    }
    assert_eq!(view.iter(&keyspace).count(), 20_000);
    drop(view);
    db.wait_idle().unwrap();
    keyspace.compact(..).unwrap();
    let stats = db.stats().keyspaces.remove(0);
    let live = 10_000 * 120;
    assert!(stats.disk_bytes < live * 3 / 2, "{} of {live} bytes", stats.disk_bytes);
    assert_eq!(keyspace.iter().count(), 10_000);
}

/// Old tables whose keys all stay, and memtables that each rewrite the same keys and delete one: a dead table stayed
/// as long as an old one reaches over its tombstone, though that hides nothing there, and one with a tombstone was
/// never an input again. There were 105 tables with 25 times what was live.
#[test]
fn a_tombstone_in_each_memtable_keeps_no_dead_tables() {
    let vfs = MemoryVfs::new();
    let db = open_small(&vfs);
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    (0..2000).for_each(|number| keyspace.put(key(number), [1; 100]).unwrap());
    for round in 0..100 {
        for number in 0..50 {
            keyspace.put(key(number + 2000), Random(round).bytes(1000)).unwrap();
        }
        keyspace.delete(key(1999)).unwrap();
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
    }
    let taken = db.stats().keyspaces.remove(0);
    let live = 2000 * 120 + 50 * 1020;
    assert!(taken.tables < 30, "{} tables", taken.tables);
    assert!(taken.disk_bytes < 2 * live, "{} of {live} bytes", taken.disk_bytes);
    assert_eq!(keyspace.iter().count(), 2049);
}

/// A table that is wholly live may point into a blob file that is mostly dead. Such tables were never merged, so what
/// was dead in blob files stayed.
#[test]
fn dead_values_in_blob_files_are_given_back() {
    let vfs = MemoryVfs::new();
    let db = open_small(&vfs);
    let keyspace = db.keyspace("items", KeyspaceOptions::slm().blob_bytes_min(400)).unwrap();
    for round in 0..100 {
        for number in 0..20 {
            // Of each memtable's values, two stay.
            let number = if number < 2 { 1000 + round * 2 + number } else { number };
            keyspace.put(key(number), Random(round).bytes(4000)).unwrap();
        }
        keyspace.flush().unwrap();
        db.wait_idle().unwrap();
    }
    keyspace.compact(..).unwrap();
    db.wait_idle().unwrap();
    let live = 218 * 4020;
    let taken = db.stats().keyspaces.remove(0).disk_bytes;
    assert!(taken < 2 * live, "{taken} of {live} bytes");
    assert_eq!(keyspace.iter().filter(|pair| pair.as_ref().unwrap().1.len() == 4000).count(), 218);
}

/// A leaf that cannot be read takes its own keys along, and no others: the index is built from the tables, and the
/// keyspace could not be opened without all of them.
#[test]
fn a_damaged_leaf_costs_its_own_keys() {
    let vfs = MemoryVfs::new();
    let db = open_small(&vfs);
    let keyspace = db.keyspace("items", KeyspaceOptions::slm()).unwrap();
    (0..4000).for_each(|number| keyspace.put(key(number), [1; 200]).unwrap());
    keyspace.flush().unwrap();
    // In order: while the index is built, what lies in the leaf's range cannot be told from what the leaf may have.
    keyspace.compact(..).unwrap();
    db.wait_idle().unwrap();
    drop((keyspace, db));
    let mut files = common::files(&vfs, &store_path()).into_iter();
    let (table, _) = files.find(|(name, _)| name.ends_with(".table")).unwrap();
    common::flip(&vfs, &store_path().join(table), 777);
    let db = open_small(&vfs);
    let keyspace = db.existing_keyspace("items").unwrap();
    let read = (0..4000).filter(|number| keyspace.get(key(*number)).is_ok_and(|it| it.is_some()));
    assert!(read.count() > 3900);
    let seen = keyspace.iter().filter(|pair| pair.is_ok()).count();
    assert!((3900..4000).contains(&seen), "{seen}");
    keyspace.put(key(5000), "new").unwrap();
    keyspace.flush().unwrap();
    assert_eq!(keyspace.get(key(5000)).unwrap().as_deref(), Some(&b"new"[..]));
}

/// Where all tables are merged for the sake of operands, the damage of a table that had been passed hid that of others: an
/// iterator ended early.
#[test]
fn damage_of_several_tables_under_operands_costs_their_own_keys() {
    let vfs = MemoryVfs::new();
    let db = open_small(&vfs);
    let options = KeyspaceOptions::slm().merge_operator("u64_add");
    let keyspace = db.keyspace("items", options).unwrap();
    let whole = ["az", "d0", "mz", "p0", "tz", "z0"];
    for prefix in ["a", "m", "t"] {
        for number in 0..10 {
            keyspace.merge(format!("{prefix}{number}"), 1u64.to_le_bytes()).unwrap();
        }
        keyspace.flush().unwrap();
    }
    whole.iter().for_each(|key| keyspace.merge(key, 1u64.to_le_bytes()).unwrap());
    keyspace.flush().unwrap();
    drop((keyspace, db));
    let files = common::files(&vfs, &store_path()).into_iter().map(|(name, _)| name);
    let mut tables: Vec<String> = files.filter(|name| name.ends_with(".table")).collect();
    assert_eq!(tables.len(), 4);
    tables.sort_unstable();
    for table in &tables[..3] {
        common::flip(&vfs, &store_path().join(table), 200);
    }
    let db = open_small(&vfs);
    let keyspace = db.existing_keyspace("items").unwrap();
    for backwards in [false, true] {
        let (mut shown, mut lost) = (Vec::new(), Vec::new());
        let mut pairs = keyspace.iter();
        while let Some(pair) = if backwards { pairs.next_back() } else { pairs.next() } {
            match pair {
                Ok((key, _)) => shown.push(String::from_utf8(key.to_vec()).unwrap()),
                Err(_) => lost.push(pairs.damaged_range().expect("what is lost").clone()),
            }
        }
        if backwards {
            shown.reverse();
            lost.reverse();
        }
        assert_eq!(shown, whole, "backwards: {backwards}");
        let lost = lost.into_iter().map(|range| (range.lower, range.upper.unwrap()));
        let named = ["a", "m", "t"].map(|it| (format!("{it}0").into(), format!("{it}9\0").into()));
        assert!(lost.eq(named), "backwards: {backwards}");
    }
}

/// Memtables of 64 KiB.
fn open_small(vfs: &MemoryVfs) -> Database {
    let builder = Database::builder(store_path()).vfs(Arc::new(vfs.clone()));
    builder.memtable_bytes(64 << 10).deterministic(1).open().unwrap()
}
