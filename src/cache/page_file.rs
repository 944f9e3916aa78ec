//! Files of pages: the one container of tables, maplets and blobs (`docs/format/page.md`).
//!
//! A page is one or more consecutive 4 KiB units. Its header holds a checksum over the whole page,
//! seeded with the file's number and the page's place, so that a page that is whole but belongs
//! elsewhere (a misdirected or stale write) does not pass.
//!
//! Invariants:
//! 1. No byte of a page is handed out before its checksum has been verified.
//! 2. What the cache holds has been verified and decompressed.
//! 3. A page's pointer says how many units it has; the header must agree.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use super::data_files::{DataFiles, FileType};
use super::page_cache::{PageClass, PageKey};
use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::vfs::{Access, AlignedBuf, File, IoQueue, IoTicket, ReadRequest};

/// Bytes of a page before its payload: checksum u64, payload bytes (decompressed) u32, payload bytes
/// as stored u32, units u16, page kind u8, compression u8, reserved u32.
pub(crate) const PAGE_HEADER_BYTES: usize = 24;

/// How page payloads are compressed. The numbers are on disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Compression {
    /// As they are.
    #[default]
    None = 0,
    /// LZ4 block format. Pages that do not shrink by a unit are stored as they are.
    Lz4 = 1,
}

