//! The list of a table's keys, in memory and in its file, against the leaves.

use std::path::Path;
use std::sync::Arc;

use super::format_tests::{TABLE, example};
use super::key_list_page::{FILTER_KIND_KEYS, KeyEncoder, ListLimits, TableKey, read_key};
use super::key_scan::KeyScan;
use super::test_support::TestFiles;
use super::tests::{Entry, generate, sort};
use super::{Table, TableBuilder, TableFilter, TableOptions};
use crate::base::codec::Decoder;
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::base::random::SplitMix;
use crate::cache::{Compression, FileType, PagePointer};

fn build(files: &TestFiles, lz4: bool, percent: u8, entries: &[Entry]) -> Arc<Table> {
    let compression = if lz4 { Compression::Lz4 } else { Compression::None };
    let filter = TableFilter::Listed(percent);
    let options = TableOptions { compression, creation: 7, filter, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    for (key, seqno, kind, value) in entries {
        builder.add(key, Seqno(*seqno), *kind, value).unwrap();
    }
    builder.finish().unwrap()
}

fn keys_in(mut scan: KeyScan) -> Vec<TableKey> {
    let mut keys = Vec::new();
    while scan.next().unwrap() {
        keys.push(scan.key().clone());
    }
    keys
}

/// A table's keys as its leaves have them.
fn in_leaves(table: &Arc<Table>) -> Vec<TableKey> {
    keys_in(KeyScan::of_leaves(table, 64 << 10).unwrap())
}

#[test]
fn a_list_in_the_file_says_what_the_leaves_do() {
    let (mut random, mut stored) = (SplitMix::new(5), 0);
    for round in 0..160 {
        let entries = generate(&mut random, round % 8);
        let files = TestFiles::new();
        let table = build(&files, round % 3 == 0, 100, &entries);
        let is_stored = table.footer.filter.kind == FILTER_KIND_KEYS;
        stored += u64::from(is_stored);
        let expected = in_leaves(&table);
        // What is built in memory is the same.
        let list = table.take_keys().unwrap();
        assert_eq!(list.len(), expected.len());
        for (at, key) in expected.iter().enumerate() {
            let listed = list.get(at).unwrap();
            assert!(listed.key == key.key && listed.versions == key.versions, "{key:?}");
        }
        // Whoever reads ahead asks for what is behind the last.
        assert!((0..3).all(|more| list.key(expected.len() + more).is_none()));
        for chunk_bytes in [4096, 1 << 20] {
            assert!(keys_in(KeyScan::new(&table, chunk_bytes).unwrap()) == expected);
        }
        let again = Table::open(&files.files, &files.blobs, table.id()).unwrap();
        assert!(keys_in(KeyScan::new(&again, 4096).unwrap()) == expected);
        let seen = again.check().unwrap();
        assert_eq!(seen.filter_pages > 0, is_stored);
        assert!(again.take_keys().is_none());
    }
    assert!(stored > 80, "{stored} lists");
}

/// Keys of 20 bytes with values of so many bytes.
fn pairs(count: u64, value_bytes: usize) -> Vec<Entry> {
    let mut random = SplitMix::new(1);
    let pair = |seqno| (random.bytes(20), seqno, EntryKind::Put, vec![7; value_bytes]);
    let mut entries: Vec<Entry> = (1..=count).map(pair).collect();
    sort(&mut entries);
    entries
}

/// Of small tables, a list of few bytes was written: it takes a whole unit.
#[test]
fn a_list_that_takes_too_much_is_not_written() {
    let files = TestFiles::new();
    let table = build(&files, false, 99, &pairs(1, 100));
    assert_eq!((table.footer.leaf_units, table.footer.filter.units), (1, 0));
    for (value_bytes, percent, is_stored) in
        [(1000, 3, true), (1000, 2, false), (100, 3, false), (100, 25, true), (20, 100, true)]
    {
        let table = build(&files, false, percent, &pairs(10_000, value_bytes));
        let section = table.footer.filter;
        assert_eq!(section.kind == FILTER_KIND_KEYS, is_stored, "{value_bytes}, {percent} percent");
        let units_max = table.footer.leaf_units * u32::from(percent) / 100;
        assert!(section.units <= units_max, "{section:?} beside {}", table.footer.leaf_units);
    }
}

/// For each tombstone of a key, those before it were counted: a memtable of deletes of one key took minutes.
#[test]
fn many_tombstones_of_one_key_are_listed_in_one_pass() {
    const DELETES: u64 = 200_000;
    let deletes = |oldest: EntryKind| -> Vec<Entry> {
        let kind = |n| if n == 1 { oldest } else { EntryKind::Delete };
        (1..=DELETES).rev().map(|n| (b"k".to_vec(), n, kind(n), Vec::new())).collect()
    };
    for (oldest, tombstones) in [(EntryKind::Delete, DELETES as usize), (EntryKind::Put, 0)] {
        let files = TestFiles::new();
        let table = build(&files, false, 100, &deletes(oldest));
        let found = keys_in(KeyScan::new(&table, 1 << 20).unwrap());
        assert_eq!(found[0].tombstones.len(), tombstones);
        assert!(found == in_leaves(&table));
        table.check().unwrap();
    }
}

/// Whatever byte of a list is wrong, the keys are those of the leaves, and the check says so.
#[test]
fn a_damaged_list_is_as_good_as_none() {
    let files = TestFiles::new();
    let mut entries = pairs(700, 60);
    entries.extend((0..40).map(|n| (b"many".to_vec(), 1000 + n, EntryKind::Delete, Vec::new())));
    sort(&mut entries);
    let table = build(&files, false, 100, &entries);
    let expected = in_leaves(&table);
    let section = table.footer.filter;
    assert!(section.kind == FILTER_KIND_KEYS && section.pages > 3, "{section:?}");
    let path = files.files.path(table.id(), FileType::Table);
    for unit in section.first_unit..section.first_unit + section.units {
        for at in (0..4096).step_by(97) {
            let at = unit as usize * 4096 + at;
            files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            assert!(keys_in(KeyScan::new(&table, 8192).unwrap()) == expected, "byte {at}");
            assert!(table.check().unwrap_err().is_corruption(), "byte {at}");
            files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
        }
    }
    table.check().unwrap();
}

fn limits() -> ListLimits {
    ListLimits { leaf_units: 9, seqno_min: Seqno(100), seqno_max: Seqno(400) }
}

fn read_all(page: &[u8]) -> crate::base::error::Result<Vec<TableKey>> {
    let mut from = Decoder::new(page, Path::new("9.table"), 0);
    let (mut key, mut keys) = (TableKey::none(), Vec::new());
    while !from.is_empty() {
        read_key(&mut from, keys.is_empty(), &limits(), &mut key)?;
        keys.push(key.clone());
    }
    Ok(keys)
}

#[test]
fn the_example_of_a_page_of_a_list() {
    let page = example(TABLE, "### Example: a page of a list of keys");
    let of = |key: &[u8], leaf: (PagePointer, bool), versions: &[(u64, EntryKind)]| {
        let mut found = TableKey::none();
        for (at, (seqno, kind)) in versions.iter().enumerate() {
            match at {
                0 => found.begin(key, leaf, Seqno(*seqno), *kind),
                _ => found.add(Seqno(*seqno), *kind),
            }
        }
        found
    };
    let (first, second) = (PagePointer { unit: 3, units: 1 }, PagePointer { unit: 4, units: 2 });
    let keys = [
        of(b"apple", (first, false), &[(310, EntryKind::Put)]),
        of(b"apricot", (first, true), &[(120, EntryKind::Put)]),
        of(b"banana", (second, false), &[(300, EntryKind::Merge), (290, EntryKind::Merge)]),
        of(
            b"bay",
            (second, false),
            &[(250, EntryKind::Delete), (240, EntryKind::Delete), (200, EntryKind::Delete)],
        ),
        of(b"bean", (second, false), &[(220, EntryKind::Put), (110, EntryKind::Delete)]),
    ];
    let mut encoder = KeyEncoder::new(Seqno(100));
    for key in &keys {
        let older = key.tombstones.get(1..).unwrap_or_default();
        assert_eq!(encoder.add(&key.listed(), older), None);
    }
    assert_eq!(encoder.finish(), Some(page.clone()));
    assert_eq!(read_all(&page).unwrap(), keys);
    for n in 1..page.len() {
        // Shorter by whole keys, or wrong.
        let found = read_all(&page[..n]);
        assert!(found.as_ref().is_ok_and(|found| *found == keys[..found.len()]) || found.is_err());
    }
    for at in 0..page.len() {
        for bit in 0..8 {
            let mut damaged = page.clone();
            damaged[at] ^= 1 << bit;
            let sorted = |keys: Vec<TableKey>| keys.is_sorted_by(|a, b| a.key < b.key);
            assert!(read_all(&damaged).map_or_else(|error| error.is_corruption(), sorted));
        }
    }
}
