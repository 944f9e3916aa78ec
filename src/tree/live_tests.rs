//! What samples tell of what is live, against what was written.

use super::*;
use crate::base::ids::Seqno;
use crate::table::{BlobFiles, BlobWriter, SampleLimit, TableBuilder, TableOptions};
use crate::tree::edits::tests::data_files;
use crate::tree::range::table_part;
use crate::tree::test_support::{key_of, table_of};

/// Puts of [`table_of`] have 8 bytes of key and 100 of value.
const PAIR_BYTES: u64 = 108;

fn within(found: u64, expected: u64, percent: u64) -> bool {
    found.abs_diff(expected) * 100 <= expected * percent
}

/// What is live in these tables.
fn live_in(live: &mut LiveKeys, tables: &[Arc<Table>]) -> Live {
    let mut stored = Stored::default();
    tables.iter().for_each(|table| stored.add(table));
    live.shares(0, stored, || tables.iter().collect()).of(stored)
}

#[test]
fn overwrites_and_deletes_across_tables_are_not_live() {
    let files = data_files();
    let mut live = LiveKeys::default();
    let mut tables = Vec::new();
    let mut take = |kind, age, keys: Vec<u64>| {
        let table = table_of(&files, kind, age, keys);
        live.apply(&table.properties().sample);
        tables.push(table);
        live_in(&mut live, &tables)
    };
    let loaded = take(EntryKind::Put, 1, (0..20_000).collect());
    assert_eq!((loaded.keys, loaded.entry_bytes), (20_000, 20_000 * PAIR_BYTES));
    let same = take(EntryKind::Put, 2, (0..20_000).collect());
    assert_eq!((same.keys, same.entry_bytes), (loaded.keys, loaded.entry_bytes));
    assert!((same.superseding_share - 0.5).abs() < 1e-9);
    let more = take(EntryKind::Put, 3, (10_000..30_000).collect());
    assert!(within(more.keys, 30_000, 15), "{more:?}");
    let less = take(EntryKind::Delete, 4, (0..30_000).step_by(2).collect());
    assert!(within(less.keys, 15_000, 15), "{less:?}");
    assert!(within(less.entry_bytes, 15_000 * PAIR_BYTES, 15), "{less:?}");
    let none = take(EntryKind::Delete, 5, (1..30_000).step_by(2).collect());
    assert_eq!((none.keys, none.entry_bytes), (0, 0));
}

/// Of many tables, one merge dropped all that was dead, a quarter: as one change of so many tables it was no reason to
/// compare them again, and a quarter of what was live was taken for dead.
#[test]
fn one_merge_of_many_tables_is_seen_at_once() {
    let files = data_files();
    let mut live = LiveKeys::default();
    let table =
        |age: u64, keys: u64| table_of(&files, EntryKind::Put, age, keys * 100..(keys + 1) * 100);
    let mut tables: Vec<_> = (0..300).map(|part| table(part + 1, part)).collect();
    tables.extend((0..100).map(|part| table(part + 301, part)));
    let told = |tables: &[Arc<Table>], live: &mut LiveKeys| {
        let mut stored = Stored::default();
        tables.iter().for_each(|table| stored.add(table));
        let count = tables.len() as u64;
        live.shares(count, stored, || tables.iter().collect()).of(stored).entry_bytes
    };
    tables.iter().for_each(|table| live.apply(&table.properties().sample));
    let before = told(&tables, &mut live);
    assert!(within(before, 30_000 * PAIR_BYTES, 3), "{before}");
    tables.drain(..100);
    assert_eq!(told(&tables, &mut live), 30_000 * PAIR_BYTES);
}

/// Of values of which a few take most of the space the sample had none, or twice its part: live bytes as told were off
/// by a quarter, and space that was dead was not reclaimed.
#[test]
fn a_few_large_values_do_not_mislead_where_nothing_is_dead() {
    let files = data_files();
    let load = |age: u64, keys: std::ops::Range<u64>| {
        let options = TableOptions {
            creation: age,
            sample_limit: SampleLimit::keys(256),
            ..TableOptions::default()
        };
        let mut table = TableBuilder::new(&files, &BlobFiles::new(&files), options).unwrap();
        for key in keys {
            let value = if key % 997 == 0 { vec![7; 60_000] } else { vec![7; 20] };
            table.add(&key_of(key), Seqno(age), EntryKind::Put, &value).unwrap();
        }
        table.finish().unwrap()
    };
    let mut live = LiveKeys::default();
    let mut tables = Vec::new();
    for age in 1..=4 {
        let table = load(age, age * 5000..(age + 1) * 5000);
        live.apply(&table.properties().sample);
        tables.push(table);
        let entry_bytes: u64 = tables.iter().map(|table| table.properties().entry_bytes()).sum();
        let found = live_in(&mut live, &tables);
        assert_eq!((found.keys, found.entry_bytes), (age * 5000, entry_bytes));
    }
    // The same again: what is dead is as large as what is live.
    let all: u64 = tables.iter().map(|table| table.properties().entry_bytes()).sum();
    let again = load(5, 5000..25_000);
    live.apply(&again.properties().sample);
    tables.push(again);
    let found = live_in(&mut live, &tables);
    assert!(within(found.entry_bytes, all, 1) && found.keys == 20_000, "{found:?} of {all}");
}

