//! What files of pages promise: pages come back as written, damage is found, reads are counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::base::sync::Mutex;

use super::fetch::Fetched;
use super::page::{Compression, PAGE_HEADER_BYTES};
use super::{
    Cache, DataFiles, FileType, PageClass, PageFile, PageFileWriter, PageMiss, PagePointer,
    ReadContext, UnitRun, fetch_misses, fetch_runs,
};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::key_hash::test_hasher;
use crate::base::limits::UNIT_BYTES;
use crate::vfs::{Access, BlockingQueue, DirEntry, File, IoQueue, Lock, MappedFile, Vfs};

/// Files in memory that count reads and fail as told: no more than these tests need.
#[derive(Debug, Default)]
struct Disk {
    files: Mutex<BTreeMap<PathBuf, Arc<DiskFile>>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    units_read: AtomicU64,
    /// Bytes that have been written since the last sync, and the most that there were before one.
    unsynced: AtomicU64,
    unsynced_most: AtomicU64,
    /// Operations until one fails; negative for never.
    until_failure: AtomicI64,
}

impl Counts {
    fn step(&self, path: &Path) -> Result<()> {
        match self.until_failure.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(Error::io("test", path, None, std::io::Error::other("told to"))),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct DiskFile {
    path: PathBuf,
    bytes: Mutex<Vec<u8>>,
    counts: Arc<Counts>,
}

impl File for DiskFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.counts.step(&self.path)?;
        assert!(offset.is_multiple_of(4096) && buf.len().is_multiple_of(4096));
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts.units_read.fetch_add(buf.len() as u64 / 4096, Ordering::Relaxed);
        let bytes = self.bytes.lock();
        let from = offset as usize;
        match bytes.get(from..from + buf.len()) {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => {
                let eof = std::io::ErrorKind::UnexpectedEof.into();
                return Err(Error::io("read", &self.path, Some(offset), eof));
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, new: &[u8]) -> Result<()> {
        self.counts.step(&self.path)?;
        assert!(offset.is_multiple_of(4096) && new.len().is_multiple_of(4096));
        let mut bytes = self.bytes.lock();
        let end = offset as usize + new.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(new);
        self.counts.unsynced.fetch_add(new.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let unsynced = self.counts.unsynced.swap(0, Ordering::Relaxed);
        self.counts.unsynced_most.fetch_max(unsynced, Ordering::Relaxed);
        self.counts.step(&self.path)
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.bytes.lock().resize(len as usize, 0);
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk {
    fn file(&self, path: &Path) -> Arc<DiskFile> {
        Arc::clone(&self.files.lock()[path])
    }
}

impl Vfs for Disk {
    fn create(&self, path: &Path, _: Access) -> Result<Arc<dyn File>> {
        let counts = Arc::clone(&self.counts);
        let file = Arc::new(DiskFile { path: path.to_path_buf(), bytes: Mutex::default(), counts });
        assert!(self.files.lock().insert(path.to_path_buf(), Arc::clone(&file)).is_none());
        Ok(file)
    }

    fn open(&self, path: &Path, _: Access, _: bool) -> Result<Arc<dyn File>> {
        Ok(self.file(path))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.files.lock().remove(path).unwrap();
        Ok(())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().contains_key(path))
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::with_depth(depth))
    }

    fn create_mapped(&self, _: &Path, _: u64) -> Result<Arc<dyn MappedFile>> {
        unreachable!()
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn hard_link(&self, _: &Path, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn create_dir_all(&self, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn remove_dir(&self, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn read_dir(&self, _: &Path) -> Result<Vec<DirEntry>> {
        unreachable!()
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unreachable!()
    }

    fn lock_shared(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unreachable!()
    }
}

struct Store {
    disk: Arc<Disk>,
    files: Arc<DataFiles>,
}

fn store(cache_bytes: usize) -> Store {
    let disk = Arc::new(Disk::default());
    disk.counts.until_failure.store(-1, Ordering::Relaxed);
    let cache = Arc::new(Cache::new(cache_bytes));
    let vfs = Arc::clone(&disk) as Arc<dyn Vfs>;
    Store {
        disk,
        files: Arc::new(DataFiles::new(vfs, cache, Path::new("d"), FileId(5), test_hasher())),
    }
}

/// Pseudo-random bytes of which about every other run can be compressed.
fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 64);
    while bytes.len() < len {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match state >> 63 {
            0 => bytes.extend_from_slice(&[(state >> 40) as u8; 64]),
            _ => bytes.extend((0..8).map(|i| (state >> (8 * i)) as u8)),
        }
    }
    bytes.truncate(len);
    bytes
}

type Pages = Vec<(PagePointer, Vec<u8>)>;

fn write(store: &Store, lens: &[usize], compression: Compression) -> (Arc<PageFile>, Pages) {
    let mut writer = PageFileWriter::create(&store.files, FileType::Table).unwrap();
    let mut pages = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        let payload = payload(i as u64, len);
        pages.push((writer.append(i as u8, &payload, compression).unwrap(), payload));
    }
    let bytes = writer.bytes();
    let file = writer.finish().unwrap();
    assert_eq!(file.bytes(), bytes);
    (file, pages)
}

const LENS: [usize; 14] =
    [0, 1, 4071, 4072, 4073, 8168, 8169, 100, 20_000, 300_000, 17, 262_144, 1_000_000, 4000];

fn scanned(file: &Arc<PageFile>, chunk_units: u32) -> Pages {
    let mut scan = file.scan(0..u32::MAX, chunk_units);
    let mut pages: Pages = Vec::new();
    loop {
        match scan.next_page().unwrap() {
            Some((pointer, payload)) => pages.push((pointer, payload.to_vec())),
            None => return pages,
        }
        assert_eq!(usize::from(scan.kind()), pages.len() - 1);
    }
}

#[test]
fn pages_of_all_sizes_come_back_in_every_way_of_reading() {
    for compression in [Compression::None, Compression::Lz4] {
        let store = store(1 << 20);
        let (file, pages) = write(&store, &LENS, compression);
        let reopened = PageFile::open(&store.files, file.id(), FileType::Table).unwrap();
        assert_eq!(reopened.units(), file.units());
        let last = pages.last().unwrap().0;
        assert_eq!(last.unit + u32::from(last.units), file.units());
        for _round in 0..2 {
            for (pointer, expected) in &pages {
                let context = ReadContext::blocking();
                file.with_page(*pointer, PageClass::Leaf, &context, |found| {
                    assert_eq!(found, expected);
                })
                .unwrap();
                assert_eq!(&file.read_uncached(*pointer).unwrap(), expected);
            }
        }
        for chunk_units in [0, 1, 2, 7, 64, 1000] {
            store.disk.counts.units_read.store(0, Ordering::Relaxed);
            assert_eq!(scanned(&file, chunk_units), pages);
            let units_read = store.disk.counts.units_read.load(Ordering::Relaxed);
            assert_eq!(units_read, u64::from(file.units()), "each unit is read once");
        }
        let mut run = Vec::new();
        file.read_run(0..file.units(), |pointer, found| run.push((pointer, found.to_vec())))
            .unwrap();
        assert_eq!(run, pages);
        store.files.retain_all();
        drop(reopened);
    }
}

/// A table was synced once, at its end. While the device carried that out, reads waited for it, with 16 MiB for 25 to 45
/// ms.
#[test]
fn a_file_is_synced_piece_by_piece_while_it_is_written() {
    let store = store(0);
    write(&store, &[4000; 2000], Compression::None);
    let counts = &store.disk.counts;
    let (most, left) = (&counts.unsynced_most, &counts.unsynced);
    let (most, left) = (most.load(Ordering::Relaxed), left.load(Ordering::Relaxed));
    assert!((1 << 20..2 << 20).contains(&most) && left == 0, "{most} bytes at once, {left} left");
}

/// A failed sync is final: the device may have dropped what it was to write.
#[test]
fn after_a_failed_sync_a_file_is_never_finished() {
    let store = store(0);
    let mut writer = PageFileWriter::create(&store.files, FileType::Table).unwrap();
    let page = payload(1, 4000);
    // Four chunks, then the sync.
    store.disk.counts.until_failure.store(4, Ordering::Relaxed);
    let appended = |_: &u32| writer.append(0, &page, Compression::None).is_ok();
    let pages = (0..1000).take_while(appended).count();
    assert!((256..512).contains(&pages), "{pages} pages");
    assert!(writer.append(0, &page, Compression::None).is_err());
    assert!(writer.finish().is_err());
}

#[test]
fn compression_saves_whole_units_or_is_not_used() {
    let store = store(0);
    let mut writer = PageFileWriter::create(&store.files, FileType::Blob).unwrap();
    let mut units = |payload: &[u8]| writer.append(0, payload, Compression::Lz4).unwrap().units;
    assert_eq!(units(&[7; 4072]), 1);
    assert_eq!(units(&[7; 100_000]), 1);
    let noise: Vec<u8> = (0..3000u64)
        .flat_map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7).to_le_bytes())
        .collect();
    assert_eq!(usize::from(units(&noise)), (24 + noise.len()).div_ceil(4096));
}

#[test]
fn a_range_is_scanned_without_what_lies_outside() {
    let store = store(0);
    let (file, pages) = write(&store, &[4000; 50], Compression::None);
    store.disk.counts.units_read.store(0, Ordering::Relaxed);
    let mut scan = file.scan(10..23, 5);
    for (pointer, expected) in &pages[10..23] {
        assert_eq!(scan.next_page().unwrap().unwrap(), (*pointer, &expected[..]));
    }
    assert!(scan.next_page().unwrap().is_none());
    assert_eq!(store.disk.counts.units_read.load(Ordering::Relaxed), 13);
    assert!(file.scan(50..60, 5).next_page().unwrap().is_none());
    let (start, end) = (7, 3);
    assert!(file.scan(start..end, 5).next_page().unwrap().is_none());
    assert!(file.read_run(49..51, |_, _| ()).unwrap_err().is_corruption());
}

fn read_all(file: &Arc<PageFile>, pages: &Pages) -> Vec<bool> {
    let is_damaged = |result: Result<Vec<u8>>, expected: &Vec<u8>| match result {
        Ok(found) => {
            assert_eq!(&found, expected);
            false
        }
        Err(error) => {
            assert!(error.is_corruption(), "{error}");
            true
        }
    };
    pages
        .iter()
        .map(|(pointer, payload)| is_damaged(file.read_uncached(*pointer), payload))
        .collect()
}

#[test]
fn a_flipped_bit_anywhere_is_corruption_of_its_page_alone() {
    for compression in [Compression::None, Compression::Lz4] {
        let store = store(0);
        let (file, pages) = write(&store, &[300, 9000, 0], compression);
        let disk_file = store.disk.file(&file.path());
        let bytes = disk_file.bytes.lock().len();
        // Every byte of the headers and some of the rest: all would take long for no more.
        let step = if cfg!(miri) { 1021 } else { 13 };
        let headers = pages.iter().flat_map(|(pointer, _)| {
            let from = pointer.offset() as usize;
            from..from + PAGE_HEADER_BYTES + 8
        });
        for at in (0..bytes).step_by(step).chain(headers).chain([bytes - 1]) {
            disk_file.bytes.lock()[at] ^= 1 << (at % 8);
            let in_page = |pointer: PagePointer| {
                let from = pointer.offset() as usize;
                (from..from + pointer.bytes()).contains(&at)
            };
            let expected: Vec<bool> = pages.iter().map(|(pointer, _)| in_page(*pointer)).collect();
            assert_eq!(read_all(&file, &pages), expected, "byte {at}");
            let damaged = expected.iter().position(|&damaged| damaged).unwrap();
            let mut scan = file.scan(0..file.units(), 2);
            for (pointer, expected) in &pages[..damaged] {
                assert_eq!(scan.next_page().unwrap().unwrap(), (*pointer, &expected[..]));
            }
            let error = scan.next_page().unwrap_err();
            assert!(
                matches!(&error, Error::Corruption { offset, .. }
                if *offset == pages[damaged].0.offset()),
                "{error}"
            );
            assert!(scan.next_page().is_err(), "the scan does not go past it");
            assert!(file.read_run(0..file.units(), |_, _| ()).unwrap_err().is_corruption());
            disk_file.bytes.lock()[at] ^= 1 << (at % 8);
        }
        assert_eq!(read_all(&file, &pages), [false; 3]);
    }
}

#[test]
fn whole_pages_in_the_wrong_place_are_corruption() {
    let store = store(1 << 20);
    let (first, pages) = write(&store, &[100; 4], Compression::None);
    let (second, _) = write(&store, &[100; 4], Compression::None);
    let from = store.disk.file(&first.path()).bytes.lock().clone();
    let target = store.disk.file(&second.path());
    // The same page of another file, then another page of the same file.
    let own = target.bytes.lock().clone();
    for source in [from[..4096].to_vec(), own[4096..8192].to_vec()] {
        target.bytes.lock()[..4096].copy_from_slice(&source);
        let context = ReadContext::blocking();
        let read = second.with_page(pages[0].0, PageClass::Leaf, &context, |_| ());
        assert!(read.unwrap_err().is_corruption());
        assert!(second.scan(0..4, 2).next_page().unwrap_err().is_corruption());
    }
}

#[test]
fn wrong_pointers_are_corruption_also_when_the_page_is_cached() {
    let store = store(1 << 20);
    let (file, pages) = write(&store, &[100, 9000, 100], Compression::None);
    let context = ReadContext::blocking();
    for (pointer, _) in &pages {
        file.with_page(*pointer, PageClass::Leaf, &context, |_| ()).unwrap();
    }
    for (unit, units) in [(0, 0), (0, 2), (1, 1), (1, 2), (1, 4), (2, 1), (4, 2), (5, 1), (9, 9)] {
        let pointer = PagePointer { unit, units };
        let read = file.with_page(pointer, PageClass::Leaf, &context, |_| ());
        assert!(read.unwrap_err().is_corruption(), "{pointer:?}");
        assert!(file.read_uncached(pointer).unwrap_err().is_corruption(), "{pointer:?}");
    }
    let far = PagePointer { unit: u32::MAX, units: u16::MAX };
    assert!(file.read_uncached(far).unwrap_err().is_corruption());
}

#[test]
fn headers_that_lie_with_right_checksums_are_corruption() {
    let store = store(0);
    let (file, pages) = write(&store, &[9000], Compression::None);
    let disk_file = store.disk.file(&file.path());
    let whole = disk_file.bytes.lock().clone();
    let lies: [(usize, &[u8]); 8] = [
        (8, &[1, 0, 0, 0]),
        (8, &[0xff; 4]),
        (12, &[0xff; 4]),
        (12, &[0, 0x40, 0, 0]),
        (16, &[2, 0]),
        (16, &[0, 0]),
        (19, &[1]),
        (19, &[2]),
    ];
    for (at, lie) in lies {
        let mut page = whole.clone();
        page[at..at + lie.len()].copy_from_slice(lie);
        reseal(&file, &mut page);
        disk_file.bytes.lock().copy_from_slice(&page);
        let error = file.read_uncached(pages[0].0).unwrap_err();
        assert!(error.is_corruption(), "{at} {lie:?}: {error}");
        assert!(file.scan(0..3, 1).next_page().unwrap_err().is_corruption());
    }
    // A claim to be huge once decompressed is refused before memory is taken.
    let mut page = whole.clone();
    page[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    page[19] = 1;
    reseal(&file, &mut page);
    disk_file.bytes.lock().copy_from_slice(&page);
    let error = file.read_uncached(pages[0].0).unwrap_err().to_string();
    assert!(error.contains("at most"), "{error}");
}

fn reseal(file: &PageFile, page: &mut [u8]) {
    let sum = super::page::header_checksum(file.id(), 0, page);
    page[20..24].copy_from_slice(&sum.to_le_bytes());
    let sum = super::page::page_checksum(file.id(), 0, page);
    page[..8].copy_from_slice(&sum.to_le_bytes());
}

/// The index of a table named a leaf beyond the table's end. Read-ahead asked the disk for it, and
/// the error blamed the disk.
#[test]
fn what_a_file_does_not_have_is_not_fetched() {
    let store = store(1 << 20);
    let (file, _) = write(&store, &[100], Compression::None);
    let pointer = PagePointer { unit: 99, units: 1 };
    let miss = PageMiss { file, pointer, class: PageClass::Leaf };
    assert!(fetch_misses(vec![miss]).unwrap_err().is_corruption());
}

#[test]
fn misses_are_collected_and_fetched_once() {
    let store = store(1 << 20);
    let (file, pages) = write(&store, &[100, 9000, 200], Compression::Lz4);
    let context = ReadContext::collecting();
    for (pointer, _) in pages.iter().chain(&pages) {
        let read = file.with_page(*pointer, PageClass::Index, &context, |_| ());
        assert!(matches!(read, Err(Error::NotResident)));
    }
    let wrong = PagePointer { unit: 99, units: 1 };
    let read = file.with_page(wrong, PageClass::Index, &context, |_| ());
    assert!(read.unwrap_err().is_corruption(), "a wrong pointer is no miss");
    let misses = context.misses.as_ref().unwrap().take();
    assert_eq!(misses.len(), 6);
    let reads = || store.disk.counts.reads.load(Ordering::Relaxed);
    let before = reads();
    assert_eq!(fetch_misses(misses).unwrap(), 3);
    // They lie one behind another.
    assert_eq!(reads() - before, 1);
    for (pointer, expected) in &pages {
        file.with_page(*pointer, PageClass::Index, &context, |found| assert_eq!(found, expected))
            .unwrap();
    }
    assert_eq!((reads() - before, context.pages_read.get()), (1, 0));
    assert_eq!(fetch_misses(Vec::new()).unwrap(), 0);
    let blocking = ReadContext::blocking();
    store.files.cache.set_capacity(0);
    file.with_page(pages[1].0, PageClass::Leaf, &blocking, |_| ()).unwrap();
    assert_eq!(blocking.pages_read.get(), 1);
}

/// Runs may overlap, begin and end within pages, and have damaged ones.
#[test]
fn runs_of_pages_are_fetched_at_once_but_for_what_is_no_sound_page() {
    let store = store(1 << 20);
    let (file, pages) = write(&store, &[100, 9000, 200, 300, 400, 9000], Compression::None);
    let units: Vec<u32> = pages.iter().map(|(pointer, _)| pointer.unit).collect();
    assert_eq!(units, [0, 1, 4, 5, 6, 7]);
    store.disk.file(&file.path()).bytes.lock()[5 * UNIT_BYTES + 50] ^= 1;
    let fetch = |runs: &[(u32, u32)]| {
        let run =
            |(start, end): &(u32, u32)| UnitRun { file: Arc::clone(&file), units: *start..*end };
        fetch_runs(runs.iter().map(run).collect(), PageClass::Leaf)
    };
    let whole = |pages| Fetched { pages, is_whole: true };
    let reads = || store.disk.counts.reads.load(Ordering::Relaxed);
    let cached = || {
        let is_cached = |(pointer, _): &(PagePointer, Vec<u8>)| {
            let context = ReadContext::collecting();
            file.with_page(*pointer, PageClass::Leaf, &context, |_| ()).is_ok()
        };
        pages.iter().map(is_cached).collect::<Vec<_>>()
    };
    let before = reads();
    assert_eq!(fetch(&[(3, 6), (0, 1), (5, 9)]).unwrap(), whole(4));
    assert_eq!(reads() - before, 2);
    assert_eq!(cached(), [true, false, true, false, true, false]);
    assert_eq!(fetch(&[(0, 10)]).unwrap(), whole(6));
    assert_eq!(cached(), [true, true, true, false, true, true]);
    let context = ReadContext::blocking();
    let damaged = file.with_page(pages[3].0, PageClass::Leaf, &context, |_| ());
    assert!(damaged.unwrap_err().is_corruption());
    assert!(fetch(&[(90, 99)]).unwrap_err().is_corruption());
    assert_eq!(fetch(&[]).unwrap(), whole(0));
    // One read fails.
    store.files.cache.set_capacity(0);
    store.files.cache.set_capacity(1 << 20);
    store.disk.counts.until_failure.store(1, Ordering::Relaxed);
    let partly = Fetched { pages: 1, is_whole: false };
    assert_eq!(fetch(&[(0, 1), (6, 7)]).unwrap(), partly);
    assert_eq!(cached(), [true, false, false, false, false, false]);
    // Without room, no more is read than is never counted.
    store.files.read_ahead.set_bytes_max(0);
    assert_eq!(fetch(&[(0, 10)]).unwrap(), Fetched { pages: 0, is_whole: false });
    assert_eq!(fetch(&[(1, 5)]).unwrap(), whole(2));
}

#[test]
fn a_failed_write_fails_the_file_for_good() {
    let lens = [100_000usize; 12];
    let all = {
        let store = store(0);
        store.disk.counts.until_failure.store(i64::MAX, Ordering::Relaxed);
        let (_file, _) = write(&store, &lens, Compression::None);
        i64::MAX - store.disk.counts.until_failure.load(Ordering::Relaxed)
    };
    assert!(all > 4);
    for fail_at in 0..all {
        let store = store(0);
        store.disk.counts.until_failure.store(fail_at, Ordering::Relaxed);
        let mut writer = PageFileWriter::create(&store.files, FileType::Table).unwrap();
        for (i, &len) in lens.iter().enumerate() {
            // An error now does not let later calls off.
            let _ = writer.append(0, &payload(i as u64, len), Compression::None);
        }
        assert!(writer.finish().is_err(), "operation {fail_at}");
        assert!(store.disk.files.lock().is_empty(), "what was written is removed");
    }
}

#[test]
fn a_failed_read_is_reported_and_the_scan_can_go_on() {
    let store = store(0);
    let (file, pages) = write(&store, &[5000; 20], Compression::None);
    let mut failures = 0;
    for fail_at in 0..12 {
        store.disk.counts.until_failure.store(fail_at, Ordering::Relaxed);
        let mut scan = file.scan(0..file.units(), 3);
        let mut found = 0;
        loop {
            match scan.next_page() {
                Ok(Some((pointer, payload))) => {
                    assert_eq!((pointer, payload), (pages[found].0, &pages[found].1[..]));
                    found += 1;
                }
                Ok(None) => break,
                Err(Error::Io { .. }) => failures += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(found, pages.len());
    }
    assert_eq!(failures, 12);
}

/// Pages that answer for others are in the cache before the file is read, and no page of a file
/// that was never finished stays there.
#[test]
fn pages_can_be_cached_as_they_are_written() {
    let store = store(1 << 20);
    let mut writer = PageFileWriter::create(&store.files, FileType::Table).unwrap();
    // So many that chunks are written between them.
    let pages: Vec<_> = (0..60)
        .map(|i| {
            let payload = payload(i, if i % 3 == 0 { 9000 } else { 4000 });
            let class = if i % 2 == 0 { PageClass::Index } else { PageClass::Filter };
            let pointer = match i % 5 {
                0 => writer.append(1, &payload, Compression::Lz4).unwrap(),
                _ => writer.append_cached(2, &payload, class).unwrap(),
            };
            (i, pointer, class, payload)
        })
        .collect();
    let file = writer.finish().unwrap();
    for (i, pointer, class, payload) in pages {
        let context = ReadContext::blocking();
        let equal = file.with_page(pointer, class, &context, |found| found == payload).unwrap();
        assert!(equal, "page {i}");
        assert_eq!(context.pages_read.get() > 0, i % 5 == 0, "page {i}");
    }
    drop(file);
    assert_eq!(store.files.cache.statistics().pages, 0);

    let mut unfinished = PageFileWriter::create(&store.files, FileType::Maplet).unwrap();
    (0..100).for_each(|i| {
        unfinished.append_cached(2, &payload(i, 4000), PageClass::Filter).map(|_| ()).unwrap();
    });
    assert_eq!(store.files.cache.statistics().pages, 100);
    drop(unfinished);
    assert_eq!(store.files.cache.statistics().pages, 0);
}

#[test]
fn files_go_with_their_last_handle_and_take_their_pages_along() {
    let store = store(1 << 20);
    let (file, pages) = write(&store, &[100, 200], Compression::None);
    let context = ReadContext::blocking();
    let path = file.path();
    for (pointer, _) in &pages {
        file.with_page(*pointer, PageClass::Leaf, &context, |_| ()).unwrap();
    }
    assert_eq!(store.files.cache.statistics().pages, 2);
    drop(file);
    assert_eq!(store.files.cache.statistics().pages, 0);
    assert!(!store.files.vfs.exists(&path).unwrap());

    let (file, _) = write(&store, &[100], Compression::None);
    let path = file.path();
    let unfinished = PageFileWriter::create(&store.files, FileType::Blob).unwrap();
    let empty = PageFileWriter::create(&store.files, FileType::Blob).unwrap();
    assert!(empty.finish().is_err());
    assert_eq!(store.disk.files.lock().len(), 2);
    store.files.retain_all();
    drop((file, unfinished));
    assert!(store.files.vfs.exists(&path).unwrap());
    for len in [0, 100, 4097] {
        store.disk.file(&path).truncate(len).unwrap();
        let open = PageFile::open(&store.files, FileId(6), FileType::Table);
        assert!(open.err().unwrap().is_corruption());
    }
    assert_eq!(path, store.files.path(FileId(6), FileType::Table));
    assert_eq!(UNIT_BYTES, 4096);
}

/// A quarantined keyspace was dropped, and it had been seen that the store was not poisoned. Then a
/// commit of the manifest failed, and then files were no longer retained: those went that the
/// manifest may name.
#[test]
fn files_that_may_be_named_stay_whatever_else_is_over() {
    let store = store(0);
    store.files.retain_for_now();
    assert!(store.files.retains());
    store.files.retain_all();
    store.files.retain_no_longer();
    assert!(store.files.retains());
}
