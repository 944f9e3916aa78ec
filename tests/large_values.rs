//! Values in blob files: they are cached, read together, and not read where nobody asks for them.

#[macro_use]
mod common;

use std::sync::Arc;

use common::{Calls, Random, WatchedVfs, store_path};
use spinney::vfs::MemoryVfs;
use spinney::{Builder, Database, Keyspace, KeyspaceOptions, MergeOperator, Slice, TreeKind};

of_every_kind! {
    a_value_that_is_used_again_is_read_once
    values_of_one_call_are_read_together
    an_iterator_reads_values_together_and_each_once
    a_short_iterator_reads_no_value_too_many
    a_long_scan_leaves_used_values_in_the_cache
    keys_alone_need_no_value
    small_values_in_blob_files_share_their_cached_pages
    a_large_value_that_is_cached_is_shared
    what_is_cached_is_the_value_of_its_snapshot
    the_cache_keeps_to_its_memory_whatever_the_sizes
    names_that_nobody_asks_for_do_not_end_the_read_ahead
    each_end_of_an_iterator_reads_ahead
    an_unreadable_value_does_not_cost_the_others_much
    iterators_that_stand_still_leave_memory_to_others
    a_scan_of_small_values_leaves_used_values_in_the_cache
    an_iterator_that_folds_large_values_caches_none
}

fn builder(vfs: &WatchedVfs, memory: u64) -> Builder {
    Database::builder(store_path()).vfs(Arc::new(vfs.clone())).memory_budget(memory)
}

fn key(n: usize) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

fn value(n: usize, bytes: usize) -> Slice {
    let mut random = Random(n as u64);
    let bytes: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
    Slice::from(bytes)
}

/// Every kind has values of the sizes here in blob files.
fn options(kind: TreeKind) -> KeyspaceOptions {
    KeyspaceOptions::new(kind).blob_bytes_min(4096)
}

/// A store with `count` values of `bytes`, all of them in blob files of tables.
fn filled(
    kind: TreeKind,
    memory: u64,
    count: usize,
    bytes: usize,
) -> (WatchedVfs, Database, Keyspace) {
    filled_with(options(kind), memory, count, |_| bytes)
}

fn filled_with(
    options: KeyspaceOptions,
    memory: u64,
    count: usize,
    bytes: impl Fn(usize) -> usize,
) -> (WatchedVfs, Database, Keyspace) {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = builder(&vfs, memory).open().unwrap();
    let keyspace = db.keyspace("items", options).unwrap();
    // In an order of its own, so that files and key ranges differ.
    for i in 0..count {
        let n = (i * 7919) % count;
        keyspace.put(key(n), value(n, bytes(n))).unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    (vfs, db, keyspace)
}

/// Reads of files during `f`.
fn reads(vfs: &WatchedVfs, f: impl FnOnce()) -> u64 {
    let before = vfs.count(Calls::Reads);
    f();
    vfs.count(Calls::Reads) - before
}

fn a_value_that_is_used_again_is_read_once(kind: TreeKind) {
    for bytes in [4096, 5000, 16 << 10, 64 << 10, 200 << 10] {
        let (vfs, db, keyspace) = filled(kind, 64 << 20, 60, bytes);
        let get_all = || {
            for n in (0..60).step_by(3) {
                assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), value(n, bytes));
            }
        };
        assert!(reads(&vfs, get_all) >= 20, "{bytes}");
        let hits = db.stats().cache_hits_value;
        assert_eq!(reads(&vfs, get_all), 0, "{bytes}");
        assert_eq!(db.stats().cache_hits_value - hits, 20, "{bytes}");
        // By whatever way it is read.
        let all = reads(&vfs, || {
            let keys: Vec<_> = (0..60).step_by(3).map(key).collect();
            let found = keyspace.multi_get(&keys).unwrap();
            assert!(
                found
                    .iter()
                    .zip(0..)
                    .all(|(found, n)| *found.as_ref().unwrap() == value(3 * n, bytes))
            );
        });
        assert_eq!(all, 0, "{bytes}");
    }
}

