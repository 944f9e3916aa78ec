//! Tests of blob files.

use std::sync::Arc;

use super::test_support::TestFiles;
use super::{BlobPointer, BlobScan, BlobWriter, Caching, Table, TableBuilder, TableOptions};
use crate::base::entry::EntryKind;
use crate::base::ids::{FileId, Seqno};
use crate::base::random::SplitMix;
use crate::cache::FileType;

#[test]
fn values_of_all_sizes_come_back_and_waste_nothing() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(1);
    let sizes = [0, 1, 4071, 4072, 4073, 5000, 8144, 0, 100_000, 1_100_000, 3 << 20, 17];
    let values: Vec<Vec<u8>> = sizes.iter().map(|&n| random.bytes(n)).collect();
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let pointers: Vec<BlobPointer> = values.iter().map(|v| writer.append(v).unwrap()).collect();
    let total: usize = sizes.iter().sum();
    assert_eq!(writer.bytes(), total as u64);
    let file = writer.finish().unwrap();
    assert_eq!(file.bytes(), (total.div_ceil(4072) as u64 + 1) * 4096);
    for (pointer, value) in pointers.iter().zip(&values) {
        assert!(file.read(pointer).unwrap() == *value);
        let mut bytes = Vec::new();
        pointer.encode(&mut bytes);
        assert_eq!(BlobPointer::decode(&bytes), Some(*pointer));
        assert_eq!(BlobPointer::decode(&bytes[1..]), None);
        bytes.push(0);
        assert_eq!(BlobPointer::decode(&bytes), None);
    }
    file.check().unwrap();
    assert_eq!((file.value_bytes(), file.values()), (total as u64, sizes.len() as u64));
    for wrong in [
        BlobPointer { offset: u64::MAX, ..pointers[3] },
        BlobPointer { length: u32::MAX, ..pointers[3] },
        BlobPointer { offset: pointers[3].offset + 1, ..pointers[3] },
        BlobPointer { checksum: 1, ..pointers[3] },
        BlobPointer { file: FileId(77), ..pointers[3] },
    ] {
        assert!(file.read(&wrong).unwrap_err().is_corruption());
    }
}

/// As compactions read that copy values out.
#[test]
fn values_are_read_ahead_in_any_order() {
    let files = TestFiles::new();
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let value = |number: usize| vec![number as u8; (number * 997) % 9000];
    let pointers: Vec<_> = (0..300).map(|n| writer.append(&value(n)).unwrap()).collect();
    let file = writer.finish().unwrap();
    for bytes_max in [0, 20_000, 1 << 20] {
        let mut scan = BlobScan::new(Arc::clone(&file), bytes_max);
        let jumps =
            (0..300).step_by(3).chain((0..300).step_by(50)).chain((0..300).rev().step_by(7));
        for number in (0..300).chain(jumps) {
            assert_eq!(scan.read(&pointers[number]).unwrap(), value(number), "{number}");
        }
        let wrong = BlobPointer { checksum: 1, ..pointers[3] };
        assert!(scan.read(&wrong).unwrap_err().is_corruption());
        let wrong = BlobPointer { offset: u64::MAX, ..pointers[3] };
        assert!(scan.read(&wrong).unwrap_err().is_corruption());
    }
}

/// A damaged value beside one that is asked for is no error.
#[test]
fn what_is_read_ahead_may_be_damaged() {
    let files = TestFiles::new();
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let pointers: Vec<_> = (0..10).map(|n| writer.append(&[n; 4072]).unwrap()).collect();
    let file = writer.finish().unwrap();
    let path = files.files.path(file.id(), FileType::Blob);
    files.vfs.edit(&path, |bytes| bytes[5 * 4096 + 100] ^= 1);
    let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
    fresh.files.retain_all();
    let mut scan = BlobScan::new(fresh.blobs.open(file.id()).unwrap(), 1 << 20);
    for (number, pointer) in pointers.iter().enumerate() {
        match scan.read(pointer) {
            Ok(value) => assert!(number != 5 && value == [number as u8; 4072]),
            Err(error) => assert!(number == 5 && error.is_corruption(), "{number}: {error}"),
        }
    }
}

#[test]
fn damage_anywhere_in_a_blob_file_is_found() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(2);
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let values: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(2500)).collect();
    let pointers: Vec<_> = values.iter().map(|v| writer.append(v).unwrap()).collect();
    let file = writer.finish().unwrap();
    let path = files.files.path(file.id(), FileType::Blob);
    for at in 0..file.bytes() as usize {
        files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
        let fresh = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
        fresh.files.retain_all();
        match fresh.blobs.open(file.id()) {
            Err(e) => assert!(e.is_corruption(), "{e}"),
            Ok(reopened) => {
                assert!(reopened.check().unwrap_err().is_corruption());
                for (pointer, value) in pointers.iter().zip(&values) {
                    match reopened.read(pointer) {
                        Ok(found) => assert!(found == *value),
                        Err(e) => assert!(e.is_corruption(), "{e}"),
                    }
                }
            }
        }
        files.vfs.edit(&path, |bytes| bytes[at] ^= 1 << (at % 8));
    }
}

