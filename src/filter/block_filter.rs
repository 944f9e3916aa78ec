//! `BlockFilter`: a blocked Bloom filter of a table's keys, stored in the table's file.
//!
//! It is designed to be read through the page cache. A key's hash selects one of the filter's
//! pages, which are consecutive in the file, and one block of 64 bytes in that page
//! ([`block_page`](super::block_page)). Only the filter's location is kept in memory, so a probe
//! reads one cache line of one page.
//!
//! Invariants:
//! 1. There are no false negatives: [`BlockFilter::may_contain`] is true for every added hash.
//! 2. The false-positive rate is at most 1/200, plus `keys` / 2^32 because 32 bits of a hash are
//!    used.
//! 3. The number of distinct keys determines the number of pages, which is at least one.

use std::sync::Arc;

use super::block_page::{PAGE_BITS, PAYLOAD_BYTES, PageFront, Place, holds, insert, top};
use crate::base::error::{Error, Result};
use crate::base::pages::PageVec;
use crate::cache::{PageClass, PageFile, PageKey, PagePointer, ReadContext};

/// The filter type in a table's footer that means a block filter. On disk: never renumber.
pub(crate) const FILTER_KIND_BLOCKS: u8 = 1;

/// In full pages the false-positive rate is 1/237. It would be 1/152 with 11 bits per key and 1/359
/// with 13.
const KEY_BITS: u64 = 12;

/// The number of units that a check reads at once.
const CHUNK_UNITS: u32 = 64;

/// The number of pages of a filter with so many keys.
fn pages_for(keys: usize) -> u32 {
    let pages = (keys as u64 * KEY_BITS).div_ceil(PAGE_BITS).max(1);
    // More keys than this maximum would not fit into memory.
    u32::try_from(pages).unwrap_or(u32::MAX)
}

/// Collects the keys of a filter. Uses four bytes per key, and a byte and a half more while it is
/// written.
#[derive(Debug, Default)]
pub(crate) struct BlockFilterBuilder {
    tops: PageVec<u32>,
}

impl BlockFilterBuilder {
    /// Adds a key by its hash. A key added twice counts twice.
    #[inline]
    pub(crate) fn add(&mut self, hash: u64) {
        self.tops.push(top(hash));
    }

    /// The memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.tops.capacity() * size_of::<u32>()
    }

    /// The number of pages, of one unit each, that the filter will have.
    pub(crate) fn pages(&self) -> u32 {
        pages_for(self.tops.len())
    }

    /// Calls `append` with the payload of each page in order.
    pub(crate) fn write(&self, append: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (pages, keys) = (self.pages(), self.tops.len() as u64);
        let mut payloads = PageVec::<u8>::zeroed(pages as usize * PAYLOAD_BYTES);
        for (number, payload) in (0..pages).zip(payloads.chunks_exact_mut(PAYLOAD_BYTES)) {
            PageFront { number, pages, keys }.encode(payload);
        }
        for &top in self.tops.iter() {
            let place = Place::of(top, pages);
            insert(&mut payloads[place.page as usize * PAYLOAD_BYTES..], top, place);
        }
        payloads.chunks_exact(PAYLOAD_BYTES).try_for_each(append)
    }
}

/// The location of a filter in a table's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockFilter {
    first_unit: u32,
    pages: u32,
}

impl BlockFilter {
    /// The filter of `pages` pages (at least one), of one unit each, beginning at `first_unit`. The
    /// caller has checked that they are in the file.
    pub(crate) fn new(first_unit: u32, pages: u32) -> BlockFilter {
        debug_assert!(pages > 0);
        BlockFilter { first_unit, pages }
    }

    /// Returns true if a key with this hash may have been added. Returns false for 199 of 200 keys
    /// that were not.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn may_contain(
        self,
        file: &Arc<PageFile>,
        hash: u64,
        context: &ReadContext,
    ) -> Result<bool> {
        let top = top(hash);
        let place = Place::of(top, self.pages);
        let answer =
            file.with_page(self.pointer(place.page), PageClass::Filter, context, |page| {
                self.is_page(place.page, PageFront::decode(page)?)
                    .then(|| holds(page, top, place))?
            })?;
        answer.ok_or_else(|| self.damaged(file, place.page))
    }

    /// The first of two prefetch hints before a probe, for lookups in several filters: their cache
    /// misses then overlap.
    #[inline]
    pub(crate) fn prefetch_place(self, file: &PageFile, hash: u64) {
        file.files().cache.prefetch_place(self.place(file, hash).0);
    }

    /// The second hint, to be given once the first has taken effect.
    #[inline]
    pub(crate) fn prefetch_bytes(self, file: &PageFile, hash: u64) {
        let (key, offset) = self.place(file, hash);
        file.files().cache.prefetch_bytes(key, offset);
    }

    /// The page that a probe reads, and the position in it.
    #[inline]
    fn place(self, file: &PageFile, hash: u64) -> (PageKey, usize) {
        let place = Place::of(top(hash), self.pages);
        let key = PageKey { file: file.id(), unit: self.pointer(place.page).unit };
        (key, crate::cache::PAGE_HEADER_BYTES + place.offset())
    }

    #[inline]
    fn pointer(self, page: u32) -> PagePointer {
        PagePointer { unit: self.first_unit + page, units: 1 }
    }

    #[inline]
    fn is_page(self, number: u32, front: PageFront) -> bool {
        front.number == number && front.pages == self.pages
    }

    #[cold]
    fn damaged(self, file: &PageFile, number: u32) -> Error {
        let expected = format_args!("page {number} of {}", self.pages);
        file.corrupt(self.pointer(number), "filter page", expected, "another, or none")
    }

    /// Reads the whole filter, past the cache, and verifies that its pages belong together.
    ///
    /// # Errors
    /// `Corruption` for the first problem found.
    pub(crate) fn load(self, file: &Arc<PageFile>) -> Result<LoadedFilter> {
        let mut scan = file.scan(self.first_unit..self.first_unit + self.pages, CHUNK_UNITS);
        let mut loaded = LoadedFilter { payloads: Vec::new(), pages: self.pages, keys: 0 };
        for number in 0..self.pages {
            let (pointer, payload) = match scan.next_page()? {
                Some((pointer, payload)) if pointer == self.pointer(number) => (pointer, payload),
                _ => return Err(self.damaged(file, number)),
            };
            let front = PageFront::decode(payload).filter(|front| self.is_page(number, *front));
            let Some(front) = front else { return Err(self.damaged(file, number)) };
            if number > 0 && front.keys != loaded.keys {
                return Err(file.corrupt(pointer, "keys of a filter", loaded.keys, front.keys));
            }
            loaded.keys = front.keys;
            loaded.payloads.extend_from_slice(payload);
        }
        Ok(loaded)
    }
}

/// A filter in memory, for checks.
pub(crate) struct LoadedFilter {
    payloads: Vec<u8>,
    pages: u32,
    keys: u64,
}

impl LoadedFilter {
    /// As [`BlockFilter::may_contain`].
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let top = top(hash);
        let place = Place::of(top, self.pages);
        let payload = self.payloads.get(place.page as usize * PAYLOAD_BYTES..);
        payload.and_then(|payload| holds(payload, top, place)) == Some(true)
    }

    /// The number of keys, according to the filter.
    pub(crate) fn keys(&self) -> u64 {
        self.keys
    }

    /// The number of pages.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }
}
