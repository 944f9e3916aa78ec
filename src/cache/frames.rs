//! The memory of cached pages: numbered slots.
//!
//! Each slot has a frame of 4 KiB in one [`Mapping`] and a *multi-unit frame* in another. A
//! multi-unit frame is address space for a page of several units; only its used part is resident,
//! and it is never backed by large pages. A page that is too large for a multi-unit frame is a
//! [`Slice`]. Smaller pages are not, because heap objects of a few units leave gaps that fit nothing
//! else. Readers share values with the cache whatever their home ([`kept`](super::kept)). Slots are
//! reserved in slabs, each as large as all previous slabs together, so that slots can be added
//! without moving any.
//!
//! Invariants:
//! 1. A slot's bytes are written only by the thread that has taken the slot: before its page is
//!    published in the index, and after no reader can see the previous page, or keeps it.
//! 2. Slots are never removed while the `Frames` exist.
//! 3. A large page backs frames only where [`Frames::use_large_page`] was called and no frame has
//!    been released since. Elsewhere only used memory is resident.
//! 4. At most one of a slot's two frames is resident. Whoever takes the slot for the other frame
//!    has released the first.
//! 5. A slot is given back once, by the last of those whom it was left to.

use std::mem::take;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use crate::base::limits::UNIT_BYTES;
use crate::base::mapping::{LARGE_MAPPING_BYTES, LARGE_PAGE_BYTES, Mapping};
use crate::base::process::Birthplace;
use crate::base::slice::{Slice, heap_bytes_of};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::AtomicU32;
use crate::base::sync::plain::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The first slab has 1 MiB of frames. That is too small for large pages: the first large page
/// alone would use 2 MiB of a small budget, and the time to clear it. (Miri and scenarios use fewer
/// slots, to save time.)
const FIRST_SLAB_SLOTS: u32 = if cfg!(any(miri, shuttle)) { 16 } else { 1 << 8 };
const SLABS: usize = 20;
/// The maximum number of slots: just below 2^28, which is 1 TiB of frames.
pub(super) const SLOTS_MAX: u32 = FIRST_SLAB_SLOTS * ((1 << SLABS) - 1);
/// Units of a multi-unit frame: a leaf with several entries is never larger.
pub(super) const MULTI_UNITS: usize = if cfg!(any(miri, shuttle)) { 3 } else { 8 };
const MULTI_BYTES: usize = MULTI_UNITS * UNIT_BYTES;
/// Slots whose frames one large page may back.
pub(super) const LARGE_PAGE_SLOTS: u32 =
    if cfg!(any(miri, shuttle)) { 4 } else { (LARGE_PAGE_BYTES / UNIT_BYTES) as u32 };
/// Slots whose heap pages share one table, and those of which it is counted who keeps them. Tables are made when first
/// needed.
const HEAP_TABLE_SLOTS: usize = if cfg!(any(miri, shuttle)) { 4 } else { 128 };
/// Set in the count of a slot's keepers once the slot has been left to them.
const LEFT: u32 = 1 << 31;
/// Far from `LEFT`, however many threads count at once.
const KEEPERS_MAX: u32 = LEFT / 2;
/// Slots that nobody keeps any more wait with their memory for the cache to use it, but no more than so many.
const WAITING_MAX: usize = 16;
/// Memory of a heap page beside its bytes: the slice itself, and the allocator's headers.
const HEAP_OVERHEAD_BYTES: usize = 48;

/// Where a page is stored: in the frame or the multi-unit frame, with its length, or on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageHome {
    /// The frame's first bytes.
    Frame(usize),
    /// The first bytes of the multi-unit frame; more than a frame holds.
    MultiUnit(usize),
    /// A slice that the slot points to.
    Heap,
}

impl PageHome {
    /// The resident units of a page in a frame or a multi-unit frame; 0 on the heap.
    pub(super) fn units(self) -> u32 {
        match self {
            PageHome::Frame(_) => 1,
            PageHome::MultiUnit(len) => len.div_ceil(UNIT_BYTES) as u32,
            PageHome::Heap => 0,
        }
    }

    /// The home of a page of `len` bytes.
    pub(super) fn of(len: usize) -> PageHome {
        if len <= UNIT_BYTES {
            PageHome::Frame(len)
        } else if len <= MULTI_BYTES {
            PageHome::MultiUnit(len)
        } else {
            PageHome::Heap
        }
    }
}

