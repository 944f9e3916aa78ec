//! `PageScan`: a sequential read of a file's pages, with read-ahead, past the cache.
//!
//! Invariants:
//! 1. Each unit of the range is read once, and none outside it.
//! 2. There are two buffers: one is consumed while the other is filled.
//! 3. `ahead` is the page that `next_page` returns next. A failed read leaves it empty.
//! 4. A page's length is used only after its header's checksum has been verified.

use std::ops::Range;
use std::sync::Arc;

use super::page_file::{PageFile, PagePointer};
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::vfs::{AlignedBuf, IoQueue, IoTicket};

/// A larger side buffer is not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

struct Chunk {
    units: Range<u32>,
    buf: AlignedBuf,
}

impl Chunk {
    /// The chunk's bytes from `unit` on.
    fn bytes_from(&self, unit: u32) -> &[u8] {
        let from = (unit - self.units.start) as usize * UNIT_BYTES;
        &self.buf[from..self.units.len() * UNIT_BYTES]
    }
}

/// See [`PageFile::scan`].
pub(crate) struct PageScan {
    queue: Box<dyn IoQueue>,
    file: Arc<PageFile>,
    /// The first unit that has not been returned.
    next_unit: u32,
    end_unit: u32,
    chunk_units: u32,
    in_flight: Option<(IoTicket, Range<u32>)>,
    current: Option<Chunk>,
    /// A page that spans chunks, reassembled.
    straddling: Vec<u8>,
    /// A page's payload, decompressed.
    scratch: Vec<u8>,
    kind: u8,
    /// See [`PageScan::peek_page`].
    ahead: Option<(PagePointer, u8)>,
    ahead_payload: Vec<u8>,
}

impl PageScan {
    pub(super) fn new(file: &Arc<PageFile>, units: Range<u32>, chunk_units: u32) -> PageScan {
        PageScan {
            queue: file.files().vfs.io_queue(2),
            next_unit: units.start,
            end_unit: units.end.min(file.units()),
            chunk_units: chunk_units.max(1),
            in_flight: None,
            current: None,
            straddling: Vec::new(),
            scratch: Vec::new(),
            kind: 0,
            ahead: None,
            ahead_payload: Vec::new(),
            file: Arc::clone(file),
        }
    }

    /// The kind of the page that `next_page` returned last.
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    /// The payload of the next page and its location, or `None` at the end. After an error the scan
    /// is still before the page that could not be read.
    pub(crate) fn next_page(&mut self) -> Result<Option<(PagePointer, &[u8])>> {
        if let Some((pointer, kind)) = self.ahead.take() {
            self.kind = kind;
            return Ok(Some((pointer, &self.ahead_payload)));
        }
        self.read_page()
    }

    /// The page that `next_page` returns next. It is copied, so that the payload that `next_page` returned last may
    /// go.
    pub(crate) fn peek_page(&mut self) -> Result<Option<(PagePointer, &[u8])>> {
        if self.ahead.is_none() {
            let mut payload = std::mem::take(&mut self.ahead_payload);
            let kind = self.kind;
            payload.clear();
            payload.shrink_to(KEPT_BYTES_MAX);
            let read = self.read_page()?;
            let pointer = read.map(|(pointer, found)| {
                payload.extend_from_slice(found);
                pointer
            });
            self.ahead_payload = payload;
            self.ahead = pointer.map(|pointer| (pointer, self.kind));
            self.kind = kind;
        }
        Ok(self.ahead.map(|(pointer, _)| (pointer, &*self.ahead_payload)))
    }

    fn read_page(&mut self) -> Result<Option<(PagePointer, &[u8])>> {
        if self.next_unit >= self.end_unit {
            return Ok(None);
        }
        self.straddling.clear();
        self.straddling.shrink_to(KEPT_BYTES_MAX);
        if self.scratch.capacity() > KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        self.load(self.next_unit)?;
        let bytes = self.loaded(self.next_unit);
        let pointer = self.file.pointer_to(self.next_unit, self.end_unit, bytes)?;
        if pointer.bytes() > bytes.len() {
            self.assemble(pointer)?;
        }
        let bytes = match &self.current {
            Some(chunk) if self.straddling.is_empty() => {
                &chunk.bytes_from(pointer.unit)[..pointer.bytes()]
            }
            _ => &self.straddling[..],
        };
        let (header, page) = self.file.verify(pointer, bytes, &mut self.scratch)?;
        self.kind = header.kind;
        self.next_unit += u32::from(pointer.units);
        Ok(Some((pointer, page)))
    }

    /// Skips one unit, after an error. What follows a damaged page is found by trial: the first
    /// unit of a page is recognised by its header's checksum.
    pub(crate) fn skip_unit(&mut self) {
        self.next_unit += 1;
    }

    /// The unit that `next_page` examines next.
    pub(crate) fn next_unit(&self) -> u32 {
        self.ahead.map_or(self.next_unit, |(pointer, _)| pointer.unit)
    }

    /// Copies a page from the chunks that it spans.
    fn assemble(&mut self, pointer: PagePointer) -> Result<()> {
        let mut page = std::mem::take(&mut self.straddling);
        while page.len() < pointer.bytes() {
            let unit = pointer.unit + (page.len() / UNIT_BYTES) as u32;
            let missing = pointer.bytes() - page.len();
            self.load(unit)?;
            let bytes = self.loaded(unit);
            page.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        }
        self.straddling = page;
        Ok(())
    }

    /// Makes `current` the chunk that holds `unit`.
    fn load(&mut self, unit: u32) -> Result<()> {
        let chunk = match self.current.take() {
            Some(chunk) if chunk.units.contains(&unit) => chunk,
            used => self.next_chunk(unit, used.map(|chunk| chunk.buf))?,
        };
        self.current = Some(chunk);
        Ok(())
    }

    /// The bytes of the current chunk from `unit` on.
    fn loaded(&self, unit: u32) -> &[u8] {
        match &self.current {
            Some(chunk) => chunk.bytes_from(unit),
            None => unreachable!("a chunk has been loaded"),
        }
    }

    /// Waits for the chunk that starts at `unit` and starts reading the one after it.
    fn next_chunk(&mut self, unit: u32, mut spare: Option<AlignedBuf>) -> Result<Chunk> {
        let (ticket, units) = match self.in_flight.take() {
            Some((ticket, units)) if units.start == unit => (ticket, units),
            // The first chunk, or the first after an error.
            other => {
                if let Some((ticket, _)) = other {
                    spare = Some(self.queue.wait(ticket).0);
                }
                self.submit(unit, spare.take())
            }
        };
        let (buf, result) = self.queue.wait(ticket);
        result?;
        if units.end < self.end_unit {
            self.in_flight = Some(self.submit(units.end, spare));
        }
        Ok(Chunk { units, buf })
    }

    fn submit(&mut self, unit: u32, spare: Option<AlignedBuf>) -> (IoTicket, Range<u32>) {
        let units = unit..self.end_unit.min(unit.saturating_add(self.chunk_units));
        let bytes = units.len() * UNIT_BYTES;
        let buf = match spare {
            Some(buf) if buf.len() == bytes => buf,
            _ => AlignedBuf::unzeroed(bytes),
        };
        let offset = u64::from(unit) * UNIT_BYTES as u64;
        (self.queue.submit_read(self.file.file(), offset, buf), units)
    }
}
