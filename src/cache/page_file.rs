//! Files of pages, the container of tables, maplets and blobs (`docs/format/page.md`).
//!
//! A page is one or more consecutive units of 4 KiB (see [`super::page`]). This file reads single
//! pages through the cache. [`super::page_scan`] reads pages in order, and [`super::page_writer`]
//! writes them.
//!
//! Invariants:
//! 1. No byte of a page is returned before its checksum has been verified.
//! 2. Cached pages have been verified and decompressed.
//! 3. A page's pointer states its number of units; the page header must agree.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use super::data_files::{DataFiles, FileType, open_named};
use super::fetch::PageMiss;
use super::page::{
    Compression, PAGE_HEADER_BYTES, PAYLOAD_BYTES_MAX, PageHeader, header_checksum, page_checksum,
};
use super::page_cache::{PageClass, PageKey};
use super::page_scan::PageScan;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{self, Bug, planted};
use crate::vfs::{Access, AlignedBuf, File};

/// Each thread keeps a page buffer of up to this many bytes for its next read.
const KEPT_BYTES_MAX: usize = 32 << 10;

/// The location of a page in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PagePointer {
    /// The first unit.
    pub(crate) unit: u32,
    /// How many units.
    pub(crate) units: u16,
}

impl PagePointer {
    /// The page's first byte in the file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.unit) * UNIT_BYTES as u64
    }

    pub(super) fn bytes(self) -> usize {
        usize::from(self.units) * UNIT_BYTES
    }
}

/// How one operation reads pages, and how many it has read.
#[derive(Default)]
pub(crate) struct ReadContext {
    /// Where to record uncached pages instead of reading them. The operation then ends with
    /// [`Error::NotResident`] and is repeated after [`fetch_misses`](super::fetch_misses) has read
    /// them together.
    pub(crate) misses: Option<RefCell<Vec<PageMiss>>>,
    /// Pages read from the disk by this operation.
    pub(crate) pages_read: Cell<u32>,
}

impl ReadContext {
    /// Reads uncached pages immediately, one by one.
    pub(crate) fn blocking() -> ReadContext {
        ReadContext::default()
    }

    /// Records uncached pages; see [`ReadContext::misses`].
    pub(crate) fn collecting() -> ReadContext {
        ReadContext { misses: Some(RefCell::default()), pages_read: Cell::new(0) }
    }
}

/// A finished data file, read page by page.
pub(crate) struct PageFile {
    id: FileId,
    file_type: FileType,
    units: u32,
    file: Arc<dyn File>,
    files: Arc<DataFiles>,
}

impl PageFile {
    /// Opens an existing data file.
    pub(crate) fn open(
        files: &Arc<DataFiles>,
        id: FileId,
        file_type: FileType,
    ) -> Result<Arc<PageFile>> {
        let path = files.path(id, file_type);
        let file = open_named(&*files.vfs, &path, Access::Direct, "data file")?;
        let len = file.len()?;
        let units = len / UNIT_BYTES as u64;
        if units == 0 || len % UNIT_BYTES as u64 != 0 || u32::try_from(units).is_err() {
            return Err(Error::corruption(&path, 0, "file length", "whole 4 KiB units", len));
        }
        Ok(PageFile::new(files, (id, file_type), units as u32, file))
    }

    /// Opens the readable part of a data file, for repair: an incomplete unit at its end is
    /// ignored.
    pub(crate) fn open_torn(
        files: &Arc<DataFiles>,
        id: FileId,
        file_type: FileType,
    ) -> Result<Arc<PageFile>> {
        let file = files.vfs.open(&files.path(id, file_type), Access::Direct, false)?;
        let units = u32::try_from(file.len()? / UNIT_BYTES as u64).unwrap_or(u32::MAX);
        Ok(PageFile::new(files, (id, file_type), units, file))
    }

    /// A file that a writer has finished.
    pub(super) fn of_written(
        files: &Arc<DataFiles>,
        id: FileId,
        file_type: FileType,
        units: u32,
        file: Arc<dyn File>,
    ) -> Arc<PageFile> {
        PageFile::new(files, (id, file_type), units, file)
    }

