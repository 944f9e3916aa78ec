//! Tests of tables against a sorted vector.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::test_support::TestFiles;
use super::{BlobPointer, Table, TableBuilder, TableCursor, TableFilter, TableOptions};
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::{
    Compression, PageClass, PagePointer, ReadContext, UnitRun, fetch_misses, fetch_runs,
};
use crate::perfect_hash::Construction;

pub(super) type Entry = (Vec<u8>, u64, EntryKind, Vec<u8>);

fn owned(entry: EntryRef<'_>) -> Entry {
    (entry.key.to_vec(), entry.seqno.0, entry.kind, entry.value.to_vec())
}

pub(super) fn sort(entries: &mut Vec<Entry>) {
    entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    entries.dedup_by(|a, b| a.0 == b.0 && a.1 == b.1);
}

pub(super) fn build(files: &TestFiles, lz4: bool, entries: &[Entry]) -> Arc<Table> {
    build_with(files, lz4, false, entries)
}

pub(super) fn build_with(
    files: &TestFiles,
    lz4: bool,
    filter: bool,
    entries: &[Entry],
) -> Arc<Table> {
    let compression = if lz4 { Compression::Lz4 } else { Compression::None };
    let filter = TableFilter::blocks(filter);
    let options = TableOptions { compression, creation: 7, filter, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    for (key, seqno, kind, value) in entries {
        builder.add(key, Seqno(*seqno), *kind, value).unwrap();
    }
    let table = builder.finish().unwrap();
    table.pages().forget_pages();
    table
}

fn kind(random: &mut SplitMix) -> EntryKind {
    [EntryKind::Put, EntryKind::Put, EntryKind::Delete, EntryKind::Merge][random.below(4) as usize]
}

/// Entries of one of several distributions.
pub(super) fn generate(random: &mut SplitMix, character: u64) -> Vec<Entry> {
    let most = [3, 300, 1500][random.below(3) as usize];
    let count = 1 + random.below(most) as usize;
    let mut entries = Vec::new();
    let shared = random.bytes(40);
    for i in 0..count {
        let key = match character {
            // Tiny keys over few letters, including the empty key.
            0 => (0..random.below(8)).map(|_| b"ab\0\xff"[random.below(4) as usize]).collect(),
            // Numbers after a long common prefix.
            1 => [&shared[..], format!("{:08}", random.below(3000)).as_bytes()].concat(),
            // Random keys of the same length.
            2 => random.bytes(24),
            // Very many versions of few keys.
            3 => format!("key{}", random.below(3)).into_bytes(),
            // Large values of few keys.
            6 => random.below(60).to_string().into_bytes(),
            // Mixed lengths.
            4 | 7 => {
                let n = random.below(200) as usize;
                let mut key = random.bytes(n);
                key.iter_mut().for_each(|b| *b &= 3);
                key
            }
            // Dense integers.
            _ => (i as u64 * 3).to_be_bytes().to_vec(),
        };
        let value_bytes = match random.below(20) {
            0 => random.below(6000),
            // Two to twenty entries in a leaf, and leaves that have no more than the rest of one.
            1..18 if character >= 6 => 150 + random.below([400, 4000, 8000][i % 3]),
            1..5 => 0,
            _ if character == 3 => random.below(300),
            _ => random.below(120),
        };
        let kind = kind(random);
        let value = if kind == EntryKind::Delete { 0 } else { value_bytes as usize };
        // Compressible and incompressible in turn.
        let value = if random.below(2) == 0 { random.bytes(value) } else { vec![7; value] };
        let seqno_max = if character == 5 { 10 } else { 1 << 30 };
        entries.push((key, random.below(seqno_max), kind, value));
    }
    sort(&mut entries);
    entries
}

/// Every existing key, and a key just before and just after each.
fn probes(entries: &[Entry]) -> Vec<Vec<u8>> {
    let mut probes = vec![Vec::new(), vec![0xff; 70_000]];
    for (key, ..) in entries {
        probes.push(key.clone());
        probes.push([&key[..], &[0]].concat());
        if let Some((last, start)) = key.split_last() {
            probes.push(match last.checked_sub(1) {
                Some(last) => [start, &[last, 0xff]].concat(),
                None => start.to_vec(),
            });
        }
    }
    probes.sort();
    probes.dedup();
    probes
}

fn get(table: &Table, key: &[u8], snapshot: u64, most: usize) -> Vec<Entry> {
    let mut found = Vec::new();
    let context = ReadContext::blocking();
    let f = |entry: EntryRef<'_>| {
        found.push(owned(entry));
        if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    table.get(key, Seqno(snapshot), &context, f).unwrap();
    found
}

fn drain(cursor: &mut TableCursor, step: impl Fn(&mut TableCursor) -> Result<()>) -> Vec<Entry> {
    let mut found = Vec::new();
    while let Some(entry) = cursor.entry() {
        found.push(owned(entry));
        step(cursor).unwrap();
    }
    found
}

fn verify(random: &mut SplitMix, table: &Arc<Table>, entries: &[Entry]) {
    let seen = table.check().unwrap();
    assert_eq!(seen.entries, entries.len() as u64);
    let may_contain = |key| table.may_contain(hash_key(key), &ReadContext::blocking()).unwrap();
    assert!(entries.iter().all(|(key, ..)| may_contain(key)));
    let mut cursor = table.cursor();
    assert!(cursor.entry().is_none());
    cursor.seek_first().unwrap();
    assert!(drain(&mut cursor, Cursor::next) == entries);
    cursor.seek_last().unwrap();
    let mut back = drain(&mut cursor, Cursor::prev);
    back.reverse();
    assert!(back == entries);
    let probes = probes(entries);
    for probe in &probes {
        let at = entries.partition_point(|entry| entry.0 < *probe);
        cursor.seek(probe).unwrap();
        assert_eq!(cursor.entry().map(owned).as_ref(), entries.get(at));
        cursor.seek_before(probe).unwrap();
        let before = at.checked_sub(1).map(|at| &entries[at]);
        assert_eq!(cursor.entry().map(owned).as_ref(), before);

        let snapshot = random.below(1 << 30);
        let at = entries
            .partition_point(|entry| entry.0 < *probe || entry.0 == *probe && entry.1 > snapshot);
        cursor.seek_at(probe, Seqno(snapshot)).unwrap();
        assert_eq!(cursor.entry().map(owned).as_ref(), entries.get(at));
        for (snapshot, most) in [(snapshot, usize::MAX), (Seqno::MAX.0, 1), (u64::MAX, usize::MAX)]
        {
            let expected = entries.iter().filter(|e| e.0 == *probe && e.1 <= snapshot);
            let expected: Vec<Entry> = expected.take(most).cloned().collect();
            assert!(get(table, probe, snapshot, most) == expected);
        }
        match table.lower_bound_hint(probe) {
            Some(hint) => assert!(entries.iter().all(|e| e.0 < *probe || e.0.as_slice() >= hint)),
            None => assert!(entries.iter().all(|e| e.0 < *probe)),
        }
    }
    wander(random, table, entries, &probes);
    ranges(random, table, entries, &probes);
}

/// Random steps and seeks.
fn wander(random: &mut SplitMix, table: &Arc<Table>, entries: &[Entry], probes: &[Vec<u8>]) {
    let mut cursor = table.cursor();
    let mut at = None;
    for _ in 0..40 {
        if at.is_none() || random.below(4) == 0 {
            let probe = &probes[random.below(probes.len() as u64) as usize];
            cursor.seek(probe).unwrap();
            at = Some(entries.partition_point(|e| e.0 < *probe)).filter(|&i| i < entries.len());
        }
        let back = random.below(2) == 0;
        for _ in 0..random.below(400) {
            assert_eq!(cursor.entry().map(owned).as_ref(), at.map(|at| &entries[at]));
            let Some(i) = at else { break };
            if back {
                cursor.prev().unwrap();
                at = i.checked_sub(1);
            } else {
                cursor.next().unwrap();
                at = Some(i + 1).filter(|&i| i < entries.len());
            }
        }
    }
}

fn ranges(random: &mut SplitMix, table: &Arc<Table>, entries: &[Entry], probes: &[Vec<u8>]) {
    let total = table.properties().entries();
    let whole = table.range_statistics(None, None, &ReadContext::blocking()).unwrap();
    assert_eq!((whole.tuples, whole.bytes), (total, table.properties().entry_bytes()));
    for _ in 0..30 {
        let mut bound = || {
            let i = random.below(probes.len() as u64 + 1) as usize;
            probes.get(i).map(Vec::as_slice)
        };
        let (lower, upper) = (bound(), bound());
        let inside = |key: &[u8]| {
            lower.is_none_or(|lower| key >= lower) && upper.is_none_or(|upper| key < upper)
        };
        let expected: Vec<&Entry> = entries.iter().filter(|e| inside(&e.0)).collect();
        let mut scan = table.scan(lower, upper, 8192).unwrap();
        let mut found = Vec::new();
        while let Some(entry) = scan.entry() {
            found.push(owned(entry));
            scan.next().unwrap();
        }
        assert!(found.iter().eq(expected.iter().copied()));
        let parts = 1 + random.below(6) as usize;
        let cuts = table.approximate_split_keys(lower, upper, parts).unwrap();
        assert!(cuts.len() < parts && cuts.is_sorted_by(|a, b| a < b));
        assert!(cuts.iter().all(|cut| inside(cut) && lower != Some(cut)));
    }
}

#[test]
fn random_tables_answer_as_a_sorted_vector_does() {
    let mut random = SplitMix::new(1);
    for round in 0..64 {
        let files = TestFiles::new();
        let entries = generate(&mut random, round % 8);
        let table = build_with(&files, round % 5 == 4, round % 3 < 2, &entries);
        verify(&mut random, &table, &entries);
        let properties = table.properties().clone();
        let count = |kind| entries.iter().filter(|e| e.2 == kind).count() as u64;
        assert_eq!(properties.deletes, count(EntryKind::Delete));
        assert_eq!(properties.merges, count(EntryKind::Merge));
        assert_eq!(properties.puts, count(EntryKind::Put));
        assert_eq!(properties.creation, 7);
        assert_eq!(table.first_key(), entries[0].0);
        assert_eq!(table.last_key(), entries[entries.len() - 1].0);
        // After reopening, with nothing cached, the answers are the same.
        let fresh = TestFiles::over(Arc::clone(&files.vfs), 64 << 20);
        fresh.files.retain_all();
        let reopened = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
        assert_eq!(*reopened.properties(), properties);
        assert!(reopened.check().is_ok());
        let (key, seqno, ..) = &entries[entries.len() / 2];
        assert!(get(&reopened, key, *seqno, 1)[0] == entries[entries.len() / 2]);
    }
}

#[test]
fn keys_of_64_kib_and_entries_larger_than_pages() {
    let mut random = SplitMix::new(2);
    let files = TestFiles::new();
    let mut entries: Vec<Entry> = Vec::new();
    for i in 0..24u8 {
        // All but the last byte are shared: separators cannot be short.
        let mut key = vec![9; 65_535];
        key.push(i);
        entries.push((key, 5, EntryKind::Put, vec![i; 10]));
        let mut key = random.bytes(65_536);
        key[0] = 200;
        entries.push((key, u64::from(i), EntryKind::Put, random.bytes(100_000)));
    }
    for i in 0..40u64 {
        let value = random.bytes(3000 + 700 * i as usize);
        entries.push((vec![100, i as u8], i, EntryKind::Put, value));
        entries.push((vec![101], i, EntryKind::Merge, random.bytes(2000)));
        entries.push((vec![9; 65_536], i, EntryKind::Merge, random.bytes(10)));
    }
    sort(&mut entries);
    for lz4 in [false, true] {
        let table = build(&files, lz4, &entries);
        verify(&mut random, &table, &entries);
    }
}

#[test]
fn versions_over_many_pages_are_found_with_few_reads() {
    let files = TestFiles::new();
    let entries: Vec<Entry> = (0..5000u64)
        .rev()
        .map(|i| (b"counter".to_vec(), i * 2 + 1, EntryKind::Merge, vec![i as u8; 90]))
        .collect();
    let table = build(&files, false, &entries);
    table.check().unwrap();
    for snapshot in [0, 1, 2, 5000, 5001, 9999, 20_000] {
        let context = ReadContext::blocking();
        let mut newest = None;
        let f = |entry: EntryRef<'_>| {
            newest = Some(entry.seqno.0);
            ControlFlow::Break(())
        };
        table.get(b"counter", Seqno(snapshot), &context, f).unwrap();
        let odd = if snapshot % 2 == 1 { snapshot } else { snapshot.saturating_sub(1) };
        let expected = Some(odd.min(9999)).filter(|_| snapshot > 0);
        assert_eq!(newest, expected, "at {snapshot}");
        assert!(context.pages_read.get() <= u32::from(table.footer.height) + 1);
    }
    assert_eq!(get(&table, b"counter", 4000, usize::MAX).len(), 2000);
}

