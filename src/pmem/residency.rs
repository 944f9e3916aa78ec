//! [`Residency`]: how much of a mapped file is in the memory of the process, and what of it goes.
//!
//! A page that has been used stays mapped until somebody unmaps it, even if the system has dropped all else. So whoever
//! reads all of a large file bit by bit would have all of it in its memory.
//!
//! Invariants:
//! 1. A part that is not counted is not resident, but for one that is being used. Who uses one counts it before, so that
//!    there is room, and again afterwards, as it may have been unmapped in between and come back. Whoever does not do that
//!    leaves parts that nobody counts: now and then a round unmaps groups of which no part is counted.

use std::ops::Range;
use std::sync::OnceLock;

use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, AtomicUsize, Ordering};

/// A part: as much as one access makes resident at most. Linux maps as much around a page that is used, between addresses
/// that are multiples of this, as far as the system has it in memory.
pub(super) const PART_BYTES: usize = 64 << 10;
/// The parts that are unmapped together: 4 MiB.
const GROUP_PARTS: usize = u64::BITS as usize;
const GROUP_BYTES: usize = GROUP_PARTS * PART_BYTES;
/// The groups whose bits lie together: 256 MiB. Most files are smaller.
const CHUNK_GROUPS: usize = 64;
/// As many parts may be resident in any case: with less, each node that is read would unmap others.
const PARTS_MIN: usize = 16;
/// Of so many rounds, one unmaps groups of which no part is counted.
const ROUNDS: usize = 4;

/// The bits of some groups.
type Chunk = [AtomicU64; CHUNK_GROUPS];

/// See the module's description.
#[derive(Debug)]
pub(super) struct Residency {
    /// A bit for each part that has been used since it was last unmapped; nothing where no part has been used.
    chunks: Box<[OnceLock<Box<Chunk>>]>,
    /// How many they are.
    parts: AtomicUsize,
    parts_max: AtomicUsize,
    /// The group that is unmapped next, and the round.
    next: Mutex<(usize, usize)>,
}

impl Residency {
    /// Of a file that is not larger than this. All of it may be resident.
    pub(super) fn new(bytes_max: usize) -> Residency {
        let chunks = bytes_max.div_ceil(GROUP_BYTES * CHUNK_GROUPS);
        Residency {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            parts: AtomicUsize::new(0),
            parts_max: AtomicUsize::new(usize::MAX),
            next: Mutex::default(),
        }
    }

    pub(super) fn set_bytes_max(&self, bytes: u64) {
        let parts = usize::try_from(bytes / PART_BYTES as u64).unwrap_or(usize::MAX);
        self.parts_max.store(parts.max(PARTS_MIN), Ordering::Relaxed);
    }

    pub(super) fn bytes_max(&self) -> u64 {
        (self.parts_max.load(Ordering::Relaxed) as u64).saturating_mul(PART_BYTES as u64)
    }

