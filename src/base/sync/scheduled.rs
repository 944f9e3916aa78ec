//! Other types of shuttle's build.
//!
//! Invariants:
//! 1. At each operation here shuttle may switch to another task, as another thread may get ahead
//!    there.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, Ordering};

/// As `crossbeam_utils::Backoff`.
pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff
    }

    pub(crate) fn snooze(&self) {
        shuttle::thread::yield_now();
    }
}

/// As `arc_swap::ArcSwap`. It never waits for another task, so the real one is used.
pub(crate) struct ArcSwap<T> {
    inner: arc_swap::ArcSwap<T>,
    /// Loaded before each operation, so that tasks can be switched there.
    point: AtomicBool,
}

impl<T> ArcSwap<T> {
    pub(crate) fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap { inner: arc_swap::ArcSwap::from_pointee(value), point: AtomicBool::new(false) }
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.point.load(Ordering::SeqCst);
        self.inner.load()
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        self.point.load(Ordering::SeqCst);
        self.inner.load_full()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        self.point.load(Ordering::SeqCst);
        self.inner.store(value);
    }
}
