//! [`FreeBlocks`]: the blocks of a region that nothing refers to.
//!
//! Which blocks are free is not persistent. Opening an index finds out which blocks it refers to; all others are free.
//! So a crash loses no block, and no block needs a flush to be taken or freed.
//!
//! If many are free, the region gives some of them back to the system ([`FreeBlocks::surplus`]). Those are *away*: they
//! have to be had again before they are used.

use std::collections::BTreeSet;
use std::ops::Range;

use super::node::BlockNumber;

/// So many free blocks always stay.
pub(super) const FREE_MIN: u32 = 4;
/// As many free blocks stay as this part of the used ones, once some are given back.
pub(super) const KEPT_PART: u32 = 8;
/// The most blocks that are had again at once.
const AGAIN_MAX: u32 = 64;

/// The free blocks of a region, as a bitmap.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    /// One bit per block: 1 is free. Blocks behind these are free.
    bits: Vec<u64>,
    count: u32,
    /// Without those that are away.
    free: u32,
    away: BTreeSet<BlockNumber>,
    /// Words before this one have no free block.
    first_word: usize,
}

impl FreeBlocks {
    /// All blocks below `count` but block 0, which is the region's header.
    pub(super) fn all(count: BlockNumber) -> FreeBlocks {
        let mut blocks = FreeBlocks {
            bits: Vec::new(),
            count,
            free: count,
            away: BTreeSet::new(),
            first_word: 0,
        };
        let header = blocks.take(0);
        assert!(header, "a region has a header");
        blocks
    }

    /// The region has `count` blocks from now on, no fewer than before.
    pub(super) fn grow(&mut self, count: BlockNumber) {
        assert!(count >= self.count, "{count} blocks of {}", self.count);
        // The last word may have bits of fewer than 64 blocks.
        if let Some(last) = self.bits.len().checked_sub(1) {
            let first = (last * 64) as BlockNumber;
            for block in self.count.max(first)..count.min(first + 64) {
                self.bits[last] |= 1 << (block - first);
            }
            self.first_word = self.first_word.min(last);
        }
        self.free += count - self.count;
        self.count = count;
    }

    /// How many there are, without those that are away.
    pub(super) fn left(&self) -> u32 {
        self.free
    }

    /// How many are away.
    pub(super) fn away(&self) -> u32 {
        self.away.len() as u32
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // An entry of a tree takes up to twice its own bytes.
        (size_of_val(self.bits.as_slice()) + self.away.len() * 2 * size_of::<BlockNumber>()) as u64
    }

    /// A range of free blocks to be given back to the system, if more than a quarter of the used blocks are free: from
    /// the end on, until as many are left as an eighth of those, and `needed`.
    pub(super) fn surplus(&self, needed: u32, is_begun: bool) -> Option<Range<BlockNumber>> {
        let used = self.count - self.free - self.away();
        let part = if is_begun { KEPT_PART } else { KEPT_PART / 2 };
        let surplus = self.free.checked_sub((used / part).max(needed))?;
        let is_free = |block: BlockNumber| {
            self.bits.get(block as usize / 64).is_none_or(|word| word >> (block % 64) & 1 != 0)
        };
        let mut last = self.count;
        // Behind a full word, nothing is free in it.
        while last > 0 && !is_free(last - 1) {
            let word = (last - 1) as usize / 64;
            let is_full =
                last.is_multiple_of(64) && self.bits.get(word).is_some_and(|word| *word == 0);
            last -= if is_full { 64 } else { 1 };
        }
        let least = last.saturating_sub(surplus);
        let mut first = last;
        while first > least && is_free(first - 1) {
            first -= 1;
        }
        (first < last).then_some(first..last)
    }

    /// Free blocks have been given back to the system.
    pub(super) fn send_away(&mut self, blocks: Range<BlockNumber>) {
        for block in blocks {
            let taken = self.take(block);
            assert!(taken && self.away.insert(block), "block {block} is not free");
        }
    }

    /// The blocks that are had again first.
    pub(super) fn first_away(&self) -> Option<Range<BlockNumber>> {
        let first = *self.away.first()?;
        let mut end = first + 1;
        while end - first < AGAIN_MAX && self.away.contains(&end) {
            end += 1;
        }
        Some(first..end)
    }

    /// Blocks that were away are free again.
    pub(super) fn have_again(&mut self, blocks: Range<BlockNumber>) {
        for block in blocks {
            if self.away.remove(&block) {
                self.give_back(block);
            }
        }
    }

