//! `BloomFilter`: a split-block Bloom filter in memory, for the bundle of one memtable.
//!
//! A lookup probes all young bundles of the root, and almost none of them has the key. A probe of a
//! maplet page needs several dependent memory accesses; this filter needs one. A key selects a
//! block of 32 bytes and sets one bit in each of the block's eight words. The filter is not stored:
//! it is rebuilt when the store is opened.
//!
//! Invariants:
//! 1. There are no false negatives: [`BloomFilter::may_hold`] is true for every hash that the
//!    filter was built from.
//! 2. Only the upper 32 bits of a hash are used. Every maplet keeps these.

use super::block_page::{MULTIPLIERS, top};
use super::geometry::FINGERPRINT_BITS_MIN;
use super::maplet::Maplet;
use crate::base::error::Result;
use crate::base::pages::{PageVec, Plain};
use crate::base::planted::{Bug, planted};
use crate::base::prefetch::prefetch;

const WORDS: usize = 8;
const BLOCK_BITS: usize = WORDS * 32;
/// The false-positive rate is 1/100.
const KEY_BITS: usize = 10;

#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Block([u32; WORDS]);

// SAFETY: any 32 bytes are eight valid numbers.
unsafe impl Plain for Block {}

impl Block {
    /// The bits of a key: in each word, the top five bits of a product.
    #[inline(always)]
    fn of(top: u32) -> Block {
        Block(MULTIPLIERS.map(|multiplier| 1 << (top.wrapping_mul(multiplier) >> 27)))
    }
}

/// The filter. See the module's description.
#[derive(Debug)]
pub(crate) struct BloomFilter {
    blocks: PageVec<Block>,
}

impl BloomFilter {
    /// Builds a Bloom filter for the keys with these hashes.
    pub(crate) fn of_hashes(hashes: &[u64]) -> BloomFilter {
        let mut bloom = BloomFilter::for_keys(hashes.len());
        let lost = usize::from(planted(Bug::BloomFilterLosesKey));
        hashes.iter().skip(lost).for_each(|&hash| bloom.insert(top(hash)));
        bloom
    }

    /// Builds a Bloom filter for the keys of a maplet, by reading the maplet.
    ///
    /// # Errors
    /// `Corruption` if the maplet is damaged; I/O errors.
    pub(crate) fn of_maplet(maplet: &Maplet) -> Result<BloomFilter> {
        let mut bloom = BloomFilter::for_keys(maplet.entries() as usize);
        let spare_bits = maplet.header().geometry.fingerprint_bits - FINGERPRINT_BITS_MIN;
        let mut reader = maplet.reader();
        let mut entries = Vec::new();
        while reader.next_page(&mut entries)? {
            entries.drain(..).for_each(|entry| bloom.insert((entry >> 8 >> spare_bits) as u32));
        }
        Ok(bloom)
    }

    fn for_keys(keys: usize) -> BloomFilter {
        let blocks = (keys * KEY_BITS).div_ceil(BLOCK_BITS).max(1);
        BloomFilter { blocks: PageVec::zeroed(blocks) }
    }

    #[inline(always)]
    fn position(&self, top: u32) -> usize {
        ((u64::from(top) * self.blocks.len() as u64) >> 32) as usize
    }

    fn insert(&mut self, top: u32) {
        let position = self.position(top);
        let bits = Block::of(top);
        for (word, bit) in self.blocks[position].0.iter_mut().zip(bits.0) {
            *word |= bit;
        }
    }

    /// Prefetches the cache line that [`BloomFilter::may_hold`] reads.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        let block: *const Block = &raw const self.blocks[self.position(top(hash))];
        prefetch(block.cast());
    }

    /// Returns true if the filter may have been built from a key with this hash. Returns false for
    /// 99 of 100 other keys.
    #[inline]
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let top = top(hash);
        let block = &self.blocks[self.position(top)];
        let bits = Block::of(top);
        let missing =
            block.0.iter().zip(bits.0).fold(0, |missing, (word, bit)| missing | !word & bit);
        missing == 0
    }

    /// The memory used.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::key_hash::hash_key;

    fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
        range.map(|n| hash_key(&n.to_be_bytes())).collect()
    }

    #[test]
    fn what_was_put_in_may_be_held_and_little_else() {
        for keys in [0, 1, 7, 25, 26, 1000, 50_000] {
            let keys = if cfg!(miri) { keys.min(26) } else { keys };
            let held = hashes(0..keys);
            let bloom = BloomFilter::of_hashes(&held);
            assert!(held.iter().all(|&hash| bloom.may_hold(hash)));
            let others = hashes(1 << 40..(1 << 40) + if cfg!(miri) { 50 } else { 20_000 });
            let passed = others.iter().filter(|&&hash| bloom.may_hold(hash)).count();
            // Observed: 0.9% with many keys, less with few.
            assert!(passed * 50 < others.len(), "{passed} of {} with {keys} keys", others.len());
            assert!(bloom.bytes() as u64 * 8 <= keys * 10 + 256);
        }
    }
}
