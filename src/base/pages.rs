//! `Pages` and `PageVec`: memory in whole pages of 4 KiB, outside the heap, for large and
//! short-lived buffers.
//!
//! Compactions and scans briefly use buffers of many sizes. In the heap, small long-lived objects
//! fill the gaps between them, so that the next buffer needs new memory: with thousands of tables,
//! a heap with 11 MB in use occupied 70 MB. Here each piece is memory from the system and is
//! returned to it as a whole.
//!
//! Invariants:
//! 1. Every byte of a piece is initialised: zero when it comes from the system, or whatever its
//!    last user left there.
//! 2. At most [`IDLE_BYTES_MAX`] are idle, for all stores of the process together, and no idle
//!    piece has more than [`KEPT_BYTES_MAX`].
//! 3. A piece is at most a quarter larger than requested, and always whole pages. While it is new,
//!    only its touched part is resident. A piece of at most [`SMALL_BYTES_MAX`] is on the heap,
//!    because a whole page would be many times its size.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::limits::UNIT_BYTES;
use super::mapping::Mapping;

/// The largest number of idle bytes kept for reuse: about what two compactions free when they end.
#[cfg(not(any(miri, shuttle)))]
const IDLE_BYTES_MAX: usize = 4 << 20;
/// Larger pieces are returned to the system at once.
#[cfg(not(any(miri, shuttle)))]
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Pieces of at most this many bytes are allocated on the heap.
const SMALL_BYTES_MAX: usize = UNIT_BYTES / 2;
/// The alignment of small pieces.
const SMALL_ALIGN: usize = 64;

/// Owned memory in whole pages.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
    /// The mapping that has the memory; `None` if it is on the heap.
    mapping: Option<Mapping>,
}

// SAFETY: `Pages` owns plain bytes, like `Vec<u8>`.
unsafe impl Send for Pages {}
// SAFETY: shared access only gives addresses. Their users are responsible for accesses.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates at least `bytes` bytes. They are zeroed if the flag is set.
    pub(crate) fn take(bytes: usize) -> (Pages, bool) {
        let bytes = size_class(bytes);
        if bytes > SMALL_BYTES_MAX {
            if let Some(mapping) = idle::take(bytes) {
                return (Pages { start: mapping.base(), bytes, mapping: Some(mapping) }, false);
            }
            if let Some(mapping) = idle::reserve(bytes) {
                return (Pages { start: mapping.base(), bytes, mapping: Some(mapping) }, true);
            }
        }
        let layout = Pages::layout(bytes);
        // SAFETY: the layout's size is not zero: no size class is zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => (Pages { start, bytes, mapping: None }, true),
            None => handle_alloc_error(layout),
        }
    }

    /// Returns the address of the first byte: a multiple of 4 KiB, or of [`SMALL_ALIGN`] if the
    /// piece is small.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of bytes, all of them initialised.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn layout(bytes: usize) -> Layout {
        let align = if bytes > SMALL_BYTES_MAX { UNIT_BYTES } else { SMALL_ALIGN };
        Layout::from_size_align(bytes, align).expect("a buffer is smaller than the address space")
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        match self.mapping.take() {
            Some(mapping) => idle::give_back(self.bytes, mapping),
            // SAFETY: allocated in `take` with the same layout.
            None => unsafe { dealloc(self.start.as_ptr(), Pages::layout(self.bytes)) },
        }
    }
}

/// Returns the size class of `bytes`. On the heap it is a multiple of the alignment; above that 1,
/// 2, 3 or 4 units, then four sizes per power of two.
pub(super) fn size_class(bytes: usize) -> usize {
    if bytes <= SMALL_BYTES_MAX {
        return bytes.max(1).next_multiple_of(SMALL_ALIGN);
    }
    let units = bytes.div_ceil(UNIT_BYTES).max(1);
    let step = 1 << units.ilog2().saturating_sub(2);
    units.next_multiple_of(step) * UNIT_BYTES
}

/// Idle pieces, kept for reuse.
#[cfg(not(any(miri, shuttle)))]
mod idle {
    use std::collections::BTreeMap;

    use super::{IDLE_BYTES_MAX, KEPT_BYTES_MAX};
    use crate::base::mapping::Mapping;
    use crate::base::sync::Mutex;

    pub(super) struct Idle {
        pub(super) by_bytes: BTreeMap<usize, Vec<Mapping>>,
        pub(super) bytes: usize,
    }

    impl Idle {
        pub(super) const fn new() -> Idle {
            Idle { by_bytes: BTreeMap::new(), bytes: 0 }
        }

        pub(super) fn take(&mut self, bytes: usize) -> Option<Mapping> {
            let mapping = self.by_bytes.get_mut(&bytes)?.pop()?;
            self.bytes -= bytes;
            Some(mapping)
        }

