//! Tables with a filter: false positives, cost, and damage.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::filter::FilterUse;
use super::test_support::TestFiles;
use super::tests::{Entry, build, build_with, sort};
use super::{Table, TableBuilder, TableFilter, TableOptions};
use crate::base::checksum::checksum;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Error;
use crate::base::ids::{FileId, Seqno};
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::{Compression, FileType, ReadContext, fetch_misses};

/// Even numbers, each in up to three versions.
fn entries(count: u64) -> Vec<Entry> {
    let mut random = SplitMix::new(31);
    let mut entries = Vec::new();
    for i in 0..count {
        for version in 0..1 + random.below(3) {
            let key = (i * 2).to_be_bytes().to_vec();
            let kind = [EntryKind::Put, EntryKind::Delete, EntryKind::Merge][version as usize];
            let value = if kind == EntryKind::Delete { Vec::new() } else { vec![i as u8; 20] };
            entries.push((key, i * 3 + version, kind, value));
        }
    }
    sort(&mut entries);
    entries
}

/// As lookups use filters.
fn count(table: &Table, key: &[u8], used: &mut FilterUse) -> u64 {
    let context = ReadContext::blocking();
    used.probes += u64::from(table.has_filter());
    if !table.may_contain(hash_key(key), &context).unwrap() {
        return 0;
    }
    let mut count = 0;
    let f = |_: EntryRef<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    table.get(key, Seqno::MAX, &context, f).unwrap();
    used.false_positives += u64::from(table.has_filter() && count == 0);
    count
}

#[test]
fn keys_that_a_table_lacks_are_ruled_out_and_counted() {
    let files = TestFiles::new();
    let entries = entries(20_000);
    let with = build_with(&files, false, true, &entries);
    let without = build(&files, false, &entries);
    assert_eq!(with.check().unwrap().filter_pages, (20_000u32 * 12).div_ceil(63 * 512));
    assert_eq!(with.filter_bytes(), with.bytes() - without.bytes());
    assert_eq!(without.filter_bytes(), 0);
    let (mut used, mut unused) = (FilterUse::default(), FilterUse::default());
    let mut passed = 0;
    for i in 0..40_000u64 {
        let key = i.to_be_bytes();
        let found = count(&with, &key, &mut used);
        assert_eq!(found, count(&without, &key, &mut unused));
        assert_eq!(found > 0, i % 2 == 0);
        let context = ReadContext::blocking();
        assert!(without.may_contain(hash_key(&key), &context).unwrap());
        let may_contain = with.may_contain(hash_key(&key), &context).unwrap();
        passed += u64::from(may_contain && found == 0);
    }
    assert_eq!(unused, FilterUse::default());
    assert_eq!(used, FilterUse { probes: 40_000, false_positives: passed });
    assert!((1..=100).contains(&passed), "{passed} of 20000 keys that are not there");
}

/// With its filter in the cache, a table reads nothing to exclude a key.
#[test]
fn a_key_that_is_ruled_out_costs_no_read() {
    let files = TestFiles::new();
    let table = build_with(&files, false, true, &entries(20_000));
    let absent = |i: u64| (i * 2 + 1).to_be_bytes();
    let context = ReadContext::blocking();
    for i in 0..2000 {
        table.may_contain(hash_key(&absent(i)), &context).unwrap();
    }
    assert_eq!(u64::from(context.pages_read.get()) * 4096, table.filter_bytes());
    let before = files.vfs.reads.load(Ordering::Relaxed);
    let mut used = FilterUse::default();
    for i in 2000..4000 {
        table.prefetch_filter_place(hash_key(&absent(i)));
        table.prefetch_filter_bytes(hash_key(&absent(i)));
        assert_eq!(count(&table, &absent(i), &mut used), 0);
    }
    let reads = files.vfs.reads.load(Ordering::Relaxed) - before;
    assert!(reads <= used.false_positives * 2 && used.false_positives <= 20, "{reads}, {used:?}");
}