#[test]
fn a_point_read_is_one_4_kib_read_once_the_index_is_cached() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(3);
    let mut entries: Vec<Entry> =
        (0..30_000).map(|i| (random.bytes(24), i, EntryKind::Put, random.bytes(100))).collect();
    sort(&mut entries);
    let table = build(&files, false, &entries);
    let pages = f64::from(table.properties().leaf_pages);
    assert!(30_000.0 / pages >= 31.0, "{} entries a page", 30_000.0 / pages);
    assert!(pages / f64::from(table.properties().index_pages) > 100.0);
    for (key, ..) in entries.iter().step_by(400) {
        let warm = ReadContext::blocking();
        table.locate(key, &warm).unwrap();
        get(&table, key, u64::MAX, 1);
    }
    let before = files.vfs.bytes_read.load(std::sync::atomic::Ordering::Relaxed);
    let mut read = 0;
    for (key, ..) in entries.iter().skip(200).step_by(400) {
        let context = ReadContext::blocking();
        table.get(key, Seqno::MAX, &context, |_| ControlFlow::Break(())).unwrap();
        read += u64::from(context.pages_read.get());
        assert!(context.pages_read.get() <= 2);
    }
    let after = files.vfs.bytes_read.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(after - before, read * 4096);
}

#[test]
fn cursors_are_opened_together_by_collected_misses() {
    let files = TestFiles::new();
    let entries: Vec<Entry> = (0..20_000u64)
        .map(|i| (i.to_be_bytes().to_vec(), 1, EntryKind::Put, vec![0; 100]))
        .collect();
    let table = build(&files, false, &entries);
    let key = 12_345u64.to_be_bytes();
    let mut cursor = table.cursor();
    let mut rounds = 0;
    loop {
        let mut misses = Vec::new();
        let done = cursor.prefetch(&key, None, true, &mut misses).unwrap();
        if misses.is_empty() {
            assert!(done);
            break;
        }
        assert_eq!(fetch_misses(misses).unwrap(), 1);
        rounds += 1;
    }
    assert_eq!(rounds, table.footer.height + 1);
    cursor.seek(&key).unwrap();
    assert_eq!(cursor.entry().unwrap().key, key);
    assert_eq!(cursor.pages_read(), 0);
}

