//! [`MapletReader`]: reads all entries of a maplet in order, page by page, bypassing the cache.

use super::geometry::Geometry;
use super::maplet::Maplet;
use super::page::{self, PageFront};
use crate::base::error::Result;
use crate::cache::{PageFile, PagePointer, PageScan};
use std::sync::Arc;

/// The number of units read at once: 256 KiB.
const CHUNK_UNITS: u32 = 64;

/// A sequential pass over a maplet that checks everything that can be checked.
pub(crate) struct MapletReader {
    scan: PageScan,
    file: Arc<PageFile>,
    geometry: Geometry,
    branches: usize,
    pages: u32,
    entries_left: u64,
    /// The required start of the next page.
    start: u64,
    next_page: u32,
}

impl MapletReader {
    /// Begins before the first entry.
    pub(super) fn new(maplet: &Maplet) -> MapletReader {
        let header = maplet.header();
        MapletReader {
            scan: maplet.file().scan(0..header.pages, CHUNK_UNITS),
            file: Arc::clone(maplet.file()),
            geometry: header.geometry,
            branches: header.branches(),
            pages: header.pages,
            entries_left: header.entries(),
            start: 0,
            next_page: 0,
        }
    }

    /// Appends the next page's entries, `fingerprint << 8 | ordinal`, to `entries`. Returns false
    /// at the end.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged or does not continue the one before it.
    pub(crate) fn next_page(&mut self, entries: &mut Vec<u64>) -> Result<bool> {
        let Some((pointer, payload)) = self.scan.next_page()? else { return Ok(false) };
        let from = entries.len();
        let front = page::decode(&self.geometry, payload, entries)
            .map_err(|what| self.file.corrupt(pointer, what, "a maplet page", "other bytes"))?;
        self.check_page(pointer, &front, &entries[from..])?;
        Ok(true)
    }

    fn check_page(
        &mut self,
        pointer: PagePointer,
        front: &PageFront,
        entries: &[u64],
    ) -> Result<()> {
        // Probes read pages of one unit.
        if pointer.units != 1 {
            return Err(self.file.corrupt(pointer, "maplet page units", 1, pointer.units));
        }
        if front.number != self.next_page {
            let (expected, found) = (self.next_page, front.number);
            return Err(self.file.corrupt(pointer, "maplet page number", expected, found));
        }
        if front.start != self.start || front.end > self.geometry.nominal_end(front.number) {
            let expected = format!(
                "from {:#x} to at most {:#x}",
                self.start,
                self.geometry.nominal_end(front.number)
            );
            let found = format!("{:#x} to {:#x}", front.start, front.end);
            return Err(self.file.corrupt(pointer, "maplet page bounds", expected, found));
        }
        let greatest = entries.iter().fold(0, |greatest, entry| greatest.max(entry & 0xff));
        if !entries.is_empty() && greatest >= self.branches as u64 {
            let expected = format!("below {}", self.branches);
            return Err(self.file.corrupt(pointer, "maplet branch ordinal", expected, greatest));
        }
        self.start = front.end;
        self.next_page += 1;
        let last = self.next_page == self.pages;
        let left = self.entries_left.checked_sub(entries.len() as u64);
        match left {
            Some(left) if !last || left == 0 => self.entries_left = left,
            _ => {
                let expected = self.entries_left;
                return Err(self.file.corrupt(
                    pointer,
                    "maplet entries from here on",
                    expected,
                    entries.len(),
                ));
            }
        }
        if last && self.start != self.geometry.fingerprint_end() {
            let expected = format!("{:#x}", self.geometry.fingerprint_end());
            let found = format!("{:#x}", self.start);
            return Err(self.file.corrupt(pointer, "end of the last maplet page", expected, found));
        }
        Ok(())
    }
}
