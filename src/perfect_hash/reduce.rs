//! Arithmetic on hashes: mixing with a seed, and reducing to a range without a division.

/// An odd multiplier without a pattern. On disk: never change.
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
/// As [`MULTIPLIER`], for the second product.
pub(super) const SLOT_MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// A hash as a function with this seed uses it. A bijection, so distinct hashes stay distinct.
#[inline(always)]
pub(super) fn mixed(hash: u64, seed: u64) -> u64 {
    let product = (hash ^ seed).wrapping_mul(MULTIPLIER);
    (product ^ product >> 32).wrapping_mul(SLOT_MULTIPLIER)
}

/// `number`, uniform over 64 bits, reduced to `0..range`.
#[inline(always)]
pub(super) fn reduced(number: u64, range: u64) -> u64 {
    ((u128::from(number) * u128::from(range)) >> 64) as u64
}

/// As [`reduced`]; also what is left of the number, again uniform over 64 bits.
#[cfg(any(test, feature = "hashes"))]
#[inline(always)]
pub(super) fn divided(number: u64, range: u64) -> (u64, u64) {
    let product = u128::from(number) * u128::from(range);
    ((product >> 64) as u64, product as u64)
}

/// The remainder by a fixed divisor of 32 bits, by two multiplications (Lemire, Kaser, Kurz: "Faster remainder
/// by direct computation", 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FastMod {
    divisor: u32,
    inverse: u64,
}

impl FastMod {
    /// For a divisor of at least one.
    #[inline(always)]
    pub(super) fn new(divisor: u32) -> FastMod {
        // For one, the inverse would be 2^64; 0 gives the remainder 0, which is right.
        FastMod { divisor, inverse: (u64::MAX / u64::from(divisor.max(1))).wrapping_add(1) }
    }

    /// `number` modulo the divisor.
    #[inline(always)]
    pub(super) fn of(self, number: u32) -> u32 {
        let low = self.inverse.wrapping_mul(u64::from(number));
        reduced(low, u64::from(self.divisor)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    #[test]
    fn remainders_are_right() {
        let mut random = SplitMix::new(4);
        for divisor in [1, 2, 3, 5, 1000, 65_535, 65_536, u32::MAX - 1, u32::MAX] {
            let by = FastMod::new(divisor);
            for number in [0, 1, divisor - 1, divisor, divisor.wrapping_add(1), u32::MAX] {
                assert_eq!(by.of(number), number % divisor, "{number} % {divisor}");
            }
            for _ in 0..if cfg!(miri) { 10 } else { 1000 } {
                let number = random.next() as u32;
                assert_eq!(by.of(number), number % divisor, "{number} % {divisor}");
            }
        }
    }

    #[test]
    fn a_division_covers_its_range_evenly() {
        assert_eq!(divided(0, 7), (0, 0));
        assert_eq!(divided(u64::MAX, 7), (6, u64::MAX - 6));
        let mut counts = [0u32; 7];
        for i in 0..700u64 {
            counts[reduced(i.wrapping_mul(u64::MAX / 700), 7) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (99..=101).contains(count)), "{counts:?}");
    }

    #[test]
    fn mixing_keeps_hashes_apart() {
        let mut seen = std::collections::BTreeSet::new();
        for hash in (0..64).map(|bit| 1u64 << bit).chain(0..200) {
            seen.insert((mixed(hash, 0), hash));
            seen.insert((mixed(hash, 1 << 40), hash ^ 1 << 40));
        }
        let distinct: std::collections::BTreeSet<u64> = seen.iter().map(|(m, _)| *m).collect();
        let hashes: std::collections::BTreeSet<u64> = seen.iter().map(|(_, h)| *h).collect();
        assert_eq!(distinct.len(), hashes.len());
    }
}
