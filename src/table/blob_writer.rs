//! Writing a blob file.

use std::sync::Arc;

use super::blob::{BlobFile, BlobFooter, PIECE_BYTES};
use super::blob_files::BlobFiles;
use super::blob_pointer::BlobPointer;
use super::page_kind;
use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::cache::{Compression, FileType, PageFileWriter};

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
            writer: PageFileWriter::create(files.files(), FileType::Blob)?,
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
        let file = Arc::new(BlobFile::written(file, self.footer));
        self.files.register(&file);
        Ok(file)
    }
}