/// A key of very many versions, which the sample had or had not, decided what part of all other keys was live.
#[test]
fn keys_of_many_versions_say_nothing_of_the_others() {
    let files = data_files();
    for hot in 0..40 {
        let options =
            TableOptions { sample_limit: SampleLimit::keys(256), ..TableOptions::default() };
        let mut table = TableBuilder::new(&files, &BlobFiles::new(&files), options).unwrap();
        for key in 0..10_000 {
            let versions = if key == hot * 250 { 20_000 } else { 1 };
            for seqno in (1..=versions).rev() {
                table.add(&key_of(key), Seqno(seqno), EntryKind::Put, &[7; 100]).unwrap();
            }
        }
        let table = table.finish().unwrap();
        let mut live = LiveKeys::default();
        live.apply(&table.properties().sample);
        let found = live_in(&mut live, &[table]);
        assert!(within(found.entry_bytes, 10_000 * PAIR_BYTES, 25), "{hot}: {found:?}");
    }
}

/// Of a key with many versions in one table only the newest version's value in a blob file was counted: what the others
/// had was live for good.
#[test]
fn older_versions_in_blob_files_are_not_live() {
    let files = data_files();
    let blobs = BlobFiles::new(&files);
    let mut writer = BlobWriter::new(&blobs).unwrap();
    let mut table = TableBuilder::new(&files, &blobs, TableOptions::default()).unwrap();
    for key in 0..100 {
        for seqno in [9, 7, 5, 3] {
            let mut pointer = Vec::new();
            writer.append(&[7; 5000]).unwrap().encode(&mut pointer);
            table.add(&key_of(key), Seqno(seqno), EntryKind::PutBlob, &pointer).unwrap();
        }
    }
    let _file = writer.finish().unwrap();
    let table = table.finish().unwrap();
    let mut live = LiveKeys::default();
    live.apply(&table.properties().sample);
    let found = live_in(&mut live, &[table]);
    assert!(within(found.blob_bytes, 100 * 5000, 1) && found.keys == 100, "{found:?}");
}

/// A keyspace that deletes had made small kept the coarse sample of when it was large.
#[test]
fn a_keyspace_that_has_become_small_is_sampled_anew() {
    let files = data_files();
    let large = table_of(&files, EntryKind::Put, 1, 0..100_000);
    let small = table_of(&files, EntryKind::Put, 2, 0..200);
    let mut live = LiveKeys::default();
    live.apply(&large.properties().sample);
    let [of_large, of_small] = [&large, &small].map(|table| table.properties().sample.threshold());
    assert!(live.is_small() && !live.is_outgrown(of_large.min(of_small)));
    assert!(live.is_outgrown(of_small));
    live.apply(&small.properties().sample);
    assert!(live.is_outgrown(of_small), "it is still as coarse");
    live = LiveKeys::default();
    live.apply(&small.properties().sample);
    assert_eq!(live_in(&mut live, &[small]).keys, 200);
}

/// Of many tables only as many keys are followed as there is room for.
#[test]
fn the_sample_stays_small() {
    let files = data_files();
    let mut live = LiveKeys::default();
    for age in 0..40 {
        let table = table_of(&files, EntryKind::Put, age, age * 250..(age + 1) * 250);
        live.apply(&table.properties().sample);
    }
    assert!(live.keys.len() <= KEYS_MAX && live.keys.len() > KEYS_MAX / 4);
    assert!(within(live.scaled().entries, 10_000, 10), "{:?}", live.scaled());
}

fn operand(bytes: u32, versions: u8, kind: EntryKind) -> SampledKey {
    let newest_bytes = 10 + bytes;
    SampledKey {
        hash: 1,
        position: 0,
        bytes: newest_bytes * u32::from(versions),
        newest_bytes,
        blob_bytes: 0,
        blob_bytes_all: 0,
        key_bytes: 10,
        versions,
        kind,
        is_folded: false,
    }
}

