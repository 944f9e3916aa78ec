//! Grace periods: when may memory that readers found without a lock be used for something else?
//!
//! A reader is *pinned* while it looks at cached bytes. A [`GracePeriod`] that begins after a page has
//! left the index is over once every reader that was pinned at its beginning has ended.
//!
//! Invariants:
//! 1. The cache has a collector of its own: nobody else's long pins delay its frames.
//! 2. What is deferred owns nothing but a flag, so a cache can be dropped at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_epoch::{Collector, Guard, LocalHandle};

fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<Collector> = OnceLock::new();
    COLLECTOR.get_or_init(Collector::new)
}

thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
}

/// Pins the calling thread until the guard is dropped. Pins nest, inner ones are nearly free.
#[inline]
pub(super) fn pin() -> Guard {
    PARTICIPANT
        .try_with(LocalHandle::pin)
        // A thread that is ending has no handle any more.
        .unwrap_or_else(|_| collector().register().pin())
}

/// Tries to move time on: a few calls end a grace period unless a reader is still pinned.
pub(super) fn advance() {
    pin().flush();
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct GracePeriod(Arc<AtomicBool>);

impl GracePeriod {
    /// Begins now.
    pub(super) fn begin() -> GracePeriod {
        let over = Arc::new(AtomicBool::new(false));
        let guard = pin();
        let flag = Arc::clone(&over);
        guard.defer(move || flag.store(true, Ordering::Release));
        // Otherwise it would wait in this thread's bag until 63 more have come.
        guard.flush();
        GracePeriod(over)
    }

    /// Whether it is over. Everything that readers did before is then done.
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_outlasts_the_readers_that_were_there_and_no_others() {
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _guard = pin();
                pinned.send(()).unwrap();
                let _ = released.recv();
            });
            is_pinned.recv().unwrap();
            let period = GracePeriod::begin();
            for _ in 0..20 {
                advance();
            }
            assert!(!period.is_over());
            drop(release);
        });
        let period = GracePeriod::begin();
        // Other tests' threads may be pinned for moments.
        for _ in 0..1_000_000 {
            if period.is_over() {
                return;
            }
            advance();
            std::thread::yield_now();
        }
        panic!("the grace period never ended");
    }
}
