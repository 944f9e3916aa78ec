//! CPHash, the construction of section 3.1 of the CompassDB paper.
//!
//! Of the hashes, 60% go to the dense buckets, which are 30% of all; the others to the sparse ones. A bucket has
//! a pair of parameters, α and β, and a hash, as two halves h0 and h1, the slot (h0 + h1 × α + β) mod slots.
//! Buckets are placed by decreasing size. For each bucket, first the pairs of the dictionary are tried, in their
//! order, then new ones, which are appended to it. A bucket stores the number of its pair.
//!
//! Invariants:
//! 1. The parameters found depend on the set of hashes of each bucket, not on the order within it, and not on
//!    the processor: the vector code is the portable code, compiled for wider registers.
//! 2. The number of pairs tried for a bucket is bounded.

use super::buckets::{Buckets, Built, Sizes};
use super::reduce::{FastMod, mixed};

/// Hashes per bucket: the paper's default.
const BUCKET_HASHES: usize = 5;
/// The share of the hashes that go to dense buckets, of 2^32.
const DENSE_HASHES: u64 = (1 << 32) / 10 * 6;
/// A bucket's number of its pair has at most 16 bits.
pub(super) const DICTIONARY_LEN_MAX: usize = 1 << 16;
/// The size of a pair.
const PAIR_BYTES: usize = 8;
/// Larger buckets are not placed: no pair would be found. (With distinct hashes there are none.)
const BUCKET_HASHES_MAX: usize = 256;
/// New pairs tried for a bucket.
const NEW_PAIRS_MAX: usize = 1 << 14;
/// Pairs tried at once.
const LANES: usize = 8;
/// Separates the halves from the hash that selects the bucket. On disk: never change.
const HALVES_SEED: u64 = 0x8f58_1a2c_93d7_e64b;
/// The sequence from which pairs are drawn. On disk: no matter, since the pairs are stored.
const PAIRS_SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// Two parameters, α and β.
type Pair = [u32; 2];

/// The number of dense buckets.
#[inline(always)]
fn dense(buckets: u32) -> u32 {
    (u64::from(buckets) * 3 / 10) as u32
}

/// The bucket of a hash. Of its lower half the upper bits count: with an even number of segments, the lowest bits of
/// all spread hashes are zero.
#[inline(always)]
fn bucket(hash: u64, buckets: u32) -> u32 {
    let dense = dense(buckets);
    let (chosen, within) = (hash >> 32, u64::from(hash as u32));
    let part = |range: u32| ((within * u64::from(range)) >> 32) as u32;
    match chosen < DENSE_HASHES && dense > 0 {
        true => part(dense),
        false => dense + part(buckets - dense),
    }
}

/// The two halves of a hash.
#[inline(always)]
fn halves(hash: u64) -> [u32; 2] {
    let halves = mixed(hash, HALVES_SEED);
    [halves as u32, (halves >> 32) as u32]
}

/// What the slot is the remainder of.
#[inline(always)]
fn displaced([h0, h1]: [u32; 2], [alpha, beta]: Pair) -> u32 {
    h0.wrapping_add(h1.wrapping_mul(alpha)).wrapping_add(beta)
}

#[inline(always)]
fn slot_with(halves: [u32; 2], pair: Pair, slots: FastMod) -> u32 {
    slots.of(displaced(halves, pair))
}

/// The bytes of a bucket's number of its pair.
#[inline(always)]
fn number_bytes(dictionary: u32) -> usize {
    if dictionary <= 256 { 1 } else { 2 }
}

/// The size of the body: the numbers of the buckets, then the dictionary.
pub(super) fn body_bytes(sizes: &Sizes) -> usize {
    sizes.buckets as usize * number_bytes(sizes.dictionary) + sizes.dictionary as usize * PAIR_BYTES
}

/// The slot of a hash.
#[inline(always)]
pub(super) fn slot(sizes: &Sizes, body: &[u8], hash: u64) -> Option<u32> {
    if sizes.buckets == 0 {
        return None;
    }
    let bucket = bucket(hash, sizes.buckets) as usize;
    let bytes = number_bytes(sizes.dictionary);
    let number = match bytes {
        1 => usize::from(*body.get(bucket)?),
        _ => usize::from(u16::from_le_bytes(*body.get(bucket * 2..)?.first_chunk()?)),
    };
    let pair = body.get(sizes.buckets as usize * bytes + number * PAIR_BYTES..)?;
    let pair: &[u8; PAIR_BYTES] = pair.first_chunk()?;
    let word = u64::from_le_bytes(*pair);
    // One division: `FastMod` is worth it where many numbers have one divisor.
    displaced(halves(hash), [word as u32, (word >> 32) as u32]).checked_rem(sizes.slots)
}

/// The buffers of a build.
#[derive(Debug, Default)]
pub(super) struct DisplacementScratch {
    buckets: Buckets,
    /// A bit for each slot that is taken.
    taken: Vec<u32>,
    /// The dictionary, padded to whole lanes by pairs that are new.
    pairs: Vec<Pair>,
    /// The number of pairs in the dictionary.
    dictionary: usize,
    /// The halves of the hashes of a bucket.
    halves: Vec<[u32; 2]>,
    slots_of: Vec<u32>,
}

