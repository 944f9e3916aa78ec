//! Hash indexes: a value for each hash of a set, in pages that are read through the page cache.
//!
//! Both tiers of a TPH (section 3.3 of the CompassDB paper) have this form: [`head`](super::head) is the global table,
//! [`piece`](super::piece) the local one. A slot may have a signature, which excludes most hashes that were not added.
//!
//! Each page has the perfect hash function of its own hashes. So an index of any size is asked by reading one page,
//! pages that are not needed take no memory, and a page is built in a few microseconds. Of the index itself, only the
//! first hash of each page is in memory: 8 bytes for 4 KiB.
//!
//! Invariants:
//! 1. A hash that was added has the value that was added. Other hashes have none, or any.
//! 2. Pages are in ascending order of their hashes. The bounds ascend, and the first is 0.
//! 3. The set of hashes and values determines all bytes.
//! 4. Indexes use the upper 48 bits of hashes ([`index_hash`]). Distinct keys may have equal ones.

use std::sync::Arc;

use super::index_page::{self, PAYLOAD_BYTES, Shape};
use super::segment::{Construction, SegmentBuilder};
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::cache::{PageClass, PageFile, PagePointer, ReadContext};

/// A page that was built for so many entries too many is built again for fewer, by this part.
const FEWER_PART: usize = 32;
/// How far from where uniform hashes would have it a page is looked for first.
const NEAR_PAGES: usize = 8;
/// More hashes than a page can hold: each takes a bit at least.
const PAGE_KEYS_MAX: u64 = PAYLOAD_BYTES as u64 * 8;
/// Bounds in a page.
const PAGE_BOUNDS: usize = PAYLOAD_BYTES / 8;

const MAGIC: [u8; 4] = *b"HIDX";
const VERSION: u16 = 1;

/// The bits of a hash that indexes use, at their place: the others are 0.
#[inline(always)]
pub(crate) fn index_hash(hash: u64) -> u64 {
    hash & !0xffff
}

/// Takes the pages of an index, each of one unit.
pub(crate) trait PageSink {
    /// Appends a page. If `is_probed`, lookups read it.
    fn append(&mut self, payload: &[u8], is_probed: bool) -> Result<()>;
}

/// Where the pages of an index are, and what they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexFront {
    pub(crate) shape: Shape,
    /// The number of pages, without those of the bounds, which follow them.
    pub(crate) pages: u32,
    /// The number of hashes.
    pub(crate) keys: u64,
    /// The id of the hash ([`KeyHasher::id`](crate::base::key_hash::KeyHasher::id)).
    pub(crate) hash_id: u32,
}

impl IndexFront {
    /// The number of pages of the bounds.
    pub(crate) fn bounds_pages(&self) -> u32 {
        self.pages.div_ceil(PAGE_BOUNDS as u32)
    }

    /// The first hash of each page, which a reader has in memory.
    pub(super) fn bounds_bytes(&self) -> u64 {
        u64::from(self.pages) * size_of::<u64>() as u64
    }

    /// All pages.
    pub(crate) fn units(&self) -> u64 {
        u64::from(self.pages) + u64::from(self.bounds_pages())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[self.shape.value_bits, self.shape.signature_bytes]);
        out.extend_from_slice(&self.pages.to_le_bytes());
        out.extend_from_slice(&self.keys.to_le_bytes());
        out.extend_from_slice(&self.hash_id.to_le_bytes());
    }

    /// # Errors
    /// `Corruption` or `UnsupportedVersion`.
    pub(super) fn decode(from: &mut Decoder<'_>, hash_id: u32) -> Result<IndexFront> {
        from.magic(&MAGIC, "hash index magic")?;
        let version = from.u16("hash index version")?;
        from.check_version(u32::from(version), u32::from(VERSION), "hash index version")?;
        let (value_bits, signature_bytes) =
            (from.u8("hash index value bits")?, from.u8("hash index signature bytes")?);
        let shape = Shape { value_bits, signature_bytes };
        if !shape.is_valid() {
            let found = format_args!("{value_bits} and {signature_bytes}");
            let expected = "1 to 32 bits of a value, and at most 2 bytes of a signature";
            return Err(from.corrupt("hash index shape", expected, found));
        }
        let (pages, keys) = (from.u32("hash index pages")?, from.u64("hash index keys")?);
        if pages == 0 || keys > u64::from(pages) * PAGE_KEYS_MAX {
            let expected = format_args!("at least one, and enough for {keys} hashes");
            return Err(from.corrupt("hash index pages", expected, pages));
        }
        let found = from.u32("hash index key hash")?;
        if found != hash_id {
            let expected = format_args!("{hash_id:#010x}, this store's");
            let found = format_args!("{found:#010x}");
            return Err(from.corrupt("hash index key hash", expected, found));
        }
        Ok(IndexFront { shape, pages, keys, hash_id })
    }
}

