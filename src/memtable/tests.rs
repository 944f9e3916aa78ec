//! The memtable against a `BTreeMap`, alone and from many threads.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::base::entry::Cursor;
use crate::base::random::SplitMix;

type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>)>;

/// Miri is far slower (and has nodes a tenth of the size).
const fn scaled(count: usize) -> usize {
    if cfg!(miri) { count / 500 } else { count }
}

const KINDS: [EntryKind; 3] = [EntryKind::Put, EntryKind::Delete, EntryKind::Merge];

fn new_memtable() -> (Arc<ChunkPool>, Arc<Memtable>) {
    let pool = Arc::new(ChunkPool::new(1 << 20));
    let memtable = Arc::new(Memtable::new(pool.clone()));
    (pool, memtable)
}

/// An entry of the model.
type Owned = ((Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>));

fn owned(entry: EntryRef<'_>) -> Owned {
    ((entry.key.to_vec(), Reverse(entry.seqno.0)), (entry.kind, entry.value.to_vec()))
}

fn insert_both(memtable: &Memtable, model: &mut Model, key: &[u8], seqno: u64, value: &[u8]) {
    let kind = KINDS[seqno as usize % KINDS.len()];
    memtable.insert(key, Seqno(seqno), kind, value);
    model.insert((key.to_vec(), Reverse(seqno)), (kind, value.to_vec()));
}

/// Checks everything that the memtable promises about its content, through every method.
fn check(memtable: &Arc<Memtable>, model: &Model, random: &mut SplitMix) {
    assert_eq!(memtable.len(), model.len());
    assert_eq!(memtable.is_empty(), model.is_empty());
    let data_bytes = model.iter().map(|((key, _), (_, value))| key.len() + value.len()).sum();
    assert_eq!(memtable.data_bytes(), data_bytes);
    let seqnos = || model.keys().map(|(_, Reverse(seqno))| Seqno(*seqno));
    assert_eq!(memtable.seqno_bounds(), seqnos().min().zip(seqnos().max()));

    let mut cursor = memtable.cursor();
    assert!(cursor.entry().is_none());
    let entries: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    cursor.seek_first().unwrap();
    for expected in &entries {
        assert_eq!(&owned(cursor.entry().unwrap()), expected);
        cursor.next().unwrap();
    }
    assert!(cursor.entry().is_none());
    cursor.seek_last().unwrap();
    for expected in entries.iter().rev() {
        assert_eq!(&owned(cursor.entry().unwrap()), expected);
        cursor.prev().unwrap();
    }
    assert!(cursor.entry().is_none());
    if entries.is_empty() {
        return;
    }

    for _ in 0..scaled(1000) {
        let (near, _) = &entries[random.index(entries.len())];
        let mut key = near.0.clone();
        match random.index(5) {
            0 => key.push(random.next() as u8),
            1 => drop(key.pop()),
            2 => key.iter_mut().for_each(|byte| *byte ^= (random.index(64) == 0) as u8),
            _ => {}
        }
        let snapshot = match random.index(3) {
            0 => near.1.0,
            1 => near.1.0.saturating_sub(random.index(3) as u64),
            _ => Seqno::MAX.0,
        };
        let mut versions = memtable.versions(&key, Seqno(snapshot));
        let first = memtable.get(&key, Seqno(snapshot)).map(owned);
        let expected = model.range((key.clone(), Reverse(snapshot))..);
        let mut expected = expected.take_while(|((k, _), _)| *k == key);
        let mut newest = true;
        loop {
            let expected = expected.next().map(|(k, v)| (k.clone(), v.clone()));
            if newest {
                assert_eq!(first, expected);
                newest = false;
            }
            assert_eq!(versions.next().map(owned), expected);
            if expected.is_none() {
                break;
            }
        }
        assert!(versions.next().is_none());

        // From a sought position, some steps in one direction and back.
        let at = entries.partition_point(|((k, _), _)| *k < key);
        let mut at = if random.index(2) == 0 {
            cursor.seek(&key).unwrap();
            at
        } else {
            cursor.seek_before(&key).unwrap();
            at.wrapping_sub(1)
        };
        for _ in 0..random.index(30) {
            assert_eq!(cursor.entry().map(owned).as_ref(), entries.get(at));
            if at >= entries.len() {
                break;
            }
            if random.index(3) == 0 {
                at = at.wrapping_sub(1);
                cursor.prev().unwrap();
            } else {
                at += 1;
                cursor.next().unwrap();
            }
        }
        assert_eq!(cursor.entry().map(owned).as_ref(), entries.get(at));
    }
}