impl Compression {
    /// Decodes the on-disk tag.
    pub(crate) fn from_tag(tag: u8) -> Option<Compression> {
        match tag {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Where a page lies in its file.
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

    fn bytes(self) -> usize {
        usize::from(self.units) * UNIT_BYTES
    }
}

/// How one operation reads pages, and what it has read so far.
#[derive(Default)]
pub(crate) struct ReadContext {
    /// Where to note pages that are not cached instead of reading them: the operation then ends
    /// with [`Error::NotResident`] and is repeated once [`fetch_misses`] has read them all at once.
    pub(crate) misses: Option<RefCell<Vec<PageMiss>>>,
    /// Pages read from the disk by this operation.
    pub(crate) pages_read: Cell<u32>,
}

impl ReadContext {
    /// Reads pages that are not cached at once, one by one.
    pub(crate) fn blocking() -> ReadContext {
        ReadContext::default()
    }

    /// Notes pages that are not cached, see [`ReadContext::misses`].
    pub(crate) fn collecting() -> ReadContext {
        ReadContext { misses: Some(RefCell::default()), pages_read: Cell::new(0) }
    }
}

/// A page that an operation needs and the cache does not have.
pub(crate) struct PageMiss {
    pub(crate) file: Arc<PageFile>,
    pub(crate) pointer: PagePointer,
    pub(crate) class: PageClass,
}

/// Reads the pages into the cache, all at once; returns how many pages were read. A page named
/// twice is read once.
pub(crate) fn fetch_misses(mut misses: Vec<PageMiss>) -> Result<u32> {
    misses.sort_by_key(|miss| (miss.file.id, miss.pointer.unit));
    misses.dedup_by_key(|miss| (miss.file.id, miss.pointer.unit));
    let Some(first) = misses.first() else { return Ok(0) };
    let vfs = Arc::clone(&first.file.files.vfs);
    let mut bufs: Vec<AlignedBuf> =
        misses.iter().map(|miss| AlignedBuf::new(miss.pointer.bytes())).collect();
    let mut requests: Vec<ReadRequest<'_>> = misses
        .iter()
        .zip(&mut bufs)
        .map(|(miss, buf)| ReadRequest {
            file: &*miss.file.file,
            offset: miss.pointer.offset(),
            buf: &mut buf[..],
            result: Ok(()),
        })
        .collect();
    vfs.read_batch(&mut requests);
    let results: Vec<Result<()>> = requests.into_iter().map(|request| request.result).collect();
    for ((miss, buf), result) in misses.iter().zip(&bufs).zip(results) {
        result?;
        miss.file.admit(miss.pointer, miss.class, buf, |_| ())?;
    }
    Ok(misses.len() as u32)
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
    /// Opens a data file that exists.
    pub(crate) fn open(
        files: &Arc<DataFiles>,
        id: FileId,
        file_type: FileType,
    ) -> Result<Arc<PageFile>> {
        let path = files.path(id, file_type);
        let file = files.vfs.open(&path, Access::Direct, false)?;
        let len = file.len()?;
        let units = len / UNIT_BYTES as u64;
        if units == 0 || len % UNIT_BYTES as u64 != 0 || u32::try_from(units).is_err() {
            return Err(Error::corruption(&path, 0, "file length", "whole 4 KiB units", len));
        }
        Ok(Arc::new(PageFile {
            id,
            file_type,
            units: units as u32,
            file,
            files: Arc::clone(files),
        }))
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Length in units.
    pub(crate) fn units(&self) -> u32 {
        self.units
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES as u64
    }

    /// The store's data files that this is one of.
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

    /// Calls `f` with the payload of the page at `pointer`, from the cache or read into it. `f` must
    /// be short and must not read pages itself.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged; `NotResident` if it is not cached and `context` collects
    /// misses.
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
        let cached = self.files.cache.get(key, class, |page| {
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
            static BUF: RefCell<Option<AlignedBuf>> = const { RefCell::new(None) };
        }
        self.check_bounds(pointer)?;
        if let Some(misses) = &context.misses {
            misses.borrow_mut().push(PageMiss { file: Arc::clone(self), pointer, class });
            return Err(Error::NotResident);
        }
        context.pages_read.set(context.pages_read.get() + 1);
        if pointer.units == 1 {
            let mut buf = BUF.take().unwrap_or_else(|| AlignedBuf::new(UNIT_BYTES));
            let result = self
                .file
                .read_at(pointer.offset(), &mut buf)
                .and_then(|()| self.admit(pointer, class, &buf, f));
            BUF.set(Some(buf));
            result
        } else {
            let mut buf = AlignedBuf::new(pointer.bytes());
            self.file.read_at(pointer.offset(), &mut buf)?;
            self.admit(pointer, class, &buf, f)
        }
    }

    /// Reads the page without the cache and returns its payload.
    pub(crate) fn read_uncached(&self, pointer: PagePointer) -> Result<Vec<u8>> {
        self.check_bounds(pointer)?;
        let mut buf = AlignedBuf::new(pointer.bytes());
        self.file.read_at(pointer.offset(), &mut buf)?;
        self.verify(pointer, &buf)?;
        let mut scratch = Vec::new();
        Ok(self.payload(pointer, &buf, &mut scratch)?[PAGE_HEADER_BYTES..].to_vec())
    }

    /// Reads the pages that fill a run of units with one I/O, past the cache, and calls `f` with the
    /// payload of each.
    pub(crate) fn read_run(
        &self,
        units: Range<u32>,
        mut f: impl FnMut(PagePointer, &[u8]),
    ) -> Result<()> {
        let mut pointer = PagePointer { unit: units.start, units: 1 };
        if units.is_empty() || units.end > self.units {
            let expected = format_args!("units within 0..{}", self.units);
            return Err(self.corrupt(pointer, "run of pages", expected, format_args!("{units:?}")));
        }
        let mut buf = AlignedBuf::new(units.len() * UNIT_BYTES);
        self.file.read_at(pointer.offset(), &mut buf)?;
        let mut scratch = Vec::new();
        while pointer.unit < units.end {
            let bytes = &buf[(pointer.unit - units.start) as usize * UNIT_BYTES..];
            pointer.units = u16::from_le_bytes([bytes[16], bytes[17]]).max(1);
            if u32::from(pointer.units) > units.end - pointer.unit {
                let most = format_args!("at most {}", units.end - pointer.unit);
                return Err(self.corrupt(pointer, "page units", most, pointer.units));
            }
            self.verify(pointer, bytes)?;
            f(pointer, &self.payload(pointer, bytes, &mut scratch)?[PAGE_HEADER_BYTES..]);
            pointer.unit += u32::from(pointer.units);
        }
        Ok(())
    }

    fn check_bounds(&self, pointer: PagePointer) -> Result<()> {
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

    /// Verifies freshly read bytes, caches the page, and calls `f` with its payload.
    fn admit<R>(
        &self,
        pointer: PagePointer,
        class: PageClass,
        bytes: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        self.verify(pointer, bytes)?;
        let mut scratch = Vec::new();
        let page = self.payload(pointer, bytes, &mut scratch)?;
        self.files.cache.insert(PageKey { file: self.id, unit: pointer.unit }, class, page);
        Ok(f(&page[PAGE_HEADER_BYTES..]))
    }

    fn verify(&self, pointer: PagePointer, bytes: &[u8]) -> Result<()> {
        let found = field_u64(bytes, 0);
        let expected = checksum(page_seed(self.id, pointer.unit), &bytes[8..pointer.bytes()]);
        if found != expected {
            return Err(self.corrupt(
                pointer,
                "page checksum",
                format_args!("{expected:#018x}"),
                format_args!("{found:#018x}"),
            ));
        }
        Ok(())
    }

    /// Header and decompressed payload of a verified page, without its padding.
    fn payload<'a>(
        &self,
        pointer: PagePointer,
        bytes: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let raw_bytes = field_u32(bytes, 8) as usize;
        let stored_bytes = field_u32(bytes, 12) as usize;
        let units = u16::from_le_bytes([bytes[16], bytes[17]]);
        let compression = Compression::from_tag(bytes[19]).ok_or_else(|| {
            self.corrupt(pointer, "page compression", "a known tag (0 or 1)", bytes[19])
        })?;
        if units != pointer.units {
            return Err(self.corrupt(pointer, "page units", pointer.units, units));
        }
        let stored = bytes
            .get(PAGE_HEADER_BYTES..)
            .and_then(|rest| rest.get(..stored_bytes))
            .ok_or_else(|| {
                let most = pointer.bytes() - PAGE_HEADER_BYTES;
                self.corrupt(pointer, "page payload", format_args!("at most {most}"), stored_bytes)
            })?;
        match compression {
            Compression::None => Ok(&bytes[..PAGE_HEADER_BYTES + stored_bytes]),
            Compression::Lz4 => {
                // LZ4 cannot shrink by more than 255:1: a larger claim is damage, not a size.
                if raw_bytes > stored_bytes.saturating_mul(256) {
                    let most = stored_bytes * 256;
                    return Err(self.corrupt(
                        pointer,
                        "page payload bytes",
                        format_args!("at most {most}"),
                        raw_bytes,
                    ));
                }
                scratch.clear();
                scratch.resize(PAGE_HEADER_BYTES + raw_bytes, 0);
                scratch[..PAGE_HEADER_BYTES].copy_from_slice(&bytes[..PAGE_HEADER_BYTES]);
                match lz4_flex::block::decompress_into(stored, &mut scratch[PAGE_HEADER_BYTES..]) {
                    Ok(n) if n == raw_bytes => Ok(scratch),
                    Ok(n) => Err(self.corrupt(pointer, "page payload bytes", raw_bytes, n)),
                    Err(e) => Err(self.corrupt(pointer, "page payload", "an LZ4 block", e)),
                }
            }
        }
    }

    /// Reads the pages of a range of units in order, past the cache, ahead of their use.
    pub(crate) fn scan(self: &Arc<Self>, units: Range<u32>, chunk_units: u32) -> PageScan {
        PageScan {
            queue: self.files.vfs.io_queue(2),
            file: Arc::clone(self),
            next_unit: units.start,
            end_unit: units.end.min(self.units),
            chunk_units: chunk_units.max(1),
            in_flight: None,
            current: None,
            scratch: Vec::new(),
        }
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if !self.files.retains() {
            self.files.cache.remove_file(self.id, self.units);
            // A file that cannot be removed now is an orphan that the next open removes.
            let _ = self.files.vfs.remove(&self.path());
        }
    }
}

fn page_seed(file: FileId, unit: u32) -> u64 {
    file.0.rotate_left(32) ^ u64::from(unit)
}

fn field_u32(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn field_u64(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

struct Chunk {
    first_unit: u32,
    units: u32,
    buf: AlignedBuf,
}

/// A sequential pass over pages, see [`PageFile::scan`]: while one chunk is used, the next is read.
pub(crate) struct PageScan {
    queue: Box<dyn IoQueue>,
    file: Arc<PageFile>,
    /// The first unit not yet handed out.
    next_unit: u32,
    end_unit: u32,
    chunk_units: u32,
    in_flight: Option<(IoTicket, u32, u32)>,
    current: Option<Chunk>,
    scratch: Vec<u8>,
}

impl PageScan {
    /// The payload of the next page with its place, or `None` at the end.
    pub(crate) fn next_page(&mut self) -> Result<Option<(PagePointer, &[u8])>> {
        if self.next_unit >= self.end_unit {
            return Ok(None);
        }
        self.fill(1)?;
        let units = match self.bytes_at_next() {
            Some(bytes) => u16::from_le_bytes([bytes[16], bytes[17]]).max(1),
            None => 1,
        };
        let pointer = PagePointer { unit: self.next_unit, units };
        self.file.check_bounds(pointer)?;
        self.fill(u32::from(units))?;
        let chunk = match &self.current {
            Some(chunk) => chunk,
            None => unreachable!("fill leaves a chunk"),
        };
        let from = (self.next_unit - chunk.first_unit) as usize * UNIT_BYTES;
        let bytes = &chunk.buf[from..from + pointer.bytes()];
        self.file.verify(pointer, bytes)?;
        self.next_unit += u32::from(units);
        let page = self.file.payload(pointer, bytes, &mut self.scratch)?;
        Ok(Some((pointer, &page[PAGE_HEADER_BYTES..])))
    }

    fn bytes_at_next(&self) -> Option<&[u8]> {
        let chunk = self.current.as_ref()?;
        chunk.buf.get((self.next_unit - chunk.first_unit) as usize * UNIT_BYTES..)
    }

    /// Makes `current` hold the next `units` units.
    fn fill(&mut self, units: u32) -> Result<()> {
        let end = self.next_unit + units;
        if let Some(chunk) = &self.current
            && chunk.first_unit <= self.next_unit
            && end <= chunk.first_unit + chunk.units
        {
            return Ok(());
        }
        let mut spare = self.current.take().map(|chunk| chunk.buf);
        let usable = matches!(self.in_flight, Some((_, first, n))
            if first == self.next_unit && end <= first + n);
        let chunk = if usable {
            self.await_chunk()?
        } else {
            // The first chunk, or a page that straddles two: read again from the page's start.
            if let Some((ticket, ..)) = self.in_flight.take() {
                spare = Some(self.queue.wait(ticket).0);
            }
            let wanted = self.chunk_units.min(self.end_unit - self.next_unit);
            self.submit(self.next_unit, units.max(wanted), spare.take());
            self.await_chunk()?
        };
        let next = chunk.first_unit + chunk.units;
        self.current = Some(chunk);
        if next < self.end_unit {
            self.submit(next, self.chunk_units.min(self.end_unit - next), spare);
        }
        Ok(())
    }

    fn submit(&mut self, unit: u32, units: u32, spare: Option<AlignedBuf>) {
        let units = units.min(self.file.units - unit);
        let bytes = units as usize * UNIT_BYTES;
        let buf = match spare {
            Some(buf) if buf.len() == bytes => buf,
            _ => AlignedBuf::new(bytes),
        };
        let offset = u64::from(unit) * UNIT_BYTES as u64;
        let ticket = self.queue.submit_read(&self.file.file, offset, buf);
        self.in_flight = Some((ticket, unit, units));
    }

    fn await_chunk(&mut self) -> Result<Chunk> {
        match self.in_flight.take() {
            Some((ticket, first_unit, units)) => {
                let (buf, result) = self.queue.wait(ticket);
                result?;
                Ok(Chunk { first_unit, units, buf })
            }
            None => unreachable!("a chunk is in flight"),
        }
    }
}

/// Writes a new data file page by page. Dropped before `finish`, it removes what it wrote.
pub(crate) struct PageFileWriter {
    id: FileId,
    file_type: FileType,
    files: Arc<DataFiles>,
    file: Arc<dyn File>,
    queue: Box<dyn IoQueue>,
    buf: AlignedBuf,
    /// Bytes of `buf` in use.
    filled: usize,
    /// File offset of `buf`'s start.
    flushed: u64,
    in_flight: Option<IoTicket>,
    spare: Option<AlignedBuf>,
    compressed: Vec<u8>,
    finished: bool,
}

/// Bytes gathered before they are written, with as many again in flight.
const WRITE_CHUNK_BYTES: usize = 256 * 1024;

impl PageFileWriter {
    /// Creates a data file.
    pub(crate) fn create(files: &Arc<DataFiles>, file_type: FileType) -> Result<PageFileWriter> {
        let id = files.allocate();
        let file = files.vfs.create(&files.path(id, file_type), Access::Direct)?;
        Ok(PageFileWriter {
            id,
            file_type,
            file,
            queue: files.vfs.io_queue(2),
            buf: AlignedBuf::new(WRITE_CHUNK_BYTES),
            filled: 0,
            flushed: 0,
            in_flight: None,
            spare: None,
            compressed: Vec::new(),
            finished: false,
            files: Arc::clone(files),
        })
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Bytes written or gathered so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.flushed + self.filled as u64
    }

    /// Appends a page with `payload` and returns where it lies. `kind` says what the payload is, for
    /// readers that walk the file.
    pub(crate) fn append(
        &mut self,
        kind: u8,
        payload: &[u8],
        compression: Compression,
    ) -> Result<PagePointer> {
        let raw_units = (PAGE_HEADER_BYTES + payload.len()).div_ceil(UNIT_BYTES);
        let mut stored_bytes = payload.len();
        let mut used = Compression::None;
        if compression == Compression::Lz4 && raw_units > 1 {
            self.compressed.resize(lz4_flex::block::get_maximum_output_size(payload.len()), 0);
            if let Ok(n) = lz4_flex::block::compress_into(payload, &mut self.compressed)
                && (PAGE_HEADER_BYTES + n).div_ceil(UNIT_BYTES) < raw_units
            {
                stored_bytes = n;
                used = Compression::Lz4;
            }
        }
        let units = (PAGE_HEADER_BYTES + stored_bytes).div_ceil(UNIT_BYTES);
        let (Ok(page_units), Ok(unit), Ok(raw_bytes)) = (
            u16::try_from(units),
            u32::try_from(self.bytes() / UNIT_BYTES as u64),
            u32::try_from(payload.len()),
        ) else {
            return Err(Error::invalid("a data file would exceed 16 TiB or a page 256 MiB"));
        };
        let bytes = units * UNIT_BYTES;
        if self.filled + bytes > self.buf.len() {
            self.write_out(bytes)?;
        }
        let page = &mut self.buf[self.filled..self.filled + bytes];
        let stored =
            if used == Compression::Lz4 { &self.compressed[..stored_bytes] } else { payload };
        page[8..12].copy_from_slice(&raw_bytes.to_le_bytes());
        page[12..16].copy_from_slice(&(stored_bytes as u32).to_le_bytes());
        page[16..18].copy_from_slice(&page_units.to_le_bytes());
        page[18] = kind;
        page[19] = used as u8;
        page[20..24].fill(0);
        page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + stored_bytes].copy_from_slice(stored);
        page[PAGE_HEADER_BYTES + stored_bytes..].fill(0);
        let sum = checksum(page_seed(self.id, unit), &page[8..]);
        page[..8].copy_from_slice(&sum.to_le_bytes());
        self.filled += bytes;
        Ok(PagePointer { unit, units: page_units })
    }

    /// Sends what is gathered on its way and makes room for a page of `bytes`.
    fn write_out(&mut self, bytes: usize) -> Result<()> {
        self.settle()?;
        let fresh = match self.spare.take() {
            Some(buf) if buf.len() >= bytes => buf,
            _ => AlignedBuf::new(bytes.max(WRITE_CHUNK_BYTES)),
        };
        if self.filled == 0 {
            self.buf = fresh;
            return Ok(());
        }
        let full = std::mem::replace(&mut self.buf, fresh);
        self.in_flight = Some(self.queue.submit_write(&self.file, self.flushed, full, self.filled));
        self.flushed += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(ticket) = self.in_flight.take() {
            let (buf, result) = self.queue.wait(ticket);
            self.spare = Some(buf);
            result?;
        }
        Ok(())
    }

    /// Writes the rest, makes the file durable (not yet its name: sync the directory before a manifest
    /// record names it) and opens it for reading.
    pub(crate) fn finish(mut self) -> Result<Arc<PageFile>> {
        self.write_out(0)?;
        self.settle()?;
        self.file.sync()?;
        let units = (self.flushed / UNIT_BYTES as u64) as u32;
        self.finished = true;
        Ok(Arc::new(PageFile {
            id: self.id,
            file_type: self.file_type,
            units,
            file: Arc::clone(&self.file),
            files: Arc::clone(&self.files),
        }))
    }
}

impl Drop for PageFileWriter {
    fn drop(&mut self) {
        if !self.finished && !self.files.retains() {
            let _ = self.settle();
            let _ = self.files.vfs.remove(&self.files.path(self.id, self.file_type));
        }
    }
}
