//! [`Residency`]: how much of a mapped file is in the memory of the process, and what of it goes.
//!
//! A page that has been used stays mapped until somebody unmaps it, even if the system has dropped all else. So whoever
//! reads all of a large file bit by bit would have all of it in its memory.
//!
//! Invariants:
//! 1. A part that is not counted is not resident, but for one that another thread uses while it is unmapped. Its turn
//!    comes again, as unmapping does not ask which parts are counted.

use std::ops::Range;

use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, AtomicUsize, Ordering};

/// A part: as much as one access makes resident at most. Linux maps as much around a page that is used, between addresses
/// that are multiples of this, as far as the system has it in memory.
pub(super) const PART_BYTES: usize = 64 << 10;
/// The parts that are unmapped together: 4 MiB.
const GROUP_PARTS: usize = u64::BITS as usize;

/// See the module's description.
#[derive(Debug)]
pub(super) struct Residency {
    /// A bit for each part that has been used since it was last unmapped.
    groups: Box<[AtomicU64]>,
    /// How many they are.
    parts: AtomicUsize,
    parts_max: AtomicUsize,
    /// The group that is unmapped next. Each has its turn.
    next: Mutex<usize>,
}

impl Residency {
    /// Of a file that is not larger than this. All of it may be resident.
    pub(super) fn new(bytes_max: usize) -> Residency {
        let groups = bytes_max.div_ceil(PART_BYTES * GROUP_PARTS);
        Residency {
            groups: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            parts: AtomicUsize::new(0),
            parts_max: AtomicUsize::new(usize::MAX),
            next: Mutex::default(),
        }
    }

    pub(super) fn set_bytes_max(&self, bytes: u64) {
        let parts = usize::try_from(bytes / PART_BYTES as u64).unwrap_or(usize::MAX);
        self.parts_max.store(parts, Ordering::Relaxed);
    }

    /// Counts the part that has byte `at`, which is about to be used. Returns whether it was not counted before.
    #[inline]
    pub(super) fn is_new(&self, at: usize) -> bool {
        let part = at / PART_BYTES;
        let (group, bit) = (part / GROUP_PARTS, 1 << (part % GROUP_PARTS));
        match self.groups.get(group) {
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

    /// Unmaps groups of a file of `bytes` if more is resident than may be, until there is room for an eighth of that.
    pub(super) fn trim(&self, bytes: usize, unmap: impl Fn(Range<usize>)) {
        const GROUP_BYTES: usize = GROUP_PARTS * PART_BYTES;
        // Whoever has it does the same.
        let Some(mut next) = self.next.try_lock() else { return };
        if !self.is_over() {
            return;
        }
        let parts_max = self.parts_max.load(Ordering::Relaxed);
        let count = bytes.div_ceil(GROUP_BYTES).min(self.groups.len());
        for _ in 0..count {
            if self.parts.load(Ordering::Relaxed) <= parts_max - parts_max / 8 {
                break;
            }
            let at = if *next < count { *next } else { 0 };
            *next = at + 1;
            let parts = self.groups[at].swap(0, Ordering::Relaxed).count_ones();
            self.parts.fetch_sub(parts as usize, Ordering::Relaxed);
            unmap(at * GROUP_BYTES..((at + 1) * GROUP_BYTES).min(bytes));
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
            if residency.is_new(at) && residency.is_over() {
                residency.trim(40 * MIB, |range| unmapped.borrow_mut().push(range.start / MIB));
            }
            assert!(residency.bytes() <= 16 * MIB as u64);
        }
        assert_eq!(*unmapped.borrow(), [0, 4, 8, 12, 16, 20]);
        // What stays is not counted again.
        assert!(!residency.is_new(39 * MIB));
        residency.set_bytes_max(0);
        residency.trim(40 * MIB, |_| ());
        assert_eq!(residency.bytes(), 0);
        assert!(residency.is_new(39 * MIB));
    }
}