#[test]
fn cursors_read_ahead_only_after_they_have_crossed_leaves() {
    let files = TestFiles::new();
    let entries: Vec<Entry> = (0..40_000u64)
        .map(|i| (i.to_be_bytes().to_vec(), 1, EntryKind::Put, vec![0; 100]))
        .collect();
    let table = build(&files, false, &entries);
    let leaves = table.properties().leaf_pages;
    let reads = || files.vfs.reads.load(std::sync::atomic::Ordering::Relaxed);
    let mut cursor = table.cursor();
    cursor.seek(&1000u64.to_be_bytes()).unwrap();
    assert_eq!(cursor.pages_read(), u32::from(table.footer.height) + 1);
    for _ in 0..40 {
        cursor.next().unwrap();
    }
    assert!(cursor.pages_read() <= u32::from(table.footer.height) + 3);
    let before = reads();
    let rest = drain(&mut cursor, Cursor::next);
    assert!(rest.len() > 38_000);
    let (calls, cached) = (reads() - before, cursor.pages_read());
    assert!(cached < 140, "{cached} pages went through the cache");
    assert!(calls < u64::from(leaves) / 4, "{calls} reads of {leaves} leaves");
}

/// Whoever goes through a table by places of leaves reads one leaf first, and then ever longer pieces.
#[test]
fn twice_as_many_leaves_as_have_been_passed_are_read_ahead() {
    let files = TestFiles::new();
    let entries: Vec<Entry> = (0..20_000u64)
        .map(|i| (i.to_be_bytes().to_vec(), 1, EntryKind::Put, vec![0; 100]))
        .collect();
    let table = build(&files, false, &entries);
    let last = table.footer.leaf_units - 1;
    let leaf = |unit| PagePointer { unit, units: 1 };
    let mut pieces = Vec::new();
    let mut unit = 100;
    while pieces.len() < 6 {
        let piece = table.leaves_ahead(leaf(unit), true, 32);
        pieces.push(piece.units.len());
        unit = piece.units.end;
        let fetched = fetch_runs(vec![piece], PageClass::Leaf).unwrap();
        assert_eq!(fetched.pages as usize, pieces[pieces.len() - 1]);
    }
    assert_eq!(pieces, [1, 3, 9, 27, 33, 33]);
    // Backwards, with little memory, and at the ends of the leaves.
    assert_eq!(table.leaves_ahead(leaf(99), false, 32).units, 67..100);
    assert_eq!(table.leaves_ahead(leaf(99), false, 4).units, 95..100);
    assert_eq!(table.leaves_ahead(leaf(99), true, 32).units, 99..100);
    assert_eq!(table.leaves_ahead(leaf(unit), true, 4).units, unit..unit + 5);
    let fetch = |units| {
        let run = UnitRun { file: Arc::clone(table.pages()), units };
        fetch_runs(vec![run], PageClass::Leaf).unwrap();
    };
    fetch(1..3);
    assert_eq!(table.leaves_ahead(leaf(0), false, 32).units, 0..1);
    fetch(last - 3..last);
    assert_eq!(table.leaves_ahead(leaf(last), true, 32).units, last..last + 1);
    // What is cached is not read again.
    fetch(300..317);
    fetch(318..350);
    assert_eq!(table.leaves_ahead(leaf(317), true, 32).units, 317..318);
    assert_eq!(table.leaves_ahead(leaf(317), false, 32).units, 317..318);
}

