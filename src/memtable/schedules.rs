//! Scenarios of the memtable: writers that split nodes under readers.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::{ChunkPool, Memtable};
use crate::base::entry::{Cursor, EntryKind};
use crate::base::ids::Seqno;

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn insert(memtable: &Memtable, number: u64) {
    memtable.insert(&key(number), Seqno(number + 1), EntryKind::Put, &key(!number));
}

fn check_found(memtable: &Memtable, number: u64) {
    let entry = memtable.get(&key(number), Seqno::MAX);
    let entry = entry.unwrap_or_else(|| panic!("key {number} is lost"));
    assert_eq!(entry.value, key(!number));
}

/// What an insert that returned has added is found, by search and in order, while others insert.
pub(crate) fn readers_of_a_growing_index() {
    let memtable = Arc::new(Memtable::new(Arc::new(ChunkPool::new(1 << 20))));
    let prefilled = 11;
    for number in 0..prefilled {
        insert(&memtable, number * 4);
    }
    // Each writer's keys fall between those that are there, from either end.
    let done: Arc<[AtomicU64; 2]> = Arc::default();
    let per_writer = 5;
    let number = move |writer: u64, at: u64| {
        if writer == 0 { at * 4 + 1 } else { (prefilled - 1 - at) * 4 + 2 }
    };
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (memtable, done) = (Arc::clone(&memtable), Arc::clone(&done));
            thread::spawn(move || {
                for at in 0..per_writer {
                    insert(&memtable, number(writer, at));
                    done[writer as usize].store(at + 1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let acknowledged = |writer: u64| {
        (0..done[writer as usize].load(Ordering::SeqCst)).map(move |at| number(writer, at))
    };
    for number in acknowledged(0).chain(acknowledged(1)).chain([20]) {
        check_found(&memtable, number);
    }
    let must: Vec<u64> = acknowledged(0).chain(acknowledged(1)).collect();
    let mut cursor = memtable.cursor();
    cursor.seek_first().unwrap();
    let mut seen = Vec::new();
    while let Some(entry) = cursor.entry() {
        seen.push(u64::from_be_bytes(entry.key.try_into().unwrap()));
        cursor.next().unwrap();
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    let expected = (0..prefilled).map(|number| number * 4).chain(must);
    for number in expected {
        assert!(seen.binary_search(&number).is_ok(), "the cursor missed {number}: {seen:?}");
    }
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(memtable.len() as u64, prefilled + 2 * per_writer);
    for writer in 0..2 {
        (0..per_writer).for_each(|at| check_found(&memtable, number(writer, at)));
    }
}

/// Versions of one key, from several writers: a snapshot sees the newest that is not above it.
pub(crate) fn versions_of_one_key() {
    let memtable = Arc::new(Memtable::new(Arc::new(ChunkPool::new(1 << 20))));
    let versions = 8;
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let memtable = Arc::clone(&memtable);
            thread::spawn(move || {
                for seqno in (1..=versions).filter(|seqno| seqno % 2 == writer) {
                    memtable.insert(b"key", Seqno(seqno), EntryKind::Put, &key(seqno));
                }
            })
        })
        .collect();
    for snapshot in [versions, 3] {
        if let Some(entry) = memtable.get(b"key", Seqno(snapshot)) {
            assert!(entry.seqno.0 <= snapshot);
            assert_eq!(entry.value, key(entry.seqno.0));
        }
    }
    let seen: Vec<u64> =
        memtable.versions(b"key", Seqno(versions)).map(|entry| entry.seqno.0).collect();
    assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
    for writer in writers {
        writer.join().unwrap();
    }
    let all: Vec<u64> = memtable.versions(b"key", Seqno::MAX).map(|entry| entry.seqno.0).collect();
    assert_eq!(all, (1..=versions).rev().collect::<Vec<u64>>());
}