#[derive(Default)]
struct HeapSlot {
    /// From `Box::into_raw`, or null.
    page: AtomicPtr<Slice>,
    /// What is accounted for it.
    charge: AtomicUsize,
}

impl HeapSlot {
    /// # Safety
    /// No reader sees the page or can find it any more.
    unsafe fn drop_page(&self) {
        let page = self.page.load(Ordering::Relaxed);
        if !page.is_null() {
            self.page.store(null_mut(), Ordering::Relaxed);
            // SAFETY: made by `Box::into_raw` in `fill_heap`, and dropped once: the pointer is
            // gone.
            drop(unsafe { Box::from_raw(page) });
        }
    }
}

type HeapTable = [HeapSlot; HEAP_TABLE_SLOTS];
/// By slot: how many readers keep its value.
type KeptTable = [AtomicU32; HEAP_TABLE_SLOTS];

struct Slab {
    frames: Mapping,
    /// Whether the frames may be backed by a large page, per possible large page.
    large: Box<[AtomicBool]>,
    /// Made when first needed; `None` if the system refused.
    multi_unit: OnceLock<Option<Mapping>>,
    heap: Box<[OnceLock<Box<HeapTable>>]>,
    kept: Box<[OnceLock<Box<KeptTable>>]>,
}

impl Slab {
    fn reserve(slots: usize) -> Option<Slab> {
        let tables = slots.div_ceil(HEAP_TABLE_SLOTS);
        let bytes = slots * UNIT_BYTES;
        let large_pages = if bytes >= LARGE_MAPPING_BYTES { bytes / LARGE_PAGE_BYTES } else { 0 };
        Some(Slab {
            frames: Mapping::reserve_sparse(bytes)?,
            large: (0..large_pages).map(|_| AtomicBool::new(false)).collect(),
            multi_unit: OnceLock::new(),
            heap: (0..tables).map(|_| OnceLock::new()).collect(),
            kept: (0..tables).map(|_| OnceLock::new()).collect(),
        })
    }
}

/// A slot and the units of it that are resident.
pub(super) type SlotUnits = (u32, u32);

