//! Words with a check: 48 bits of content and 16 bits of checksum, written by one atomic store.
//!
//! Invariants:
//! 1. A word with one to three flipped bits is never taken for another word (CRC-16).
//! 2. Zero is no checked word, so memory that was never written is not taken for one.

/// The bits of a word's content.
pub(super) const CONTENT_BITS: u32 = 48;
const CONTENT_MASK: u64 = (1 << CONTENT_BITS) - 1;

/// The CRC of each byte (CRC-16/CCITT, polynomial 0x1021).
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[inline]
fn crc(content: u64) -> u16 {
    let bytes = content.to_le_bytes();
    bytes[..6]
        .iter()
        .fold(0xffff, |crc: u16, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// A word with `content`, which has at most 48 bits.
#[inline]
pub(super) fn seal(content: u64) -> u64 {
    assert!(content <= CONTENT_MASK, "{content:#x} has more than 48 bits");
    content | (u64::from(crc(content)) << CONTENT_BITS)
}

/// The content of a word, or `None` if its check does not match.
#[inline]
pub(super) fn unseal(word: u64) -> Option<u64> {
    let content = word & CONTENT_MASK;
    (seal(content) == word).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_three_flipped_bits_are_noticed() {
        for content in [0, 1, 0x1234_5678_9abc, CONTENT_MASK] {
            let word = seal(content);
            assert_eq!(unseal(word), Some(content));
            for a in 0..64 {
                for b in a..64 {
                    for c in b..64 {
                        // Equal bits flip back: one or two bits differ then.
                        let flipped = word ^ (1 << a) ^ (1 << b) ^ (1 << c);
                        assert!(flipped == word || unseal(flipped).is_none(), "{a} {b} {c}");
                    }
                }
            }
        }
    }

    #[test]
    fn zero_is_no_word() {
        assert_eq!(unseal(0), None);
        assert_eq!(unseal(u64::MAX), None);
    }
}
