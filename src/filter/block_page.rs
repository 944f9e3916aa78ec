//! One page of a block filter (`docs/format/block-filter.md`): a front, then blocks of 64 bytes.
//!
//! A key sets one bit in each of the eight words of one block. The words are independent, so that a
//! compiler can use SIMD instructions. A block is one cache line: with the page header and the
//! front it starts at a multiple of 64 bytes of the cached page.
//!
//! Invariants:
//! 1. The positions of a key's bits depend only on the upper 32 bits of its hash and on the number
//!    of pages.
//! 2. Page bytes are not trusted: every load is checked.

use crate::base::limits::UNIT_BYTES;
use crate::cache::PAGE_HEADER_BYTES;

/// The size of a payload in bytes: it fills one unit.
pub(super) const PAYLOAD_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
/// Page number u32, pages u32, keys u64, reserved bytes.
const FRONT_BYTES: usize = 40;
const WORDS: usize = 8;
const WORD_BYTES: usize = 8;
const BLOCK_BYTES: usize = WORDS * WORD_BYTES;
/// The number of blocks that fill a page.
pub(super) const PAGE_BLOCKS: usize = (PAYLOAD_BYTES - FRONT_BYTES) / BLOCK_BYTES;
/// The number of bits in a page for keys.
pub(super) const PAGE_BITS: u64 = (PAGE_BLOCKS * BLOCK_BYTES * 8) as u64;

const _: () = assert!((PAGE_HEADER_BYTES + FRONT_BYTES).is_multiple_of(BLOCK_BYTES));
const _: () = assert!(FRONT_BYTES + PAGE_BLOCKS * BLOCK_BYTES == PAYLOAD_BYTES);

/// Odd multipliers without a pattern, one per word: the key's bit in the word is the product's top
/// bits. On disk: never change.
pub(super) const MULTIPLIERS: [u32; WORDS] = [
    0x9e37_79b1,
    0x85eb_ca77,
    0xc2b2_ae3d,
    0x27d4_eb2f,
    0x1656_67b1,
    0xd3a2_646d,
    0xfd70_46c5,
    0xb55a_4f09,
];

/// The part of a key's hash that a filter uses.
#[inline(always)]
pub(super) fn top(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The position of a key's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) page: u32,
    /// The block in the page, below [`PAGE_BLOCKS`].
    block: usize,
}

impl Place {
    /// The position in a filter of so many pages.
    #[inline(always)]
    pub(super) fn of(top: u32, pages: u32) -> Place {
        let place = u64::from(top) * u64::from(pages);
        let share = u64::from(place as u32);
        Place { page: (place >> 32) as u32, block: ((share * PAGE_BLOCKS as u64) >> 32) as usize }
    }

    /// The block's first byte in the payload.
    #[inline(always)]
    pub(super) fn offset(self) -> usize {
        FRONT_BYTES + self.block * BLOCK_BYTES
    }
}

/// The front of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageFront {
    /// The number of this page in the filter.
    pub(super) number: u32,
    /// The number of pages.
    pub(super) pages: u32,
    /// The number of keys in the whole filter.
    pub(super) keys: u64,
}

impl PageFront {
    /// Reads the front. Returns `None` if the payload has the wrong length.
    #[inline(always)]
    pub(super) fn decode(payload: &[u8]) -> Option<PageFront> {
        let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().ok()?;
        Some(PageFront {
            number: u32::from_le_bytes(*payload.first_chunk()?),
            pages: u32::from_le_bytes(*payload[4..].first_chunk()?),
            keys: u64::from_le_bytes(*payload[8..].first_chunk()?),
        })
    }

    /// Writes the front of an empty page.
    pub(super) fn encode(&self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&self.number.to_le_bytes());
        payload[4..8].copy_from_slice(&self.pages.to_le_bytes());
        payload[8..16].copy_from_slice(&self.keys.to_le_bytes());
    }
}

/// A key's bit in a word.
#[inline(always)]
fn bit(top: u32, multiplier: u32) -> u64 {
    1 << (top.wrapping_mul(multiplier) >> 26)
}

/// Sets a key's bits in a page.
#[inline]
pub(super) fn insert(payload: &mut [u8], top: u32, place: Place) {
    let block = &mut payload[place.offset()..][..BLOCK_BYTES];
    for (bytes, multiplier) in block.as_chunks_mut::<WORD_BYTES>().0.iter_mut().zip(MULTIPLIERS) {
        *bytes = (u64::from_le_bytes(*bytes) | bit(top, multiplier)).to_le_bytes();
    }
}

/// Returns true if all bits of a key are set in a page; `None` if the payload is truncated.
#[inline(always)]
pub(super) fn holds(payload: &[u8], top: u32, place: Place) -> Option<bool> {
    let block: &[u8; BLOCK_BYTES] = payload.get(place.offset()..)?.first_chunk()?;
    let words = block.as_chunks::<WORD_BYTES>().0.iter().zip(MULTIPLIERS);
    let missing = words.fold(0, |missing, (bytes, multiplier)| {
        missing | !u64::from_le_bytes(*bytes) & bit(top, multiplier)
    });
    Some(missing == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    #[test]
    fn places_cover_all_pages_and_blocks_evenly() {
        let mut random = SplitMix::new(21);
        for pages in [1, 2, 3, 7, 64] {
            let pages = if cfg!(miri) { pages.min(2) } else { pages };
            let mut counts = vec![0u32; pages as usize * PAGE_BLOCKS];
            let keys = if cfg!(miri) { 5 } else { 100 } * counts.len();
            for _ in 0..keys {
                let place = Place::of(top(random.next()), pages);
                counts[place.page as usize * PAGE_BLOCKS + place.block] += 1;
            }
            // Six standard deviations around one hundred.
            let even = if cfg!(miri) { 0..25 } else { 40..160 };
            assert!(counts.iter().all(|count| even.contains(count)), "{pages} pages: {counts:?}");
        }
        let last = Place::of(u32::MAX, u32::MAX);
        assert!(last.page < u32::MAX && last.block < PAGE_BLOCKS);
        assert_eq!(Place::of(u32::MAX, 1), Place { page: 0, block: PAGE_BLOCKS - 1 });
        assert_eq!(Place::of(0, 9), Place { page: 0, block: 0 });
    }

    #[test]
    fn payloads_of_any_length_are_judged_without_panic() {
        let place = Place::of(u32::MAX, 1);
        for len in [0, 1, 16, 39, 40, 4071, 4073, 9000] {
            let payload = vec![0xff; len];
            assert_eq!(PageFront::decode(&payload), None);
            assert_eq!(holds(&payload, u32::MAX, place), (len > 4072).then_some(true));
        }
        assert_eq!(holds(&[0; PAYLOAD_BYTES], u32::MAX, place), Some(false));
    }
}
