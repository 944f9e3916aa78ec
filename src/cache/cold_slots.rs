//! Slots without resident memory, and the order in which they are used.
//!
//! Frames are backed by large pages where the system has them: the first use of one frame makes the
//! whole large page resident. Frames in use must therefore be adjacent. Slots are handed out one
//! large page at a time, either for pages in frames or for other pages, and a returned slot goes
//! back to the use that it came from. One use takes slots of the other only when its own are
//! exhausted.
//!
//! Invariants:
//! 1. Each slot below `begun` is in exactly one place, here or elsewhere.

use std::ops::Range;

use super::frames::{LARGE_PAGE_SLOTS, large_page_end};

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A page in its frame.
    Frame = 0,
    /// A page in its multi-unit frame or on the heap.
    Beside = 1,
}

impl Use {
    fn other(self) -> Use {
        match self {
            Use::Frame => Use::Beside,
            Use::Beside => Use::Frame,
        }
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct ColdSlots {
    /// Slots that exist: `0..slots`.
    slots: u32,
    /// No slot from here on has been used.
    begun: u32,
    /// By use: the rest of the large page that was started last.
    fresh: [Range<u32>; 2],
    /// By use: returned slots.
    used: [Vec<u32>; 2],
}

impl ColdSlots {
    /// Slots that exist.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Slots from here on have never been used.
    pub(super) fn begun(&self) -> u32 {
        self.begun
    }

    /// How many of the slots below `begun` are here.
    pub(super) fn len(&self) -> usize {
        let fresh: usize = self.fresh.iter().map(ExactSizeIterator::len).sum();
        fresh + self.used.iter().map(Vec::len).sum::<usize>()
    }

    /// Whether a slot can be taken.
    pub(super) fn has_any(&self) -> bool {
        self.begun < self.slots
            || self.used.iter().any(|used| !used.is_empty())
            || self.fresh.iter().any(|fresh| !Range::is_empty(fresh))
    }

    /// Raises the number of slots to `slots`.
    pub(super) fn grow(&mut self, slots: u32) {
        debug_assert!(slots >= self.slots);
        self.slots = slots;
    }

    /// Takes all slots of an unused large page, if no single slots for frames are left.
    pub(super) fn take_large_page(&mut self) -> Option<Range<u32>> {
        let (used, fresh) = (&self.used[Use::Frame as usize], &self.fresh[Use::Frame as usize]);
        let end = large_page_end(self.begun);
        let is_whole = end <= self.slots && end - self.begun == LARGE_PAGE_SLOTS;
        (used.is_empty() && Range::is_empty(fresh) && is_whole).then(|| {
            let slots = self.begun..end;
            self.begun = end;
            slots
        })
    }

    /// Takes a slot.
    pub(super) fn take(&mut self, wanted: Use) -> Option<u32> {
        let other = wanted.other() as usize;
        let own = self.take_own(wanted);
        own.or_else(|| self.used[other].pop()).or_else(|| self.fresh[other].next_back())
    }

    fn take_own(&mut self, wanted: Use) -> Option<u32> {
        let (used, fresh) = (&mut self.used[wanted as usize], &mut self.fresh[wanted as usize]);
        used.pop().or_else(|| {
            if Range::is_empty(fresh) {
                let end = large_page_end(self.begun).min(self.slots);
                *fresh = self.begun..end;
                self.begun = end;
            }
            fresh.next()
        })
    }

    /// Returns slots whose memory has been released.
    pub(super) fn put(&mut self, used_for: Use, slots: impl IntoIterator<Item = u32>) {
        self.used[used_for as usize].extend(slots);
    }

    /// Removes the slots from `keep` on, which are all here or unused.
    pub(super) fn truncate(&mut self, keep: u32) {
        for fresh in &mut self.fresh {
            *fresh = fresh.start.min(keep)..fresh.end.min(keep);
        }
        for used in &mut self.used {
            used.retain(|&slot| slot < keep);
            used.shrink_to_fit();
        }
        self.begun = self.begun.min(keep);
        self.slots = self.slots.min(keep);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn cold_slots(slots: u32) -> ColdSlots {
        let mut cold = ColdSlots::default();
        cold.grow(slots);
        cold
    }

    #[test]
    fn the_two_uses_share_no_large_page_while_there_are_enough() {
        let slots = large_page_end(large_page_end(large_page_end(0)));
        let mut cold = cold_slots(slots);
        let mut pages = [BTreeSet::new(), BTreeSet::new()];
        for _ in 0..large_page_end(0) {
            for wanted in [Use::Frame, Use::Beside] {
                let slot = cold.take(wanted).unwrap();
                pages[wanted as usize].insert(large_page_end(slot));
                if slot.is_multiple_of(3) {
                    cold.put(wanted, [slot]);
                    assert_eq!(cold.take(wanted), Some(slot));
                }
            }
        }
        assert!(pages[0].is_disjoint(&pages[1]), "{pages:?}");
    }

    #[test]
    fn one_use_may_have_all_slots_once_each() {
        for slots in [0, 1, large_page_end(0) + 2, large_page_end(large_page_end(0))] {
            let mut cold = cold_slots(slots);
            let mut taken = BTreeSet::new();
            taken.extend(cold.take(Use::Beside));
            taken.extend(cold.take(Use::Beside));
            if let Some(large) = cold.take_large_page() {
                assert_eq!(large_page_end(large.start), large.end);
                taken.extend(large);
            }
            let given_back = taken.pop_first();
            cold.put(Use::Beside, given_back);
            assert_eq!(cold.len() + taken.len(), cold.begun() as usize);
            while let Some(slot) = cold.take(Use::Frame) {
                assert!(slot < slots && taken.insert(slot), "{slot} twice");
            }
            assert_eq!(taken.len(), slots as usize);
            assert_eq!((cold.begun(), cold.len()), (slots, 0));
        }
    }

    #[test]
    fn forgotten_slots_come_back_once_there_are_more_again() {
        let slots = large_page_end(large_page_end(0));
        let mut cold = cold_slots(slots);
        let first: Vec<u32> = [Use::Frame, Use::Beside, Use::Frame]
            .iter()
            .filter_map(|&wanted| cold.take(wanted))
            .collect();
        cold.put(Use::Beside, [first[1]]);
        let keep = first[2] + 1;
        cold.truncate(keep);
        assert_eq!((cold.slots(), cold.begun()), (keep, keep));
        cold.grow(slots);
        let mut taken = BTreeSet::from([first[0], first[2]]);
        while let Some(slot) = cold.take(Use::Beside) {
            assert!(taken.insert(slot), "{slot} twice");
        }
        assert_eq!(taken.len(), slots as usize);
    }
}