fn values_of_one_call_are_read_together(kind: TreeKind) {
    let (vfs, db, keyspace) = filled(kind, 64 << 20, 200, 9000);
    let mut keys: Vec<_> = (0..200).step_by(7).map(key).collect();
    keys.reverse();
    keys.push(b"absent".to_vec());
    keys.push(key(7));
    vfs.take_batch_most();
    let found = keyspace.multi_get(&keys).unwrap();
    // One request a value that is not beside another.
    assert!(vfs.take_batch_most() >= 15);
    for (key_bytes, found) in keys.iter().zip(&found) {
        let n = (0..200).find(|&n| key(n) == *key_bytes);
        assert_eq!(found.as_deref(), n.map(|n| value(n, 9000)).as_deref());
    }
    // In a snapshot too, and after others have come.
    let snapshot = db.snapshot();
    keyspace.put(key(14), value(9999, 9000)).unwrap();
    keyspace.delete(key(21)).unwrap();
    keyspace.flush().unwrap();
    let at = snapshot.multi_get(&keyspace, [key(14), key(21)]).unwrap();
    assert_eq!(at, [Some(value(14, 9000)), Some(value(21, 9000))]);
    let now = keyspace.multi_get([key(14), key(21)]).unwrap();
    assert_eq!(now, [Some(value(9999, 9000)), None]);
}

/// Forwards, backwards, and from both ends.
fn an_iterator_reads_values_together_and_each_once(kind: TreeKind) {
    let (vfs, _db, keyspace) = filled(kind, 8 << 20, 600, 5000);
    for walk in 0..3 {
        let mut seen = Vec::new();
        let steps = reads(&vfs, || {
            let mut iter = keyspace.iter();
            for step in 0.. {
                let back = walk == 1 || (walk == 2 && step % 3 == 0);
                let pair = if back { iter.next_back() } else { iter.next() };
                let Some(pair) = pair else { break };
                let (found, bytes) = pair.unwrap();
                let n = (0..600).find(|&n| *found == key(n)[..]).unwrap();
                assert_eq!(bytes, value(n, 5000), "{n}");
                seen.push(n);
            }
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..600).collect::<Vec<_>>());
        println!("walk {walk}: {steps} reads of 600 values");
        // 3 MB lie in 730 units: one read each would be 600.
        assert!(steps < 400, "walk {walk}: {steps} reads");
    }
}

fn a_short_iterator_reads_no_value_too_many(kind: TreeKind) {
    let (vfs, _db, keyspace) = filled(kind, 64 << 20, 300, 20_000);
    let warm =
        |from: usize| keyspace.range(key(from)..).keys().take(3).for_each(|key| drop(key.unwrap()));
    for n in (0..200).step_by(20) {
        warm(n);
        let one = reads(&vfs, || drop(keyspace.range(key(n)..).next().unwrap().unwrap()));
        assert_eq!(one, 1, "the value alone");
    }
}

fn a_long_scan_leaves_used_values_in_the_cache(kind: TreeKind) {
    // 20 MB of values, a cache of some 10 MB, and 1 MB that are used.
    let (vfs, _db, keyspace) = filled(kind, 16 << 20, 2500, 8000);
    let used = || {
        for n in (0..1250).step_by(10) {
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), value(n, 8000));
        }
    };
    for _ in 0..3 {
        used();
    }
    assert_eq!(reads(&vfs, used), 0);
    for _ in 0..2 {
        assert_eq!(keyspace.iter().map(|pair| pair.unwrap().1.len()).sum::<usize>(), 2500 * 8000);
    }
    let again = reads(&vfs, used);
    assert!(again <= 12, "{again} of 125 used values have left the cache");
}