/// Random keys that share prefixes of many lengths and are prefixes of one another.
fn random_key(random: &mut SplitMix) -> Vec<u8> {
    let alphabet = 1 + random.index(4);
    let mut key: Vec<u8> = (0..random.index(14)).map(|_| random.index(alphabet) as u8).collect();
    if random.index(4) == 0 {
        key.splice(..0, b"a long prefix that many keys share/".iter().copied());
    }
    if random.index(8) == 0 {
        key.push(0xff);
    }
    key
}

#[test]
fn random_inserts_read_as_a_sorted_map() {
    for seed in 0..4 {
        let mut random = SplitMix::new(seed);
        let (pool, memtable) = new_memtable();
        let mut model = Model::new();
        check(&memtable, &model, &mut random);
        for seqno in 0..scaled(8000) as u64 {
            let key = random_key(&mut random);
            let value = vec![seqno as u8; random.index(40)];
            insert_both(&memtable, &mut model, &key, seqno, &value);
            if seqno.is_power_of_two() {
                check(&memtable, &model, &mut random);
            }
        }
        check(&memtable, &model, &mut random);
        assert_eq!(pool.bytes_in_use(), memtable.bytes());
        drop(memtable);
        assert_eq!(pool.bytes_in_use(), 0);
    }
}

#[test]
fn orders_of_insertion_do_not_matter() {
    type KeyOf = fn(u64, u64) -> Vec<u8>;
    let count = scaled(20_000) as u64;
    let orders: [KeyOf; 6] = [
        |i, _| format!("user{i:020}").into_bytes(),
        |i, count| format!("user{:020}", count - i).into_bytes(),
        |i, _| format!("user{:020}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes(),
        |i, _| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes().to_vec(),
        // Interleaved ascending runs.
        |i, _| format!("run{:02}/{i:08}", i % 7).into_bytes(),
        |i, _| (i / 3).to_le_bytes().to_vec(),
    ];
    for (order, key_of) in orders.into_iter().enumerate() {
        let mut random = SplitMix::new(order as u64);
        let (_, memtable) = new_memtable();
        let mut model = Model::new();
        for i in 0..count {
            insert_both(&memtable, &mut model, &key_of(i, count), i + 1, b"value");
        }
        check(&memtable, &model, &mut random);
    }
}

#[test]
fn extreme_keys_and_values_are_kept() {
    let (pool, memtable) = new_memtable();
    let mut model = Model::new();
    let mut random = SplitMix::new(5);
    let large_bytes = if cfg!(miri) { 1000 } else { KEY_BYTES_MAX };
    let large = vec![7; large_bytes];
    let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0], vec![0xff; 4], large.clone()];
    keys.push([&large[..large_bytes - 1], &[8]].concat());
    keys.push(large[..large_bytes - 1].to_vec());
    for bytes in 0..scaled(300).max(6) {
        keys.push(vec![7; bytes]);
        keys.push([&large[..bytes], &[0]].concat());
    }
    let keys: BTreeSet<Vec<u8>> = keys.into_iter().collect();
    let value_bytes = [0, 1, 255, 256, 4000, 4096, 65_535, 65_536, 70_000, 262_080, 300_000];
    let mut seqno = 0;
    for round in 0..if cfg!(miri) { 1 } else { 3 } {
        for key in &keys {
            seqno += 1;
            let bytes = match random.index(20) {
                0 => value_bytes[random.index(value_bytes.len())],
                _ => round,
            };
            insert_both(&memtable, &mut model, key, seqno, &vec![seqno as u8; bytes]);
        }
    }
    insert_both(&memtable, &mut model, b"", Seqno::MAX.0, &vec![1; 300_000]);
    check(&memtable, &model, &mut random);
    assert_eq!(pool.bytes_in_use(), memtable.bytes());
    assert!(memtable.bytes() >= memtable.data_bytes());
}

