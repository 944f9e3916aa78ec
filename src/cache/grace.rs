//! Grace periods: when may memory that readers found without a lock be used for something else?
//!
//! A reader is *pinned* while it looks at cached bytes. A [`GracePeriod`] that begins after a page has
//! left the index is over once every reader that was pinned at its beginning has ended.
//!
//! Invariants:
//! 1. Caches have a collector of their own: nobody else's long pins delay their frames. All caches of
//!    the process share one, but for those of deterministic stores.
//! 2. What is deferred owns nothing but a flag, so a cache can be dropped at any time.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_epoch::{Collector, Guard, LocalHandle};

fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<Collector> = OnceLock::new();
    COLLECTOR.get_or_init(Collector::new)
}

thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
    /// The thread's part in the last set of a cache's own readers that it was one of.
    static LAST_OWN: RefCell<Option<(u64, LocalHandle)>> = const { RefCell::new(None) };
}

/// Those whom a grace period waits for.
#[derive(Debug, Clone)]
pub(super) enum Readers {
    /// The readers of all caches that share them: pins nest and are nearly free.
    Shared,
    /// The readers of one cache, so that what others do makes no difference to it. With a number to
    /// tell them by.
    Own(u64, Collector),
}

impl Readers {
    /// Readers of one cache alone.
    pub(super) fn own() -> Readers {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Readers::Own(NUMBERS.fetch_add(1, Ordering::Relaxed), Collector::new())
    }

    /// Pins the calling thread until the guard is dropped. Pins nest, inner ones are cheaper.
    #[inline]
    pub(super) fn pin(&self) -> Guard {
        match self {
            Readers::Shared => PARTICIPANT
                .try_with(LocalHandle::pin)
                // A thread that is ending has no handle any more.
                .unwrap_or_else(|_| collector().register().pin()),
            Readers::Own(number, collector) => pin_own(*number, collector),
        }
    }

    /// Tries to move time on: a few calls end a grace period unless a reader is still pinned.
    pub(super) fn advance(&self) {
        self.pin().flush();
    }
}

fn pin_own(number: u64, collector: &Collector) -> Guard {
    let pinned = LAST_OWN.try_with(|last| {
        let mut last = last.borrow_mut();
        match &*last {
            Some((known, handle)) if *known == number => handle.pin(),
            _ => {
                let handle = collector.register();
                let guard = handle.pin();
                *last = Some((number, handle));
                guard
            }
        }
    });
    pinned.unwrap_or_else(|_| collector.register().pin())
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct GracePeriod(Arc<AtomicBool>);

impl GracePeriod {
    /// Begins now.
    pub(super) fn begin(readers: &Readers) -> GracePeriod {
        let over = Arc::new(AtomicBool::new(false));
        let guard = readers.pin();
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
        for readers in [Readers::Shared, Readers::own()] {
            let (pinned, is_pinned) = std::sync::mpsc::channel();
            let (release, released) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let reader = readers.clone();
                scope.spawn(move || {
                    let _guard = reader.pin();
                    pinned.send(()).unwrap();
                    let _ = released.recv();
                });
                is_pinned.recv().unwrap();
                let period = GracePeriod::begin(&readers);
                for _ in 0..20 {
                    readers.advance();
                }
                assert!(!period.is_over());
                drop(release);
            });
            let period = GracePeriod::begin(&readers);
            // Other tests' threads may be pinned for moments.
            let over = (0..1_000_000).any(|_| {
                readers.advance();
                std::thread::yield_now();
                period.is_over()
            });
            assert!(over, "the grace period never ended");
        }
    }

    #[test]
    fn a_cache_with_its_own_readers_waits_for_no_others() {
        let (ours, others) = (Readers::own(), Readers::own());
        let _pins = (others.pin(), Readers::Shared.pin());
        let period = GracePeriod::begin(&ours);
        // From one to the other and back: the pins of both count on.
        let held = others.pin();
        let theirs = GracePeriod::begin(&others);
        for _ in 0..4 {
            ours.advance();
            others.advance();
        }
        assert!(period.is_over() && !theirs.is_over());
        drop(held);
    }
}