/// Several tables are probed although their pages are missing, and all pages are fetched together.
#[test]
fn filters_of_many_tables_are_fetched_together() {
    let files = TestFiles::new();
    let tables: Vec<_> = (0..5).map(|_| build_with(&files, false, true, &entries(3000))).collect();
    let hash = hash_key(&10u64.to_be_bytes());
    let context = ReadContext::collecting();
    for table in &tables {
        assert!(matches!(table.may_contain(hash, &context), Err(Error::NotResident)));
    }
    let misses = context.misses.unwrap().take();
    assert_eq!(fetch_misses(misses).unwrap(), 5);
    let context = ReadContext::collecting();
    assert!(tables.iter().all(|table| table.may_contain(hash, &context).unwrap()));
}

/// A key's versions count once, also if they continue from leaf to leaf. The empty key counts too.
#[test]
fn versions_of_a_key_count_once() {
    let files = TestFiles::new();
    let options = TableOptions { filter: TableFilter::Blocks, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    for key in [&b""[..], b"\0", b"a", b"aa"] {
        for seqno in (1..2000).rev() {
            builder.add(key, Seqno(seqno), EntryKind::Merge, &[7; 40]).unwrap();
        }
    }
    assert_eq!(builder.list_bytes(), 4096);
    let table = builder.finish().unwrap();
    assert!(table.properties().leaf_pages > 50);
    assert_eq!(table.filter_bytes(), 4096);
    table.check().unwrap();
    let first = u64::from(table.footer.filter.first_unit) * 4096;
    let mut keys = [0; 8];
    let path = files.files.path(table.id(), FileType::Table);
    let place = first as usize + 24 + 8..first as usize + 24 + 16;
    files.vfs.edit(&path, |bytes| keys.copy_from_slice(&bytes[place]));
    assert_eq!(u64::from_le_bytes(keys), 4);
}

/// Corrects the checksums of a one-unit page.
fn seal(id: FileId, unit: u32, page: &mut [u8]) {
    let sum = checksum(id.0.rotate_left(32) ^ u64::from(unit), &page[8..]);
    page[..8].copy_from_slice(&sum.to_le_bytes());
}

/// The check finds a key that is missing from the filter, and superfluous keys.
#[test]
fn a_filter_that_disagrees_with_its_table_is_found() {
    let files = TestFiles::new();
    let entries = entries(500);
    let table = build_with(&files, false, true, &entries);
    let path = files.files.path(table.id(), FileType::Table);
    let unit = table.footer.filter.first_unit;
    let page = unit as usize * 4096..(unit as usize + 1) * 4096;
    let check = |change: &dyn Fn(&mut [u8])| {
        let mut before = Vec::new();
        files.vfs.edit(&path, |bytes| {
            before = bytes[page.clone()].to_vec();
            change(&mut bytes[page.clone()]);
            seal(table.id(), unit, &mut bytes[page.clone()]);
        });
        let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
        fresh.files.retain_all();
        let again = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
        let result = again.check();
        files.vfs.edit(&path, |bytes| bytes[page.clone()].copy_from_slice(&before));
        result
    };
    assert_eq!(check(&|_| ()).unwrap().filter_pages, 1);
    let what = |change: &dyn Fn(&mut [u8])| match check(change) {
        Err(Error::Corruption { file, what, .. }) => {
            assert_eq!(file, path);
            what
        }
        other => panic!("{other:?}"),
    };
    // The lowest bit that is set in any block.
    let lose = |page: &mut [u8]| {
        let byte = page[64..].iter_mut().find(|byte| **byte > 0).unwrap();
        *byte &= *byte - 1;
    };
    assert_eq!(what(&lose), "filter");
    assert_eq!(what(&|page| page[24 + 8] ^= 1), "keys of the filter");
    assert_eq!(what(&|page| page[24] = 1), "filter page");
    assert_eq!(what(&|page| page[24 + 4] = 2), "filter page");
}

#[test]
fn a_damaged_filter_page_is_corruption() {
    let files = TestFiles::new();
    let entries = entries(400);
    let table = build_with(&files, true, true, &entries);
    let path = files.files.path(table.id(), FileType::Table);
    let first = table.footer.filter.first_unit as usize * 4096;
    for at in (first..first + table.filter_bytes() as usize).step_by(7) {
        files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
        let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
        fresh.files.retain_all();
        let again = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
        let probed = again.may_contain(hash_key(&entries[0].0), &ReadContext::blocking());
        for error in [probed.err(), again.check().err()] {
            match error {
                Some(Error::Corruption { file, .. }) => assert_eq!(file, path),
                other => panic!("byte {at}: {other:?}"),
            }
        }
        files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
    }
}

/// A filter of another version is ignored: the table is read without it.
#[test]
fn filters_of_other_kinds_rule_nothing_out() {
    let files = TestFiles::new();
    let mut builder =
        TableBuilder::new(&files.files, &files.blobs, TableOptions::default()).unwrap();
    builder.add(b"key", Seqno(1), EntryKind::Put, b"value").unwrap();
    builder.append_filter_page(200, b"bytes of another time", true).unwrap();
    let table = builder.finish().unwrap();
    assert_eq!(table.check().unwrap().filter_pages, 1);
    let mut used = FilterUse::default();
    assert_eq!(count(&table, b"key", &mut used), 1);
    assert_eq!(count(&table, b"other", &mut used), 0);
    assert_eq!(used, FilterUse::default());
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/table-filter-1.table");

/// The table of the golden file, including its number.
fn golden() -> (TestFiles, Arc<Table>) {
    let files = TestFiles::new();
    let options = TableOptions {
        compression: Compression::Lz4,
        creation: 3,
        filter: TableFilter::Blocks,
        ..TableOptions::default()
    };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    for i in 0..3000u64 {
        let key = format!("{:05}", i * 7);
        builder.add(key.as_bytes(), Seqno(2 * i + 2), EntryKind::Put, b"v").unwrap();
        if i % 10 == 0 {
            builder.add(key.as_bytes(), Seqno(2 * i + 1), EntryKind::Delete, b"").unwrap();
        }
    }
    let table = builder.finish().unwrap();
    (files, table)
}

/// The golden file is a table with a filter as the first version with filters wrote it. Its bytes
/// are written today, and read. `SPINNEY_GOLDENS=write` writes it again (`docs/format/README.md`
/// says when).
#[test]
fn the_golden_table_is_written_and_read() {
    let (files, table) = golden();
    let path = files.files.path(table.id(), FileType::Table);
    let mut written = Vec::new();
    files.vfs.edit(&path, |bytes| written.clone_from(bytes));
    assert_eq!(table.filter_bytes(), 2 * 4096);
    assert_eq!(table.check().unwrap().entries, 3300);
    if std::env::var("SPINNEY_GOLDENS").as_deref() == Ok("write") {
        std::fs::write(GOLDEN, &written).unwrap();
    }
    let golden = std::fs::read(GOLDEN).unwrap();
    let differs =
        (0..golden.len().max(written.len())).find(|&at| golden.get(at) != written.get(at));
    assert_eq!(differs, None, "of {} and {} bytes", golden.len(), written.len());
    // The golden itself, not what was written just now.
    files.vfs.edit(&path, |bytes| *bytes = golden);
    let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
    fresh.files.retain_all();
    let then = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
    then.check().unwrap();
    let mut used = FilterUse::default();
    for i in 0..21_000 {
        let expected = if i % 70 == 0 { 2 } else { u64::from(i % 7 == 0) };
        assert_eq!(count(&then, format!("{i:05}").as_bytes(), &mut used), expected, "{i}");
    }
    assert!(used.false_positives <= 18_000 / 200, "{used:?}");
}
