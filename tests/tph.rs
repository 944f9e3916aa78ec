//! What a `tph` keyspace promises beyond what all kinds do: one read for a get, next to none for an absent key, and data
//! that is not copied again and again.

mod common;

use std::sync::Arc;

use common::Random;
use spinney::vfs::MemoryVfs;
use spinney::{Builder, CheckLevel, Compression, Database, KeyspaceOptions, MIB};

fn builder(memtable_bytes: u64) -> Builder {
    Database::builder("/data/store")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(8 * MIB)
        .memtable_bytes(memtable_bytes)
        .deterministic(1)
}

fn assert_sound(db: &Database) {
    let report = db.check(CheckLevel::Full).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Pages read by a get of a key that is there, and by one of a key that is not, once indexes are in memory.
fn pages_per_get(options: KeyspaceOptions, value_bytes: usize) -> (f64, f64) {
    let records = (12 * MIB / (value_bytes as u64 + 16)).min(100_000);
    let gets = 5_000;
    // Leaves that are decompressed take four times the memory, beside the indexes.
    let is_compressed = options.values().contains(&("compression", "lz4".to_string()));
    let cache_bytes = if is_compressed { 6 * MIB } else { 2 * MIB };
    let db = builder(64 << 10).cache_bytes(cache_bytes).open().unwrap();
    let keyspace = db.keyspace("items", options).unwrap();
    let mut random = Random(3);
    for number in 0..records {
        keyspace.put(key(number), vec![number as u8; value_bytes]).unwrap();
        db.step().unwrap();
    }
    keyspace.flush().unwrap();
    db.wait_idle().unwrap();
    let mut pages_of_gets = |first: u64, is_there: bool| {
        let before = db.stats().pages_read;
        for _ in 0..gets {
            let number = first + random.below(records);
            let found = keyspace.get(key(number)).unwrap();
            let expected = is_there.then(|| vec![number as u8; value_bytes]);
            assert_eq!(found.as_deref(), expected.as_deref());
        }
        (db.stats().pages_read - before) as f64 / f64::from(gets)
    };
    pages_of_gets(0, true);
    let pages = (pages_of_gets(0, true), pages_of_gets(records, false));
    assert_sound(&db);
    pages
}

/// One read at sizes that fit into a leaf, that are split between two leaves (which is one request of two pages), and that
/// have a leaf of their own; with both kinds of functions.
#[test]
fn a_get_reads_one_leaf_and_a_get_of_an_absent_key_none() {
    for (value_bytes, compression, displacement, most) in [
        (100, Compression::None, false, 1.02),
        (100, Compression::None, true, 1.02),
        (100, Compression::Lz4, false, 1.02),
        (1000, Compression::None, false, 1.02),
        (3000, Compression::None, false, 1.6),
    ] {
        let options = KeyspaceOptions::tph().compression(compression).displacement(displacement);
        let (there, absent) = pages_per_get(options, value_bytes);
        println!("{value_bytes} bytes, {compression:?}, {displacement}: {there} pages, {absent}");
        assert!(there < most && absent < 0.02, "{value_bytes}: {there} pages, absent {absent}");
    }
}

/// Heads alone: local indexes and lists are in the tables.
#[test]
fn indexes_take_few_bytes_per_key() {
    let records = 200_000;
    let db = builder(1 << 20).memory_budget(64 * MIB).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::tph()).unwrap();
    for number in 0..records {
        keyspace.put(key(number), [7; 100]).unwrap();
        db.step().unwrap();
    }
    keyspace.compact(..).unwrap();
    db.wait_idle().unwrap();
    let nodes = keyspace.describe().unwrap().nodes;
    let groups = nodes.iter().flat_map(|node| &node.groups);
    let count = |of: &str| -> u64 {
        let all = groups.clone().flat_map(|group| &group.counts);
        all.filter(|(name, _)| name == of).map(|(_, count)| count).sum()
    };
    let (bytes, entries) = (count("index_bytes"), count("index_entries"));
    let each = bytes as f64 / entries as f64;
    println!("{each} bytes of heads per key, {entries} keys");
    assert!(entries == records && each < 2.3, "{bytes} bytes of heads for {entries} keys");
}

/// What lies in pieces that stay is not copied: random inserts are written about as often as in `stb`.
#[test]
fn pieces_are_adopted() {
    let records: u64 = 150_000;
    let db = builder(256 << 10).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::tph()).unwrap();
    let mut random = Random(7);
    for number in 0..records {
        let first = random.below(records) << 40 | 1;
        let pair = [first.to_be_bytes(), number.to_be_bytes()].concat();
        keyspace.put(pair, [7; 128]).unwrap();
        db.step().unwrap();
    }
    db.wait_idle().unwrap();
    assert_sound(&db);
    let user_bytes = (records * (16 + 128)) as f64;
    let written = db.stats().compaction.written_bytes as f64 / user_bytes;
    println!("{written} bytes compacted for each of the user's");
    assert!(written < 2.8, "{written} bytes compacted for each of the user's");
}
