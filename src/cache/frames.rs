//! The memory that cached pages lie in: numbered slots.
//!
//! Each slot has a frame of 4 KiB in a [`Region`]; a page that does not fit one lies on the heap and
//! its slot's frame stays unused (and costs nothing). Slots come in slabs, each as large as all before
//! it, so that more can be added without moving any.
//!
//! Invariants:
//! 1. A slot's bytes are written only by the one thread that has taken the slot, before its page is
//!    published in the index, and after no reader can see the page that was there before.
//! 2. Slots are never taken away while the `Frames` exist.

use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use crate::base::limits::UNIT_BYTES;
use crate::base::region::Region;
use crate::base::sync::plain::{AtomicPtr, AtomicUsize, Ordering};

/// 1 MiB of frames in the first slab: too few for large pages, the first of which alone would take
/// 2 MiB of memory, and the time to clear it, from a store with a small budget. (Fewer under the
/// interpreter and in scenarios, where they cost time.)
const FIRST_SLAB_SLOTS: u32 = if cfg!(any(miri, shuttle)) { 16 } else { 1 << 8 };
const SLABS: usize = 20;
/// Most slots there can be: just below 2^28, 1 TiB of frames.
pub(super) const SLOTS_MAX: u32 = FIRST_SLAB_SLOTS * ((1 << SLABS) - 1);
/// Slots whose heap pages are found through one table; tables are made when first needed.
const HEAP_TABLE_SLOTS: usize = if cfg!(any(miri, shuttle)) { 4 } else { 128 };
/// Memory that the heap keeps for itself with each allocation.
const HEAP_OVERHEAD_BYTES: usize = 32;

/// Where a page's bytes are: how many of the frame, or on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The frame's first bytes.
    Frame(usize),
    /// A heap object that the slot points to.
    Heap,
}

#[derive(Default)]
struct HeapSlot {
    bytes: AtomicPtr<u8>,
    len: AtomicUsize,
}

impl HeapSlot {
    fn slice(&self) -> *mut [u8] {
        let bytes = self.bytes.load(Ordering::Relaxed);
        std::ptr::slice_from_raw_parts_mut(bytes, self.len.load(Ordering::Relaxed))
    }

    /// # Safety
    /// Nobody reads the page or can find it any more.
    unsafe fn drop_page(&self) {
        let slice = self.slice();
        if !slice.cast::<u8>().is_null() {
            self.bytes.store(null_mut(), Ordering::Relaxed);
            // SAFETY: made by `Box::into_raw` in `fill_heap`, and dropped once: the pointer is gone.
            drop(unsafe { Box::from_raw(slice) });
        }
    }
}

type HeapTable = [HeapSlot; HEAP_TABLE_SLOTS];

struct Slab {
    frames: Region,
    heap: Box<[OnceLock<Box<HeapTable>>]>,
}

impl Slab {
    fn reserve(slots: usize) -> Option<Slab> {
        let tables = slots.div_ceil(HEAP_TABLE_SLOTS);
        Some(Slab {
            frames: Region::reserve(slots * UNIT_BYTES)?,
            heap: (0..tables).map(|_| OnceLock::new()).collect(),
        })
    }
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Frames {
    slabs: [OnceLock<Slab>; SLABS],
}

fn slab_slots(slab: usize) -> u32 {
    FIRST_SLAB_SLOTS << slab
}

#[inline]
fn locate(slot: u32) -> (usize, usize) {
    let n = slot + FIRST_SLAB_SLOTS;
    let slab = n.ilog2() - FIRST_SLAB_SLOTS.ilog2();
    (slab as usize, (n - (FIRST_SLAB_SLOTS << slab)) as usize)
}

/// What a page of `len` bytes on the heap counts for.
pub(super) fn heap_charge(len: usize) -> usize {
    len.saturating_add(HEAP_OVERHEAD_BYTES)
}

impl Frames {
    /// Sees to it that slots `0..slots` exist; returns how many do if the system refuses.
    pub(super) fn reserve(&self, slots: u32) -> u32 {
        let mut have: u32 = 0;
        for (number, slab) in self.slabs.iter().enumerate() {
            if have >= slots {
                return slots;
            }
            if slab.get().is_none() {
                match Slab::reserve(slab_slots(number) as usize) {
                    // If another thread was faster its slab is as good.
                    Some(reserved) => drop(slab.set(reserved)),
                    None => return have,
                }
            }
            have += slab_slots(number);
        }
        slots.min(have)
    }

    #[inline]
    fn frame(&self, slot: u32) -> NonNull<u8> {
        let (slab, at) = locate(slot);
        match self.slabs[slab].get() {
            // SAFETY: the slab has a frame for each of its slots, and `at` is below their number.
            Some(slab) => unsafe { slab.frames.base().add(at * UNIT_BYTES) },
            None => unreachable!("slot {slot} has been reserved"),
        }
    }

    fn heap_table(&self, slot: u32) -> (&OnceLock<Box<HeapTable>>, usize) {
        let (slab, at) = locate(slot);
        match self.slabs[slab].get() {
            Some(slab) => (&slab.heap[at / HEAP_TABLE_SLOTS], at % HEAP_TABLE_SLOTS),
            None => unreachable!("slot {slot} has been reserved"),
        }
    }

    fn heap_slot(&self, slot: u32) -> &HeapSlot {
        let (table, at) = self.heap_table(slot);
        match table.get() {
            Some(table) => &table[at],
            None => unreachable!("slot {slot} has been prepared for the heap"),
        }
    }

