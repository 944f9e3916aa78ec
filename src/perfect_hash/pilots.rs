//! The construction with one byte per bucket, its *pilot* (after PTHash, Pibiri and Trani, 2021, and PtrHash,
//! Groot Koerkamp, 2025).
//!
//! A hash selects a bucket, and with the bucket's pilot a slot. Buckets are placed by decreasing size. Where no
//! pilot leads to free slots, the one that is in the way of the fewest is taken, and the buckets that were there
//! are placed again.
//!
//! Invariants:
//! 1. Which pilots are found depends on the set of hashes of each bucket, not on the order within it.
//! 2. The number of placements is bounded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::buckets::{Buckets, Built, Sizes};
use super::reduce::{SLOT_MULTIPLIER, reduced};

/// Hashes per bucket, so pilots take 2.7 bits a hash. With 3.5 it would be 2.3, and building takes half as long again.
const BUCKET_HASHES: usize = 3;
const PILOTS: u64 = 256;
/// Pilots that are tried at once. Each by itself would cost a branch that no processor can predict.
const AT_ONCE: u64 = 8;
/// An odd multiplier without a pattern: a pilot's word. On disk: never change.
const PILOT_MULTIPLIER: u64 = 0xa076_1d64_78bd_642f;
/// Buckets placed so recently are not moved, lest two move each other forever.
const RECENT: usize = 16;
const FREE: u32 = u32::MAX;

/// The bucket of a hash: large buckets first, so that most hashes are placed while there is room. The density
/// is that of the cubic function of the PtrHash paper, with a small linear part.
#[inline(always)]
fn bucket(hash: u64, buckets: u64) -> u64 {
    let square = reduced(hash, hash);
    let cubic = reduced(square, hash >> 1 | 1 << 63);
    reduced(cubic - (cubic >> 8) + (hash >> 8), buckets)
}

#[inline(always)]
fn slot_with(hash: u64, pilot: u64, slots: u64) -> u64 {
    reduced((hash ^ pilot.wrapping_mul(PILOT_MULTIPLIER)).wrapping_mul(SLOT_MULTIPLIER), slots)
}

/// The slot of a hash.
#[inline(always)]
pub(super) fn slot(sizes: &Sizes, body: &[u8], hash: u64) -> Option<u32> {
    let pilot = *body.get(bucket(hash, u64::from(sizes.buckets)) as usize)?;
    Some(slot_with(hash, u64::from(pilot), u64::from(sizes.slots)) as u32)
}

/// The buffers of a build.
#[derive(Debug, Default)]
pub(super) struct PilotScratch {
    buckets: Buckets,
    /// The bucket in each slot, or `FREE`.
    taken: Vec<u32>,
    /// A bit for each slot that is taken.
    bits: Vec<u64>,
    waiting: BinaryHeap<(usize, Reverse<u32>)>,
}

impl PilotScratch {
    /// Finds the pilots, or returns `None` after too many placements.
    pub(super) fn build(&mut self, hashes: &[u64], slots: usize) -> Option<Built> {
        let buckets = hashes.len().div_ceil(BUCKET_HASHES) + 1;
        self.buckets.fill(hashes, buckets, |hash| bucket(hash, buckets as u64) as usize);
        self.taken.clear();
        self.taken.resize(slots, FREE);
        self.bits.clear();
        self.bits.resize(slots.div_ceil(64), 0);
        self.waiting.clear();
        let mut body = vec![0u8; buckets];
        let mut recent = [FREE; RECENT];
        let (mut placements, placements_max) = (0, 10 * buckets + 1000);
        for place in 0..self.buckets.order.len() {
            let mut next = Some(self.buckets.order[place]);
            while let Some(bucket) = next {
                placements += 1;
                if placements > placements_max {
                    return None;
                }
                let free = self.free_pilot(bucket);
                let pilot = match free {
                    Some(pilot) => pilot,
                    None => self.cheapest_pilot(bucket, placements, &recent)?,
                };
                recent[placements % RECENT] = bucket;
                body[bucket as usize] = pilot as u8;
                if free.is_none() {
                    self.move_away(bucket, pilot, &body);
                }
                self.take(bucket, pilot);
                next = self.waiting.pop().map(|(_, Reverse(bucket))| bucket);
            }
        }
        Some(Built { buckets: buckets as u32, dictionary: 0, body })
    }

