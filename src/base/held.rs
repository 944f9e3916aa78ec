//! Whether this thread holds the change lock of a tree, and what it has asked of files meanwhile: for tests of locks that no
//! disk may be waited for under.

use std::cell::{Cell, RefCell};

thread_local! {
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    static FOUND: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Exists while a lock is held.
pub(crate) struct Held(());

impl Held {
    pub(crate) fn begin() -> Held {
        LOCKS.set(LOCKS.get() + 1);
        Held(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        LOCKS.set(LOCKS.get() - 1);
    }
}

/// What `f` does is not noted.
pub(crate) fn without<T>(f: impl FnOnce() -> T) -> T {
    let locks = LOCKS.replace(0);
    let result = f();
    LOCKS.set(locks);
    result
}

/// The file system is asked for something that may take long.
pub(crate) fn note(what: impl FnOnce() -> String) {
    if LOCKS.get() > 0 {
        FOUND.with_borrow_mut(|found| found.push(what()));
    }
}

/// What has been asked for with a lock held since the last call.
pub(crate) fn take() -> Vec<String> {
    FOUND.take()
}
