//! Grace periods by `crossbeam_epoch`.

use std::sync::OnceLock;

use crossbeam_epoch::{Collector, LocalHandle};

pub(in crate::cache) use crossbeam_epoch::Guard;

fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<Collector> = OnceLock::new();
    COLLECTOR.get_or_init(Collector::new)
}

thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
}

/// Pins the calling thread until the guard is dropped. Pins nest, inner ones are nearly free.
#[inline]
pub(in crate::cache) fn pin() -> Guard {
    PARTICIPANT
        .try_with(LocalHandle::pin)
        // A thread that is ending has no handle any more.
        .unwrap_or_else(|_| collector().register().pin())
}

/// Tries to move time on: a few calls end a grace period unless a reader is still pinned.
pub(in crate::cache) fn advance() {
    pin().flush();
}

/// Calls `f` once all who are pinned now have ended.
pub(super) fn defer(f: impl FnOnce() + Send + 'static) {
    let guard = pin();
    guard.defer(f);
    // Otherwise it would wait in this thread's bag until 63 more have come.
    guard.flush();
}