fn keys_alone_need_no_value(kind: TreeKind) {
    let options = options(kind).merge_operator("append");
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = builder(&vfs, 32 << 20).merge_operator(Arc::new(Append)).open().unwrap();
    let keyspace = db.keyspace("items", options).unwrap();
    for n in 0..100 {
        keyspace.put(key(n), value(n, 6000)).unwrap();
    }
    keyspace.flush().unwrap();
    keyspace.merge(key(10), value(3, 6000)).unwrap();
    keyspace.merge("merged", value(4, 6000)).unwrap();
    keyspace.delete(key(20)).unwrap();
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    // The blob files cannot be read.
    vfs.fail_named("read", ".blob", std::io::ErrorKind::Other);
    let expected: Vec<_> =
        (0..100).filter(|&n| n != 20).map(key).chain([b"merged".to_vec()]).collect();
    let keys: Vec<_> = keyspace.iter().keys().map(|key| key.unwrap().to_vec()).collect();
    assert_eq!(keys, expected);
    let mut back: Vec<_> = keyspace.iter().keys().rev().map(|key| key.unwrap().to_vec()).collect();
    back.reverse();
    assert_eq!(back, expected);
    let mut both = keyspace.range(key(5)..key(95)).keys();
    let (mut low, mut high) = (Vec::new(), Vec::new());
    while let Some(key) = both.next() {
        low.push(key.unwrap().to_vec());
        high.extend(both.next_back().map(|key| key.unwrap().to_vec()));
    }
    low.extend(high.into_iter().rev());
    assert_eq!(low, expected[5..94]);
    assert_eq!(keyspace.count(..).unwrap(), 100);
    for (key, there) in
        [(key(7), true), (key(10), true), (key(20), false), (b"merged".to_vec(), true)]
    {
        assert_eq!(keyspace.contains_key(&key).unwrap(), there);
        assert_eq!(db.snapshot().contains_key(&keyspace, &key).unwrap(), there);
    }
    // In the middle of a walk that began with values.
    assert!(keyspace.get(key(7)).is_err());
    let mut iter = keyspace.range(key(20)..);
    assert!(iter.next().unwrap().is_err());
    assert_eq!(iter.keys().map(|key| key.unwrap().to_vec()).next().unwrap(), key(22));
}

struct Append;

impl MergeOperator for Append {
    fn name(&self) -> &str {
        "append"
    }

    fn full_merge(
        &self,
        _key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>, String> {
        Ok([existing.unwrap_or_default(), &operands.concat()].concat())
    }
}

fn small_values_in_blob_files_share_their_cached_pages(kind: TreeKind) {
    let sizes = |n: usize| [700, 90, 4071, 1500, 4072, 300][n % 6];
    let options = KeyspaceOptions::new(kind).blob_bytes_min(64);
    let (vfs, _db, keyspace) = filled_with(options, 32 << 20, 500, sizes);
    let check = || {
        for n in 0..500 {
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), value(n, sizes(n)), "{n}");
        }
    };
    check();
    assert_eq!(reads(&vfs, check), 0);
    let keys: Vec<_> = (0..500).map(key).collect();
    let found = keyspace.multi_get(&keys).unwrap();
    assert!(
        found.iter().enumerate().all(|(n, found)| *found.as_ref().unwrap() == value(n, sizes(n)))
    );
    let all: Vec<_> = keyspace.iter().map(|pair| pair.unwrap().1).collect();
    assert!(all.iter().enumerate().all(|(n, found)| *found == value(n, sizes(n))));
}

fn a_large_value_that_is_cached_is_shared(kind: TreeKind) {
    let (_vfs, db, keyspace) = filled(kind, 64 << 20, 20, 100_000);
    let first = keyspace.get(key(3)).unwrap().unwrap();
    let second = keyspace.get(key(3)).unwrap().unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr());
    // It outlives the cache, the files and the store.
    for n in 0..20 {
        keyspace.delete(key(n)).unwrap();
    }
    keyspace.compact(..).unwrap();
    drop((keyspace, db));
    assert_eq!(first, value(3, 100_000));
}