    /// Takes `block`. Returns false if it is not free.
    pub(super) fn take(&mut self, block: BlockNumber) -> bool {
        if block >= self.count {
            return false;
        }
        let mask = 1 << (block % 64);
        let index = block as usize / 64;
        while self.bits.len() <= index {
            self.append_word();
        }
        let word = &mut self.bits[index];
        let was_free = *word & mask != 0;
        *word &= !mask;
        self.free -= u32::from(was_free);
        was_free
    }

    /// Takes any block.
    pub(super) fn take_any(&mut self) -> Option<BlockNumber> {
        let rest = &self.bits[self.first_word..];
        let Some(word) = rest.iter().position(|word| *word != 0) else {
            self.first_word = self.bits.len();
            let block = self.first_word as BlockNumber * 64;
            return self.take(block).then_some(block);
        };
        self.first_word += word;
        let bit = self.bits[self.first_word].trailing_zeros();
        let block = self.first_word as BlockNumber * 64 + bit;
        self.take(block).then_some(block)
    }

    /// Adds the bits of 64 blocks more, or of those that are left.
    fn append_word(&mut self) {
        let blocks = self.count as usize - self.bits.len() * 64;
        self.bits.push(if blocks < 64 { (1 << blocks) - 1 } else { u64::MAX });
    }

    /// Returns a block that was taken.
    pub(super) fn give_back(&mut self, block: BlockNumber) {
        let mask = 1 << (block % 64);
        let index = block as usize / 64;
        assert!(self.bits[index] & mask == 0, "block {block} is free already");
        self.bits[index] |= mask;
        self.free += 1;
        self.first_word = self.first_word.min(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_but_the_header_is_taken_once() {
        for count in [1, 2, 63, 64, 65, 130] {
            let mut blocks = FreeBlocks::all(count);
            assert_eq!(blocks.left(), count - 1);
            let taken: Vec<BlockNumber> = std::iter::from_fn(|| blocks.take_any()).collect();
            assert_eq!(taken, (1..count).collect::<Vec<_>>());
            assert_eq!(blocks.left(), 0);
            for &block in taken.iter().rev() {
                blocks.give_back(block);
            }
            assert!(!blocks.take(0) && !blocks.take(count));
            let again: Vec<BlockNumber> = std::iter::from_fn(|| blocks.take_any()).collect();
            assert_eq!(again, taken);
        }
    }

    /// Of what is free, some stays; what is away is no longer free until it is had again.
    #[test]
    fn a_surplus_goes_and_comes_again() {
        let mut blocks = FreeBlocks::all(1000);
        let taken: Vec<BlockNumber> = (0..999).filter_map(|_| blocks.take_any()).collect();
        assert_eq!((taken.len(), blocks.left(), blocks.surplus(FREE_MIN, false)), (999, 0, None));
        // Most of what was in use is free, with a block between.
        taken[100..]
            .iter()
            .filter(|block| **block != 500)
            .for_each(|block| blocks.give_back(*block));
        let mut gone = 0;
        while let Some(range) = blocks.surplus(FREE_MIN, gone > 0) {
            gone += range.len();
            blocks.send_away(range.clone());
            assert!(!range.contains(&500) && !blocks.take(range.start));
        }
        // An eighth of the header, the first hundred and the one between.
        assert_eq!((blocks.left(), blocks.away() as usize), (102 / 8, gone));
        assert_eq!(gone, 899 - 1 - 102 / 8);
        while let Some(range) = blocks.first_away() {
            assert!(range.len() <= AGAIN_MAX as usize);
            blocks.have_again(range);
        }
        let all: Vec<BlockNumber> = std::iter::from_fn(|| blocks.take_any()).collect();
        assert_eq!(all, (101..1000).filter(|block| *block != 500).collect::<Vec<_>>());
    }

    #[test]
    fn a_grown_region_has_more_blocks() {
        for count in [1, 2, 63, 64, 65, 130] {
            for more in [0, 1, 62, 63, 64, 65, 200] {
                for taken_before in [0, 1, 60, 200] {
                    let mut blocks = FreeBlocks::all(count);
                    let mut taken: Vec<BlockNumber> =
                        std::iter::from_fn(|| blocks.take_any()).take(taken_before).collect();
                    blocks.grow(count + more);
                    assert_eq!(blocks.left() as usize, (count + more) as usize - 1 - taken.len());
                    taken.extend(std::iter::from_fn(|| blocks.take_any()));
                    taken.sort_unstable();
                    assert_eq!(taken, (1..count + more).collect::<Vec<_>>());
                    assert_eq!(blocks.left(), 0);
                }
            }
        }
    }
}