#[test]
fn operands_replace_counters_and_lengthen_what_is_longer() {
    let add = |before, bytes, versions| {
        LiveKey::after(before, &operand(bytes, versions, EntryKind::Merge))
    };
    let counter = add(add(None, 8, 1), 8, 5);
    assert_eq!(counter.map(|key| key.entry_bytes), Some(18));
    let text = add(add(None, 100, 2), 100, 3);
    assert_eq!(text.map(|key| key.entry_bytes), Some(510));
    let put = LiveKey::after(None, &operand(200, 1, EntryKind::Put));
    assert_eq!(add(put, 8, 1).map(|key| key.entry_bytes), Some(218));
    assert!(LiveKey::after(counter, &operand(0, 1, EntryKind::Delete)).is_none());
}

#[test]
fn the_overlap_of_parts_is_what_a_merge_drops() {
    let files = data_files();
    let old = table_of(&files, EntryKind::Put, 1, 0..4000);
    let young = table_of(&files, EntryKind::Put, 2, 2000..6000);
    let gone = table_of(&files, EntryKind::Delete, 3, 4000..6000);
    let dead_in = |tables: &[&Arc<Table>], lower: u64, upper: u64| {
        let mut overlap = Overlap::default();
        for table in tables {
            let part = table_part(table, &key_of(lower), Some(&key_of(upper))).unwrap();
            overlap.add(table, part);
        }
        overlap.dead().share
    };
    assert_eq!(dead_in(&[&old], 0, 6000), 0.0);
    assert!((dead_in(&[&old, &young], 0, 6000) - 0.25).abs() < 0.06);
    assert!(dead_in(&[&old, &young], 0, 1900) < 0.02, "they do not meet there");
    assert!((dead_in(&[&old, &young], 2000, 4000) - 0.5).abs() < 0.08);
    assert!(dead_in(&[&young, &gone], 4000, 6000) > 0.95);
}

/// Tombstones that fill less than a leaf in a range counted as none there, although they ended most of what the range
/// holds: at rest, scans went on reading them and what they hid.
#[test]
fn tombstones_of_part_of_a_leaf_count_where_they_delete_something() {
    let files = data_files();
    let puts = table_of(&files, EntryKind::Put, 1, 0..4000);
    let deletes = table_of(&files, EntryKind::Delete, 2, (1000..1100).chain(3000..3100));
    let deleted_in = |lower: u64, upper: u64| {
        let mut overlap = Overlap::default();
        for table in [&puts, &deletes] {
            let part = table_part(table, &key_of(lower), Some(&key_of(upper))).unwrap();
            assert!(table.id() == puts.id() || part.size.entries == 0, "it is told by an index");
            overlap.add(table, part);
        }
        overlap.dead().deleted_share
    };
    assert!(deleted_in(1001, 1110) > 0.6);
    assert!(deleted_in(1001, 2990) < 0.2);
    assert!(deleted_in(1200, 2900) == 0.0, "they delete nothing there");
}

/// Leaves of tombstones have many more entries than those of the same table's values, and a leaf that two parts of a table
/// share counts once.
#[test]
fn parts_of_a_leaf_are_found_in_mixed_tables_and_count_once() {
    let files = data_files();
    let puts = table_of(&files, EntryKind::Put, 1, 0..1000);
    let options = TableOptions { creation: 2, ..TableOptions::default() };
    let mut mixed = TableBuilder::new(&files, &BlobFiles::new(&files), options).unwrap();
    for key in 0..1000 {
        let (kind, value) = match key {
            400..600 => (EntryKind::Delete, &[][..]),
            _ => (EntryKind::Put, &[7; 1000][..]),
        };
        mixed.add(&key_of(key), Seqno(2), kind, value).unwrap();
    }
    let mixed = mixed.finish().unwrap();
    let part_of = |table: &Arc<Table>, lower: u64, upper: u64| {
        table_part(table, &key_of(lower), Some(&key_of(upper))).unwrap()
    };
    let mut overlap = Overlap::default();
    overlap.add(&puts, part_of(&puts, 410, 590));
    let part = part_of(&mixed, 410, 590);
    assert_eq!(part.size.entries, 0);
    overlap.add(&mixed, part);
    assert!(overlap.dead().deleted_share > 0.6, "{:?}", overlap.dead());
    // The second part lies in the leaf in which the first one ends.
    let mut overlap = Overlap::default();
    for (lower, upper) in [(100, 150), (151, 152)] {
        overlap.add(&puts, part_of(&puts, lower, upper));
    }
    assert_eq!(overlap.dead().share, 0.0);
    // It is no part of the table at all.
    let mut overlap = Overlap::default();
    overlap.add(&puts, part_of(&puts, 2000, 3000));
    assert_eq!(overlap.dead().keys, 0);
}
