//! The hashes of a piece's keys in ascending order: what a new head is made of, without reading the keys.
//!
//! Pages of one unit (`docs/format/perfect-hash.md`). They are read in order, past the cache.

use std::sync::Arc;

use super::index::PageSink;
use super::index_page::PAYLOAD_BYTES;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::cache::{PageFile, PageScan};

/// Number u32, count u32, first hash u64.
const FRONT_BYTES: usize = 16;
/// A difference of hashes of 48 bits takes at most so many bytes.
const DIFFERENCE_BYTES_MAX: usize = 7;
/// Hashes are written without their lowest bits, which are 0.
const SHIFT: u32 = 16;
/// Units read at once.
const CHUNK_UNITS: u32 = 16;

/// Writes a list.
#[derive(Debug, Default)]
pub(super) struct HashListWriter {
    payload: Vec<u8>,
    number: u32,
    count: u32,
    last: u64,
}

impl HashListWriter {
    /// Adds a hash that is greater than all before.
    pub(super) fn add(&mut self, hash: u64, sink: &mut impl PageSink) -> Result<()> {
        if self.count > 0 && self.payload.len() + DIFFERENCE_BYTES_MAX > PAYLOAD_BYTES {
            self.write_page(sink)?;
        }
        if self.count == 0 {
            self.payload.clear();
            self.payload.resize(FRONT_BYTES - 8, 0);
            self.payload.extend_from_slice(&hash.to_le_bytes());
        } else {
            put_varint(&mut self.payload, (hash - self.last) >> SHIFT);
        }
        (self.count, self.last) = (self.count + 1, hash);
        Ok(())
    }

    fn write_page(&mut self, sink: &mut impl PageSink) -> Result<()> {
        self.payload[..4].copy_from_slice(&self.number.to_le_bytes());
        self.payload[4..8].copy_from_slice(&self.count.to_le_bytes());
        sink.append(&self.payload, false)?;
        (self.number, self.count) = (self.number + 1, 0);
        Ok(())
    }

    /// Writes the rest, and returns the number of pages.
    pub(super) fn finish(mut self, sink: &mut impl PageSink) -> Result<u32> {
        if self.count > 0 {
            self.write_page(sink)?;
        }
        Ok(self.number)
    }
}

/// Reads a list.
pub(crate) struct HashListReader {
    file: Arc<PageFile>,
    pages: PageScan,
    number: u32,
    count: u32,
    /// The hashes that have not been read yet.
    left: u64,
    last: Option<u64>,
}

impl HashListReader {
    /// The list of so many pages from `first_unit` on, with so many hashes. The caller has checked that they are in the
    /// file.
    pub(super) fn new(
        file: &Arc<PageFile>,
        first_unit: u32,
        pages: u32,
        hashes: u64,
    ) -> HashListReader {
        HashListReader {
            file: Arc::clone(file),
            pages: file.scan(first_unit..first_unit + pages, CHUNK_UNITS),
            number: 0,
            count: pages,
            left: hashes,
            last: None,
        }
    }

    /// Appends the hashes of the next page. Returns false if there is none.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged.
    pub(crate) fn next_page(&mut self, hashes: &mut Vec<u64>) -> Result<bool> {
        let file = &self.file;
        let Some((pointer, payload)) = self.pages.next_page()? else {
            if (self.number, self.left) == (self.count, 0) {
                return Ok(false);
            }
            let found = format_args!("{}, and {} hashes fewer", self.number, self.left);
            let what = "pages of a list of hashes";
            return Err(file.corrupt(file.last_unit(), what, self.count, found));
        };
        let path = file.path();
        let mut from = Decoder::new(payload, &path, pointer.offset());
        let number = from.u32("number of a page of hashes")?;
        if number != self.number {
            return Err(from.corrupt("number of a page of hashes", self.number, number));
        }
        let count = from.u32("count of hashes")?;
        let mut hash = from.u64("hash")?;
        for at in 0..count {
            if at > 0 {
                let difference = from.varint("difference of hashes")?;
                let next = difference.checked_mul(1 << SHIFT).and_then(|d| hash.checked_add(d));
                hash = next.ok_or_else(|| from.corrupt("difference", "48 bits", difference))?;
            }
            if self.last.is_some_and(|last| last >= hash) || hash & 0xffff != 0 {
                return Err(from.corrupt("order of hashes", "ascending, 48 bits", hash));
            }
            self.last = Some(hash);
            hashes.push(hash);
        }
        let left = self.left.checked_sub(u64::from(count));
        let Some(left) = left.filter(|_| count > 0 && from.is_empty()) else {
            return Err(from.corrupt("count of hashes", "that of the page", count));
        };
        self.left = left;
        self.number += 1;
        Ok(true)
    }
}
