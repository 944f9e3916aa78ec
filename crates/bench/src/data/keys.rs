//! Benchmark keys: `user` and a zero-padded number, each derived from its index alone.
//!
//! Invariants:
//! 1. Different indexes give different keys, so a load writes each key once and an index past those
//!    written is a key that is not there.
//! 2. A key tells its number, so that a value can be checked knowing only its key.

use super::permutation::Permutation;
use super::random::mix;

/// The prefix of every key.
pub const PREFIX: &[u8] = b"user";
/// Digits of the largest 64-bit number.
const DIGITS_MAX: usize = 20;

/// Makes keys of one length.
#[derive(Debug, Clone)]
pub struct KeyMaker {
    key_bytes: usize,
    permutation: Permutation,
    /// How many indexes there are.
    capacity: u128,
    sequential_percent: u64,
    seed: u64,
}

impl KeyMaker {
    /// Keys of `key_bytes` bytes; `sequential_percent` of the indexes give ascending keys, the others
    /// keys in random order.
    pub fn new(key_bytes: usize, sequential_percent: u64, seed: u64) -> Result<KeyMaker, String> {
        let digits = key_bytes.saturating_sub(PREFIX.len()).min(DIGITS_MAX);
        if digits < 2 {
            return Err(format!("--key-bytes must be at least {}", PREFIX.len() + 2));
        }
        let numbers = if digits == DIGITS_MAX { 1 << 64 } else { 10_u128.pow(digits as u32) };
        // Even numbers are for ascending keys, odd ones for the others: the two never meet.
        let capacity = if sequential_percent > 0 { numbers / 2 } else { numbers };
        let permutation = Permutation::new(capacity, seed);
        Ok(KeyMaker { key_bytes, permutation, capacity, sequential_percent, seed })
    }

    /// How many indexes there are; half of them are never written, for reads of absent keys.
    pub fn records_max(&self) -> u64 {
        u64::try_from(self.capacity / 2).unwrap_or(u64::MAX / 2)
    }

    /// The index of an absent key.
    pub fn absent(&self, index: u64) -> u64 {
        (self.capacity - 1 - u128::from(index)) as u64
    }

    /// The number in the key of this index.
    #[inline]
    pub fn number(&self, index: u64) -> u64 {
        if self.sequential_percent == 0 {
            self.permutation.apply(index)
        } else if mix(index ^ self.seed) % 100 < self.sequential_percent {
            index * 2
        } else {
            self.permutation.apply(index) * 2 + 1
        }
    }

    /// Puts the key with this number into `out`.
    #[inline]
    pub fn key(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(PREFIX);
        out.resize(self.key_bytes, b'0');
        let mut rest = number;
        for digit in out[PREFIX.len()..].iter_mut().rev() {
            if rest == 0 {
                break;
            }
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
}

/// The number in a key, or `None` if it is none of ours.
pub fn number_of(key: &[u8]) -> Option<u64> {
    key.strip_prefix(PREFIX)?.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_distinct_have_their_length_and_tell_their_number() {
        for (key_bytes, sequential_percent) in [(8, 0), (8, 30), (24, 0), (24, 50), (40, 100)] {
            let keys = KeyMaker::new(key_bytes, sequential_percent, 7).unwrap();
            let (mut seen, mut key) = (BTreeSet::new(), Vec::new());
            for index in (0..2000).chain((0..2000).map(|index| keys.absent(index))) {
                let number = keys.number(index);
                keys.key(number, &mut key);
                assert_eq!(key.len(), key_bytes);
                assert_eq!(number_of(&key), Some(number));
                assert!(seen.insert(key.clone()), "{key_bytes} {sequential_percent} {index}");
            }
        }
        assert!(KeyMaker::new(5, 0, 1).is_err());
    }

    #[test]
    fn the_sequential_share_ascends() {
        let keys = KeyMaker::new(24, 30, 1).unwrap();
        let numbers: Vec<u64> = (0..10_000).map(|index| keys.number(index)).collect();
        let sequential: Vec<u64> = numbers.iter().copied().filter(|n| n % 2 == 0).collect();
        assert!((2_700..3_300).contains(&sequential.len()), "{}", sequential.len());
        assert!(sequential.is_sorted());
        let all = KeyMaker::new(24, 100, 1).unwrap();
        assert!((0..1000).map(|index| all.number(index)).is_sorted());
    }

    #[test]
    fn foreign_keys_have_no_number() {
        for key in [&b"user12x"[..], b"usr1", b"user99999999999999999999999"] {
            assert_eq!(number_of(key), None);
        }
    }
}
