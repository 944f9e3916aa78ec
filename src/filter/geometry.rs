//! The division of a maplet's fingerprints into quotient and remainder, and into pages.
//!
//! Invariants:
//! 1. `nominal_page` is monotonic in the fingerprint. `nominal_end(i)` is the smallest fingerprint
//!    whose nominal page is above `i`.
//! 2. A slot has 1 to 56 bits, so that one unaligned 64-bit load covers it.

use super::page::{GROUP_BITS, PAGE_BITS};

/// The fewest bits of a fingerprint: pages are found by the top 32 bits of the hash.
pub(crate) const FINGERPRINT_BITS_MIN: u32 = 32;
/// The most bits of a fingerprint: with 8 value bits, a slot still fits one load.
pub(crate) const FINGERPRINT_BITS_MAX: u32 = 48;
/// Enough for 2^24 keys per maplet at a false-positive rate of 1/256.
pub(crate) const FINGERPRINT_BITS_DEFAULT: u32 = 32;
/// The largest number of branches of a maplet.
pub(crate) const BRANCHES_MAX: usize = 256;

/// The number of buckets (quotients) per group. A group has one directory entry.
pub(crate) const GROUP_BUCKETS: u64 = 32;

/// The parameters that determine the position of a fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The number of bits of a fingerprint.
    pub(crate) fingerprint_bits: u32,
    /// The number of its high bits that are implied by the position.
    pub(crate) quotient_bits: u32,
    /// The number of bits of a branch ordinal.
    pub(crate) value_bits: u32,
    /// The number of equal parts of the fingerprint space, with one page each. More pages follow if
    /// the last ones overflow.
    pub(crate) nominal_pages: u32,
}

impl Geometry {
    /// The geometry for up to `entries_max` pairs of `branches` branches. Returns `None` if there
    /// would be too many pages. The arguments are within their limits.
    pub(crate) fn new(
        fingerprint_bits: u32,
        branches: usize,
        entries_max: u64,
    ) -> Option<Geometry> {
        // The power of two nearest to the number of entries. With one bucket per entry, the bits
        // that a bucket costs balance the bit that halving the remainder's range saves.
        let entries = u128::from(entries_max.max(1));
        let quotient_bits = ((2 * entries * entries).ilog2() / 2).min(fingerprint_bits - 1);
        let value_bits = branches.max(1).next_power_of_two().ilog2();
        let mut geometry =
            Geometry { fingerprint_bits, quotient_bits, value_bits, nominal_pages: 0 };
        if entries_max == 0 {
            return Some(geometry);
        }
        let groups = (1u128 << quotient_bits).div_ceil(u128::from(GROUP_BUCKETS)) + 1;
        let bits = entries * (geometry.slot_bits() as u128 + 1) + groups * GROUP_BITS as u128;
        geometry.nominal_pages = if bits <= PAGE_BITS as u128 {
            1
        } else {
            // 1/32 of each page stays free, and half a group is lost at its edges. Entries that do
            // not fit spill to the next page; with this slack that affects about one probe in a
            // thousand.
            u32::try_from(bits.div_ceil((PAGE_BITS * 31 / 32 - GROUP_BITS / 2) as u128)).ok()?
        };
        Some(geometry)
    }

    /// The number of stored bits of a fingerprint.
    #[inline]
    pub(crate) fn remainder_bits(&self) -> u32 {
        self.fingerprint_bits - self.quotient_bits
    }

    /// The number of bits of a stored remainder and its value.
    #[inline]
    pub(crate) fn slot_bits(&self) -> usize {
        (self.remainder_bits() + self.value_bits) as usize
    }

    /// The greatest fingerprint plus one.
    pub(crate) fn fingerprint_end(&self) -> u64 {
        1 << self.fingerprint_bits
    }

    /// The page of a fingerprint, and its relative position in the page, in units of 2^-16.
    #[inline]
    pub(crate) fn nominal_place(&self, fingerprint: u64) -> (u32, u32) {
        let top = fingerprint >> (self.fingerprint_bits - 32);
        let place = top * u64::from(self.nominal_pages);
        ((place >> 32) as u32, (place as u32) >> 16)
    }

    /// The nominal page of a fingerprint. The fingerprint is there unless it spilled to a later
    /// page.
    #[inline]
    pub(crate) fn nominal_page(&self, fingerprint: u64) -> u32 {
        let top = fingerprint >> (self.fingerprint_bits - 32);
        ((top * u64::from(self.nominal_pages)) >> 32) as u32
    }

    /// The nominal end of page `page`; the end of the space for the last page and any page after
    /// it.
    pub(crate) fn nominal_end(&self, page: u32) -> u64 {
        if page >= self.nominal_pages.saturating_sub(1) {
            return self.fingerprint_end();
        }
        let top = ((u64::from(page) + 1) << 32).div_ceil(u64::from(self.nominal_pages));
        top << (self.fingerprint_bits - 32)
    }

    /// The number of groups of a page for the fingerprints `start..end` (not empty).
    #[inline]
    pub(crate) fn groups(&self, start: u64, end: u64) -> u64 {
        let bits = self.remainder_bits();
        (((end - 1) >> bits) - (start >> bits)) / GROUP_BUCKETS + 1
    }

    /// The number of bits that entries and groups use in a page.
    #[inline]
    pub(crate) fn cost(&self, entries: usize, groups: u64) -> u64 {
        entries as u64 * (self.slot_bits() as u64 + 1) + groups * GROUP_BITS as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fingerprint_has_one_nominal_page() {
        for bits in [32, 33, 40, 48] {
            for entries in [1, 1500, 5000, 500_000, 8_000_000, 1 << 31] {
                for branches in [1, 2, 16, 17, 255, 256] {
                    let g = Geometry::new(bits, branches, entries).unwrap();
                    assert!((1..=56).contains(&g.slot_bits()));
                    assert!(branches <= 1 << g.value_bits);
                    let pages = g.nominal_pages;
                    let ends = if cfg!(miri) { 2 } else { 50 };
                    for page in (0..pages.min(ends)).chain(pages.saturating_sub(ends)..pages) {
                        let end = g.nominal_end(page);
                        assert_eq!(g.nominal_page(end - 1), page);
                        if page + 1 < pages {
                            assert_eq!(g.nominal_page(end), page + 1);
                        } else {
                            assert_eq!(end, g.fingerprint_end());
                        }
                    }
                }
            }
        }
    }
}
