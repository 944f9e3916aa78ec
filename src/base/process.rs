//! [`Birthplace`]: tells whether an object was made in this process or in a process from which this
//! one was forked.
//!
//! A forked child has its parent's memory but not its threads. Nobody syncs or flushes what the
//! child writes into an open store. Locks may be held by threads that do not exist. Files, rings
//! and mapped segments belong to the parent. So every object that must not be used or cleaned up in
//! a child has a [`Birthplace`].
//!
//! Invariants:
//! 1. A check costs a load and a comparison, no system call.
//! 2. A child is detected only if the system can wipe a page on fork (Linux since 4.14).

use std::sync::OnceLock;

use super::sync::plain::{AtomicU64, Ordering};

/// The process in which an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birthplace {
    /// The process's number; zero in a child that has not set its own yet.
    now: &'static AtomicU64,
    then: u64,
}

impl Birthplace {
    /// Returns the current process.
    pub(crate) fn here() -> Birthplace {
        static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
        let now = *PAGE.get_or_init(page);
        if now.load(Ordering::Relaxed) == 0 {
            // The first thread to get here sets the number.
            let _ = now.compare_exchange(0, new_name(), Ordering::Relaxed, Ordering::Relaxed);
        }
        Birthplace { now, then: now.load(Ordering::Relaxed) }
    }

    /// A process other than this one.
    #[cfg(test)]
    pub(crate) fn elsewhere() -> Birthplace {
        Birthplace { then: u64::MAX, ..Birthplace::here() }
    }

    /// Returns true in the process in which the object was made, false in one forked from it.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.now.load(Ordering::Relaxed) == self.then
    }
}

impl Default for Birthplace {
    fn default() -> Birthplace {
        Birthplace::here()
    }
}

/// Returns a number greater than that of every process from which this one was forked.
fn new_name() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(all(target_os = "linux", not(miri)))]
fn page() -> &'static AtomicU64 {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    use super::limits::UNIT_BYTES;
    static FALLBACK: AtomicU64 = AtomicU64::new(0);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), UNIT_BYTES, protection, MapFlags::PRIVATE) };
    let Ok(start) = mapped else { return &FALLBACK };
    // SAFETY: the range is the new mapping. If the system does not support the advice, children are
    // not detected.
    let _ = unsafe { madvise(start, UNIT_BYTES, Advice::LinuxWipeOnFork) };
    // SAFETY: the mapping is aligned, zeroed, never unmapped, and only used through this atomic.
    unsafe { &*start.cast::<AtomicU64>() }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn page() -> &'static AtomicU64 {
    static NAME: AtomicU64 = AtomicU64::new(0);
    &NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_made_in_a_process_is_at_home_in_it() {
        let (first, second) = (Birthplace::here(), Birthplace::here());
        assert!(first.is_here() && second.is_here());
        assert_eq!(first.then, second.then);
    }
}
