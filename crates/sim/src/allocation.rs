//! An allocator that counts, to detect decoders that trust a damaged length.
//!
//! Each thread has its own count: the bytes that it has allocated minus the bytes that it has
//! freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
}

/// More than this at once is refused while a case is measured, which ends the process with a word.
const BYTES_MAX: usize = 4 << 30;

/// The system's allocator, counting.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

fn count(bytes: isize) {
    // A thread that is ending has nothing to count with any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn is_too_large(bytes: usize) -> bool {
    let is_too_large = bytes > BYTES_MAX && IS_COUNTING.try_with(Cell::get).unwrap_or(false);
    if is_too_large {
        // Without a lock or an allocation; the case is on the last line of progress.
        let _ = std::io::stderr().write_all(b"an allocation of more than 4 GiB was asked for\n");
    }
    is_too_large
}

// SAFETY: everything is the system's allocator's doing; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_too_large(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_too_large(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, bytes: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(bytes, layout) }
    }

    unsafe fn realloc(&self, bytes: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_too_large(new_size) {
            return std::ptr::null_mut();
        }
        count(new_size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.realloc(bytes, layout, new_size) }
    }
}

/// Carries `f` out, and says how many bytes it has held at most beyond what was held before.
/// Nothing is counted unless [`Counting`] is the program's allocator.
pub fn measure<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    IS_COUNTING.set(true);
    let result = f();
    IS_COUNTING.set(false);
    (result, PEAK.get().saturating_sub(before).max(0) as usize)
}
