//! Hash indexes: where keys are, by their hashes, in pages that are read through the page cache.
//!
//! Both tiers of a TPH (section 3.3 of the CompassDB paper) have this form. A piece's index says in which block a
//! key is. The global index says in which piece it is, and has a signature of eight bits for each key, which excludes
//! 255 of 256 absent keys.
//!
//! Each page has the perfect hash function of its own hashes. So an index of any size is asked by reading one page,
//! pages that are not needed take no memory, and a page is built in a few microseconds. Of the index itself, only the
//! first hash of each page is in memory: 8 bytes for 4 KiB.
//!
//! Invariants:
//! 1. A hash that was added is never absent. It has the value that was added, or is ambiguous, which it is only if it
//!    was added for several keys.
//! 2. Pages are in ascending order of their hashes. The bounds ascend, and the first is 0.
//! 3. The set of hashes and values determines all bytes.

#[cfg(test)]
use std::sync::Arc;

#[cfg(test)]
use super::index_page::Probe;
use super::index_page::{self, PAYLOAD_BYTES, Shape};
use super::segment::{Construction, SegmentBuilder};
use crate::base::error::{Error, Result};
#[cfg(test)]
use crate::cache::{PageClass, PageFile, PagePointer, ReadContext};

/// A page that was built for so many entries too many is built again for fewer, by this part.
const FEWER_PART: usize = 32;

/// How far from where uniform hashes would have it a page is looked for first.
#[cfg(test)]
const NEAR_PAGES: usize = 8;

/// Collects the entries of an index. Uses 16 bytes per key.
#[derive(Debug)]
pub(crate) struct HashIndexBuilder {
    construction: Construction,
    shape: Shape,
    entries: Vec<(u64, u32)>,
}

/// The pages of an index, not yet written.
#[derive(Debug)]
pub(crate) struct BuiltIndex {
    /// The payloads of its pages.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The first hash of each page; 0 for the first.
    pub(crate) bounds: Vec<u64>,
}

impl HashIndexBuilder {
    /// An empty index of this shape.
    pub(crate) fn new(construction: Construction, shape: Shape) -> HashIndexBuilder {
        assert!((1..=32).contains(&shape.value_bits), "a value has 1 to 32 bits");
        HashIndexBuilder { construction, shape, entries: Vec::new() }
    }

    /// Adds a key by its hash. Its value must be less than the greatest of the shape.
    pub(crate) fn add(&mut self, hash: u64, value: u32) {
        assert!(value < self.shape.ambiguous(), "a value beyond the index's bits");
        self.entries.push((hash, value));
    }

    /// Builds the pages; at least one.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub(crate) fn build(mut self) -> Result<BuiltIndex> {
        self.entries.sort_unstable();
        let ambiguous = self.shape.ambiguous();
        self.entries.dedup_by(|next, kept| {
            let equal = next.0 == kept.0;
            if equal {
                kept.1 = ambiguous;
            }
            equal
        });
        let mut builder = SegmentBuilder::new(self.construction);
        let mut built = BuiltIndex { payloads: Vec::new(), bounds: Vec::new() };
        let mut rest = &self.entries[..];
        // Entries of a full page, as far as is known.
        let mut guess = PAYLOAD_BYTES * 8 / (usize::from(self.shape.value_bits) + 2).max(8);
        loop {
            let mut payload = Vec::new();
            let mut count = rest.len().min(guess);
            let place = (built.payloads.len() as u32, 0);
            while !index_page::encode(
                place,
                self.shape,
                &rest[..count],
                &mut builder,
                &mut payload,
            )? {
                count -= (count / FEWER_PART).max(1);
                guess = count;
            }
            built.bounds.push(if built.payloads.is_empty() { 0 } else { rest[0].0 });
            built.payloads.push(payload);
            rest = &rest[count..];
            // Perhaps a few more fit into the next one.
            guess += (guess / (16 * FEWER_PART)).max(1);
            if rest.is_empty() {
                break;
            }
        }
        let pages = u32::try_from(built.payloads.len())
            .map_err(|_| Error::invalid("an index of more than 16 TiB"))?;
        built.payloads.iter_mut().for_each(|payload| index_page::set_pages(payload, pages));
        Ok(built)
    }
}

/// The location of an index in a file. (No tree has one yet; `spinney-bench hashes` builds indexes and says their sizes.)
#[cfg(test)]
#[derive(Debug, Clone)]
pub(crate) struct HashIndex {
    first_unit: u32,
    shape: Shape,
    bounds: Arc<[u64]>,
}

#[cfg(test)]
impl HashIndex {
    /// The index whose pages, of one unit each, begin at `first_unit`, with the first hash of each. The caller has
    /// checked that they are in the file, that there is one, and invariant 2.
    pub(crate) fn new(first_unit: u32, shape: Shape, bounds: Arc<[u64]>) -> HashIndex {
        debug_assert!(bounds.first() == Some(&0) && bounds.is_sorted());
        HashIndex { first_unit, shape, bounds }
    }

    /// What the index knows of a hash. Reads one page through the cache.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn probe(
        &self,
        file: &Arc<PageFile>,
        hash: u64,
        context: &ReadContext,
    ) -> Result<Probe> {
        let number = self.page_of(hash);
        let pages = self.bounds.len() as u32;
        let pointer = PagePointer { unit: self.first_unit + number, units: 1 };
        let answer = file.with_page(pointer, PageClass::Filter, context, |page| {
            index_page::probe(page, (number, pages), self.shape, hash)
        })?;
        answer.ok_or_else(|| {
            let expected = format_args!("page {number} of {pages}");
            file.corrupt(pointer, "page of a hash index", expected, "another, or none")
        })
    }

    /// The page whose range has the hash. Hashes are uniform, so a guess by proportion is nearly right.
    #[inline]
    fn page_of(&self, hash: u64) -> u32 {
        let pages = self.bounds.len();
        let guess = ((u128::from(hash) * pages as u128) >> 64) as usize;
        let near = guess.saturating_sub(NEAR_PAGES)..(guess + NEAR_PAGES).min(pages);
        let bounds = &self.bounds[near.clone()];
        let found = bounds.partition_point(|bound| *bound <= hash);
        let number = match found {
            // Not near: then hashes are not as uniform as they should be.
            0 => self.bounds.partition_point(|bound| *bound <= hash),
            found if found == bounds.len() && near.end < pages => {
                self.bounds.partition_point(|bound| *bound <= hash)
            }
            found => near.start + found,
        };
        // The first bound is 0.
        (number - 1) as u32
    }

    /// Memory that it uses.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.bounds)
    }
}
