//! Which process this is: whether something was made here, or in a process that this one was forked
//! from.
//!
//! A forked child has its parent's memory and none of its threads. What it writes into an open
//! store nobody syncs or packs, its locks may be held by threads that do not exist, and its files,
//! rings and mapped segments are the parent's. So whatever must not be used or tidied up there
//! keeps a [`Birthplace`].
//!
//! Invariants:
//! 1. Asking costs a load and a comparison, no system call.
//! 2. A child is told apart where the system can wipe a page on fork (Linux since 4.14); elsewhere
//!    it is not.

use std::sync::OnceLock;

use super::sync::plain::{AtomicU64, Ordering};

/// The process in which something was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Birthplace {
    /// The process's name; zero in a child that has not named itself.
    now: &'static AtomicU64,
    then: u64,
}

impl Birthplace {
    /// This process.
    pub(crate) fn here() -> Birthplace {
        static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
        let now = *PAGE.get_or_init(page);
        if now.load(Ordering::Relaxed) == 0 {
            // Whichever thread is first names the process.
            let _ = now.compare_exchange(0, new_name(), Ordering::Relaxed, Ordering::Relaxed);
        }
        Birthplace { now, then: now.load(Ordering::Relaxed) }
    }

    /// A process that this is not.
    #[cfg(test)]
    pub(crate) fn elsewhere() -> Birthplace {
        Birthplace { then: u64::MAX, ..Birthplace::here() }
    }

    /// Whether this is the process in which it was made, not one forked from it.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.now.load(Ordering::Relaxed) == self.then
    }
}

/// A name that no process has from which this one was forked: they have lower ones.
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
    // SAFETY: a new mapping at an address of the system's choice touches no memory that exists.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), UNIT_BYTES, protection, MapFlags::PRIVATE) };
    let Ok(start) = mapped else { return &FALLBACK };
    // SAFETY: the range is the mapping just made. If the system does not know the advice, children
    // are not told apart.
    let _ = unsafe { madvise(start, UNIT_BYTES, Advice::LinuxWipeOnFork) };
    // SAFETY: the mapping is aligned, zero, never unmapped, and used through this atomic alone.
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