        /// Keeps the piece. Returns pieces to free if too much is idle, of the sizes with the most
        /// idle bytes: sizes that are no longer requested make way for those that are.
        pub(super) fn keep(&mut self, bytes: usize, mapping: Mapping) -> Vec<Mapping> {
            if bytes > KEPT_BYTES_MAX {
                return vec![mapping];
            }
            self.by_bytes.entry(bytes).or_default().push(mapping);
            self.bytes += bytes;
            let mut surplus = Vec::new();
            while self.bytes > IDLE_BYTES_MAX {
                let most = self.by_bytes.iter_mut().max_by_key(|(bytes, idle)| *bytes * idle.len());
                let Some((bytes, idle)) = most else { break };
                self.bytes -= bytes;
                surplus.extend(idle.pop());
            }
            surplus
        }
    }

    /// Does not wait for the lock: in a forked child, its holder may not exist.
    static IDLE: Mutex<Idle> = Mutex::new(Idle::new());

    pub(super) fn take(bytes: usize) -> Option<Mapping> {
        if bytes > KEPT_BYTES_MAX { None } else { IDLE.try_lock()?.take(bytes) }
    }

    pub(super) fn reserve(bytes: usize) -> Option<Mapping> {
        Mapping::reserve_sparse(bytes)
    }

    pub(super) fn give_back(bytes: usize, mapping: Mapping) {
        let Some(mut idle) = IDLE.try_lock() else { return };
        let surplus = idle.keep(bytes, mapping);
        // Unmapped after the lock is released.
        drop(idle);
        drop(surplus);
    }
}

/// The interpreter has no mappings, and scheduling tests need to see each allocation: there all
/// memory is on the heap.
#[cfg(any(miri, shuttle))]
mod idle {
    use crate::base::mapping::Mapping;

    pub(super) fn take(_bytes: usize) -> Option<Mapping> {
        None
    }

    pub(super) fn reserve(_bytes: usize) -> Option<Mapping> {
        None
    }

    pub(super) fn give_back(_bytes: usize, _mapping: Mapping) {}
}

/// The item types that a [`PageVec`] can hold.
///
/// # Safety
/// Every bit pattern is a valid value of the type, it owns nothing, and its alignment is at most
/// [`SMALL_ALIGN`].
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: any eight bytes are a valid number.
unsafe impl Plain for u64 {}
// SAFETY: any four bytes are a valid number.
unsafe impl Plain for u32 {}
// SAFETY: any byte is a valid number.
unsafe impl Plain for u8 {}

/// A growable list, like `Vec`, stored in [`Pages`].
#[derive(Debug)]
pub(crate) struct PageVec<T: Plain> {
    pages: Option<Pages>,
    len: usize,
    items: PhantomData<T>,
}

impl<T: Plain> Default for PageVec<T> {
    fn default() -> PageVec<T> {
        PageVec { pages: None, len: 0, items: PhantomData }
    }
}

impl<T: Plain> PageVec<T> {
    /// Returns an empty list with room for `capacity` items.
    pub(crate) fn with_capacity(capacity: usize) -> PageVec<T> {
        let mut list = PageVec::default();
        if capacity > 0 {
            list.pages = Some(Pages::take(PageVec::<T>::bytes_of(capacity)).0);
        }
        list
    }

    /// Returns `len` items, all bytes zero.
    pub(crate) fn zeroed(len: usize) -> PageVec<T> {
        let mut list = PageVec { pages: None, len, items: PhantomData };
        if len > 0 {
            let bytes = PageVec::<T>::bytes_of(len);
            let (pages, is_zero) = Pages::take(bytes);
            if !is_zero {
                // SAFETY: the piece has at least so many bytes, and nothing else refers to them.
                unsafe { pages.start().write_bytes(0, bytes) };
            }
            list.pages = Some(pages);
        }
        list
    }

    /// Returns `len` items with arbitrary content, for callers that overwrite them before reading.
    pub(crate) fn unzeroed(len: usize) -> PageVec<T> {
        let mut list = PageVec::with_capacity(len);
        list.len = len;
        list
    }

    fn bytes_of(items: usize) -> usize {
        items.checked_mul(size_of::<T>()).expect("a list is smaller than the address space")
    }

    /// Returns the number of items that fit.
    pub(crate) fn capacity(&self) -> usize {
        self.pages.as_ref().map_or(0, |pages| pages.bytes() / size_of::<T>())
    }

    /// Appends an item.
    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        if self.len == self.capacity() {
            self.grow();
        }
        if let Some(pages) = &self.pages {
            // SAFETY: there is room for one more item behind the last, aligned as pages are.
            unsafe { pages.start().cast::<T>().add(self.len).write(item) };
            self.len += 1;
        }
    }

    /// Doubles the capacity.
    #[cold]
    fn grow(&mut self) {
        let mut larger = PageVec::with_capacity((2 * self.len).max(UNIT_BYTES / size_of::<T>()));
        larger.len = self.len;
        larger.copy_from_slice(self);
        *self = larger;
    }

    /// Truncates the list to `len` items.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes consecutive duplicates.
    pub(crate) fn dedup(&mut self)
    where
        T: PartialEq,
    {
        let items = &mut **self;
        let mut kept = items.len().min(1);
        for i in 1..items.len() {
            items[kept] = items[i];
            kept += usize::from(items[kept] != items[kept - 1]);
        }
        self.truncate(kept);
    }
}

