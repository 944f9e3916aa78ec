//! Whether this thread holds the change lock of a tree, and what it has asked of files meanwhile. Nobody may wait for a sync
//! with the lock held: debug builds refuse it. Pages are read under the lock by a change that others overtake again and
//! again, and by no other: tests ask what has been read.
//!
//! Invariants:
//! 1. Release builds keep nothing and refuse nothing. Nor do builds for shuttle, whose tasks share one thread.

#[cfg(any(test, debug_assertions))]
use std::cell::Cell;
#[cfg(test)]
use std::cell::RefCell;

#[cfg(any(test, debug_assertions))]
thread_local! {
    static LOCKS: Cell<u32> = const { Cell::new(0) };
}

#[cfg(test)]
thread_local! {
    static FOUND: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Exists while a lock is held.
pub(crate) struct Held(());

impl Held {
    pub(crate) fn begin() -> Held {
        #[cfg(any(test, debug_assertions))]
        LOCKS.set(LOCKS.get() + 1);
        Held(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        #[cfg(any(test, debug_assertions))]
        LOCKS.set(LOCKS.get() - 1);
    }
}

/// Panics in debug builds if a lock is held: a sync, or what may wait for one, is about to begin.
#[inline(always)]
pub(crate) fn refuse(what: &str) {
    #[cfg(all(any(test, debug_assertions), not(shuttle)))]
    assert!(LOCKS.get() == 0, "{what}, with the change lock of a tree held");
    #[cfg(not(all(any(test, debug_assertions), not(shuttle))))]
    let _ = what;
}

/// What `f` does is not noted.
#[cfg(test)]
pub(crate) fn without<T>(f: impl FnOnce() -> T) -> T {
    let locks = LOCKS.replace(0);
    let result = f();
    LOCKS.set(locks);
    result
}

/// The file system is asked for something that may take long.
#[cfg(test)]
pub(crate) fn note(what: impl FnOnce() -> String) {
    if LOCKS.get() > 0 {
        FOUND.with_borrow_mut(|found| found.push(what()));
    }
}

/// What has been asked for with a lock held since the last call.
#[cfg(test)]
pub(crate) fn take() -> Vec<String> {
    FOUND.take()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vfs::{MemoryVfs, Vfs};

    /// Tests of the trees would find nothing if this went unnoticed.
    #[test]
    #[should_panic(expected = "the sync of a directory, with the change lock of a tree held")]
    fn a_sync_with_a_change_lock_held_is_refused() {
        let vfs = MemoryVfs::new();
        vfs.sync_dir(Path::new("/")).unwrap();
        let _held = Held::begin();
        let _ = vfs.sync_dir(Path::new("/"));
    }
}
