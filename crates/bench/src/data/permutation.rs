//! A seeded bijection of `0..domain`: a Feistel network over the next power of four, walked until it
//! lands in the domain. It lets a load write every key exactly once, in random order, with no table.

use super::random::mix;

const ROUNDS: u64 = 4;

/// The bijection.
#[derive(Debug, Clone)]
pub struct Permutation {
    /// Numbers below this are permuted among themselves.
    domain: u128,
    half_bits: u32,
    round_keys: [u64; ROUNDS as usize],
}

impl Permutation {
    /// `domain` is at most 2^64.
    pub fn new(domain: u128, seed: u64) -> Permutation {
        let bits = 128 - domain.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let round_keys = std::array::from_fn(|round| mix(seed ^ mix(round as u64 + 1)));
        Permutation { domain, half_bits, round_keys }
    }

    /// The image of `index`, which is below the domain.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        let mut number = index;
        loop {
            number = self.walk(number);
            if u128::from(number) < self.domain {
                return number;
            }
        }
    }

    #[inline]
    fn walk(&self, number: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_domain_is_hit_exactly_once() {
        for domain in [1, 2, 3, 10, 255, 256, 257, 1000, 10_000, 65_537] {
            for seed in 0..3 {
                let permutation = Permutation::new(domain, seed);
                let mut seen = vec![false; domain as usize];
                for index in 0..domain as u64 {
                    let number = permutation.apply(index) as usize;
                    assert!(!std::mem::replace(&mut seen[number], true), "{domain} {seed} {index}");
                }
            }
        }
    }

    #[test]
    fn the_largest_domain_is_spread_evenly() {
        let permutation = Permutation::new(1 << 64, 1);
        let mut counts = [0_u32; 16];
        for index in 0..160_000_u64 {
            counts[(permutation.apply(index) >> 60) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn the_order_looks_random() {
        let permutation = Permutation::new(100_000, 9);
        let numbers: Vec<u64> = (0..100_000).map(|index| permutation.apply(index)).collect();
        let ascents = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((49_000..51_000).contains(&ascents), "{ascents}");
        assert_ne!(
            numbers,
            (0..100_000).map(|i| Permutation::new(100_000, 8).apply(i)).collect::<Vec<_>>()
        );
    }
}
