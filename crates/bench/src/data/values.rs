//! Benchmark values: made from the key's number and a nonce, and checkable with nothing but the key.
//!
//! Layout: nonce (8 bytes), check of number, nonce and length (8 bytes), filler. Values shorter than
//! 16 bytes hold the start of a check of the number alone.

use super::random::mix;

const HEAD_BYTES: usize = 16;

/// How much of each value read is checked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
pub enum Verify {
    /// Nothing
    None,
    /// The first sixteen bytes and the length
    Head,
    /// Every byte
    Full,
}

/// Makes and checks values of one length.
#[derive(Debug, Clone)]
pub struct ValueMaker {
    /// How long every value is.
    pub value_bytes: usize,
    /// The share of the filler that is random; the rest is zeros, which compress away.
    pub entropy_percent: usize,
}

impl ValueMaker {
    /// Puts a value for the key with this number into `out`.
    pub fn fill(&self, number: u64, nonce: u64, out: &mut Vec<u8>) {
        out.clear();
        if self.value_bytes < HEAD_BYTES {
            out.extend_from_slice(&short_check(number)[..self.value_bytes]);
            return;
        }
        out.extend_from_slice(&nonce.to_le_bytes());
        out.extend_from_slice(&check(number, nonce, self.value_bytes).to_le_bytes());
        let random_bytes = (self.value_bytes - HEAD_BYTES) * self.entropy_percent / 100;
        let mut state = number ^ mix(nonce);
        for _ in 0..random_bytes.div_ceil(8) {
            state = mix(state);
            out.extend_from_slice(&state.to_le_bytes());
        }
        out.truncate(HEAD_BYTES + random_bytes);
        out.resize(self.value_bytes, 0);
    }

    /// The nonce of a value that has room for one.
    pub fn nonce(&self, value: &[u8]) -> Option<u64> {
        let whole = self.value_bytes >= HEAD_BYTES;
        let (nonce, _) = value.split_first_chunk::<8>().filter(|_| whole)?;
        Some(u64::from_le_bytes(*nonce))
    }

    /// Whether this is a value that was written for the key with this number. `room` is reused.
    pub fn is_right(&self, number: u64, value: &[u8], verify: Verify, room: &mut Vec<u8>) -> bool {
        if verify == Verify::None {
            return true;
        }
        let Some((head, _)) = value.split_first_chunk::<HEAD_BYTES>() else {
            return value == &short_check(number)[..value.len()];
        };
        let (nonce, written) = head.split_at(8);
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        if word(written) != check(number, word(nonce), value.len()) {
            return false;
        }
        if verify == Verify::Head || value.len() != self.value_bytes {
            return true;
        }
        self.fill(number, word(nonce), room);
        room == value
    }
}

fn check(number: u64, nonce: u64, value_bytes: usize) -> u64 {
    mix(number ^ mix(nonce ^ mix(value_bytes as u64)))
}

fn short_check(number: u64) -> [u8; HEAD_BYTES] {
    (u128::from(mix(number)) << 64 | u128::from(mix(!number))).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(value_bytes: usize) -> ValueMaker {
        ValueMaker { value_bytes, entropy_percent: 60 }
    }

    #[test]
    fn values_pass_their_own_check_and_no_other_keys() {
        let (mut value, mut room) = (Vec::new(), Vec::new());
        for value_bytes in [0, 1, 15, 16, 17, 100, 1000] {
            let values = maker(value_bytes);
            values.fill(7, 99, &mut value);
            assert_eq!(value.len(), value_bytes);
            for verify in [Verify::Head, Verify::Full] {
                assert!(values.is_right(7, &value, verify, &mut room));
                assert!(value_bytes == 0 || !values.is_right(8, &value, verify, &mut room));
            }
        }
    }

    #[test]
    fn a_full_check_finds_any_changed_byte() {
        let (mut value, mut room) = (Vec::new(), Vec::new());
        let values = maker(100);
        values.fill(7, 99, &mut value);
        for position in 0..100 {
            value[position] ^= 1;
            assert!(!values.is_right(7, &value, Verify::Full, &mut room), "{position}");
            assert_eq!(values.is_right(7, &value, Verify::Head, &mut room), position >= 16);
            value[position] ^= 1;
        }
        assert!(
            !values.is_right(7, &value[..99], Verify::Head, &mut room),
            "the length is checked"
        );
    }
}