#[test]
fn one_key_may_have_very_many_versions() {
    let (_, memtable) = new_memtable();
    let mut model = Model::new();
    let mut random = SplitMix::new(6);
    for seqno in 1..=scaled(5000) as u64 {
        insert_both(&memtable, &mut model, b"counter", seqno, &seqno.to_le_bytes());
        if random.index(50) == 0 {
            insert_both(&memtable, &mut model, b"counter0", seqno, b"");
            insert_both(&memtable, &mut model, b"counte", seqno, b"");
        }
    }
    check(&memtable, &model, &mut random);
    assert_eq!(memtable.versions(b"counter", Seqno::MAX).count(), scaled(5000));
}

#[test]
fn little_memory_goes_beyond_keys_and_values() {
    let (_, memtable) = new_memtable();
    let mut random = SplitMix::new(7);
    let count = scaled(100_000);
    for seqno in 0..count as u64 {
        let key = format!("user{:020}", random.next());
        memtable.insert(key.as_bytes(), Seqno(seqno), EntryKind::Put, &[0; 100]);
    }
    let overhead = (memtable.bytes() - memtable.data_bytes()) as f64 / count as f64;
    // Up to one chunk may still be unused. Of 25.6 bytes per entry, half a byte is waste of the
    // small chunks at the beginning.
    let unused = pool::CHUNK_BYTES as f64 / count as f64;
    let most = if cfg!(miri) { 100.0 } else { 25.7 };
    assert!(overhead <= most + unused, "{overhead} bytes an entry");
}

#[test]
fn chunks_go_from_one_memtable_to_the_next() {
    let pool = Arc::new(ChunkPool::new(8 << 20));
    for round in 0..4 {
        let memtable = Arc::new(Memtable::new(pool.clone()));
        let mut model = Model::new();
        let mut random = SplitMix::new(round);
        for seqno in 0..scaled(4000) as u64 {
            let key = random.next().to_be_bytes();
            insert_both(&memtable, &mut model, &key, seqno, &[round as u8; 100]);
        }
        assert!(round == 0 || pool.bytes_retained() <= 1 << 20);
        check(&memtable, &model, &mut random);
    }
    assert_eq!(pool.bytes_in_use(), 0);
    assert!(pool.bytes_retained() > 0);
}

/// The `i`-th entry of thread `writer`: `(key, seqno)`, unique over all threads.
type KeyOf = fn(writer: u64, i: u64) -> Vec<u8>;

const WRITERS: u64 = 4;

const KEYS_OF: [KeyOf; 5] = [
    // Disjoint ranges, ascending.
    |writer, i| format!("{writer}/{i:08}").into_bytes(),
    // Interleaved, ascending.
    |writer, i| format!("user{:012}", i * WRITERS + writer).into_bytes(),
    // Interleaved, descending.
    |writer, i| (u32::MAX - (i * WRITERS + writer) as u32).to_be_bytes().to_vec(),
    // Scattered.
    |writer, i| SplitMix::new(i * WRITERS + writer).next().to_be_bytes().to_vec(),
    // The same few keys.
    |_, i| format!("hot{}", i % 5).into_bytes(),
];

#[test]
fn many_writers_lose_nothing() {
    let each = scaled(6000) as u64;
    for (case, key_of) in KEYS_OF.into_iter().enumerate() {
        let (pool, memtable) = new_memtable();
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let memtable = &memtable;
                scope.spawn(move || {
                    for i in 0..each {
                        let key = key_of(writer, i);
                        let seqno = Seqno(i * WRITERS + writer);
                        memtable.insert(&key, seqno, EntryKind::Put, &seqno.0.to_le_bytes());
                        let found = memtable.get(&key, seqno).expect("own insert is visible");
                        assert_eq!((found.key, found.seqno), (&*key, seqno));
                    }
                });
            }
        });
        let mut model = Model::new();
        for writer in 0..WRITERS {
            for i in 0..each {
                let seqno = i * WRITERS + writer;
                let value = (EntryKind::Put, seqno.to_le_bytes().to_vec());
                model.insert((key_of(writer, i), Reverse(seqno)), value);
            }
        }
        check(&memtable, &model, &mut SplitMix::new(case as u64));
        assert_eq!(pool.bytes_in_use(), memtable.bytes());
    }
}

