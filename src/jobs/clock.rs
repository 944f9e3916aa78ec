//! Time as the store sees it: the machine's, or a counter that only tests move.

use std::time::{Duration, Instant};

use crate::base::sync::plain::{AtomicU64, Ordering};

/// A monotonic clock that starts at zero.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The machine's.
    Real(Instant),
    /// Nanoseconds that advance by sleeping alone.
    Virtual(AtomicU64),
}

impl Clock {
    /// The machine's clock.
    pub(crate) fn real() -> Clock {
        // What a scenario does must depend on its schedule alone.
        if cfg!(shuttle) {
            return Clock::simulated();
        }
        Clock::Real(Instant::now())
    }

    /// A clock that stands still but for `sleep`.
    pub(crate) fn simulated() -> Clock {
        Clock::Virtual(AtomicU64::new(0))
    }

    /// Whether it is the machine's: what happens need not follow from a seed.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Clock::Real(_))
    }

    /// Nanoseconds since the clock was made.
    pub(crate) fn nanos(&self) -> u64 {
        match self {
            Clock::Real(start) => start.elapsed().as_nanos() as u64,
            Clock::Virtual(nanos) => nanos.load(Ordering::Relaxed),
        }
    }

    /// Lets `duration` pass.
    pub(crate) fn sleep(&self, duration: Duration) {
        match self {
            Clock::Real(_) => std::thread::sleep(duration),
            Clock::Virtual(nanos) => {
                nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
            }
        }
    }
}
