//! How often this thread has looked at a node or a table of a tree, for tests that count what work costs instead of
//! taking its time.

use std::cell::Cell;

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one.
pub(crate) fn note() {
    VISITS.set(VISITS.get() + 1);
}

/// The visits of `f`.
pub(crate) fn of<T>(f: impl FnOnce() -> T) -> (u64, T) {
    let before = VISITS.get();
    let result = f();
    (VISITS.get() - before, result)
}

/// While it exists, visits do not count: a check for debug builds is at work.
pub(crate) struct Uncounted(u64);

impl Uncounted {
    pub(crate) fn begin() -> Uncounted {
        Uncounted(VISITS.get())
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        VISITS.set(self.0);
    }
}
