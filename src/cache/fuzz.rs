//! Fuzz target: pages, as they lie in data files; and what the targets of those files share.

use std::path::Path;
use std::sync::Arc;

use super::page::{self, Compression, PAGE_HEADER_BYTES, header_checksum, page_checksum};
use super::{Cache, DataFiles, FileType, PageClass, PageFile, PagePointer, ReadContext};
use crate::base::error::Result;
use crate::base::fuzz::{FILE, Target, named, split_first};
use crate::base::ids::FileId;
use crate::base::key_hash::test_hasher;
use crate::base::limits::UNIT_BYTES;
use crate::vfs::{Access, MemoryVfs, Vfs};

/// The file that targets read.
pub(crate) const ID: FileId = FileId(5);
/// More of an input is not looked at.
const UNITS_MAX: usize = 64;

pub(crate) const TARGETS: [Target; 1] = [Target { name: "page", run: pages, seeds: page_seeds }];

/// Data files in memory. The first that is written gets the number [`ID`].
pub(crate) fn data_files() -> Arc<DataFiles> {
    let vfs = MemoryVfs::new();
    vfs.create_dir_all(Path::new(FILE)).expect("a directory");
    let cache = Arc::new(Cache::new(1 << 20));
    let files = Arc::new(DataFiles::new(Arc::new(vfs), cache, Path::new(FILE), ID, test_hasher()));
    files.retain_all();
    files
}

/// A data file's bytes.
pub(crate) fn bytes_of(files: &DataFiles, id: FileId, file_type: FileType) -> Vec<u8> {
    let read = || -> Result<Vec<u8>> {
        let file = files.vfs.open(&files.path(id, file_type), Access::Buffered, false)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    read().expect("a file in memory")
}

/// Data files with one that has these bytes, filled up to whole units, its checksums made right if
/// `seals`.
pub(crate) fn with_file(bytes: &[u8], file_type: FileType, seals: bool) -> Arc<DataFiles> {
    let mut bytes = bytes[..bytes.len().min(UNITS_MAX * UNIT_BYTES)].to_vec();
    bytes.resize(bytes.len().next_multiple_of(UNIT_BYTES).max(UNIT_BYTES), 0);
    if seals {
        seal(&mut bytes);
    }
    let files = data_files();
    let created = files.vfs.create(&files.path(ID, file_type), Access::Buffered);
    created.and_then(|file| file.write_at(0, &bytes)).expect("a file");
    files
}

/// Makes the checksums of all pages right, and page lengths that cannot be.
fn seal(bytes: &mut [u8]) {
    let mut unit = 0;
    while let Some(rest) = bytes.get_mut(unit * UNIT_BYTES..).filter(|rest| !rest.is_empty()) {
        let left = rest.len() / UNIT_BYTES;
        let mut units = usize::from(u16::from_le_bytes([rest[16], rest[17]]));
        if units == 0 || units > left {
            units = 1;
            rest[16..18].copy_from_slice(&[1, 0]);
        }
        let page = &mut rest[..units * UNIT_BYTES];
        let sum = header_checksum(ID, unit as u32, page);
        page[20..24].copy_from_slice(&sum.to_le_bytes());
        let sum = page_checksum(ID, unit as u32, page);
        page[..8].copy_from_slice(&sum.to_le_bytes());
        unit += units;
    }
}

/// A flag, and a file of pages.
fn pages(data: &[u8]) {
    let (flags, bytes) = split_first(data);
    let files = with_file(bytes, FileType::Table, flags & 1 == 0);
    let Some(file) = named(PageFile::open(&files, ID, FileType::Table)) else { return };
    let mut scan = file.scan(0..file.units(), 3);
    let mut payloads = Vec::new();
    while let Some(Some((pointer, payload))) = named(scan.next_page()) {
        assert_eq!(file.read_uncached(pointer).ok().as_deref(), Some(payload));
        for _ in 0..2 {
            let same = |page: &[u8]| page == payload;
            let context = ReadContext::blocking();
            let cached = file.with_page(pointer, PageClass::Leaf, &context, same);
            assert_eq!(named(cached), Some(true), "the cache has another page");
        }
        let longer = PagePointer { units: pointer.units.wrapping_add(1), ..pointer };
        assert!(named(file.read_uncached(longer)).is_none());
        payloads.push(payload.to_vec());
    }
    let Some(payload) = payloads.first().filter(|payload| payload.len() < UNITS_MAX * UNIT_BYTES)
    else {
        return;
    };
    let units = (PAGE_HEADER_BYTES + payload.len()).div_ceil(UNIT_BYTES);
    let mut written = vec![0xff; units * UNIT_BYTES];
    let kind = (7, Compression::None);
    page::encode(&mut written, (ID, 0), kind, payload.len() as u32, payload);
    let files = with_file(&written, FileType::Table, false);
    let file = PageFile::open(&files, ID, FileType::Table).expect("a file of a page");
    let pointer = PagePointer { unit: 0, units: units as u16 };
    assert_eq!(file.read_uncached(pointer).ok().as_ref(), Some(payload));
}

fn page_seeds() -> Vec<Vec<u8>> {
    let files = data_files();
    let write = || -> Result<Arc<PageFile>> {
        let mut writer = super::PageFileWriter::create(&files, FileType::Table)?;
        let text = b"what is said twice is said twice; ".repeat(300);
        writer.append(1, b"hello", Compression::None)?;
        writer.append(2, &text, Compression::Lz4)?;
        writer.append(3, &text[..5000], Compression::None)?;
        writer.finish()
    };
    write().expect("a file of pages");
    vec![[&[0], &*bytes_of(&files, ID, FileType::Table)].concat()]
}