/// Builds an index, page by page.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    shape: Shape,
    segments: SegmentBuilder,
    pending: Vec<(u64, u32)>,
    /// Entries of a full page, as far as is known.
    guess: usize,
    payload: Vec<u8>,
    bounds: Vec<u64>,
    keys: u64,
}

impl IndexWriter {
    /// An empty index of this shape.
    pub(crate) fn new(construction: Construction, shape: Shape) -> IndexWriter {
        assert!(shape.is_valid(), "a value has 1 to 32 bits, a signature up to 2 bytes");
        let bits = usize::from(shape.value_bits) + 8 * usize::from(shape.signature_bytes);
        IndexWriter {
            shape,
            segments: SegmentBuilder::new(construction),
            pending: Vec::new(),
            guess: PAYLOAD_BYTES * 8 / (bits + 3).max(8),
            payload: Vec::new(),
            bounds: Vec::new(),
            keys: 0,
        }
    }

    /// Adds a hash that is greater than all before.
    pub(crate) fn add(&mut self, hash: u64, value: u32, sink: &mut impl PageSink) -> Result<()> {
        assert!(value <= self.shape.value_max(), "a value beyond the index's bits");
        debug_assert!(self.pending.last().is_none_or(|last| last.0 < hash));
        if self.pending.len() >= self.guess {
            self.write_page(sink)?;
        }
        self.pending.push((hash, value));
        self.keys += 1;
        Ok(())
    }

    fn write_page(&mut self, sink: &mut impl PageSink) -> Result<()> {
        let number = u32::try_from(self.bounds.len())
            .map_err(|_| Error::invalid("an index of more than 16 TiB"))?;
        let first = match (number, self.pending.first()) {
            (0, _) | (_, None) => 0,
            (_, Some((first, _))) => *first,
        };
        let mut count = self.pending.len().min(self.guess);
        let is_full = count == self.guess;
        while !index_page::encode(
            (number, first),
            self.shape,
            &self.pending[..count],
            &mut self.segments,
            &mut self.payload,
        )? {
            count -= (count / FEWER_PART).max(1);
            self.guess = count;
        }
        if is_full {
            // Perhaps a few more fit into the next one.
            self.guess += (self.guess / (16 * FEWER_PART)).max(1);
        }
        sink.append(&self.payload, true)?;
        self.bounds.push(first);
        self.pending.drain(..count);
        Ok(())
    }

    /// Writes the rest, and the bounds.
    pub(crate) fn finish(
        mut self,
        hash_id: u32,
        sink: &mut impl PageSink,
    ) -> Result<(IndexFront, Arc<[u64]>)> {
        while !self.pending.is_empty() || self.bounds.is_empty() {
            self.write_page(sink)?;
        }
        for bounds in self.bounds.chunks(PAGE_BOUNDS) {
            self.payload.clear();
            self.payload.extend(bounds.iter().flat_map(|bound| bound.to_le_bytes()));
            sink.append(&self.payload, false)?;
        }
        let pages = self.bounds.len() as u32;
        let front = IndexFront { shape: self.shape, pages, keys: self.keys, hash_id };
        Ok((front, self.bounds.into()))
    }
}

/// An index in a file.
#[derive(Debug, Clone)]
pub(crate) struct HashIndex {
    first_unit: u32,
    shape: Shape,
    bounds: Arc<[u64]>,
}

