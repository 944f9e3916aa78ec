//! Bit strings: reading and writing runs of bits at any position, and `select`. Bit `i` of a byte
//! string is bit `i % 8` of byte `i / 8`. A read outside the bytes returns `None`, so damaged data
//! cannot cause an index out of bounds.

const L: u64 = 0x0101_0101_0101_0101;
const H: u64 = 0x8080_8080_8080_8080;

/// The 64 bits from `position`. The 9 bytes that hold them must exist.
#[inline(always)]
pub(crate) fn window(bytes: &[u8], position: usize) -> Option<u64> {
    let byte = position >> 3;
    let shift = position & 7;
    let held = bytes.get(byte..byte + 9)?;
    let low = u64::from_le_bytes(*held.first_chunk()?);
    Some((low >> shift) | ((u64::from(held[8]) << 1) << (63 - shift)))
}

/// At least 57 bits from `position`, the rest zero. The 8 bytes that hold them must exist.
#[inline(always)]
pub(crate) fn window57(bytes: &[u8], position: usize) -> Option<u64> {
    let byte = position >> 3;
    let held = bytes.get(byte..byte + 8)?;
    Some(u64::from_le_bytes(*held.first_chunk()?) >> (position & 7))
}

/// For each byte of `word`, the number of one bits in it and the bytes below it.
#[inline(always)]
fn prefix_counts(word: u64) -> u64 {
    let pairs = word - ((word >> 1) & 0x5555_5555_5555_5555);
    let nibbles = (pairs & 0x3333_3333_3333_3333) + ((pairs >> 2) & 0x3333_3333_3333_3333);
    ((nibbles + (nibbles >> 4)) & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(L)
}

/// The position of the `k`-th (from 0) one bit of `word`, or else its number of one bits.
///
/// Pure arithmetic within one word: no table, no branch, and none of the instructions (`popcnt`,
/// `pdep`) that the baseline of x86-64 lacks.
#[inline(always)]
pub(crate) fn select(word: u64, k: u32) -> Result<u32, u32> {
    let counts = prefix_counts(word);
    let ones = (counts >> 56) as u32;
    if k >= ones {
        return Err(ones);
    }
    // Bytes with a prefix count <= k are entirely below the bit. The next byte holds it.
    let below = ((u64::from(k).wrapping_mul(L) | H) - counts) & H;
    let byte_shift = (below ^ H).trailing_zeros() & 56;
    let within = u64::from(k) - (((counts << 8) >> byte_shift) & 0xff);
    // The same again, with the bits of that byte spread to one per byte.
    let spread = ((word >> byte_shift) & 0xff).wrapping_mul(L) & 0x8040_2010_0804_0201;
    let ones_each = ((((spread | H) - L) | spread) & H) >> 7;
    let counts = ones_each.wrapping_mul(L);
    let below = ((within.wrapping_mul(L) | H) - counts) & H;
    Ok(byte_shift + ((below ^ H).trailing_zeros() >> 3))
}

/// Appends bits to a byte string from a given byte on, eight bytes at a time.
pub(crate) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    byte: usize,
    word: u64,
    used: u32,
}

impl<'a> BitWriter<'a> {
    /// Writes to `bytes` from byte `from` on.
    pub(crate) fn new(bytes: &'a mut [u8], from: usize) -> BitWriter<'a> {
        BitWriter { bytes, byte: from, word: 0, used: 0 }
    }

    /// Appends the low `count` bits of `bits`, whose other bits must be zero; `count` is 1 to 64.
    #[inline(always)]
    pub(crate) fn put(&mut self, bits: u64, count: u32) {
        self.word |= bits << self.used;
        self.used += count;
        if self.used >= 64 {
            self.store();
            self.used -= 64;
            self.word = if self.used == 0 { 0 } else { bits >> (count - self.used) };
        }
    }

    #[inline(always)]
    fn store(&mut self) {
        self.bytes[self.byte..self.byte + 8].copy_from_slice(&self.word.to_le_bytes());
        self.byte += 8;
    }

    /// Stores the last bits. Whole bytes after them become zero.
    pub(crate) fn finish(mut self) {
        if self.used > 0 {
            self.store();
        }
        self.bytes[self.byte..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    #[test]
    fn select_agrees_with_counting() {
        let mut random = SplitMix::new(1);
        let mut words = vec![0, 1, u64::MAX, 1 << 63, 0x8000_0000_0000_0001, 0xff00];
        for _ in 0..if cfg!(miri) { 10 } else { 300 } {
            words.push(random.next() & random.next());
            words.push(random.next() | random.next());
        }
        for word in words {
            let positions: Vec<u32> = (0..64).filter(|b| word >> b & 1 == 1).collect();
            for k in 0..70 {
                let expected = positions.get(k as usize).copied().ok_or(word.count_ones());
                assert_eq!(select(word, k), expected, "{word:#x} {k}");
            }
        }
    }

    #[test]
    fn bits_are_read_back_from_any_position() {
        let mut random = SplitMix::new(2);
        for round in 0..if cfg!(miri) { 9 } else { 50 } {
            let mut bytes = vec![0xaa; 2000];
            let from = round % 9;
            let mut written = Vec::new();
            let mut writer = BitWriter::new(&mut bytes, from);
            let mut position = from * 8;
            for _ in 0..if cfg!(miri) { 20 } else { 200 } {
                let count = 1 + (random.next() % 64) as u32;
                let bits = random.next() >> (64 - count);
                writer.put(bits, count);
                written.push((position, bits, count));
                position += count as usize;
            }
            writer.finish();
            for (position, bits, count) in written {
                let mask = u64::MAX >> (64 - count);
                assert_eq!(window(&bytes, position).map(|w| w & mask), Some(bits));
                if count <= 57 {
                    assert_eq!(window57(&bytes, position).map(|w| w & mask), Some(bits));
                }
            }
            assert!(bytes[position.div_ceil(8)..].iter().all(|&b| b == 0));
        }
        assert_eq!(window(&[0; 9], 8), None);
        assert_eq!(window57(&[0; 8], 8), None);
    }
}