#[test]
fn range_statistics_are_right_to_within_a_leaf() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(4);
    let mut entries: Vec<Entry> = (0..20_000)
        .map(|i| {
            let value = random.below(150) as usize;
            (random.bytes(12), i, EntryKind::Put, vec![1; value])
        })
        .collect();
    sort(&mut entries);
    let table = build(&files, false, &entries);
    for _ in 0..300 {
        let (a, b) = (random.bytes(3), random.bytes(3));
        let (lower, upper) = if a < b { (a, b) } else { (b, a) };
        let found =
            table.range_statistics(Some(&lower), Some(&upper), &ReadContext::blocking()).unwrap();
        let inside: Vec<_> = entries.iter().filter(|e| e.0 >= lower && e.0 < upper).collect();
        let bytes: usize = inside.iter().map(|e| e.0.len() + e.3.len()).sum();
        assert!(found.tuples.abs_diff(inside.len() as u64) < 100, "{found:?} {}", inside.len());
        assert!(found.bytes.abs_diff(bytes as u64) < 4096 + 1024);
        // Exact at leaf boundaries.
        let cuts = table.approximate_split_keys(Some(&lower), Some(&upper), 4).unwrap();
        for cut in cuts.windows(2) {
            let found = table
                .range_statistics(Some(&cut[0]), Some(&cut[1]), &ReadContext::blocking())
                .unwrap();
            let inside = entries.iter().filter(|e| e.0 >= cut[0] && e.0 < cut[1]).count();
            assert_eq!(found.tuples, inside as u64);
        }
    }
    let cuts = table.approximate_split_keys(None, None, 8).unwrap();
    assert_eq!(cuts.len(), 7);
    let mut bounds: Vec<Option<&[u8]>> = vec![None];
    bounds.extend(cuts.iter().map(|cut| Some(cut.as_slice())));
    bounds.push(None);
    for bound in bounds.windows(2) {
        let part =
            table.range_statistics(bound[0], bound[1], &ReadContext::blocking()).unwrap().bytes;
        let even = table.properties().entry_bytes() / 8;
        assert!(part.abs_diff(even) < 3 * 4096, "{part} of {even}");
    }
}