impl DisplacementScratch {
    /// Finds the pairs, or returns `None` if none was found for a bucket.
    pub(super) fn build(&mut self, hashes: &[u64], slots: usize) -> Option<Built> {
        let buckets = hashes.len().div_ceil(BUCKET_HASHES) as u32;
        self.buckets.fill(hashes, buckets as usize, |hash| bucket(hash, buckets) as usize);
        self.taken.clear();
        self.taken.resize(slots.div_ceil(32), 0);
        self.pairs.clear();
        self.dictionary = 0;
        let slots = FastMod::new(slots as u32);
        let mut numbers = vec![0u16; buckets as usize];
        for place in 0..self.buckets.order.len() {
            let bucket = self.buckets.order[place];
            numbers[bucket as usize] = self.place(bucket, slots)?;
        }
        let dictionary = self.dictionary as u32;
        let mut body = Vec::new();
        for number in numbers {
            body.extend_from_slice(&number.to_le_bytes()[..number_bytes(dictionary)]);
        }
        for [alpha, beta] in &self.pairs[..self.dictionary] {
            body.extend_from_slice(&alpha.to_le_bytes());
            body.extend_from_slice(&beta.to_le_bytes());
        }
        Some(Built { buckets, dictionary, body })
    }

    /// Places a bucket; returns the number of its pair.
    fn place(&mut self, bucket: u32, slots: FastMod) -> Option<u16> {
        self.halves.clear();
        self.halves.extend(self.buckets.of(bucket).iter().map(|&hash| halves(hash)));
        if self.halves.len() > BUCKET_HASHES_MAX {
            return None;
        }
        let pairs_max = (self.dictionary + NEW_PAIRS_MAX).min(DICTIONARY_LEN_MAX);
        let mut first = 0;
        while first < pairs_max {
            while self.pairs.len() < first + LANES {
                let drawn = mixed(self.pairs.len() as u64, PAIRS_SEED);
                self.pairs.push([drawn as u32, (drawn >> 32) as u32]);
            }
            let lanes: &[Pair; LANES] = self.pairs[first..].first_chunk()?;
            let mut free = free_lanes(&self.halves, lanes, &self.taken, slots);
            while free != 0 {
                let number = first + free.trailing_zeros() as usize;
                free &= free - 1;
                if number < pairs_max && self.take(number, slots) {
                    return Some(self.numbered(number) as u16);
                }
            }
            first += LANES;
        }
        None
    }

    /// The number in the dictionary of the pair that was found. One that is new moves to the dictionary's end.
    fn numbered(&mut self, found: usize) -> usize {
        if found < self.dictionary {
            return found;
        }
        self.pairs.swap(self.dictionary, found);
        self.dictionary += 1;
        self.dictionary - 1
    }

    /// Takes the slots of the bucket with this pair, unless two hashes would share one.
    fn take(&mut self, number: usize, slots: FastMod) -> bool {
        let pair = self.pairs[number];
        self.slots_of.clear();
        self.slots_of.extend(self.halves.iter().map(|&halves| slot_with(halves, pair, slots)));
        self.slots_of.sort_unstable();
        if self.slots_of.windows(2).any(|two| two[0] == two[1]) {
            return false;
        }
        for &slot in &self.slots_of {
            self.taken[slot as usize / 32] |= 1 << (slot % 32);
        }
        true
    }
}

/// A bit for each of the pairs with which all hashes of a bucket have free slots (section 4.1.2 of the paper).
#[inline]
fn free_lanes(bucket: &[[u32; 2]], pairs: &[Pair; LANES], taken: &[u32], slots: FastMod) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { free_lanes_avx2(bucket, pairs, taken, slots) };
    }
    free_lanes_in(bucket, pairs, taken, slots)
}

/// [`free_lanes_in`], compiled for AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn free_lanes_avx2(
    bucket: &[[u32; 2]],
    pairs: &[Pair; LANES],
    taken: &[u32],
    slots: FastMod,
) -> u32 {
    free_lanes_in(bucket, pairs, taken, slots)
}

#[inline(always)]
fn free_lanes_in(bucket: &[[u32; 2]], pairs: &[Pair; LANES], taken: &[u32], slots: FastMod) -> u32 {
    let mut free = (1 << LANES) - 1;
    for &halves in bucket {
        let mut places = [0u32; LANES];
        for (place, &pair) in places.iter_mut().zip(pairs) {
            *place = slot_with(halves, pair, slots);
        }
        let mut open = 0;
        for (lane, place) in places.iter().enumerate() {
            open |= (!taken[*place as usize / 32] >> (place % 32) & 1) << lane;
        }
        free &= open;
        if free == 0 {
            break;
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;

    /// Six tenths of the hashes are in three tenths of the buckets.
    #[test]
    fn most_hashes_are_in_dense_buckets() {
        let mut random = SplitMix::new(7);
        let hashes = if cfg!(miri) { 200 } else { 20_000 };
        let in_dense = (0..hashes).filter(|_| bucket(random.next(), 1000) < 300).count();
        assert!((in_dense * 100 / hashes).abs_diff(60) <= 6, "{in_dense}");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    fn vector_code_and_portable_code_agree() {
        if !std::arch::is_x86_feature_detected!("avx2") {
            return;
        }
        let mut random = SplitMix::new(8);
        for slots in [1u32, 7, 64, 1000, 100_000] {
            let taken: Vec<u32> = (0..slots.div_ceil(32))
                .map(|_| random.next() as u32 & random.next() as u32)
                .collect();
            for size in 0..12 {
                let bucket: Vec<[u32; 2]> = (0..size).map(|_| halves(random.next())).collect();
                let pairs = std::array::from_fn(|_| halves(random.next()));
                let slots = FastMod::new(slots);
                let expected = free_lanes_in(&bucket, &pairs, &taken, slots);
                // SAFETY: the processor has AVX2.
                assert_eq!(unsafe { free_lanes_avx2(&bucket, &pairs, &taken, slots) }, expected);
            }
        }
    }
}
