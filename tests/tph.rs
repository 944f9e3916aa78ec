//! What a `tph` keyspace promises beyond what all kinds do: one read for a get, next to none for an absent key, and data
//! that is not copied again and again.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Random, assert_sound};
use spinney::vfs::MemoryVfs;
use spinney::{Builder, Compression, Database, KeyspaceOptions, MIB};

fn builder(memtable_bytes: u64) -> Builder {
    Database::builder("/data/store")
        .vfs(Arc::new(MemoryVfs::new()))
        .memory_budget(8 * MIB)
        .memtable_bytes(memtable_bytes)
        .deterministic(1)
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
        let before = db.stats();
        for _ in 0..gets {
            let number = first + random.below(records);
            let found = keyspace.get(key(number)).unwrap();
            let expected = is_there.then(|| vec![number as u8; value_bytes]);
            assert_eq!(found.as_deref(), expected.as_deref());
        }
        let now = db.stats();
        let false_positives = now.filter_false_positives - before.filter_false_positives;
        assert!(false_positives <= gets as u64 / 20, "{false_positives} false positives");
        (now.pages_read - before.pages_read) as f64 / f64::from(gets)
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

/// All that gets and scans keep in memory to read a page of data at once, with a few pieces of each TPH; then of pieces that
/// have been merged whole.
#[test]
fn indexes_take_few_bytes_per_key() {
    let records = 200_000;
    let db = builder(1 << 20).memory_budget(64 * MIB).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::tph()).unwrap();
    for number in 0..records {
        keyspace.put(key(number), [7; 100]).unwrap();
        db.step().unwrap();
    }
    let per_key = |what: &str| {
        db.wait_idle().unwrap();
        let nodes = keyspace.describe().unwrap().nodes;
        let groups: BTreeMap<_, _> =
            nodes.iter().flat_map(|node| &node.groups).map(|group| (group.id, group)).collect();
        let files: BTreeMap<_, _> =
            groups.values().flat_map(|it| &it.files).map(|file| (file.id, file)).collect();
        let count = |counts: &[(String, u64)], of: &str| {
            counts.iter().filter(|(name, _)| name == of).map(|(_, count)| *count).sum::<u64>()
        };
        let in_files =
            |of: &str| files.values().map(|file| count(&file.counts, of)).sum::<u64>() as f64;
        let heads = groups.values().map(|it| count(&it.counts, "index_bytes")).sum::<u64>() as f64;
        let (local, pages) = (in_files("local_index_bytes"), in_files("index_pages") * 4096.0);
        let [heads, local, pages] = [heads, local, pages].map(|bytes| bytes / records as f64);
        let entries: u64 = files.values().map(|file| file.entries).sum();
        let times = entries as f64 / records as f64;
        println!("{what}: heads {heads:.2}, local {local:.2}, pages {pages:.2}, {times:.2} times");
        (heads, heads + local + pages)
    };
    let (heads, all) = per_key("loaded");
    assert!(heads > 0.2 && all < 6.0, "{heads} bytes of heads, {all} in all per key");
    keyspace.compact(..).unwrap();
    let (heads, all) = per_key("merged");
    assert!(heads == 0.0 && all < 4.5, "{heads} bytes of heads, {all} in all per key");
}

/// The bytes that compactions write for each of the user's, while keys are inserted at random.
fn compacted_per_byte(options: KeyspaceOptions, memtable_bytes: u64) -> f64 {
    let records: u64 = 150_000;
    let db = builder(memtable_bytes).open().unwrap();
    let keyspace = db.keyspace("items", options).unwrap();
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
    db.stats().compaction.written_bytes as f64 / user_bytes
}

/// What lies in pieces that stay is not copied: random inserts are written about as often as in `stb`.
#[test]
fn pieces_are_adopted() {
    let written = compacted_per_byte(KeyspaceOptions::tph(), 256 << 10);
    println!("{written} bytes compacted for each of the user's");
    assert!(written < 2.8, "{written} bytes compacted for each of the user's");
}

/// With one level, what has collected in the root is merged once, and a get is one read all the same.
#[test]
fn one_level_compacts_less() {
    let options = || KeyspaceOptions::tph().one_level(true);
    let [one, many] =
        [options(), KeyspaceOptions::tph()].map(|options| compacted_per_byte(options, 128 << 10));
    println!("{one} bytes compacted for each of the user's, {many} otherwise");
    assert!(one < 2.0 && one < many * 0.7, "{one} bytes compacted, {many} otherwise");
    let (there, absent) = pages_per_get(options(), 100);
    println!("{there} pages, {absent}");
    assert!(there < 1.02 && absent < 0.02, "{there} pages, absent {absent}");
}

/// Of ascending keys, all memtables go to one leaf. A key that is far from them and is written now and then kept each of them in
/// the root, which did not merge what was left of them there: 526 after 100 MiB with 4 MiB of memory.
#[test]
fn the_root_of_one_level_has_few_bundles() {
    let db = builder(32 << 10).open().unwrap();
    let keyspace = db.keyspace("items", KeyspaceOptions::tph().one_level(true)).unwrap();
    let mut most = 0;
    for number in 0..40_000u64 {
        keyspace.put(format!("key{number:08}"), [7; 200]).unwrap();
        if number % 50 == 0 {
            keyspace.put("a key that is far away", number.to_le_bytes()).unwrap();
        }
        db.step().unwrap();
        if number % 500 == 0 {
            let nodes = keyspace.describe().unwrap().nodes;
            let root = nodes.iter().max_by_key(|node| node.height).unwrap();
            most = most.max(root.groups.len());
        }
    }
    db.wait_idle().unwrap();
    println!("at most {most} bundles");
    // Twice as many memtables as the root holds, and eight.
    assert!(most <= 2 * 32 + 8, "{most} bundles");
    assert_sound(&db);
}

/// A piece of which younger ones have most keys was copied by each compaction of its leaf, if the piece after it was large: what
/// superseded its keys was not read, so nothing was dropped.
#[test]
fn a_piece_that_is_mostly_dead_is_not_copied_again_and_again() {
    let records: u64 = 40_000;
    let db = builder(256 << 10).open().unwrap();
    let options = KeyspaceOptions::tph().space_amplification_max(3.0);
    let keyspace = db.keyspace("items", options).unwrap();
    let write = |numbers: std::ops::Range<u64>, step: usize| {
        let before = db.stats().compaction.written_bytes;
        let mut written = 0;
        for number in numbers.step_by(step) {
            // Not in the order of keys.
            let key = ((number % 97) << 32) | (number / 97);
            keyspace.put(key.to_be_bytes(), [7; 128]).unwrap();
            written += 8 + 128;
            db.step().unwrap();
        }
        db.wait_idle().unwrap();
        (db.stats().compaction.written_bytes - before) as f64 / written as f64
    };
    write(0..records, 1);
    keyspace.compact(..).unwrap();
    // Three in four are written again, and then others beside them.
    for part in 0..3 {
        write(part..records, 4);
    }
    let copied = write(records..records * 2, 1);
    println!("{copied} bytes compacted for each of the user's");
    assert!(copied < 1.9, "{copied} bytes compacted for each of the user's");
    assert_sound(&db);
}