#[test]
fn scans_read_only_the_range_s_pages() {
    let files = TestFiles::new();
    let entries: Vec<Entry> = (0..40_000u64)
        .map(|i| (i.to_be_bytes().to_vec(), 1, EntryKind::Put, vec![0; 100]))
        .collect();
    let table = build(&files, false, &entries);
    let (lower, upper) = (10_000u64.to_be_bytes(), 11_000u64.to_be_bytes());
    table.locate(&lower, &ReadContext::blocking()).unwrap();
    table.locate(&upper, &ReadContext::blocking()).unwrap();
    let read = || files.vfs.bytes_read.load(std::sync::atomic::Ordering::Relaxed);
    let before = read();
    let mut scan = table.scan(Some(&lower), Some(&upper), 1 << 20).unwrap();
    let mut count = 0;
    while scan.entry().is_some() {
        count += 1;
        scan.next().unwrap();
    }
    assert_eq!(count, 1000);
    assert!(read() - before <= 1000 / 31 * 4096 + 3 * 4096);
}

#[test]
fn medium_values_do_not_waste_their_pages() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(5);
    for value_bytes in [500, 1000, 1400, 2100, 3000, 4200, 5000, 8200, 9000, 12_500, 17_000, 33_000]
    {
        let entries: Vec<Entry> = (0..64u64)
            .map(|i| (i.to_be_bytes().to_vec(), i, EntryKind::Put, random.bytes(value_bytes)))
            .collect();
        let table = build(&files, false, &entries);
        let used = table.properties().entry_bytes() as f64;
        let ratio = f64::from(table.footer.leaf_units) * 4096.0 / used;
        let most = if value_bytes < 8000 { 1.06 } else { 1.4 };
        assert!(ratio < most, "values of {value_bytes} bytes take {ratio} times their bytes");
    }
}