    /// The bits of a group.
    #[inline]
    fn group(&self, group: usize) -> Option<&AtomicU64> {
        let chunk = self.chunks.get(group / CHUNK_GROUPS)?;
        let chunk = chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; CHUNK_GROUPS]));
        Some(&chunk[group % CHUNK_GROUPS])
    }

    /// Counts the part that has byte `at`, which is about to be used. Returns whether it was not counted before.
    #[inline]
    pub(super) fn count(&self, at: usize) -> bool {
        let part = at / PART_BYTES;
        let (group, bit) = (part / GROUP_PARTS, 1 << (part % GROUP_PARTS));
        match self.group(group) {
            Some(group) if group.load(Ordering::Relaxed) & bit == 0 => {
                // Counted first, as another thread may take it off as soon as the bit is set.
                self.parts.fetch_add(1, Ordering::Relaxed);
                let is_new = group.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                if !is_new {
                    self.parts.fetch_sub(1, Ordering::Relaxed);
                }
                is_new
            }
            _ => false,
        }
    }

    /// Whether more is resident than may be.
    pub(super) fn is_over(&self) -> bool {
        self.parts.load(Ordering::Relaxed) > self.parts_max.load(Ordering::Relaxed)
    }

    /// Unmaps groups of a file of `bytes` if more is resident than may be, until there is room for an eighth of that, or
    /// until so many groups are unmapped.
    pub(super) fn trim(&self, bytes: usize, groups_max: usize, unmap: impl Fn(Range<usize>)) {
        let parts_max = self.parts_max.load(Ordering::Relaxed);
        // Whoever has it does the same. But it may have lost its core meanwhile: others wait before they use ever more.
        let is_far_over =
            self.parts.load(Ordering::Relaxed) > parts_max.saturating_add(parts_max / 4);
        let mut next = match self.next.try_lock() {
            Some(next) => next,
            None if is_far_over => self.next.lock(),
            None => return,
        };
        if !self.is_over() {
            return;
        }
        let count = bytes.div_ceil(GROUP_BYTES);
        let mut unmapped = 0;
        for _ in 0..count {
            let parts_max = self.parts_max.load(Ordering::Relaxed);
            let is_enough = self.parts.load(Ordering::Relaxed) <= parts_max - parts_max / 8;
            if is_enough || unmapped >= groups_max {
                break;
            }
            let (at, round) = if next.0 < count { *next } else { (0, next.1 + 1) };
            *next = (at + 1, round);
            let parts = self.group(at).map_or(0, |group| group.swap(0, Ordering::Relaxed));
            self.parts.fetch_sub(parts.count_ones() as usize, Ordering::Relaxed);
            if parts != 0 || round % ROUNDS == ROUNDS - 1 {
                // A round of groups of which no part is counted frees nothing.
                unmapped += usize::from(parts != 0);
                unmap(at * GROUP_BYTES..((at + 1) * GROUP_BYTES).min(bytes));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        (self.parts.load(Ordering::Relaxed) * PART_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// 40 MB are used one page after the other: never more than 16 MB stay, and the last that went are the oldest.
    #[test]
    fn the_oldest_parts_go_first() {
        const MIB: usize = 1 << 20;
        let residency = Residency::new(64 * MIB);
        residency.set_bytes_max(16 * MIB as u64);
        let unmapped = RefCell::new(Vec::new());
        for at in (0..40 * MIB).step_by(4096) {
            if residency.count(at) && residency.is_over() {
                residency.trim(40 * MIB, usize::MAX, |range| {
                    unmapped.borrow_mut().push(range.start / MIB)
                });
            }
            assert!(residency.bytes() <= 16 * MIB as u64);
        }
        assert_eq!(*unmapped.borrow(), [0, 4, 8, 12, 16, 20]);
        // What stays is not counted again.
        assert!(!residency.count(39 * MIB));
        // Some may stay in any case.
        residency.set_bytes_max(0);
        assert!(residency.bytes() > MIB as u64);
        residency.trim(40 * MIB, usize::MAX, |_| ());
        assert!(residency.bytes() <= MIB as u64);
    }

    /// A get took an eighth of the limit out of memory at once: with a large budget, gigabytes.
    #[test]
    fn a_caller_takes_no_more_than_it_wants_out_of_memory() {
        const MIB: usize = 1 << 20;
        let residency = Residency::new(64 * MIB);
        (0..64 * MIB)
            .step_by(4096)
            .for_each(|at| assert!(residency.count(at) || at % PART_BYTES > 0));
        residency.set_bytes_max(16 * MIB as u64);
        let unmapped = RefCell::new(0);
        let count = |range: Range<usize>| *unmapped.borrow_mut() += range.len() / MIB;
        residency.trim(64 * MIB, 2, count);
        assert_eq!((*unmapped.borrow(), residency.bytes()), (8, 56 * MIB as u64));
        residency.trim(64 * MIB, usize::MAX, count);
        assert!(residency.bytes() <= 14 * MIB as u64);
    }
}
