//! Grace periods: when memory that readers find without a lock can be reused.
//!
//! A reader is *pinned* while it looks at cached bytes. A [`GracePeriod`] that begins after a page
//! has left the index is over once every reader that was pinned at its beginning has unpinned.
//!
//! Invariants:
//! 1. Caches have a collector of their own, so that long pins elsewhere do not delay their frames.
//!    All caches of a process share it, except those of deterministic stores.
//! 2. Deferred functions own only a flag, so a cache can be dropped at any time.

use std::sync::Arc;

use crate::base::sync::modelled::{AtomicBool, Ordering};

#[cfg(not(shuttle))]
mod collected;
#[cfg(shuttle)]
mod counted;

#[cfg(not(shuttle))]
pub(super) use collected::{Guard, Readers};
#[cfg(shuttle)]
pub(super) use counted::{Guard, Readers};

/// Reports once that a grace period is over, and makes everything that readers did before visible.
#[derive(Debug, Clone)]
pub(super) struct Over(Arc<AtomicBool>);

impl Over {
    pub(super) fn new() -> Over {
        Over(Arc::new(AtomicBool::new(false)))
    }

    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct GracePeriod(Over);

impl GracePeriod {
    /// Begins now.
    pub(super) fn begin(readers: &Readers) -> GracePeriod {
        let over = Over::new();
        let flag = over.clone();
        readers.defer(move || flag.set());
        GracePeriod(over)
    }

    /// Whether the period is over. Everything that readers did before is then visible.
    pub(super) fn is_over(&self) -> bool {
        self.0.get()
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

    /// The last handle of a collector that nobody else held freed the memory that it still had a
    /// reference to, which the language forbids. So a thread that had read a deterministic store
    /// and outlived it ended with undefined behaviour, if of a kind that no processor shows: only
    /// an interpreter that checks references (Miri) sees this test fail.
    #[test]
    fn a_thread_may_outlive_the_cache_it_has_read() {
        let thread = std::thread::spawn(|| {
            let readers = Readers::own();
            drop(readers.pin());
            GracePeriod::begin(&readers)
        });
        let period = thread.join().unwrap();
        assert!(period.is_over(), "the thread's end is the end of its readers");
    }
}