/// Walks the whole memtable and checks that it yields everything inserted before, in order and
/// once: the first `before[w]` entries of each writer `w`.
fn walk(cursor: &mut MemtableCursor, forward: bool, before: &[u64]) {
    let mut last: Option<(Vec<u8>, Reverse<u64>)> = None;
    let mut met = [0; WRITERS as usize];
    if forward {
        cursor.seek_first().unwrap()
    } else {
        cursor.seek_last().unwrap()
    }
    while let Some(entry) = cursor.entry() {
        let writer = (entry.seqno.0 % WRITERS) as usize;
        assert_eq!(entry.value, entry.seqno.0.to_le_bytes());
        met[writer] += u64::from(entry.seqno.0 / WRITERS < before[writer]);
        let at = (entry.key.to_vec(), Reverse(entry.seqno.0));
        if let Some(last) = &last {
            assert!(if forward { *last < at } else { *last > at });
        }
        last = Some(at);
        if forward { cursor.next().unwrap() } else { cursor.prev().unwrap() }
    }
    assert_eq!(met, before);
}

#[test]
fn readers_and_cursors_meet_all_that_was_there() {
    let each = scaled(5000) as u64;
    for (case, key_of) in KEYS_OF.into_iter().enumerate() {
        let (_, memtable) = new_memtable();
        let done: [AtomicU64; WRITERS as usize] = Default::default();
        let running = AtomicBool::new(true);
        let (memtable, done, running) = (&memtable, &done, &running);
        thread::scope(|scope| {
            let readers = [true, false].map(|forward| {
                scope.spawn(move || {
                    let mut random = SplitMix::new(case as u64);
                    let mut cursor = memtable.cursor();
                    let mut rounds = 0;
                    while running.load(Ordering::Relaxed) || rounds == 0 {
                        rounds += 1;
                        let before = done.each_ref().map(|done| done.load(Ordering::Acquire));
                        walk(&mut cursor, forward, &before);
                        for (writer, &before) in before.iter().enumerate() {
                            if before == 0 {
                                continue;
                            }
                            for _ in 0..scaled(1000) {
                                let i = random.next() % before;
                                let key = key_of(writer as u64, i);
                                let seqno = Seqno(i * WRITERS + writer as u64);
                                let found = memtable.get(&key, seqno).expect("it was inserted");
                                assert_eq!((found.key, found.seqno), (&*key, seqno));
                            }
                        }
                    }
                })
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    scope.spawn(move || {
                        for i in 0..each {
                            let seqno = Seqno(i * WRITERS + writer);
                            let value = seqno.0.to_le_bytes();
                            memtable.insert(&key_of(writer, i), seqno, EntryKind::Put, &value);
                            done[writer as usize].store(i + 1, Ordering::Release);
                        }
                    })
                })
                .collect();
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            running.store(false, Ordering::Relaxed);
            assert!(written.iter().all(Result::is_ok));
            for reader in readers {
                reader.join().unwrap();
            }
        });
        walk(&mut memtable.cursor(), true, &[each; WRITERS as usize]);
        walk(&mut memtable.cursor(), false, &[each; WRITERS as usize]);
    }
}

#[test]
fn a_cursor_keeps_its_memtable() {
    let (pool, memtable) = new_memtable();
    memtable.insert(b"key", Seqno(1), EntryKind::Put, b"value");
    let mut cursor = memtable.cursor();
    drop(memtable);
    let mut cursor = thread::scope(|scope| {
        scope
            .spawn(move || {
                cursor.seek(b"k").unwrap();
                cursor
            })
            .join()
            .unwrap()
    });
    assert_eq!(cursor.entry().unwrap().value, b"value");
    cursor.next().unwrap();
    assert!(cursor.entry().is_none());
    assert!(pool.bytes_in_use() > 0);
    drop(cursor);
    assert_eq!(pool.bytes_in_use(), 0);
}
