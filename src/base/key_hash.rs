//! The keyed hash of keys, used by filters, caches and guards.
//!
//! With a public hash, anyone can choose keys that collide. Filters would then pass every key, and
//! a set of fingerprints would contain only one. So each store has a secret, which is drawn when
//! the store is created and kept in its superblock. [`KeyHasher`] is composed of two universal
//! families, NH (Black et al., UMAC, 1999) and multiply-shift (Dietzfelbinger, 1996), and
//! SipHash-1-3. `docs/decisions/0012-key-hash.md` has the alternatives and their costs.
//!
//! Invariants:
//! 1. For any two keys of up to [`NH_BYTES_MAX`] bytes that were chosen without knowledge of the
//!    secret, the upper `b` bits of their hashes are equal with a probability of at most 2^-b +
//!    2^-63. Longer keys use SipHash-1-3, for which no attack better than chance is known.
//! 2. The hash depends only on the secret and the key. It is persisted (as fingerprints): never
//!    change it.

use std::fmt;

/// The secret of a store.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HashSecret(pub(crate) [u8; 16]);

impl HashSecret {
    /// Creates the secret from two numbers.
    pub(crate) fn of_words(words: [u64; 2]) -> HashSecret {
        let [low, high] = words.map(u128::from);
        HashSecret((low | high << 64).to_le_bytes())
    }
}

/// A secret is never printed.
impl fmt::Debug for HashSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashSecret(…)")
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHasher({:#010x})", self.id)
    }
}

/// Words that are multiplied with each other: 16 bytes of a key.
const PAIR_BYTES: usize = 16;
const PAIRS: usize = 8;
/// Keys up to this length are hashed by NH.
pub(crate) const NH_BYTES_MAX: usize = PAIR_BYTES * PAIRS;

/// Hashes keys with a store's secret.
pub(crate) struct KeyHasher {
    /// The numbers added to the words of a key.
    addends: [[u64; 2]; PAIRS],
    /// The factors that reduce the sum of the products.
    factors: [u128; 2],
    offset: u128,
    sip: SipHash,
    id: u32,
    /// The bits that hashes have: with fewer, many keys share one.
    #[cfg(test)]
    pub(crate) mask: u64,
}

impl KeyHasher {
    /// Creates the hasher of a store with this secret.
    pub(crate) fn new(secret: HashSecret) -> KeyHasher {
        let secret = u128::from_le_bytes(secret.0);
        let sip = SipHash { keys: [secret as u64, (secret >> 64) as u64] };
        let mut counter = 0u64;
        let mut next = || {
            counter += 1;
            sip.hash(&counter.to_le_bytes())
        };
        let addends = std::array::from_fn(|_| [next(), next()]);
        let mut wide = || u128::from(next()) | u128::from(next()) << 64;
        let (factors, offset) = ([wide(), wide()], wide());
        let id = next() as u32;
        KeyHasher {
            addends,
            factors,
            offset,
            sip,
            id,
            #[cfg(test)]
            mask: u64::MAX,
        }
    }

    /// The secret.
    pub(crate) fn secret(&self) -> HashSecret {
        HashSecret::of_words(self.sip.keys)
    }

    /// Distinguishes hashers with different secrets. It is public: files with hashes have it, so
    /// that no file is read with another secret.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The hash of `key`.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let hash = self.whole_hash(key);
        #[cfg(test)]
        let hash = hash & self.mask;
        hash
    }

    #[inline]
    fn whole_hash(&self, key: &[u8]) -> u64 {
        match (key.first_chunk::<8>(), key.last_chunk::<8>()) {
            (Some(first), Some(last)) if key.len() <= PAIR_BYTES => {
                let words = [u64::from_le_bytes(*first), u64::from_le_bytes(*last)];
                self.reduce((key.len() as u128).wrapping_add(product(words, &self.addends[0])))
            }
            (Some(_), Some(_)) if key.len() <= NH_BYTES_MAX => self.hash_pairs(key),
            (Some(_), Some(_)) => self.sip.hash(key),
            _ => {
                let words = words_of_short(key);
                self.reduce((key.len() as u128).wrapping_add(product(words, &self.addends[0])))
            }
        }
    }

    /// The hash of a key of more than one pair. The last pair of words is the key's last 16 bytes,
    /// which may overlap the pair before.
    #[inline]
    fn hash_pairs(&self, key: &[u8]) -> u64 {
        let mut sum = key.len() as u128;
        let (pairs, _) = key[..(key.len() - 1) / PAIR_BYTES * PAIR_BYTES].as_chunks::<PAIR_BYTES>();
        let last = key.last_chunk::<PAIR_BYTES>();
        for (pair, addends) in pairs.iter().chain(last).zip(&self.addends) {
            let words = u128::from_le_bytes(*pair);
            sum = sum.wrapping_add(product([words as u64, (words >> 64) as u64], addends));
        }
        self.reduce(sum)
    }

    /// Reduces 128 bits to 64 by multiply-shift. Each half is mixed first by a bijection that is
    /// not linear like the sum, so that keys in an arithmetic sequence do not get hashes in one.
    #[inline(always)]
    fn reduce(&self, sum: u128) -> u64 {
        let [low, high] = [sum as u64, (sum >> 64) as u64].map(|half| half ^ half >> 32);
        let low = self.factors[0].wrapping_mul(u128::from(low));
        let high = self.factors[1].wrapping_mul(u128::from(high));
        (low.wrapping_add(high).wrapping_add(self.offset) >> 64) as u64
    }
}

#[inline(always)]
fn product(words: [u64; 2], addends: &[u64; 2]) -> u128 {
    let [a, b] = [words[0].wrapping_add(addends[0]), words[1].wrapping_add(addends[1])];
    u128::from(a) * u128::from(b)
}

/// Two words that distinguish all keys of the same length below eight bytes.
#[inline]
fn words_of_short(key: &[u8]) -> [u64; 2] {
    if let (Some(first), Some(last)) = (key.first_chunk::<4>(), key.last_chunk::<4>()) {
        return [first, last].map(|half| u64::from(u32::from_le_bytes(*half)));
    }
    [key.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0]
}

/// SipHash-1-3 (Aumasson and Bernstein).
struct SipHash {
    keys: [u64; 2],
}

impl SipHash {
    fn hash(&self, bytes: &[u8]) -> u64 {
        let [k0, k1] = self.keys;
        let mut state = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        let mut take = |word: u64| {
            state[3] ^= word;
            sip_round(&mut state);
            state[0] ^= word;
        };
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| take(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        take(u64::from_le_bytes(last) | (bytes.len() as u64) << 56);
        state[2] ^= 0xff;
        (0..3).for_each(|_| sip_round(&mut state));
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

#[inline(always)]
fn sip_round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

/// The hasher of tests and fuzz targets without a store.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn test_hasher() -> std::sync::Arc<KeyHasher> {
    use std::sync::{Arc, LazyLock};
    static HASHER: LazyLock<Arc<KeyHasher>> =
        LazyLock::new(|| Arc::new(KeyHasher::new(HashSecret::default())));
    Arc::clone(&HASHER)
}

/// [`KeyHasher::hash`] of [`test_hasher`].
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn hash_key(key: &[u8]) -> u64 {
    test_hasher().hash(key)
}

#[cfg(test)]
#[path = "key_hash_tests.rs"]
mod tests;
