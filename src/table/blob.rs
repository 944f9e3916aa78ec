//! Blob files: values that are too large for a table's leaves. They are written once. This file reads
//! them past the cache; [`super::blob_files`] reads them through it.
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

use std::ops::Range;
use std::sync::Arc;

use super::blob_pointer::BlobPointer;
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::pages::PageVec;
use crate::base::slice::{HEAP_BYTES_MAX, Slice};
use crate::cache::{
    DataFiles, FileType, PAGE_HEADER_BYTES, PageClass, PageFile, PagePointer, ReadContext,
};

const MAGIC: [u8; 8] = *b"SPNYBLOB";
const FORMAT_VERSION: u32 = 1;
/// Value bytes in every unit except the last.
pub(super) const PIECE_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
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

/// The part of a unit's payload that belongs to the value.
fn piece_of<'a>(pointer: &BlobPointer, unit: u32, payload: &'a [u8]) -> &'a [u8] {
    let start = u64::from(unit) * PIECE_BYTES as u64;
    let end = pointer.offset + u64::from(pointer.length);
    let from = pointer.offset.saturating_sub(start) as usize;
    let to = (end.saturating_sub(start) as usize).min(payload.len());
    payload.get(from..to).unwrap_or_default()
}

/// A finished blob file.
pub(crate) struct BlobFile {
    file: Arc<PageFile>,
    footer: BlobFooter,
}

impl BlobFile {
    /// A file that a writer has finished.
    pub(super) fn written(file: Arc<PageFile>, footer: BlobFooter) -> BlobFile {
        BlobFile { file, footer }
    }

    pub(super) fn open(files: &Arc<DataFiles>, id: FileId) -> Result<BlobFile> {
        let file = PageFile::open(files, id, FileType::Blob)?;
        let last = file.last_unit();
        let footer = BlobFooter::decode(&file.read_uncached(last)?, &file.path(), last.offset())?;
        Ok(BlobFile { file, footer })
    }

    /// Opens the readable part of a blob file, for repair. Each value's checksums show whether it
    /// is whole.
    pub(super) fn open_torn(files: &Arc<DataFiles>, id: FileId) -> Result<BlobFile> {
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

    /// Reads a value past the cache.
    ///
    /// # Errors
    /// `Corruption` if the pointer leaves the file or any checksum is wrong.
    pub(crate) fn read(&self, pointer: &BlobPointer) -> Result<Vec<u8>> {
        self.check_bounds(pointer)?;
        let mut value = Vec::with_capacity(pointer.length as usize);
        self.read_pieces(pointer, &mut |unit, page| {
            value.extend_from_slice(piece_of(pointer, unit, page));
        })?;
        self.check_value(pointer, &value)?;
        Ok(value)
    }

    /// As [`BlobFile::read`], for callers that keep the value.
    ///
    /// # Errors
    /// As [`BlobFile::read`].
    pub(super) fn read_slice(&self, pointer: &BlobPointer) -> Result<Slice> {
        self.check_bounds(pointer)?;
        self.slice(pointer, |take| self.read_pieces(pointer, take))
    }

    /// As [`BlobFile::read`], through cached pages. For values that are not cached as a whole.
    ///
    /// # Errors
    /// As [`BlobFile::read`]; `NotResident` as [`PageFile::with_page`].
    pub(super) fn read_in_pages(
        &self,
        pointer: &BlobPointer,
        context: &ReadContext,
    ) -> Result<Slice> {
        self.check_bounds(pointer)?;
        self.slice(pointer, |take| {
            // All pages that are missing are to be known.
            let mut result = Ok(());
            for unit in self.units_of(pointer) {
                let page = PagePointer { unit, units: 1 };
                match self.file.with_page(page, PageClass::Leaf, context, |piece| take(unit, piece))
                {
                    Ok(()) => {}
                    Err(Error::NotResident) => result = Err(Error::NotResident),
                    Err(error) => return Err(error),
                }
            }
            result
        })
    }

    /// The value, from a run of units that contains its own. `bytes` were just read.
    ///
    /// # Errors
    /// As [`BlobFile::read`].
    pub(super) fn read_from_run(
        &self,
        pointer: &BlobPointer,
        run: &Range<u32>,
        bytes: &[u8],
    ) -> Result<Slice> {
        self.check_bounds(pointer)?;
        let units = self.units_of(pointer);
        let from = units.start.saturating_sub(run.start) as usize * UNIT_BYTES;
        let bytes = bytes.get(from..from + units.len() * UNIT_BYTES).unwrap_or_default();
        self.slice(pointer, |take| {
            self.file.pages_of_run(units, bytes, |page, piece| take(page.unit, piece))
        })
    }

    /// The value whose units `read` passes in order, verified.
    fn slice(
        &self,
        pointer: &BlobPointer,
        read: impl FnOnce(&mut dyn FnMut(u32, &[u8])) -> Result<()>,
    ) -> Result<Slice> {
        if pointer.length as usize <= HEAP_BYTES_MAX {
            let mut value = Vec::with_capacity(pointer.length as usize);
            read(&mut |unit, page| value.extend_from_slice(piece_of(pointer, unit, page)))?;
            self.check_value(pointer, &value)?;
            return Ok(Slice::from(value));
        }
        let mut value = PageVec::unzeroed(pointer.length as usize);
        let mut len = 0;
        read(&mut |unit, page| {
            let piece = piece_of(pointer, unit, page);
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

    pub(super) fn check_bounds(&self, pointer: &BlobPointer) -> Result<()> {
        let end = pointer.offset.checked_add(u64::from(pointer.length));
        if end.is_some_and(|end| end <= self.footer.bytes) && pointer.file == self.id() {
            return Ok(());
        }
        let expected = format!("within {} bytes of file {}", self.footer.bytes, self.id());
        let found = format!("{pointer:?}");
        Err(Error::corruption(&self.file.path(), 0, "blob pointer", expected, found))
    }

    /// The units that a pointer within bounds overlaps.
    pub(super) fn units_of(&self, pointer: &BlobPointer) -> Range<u32> {
        let first = (pointer.offset / PIECE_BYTES as u64) as u32;
        let end = (pointer.offset + u64::from(pointer.length)).div_ceil(PIECE_BYTES as u64) as u32;
        first..if pointer.length == 0 { first } else { end }
    }

    /// The pages.
    pub(super) fn file(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// Passes the units of a pointer within bounds, and their payloads.
    fn read_pieces(&self, pointer: &BlobPointer, take: &mut dyn FnMut(u32, &[u8])) -> Result<()> {
        self.read_units(self.units_of(pointer), take)
    }

    /// The number of units that have values.
    pub(super) fn value_units(&self) -> u32 {
        self.file.units().saturating_sub(1)
    }

    /// Passes units with values, and their payloads.
    pub(super) fn read_units(
        &self,
        Range { start: mut unit, end }: Range<u32>,
        take: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<()> {
        while unit < end {
            let until = end.min(unit + READ_UNITS);
            self.file.read_run(unit..until, |page, piece| take(page.unit, piece))?;
            unit = until;
        }
        Ok(())
    }

    pub(super) fn check_value(&self, pointer: &BlobPointer, value: &[u8]) -> Result<()> {
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
