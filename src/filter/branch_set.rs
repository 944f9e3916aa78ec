//! `BranchSet`: the result of a maplet probe.

use crate::base::planted::{Bug, planted};
use std::fmt;

/// A set of branch ordinals (0 is the oldest branch).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BranchSet([u64; 4]);

impl BranchSet {
    /// No branch.
    pub(crate) const EMPTY: BranchSet = BranchSet([0; 4]);

    /// A branch, and all that are older if `with_older`.
    #[inline]
    pub(crate) fn of_newest(ordinal: u8, with_older: bool) -> BranchSet {
        let mut set = BranchSet::EMPTY;
        let (at, bit) = (usize::from(ordinal >> 6), 1 << (ordinal & 63));
        set.0[at] = bit;
        if with_older {
            set.0[at] |= bit - 1;
            set.0[..at].fill(u64::MAX);
        }
        set
    }

    /// Adds a branch if `condition` holds. Compiles to code without jumps.
    #[inline(always)]
    pub(super) fn insert_if(&mut self, ordinal: u8, condition: bool) {
        let ordinal = if planted(Bug::MapletMaskShort) { ordinal & 3 } else { ordinal };
        let bit = u64::from(condition) << (ordinal & 63);
        for (i, word) in self.0.iter_mut().enumerate() {
            *word |= if usize::from(ordinal >> 6) == i { bit } else { 0 };
        }
    }

    /// Returns true if the branch is in the set.
    #[inline]
    pub(crate) fn contains(&self, ordinal: u8) -> bool {
        self.0[usize::from(ordinal >> 6)] >> (ordinal & 63) & 1 == 1
    }

    /// Removes and returns the newest branch (the highest ordinal). Reads visit branches in this
    /// order.
    #[inline]
    pub(crate) fn pop_newest(&mut self) -> Option<u8> {
        for (i, word) in self.0.iter_mut().enumerate().rev() {
            if *word != 0 {
                let bit = 63 - word.leading_zeros();
                let bit = if planted(Bug::MapletOldestFirst) { word.trailing_zeros() } else { bit };
                *word ^= 1 << bit;
                return Some((i as u32 * 64 + bit) as u8);
            }
        }
        None
    }
}

impl Iterator for BranchSet {
    type Item = u8;

    /// The branches, newest first.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        self.pop_newest()
    }
}

impl fmt::Debug for BranchSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(*self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    impl BranchSet {
        /// The branches `0..branches`: the answer where there is no filter.
        pub(crate) fn all(branches: usize) -> BranchSet {
            let mut set = BranchSet::EMPTY;
            for ordinal in 0..branches.min(256) {
                set.insert(ordinal as u8);
            }
            set
        }

        /// Adds a branch.
        pub(crate) fn insert(&mut self, ordinal: u8) {
            self.0[usize::from(ordinal >> 6)] |= 1 << (ordinal & 63);
        }

        /// Whether no branch is.
        pub(crate) fn is_empty(&self) -> bool {
            self.0 == [0; 4]
        }

        /// How many branches are.
        pub(crate) fn len(&self) -> usize {
            self.0.iter().map(|word| word.count_ones() as usize).sum()
        }
    }

    #[test]
    fn a_branch_set_is_a_set_that_yields_the_newest_first() {
        let mut random = crate::base::random::SplitMix::new(3);
        for size in [0, 1, 2, 10, 256] {
            let mut set = BranchSet::EMPTY;
            let mut model = BTreeSet::new();
            for _ in 0..size {
                let ordinal = random.next() as u8;
                set.insert(ordinal);
                model.insert(ordinal);
            }
            assert_eq!(set.len(), model.len());
            assert_eq!(set.is_empty(), model.is_empty());
            assert!((0..=255).all(|o| set.contains(o) == model.contains(&o)));
            assert!(set.eq(model.into_iter().rev()));
        }
        assert_eq!(BranchSet::all(3).collect::<Vec<u8>>(), [2, 1, 0]);
        assert_eq!(BranchSet::all(256).len(), 256);
    }
}
