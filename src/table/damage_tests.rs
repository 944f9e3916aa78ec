//! Damaged tables return an error or the right answer. Damaged nodes never panic.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Table;
use super::index::{child, child_at_byte};
use super::leaf_cursor::LeafCursor;
use super::node::{Node, Shape};
use super::test_support::TestFiles;
use super::tests::{Entry, build, build_with, sort};
use crate::base::checksum::checksum;
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::{FileType, ReadContext};

fn entries(count: u64, value_bytes: usize) -> Vec<Entry> {
    let mut random = SplitMix::new(9);
    let mut entries: Vec<Entry> = (0..count)
        .map(|i| {
            let key = format!("key{:03}", random.below(count)).into_bytes();
            (key, i, EntryKind::Put, random.bytes(value_bytes))
        })
        .collect();
    sort(&mut entries);
    entries
}

/// Compares every answer of a table with the right one.
fn ask(files: &TestFiles, table: &Arc<Table>, expected: &[Entry]) -> Result<()> {
    let table = Table::open(&files.files, &files.blobs, table.id())?;
    let probe = &expected[expected.len() / 2];
    let mut found = None;
    table.get(&probe.0, Seqno(probe.1), &ReadContext::blocking(), |entry| {
        found = Some((entry.seqno, entry.value.to_vec()));
        ControlFlow::Break(())
    })?;
    assert_eq!(found, Some((Seqno(probe.1), probe.3.clone())));
    for (key, ..) in expected {
        assert!(table.may_contain(hash_key(key), &ReadContext::blocking())?);
    }
    let mut cursor = table.cursor();
    cursor.seek_first()?;
    for (key, seqno, _, value) in expected {
        let entry = cursor.entry().unwrap();
        assert!(entry.key == key && entry.seqno.0 == *seqno && entry.value == value);
        cursor.next()?;
    }
    assert!(cursor.entry().is_none());
    Ok(())
}

#[test]
fn every_flipped_byte_gives_an_error_or_the_right_answers() {
    for (lz4, filter, value_bytes) in [(false, false, 60), (true, true, 12), (false, false, 700)] {
        let files = TestFiles::new();
        let entries = entries(if value_bytes > 500 { 12 } else { 100 }, value_bytes);
        let table = build_with(&files, lz4, filter, &entries);
        assert!(lz4 || table.footer.height == 1);
        let path = files.files.path(table.id(), FileType::Table);
        for at in 0..table.bytes() as usize {
            files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
            let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
            fresh.files.retain_all();
            match ask(&fresh, &table, &entries) {
                Ok(()) => {}
                Err(Error::Corruption { file, .. }) => assert_eq!(file, path),
                Err(e) => panic!("byte {at}: {e}"),
            }
            files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
        }
        // Truncated to any number of units: no footer, or none at all.
        let whole = table.bytes() as usize;
        for units in (0..whole / 4096).rev() {
            files.vfs.edit(&path, |bytes| bytes.truncate(units * 4096 + 7));
            let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
            fresh.files.retain_all();
            assert!(Table::open(&fresh.files, &fresh.blobs, table.id()).is_err());
            files.vfs.edit(&path, |bytes| bytes.truncate(units * 4096));
            assert!(Table::open(&fresh.files, &fresh.blobs, table.id()).is_err());
        }
    }
}

/// Calls every decoder on a payload, whatever the result.
fn exercise(payload: &[u8], probes: &[Entry]) -> usize {
    let mut fine = 0;
    for level in 0..2 {
        let Ok(shape) = Shape::parse(payload, level) else { continue };
        let node = Node { bytes: payload, shape: &shape };
        for probe in probes {
            fine += usize::from(node.search(&probe.0, probe.1).is_ok());
        }
        for i in 0..shape.entries.min(100) {
            fine += usize::from(node.key(i).is_ok());
            fine += usize::from(node.key_is(i, &probes[0].0).is_ok());
            fine += usize::from(child(&node, i).is_ok());
            fine += usize::from(child_at_byte(&node, i as u64 * 1000).is_ok());
        }
    }
    let mut leaf = LeafCursor::new();
    if leaf.load(payload).is_ok() {
        for i in leaf.first()..leaf.entries().min(100) {
            fine += usize::from(leaf.place(i).is_ok() && leaf.entry().is_some());
        }
    }
    fine
}