    /// The first pilot with which all hashes of the bucket have free slots, each its own.
    #[inline]
    fn free_pilot(&self, bucket: u32) -> Option<u64> {
        let hashes = self.buckets.of(bucket);
        let slots = self.taken.len() as u64;
        let is_free = |hash: u64, pilot: u64| {
            let slot = slot_with(hash, pilot, slots) as usize;
            !self.bits[slot / 64] >> (slot % 64) & 1
        };
        for first in (0..PILOTS).step_by(AT_ONCE as usize) {
            // A bit for each pilot with which everything so far has a free slot.
            let mut free = (1 << AT_ONCE) - 1;
            for &hash in hashes {
                free &= (0..AT_ONCE).fold(0, |free, it| free | is_free(hash, first + it) << it);
                if free == 0 {
                    break;
                }
            }
            while free != 0 {
                let pilot = first + u64::from(free.trailing_zeros());
                if are_apart(hashes, pilot, slots) {
                    return Some(pilot);
                }
                free &= free - 1;
            }
        }
        None
    }

    /// The pilot whose slots are taken by the smallest buckets, by the sum of the squares of their sizes.
    fn cheapest_pilot(&self, bucket: u32, turn: usize, recent: &[u32; RECENT]) -> Option<u64> {
        let hashes = self.buckets.of(bucket);
        let slots = self.taken.len() as u64;
        let (mut best, mut least) = (None, usize::MAX);
        // Begins elsewhere each time, so that no two buckets exchange the same slots forever.
        for step in 0..PILOTS {
            let pilot = (step + turn as u64 * 31) % PILOTS;
            let mut cost = 0;
            for &hash in hashes {
                let other = self.taken[slot_with(hash, pilot, slots) as usize];
                if other == FREE {
                    continue;
                }
                if recent.contains(&other) {
                    cost = usize::MAX;
                    break;
                }
                cost += self.buckets.size(other).pow(2);
                if cost >= least {
                    break;
                }
            }
            if cost < least && are_apart(hashes, pilot, slots) {
                (best, least) = (Some(pilot), cost);
            }
        }
        best
    }

    /// Frees the slots that the bucket needs.
    fn move_away(&mut self, bucket: u32, pilot: u64, body: &[u8]) {
        let slots = self.taken.len() as u64;
        for index in 0..self.buckets.size(bucket) {
            let slot = slot_with(self.buckets.of(bucket)[index], pilot, slots);
            let other = self.taken[slot as usize];
            if other == FREE {
                continue;
            }
            let others = self.buckets.of(other);
            for &hash in others {
                let slot = slot_with(hash, u64::from(body[other as usize]), slots) as usize;
                self.taken[slot] = FREE;
                self.bits[slot / 64] &= !(1 << (slot % 64));
            }
            self.waiting.push((others.len(), Reverse(other)));
        }
    }

    fn take(&mut self, bucket: u32, pilot: u64) {
        let slots = self.taken.len() as u64;
        for &hash in self.buckets.of(bucket) {
            let slot = slot_with(hash, pilot, slots) as usize;
            self.taken[slot] = bucket;
            self.bits[slot / 64] |= 1 << (slot % 64);
        }
    }
}

/// Whether the hashes of a bucket get different slots.
#[inline]
fn are_apart(hashes: &[u64], pilot: u64, slots: u64) -> bool {
    hashes.iter().enumerate().all(|(index, &hash)| {
        let slot = slot_with(hash, pilot, slots);
        hashes[..index].iter().all(|&before| slot_with(before, pilot, slots) != slot)
    })
}
