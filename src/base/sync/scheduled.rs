//! What else is shuttle's in its build.
//!
//! Invariants:
//! 1. Each operation here is a place where shuttle may switch to another task, as each may be where
//!    another thread gets ahead.

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

/// As `arc_swap::ArcSwap`. Nothing in it ever waits for another task, so the real one serves.
pub(crate) struct ArcSwap<T> {
    inner: arc_swap::ArcSwap<T>,
    /// Asked before each operation, to make it a place where tasks are switched.
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