impl<T: Plain> Deref for PageVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.pages {
            // SAFETY: the first `len` items are initialised and aligned; any bytes are valid items.
            Some(pages) => unsafe {
                std::slice::from_raw_parts(pages.start().cast::<T>().as_ptr(), self.len)
            },
            None => &[],
        }
    }
}

impl<T: Plain> DerefMut for PageVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &self.pages {
            // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
            Some(pages) => unsafe {
                std::slice::from_raw_parts_mut(pages.start().cast::<T>().as_ptr(), self.len)
            },
            None => &mut [],
        }
    }
}

impl<T: Plain> Extend<T> for PageVec<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T: Plain> FromIterator<T> for PageVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> PageVec<T> {
        let items = items.into_iter();
        let mut list = PageVec::with_capacity(items.size_hint().0);
        list.extend(items);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_at_most_a_quarter_more_than_was_asked_for() {
        // A filter of 64 bytes used a whole page: the small tables of 200 keyspaces had about a
        // thousand.
        for (bytes, class) in
            [(0, 64), (1, 64), (64, 64), (65, 128), (SMALL_BYTES_MAX, SMALL_BYTES_MAX)]
        {
            assert_eq!(size_class(bytes), class);
        }
        assert_eq!(size_class(SMALL_BYTES_MAX + 1), UNIT_BYTES);
        for units in 1..5000 {
            for bytes in [units * UNIT_BYTES - 1, units * UNIT_BYTES] {
                let class = size_class(bytes);
                assert!(class >= bytes && class.is_multiple_of(UNIT_BYTES));
                assert!(class * 4 <= units * UNIT_BYTES * 5, "{bytes} bytes get {class}");
                assert_eq!(size_class(class), class);
            }
        }
    }

    #[test]
    fn a_list_does_what_a_vector_does() {
        let count = if cfg!(miri) { 1500 } else { 300_000 };
        let mut list = PageVec::default();
        let mut vector = Vec::new();
        assert_eq!((list.len(), list.capacity()), (0, 0));
        for i in 0..count {
            let item = (i * i / 3) as u32 / 7;
            list.push(item);
            vector.push(item);
        }
        assert_eq!(*list, *vector);
        list.dedup();
        vector.dedup();
        assert_eq!(*list, *vector);
        list.sort_unstable_by(|a, b| b.cmp(a));
        list.truncate(count / 9);
        list.truncate(count);
        vector.sort_unstable_by(|a, b| b.cmp(a));
        vector.truncate(count / 9);
        assert_eq!(*list, *vector);
        assert_eq!(
            *(0..count as u64).collect::<PageVec<_>>(),
            *(0..count as u64).collect::<Vec<_>>()
        );
        let mut empty = PageVec::<u64>::with_capacity(0);
        empty.dedup();
        assert!(empty.is_empty() && empty.first_mut().is_none());
    }

    #[test]
    fn what_is_zeroed_is_zero_also_when_its_memory_was_used_before() {
        for _ in 0..3 {
            for len in [1, 2048, 2049, 4096, 5000, 20_000] {
                let mut list = PageVec::<u8>::zeroed(len);
                assert!(list.len() == len && list.iter().all(|&byte| byte == 0));
                list.fill(0xa5);
            }
        }
        assert!(PageVec::<u8>::zeroed(0).is_empty());
    }

    /// Common sizes change with the workload: idle pieces of sizes no longer in use filled the
    /// limit.
    #[cfg(not(any(miri, shuttle)))]
    #[test]
    fn idle_memory_is_bounded_and_goes_to_the_sizes_that_are_asked_for() {
        let mut idle = idle::Idle::new();
        let mapping = |bytes| Mapping::reserve_sparse(bytes).unwrap();
        let (old, new) = (16 << 10, 56 << 10);
        for _ in 0..1000 {
            idle.keep(old, mapping(old));
            assert!(idle.bytes <= IDLE_BYTES_MAX);
        }
        assert_eq!(idle.bytes, IDLE_BYTES_MAX);
        for _ in 0..1000 {
            idle.keep(new, mapping(new));
            assert!(idle.bytes <= IDLE_BYTES_MAX);
        }
        let mut taken = Vec::new();
        while let Some(mapping) = idle.take(new) {
            taken.push(mapping);
        }
        assert!(taken.len() * new > IDLE_BYTES_MAX / 3, "{} pieces of {new} bytes", taken.len());
        assert_eq!(idle.keep(2 << 20, mapping(2 << 20)).len(), 1, "a large piece is not kept");
        assert_eq!(idle.bytes, idle.by_bytes.iter().map(|(bytes, idle)| bytes * idle.len()).sum());
    }
}
