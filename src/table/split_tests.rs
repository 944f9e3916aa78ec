//! Tests of split entries: values that go on in the next leaf.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::hole::HoleAt;
use super::salvage::TableSalvage;
use super::test_support::TestFiles;
use super::tests::{Entry, build, sort};
use super::{Table, TableBuilder, TableOptions};
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::Error;
use crate::base::ids::Seqno;
use crate::base::random::SplitMix;
use crate::cache::{FileType, ReadContext, fetch_misses};

const UNIT: u64 = 4096;

/// Pairs of 24 bytes and values of these lengths, at even sequence numbers.
fn entries(count: u64, lengths: std::ops::Range<u64>) -> Vec<Entry> {
    let mut random = SplitMix::new(11);
    let mut entries: Vec<Entry> = (0..count)
        .map(|i| {
            let length = lengths.start + random.below(lengths.end - lengths.start);
            (random.bytes(24), 2 * (i + 1), EntryKind::Put, random.bytes(length as usize))
        })
        .collect();
    sort(&mut entries);
    entries
}

/// The same table with nothing in its cache.
fn reopened(files: &TestFiles, table: &Arc<Table>) -> (TestFiles, Arc<Table>) {
    let fresh = TestFiles::over(Arc::clone(&files.vfs), 64 << 20);
    fresh.files.retain_all();
    let table = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
    (fresh, table)
}