impl HashIndex {
    /// The index whose pages begin at `first_unit`, with the first hash of each.
    pub(crate) fn new(first_unit: u32, front: &IndexFront, bounds: Arc<[u64]>) -> HashIndex {
        debug_assert!(bounds.first() == Some(&0) && bounds.is_sorted());
        HashIndex { first_unit, shape: front.shape, bounds }
    }

    /// Reads the bounds. The caller has checked that the pages are in the file.
    ///
    /// # Errors
    /// `Corruption` if they are damaged, `NotResident` as [`PageFile::with_page`].
    #[cold]
    pub(crate) fn load(
        file: &Arc<PageFile>,
        first_unit: u32,
        front: &IndexFront,
        context: &ReadContext,
    ) -> Result<HashIndex> {
        let mut bounds: Vec<u64> = Vec::new();
        for number in 0..front.bounds_pages() {
            let unit = first_unit + front.pages + number;
            let pointer = PagePointer { unit, units: 1 };
            let left = front.pages as usize - bounds.len();
            let is_right = file.with_page(pointer, PageClass::Index, context, |payload| {
                let (words, rest) = payload.as_chunks::<8>();
                let is_sized = words.len() == left.min(PAGE_BOUNDS) && rest.is_empty();
                bounds.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
                is_sized
            })?;
            let ascends =
                bounds.first() == Some(&0) && bounds.windows(2).all(|two| two[0] < two[1]);
            if !is_right || !ascends {
                let expected = format_args!("ascending, of {} pages", front.pages);
                let found = format_args!("{} that are not", bounds.len());
                return Err(file.corrupt(pointer, "bounds of a hash index", expected, found));
            }
        }
        Ok(HashIndex { first_unit, shape: front.shape, bounds: bounds.into() })
    }

    /// The value of a hash, if it may have been added. Reads one page through the cache.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn probe(
        &self,
        file: &Arc<PageFile>,
        hash: u64,
        context: &ReadContext,
    ) -> Result<Option<u32>> {
        let number = self.page_of(hash);
        let first = self.bounds[number];
        let pointer = PagePointer { unit: self.first_unit + number as u32, units: 1 };
        let answer = file.with_page(pointer, PageClass::Filter, context, |page| {
            index_page::probe(page, (number as u32, first), self.shape, hash)
        })?;
        answer.ok_or_else(|| {
            let expected = format_args!("page {number} of {}", self.bounds.len());
            file.corrupt(pointer, "page of a hash index", expected, "another, or none")
        })
    }

    /// The number of the page whose range has the hash. Hashes are uniform, so a guess by proportion is nearly right.
    #[inline]
    fn page_of(&self, hash: u64) -> usize {
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
        number - 1
    }

    /// Memory that it uses.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.bounds)
    }
}

/// The pages of an index in memory, for tests and comparisons.
#[cfg(any(test, feature = "hashes"))]
#[derive(Debug)]
pub(crate) struct BuiltIndex {
    #[cfg(test)]
    pub(crate) front: IndexFront,
    /// The payloads of its pages.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// The first hash of each page; 0 for the first.
    pub(crate) bounds: Arc<[u64]>,
}

#[cfg(any(test, feature = "hashes"))]
impl PageSink for Vec<Vec<u8>> {
    fn append(&mut self, payload: &[u8], _is_probed: bool) -> Result<()> {
        self.push(payload.to_vec());
        Ok(())
    }
}

#[cfg(any(test, feature = "hashes"))]
impl BuiltIndex {
    /// Builds the index of these entries, of which no two have one hash, in any order.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub(crate) fn of(
        construction: Construction,
        shape: Shape,
        mut entries: Vec<(u64, u32)>,
    ) -> Result<BuiltIndex> {
        entries.sort_unstable();
        let (mut writer, mut payloads) = (IndexWriter::new(construction, shape), Vec::new());
        for (hash, value) in entries {
            writer.add(hash, value, &mut payloads)?;
        }
        let (_front, bounds) = writer.finish(0, &mut payloads)?;
        Ok(BuiltIndex {
            #[cfg(test)]
            front: _front,
            payloads,
            bounds,
        })
    }
}
