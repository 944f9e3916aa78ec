//! `PageFileWriter`: writes a new data file page by page, in the background of the thread that
//! makes the pages.
//!
//! Invariants:
//! 1. One chunk is filled while at most one other is being written.
//! 2. After a failed write or sync, every later call fails: a file with a hole is never finished.
//! 3. If it is dropped before `finish`, it removes the file.
//! 4. What has been written is synced piece by piece: less than `SYNC_BYTES` has not been when a chunk is submitted. Many
//!    devices hold up all reads while they carry out a sync, for as long as it takes to write what has not been written yet.

use std::sync::Arc;

use super::data_files::{DataFiles, FileType};
use super::page::{Compression, PAGE_HEADER_BYTES, PAYLOAD_BYTES_MAX, encode};
use super::page_cache::{PageClass, PageKey};
use super::page_file::{PageFile, PagePointer};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::vfs::{Access, AlignedBuf, File, IoQueue, IoTicket};

/// Bytes that are gathered before they are written. As many again may be in flight.
const WRITE_CHUNK_BYTES: usize = 256 * 1024;
/// So much is written between two syncs.
const SYNC_BYTES: u64 = 1 << 20;
/// The initial buffer size: a small file uses a small buffer.
const FIRST_CHUNK_BYTES: usize = 16 * 1024;
/// A larger buffer for compressed payloads is not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// See the module's description.
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
    /// Bytes before this offset have been synced.
    synced: u64,
    in_flight: Option<IoTicket>,
    spare: Option<AlignedBuf>,
    compressed: Vec<u8>,
    /// Whether pages of the file are cached.
    cached: bool,
    failed: Option<Error>,
    finished: bool,
}

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
            buf: AlignedBuf::unzeroed(FIRST_CHUNK_BYTES),
            filled: 0,
            flushed: 0,
            synced: 0,
            in_flight: None,
            spare: None,
            compressed: Vec::new(),
            cached: false,
            failed: None,
            finished: false,
            files: Arc::clone(files),
        })
    }

    /// The file's number.
    pub(crate) fn files(&self) -> &Arc<DataFiles> {
        &self.files
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Bytes written or gathered.
    pub(crate) fn bytes(&self) -> u64 {
        self.flushed + self.filled as u64
    }

    /// Appends a page with `payload` and returns its location. `kind` identifies the payload for
    /// readers that scan the file.
    pub(crate) fn append(
        &mut self,
        kind: u8,
        payload: &[u8],
        compression: Compression,
    ) -> Result<PagePointer> {
        self.check_failed()?;
        let raw_units = (PAGE_HEADER_BYTES + payload.len()).div_ceil(UNIT_BYTES);
        let mut stored_bytes = payload.len();
        let mut used = Compression::None;
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Error::invalid("a page holds less than 256 MiB"));
        }
        if self.compressed.len() > KEPT_BYTES_MAX {
            self.compressed = Vec::new();
        }
        if compression == Compression::Lz4 && raw_units > 1 {
            let most = lz4_flex::block::get_maximum_output_size(payload.len());
            if self.compressed.len() < most {
                self.compressed.resize(most, 0);
            }
            if let Ok(n) = lz4_flex::block::compress_into(payload, &mut self.compressed)
                && (PAGE_HEADER_BYTES + n).div_ceil(UNIT_BYTES) < raw_units
            {
                stored_bytes = n;
                used = Compression::Lz4;
            }
        }
        let units = (PAGE_HEADER_BYTES + stored_bytes).div_ceil(UNIT_BYTES);
        let first = self.bytes() / UNIT_BYTES as u64;
        let (Ok(page_units), Ok(unit), true) = (
            u16::try_from(units),
            u32::try_from(first),
            first + units as u64 <= u64::from(u32::MAX),
        ) else {
            return Err(Error::invalid("a data file holds less than 16 TiB"));
        };
        let bytes = units * UNIT_BYTES;
        let wanted = self.filled + bytes;
        if wanted > self.buf.len() && wanted <= WRITE_CHUNK_BYTES {
            let mut larger =
                AlignedBuf::unzeroed((2 * self.buf.len()).clamp(wanted, WRITE_CHUNK_BYTES));
            larger[..self.filled].copy_from_slice(&self.buf[..self.filled]);
            self.buf = larger;
        } else if wanted > self.buf.len() {
            self.write_out(WRITE_CHUNK_BYTES)?;
            if self.buf.len() < bytes {
                self.buf = AlignedBuf::unzeroed(bytes);
            } else if self.buf.len() > WRITE_CHUNK_BYTES && bytes <= WRITE_CHUNK_BYTES {
                self.buf = AlignedBuf::unzeroed(WRITE_CHUNK_BYTES);
            }
        }
        let stored = match used {
            Compression::None => payload,
            Compression::Lz4 => &self.compressed[..stored_bytes],
        };
        encode(
            &mut self.buf[self.filled..self.filled + bytes],
            (self.id, unit),
            (kind, used),
            payload.len() as u32,
            stored,
        );
        self.filled += bytes;
        Ok(PagePointer { unit, units: page_units })
    }

    /// Appends an uncompressed page that serves many others, and caches it, because readers of the
    /// file need it first.
    pub(crate) fn append_cached(
        &mut self,
        kind: u8,
        payload: &[u8],
        class: PageClass,
    ) -> Result<PagePointer> {
        let pointer = self.append(kind, payload, Compression::None)?;
        let start = self.filled - pointer.bytes();
        let page = &self.buf[start..start + PAGE_HEADER_BYTES + payload.len()];
        let key = PageKey { file: self.id, unit: pointer.unit };
        self.files.cache.insert(key, class, page);
        self.cached = true;
        Ok(pointer)
    }

    /// Submits the gathered bytes. Afterwards the buffer is empty and has room for at least
    /// `next_bytes`.
    fn write_out(&mut self, next_bytes: usize) -> Result<()> {
        self.wait_for_write()?;
        if self.flushed - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        if self.filled > 0 {
            let fresh = self.spare.take().unwrap_or_else(|| AlignedBuf::unzeroed(next_bytes));
            let full = std::mem::replace(&mut self.buf, fresh);
            let ticket = self.queue.submit_write(&self.file, self.flushed, full, self.filled);
            self.in_flight = Some(ticket);
            self.flushed += self.filled as u64;
            self.filled = 0;
        }
        Ok(())
    }

    /// Waits for the chunk in flight.
    fn wait_for_write(&mut self) -> Result<()> {
        if let Some(ticket) = self.in_flight.take() {
            let (buf, result) = self.queue.wait(ticket);
            // A buffer that was made for one large page is not kept.
            self.spare = (buf.len() == WRITE_CHUNK_BYTES).then_some(buf);
            self.failed = result.err().filter(|_| !planted(Bug::FailedWriteIgnored));
        }
        self.check_failed()
    }

    /// Makes what has been written durable.
    fn sync(&mut self) -> Result<()> {
        let skipped = match self.file_type {
            FileType::Table => planted(Bug::TableNotSynced),
            FileType::Maplet => planted(Bug::MapletNotSynced),
            FileType::Head => planted(Bug::HeadNotSynced),
            FileType::Blob => planted(Bug::BlobNotSynced),
            FileType::LocationIndex => false,
            #[cfg(feature = "example")]
            FileType::Pool | FileType::OperationLog => false,
        };
        let synced = if skipped { Ok(()) } else { self.file.sync() };
        self.synced = self.flushed;
        self.failed = synced.err().filter(|_| !planted(Bug::FailedSyncIgnored));
        self.check_failed()
    }

    fn check_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Writes the rest, syncs the file and opens it for reading. Its name is not durable yet: the
    /// directory must be synced before a manifest record names the file.
    pub(crate) fn finish(mut self) -> Result<Arc<PageFile>> {
        if self.bytes() == 0 {
            return Err(Error::invalid("a data file has at least one page"));
        }
        self.write_out(0)?;
        self.wait_for_write()?;
        self.sync()?;
        let units = (self.flushed / UNIT_BYTES as u64) as u32;
        self.finished = true;
        let file = Arc::clone(&self.file);
        Ok(PageFile::of_written(&self.files, self.id, self.file_type, units, file))
    }
}

impl Drop for PageFileWriter {
    fn drop(&mut self) {
        if !self.finished {
            let _ = self.wait_for_write();
            if self.cached {
                let units = (self.bytes() / UNIT_BYTES as u64) as u32;
                self.files.cache.remove_file(self.id, units, false);
            }
            if !self.files.retains() {
                // If the removal fails, the file is an orphan that the next open removes.
                let _ = self.files.vfs.remove(&self.files.path(self.id, self.file_type));
            }
        }
    }
}