#[test]
fn nodes_with_any_bytes_are_read_without_panic() {
    let files = TestFiles::new();
    let entries = entries(300, 20);
    let table = build(&files, false, &entries);
    let (root, mut random) = (table.footer.root, SplitMix::new(3));
    let first = crate::cache::PagePointer { unit: 0, units: 1 };
    for page in [first, root] {
        let payload = table.pages().read_uncached(page).unwrap();
        assert!(exercise(&payload, &entries[..3]) > 10);
        for at in 0..payload.len().min(300) {
            for value in [0, 1, 0x7f, 0x80, 0xff, random.next() as u8] {
                let mut damaged = payload.clone();
                damaged[at] = value;
                exercise(&damaged, &entries[..3]);
            }
        }
        for _ in 0..2000 {
            let mut damaged = payload.clone();
            damaged.truncate(random.below(payload.len() as u64 + 1) as usize);
            for _ in 0..random.below(6) {
                let at = random.below(60) as usize;
                if let Some(byte) = damaged.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            exercise(&damaged, &entries[..3]);
        }
    }
}

/// Calls every method of a table. Only panics and endless loops are failures.
fn survive(files: &TestFiles, table: &Table, probes: &[Entry]) -> Result<()> {
    let table = Table::open(&files.files, &files.blobs, table.id())?;
    let _ = table.check();
    for probe in probes {
        let context = ReadContext::blocking();
        let all = |_: EntryRef<'_>| ControlFlow::Continue(());
        let _ = table.get(&probe.0, Seqno(probe.1), &context, all);
        let _ = table.may_contain(hash_key(&probe.0), &context);
        let _ = table.range_statistics(Some(&probe.0), None, &ReadContext::blocking());
        let mut cursor = table.cursor();
        if cursor.seek(&probe.0).is_ok() && cursor.entry().is_some() {
            let _ = cursor.prev();
        }
    }
    let _ = table.approximate_split_keys(None, None, 4);
    let mut steps = 0;
    if let Ok(mut scan) = table.scan(Some(&probes[0].0), None, 1 << 16) {
        while scan.entry().is_some() && scan.next().is_ok() {
            steps += 1;
        }
    }
    let mut cursor = table.cursor();
    cursor.seek_last()?;
    while cursor.entry().is_some() {
        cursor.prev()?;
        steps += 1;
        assert!(steps < 1_000_000);
    }
    Ok(())
}

#[test]
fn wrong_bytes_under_right_checksums_never_panic() {
    let files = TestFiles::new();
    let entries = entries(300, 20);
    let table = build_with(&files, false, true, &entries);
    let path = files.files.path(table.id(), FileType::Table);
    let mut random = SplitMix::new(5);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..1500 {
        let unit = random.below(table.bytes() / 4096);
        let page = unit as usize * 4096..(unit as usize + 1) * 4096;
        let mut before = Vec::new();
        files.vfs.edit(&path, |bytes| {
            let page = &mut bytes[page.clone()];
            before = page.to_vec();
            for _ in 0..1 + random.below(3) {
                let most = [24, 80, 500][random.below(3) as usize];
                page[8 + random.below(most) as usize] = random.next() as u8;
            }
            let seed = table.id().0.rotate_left(32) ^ unit;
            let sum = checksum(seed, &page[8..]);
            page[..8].copy_from_slice(&sum.to_le_bytes());
        });
        let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
        fresh.files.retain_all();
        match survive(&fresh, &table, &entries[..3]) {
            Ok(()) => accepted += 1,
            Err(_) => refused += 1,
        }
        files.vfs.edit(&path, |bytes| bytes[page].copy_from_slice(&before));
    }
    assert!(refused > 50 && accepted > 50, "{refused} refused, {accepted} accepted");
}

/// The error of a read of the blob named a file "table" at byte 0, which did not exist.
#[test]
fn a_blob_entry_without_a_pointer_is_damage_of_its_page() {
    let files = TestFiles::new();
    let number = 0x1234;
    let entry = |key: &[u8]| (key.to_vec(), number, EntryKind::Put, b"no pointer".to_vec());
    let table = build(&files, false, &[entry(b"key")]);
    let path = files.files.path(table.id(), FileType::Table);
    // In a leaf with one entry the base of all meta numbers is that entry's.
    let meta = |kind: EntryKind| (number << 3 | kind as u64).to_le_bytes();
    files.vfs.edit(&path, |bytes| {
        let page = &mut bytes[..4096];
        let at = page.windows(8).position(|bytes| bytes == meta(EntryKind::Put)).unwrap();
        page[at..at + 8].copy_from_slice(&meta(EntryKind::PutBlob));
        let sum = checksum(table.id().0.rotate_left(32), &page[8..]);
        page[..8].copy_from_slice(&sum.to_le_bytes());
    });
    let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
    fresh.files.retain_all();
    let table = Table::open(&fresh.files, &fresh.blobs, table.id()).unwrap();
    let got = table.get(b"key", Seqno::MAX, &ReadContext::blocking(), |_| unreachable!());
    let scanned = table.scan(None, None, 1 << 16).err().unwrap();
    let stepped = table.cursor().seek_first().unwrap_err();
    for error in [got.unwrap_err(), scanned, stepped] {
        match error {
            Error::Corruption { file, offset: 0, what: "blob pointer", .. } => {
                assert_eq!(file, table.pages().path());
            }
            error => panic!("{error}"),
        }
    }
}