    /// Makes the slot ready for a heap page; returns the bytes that took.
    pub(super) fn prepare_heap(&self, slot: u32) -> usize {
        let mut made = 0;
        self.heap_table(slot).0.get_or_init(|| {
            made = size_of::<HeapTable>();
            Box::new(std::array::from_fn(|_| HeapSlot::default()))
        });
        made
    }

    /// The page in the slot.
    ///
    /// # Safety
    /// The slot holds a page of that extent, and is not recycled while the result lives: the caller is
    /// pinned, and found the slot in the index since.
    #[inline]
    pub(super) unsafe fn bytes(&self, slot: u32, extent: Extent) -> &[u8] {
        match extent {
            // SAFETY: the frame's first `len` bytes were written before the page was published.
            Extent::Frame(len) => unsafe {
                std::slice::from_raw_parts(self.frame(slot).as_ptr(), len)
            },
            // SAFETY: the slot has owned the heap object since before the page was published.
            Extent::Heap => unsafe { &*self.heap_slot(slot).slice() },
        }
    }

    /// Copies a page of up to 4 KiB into the slot's frame.
    ///
    /// # Safety
    /// The caller has taken the slot, and nobody reads its frame.
    pub(super) unsafe fn fill(&self, slot: u32, bytes: &[u8]) {
        assert!(bytes.len() <= UNIT_BYTES);
        // SAFETY: the frame has 4 KiB, and is the caller's alone.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.frame(slot).as_ptr(), bytes.len());
        }
    }

    /// Puts a page on the heap for the slot.
    ///
    /// # Safety
    /// The caller has taken the slot, which is prepared for the heap and has no heap page.
    pub(super) unsafe fn fill_heap(&self, slot: u32, bytes: Box<[u8]>) {
        let heap = self.heap_slot(slot);
        debug_assert!(heap.bytes.load(Ordering::Relaxed).is_null());
        heap.len.store(bytes.len(), Ordering::Relaxed);
        heap.bytes.store(Box::into_raw(bytes).cast(), Ordering::Relaxed);
    }

    /// What the slot's heap page counts for.
    pub(super) fn charge_of_heap(&self, slot: u32) -> usize {
        heap_charge(self.heap_slot(slot).len.load(Ordering::Relaxed))
    }

    /// Drops the slot's heap page.
    ///
    /// # Safety
    /// Nobody reads the page or can find it any more.
    pub(super) unsafe fn drop_heap(&self, slot: u32) {
        // SAFETY: as the caller vouches.
        unsafe { self.heap_slot(slot).drop_page() };
    }

    /// Gives the memory of the slots' frames back to the system. Sorts the numbers.
    ///
    /// # Safety
    /// Nobody reads these frames or can find them any more.
    pub(super) unsafe fn release(&self, slots: &mut [u32]) {
        slots.sort_unstable();
        let next_to = |a: &u32, b: &u32| *b == *a + 1 && locate(*a).0 == locate(*b).0;
        for run in slots.chunk_by(next_to) {
            let (slab, at) = locate(run[0]);
            if let Some(slab) = self.slabs[slab].get() {
                // SAFETY: a run of frames of one slab, which nobody reads.
                unsafe { slab.frames.release(at * UNIT_BYTES, run.len() * UNIT_BYTES) };
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let slabs = self.slabs.iter().filter_map(OnceLock::get);
        for slot in slabs.flat_map(|slab| &slab.heap).filter_map(OnceLock::get).flat_map(|t| &**t) {
            // SAFETY: `&mut self`: there are no readers any more.
            unsafe { slot.drop_page() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_number_the_slabs_without_gaps() {
        const { assert!(SLOTS_MAX < 1 << 28) };
        let mut expected = (0, 0);
        let until = if cfg!(miri) { 100 } else { 5 * FIRST_SLAB_SLOTS };
        for slot in 0..until {
            assert_eq!(locate(slot), expected);
            expected.1 += 1;
            if expected.1 == slab_slots(expected.0) as usize {
                expected = (expected.0 + 1, 0);
            }
        }
        assert_eq!(locate(SLOTS_MAX - 1).0, SLABS - 1);
    }

    #[test]
    fn frames_and_heap_pages_hold_what_was_put_in() {
        let frames = Frames::default();
        assert_eq!(frames.reserve(FIRST_SLAB_SLOTS + 1), FIRST_SLAB_SLOTS + 1);
        let page = |slot: u32, len: usize| vec![slot as u8 ^ 0x5a; len];
        let slots = [0, 1, FIRST_SLAB_SLOTS - 1, FIRST_SLAB_SLOTS];
        // SAFETY: no other thread knows the slots, and what is read has been filled.
        unsafe {
            for slot in slots {
                frames.fill(slot, &page(slot, 4096));
                frames.prepare_heap(slot);
                assert_eq!(frames.prepare_heap(slot), 0);
                frames.fill_heap(slot, page(slot, 5000).into());
            }
            for slot in slots {
                assert_eq!(frames.bytes(slot, Extent::Frame(4096)), page(slot, 4096));
                assert_eq!(frames.bytes(slot, Extent::Frame(7)), page(slot, 7));
                assert_eq!(frames.bytes(slot, Extent::Heap), page(slot, 5000));
            }
            frames.drop_heap(0);
            frames.drop_heap(0);
            frames.release(&mut [FIRST_SLAB_SLOTS, 0, FIRST_SLAB_SLOTS - 1]);
            assert_eq!(frames.bytes(1, Extent::Frame(4096)), page(1, 4096));
            frames.fill(0, &page(9, 100));
            assert_eq!(frames.bytes(0, Extent::Frame(100)), page(9, 100));
        }
    }
}