/// A footer and usually the properties are read at once; properties with long keys need a second
/// read.
#[test]
fn tables_are_opened_together_wherever_their_properties_are() {
    let files = TestFiles::new();
    let of = |count: u64, key_bytes: usize| -> Vec<Entry> {
        let key = |i: u64| [&i.to_be_bytes()[..], &vec![b'k'; key_bytes]].concat();
        (0..count).map(|i| (key(i), 1, EntryKind::Put, vec![7; 20])).collect()
    };
    let contents: Vec<_> =
        (0..300).map(|i| of(1 + i % 40, if i % 7 == 3 { 5000 } else { 8 })).collect();
    let built: Vec<_> = contents.iter().map(|entries| build(&files, false, entries)).collect();
    let ids: Vec<_> = built.iter().map(|table| table.id()).collect();
    let reads = files.vfs.reads.load(Ordering::Relaxed);
    let opened = Table::open_all(&files.files, &files.blobs, &ids).unwrap();
    let reads = files.vfs.reads.load(Ordering::Relaxed) - reads;
    assert_eq!(
        reads,
        300 + contents.iter().filter(|entries| entries[0].0.len() > 5000).count() as u64
    );
    for ((table, entries), id) in opened.iter().zip(&contents).zip(ids) {
        assert_eq!(table.id(), id);
        assert_eq!(*table.first_key(), *entries[0].0);
        assert_eq!(table.last_key(), entries[entries.len() - 1].0);
        assert_eq!(table.properties().entries(), entries.len() as u64);
    }
    assert!(Table::open_all(&files.files, &files.blobs, &[]).unwrap().is_empty());
}

