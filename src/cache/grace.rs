//! Grace periods: when may memory that readers found without a lock be used for something else?
//!
//! A reader is *pinned* while it looks at cached bytes. A [`GracePeriod`] that begins after a page has
//! left the index is over once every reader that was pinned at its beginning has ended.
//!
//! Invariants:
//! 1. The cache has a collector of its own: nobody else's long pins delay its frames.
//! 2. What is deferred owns nothing but a flag, so a cache can be dropped at any time.

use std::sync::Arc;

use crate::base::sync::modelled::{AtomicBool, Ordering};

#[cfg(not(shuttle))]
mod collected;
#[cfg(shuttle)]
mod counted;

#[cfg(not(shuttle))]
use collected as collector;
#[cfg(shuttle)]
use counted as collector;

pub(super) use collector::{Guard, advance, pin};

/// Says once that a grace period is over, and brings along everything that readers did before.
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
    pub(super) fn begin() -> GracePeriod {
        let over = Over::new();
        let flag = over.clone();
        collector::defer(move || flag.set());
        GracePeriod(over)
    }

    /// Whether it is over. Everything that readers did before is then done.
    pub(super) fn is_over(&self) -> bool {
        self.0.get()
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