fn what_is_cached_is_the_value_of_its_snapshot(kind: TreeKind) {
    let (_vfs, db, keyspace) = filled(kind, 32 << 20, 30, 5000);
    let mut snapshots = vec![(db.snapshot(), 0)];
    for round in 1..6 {
        for n in 0..30 {
            assert_eq!(keyspace.get(key(n)).unwrap().unwrap(), value(n + 1000 * (round - 1), 5000));
            keyspace.put(key(n), value(n + 1000 * round, 5000)).unwrap();
        }
        keyspace.flush().unwrap();
        snapshots.push((db.snapshot(), round));
    }
    db.wait_idle().unwrap();
    for _ in 0..2 {
        for (snapshot, round) in &snapshots {
            for n in 0..30 {
                let found = snapshot.get(&keyspace, key(n)).unwrap().unwrap();
                assert_eq!(found, value(n + 1000 * round, 5000), "{n} in {round}");
            }
        }
    }
}

fn the_cache_keeps_to_its_memory_whatever_the_sizes(kind: TreeKind) {
    let sizes = |n: usize| [4100, 9000, 33_000, 70_000, 300_000, 1_500_000][n % 6];
    let (_vfs, db, keyspace) = filled_with(options(kind), 8 << 20, 120, sizes);
    let mut random = Random(5);
    for _ in 0..2000 {
        let n = (random.next() % 120) as usize;
        assert_eq!(keyspace.get(key(n)).unwrap().unwrap().len(), sizes(n));
        let stats = db.stats();
        assert!(stats.memory_cache <= 8 << 20, "{}", stats.memory_cache);
    }
    let hits = db.stats().cache_hits_value;
    assert!(hits > 100, "{hits}");
}

fn scan(keyspace: &Keyspace) -> usize {
    keyspace.iter().map(|pair| drop(pair.unwrap())).count()
}

/// Leaves name versions that are overwritten, deleted or newer than the snapshot. With the first of these that was read
/// ahead, an iterator stopped reading ahead for good: 601 reads of 600 values.
fn names_that_nobody_asks_for_do_not_end_the_read_ahead(kind: TreeKind) {
    for (every, deletes) in [(2, false), (1, false), (3, true)] {
        let (vfs, db, keyspace) = filled(kind, 64 << 20, 600, 5000);
        let before = db.snapshot();
        for n in (0..600).filter(|n| (n % every == 0) != deletes) {
            match deletes {
                true => keyspace.delete(key(n)).unwrap(),
                false => keyspace.put(key(n), value(n + 1000, 5000)).unwrap(),
            }
        }
        if !deletes {
            keyspace.flush().unwrap();
        }
        let at = |n| if n % every == 0 { value(n + 1000, 5000) } else { value(n, 5000) };
        let mut seen = 0;
        let steps = reads(&vfs, || {
            for pair in &mut keyspace.iter() {
                let (found, bytes) = pair.unwrap();
                let n = (0..600).find(|&n| *found == key(n)[..]).unwrap();
                assert!(bytes == if deletes { value(n, 5000) } else { at(n) }, "{n}");
                seen += 1;
            }
        });
        assert_eq!(seen, if deletes { 200 } else { 600 });
        let then = reads(&vfs, || {
            for (n, pair) in before.iter(&keyspace).enumerate() {
                assert!(pair.unwrap().1 == value(n, 5000), "{n}");
            }
        });
        println!("every {every}, deletes {deletes}: {steps} reads now, {then} then");
        assert!(steps < 200 && then < 200);
    }
}

/// One list served both ends: after a turn, 600 reads of 600 values.
fn each_end_of_an_iterator_reads_ahead(kind: TreeKind) {
    let (vfs, _db, keyspace) = filled(kind, 64 << 20, 600, 5000);
    let turned = reads(&vfs, || {
        let mut iter = keyspace.iter();
        for n in 0..5 {
            assert!(iter.next().unwrap().unwrap().1 == value(n, 5000));
        }
        for n in (5..600).rev() {
            assert!(iter.next_back().unwrap().unwrap().1 == value(n, 5000));
        }
        assert!(iter.next_back().is_none());
    });
    let in_turn = reads(&vfs, || {
        let mut iter = keyspace.iter();
        for n in 0..300 {
            assert!(iter.next().unwrap().unwrap().1 == value(n, 5000));
            assert!(iter.next_back().unwrap().unwrap().1 == value(599 - n, 5000));
        }
        assert!(iter.next().is_none());
    });
    println!("turned: {turned} reads; in turn: {in_turn}");
    assert!(turned < 150 && in_turn < 150);
}

