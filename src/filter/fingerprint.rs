//! `Fingerprint`, the high bits of a key's hash, and the sorting of a branch's fingerprints.

use super::geometry::{FINGERPRINT_BITS_MAX, FINGERPRINT_BITS_MIN};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};

/// The high bits of a key's hash (`base::key_hash`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fingerprint(pub(crate) u64);

impl Fingerprint {
    /// The top `bits` bits of `hash`.
    #[inline(always)]
    pub(crate) fn of_hash(hash: u64, bits: u32) -> Fingerprint {
        Fingerprint(hash >> (64 - bits))
    }
}

/// The fingerprints of one new branch, sorted.
pub(crate) struct SortedFingerprints {
    pub(super) sorted: PageVec<u64>,
    pub(super) bits: u32,
}

const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;
/// For fewer hashes, a comparison sort is as fast and needs no tables.
const RADIX_SORT_LEN_MIN: usize = 1024;

impl SortedFingerprints {
    /// The memory used.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.sorted.capacity() * size_of::<u64>()
    }

    /// Sorts the fingerprints of a branch's keys, given their hashes in any order. A hash given
    /// twice counts once. Reuses the list's memory, and temporarily allocates the same amount.
    pub(crate) fn of_hashes(hashes: PageVec<u64>, bits: u32) -> SortedFingerprints {
        assert!((FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX).contains(&bits));
        let mut sorted = sort_high_bits(hashes, bits);
        sorted.dedup();
        if planted(Bug::MapletDropsKey) && sorted.len() > 1 {
            sorted.truncate(sorted.len() - 1);
        }
        SortedFingerprints { sorted, bits }
    }

    /// The number of distinct fingerprints.
    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }
}

/// The top `bits` bits of each hash, sorted by a radix sort from the lowest digit.
fn sort_high_bits(mut hashes: PageVec<u64>, bits: u32) -> PageVec<u64> {
    let shift = 64 - bits;
    if hashes.len() < RADIX_SORT_LEN_MIN {
        hashes.iter_mut().for_each(|hash| *hash >>= shift);
        hashes.sort_unstable();
        return hashes;
    }
    // One pass counts all digits. Digits have nearly equal width: 11, 11 and 10 bits of 32.
    let passes = bits.div_ceil(DIGIT_BITS);
    let mut counts = vec![[0u32; DIGITS]; passes as usize];
    for hash in hashes.iter_mut() {
        *hash >>= shift;
        let mut rest = *hash;
        for counts in &mut counts {
            counts[rest as usize % DIGITS] += 1;
            rest >>= DIGIT_BITS;
        }
    }
    let mut other = PageVec::unzeroed(hashes.len());
    for (pass, counts) in counts.iter_mut().enumerate() {
        let shift = pass as u32 * DIGIT_BITS;
        let mut place = 0;
        for count in counts.iter_mut() {
            place += std::mem::replace(count, place);
        }
        for &fingerprint in hashes.iter() {
            let place = &mut counts[(fingerprint >> shift) as usize % DIGITS];
            other[*place as usize] = fingerprint;
            *place += 1;
        }
        std::mem::swap(&mut hashes, &mut other);
    }
    hashes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    #[test]
    fn fingerprints_come_out_sorted_and_distinct() {
        let mut random = SplitMix::new(6);
        for len in [0, 1, 2, 1000, 1024, 5000] {
            for bits in [32, 33, 40, 48] {
                for skew in [0, 20, 40] {
                    let hashes: Vec<u64> = (0..len).map(|_| random.next() >> skew << 8).collect();
                    let mut expected: Vec<u64> =
                        hashes.iter().map(|&h| Fingerprint::of_hash(h, bits).0).collect();
                    expected.sort_unstable();
                    expected.dedup();
                    let sorted = SortedFingerprints::of_hashes(hashes.into_iter().collect(), bits);
                    assert_eq!(sorted.len(), expected.len());
                    assert_eq!(*sorted.sorted, *expected);
                }
            }
        }
    }
}
