//! Blob files: values that are too large for a table's leaves. They are written once and read past
//! the cache.
//!
//! The values' bytes are consecutive, without gaps, in pages of one unit each. A value uses its own
//! length plus a page header per 4072 bytes. It is read with one request per MiB of units that it
//! overlaps.
//!
//! Invariants:
//! 1. Byte `n` of the values is in unit `n / 4072`. The last unit of the file is the footer.
//! 2. A value is returned only if all of its pages and the value as a whole pass their checksums.
//! 3. There is at most one open handle per blob file ([`BlobFiles`]). Tables that refer to the file
//!    hold the handle, and the file is deleted with the last of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::blob_pointer::BlobPointer;
use super::page_kind;
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::base::slice::{HEAP_BYTES_MAX, Slice};
use crate::base::sync::Mutex;
use crate::cache::{
    Compression, DataFiles, FileType, PAGE_HEADER_BYTES, PageFile, PageFileWriter, PagePointer,
};

const MAGIC: [u8; 8] = *b"SPNYBLOB";
const FORMAT_VERSION: u32 = 1;
/// Value bytes in every unit except the last.
const PIECE_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
/// Units read at once.
const READ_UNITS: u32 = 256;

/// The footer's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlobFooter {
    /// The size of all values in bytes.
    pub(super) bytes: u64,
    /// The number of values.
    pub(super) values: u64,
}

impl BlobFooter {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.values.to_le_bytes());
        out
    }

    pub(super) fn decode(
        payload: &[u8],
        file: &std::path::Path,
        offset: u64,
    ) -> Result<BlobFooter> {
        let mut from = Decoder::new(payload, file, offset);
        from.magic(&MAGIC, "blob file magic")?;
        from.version(FORMAT_VERSION, "blob file format version")?;
        from.u32("reserved field")?;
        let bytes = from.u64("bytes of all values")?;
        let values = from.u64("values")?;
        let units = offset / UNIT_BYTES as u64;
        if bytes.div_ceil(PIECE_BYTES as u64) != units {
            let expected = format_args!("a number that fills {units} units");
            return Err(from.corrupt("bytes of all values", expected, bytes));
        }
        Ok(BlobFooter { bytes, values })
    }
}

/// Writes a blob file. If it is dropped before `finish`, it removes the file.
pub(crate) struct BlobWriter {
    writer: PageFileWriter,
    files: Arc<BlobFiles>,
    /// The start of a page that is not full yet.
    piece: Vec<u8>,
    footer: BlobFooter,
}

impl BlobWriter {
    /// Creates a blob file.
    pub(crate) fn new(files: &Arc<BlobFiles>) -> Result<BlobWriter> {
        Ok(BlobWriter {
            writer: PageFileWriter::create(&files.files, FileType::Blob)?,
            files: Arc::clone(files),
            piece: Vec::with_capacity(PIECE_BYTES),
            footer: BlobFooter { bytes: 0, values: 0 },
        })
    }

    /// The size of all values so far, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.footer.bytes
    }

    /// Appends a value. It can be read once the writer has finished.
    pub(crate) fn append(&mut self, value: &[u8]) -> Result<BlobPointer> {
        let length = u32::try_from(value.len())
            .map_err(|_| Error::invalid("a value has at most 4294967295 bytes"))?;
        let offset = self.footer.bytes;
        let pointer = BlobPointer {
            file: self.writer.id(),
            offset: offset + u64::from(planted(Bug::BlobPointerOff) && offset > 0),
            length,
            checksum: checksum(offset, value),
        };
        let mut rest = value;
        while !rest.is_empty() {
            let room = PIECE_BYTES - self.piece.len();
            let (now, later) = rest.split_at(room.min(rest.len()));
            rest = later;
            if now.len() == PIECE_BYTES {
                self.writer.append(page_kind::BLOB, now, Compression::None)?;
                continue;
            }
            self.piece.extend_from_slice(now);
            if self.piece.len() == PIECE_BYTES {
                self.flush()?;
            }
        }
        self.footer.bytes += u64::from(length);
        self.footer.values += 1;
        Ok(pointer)
    }

    fn flush(&mut self) -> Result<()> {
        self.writer.append(page_kind::BLOB, &self.piece, Compression::None)?;
        self.piece.clear();
        Ok(())
    }

    /// Syncs the file (not its name) and opens it. Blob files must be finished before the tables
    /// that point into them.
    pub(crate) fn finish(mut self) -> Result<Arc<BlobFile>> {
        if !self.piece.is_empty() {
            self.flush()?;
        }
        let footer = self.footer.encode();
        self.writer.append(page_kind::BLOB_FOOTER, &footer, Compression::None)?;
        let file = self.writer.finish()?;
        let file = Arc::new(BlobFile { file, footer: self.footer });
        self.files.register(&file);
        Ok(file)
    }
}