/// Slots that had been left to their keepers, and that nobody keeps any more.
#[derive(Default)]
struct GivenBack {
    resident: Vec<SlotUnits>,
    released: Vec<SlotUnits>,
    /// There is no cache any more.
    is_closed: bool,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Frames {
    slabs: [OnceLock<Slab>; SLABS],
    given_back: Mutex<GivenBack>,
    /// How many slots are in `given_back`.
    given_back_len: AtomicUsize,
    birthplace: Birthplace,
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

impl Slab {
    /// Releases frames. Afterwards no large page keeps them resident, or makes them resident again
    /// when another frame is used.
    ///
    /// # Safety
    /// As for [`Frames::release`].
    unsafe fn release(&self, from: usize, bytes: usize) {
        let pages = from / LARGE_PAGE_BYTES..=(from + bytes - 1) / LARGE_PAGE_BYTES;
        for (at, large) in self.large.iter().enumerate().take(pages.end() + 1).skip(*pages.start())
        {
            if large.swap(false, Ordering::Relaxed) {
                let page = at * LARGE_PAGE_BYTES;
                self.frames.use_small_pages(page, LARGE_PAGE_BYTES);
                let (from, to) = (from.max(page), (from + bytes).min(page + LARGE_PAGE_BYTES));
                // SAFETY: part of the range.
                unsafe { self.frames.split_large_pages(from, to - from) };
            }
        }
        // SAFETY: as the caller vouches.
        unsafe { self.frames.release(from, bytes) };
    }
}

/// The end of the slots whose frames one large page may back, of which `slot` is one.
pub(super) fn large_page_end(slot: u32) -> u32 {
    (slot + FIRST_SLAB_SLOTS + 1).next_multiple_of(LARGE_PAGE_SLOTS) - FIRST_SLAB_SLOTS
}

/// The accounted size of a heap page of `len` bytes.
pub(super) fn heap_charge(len: usize) -> usize {
    heap_bytes_of(len).saturating_add(HEAP_OVERHEAD_BYTES)
}

impl Frames {
    /// Ensures that slots `0..slots` exist. Returns how many exist if the system refuses.
    pub(super) fn reserve(&self, slots: u32) -> u32 {
        let mut have: u32 = 0;
        for (number, slab) in self.slabs.iter().enumerate() {
            if have >= slots {
                return slots;
            }
            if slab.get().is_none() {
                match Slab::reserve(slab_slots(number) as usize) {
                    // If another thread was faster, its slab is used.
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

    /// Backs the frames of one large page with it; `slot` is the first of them. Returns false if
    /// there is no large page. The use of one frame may then make all of them resident.
    pub(super) fn use_large_page(&self, slot: u32) -> bool {
        let (slab, at) = locate(slot);
        let offset = at * UNIT_BYTES;
        self.slabs[slab].get().is_some_and(|slab| {
            let large = slab.large.get(offset / LARGE_PAGE_BYTES);
            let is_done = large.is_some() && slab.frames.use_large_pages(offset, LARGE_PAGE_BYTES);
            if let Some(large) = large {
                large.store(is_done, Ordering::Relaxed);
            }
            is_done
        })
    }

    fn multi_unit_mapping(&self, slot: u32) -> (Option<&Mapping>, usize) {
        let (slab, at) = locate(slot);
        let multi_unit = self.slabs[slab].get().and_then(|slab| slab.multi_unit.get());
        (multi_unit.and_then(Option::as_ref), at * MULTI_BYTES)
    }

    #[inline]
    fn multi_unit(&self, slot: u32) -> NonNull<u8> {
        match self.multi_unit_mapping(slot) {
            // SAFETY: the mapping has a multi-unit frame for each of the slab's slots.
            (Some(mapping), offset) => unsafe { mapping.base().add(offset) },
            (None, _) => unreachable!("slot {slot} has been prepared for a page of several units"),
        }
    }

    /// Prepares the slot for a page in its multi-unit frame. Returns false if the system refuses.
    pub(super) fn prepare_multi_unit(&self, slot: u32) -> bool {
        let number = locate(slot).0;
        let reserve = || Mapping::reserve_sparse(slab_slots(number) as usize * MULTI_BYTES);
        self.slabs[number].get().is_some_and(|slab| slab.multi_unit.get_or_init(reserve).is_some())
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

    /// Prepares the slot for a heap page. Returns the bytes allocated.
    pub(super) fn prepare_heap(&self, slot: u32) -> usize {
        let mut made = 0;
        self.heap_table(slot).0.get_or_init(|| {
            made = size_of::<HeapTable>();
            Box::new(std::array::from_fn(|_| HeapSlot::default()))
        });
        made
    }

    fn kept_table(&self, slot: u32) -> (&OnceLock<Box<KeptTable>>, usize) {
        let (slab, at) = locate(slot);
        match self.slabs[slab].get() {
            Some(slab) => (&slab.kept[at / HEAP_TABLE_SLOTS], at % HEAP_TABLE_SLOTS),
            None => unreachable!("slot {slot} has been reserved"),
        }
    }

    /// Prepares the slot for a page that readers may keep. Returns the bytes allocated.
    pub(super) fn prepare_kept(&self, slot: u32) -> usize {
        let mut made = 0;
        self.kept_table(slot).0.get_or_init(|| {
            made = size_of::<KeptTable>();
            Box::new(std::array::from_fn(|_| AtomicU32::new(0)))
        });
        made
    }

    /// Counts one who keeps the slot, which has been prepared for that.
    #[inline]
    pub(super) fn keep(&self, slot: u32) {
        let (table, at) = self.kept_table(slot);
        let keepers = match table.get() {
            // Relaxed: the end of a grace period makes it visible.
            Some(table) => table[at].fetch_add(1, Ordering::Relaxed),
            None => unreachable!("slot {slot} has been prepared for a value"),
        };
        if keepers >= KEEPERS_MAX {
            // Only slices that are leaked can be so many. As `Arc`, rather than wrap around to nobody.
            std::process::abort();
        }
    }

    /// Counts one who keeps the slot no more. The last one gives a slot back that was left to its keepers.
    pub(super) fn leave(&self, slot: u32, home: PageHome) {
        let (table, at) = self.kept_table(slot);
        if let Some(table) = table.get()
            && table[at].fetch_sub(1, Ordering::AcqRel) == LEFT | 1
        {
            self.give_back((slot, home.units()));
        }
    }

    /// Leaves a slot to its keepers; false if there are none. After the grace period of its eviction there will be no
    /// others, and all that those did who do not keep it any more is visible.
    pub(super) fn leave_to_keepers(&self, slot: u32) -> bool {
        let (table, at) = self.kept_table(slot);
        let Some(table) = table.get() else { return false };
        let is_kept = table[at].fetch_or(LEFT, Ordering::AcqRel) != 0;
        if !is_kept {
            table[at].store(0, Ordering::Relaxed);
        }
        is_kept
    }

    #[cold]
    fn give_back(&self, slot: SlotUnits) {
        if !self.birthplace.is_here() {
            // In a forked child the lock's holder may not exist, and no cache takes the slot.
            return;
        }
        let mut given_back = self.given_back.lock();
        given_back.resident.push(slot);
        if given_back.is_closed || given_back.resident.len() > WAITING_MAX {
            let GivenBack { resident, released, .. } = &mut *given_back;
            // SAFETY: nobody keeps these slots, and the cache has none of them.
            unsafe { self.release_slots(resident) };
            released.append(resident);
        }
        self.given_back_len
            .store(given_back.resident.len() + given_back.released.len(), Ordering::Relaxed);
    }

    /// Whether slots have been given back.
    #[inline]
    pub(super) fn has_given_back(&self) -> bool {
        self.given_back_len.load(Ordering::Relaxed) > 0
    }

    /// The slots that have been given back, with those of their units that are still resident.
    pub(super) fn take_given_back(&self) -> Option<(Vec<SlotUnits>, Vec<SlotUnits>)> {
        if self.given_back_len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut given_back = self.given_back.lock();
        self.given_back_len.store(0, Ordering::Relaxed);
        let slots = (take(&mut given_back.resident), take(&mut given_back.released));
        for (slot, _) in slots.0.iter().chain(&slots.1) {
            let (table, at) = self.kept_table(*slot);
            if let Some(table) = table.get() {
                table[at].store(0, Ordering::Relaxed);
            }
        }
        Some(slots)
    }

    /// Releases the resident memory of slots, each in its frame if it has one unit, else in its multi-unit frame.
    ///
    /// # Safety
    /// No reader sees these slots or can find them any more.
    unsafe fn release_slots(&self, slots: &[SlotUnits]) {
        let mut frames: Vec<u32> =
            slots.iter().filter(|(_, units)| *units == 1).map(|(slot, _)| *slot).collect();
        for &(slot, units) in slots.iter().filter(|(_, units)| *units > 1) {
            // SAFETY: as the caller vouches.
            unsafe { self.release_multi_unit(slot, 0..units as usize) };
        }
        // SAFETY: as the caller vouches.
        unsafe { self.release(&mut frames) };
    }

    /// The page in the slot.
    ///
    /// # Safety
    /// The slot holds a page of that home, and is not recycled while the result lives: the caller
    /// is pinned, and found the slot in the index since.
    #[inline]
    pub(super) unsafe fn bytes(&self, slot: u32, home: PageHome) -> &[u8] {
        match home {
            // SAFETY: the frame's first `len` bytes were written before the page was published.
            PageHome::Frame(len) => unsafe {
                std::slice::from_raw_parts(self.frame(slot).as_ptr(), len)
            },
            // SAFETY: likewise the multi-unit frame's.
            PageHome::MultiUnit(len) => unsafe {
                std::slice::from_raw_parts(self.multi_unit(slot).as_ptr(), len)
            },
            // SAFETY: the slot has owned the heap object since before the page was published.
            PageHome::Heap => unsafe { self.heap_page(slot) },
        }
    }

    /// # Safety
    /// As for [`Frames::bytes`], of a page on the heap.
    pub(super) unsafe fn heap_page(&self, slot: u32) -> &Slice {
        // SAFETY: the slot has owned the slice since before the page was published.
        unsafe { &*self.heap_slot(slot).page.load(Ordering::Relaxed) }
    }

    /// Copies a page into the slot.
    ///
    /// # Safety
    /// The caller has taken the slot for a page of that home, and nobody reads its memory.
    pub(super) unsafe fn fill(&self, slot: u32, home: PageHome, bytes: &[u8]) {
        let (to, room) = match home {
            PageHome::Frame(_) => (self.frame(slot), UNIT_BYTES),
            PageHome::MultiUnit(_) => (self.multi_unit(slot), MULTI_BYTES),
            // SAFETY: as the caller vouches.
            PageHome::Heap => return unsafe { self.fill_heap(slot, Slice::from(bytes)) },
        };
        assert!(bytes.len() <= room);
        // SAFETY: there is room, and it is the caller's alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// As [`Frames::fill`]; a page on the heap is shared.
    ///
    /// # Safety
    /// As for [`Frames::fill`].
    pub(super) unsafe fn fill_shared(&self, slot: u32, home: PageHome, page: &Slice) {
        match home {
            // SAFETY: as the caller vouches.
            PageHome::Heap => unsafe { self.fill_heap(slot, page.clone()) },
            // SAFETY: likewise.
            _ => unsafe { self.fill(slot, home, page) },
        }
    }

    /// Stores a page on the heap for the slot.
    ///
    /// # Safety
    /// The caller has taken the slot, which is prepared for the heap and has no heap page.
    unsafe fn fill_heap(&self, slot: u32, page: Slice) {
        let heap = self.heap_slot(slot);
        debug_assert!(heap.page.load(Ordering::Relaxed).is_null());
        heap.charge.store(heap_charge(page.len()), Ordering::Relaxed);
        heap.page.store(Box::into_raw(Box::new(page)), Ordering::Relaxed);
    }

    /// The accounted size of the slot's heap page.
    pub(super) fn charge_of_heap(&self, slot: u32) -> usize {
        self.heap_slot(slot).charge.load(Ordering::Relaxed)
    }

    /// Drops the slot's heap page.
    ///
    /// # Safety
    /// No reader sees the page or can find it any more.
    pub(super) unsafe fn drop_heap(&self, slot: u32) {
        // SAFETY: as the caller vouches.
        unsafe { self.heap_slot(slot).drop_page() };
    }

    /// Releases the memory of the slots' frames to the system. Sorts the numbers.
    ///
    /// # Safety
    /// No reader sees these frames or can find them any more.
    pub(super) unsafe fn release(&self, slots: &mut [u32]) {
        slots.sort_unstable();
        let next_to = |a: &u32, b: &u32| *b == *a + 1 && locate(*a).0 == locate(*b).0;
        for run in slots.chunk_by(next_to) {
            let (slab, at) = locate(run[0]);
            if let Some(slab) = self.slabs[slab].get() {
                // SAFETY: a run of frames of one slab, which nobody reads.
                unsafe { slab.release(at * UNIT_BYTES, run.len() * UNIT_BYTES) };
            }
        }
    }

    /// Releases the memory of these units of the slot's multi-unit frame to the system.
    ///
    /// # Safety
    /// No reader sees them or can find them any more.
    pub(super) unsafe fn release_multi_unit(&self, slot: u32, units: Range<usize>) {
        debug_assert!(units.end <= MULTI_UNITS);
        if let (Some(mapping), offset) = self.multi_unit_mapping(slot) {
            let from = offset + units.start * UNIT_BYTES;
            // SAFETY: part of the slot's multi-unit frame, which nobody reads.
            unsafe { mapping.release(from, units.len() * UNIT_BYTES) };
        }
    }

    /// The number of resident units of frames and multi-unit frames.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(super) fn resident_units(&self) -> usize {
        let slabs = self.slabs.iter().zip(0..).filter_map(|(slab, n)| Some((slab.get()?, n)));
        let resident = slabs.map(|(slab, number)| {
            let slots = slab_slots(number) as usize;
            let multi_unit = slab.multi_unit.get().and_then(Option::as_ref);
            let of_multi_unit =
                multi_unit.map(|mapping| mapping.resident_units(slots * MULTI_UNITS));
            slab.frames.resident_units(slots) + of_multi_unit.unwrap_or(0)
        });
        resident.sum()
    }

    /// Drops all pages on the heap.
    ///
    /// # Safety
    /// There are no readers any more.
    unsafe fn drop_heap_pages(&self) {
        let slabs = self.slabs.iter().filter_map(OnceLock::get);
        for slot in slabs.flat_map(|slab| &slab.heap).filter_map(OnceLock::get).flat_map(|t| &**t) {
            // SAFETY: as the caller vouches.
            unsafe { slot.drop_page() };
        }
    }

    /// Releases the memory of all slots below `end` that nobody keeps. Those that are kept follow one by one.
    ///
    /// # Safety
    /// There are no readers any more, and there is no cache that uses a slot again.
    pub(super) unsafe fn close(&self, end: u32) {
        {
            let mut given_back = self.given_back.lock();
            given_back.is_closed = true;
            let resident = take(&mut given_back.resident);
            // SAFETY: nobody keeps these slots.
            unsafe { self.release_slots(&resident) };
        }
        let mut free: Vec<u32> = (0..end).filter(|slot| !self.leave_to_keepers(*slot)).collect();
        // SAFETY: as the caller vouches, and nobody keeps these slots.
        unsafe {
            self.release_multi_unit_frames(&free);
            self.release(&mut free);
            // They are kept by counts of their own.
            self.drop_heap_pages();
        }
    }

    /// Releases the memory of the slots' multi-unit frames. The numbers are ascending.
    ///
    /// # Safety
    /// As for [`Frames::release_multi_unit`].
    unsafe fn release_multi_unit_frames(&self, slots: &[u32]) {
        let next_to = |a: &u32, b: &u32| *b == *a + 1 && locate(*a).0 == locate(*b).0;
        for run in slots.chunk_by(next_to) {
            if let (Some(mapping), offset) = self.multi_unit_mapping(run[0]) {
                // SAFETY: the multi-unit frames of a run of slots of one slab.
                unsafe { mapping.release(offset, run.len() * MULTI_BYTES) };
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: there are no readers any more.
        unsafe { self.drop_heap_pages() };
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
    fn a_large_page_ends_where_its_slab_ends_or_before() {
        let (mut slot, mut slab_end) = (0, FIRST_SLAB_SLOTS);
        for slab in 0..if cfg!(miri) { 3 } else { SLABS - 1 } {
            while slot < slab_end {
                let end = large_page_end(slot);
                assert!(end > slot && end <= slab_end && end - slot <= LARGE_PAGE_SLOTS);
                assert_eq!(large_page_end(end - 1), end);
                // The slab's frames are aligned to large pages, if it is large enough to have some.
                assert!(slab < 2 || (locate(slot).1 as u32).is_multiple_of(LARGE_PAGE_SLOTS));
                slot = end;
            }
            slab_end += slab_slots(slab + 1);
        }
    }

    #[test]
    fn pages_of_all_lengths_hold_what_was_put_in() {
        let frames = Frames::default();
        assert_eq!(frames.reserve(FIRST_SLAB_SLOTS + 1), FIRST_SLAB_SLOTS + 1);
        let page = |slot: u32, len: usize| vec![slot as u8 ^ 0x5a; len];
        let slots = [0, 1, FIRST_SLAB_SLOTS - 1, FIRST_SLAB_SLOTS];
        let long = MULTI_BYTES + 1;
        let homes = [7, 4096, 4097, MULTI_BYTES, long].map(PageHome::of);
        assert_eq!(homes[1..3], [PageHome::Frame(4096), PageHome::MultiUnit(4097)]);
        assert_eq!(homes[3..], [PageHome::MultiUnit(MULTI_BYTES), PageHome::Heap]);
        // SAFETY: no other thread knows the slots, and what is read has been filled.
        unsafe {
            for slot in slots {
                frames.fill(slot, PageHome::Frame(4096), &page(slot, 4096));
                assert!(frames.prepare_multi_unit(slot));
                frames.fill(slot, PageHome::MultiUnit(MULTI_BYTES), &page(slot, MULTI_BYTES));
                frames.prepare_heap(slot);
                assert_eq!(frames.prepare_heap(slot), 0);
                frames.fill(slot, PageHome::Heap, &page(slot, long));
            }
            for slot in slots {
                for len in [7, 4096, 4097, MULTI_BYTES, long] {
                    assert_eq!(frames.bytes(slot, PageHome::of(len)), page(slot, len));
                }
            }
            frames.drop_heap(0);
            frames.drop_heap(0);
            frames.release(&mut [FIRST_SLAB_SLOTS, 0, FIRST_SLAB_SLOTS - 1]);
            assert_eq!(frames.bytes(1, PageHome::Frame(4096)), page(1, 4096));
            frames.fill(0, PageHome::Frame(100), &page(9, 100));
            assert_eq!(frames.bytes(0, PageHome::Frame(100)), page(9, 100));
            frames.release_multi_unit(1, 1..MULTI_UNITS);
            assert_eq!(frames.bytes(1, PageHome::MultiUnit(4096)), page(1, 4096));
            for slot in [0, FIRST_SLAB_SLOTS] {
                let bytes = frames.bytes(slot, PageHome::MultiUnit(MULTI_BYTES));
                assert_eq!(bytes, page(slot, MULTI_BYTES));
            }
        }
    }
}