    fn new(
        files: &Arc<DataFiles>,
        (id, file_type): (FileId, FileType),
        units: u32,
        file: Arc<dyn File>,
    ) -> Arc<PageFile> {
        files.count(units);
        Arc::new(PageFile { id, file_type, units, file, files: Arc::clone(files) })
    }

    pub(super) fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Removes its pages from the cache, as if the file had never been read.
    #[cfg(test)]
    pub(crate) fn forget_pages(&self) {
        self.files.cache.remove_file(self.id, self.units, true);
    }

    /// Length in units.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES as u64
    }

    /// The store's data files, which this file belongs to.
    pub(crate) fn files(&self) -> &Arc<DataFiles> {
        &self.files
    }

    /// The name, for messages.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.files.path(self.id, self.file_type)
    }

    /// A corruption error in the page at `pointer`.
    pub(crate) fn corrupt(
        &self,
        pointer: PagePointer,
        what: &'static str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Error {
        Error::corruption(&self.path(), pointer.offset(), what, expected, found)
    }

    /// Calls `f` with the payload of the page at `pointer`, from the cache, or after reading it
    /// into the cache. `f` must be short and must not read pages itself.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged; `NotResident` if it is not cached and `context`
    /// collects misses.
    #[inline]
    pub(crate) fn with_page<R>(
        self: &Arc<Self>,
        pointer: PagePointer,
        class: PageClass,
        context: &ReadContext,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let key = PageKey { file: self.id, unit: pointer.unit };
        let mut f = Some(f);
        let units = pointer.units.to_le_bytes();
        let cached = self.files.cache.get(key, class, |page| {
            // The pointer disagrees with the page: reading the page reports the error.
            if page.get(16..18) != Some(&units) {
                return None;
            }
            planted::linger();
            f.take().map(|f| f(page.get(PAGE_HEADER_BYTES..).unwrap_or_default()))
        });
        if let Some(Some(result)) = cached {
            return Ok(result);
        }
        match f {
            Some(f) => self.read_page(pointer, class, context, f),
            None => unreachable!("the cache called f and lost its result"),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_page<R>(
        self: &Arc<Self>,
        pointer: PagePointer,
        class: PageClass,
        context: &ReadContext,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        thread_local! {
            static BUF: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
        }
        self.check_bounds(pointer)?;
        if let Some(misses) = &context.misses {
            misses.borrow_mut().push(PageMiss { file: Arc::clone(self), pointer, class });
            return Err(Error::NotResident);
        }
        context.pages_read.set(context.pages_read.get() + 1);
        let kept = BUF.take().filter(|buf| buf.len() >= pointer.bytes());
        let mut buf = kept.unwrap_or_else(|| AlignedBuf::unzeroed(pointer.bytes()));
        let page = &mut buf[..pointer.bytes()];
        let result = self
            .file
            .read_at(pointer.offset(), page)
            .and_then(|()| self.admit(pointer, class, page, false, f));
        if buf.len() <= KEPT_BYTES_MAX {
            BUF.set(Some(buf));
        }
        result
    }

    /// The file's last unit. Files that are opened from their end have their footer there.
    pub(crate) fn last_unit(&self) -> PagePointer {
        PagePointer { unit: self.units - 1, units: 1 }
    }

    /// Reads the page without the cache and returns its payload.
    pub(crate) fn read_uncached(&self, pointer: PagePointer) -> Result<Vec<u8>> {
        self.check_bounds(pointer)?;
        let mut buf = AlignedBuf::unzeroed(pointer.bytes());
        self.file.read_at(pointer.offset(), &mut buf)?;
        let mut scratch = Vec::new();
        Ok(self.verify(pointer, &buf, &mut scratch)?.1.to_vec())
    }

    /// Reads the pages that fill a run of units with one I/O, past the cache, and calls `f` with
    /// the payload of each.
    pub(crate) fn read_run(
        &self,
        units: Range<u32>,
        f: impl FnMut(PagePointer, &[u8]),
    ) -> Result<()> {
        self.check_run(&units)?;
        let mut buf = AlignedBuf::unzeroed(units.len() * UNIT_BYTES);
        self.file.read_at(u64::from(units.start) * UNIT_BYTES as u64, &mut buf)?;
        self.pages_of_run(units, &buf, f)
    }

    /// Checks that the file has a run of units.
    pub(super) fn check_run(&self, units: &Range<u32>) -> Result<()> {
        if !units.is_empty() && units.end <= self.units {
            return Ok(());
        }
        let expected = format_args!("units within 0..{}", self.units);
        let pointer = PagePointer { unit: units.start, units: 1 };
        Err(self.corrupt(pointer, "run of pages", expected, format_args!("{units:?}")))
    }

    /// Verifies the pages that fill a run of units, of which `bytes` are the bytes that were just
    /// read, and calls `f` with the payload of each.
    pub(crate) fn pages_of_run(
        &self,
        units: Range<u32>,
        bytes: &[u8],
        mut f: impl FnMut(PagePointer, &[u8]),
    ) -> Result<()> {
        let mut scratch = Vec::new();
        let mut unit = units.start;
        while unit < units.end {
            let bytes = bytes.get((unit - units.start) as usize * UNIT_BYTES..).unwrap_or_default();
            let pointer = self.pointer_to(unit, units.end, bytes)?;
            let page = bytes.get(..pointer.bytes()).unwrap_or_default();
            f(pointer, self.verify(pointer, page, &mut scratch)?.1);
            unit += u32::from(pointer.units);
        }
        Ok(())
    }

    /// The pointer to the page that starts at `unit` with `bytes` and must end by `end_unit`.
    pub(super) fn pointer_to(&self, unit: u32, end_unit: u32, bytes: &[u8]) -> Result<PagePointer> {
        let at = PagePointer { unit, units: 1 };
        let Some(header) = PageHeader::decode(bytes) else {
            return Err(self.corrupt(at, "page header", PAGE_HEADER_BYTES, bytes.len()));
        };
        let expected = header_checksum(self.id, unit, bytes);
        if header.header_checksum != expected {
            return Err(self.corrupt(
                at,
                "page header checksum",
                format_args!("{expected:#010x}"),
                format_args!("{:#010x}", header.header_checksum),
            ));
        }
        let most = end_unit - unit;
        if header.units == 0 || u32::from(header.units) > most {
            return Err(self.corrupt(
                at,
                "page units",
                format_args!("from 1 to {most}"),
                header.units,
            ));
        }
        Ok(PagePointer { unit, units: header.units })
    }

    pub(super) fn check_bounds(&self, pointer: PagePointer) -> Result<()> {
        let end = u64::from(pointer.unit) + u64::from(pointer.units);
        if pointer.units == 0 || end > u64::from(self.units) {
            let found = format!("units {}..{end}", pointer.unit);
            return Err(self.corrupt(
                pointer,
                "page pointer",
                format_args!("units within 0..{}", self.units),
                found,
            ));
        }
        Ok(())
    }

    /// Verifies bytes that were just read, caches the page, and calls `f` with its payload. For
    /// `awaited` see [`Cache::insert_awaited`](super::Cache::insert_awaited).
    pub(super) fn admit<R>(
        &self,
        pointer: PagePointer,
        class: PageClass,
        bytes: &[u8],
        awaited: bool,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let mut scratch = Vec::new();
        let (header, payload) = self.verify(pointer, bytes, &mut scratch)?;
        let page = match header.compression_tag {
            0 => &bytes[..PAGE_HEADER_BYTES + payload.len()],
            _ => &scratch[..],
        };
        let unit = pointer.unit ^ u32::from(planted(Bug::PageMisplaced));
        let key = PageKey { file: self.id, unit };
        if awaited {
            self.files.cache.insert_awaited(key, class, page);
        } else {
            self.files.cache.insert(key, class, page);
        }
        Ok(f(&page[PAGE_HEADER_BYTES..]))
    }

    /// Caches the pages that lie wholly within a run of units, of which `bytes` are the bytes that were just read. Returns how
    /// many there are. A run may begin or end within a page. What is damaged is left to whoever needs it.
    pub(super) fn admit_run(&self, units: Range<u32>, class: PageClass, bytes: &[u8]) -> u32 {
        let mut count = 0;
        let mut unit = units.start;
        while unit < units.end {
            let bytes = bytes.get((unit - units.start) as usize * UNIT_BYTES..).unwrap_or_default();
            let Ok(pointer) = self.pointer_to(unit, units.end, bytes) else {
                unit += 1;
                continue;
            };
            let page = bytes.get(..pointer.bytes()).unwrap_or_default();
            if !self.files.cache.contains(PageKey { file: self.id, unit }) {
                let _ = self.admit(pointer, class, page, true, |_| ());
            }
            count += 1;
            unit += u32::from(pointer.units);
        }
        count
    }

    /// Verifies a page and returns its header and payload. If the payload is compressed, `scratch`
    /// then holds the header and the decompressed payload.
    pub(super) fn verify<'a>(
        &self,
        pointer: PagePointer,
        bytes: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<(PageHeader, &'a [u8])> {
        let Some(header) = PageHeader::decode(bytes) else {
            return Err(self.corrupt(pointer, "page header", PAGE_HEADER_BYTES, bytes.len()));
        };
        let expected = page_checksum(self.id, pointer.unit, bytes);
        if header.checksum != expected && !planted(Bug::PageChecksumIgnored) {
            return Err(self.corrupt(
                pointer,
                "page checksum",
                format_args!("{expected:#018x}"),
                format_args!("{:#018x}", header.checksum),
            ));
        }
        if header.units != pointer.units {
            return Err(self.corrupt(pointer, "page units", pointer.units, header.units));
        }
        let (payload_bytes, stored_bytes) =
            (header.payload_bytes as usize, header.stored_bytes as usize);
        let payload = &bytes[PAGE_HEADER_BYTES..];
        let Some(stored) = payload.get(..stored_bytes) else {
            let most = format_args!("at most {}", payload.len());
            return Err(self.corrupt(pointer, "page payload as stored", most, stored_bytes));
        };
        match Compression::from_tag(header.compression_tag) {
            Some(Compression::None) if payload_bytes == stored_bytes => Ok((header, stored)),
            Some(Compression::None) => {
                Err(self.corrupt(pointer, "page payload bytes", stored_bytes, payload_bytes))
            }
            Some(Compression::Lz4) => {
                // LZ4 compresses by at most 255:1. A larger claim is damage.
                let most = stored_bytes.saturating_mul(256).min(PAYLOAD_BYTES_MAX);
                if payload_bytes > most {
                    let most = format_args!("at most {most}");
                    return Err(self.corrupt(pointer, "page payload bytes", most, payload_bytes));
                }
                scratch.clear();
                scratch.extend_from_slice(&bytes[..PAGE_HEADER_BYTES]);
                scratch.resize(PAGE_HEADER_BYTES + payload_bytes, 0);
                match lz4_flex::block::decompress_into(stored, &mut scratch[PAGE_HEADER_BYTES..]) {
                    Ok(n) if n == payload_bytes => Ok((header, &scratch[PAGE_HEADER_BYTES..])),
                    Ok(n) => Err(self.corrupt(pointer, "page payload bytes", payload_bytes, n)),
                    Err(e) => Err(self.corrupt(pointer, "page payload", "an LZ4 block", e)),
                }
            }
            None => Err(self.corrupt(
                pointer,
                "page compression",
                "a known tag (0 or 1)",
                header.compression_tag,
            )),
        }
    }

    /// Reads the pages of a range of units in order, with read-ahead, past the cache.
    pub(crate) fn scan(self: &Arc<Self>, units: Range<u32>, chunk_units: u32) -> PageScan {
        PageScan::new(self, units, chunk_units)
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        self.files.count_no_longer(self.units);
        if !self.files.retains() {
            if !planted::keep_number(self.id.0) {
                let has_values = self.file_type == FileType::Blob;
                self.files.cache.remove_file(self.id, self.units, has_values);
            }
            // If the removal fails, the file is an orphan that the next open removes.
            let _ = self.files.vfs.remove(&self.path());
        }
    }
}