/// Each step that met the value was made again for each value before it: four times the reads.
fn an_unreadable_value_does_not_cost_the_others_much(kind: TreeKind) {
    let (vfs, _db, keyspace) = filled(kind, 64 << 20, 300, 30_000);
    vfs.fail_named("read", ".blob", std::io::ErrorKind::Other);
    let before = vfs.failed();
    let mut lost = 0;
    for pair in keyspace.iter() {
        assert!(pair.is_err());
        lost += 1;
    }
    let failed = vfs.failed() - before;
    println!("{failed} failed reads, {lost} values");
    assert!(failed < 400 && lost > 0);
}

/// Six of them held the whole read-ahead budget: another scan of 300 values needed 176 reads in place of 4.
fn iterators_that_stand_still_leave_memory_to_others(kind: TreeKind) {
    let (vfs, db, keyspace) = filled(kind, 64 << 20, 600, 12_000);
    let alone = reads(&vfs, || assert_eq!(scan(&keyspace), 600));
    let mut idle: Vec<_> = (0..6).map(|_| keyspace.iter()).collect();
    for iter in &mut idle {
        for n in 0..66 {
            assert!(iter.next().unwrap().unwrap().1 == value(n, 12_000));
        }
    }
    let beside = reads(&vfs, || assert_eq!(scan(&keyspace), 600));
    println!("{alone} reads alone, {beside} beside idle iterators");
    assert!(beside <= 2 * alone + 10);
    let mut keys: Vec<_> = idle.into_iter().map(|iter| iter.keys()).collect();
    assert_eq!(db.stats().memory_read_ahead, 0, "of what asks for keys alone");
    assert!(keys.iter_mut().all(|keys| *keys.next().unwrap().unwrap() == key(66)[..]));
}

/// Several values share a page, so that a scan used each page often: 132 of 125 used values had left the cache.
fn a_scan_of_small_values_leaves_used_values_in_the_cache(kind: TreeKind) {
    let sizes = |n: usize| if n.is_multiple_of(100) { 8000 } else { 1300 };
    let options = KeyspaceOptions::new(kind).blob_bytes_min(64);
    let (vfs, _db, keyspace) = filled_with(options, 16 << 20, 12_500, sizes);
    let used = || {
        for n in (0..12_500).step_by(100) {
            assert!(keyspace.get(key(n)).unwrap().unwrap() == value(n, 8000));
        }
    };
    for _ in 0..3 {
        used();
    }
    assert_eq!(reads(&vfs, used), 0);
    let steps = reads(&vfs, || assert_eq!(scan(&keyspace), 12_500));
    let again = reads(&vfs, used);
    println!("{steps} reads of 12,500 values; {again} of 125 used values had left");
    assert!(again <= 12 && steps < 12_500);
}

fn an_iterator_that_folds_large_values_caches_none(kind: TreeKind) {
    let vfs = WatchedVfs::new(MemoryVfs::new());
    let db = builder(&vfs, 64 << 20).merge_operator(Arc::new(Append)).open().unwrap();
    let options = options(kind).merge_operator("append");
    let keyspace = db.keyspace("items", options).unwrap();
    for n in 0..300 {
        keyspace.put(key(n), value(n, 5000)).unwrap();
    }
    keyspace.flush().unwrap();
    for n in 0..300 {
        keyspace.merge(key(n), "!").unwrap();
    }
    let before = db.stats().memory_cache;
    for (n, pair) in keyspace.iter().enumerate() {
        let bytes = pair.unwrap().1;
        assert!(bytes[..5000] == value(n, 5000)[..] && bytes[5000..] == b"!"[..], "{n}");
    }
    assert!(db.stats().memory_cache < before + (300 << 10));
}