fn value_of(table: &Table, entry: &Entry, context: &ReadContext) -> Result<Vec<u8>, Error> {
    let mut found = Vec::new();
    table.get(&entry.0, Seqno(entry.1), context, |got| {
        found.extend_from_slice(got.value);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Leaves waste nothing, and nevertheless a get is one request to the device, of one or two units.
#[test]
fn a_get_is_one_request_of_one_or_two_units() {
    for value_bytes in [500, 1024, 2048, 3000, 3700] {
        let files = TestFiles::new();
        let entries = entries(3000, value_bytes..value_bytes + 1);
        let table = build(&files, false, &entries);
        assert!(table.footer.has_splits);
        let (fresh, table) = reopened(&files, &table);
        let warm = |at: usize| {
            // The index, by way of a key of which no leaf has anything.
            let context = ReadContext::collecting();
            let mut key = entries[at].0.clone();
            key.push(0);
            while let Err(Error::NotResident) = table.locate(&key, &context) {
                let misses = context.misses.as_ref().unwrap().take();
                if misses.iter().all(|miss| miss.pointer.unit < table.footer.leaf_units) {
                    break;
                }
                fetch_misses(misses).unwrap();
            }
        };
        let (mut requests, mut units, mut gets) = (0, 0, 0);
        for at in (0..entries.len()).step_by(40) {
            warm(at);
            let before = (
                files.vfs.reads.load(Ordering::Relaxed),
                files.vfs.bytes_read.load(Ordering::Relaxed),
            );
            let context = ReadContext::blocking();
            assert!(value_of(&table, &entries[at], &context).unwrap() == entries[at].3);
            requests += files.vfs.reads.load(Ordering::Relaxed) - before.0;
            units += (files.vfs.bytes_read.load(Ordering::Relaxed) - before.1) / UNIT;
            gets += 1;
            table.pages().forget_pages();
        }
        drop(fresh);
        // The last leaf of an index page is not known to be split.
        assert!(requests <= gets + gets / 10, "{value_bytes}: {requests} requests, {gets} gets");
        assert!(units <= 2 * gets && units >= gets, "{value_bytes}: {units} units, {gets} gets");
    }
}

/// Many gets collect what they miss, both leaves of a split entry at once.
#[test]
fn collected_misses_have_both_leaves_of_a_split_entry() {
    let files = TestFiles::new();
    let entries = entries(400, 1024..1025);
    let table = build(&files, false, &entries);
    let (_fresh, table) = reopened(&files, &table);
    let mut rounds = 0;
    loop {
        let context = ReadContext::collecting();
        let mut missing = 0;
        for entry in &entries {
            match value_of(&table, entry, &context) {
                Ok(value) => assert!(value == entry.3),
                Err(Error::NotResident) => missing += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if missing == 0 {
            break;
        }
        fetch_misses(context.misses.unwrap().take()).unwrap();
        rounds += 1;
    }
    // The index, the leaves, and those behind the last leaf of an index page.
    assert!(rounds <= table.footer.height as usize + 2, "{rounds} rounds");
}

/// A long run goes past the cache, and reads each leaf once.
#[test]
fn a_long_run_reads_each_leaf_once() {
    let files = TestFiles::new();
    let entries = entries(4000, 900..1100);
    let table = build(&files, false, &entries);
    let (_fresh, table) = reopened(&files, &table);
    let before = files.vfs.bytes_read.load(Ordering::Relaxed);
    let mut cursor = table.cursor();
    cursor.seek_first().unwrap();
    for entry in &entries {
        let found = cursor.entry().unwrap();
        assert!(found.key == entry.0 && found.value == entry.3);
        cursor.next().unwrap();
    }
    assert!(cursor.entry().is_none());
    let units = (files.vfs.bytes_read.load(Ordering::Relaxed) - before) / UNIT;
    let leaves = u64::from(table.footer.leaf_units);
    assert!(
        units <= leaves + 70 + u64::from(table.properties().index_pages),
        "{units} of {leaves}"
    );
}

/// Whichever unit is damaged: entries that have no byte in it are read, by gets, scans up to it and salvage; all
/// others give an error, a hole has their keys, and salvage tells them as lost.
#[test]
fn a_damaged_unit_costs_the_entries_that_have_bytes_in_it() {
    for lengths in [300..700, 900..1100, 2000..4000] {
        let files = TestFiles::new();
        let mut entries = entries(60, lengths);
        // Several versions of one key too.
        let key = entries[20].0.clone();
        entries
            .extend((0..9).map(|i| (key.clone(), 1 + 2 * i, EntryKind::Merge, vec![i as u8; 700])));
        sort(&mut entries);
        let table = build(&files, false, &entries);
        table.check().unwrap();
        let path = files.files.path(table.id(), FileType::Table);
        for unit in 0..table.footer.leaf_units {
            files.vfs.edit(&path, |bytes| bytes[unit as usize * UNIT as usize + 2000] ^= 1);
            let (fresh, damaged) = reopened(&files, &table);
            assert!(damaged.check().is_err());
            let mut lost = Vec::new();
            for entry in &entries {
                match value_of(&damaged, entry, &ReadContext::blocking()) {
                    Ok(value) => assert!(value == entry.3),
                    Err(Error::Corruption { offset, .. }) => {
                        assert_eq!(offset, u64::from(unit) * UNIT);
                        lost.push(entry.clone());
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(!lost.is_empty() && lost.len() < 30, "unit {unit}: {} lost", lost.len());
            for entry in &lost {
                let hole = damaged.hole(HoleAt::From(&entry.0)).unwrap();
                let hole = hole.unwrap_or_else(|| panic!("unit {unit}: no hole at a lost key"));
                assert!(hole.lower <= entry.0 && entry.0 < hole.upper, "unit {unit}");
            }
            // Salvage returns in order what can be read, and tells what else there may be.
            let mut salvage = TableSalvage::open(&fresh.files, table.id()).unwrap();
            salvage.next().unwrap();
            let mut kept = Vec::new();
            while let Some(EntryRef { key, seqno, kind, value }) = salvage.entry() {
                kept.push((key.to_vec(), seqno.0, kind, value.to_vec()));
                salvage.next().unwrap();
            }
            let parts = salvage.take_lost();
            assert_eq!(parts.len(), 1, "unit {unit}: {parts:?}");
            let is_told = |key: &[u8]| {
                parts.iter().any(|part| {
                    part.after.as_deref().is_none_or(|after| key >= after)
                        && part.upto.as_deref().is_none_or(|upto| key <= upto)
                })
            };
            let mut expected = entries.iter().filter(|entry| !lost.contains(entry)).peekable();
            for entry in &kept {
                while expected.next_if(|next| *next != entry).is_some_and(|next| {
                    // Versions of a key that is lost in part.
                    assert!(is_told(&next.0), "unit {unit}: an entry vanished silently");
                    true
                }) {}
                assert!(expected.next() == Some(entry), "unit {unit}: an entry that never was");
            }
            assert!(expected.all(|entry| is_told(&entry.0)));
            assert!(lost.iter().all(|entry| is_told(&entry.0)), "unit {unit}");
            // A cursor before the damage that is told of it reads up to it.
            let hole = damaged.hole(HoleAt::From(&lost[0].0)).unwrap().unwrap();
            let mut cursor = damaged.cursor();
            cursor.go_carefully(Some(&hole.lower), true);
            if unit > 0 {
                cursor.seek_first().unwrap();
                for entry in entries.iter().take_while(|entry| entry.0 < hole.lower) {
                    let found = cursor.entry().unwrap();
                    assert!(found.key == entry.0 && found.value == entry.3, "unit {unit}");
                    cursor.next().unwrap();
                }
                assert!(cursor.entry().is_none_or(|entry| *entry.key >= *hole.lower));
            }
            let mut cursor = damaged.cursor();
            cursor.go_carefully(Some(&hole.upper), false);
            let behind: Vec<&Entry> =
                entries.iter().filter(|entry| entry.0 >= hole.upper).collect();
            if !behind.is_empty() {
                cursor.seek_last().unwrap();
                for entry in behind.iter().rev() {
                    let found = cursor.entry().unwrap();
                    assert!(found.key == entry.0 && found.value == entry.3, "unit {unit}");
                    cursor.prev().unwrap();
                }
            }
            files.vfs.edit(&path, |bytes| bytes[unit as usize * UNIT as usize + 2000] ^= 1);
        }
    }
}

/// A leaf that only claims to go on, and a rest of another entry, are damage, and no value is made of them.
#[test]
fn a_rest_of_another_entry_is_damage() {
    let files = TestFiles::new();
    let first = build(&files, false, &entries(12, 1000..1001));
    let mut others = entries(12, 1000..1001);
    others.iter_mut().for_each(|entry| entry.0[23] ^= 1);
    sort(&mut others);
    let second = build(&files, false, &others);
    let payload = |table: &Table, unit| {
        table.pages().read_uncached(crate::cache::PagePointer { unit, units: 1 }).unwrap()
    };
    let mut leaf = super::leaf_cursor::LeafCursor::new();
    leaf.load(&payload(&first, 0)).unwrap();
    let last = leaf.entries() - 1;
    for wrong in [payload(&second, 1), payload(&first, 2), payload(&first, 0)] {
        assert_eq!(leaf.place(last), Ok(super::leaf_cursor::Placed::Split));
        assert!(leaf.join(&wrong).is_err());
        assert!(leaf.entry().is_none());
    }
    assert_eq!(leaf.place(last), Ok(super::leaf_cursor::Placed::Split));
    leaf.join(&payload(&first, 1)).unwrap();
    assert_eq!(leaf.entry().unwrap().value.len(), 1000);
}

/// Entries whose sequence number is 0 cannot be split, long keys are not worth it, and compressed tables have none.
#[test]
fn what_is_not_split() {
    let files = TestFiles::new();
    let whole = |entries: &[Entry], lz4| {
        let table = build(&files, lz4, entries);
        table.check().unwrap();
        !table.footer.has_splits
    };
    let of = |seqno, key_bytes: usize| -> Vec<Entry> {
        (0..40u8)
            .map(|i| {
                ([&[i][..], &vec![7; key_bytes]].concat(), seqno, EntryKind::Put, vec![i; 1000])
            })
            .collect()
    };
    assert!(whole(&of(0, 20), false) && whole(&of(5, 1000), false) && whole(&of(5, 20), true));
    assert!(!whole(&of(5, 20), false));
    let options = TableOptions::default();
    let mut builder = TableBuilder::new(&files.files, &files.blobs, options).unwrap();
    builder.add(b"k", Seqno(9), EntryKind::Put, &[1; 6000]).unwrap();
    let table = builder.finish().unwrap();
    assert_eq!((table.footer.leaf_units, table.properties().entries()), (2, 1));
    table.check().unwrap();
}

/// Wherever a cursor meets damage, there is a hole at its place, in both directions. Leaves with only a rest, and leaves
/// that have only versions of one key, were counted as neighbours, so backwards there was none.
#[test]
fn there_is_a_hole_wherever_a_cursor_fails() {
    for (lengths, count) in [(6000..6001, 12), (4050..4051, 80), (1000..8000, 80), (700..701, 1)] {
        let files = TestFiles::new();
        let mut entries = entries(count, lengths);
        if count == 1 {
            let key = entries[0].0.clone();
            entries
                .extend((0..30).map(|i| (key.clone(), 3 + 2 * i, EntryKind::Merge, vec![7; 700])));
            entries.push((vec![0; 30], 1, EntryKind::Put, vec![1; 2000]));
            entries.push((vec![255; 30], 1, EntryKind::Put, vec![1; 2000]));
            sort(&mut entries);
        }
        let table = build(&files, false, &entries);
        let path = files.files.path(table.id(), FileType::Table);
        for unit in 0..table.footer.leaf_units {
            let flip =
                || files.vfs.edit(&path, |bytes| bytes[unit as usize * UNIT as usize + 20] ^= 1);
            flip();
            let (_fresh, damaged) = reopened(&files, &table);
            let mut cursor = damaged.cursor();
            let mut edge: Option<Vec<u8>> = None;
            let mut result = cursor.seek_last();
            while result.is_ok() {
                let Some(entry) = cursor.entry() else { break };
                edge = Some([entry.key, &[0]].concat());
                result = cursor.prev();
            }
            assert!(result.is_err(), "unit {unit} was not read");
            assert!(
                damaged.hole(HoleAt::Before(edge.as_deref())).unwrap().is_some(),
                "unit {unit}"
            );
            let mut cursor = damaged.cursor();
            let mut edge = Vec::new();
            let mut result = cursor.seek_first();
            while result.is_ok() {
                let Some(entry) = cursor.entry() else { break };
                edge = [entry.key, &[0]].concat();
                result = cursor.next();
            }
            assert!(result.is_err(), "unit {unit} was not read");
            if damaged.hole(HoleAt::From(&edge)).unwrap().is_none() {
                // The versions of one key go on in the damaged leaf.
                edge.pop();
                assert!(damaged.hole(HoleAt::From(&edge)).unwrap().is_some(), "unit {unit}");
            }
            flip();
        }
    }
}

/// A newer version in the first leaf answers a get. The rest of an older one, which it does not need, is damaged: the
/// get collects it, and what fetches it has to go on without it.
#[test]
fn a_get_does_not_need_the_rest_of_an_older_version() {
    let files = TestFiles::new();
    let of = |key: &[u8], seqno, bytes| (key.to_vec(), seqno, EntryKind::Put, vec![3; bytes]);
    let entries = [of(b"a", 3, 2000), of(b"k", 9, 1000), of(b"k", 5, 2000), of(b"x", 5, 2000)];
    let table = build(&files, false, &entries);
    let path = files.files.path(table.id(), FileType::Table);
    files.vfs.edit(&path, |bytes| bytes[4096 + 2000] ^= 1);
    let newest = of(b"k", Seqno::MAX.0, 0);
    let (_fresh, damaged) = reopened(&files, &table);
    assert!(value_of(&damaged, &newest, &ReadContext::blocking()).unwrap() == entries[1].3);
    let (_fresh, damaged) = reopened(&files, &table);
    for round in 0.. {
        let context = ReadContext::collecting();
        match value_of(&damaged, &newest, &context) {
            Ok(value) => return assert!(value == entries[1].3),
            Err(Error::NotResident) => assert!(round < 4, "it never ends"),
            Err(error) => panic!("{error}"),
        }
        let _ = fetch_misses(context.misses.unwrap().take());
    }
}
