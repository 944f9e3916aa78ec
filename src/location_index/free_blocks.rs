//! [`FreeBlocks`]: the blocks of a region that nothing refers to.
//!
//! Which blocks are free is not persistent. Opening an index finds out which blocks it refers to; all others are free.
//! So a crash loses no block, and no block needs a flush to be taken or freed.

use super::node::BlockNumber;

/// The free blocks of a region, as a bitmap.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    /// One bit per block: 1 is free. Blocks behind these are free.
    bits: Vec<u64>,
    count: u32,
    free: u32,
    /// Words before this one have no free block.
    first_word: usize,
}

impl FreeBlocks {
    /// All blocks below `count` but block 0, which is the region's header.
    pub(super) fn all(count: BlockNumber) -> FreeBlocks {
        let mut blocks = FreeBlocks { bits: Vec::new(), count, free: count, first_word: 0 };
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

    /// How many there are.
    pub(super) fn left(&self) -> u32 {
        self.free
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