/// A finished blob file.
pub(crate) struct BlobFile {
    file: Arc<PageFile>,
    footer: BlobFooter,
}

impl BlobFile {
    fn open(files: &Arc<DataFiles>, id: FileId) -> Result<BlobFile> {
        let file = PageFile::open(files, id, FileType::Blob)?;
        let last = file.last_unit();
        let footer = BlobFooter::decode(&file.read_uncached(last)?, &file.path(), last.offset())?;
        Ok(BlobFile { file, footer })
    }

    /// Opens the readable part of a blob file, for repair. Each value's checksums show whether it
    /// is whole.
    fn open_torn(files: &Arc<DataFiles>, id: FileId) -> Result<BlobFile> {
        let file = PageFile::open_torn(files, id, FileType::Blob)?;
        let footer = BlobFooter { bytes: u64::from(file.units()) * PIECE_BYTES as u64, values: 0 };
        Ok(BlobFile { file, footer })
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        self.file.id()
    }

    /// The file's length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// The file's name.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.file.path()
    }

    /// The size of all values in bytes.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.footer.bytes
    }

    /// The number of values.
    #[cfg(test)]
    pub(crate) fn values(&self) -> u64 {
        self.footer.values
    }

    /// Reads a value.
    ///
    /// # Errors
    /// `Corruption` if the pointer leaves the file or any checksum is wrong.
    pub(crate) fn read(&self, pointer: &BlobPointer) -> Result<Vec<u8>> {
        self.check_bounds(pointer)?;
        let mut value = Vec::with_capacity(pointer.length as usize);
        self.read_pieces(pointer, |piece| value.extend_from_slice(piece))?;
        self.check_value(pointer, &value)?;
        Ok(value)
    }

    /// As [`BlobFile::read`], for callers that keep the value.
    ///
    /// # Errors
    /// As [`BlobFile::read`].
    pub(crate) fn read_slice(&self, pointer: &BlobPointer) -> Result<Slice> {
        if pointer.length as usize <= HEAP_BYTES_MAX {
            return self.read(pointer).map(Slice::from);
        }
        self.check_bounds(pointer)?;
        let mut value = PageVec::unzeroed(pointer.length as usize);
        let mut len = 0;
        self.read_pieces(pointer, |piece| {
            // Never more bytes than requested, even if the file returns more.
            if let Some(room) = value.get_mut(len..len + piece.len()) {
                room.copy_from_slice(piece);
                len += piece.len();
            }
        })?;
        value.truncate(len);
        self.check_value(pointer, &value)?;
        Ok(Slice::from(value))
    }

    fn check_bounds(&self, pointer: &BlobPointer) -> Result<()> {
        let end = pointer.offset.checked_add(u64::from(pointer.length));
        if end.is_some_and(|end| end <= self.footer.bytes) && pointer.file == self.id() {
            return Ok(());
        }
        let expected = format!("within {} bytes of file {}", self.footer.bytes, self.id());
        let found = format!("{pointer:?}");
        Err(Error::corruption(&self.file.path(), 0, "blob pointer", expected, found))
    }

    /// Returns the bytes of a pointer within bounds, piece by piece.
    fn read_pieces(&self, pointer: &BlobPointer, mut take: impl FnMut(&[u8])) -> Result<()> {
        let end = pointer.offset + u64::from(pointer.length);
        let mut left = pointer.length as usize;
        let mut unit = (pointer.offset / PIECE_BYTES as u64) as u32;
        let mut skip = (pointer.offset % PIECE_BYTES as u64) as usize;
        let end_unit =
            if pointer.length == 0 { unit } else { end.div_ceil(PIECE_BYTES as u64) as u32 };
        while unit < end_unit {
            let until = end_unit.min(unit + READ_UNITS);
            self.file.read_run(unit..until, |_, piece| {
                let piece = piece.get(skip..).unwrap_or_default();
                let piece = &piece[..left.min(piece.len())];
                take(piece);
                left -= piece.len();
                skip = 0;
            })?;
            unit = until;
        }
        Ok(())
    }

    fn check_value(&self, pointer: &BlobPointer, value: &[u8]) -> Result<()> {
        let found = checksum(pointer.offset, value);
        if value.len() == pointer.length as usize && found == pointer.checksum {
            return Ok(());
        }
        let at = PagePointer { unit: (pointer.offset / PIECE_BYTES as u64) as u32, units: 1 };
        Err(self.file.corrupt(
            at,
            "blob value",
            format_args!("{} bytes, checksum {:#018x}", pointer.length, pointer.checksum),
            format_args!("{} bytes, checksum {found:#018x}", value.len()),
        ))
    }

    /// Reads everything and verifies every page.
    pub(crate) fn check(&self) -> Result<()> {
        let mut pages = self.file.scan(0..self.file.units() - 1, READ_UNITS);
        let mut bytes = 0;
        while let Some((pointer, payload)) = pages.next_page()? {
            let (unit, units) = (pointer.unit, pointer.units);
            let full = unit + 2 == self.file.units() || payload.len() == PIECE_BYTES;
            if units != 1 || !full {
                let expected = format_args!("{PIECE_BYTES} bytes in one unit");
                let found = format!("{} bytes in {units}", payload.len());
                return Err(self.file.corrupt(pointer, "blob page", expected, found));
            }
            bytes += payload.len() as u64;
        }
        if bytes != self.footer.bytes {
            let at = PagePointer { unit: self.file.units() - 1, units: 1 };
            return Err(self.file.corrupt(at, "bytes of all values", bytes, self.footer.bytes));
        }
        Ok(())
    }
}