fn table_over(files: &TestFiles, pointers: &[BlobPointer]) -> Arc<Table> {
    let mut builder =
        TableBuilder::new(&files.files, &files.blobs, TableOptions::default()).unwrap();
    for (i, pointer) in pointers.iter().enumerate() {
        let mut value = Vec::new();
        pointer.encode(&mut value);
        builder.add(&[i as u8], Seqno(1), EntryKind::PutBlob, &value).unwrap();
    }
    builder.finish().unwrap()
}

#[test]
fn a_blob_file_lives_as_long_as_a_table_that_refers_to_it() {
    let files = TestFiles::new();
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let pointers: Vec<_> = (1..5).map(|i| writer.append(&[i; 3000]).unwrap()).collect();
    let abandoned = BlobWriter::new(&files.blobs).unwrap();
    let blob = writer.finish().unwrap();
    drop(abandoned);
    let first = table_over(&files, &pointers[..3]);
    let second = table_over(&files, &pointers[2..]);
    let references = &first.properties().blobs;
    assert_eq!(references.len(), 1);
    assert_eq!(
        (references[0].file, references[0].values, references[0].bytes),
        (blob.id(), 3, 9000)
    );
    assert!(Arc::ptr_eq(&first.blobs()[0], &second.blobs()[0]));
    first.check().unwrap();
    let reopened = Table::open(&files.files, &files.blobs, second.id()).unwrap();
    assert!(Arc::ptr_eq(&reopened.blobs()[0], &second.blobs()[0]));
    let mut value = Vec::new();
    pointers[2].encode(&mut value);
    assert_eq!(reopened.read_blob(&value).unwrap(), vec![3; 3000]);
    assert!(reopened.read_blob(b"?").unwrap_err().is_corruption());
    // (The reopened handle is a second owner of the second table's file. A store never creates
    // one.)
    files.files.retain_all();
    drop(reopened);
    let files = TestFiles::over(Arc::clone(&files.vfs), 1 << 20);
    drop((blob, first, second));
    let names = files.vfs.names().len();
    assert_eq!(names, 3);
    let open = |id| Table::open(&files.files, &files.blobs, FileId(id)).unwrap();
    let (first, second) = (open(3), open(4));
    drop(first);
    assert_eq!(files.vfs.names().len(), 2);
    assert_eq!(second.read_blob(&value).unwrap(), vec![3; 3000]);
    drop(second);
    assert_eq!(files.vfs.names().len(), 0);
}

/// Some that are cached, some that are not, in any order, twice, short ones too; and what is wrong with one is told.
#[test]
fn values_that_are_read_together_are_those_of_their_pointers() {
    let files = TestFiles::new();
    let mut random = SplitMix::new(7);
    let mut written = Vec::new();
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut writer = BlobWriter::new(&files.blobs).unwrap();
        for _ in 0..if cfg!(miri) { 4 } else { 40 } {
            let len =
                [0, 9, 700, 4071, 4072, 4100, 9000, 40_000, 300_000][random.below(9) as usize];
            let value = random.bytes(len);
            written.push((writer.append(&value).unwrap(), value));
        }
        open.push(writer.finish().unwrap());
    }
    let (good, _) = written.iter().find(|(pointer, _)| pointer.length == 9000).unwrap();
    for wrong in [
        BlobPointer { checksum: 1, offset: good.offset + 1, ..*good },
        BlobPointer { length: good.length + 1, ..*good },
        BlobPointer { offset: u64::MAX - 10_000, ..*good },
    ] {
        let result = files.blobs.values(&[*good, wrong], Caching::Bypasses);
        assert!(result.is_err_and(|error| error.is_corruption()), "{wrong:?}");
    }
    for round in 0..if cfg!(miri) { 2 } else { 40 } {
        let caching = if round % 2 == 0 { Caching::Bypasses } else { Caching::Caches };
        let chosen: Vec<_> = (0..random.below(30))
            .map(|_| &written[random.below(written.len() as u64) as usize])
            .collect();
        let pointers: Vec<BlobPointer> = chosen.iter().map(|(pointer, _)| *pointer).collect();
        let values = files.blobs.values(&pointers, caching).unwrap();
        assert_eq!(values.len(), chosen.len());
        for ((pointer, value), found) in chosen.iter().zip(&values) {
            assert!(found[..] == value[..], "{pointer:?}");
            assert!(files.blobs.value(pointer, caching).unwrap()[..] == value[..]);
        }
    }
}

/// A value stays with who has it; the cache gives it up with its file, and no later file gets its number.
#[test]
fn a_cached_value_leaves_the_cache_with_its_file() {
    let files = TestFiles::new();
    let mut writer = BlobWriter::new(&files.blobs).unwrap();
    let values = [vec![1; 5000], vec![2; 50_000], vec![3; 90_000]];
    let pointers: Vec<_> = values.iter().map(|v| writer.append(v).unwrap()).collect();
    let file = writer.finish().unwrap();
    let kept: Vec<_> =
        pointers.iter().map(|p| files.blobs.value(p, Caching::Caches).unwrap()).collect();
    assert_eq!(files.files.cache.statistics().pages, 3);
    drop(file);
    assert_eq!(files.files.cache.statistics().pages, 0);
    assert!(kept.iter().zip(&values).all(|(kept, value)| kept[..] == value[..]));
    assert!(files.blobs.value(&pointers[0], Caching::Caches).is_err());
}