#[test]
fn the_filter_section_is_found_again() {
    let files = TestFiles::new();
    let mut builder =
        TableBuilder::new(&files.files, &files.blobs, TableOptions::default()).unwrap();
    for i in 0..1000u64 {
        builder.add(&i.to_be_bytes(), Seqno(i), EntryKind::Put, b"value").unwrap();
    }
    let payloads = [vec![1; 100], vec![2; 9000], vec![3; 4072]];
    let pointers: Vec<_> = payloads
        .iter()
        .map(|payload| builder.append_filter_page(9, payload, true).unwrap())
        .collect();
    let table = builder.finish().unwrap();
    let filter = table.footer.filter;
    assert_eq!((filter.kind, filter.pages, filter.units), (9, 3, 5));
    assert_eq!(filter.first_unit, pointers[0].unit);
    for (pointer, payload) in pointers.iter().zip(&payloads) {
        assert_eq!(table.pages().read_uncached(*pointer).unwrap(), *payload);
    }
    assert_eq!(table.check().unwrap().filter_pages, 3);
    assert_eq!(get(&table, &7u64.to_be_bytes(), u64::MAX, 1).len(), 1);
}

#[test]
fn builders_refuse_what_they_must_and_leave_nothing_behind() {
    let files = TestFiles::new();
    let new = || TableBuilder::new(&files.files, &files.blobs, TableOptions::default()).unwrap();
    let invalid = |result: Result<()>| matches!(result, Err(Error::InvalidArgument { .. }));
    assert!(matches!(new().finish(), Err(Error::InvalidArgument { .. })));
    assert!(invalid(new().add(&[0; 65_537], Seqno(1), EntryKind::Put, b"")));
    assert!(invalid(new().add(b"a", Seqno(1), EntryKind::RangeDelete, b"b")));
    assert!(invalid(new().add(b"a", Seqno(1), EntryKind::PutBlob, b"not a pointer")));
    let pointer = BlobPointer { file: FileId(999), offset: 0, length: 1, checksum: 0 };
    let mut value = Vec::new();
    pointer.encode(&mut value);
    let mut builder = new();
    builder.add(b"a", Seqno(1), EntryKind::PutBlob, &value).unwrap();
    assert!(builder.finish().is_err(), "the blob file does not exist");
    let mut builder = new();
    for i in 0..100_000u64 {
        builder.add(&i.to_be_bytes(), Seqno(1), EntryKind::Put, b"").unwrap();
    }
    drop(builder);
    assert_eq!(files.vfs.names(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn disorder_is_caught_by_the_builder() {
    let files = TestFiles::new();
    for (key, seqno) in [(&b"k"[..], 5), (b"k", 6), (b"j", 1), (b"", 1), (b"jz", 9)] {
        let mut builder =
            TableBuilder::new(&files.files, &files.blobs, TableOptions::default()).unwrap();
        builder.add(b"k", Seqno(5), EntryKind::Put, b"").unwrap();
        let add = std::panic::AssertUnwindSafe(|| {
            let _ = builder.add(key, Seqno(seqno), EntryKind::Put, b"");
        });
        assert!(std::panic::catch_unwind(add).is_err(), "{key:?} at {seqno}");
    }
}

/// Gets of pieces could have gone by the table's own index, and nobody would have noticed while that was cached.
#[test]
fn a_local_index_leads_to_the_leaf_without_the_tables_own() {
    let files = TestFiles::new();
    let filter = TableFilter::Piece(Construction::Pilots, 2);
    let options = TableOptions { creation: 7, filter, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    for number in 0..20_000u64 {
        let key = number.to_be_bytes();
        builder.add(&key, Seqno(3), EntryKind::Put, &[7; 100]).unwrap();
    }
    let table = builder.finish().unwrap();
    let pages_read = |number: u64, by_local_index: bool| {
        table.pages().forget_pages();
        let (key, context) = (number.to_be_bytes(), ReadContext::blocking());
        let mut found = false;
        let see = |_: EntryRef<'_>| {
            found = true;
            ControlFlow::Break(())
        };
        if by_local_index {
            let hash = hash_key(&key);
            let is_read = table.get_hashed(&key, hash, Seqno::MAX, &context, see).unwrap();
            assert_eq!(is_read, found);
        } else {
            table.get(&key, Seqno::MAX, &context, see).unwrap();
        }
        assert_eq!(found, number < 20_000);
        context.pages_read.get()
    };
    for number in (0..20_000).step_by(997) {
        assert_eq!(pages_read(number, true), 2, "a page of the index, and the leaf");
        assert!(pages_read(number, false) > 2, "the table's own index is higher than one page");
        assert_eq!(pages_read(20_000 + number, true), 1, "signatures of 16 bits tell it");
    }
}

/// A head had the hashes of all keys of its pieces, also where leaves shared them: after a load of four million pairs all
/// indexes took 7.1 bytes of memory for each key, and they take 4.7 now.
#[test]
fn a_head_has_what_a_piece_has_in_its_range_and_little_else() {
    let files = TestFiles::new();
    let filter = TableFilter::Piece(Construction::Pilots, 0);
    let options = TableOptions { creation: 7, filter, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    let mut random = SplitMix::new(4);
    for number in 0..4000u64 {
        // Some leaves have several pages, and some keys go on in the next leaf.
        let bytes = if number % 50 == 0 { 9000 } else { random.next() as usize % 300 };
        let versions = if number % 70 == 0 { 30 } else { 1 };
        for seqno in (1..=versions).rev() {
            let value = vec![7; bytes.min(1000 * versions as usize)];
            builder.add(&number.to_be_bytes(), Seqno(seqno), EntryKind::Put, &value).unwrap();
        }
    }
    let table = builder.finish().unwrap();
    assert!(table.keep_in_range(&[], None).unwrap().is_none(), "all of it");
    assert!(table.keep_in_range(&0u64.to_be_bytes(), Some(b"z")).unwrap().is_none(), "all of it");
    for _ in 0..200 {
        let (from, count) = (random.next() % 4100, 1 + random.next() % 500);
        let lower = if from > 4000 { Vec::new() } else { from.to_be_bytes().to_vec() };
        let from = if from > 4000 { 0 } else { from };
        let end = from + count;
        let upper = (end < 4000).then(|| end.to_be_bytes().to_vec());
        if from == 0 && upper.is_none() {
            continue;
        }
        let keep = table.keep_in_range(&lower, upper.as_deref()).unwrap();
        let Some(mut keep) = keep else { panic!("a part of it") };
        let mut others = 0;
        for number in 0..4000 {
            let is_kept = keep(hash_key(&u64::to_be_bytes(number))).unwrap();
            match (from..end).contains(&number) {
                true => assert!(is_kept, "{number} of {from}..{end}"),
                false => others += u64::from(is_kept),
            }
        }
        assert!(others < 150, "{others} of other leaves with {from}..{end}");
    }
}