/// The open blob files, so that tables share handles.
pub(crate) struct BlobFiles {
    files: Arc<DataFiles>,
    /// True if damaged files are opened too.
    torn: bool,
    open: Mutex<BTreeMap<FileId, Weak<BlobFile>>>,
}

impl BlobFiles {
    /// The store's data files.
    pub(crate) fn files(&self) -> &Arc<DataFiles> {
        &self.files
    }

    /// An empty set of open files.
    pub(crate) fn new(files: &Arc<DataFiles>) -> Arc<BlobFiles> {
        Arc::new(BlobFiles { files: Arc::clone(files), torn: false, open: Mutex::default() })
    }

    /// As [`BlobFiles::new`], for repair: damaged files are opened too, and return their readable
    /// values.
    pub(crate) fn of_damaged_store(files: &Arc<DataFiles>) -> Arc<BlobFiles> {
        Arc::new(BlobFiles { files: Arc::clone(files), torn: true, open: Mutex::default() })
    }

    /// The blob file's handle, opened if necessary.
    pub(crate) fn open(&self, id: FileId) -> Result<Arc<BlobFile>> {
        let mut open = self.open.lock();
        if let Some(file) = open.get(&id).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = match self.torn {
            true => Arc::new(BlobFile::open_torn(&self.files, id)?),
            false => Arc::new(BlobFile::open(&self.files, id)?),
        };
        open.retain(|_, file| file.strong_count() > 0);
        open.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    fn register(&self, file: &Arc<BlobFile>) {
        let mut open = self.open.lock();
        open.retain(|_, file| file.strong_count() > 0);
        open.insert(file.id(), Arc::downgrade(file));
    }
}
