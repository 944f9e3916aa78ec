//! Backpressure: a continuous delay per byte written, from the backlog of background work.
//!
//! Invariants:
//! 1. Up to a backlog of one half the delay is zero. From there it rises continuously, and without bound as the
//!    backlog approaches 1.
//! 2. A writer sleeps for at most `DELAY_MAX` at a time.

use std::time::Duration;

use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::jobs::Clock;

const DELAY_MAX: Duration = Duration::from_millis(10);
/// Delays are accumulated up to this before a writer sleeps. Each sleep costs two context switches and the system's
/// slack of 50 µs, and delays one commit: under full load, one in 2,500 waits a millisecond, where one in 250 would
/// wait a tenth of that.
const DELAY_MIN_NANOS: u64 = 1_000_000;
/// Backlog up to which there is no delay.
const BACKLOG_FREE: f64 = 0.5;

/// The delays so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThrottleStatistics {
    pub(crate) total: Duration,
    /// Delays up to 0.1, 1, 10, 100, 1000 ms and above.
    pub(crate) histogram: [u64; 6],
}

/// The delay per byte written to one keyspace.
#[derive(Debug, Default)]
pub(crate) struct WriteDelay {
    picos_per_byte: AtomicU64,
}

impl WriteDelay {
    /// Sets the delay from the backlog and the rate at which background work drains it. Returns true if throttling
    /// begins or ends with this.
    pub(crate) fn set(&self, backlog: f64, drain_bytes_per_second: f64) -> bool {
        let picos = if backlog <= BACKLOG_FREE {
            0
        } else {
            let behind = (backlog.min(0.999) - BACKLOG_FREE) / (1.0 - backlog.min(0.999));
            (behind * 1e12 / drain_bytes_per_second.max(1e6)) as u64
        };
        let before = self.picos_per_byte.swap(picos, Ordering::Relaxed);
        (before == 0) != (picos == 0)
    }

    /// The delay per mebibyte.
    pub(crate) fn per_mib(&self) -> Duration {
        Duration::from_nanos((self.picos_per_byte.load(Ordering::Relaxed) as f64 * 1048.576) as u64)
    }
}

/// Slows writers.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Delays that no writer has slept yet.
    pending_nanos: AtomicU64,
    total_nanos: AtomicU64,
    histogram: [AtomicU64; 6],
}

impl Throttle {
    /// Delays a writer of `bytes`.
    #[inline]
    pub(crate) fn delay(&self, bytes: u64, delay: &WriteDelay, clock: &Clock) {
        let picos = delay.picos_per_byte.load(Ordering::Relaxed);
        if picos > 0 {
            self.delay_slow(bytes, picos, clock);
        }
    }

    #[cold]
    fn delay_slow(&self, bytes: u64, picos: u64, clock: &Clock) {
        let nanos = bytes.saturating_mul(picos) / 1000;
        let pending = self.pending_nanos.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if pending < DELAY_MIN_NANOS {
            return;
        }
        let pending = self.pending_nanos.swap(0, Ordering::Relaxed);
        if pending > 0 {
            let before = clock.nanos();
            clock.sleep(Duration::from_nanos(pending).min(DELAY_MAX));
            self.record(clock.nanos().saturating_sub(before));
        }
    }

    /// Counts a delay.
    pub(crate) fn record(&self, nanos: u64) {
        self.total_nanos.fetch_add(nanos, Ordering::Relaxed);
        let bounds = [100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];
        let bucket = bounds.iter().position(|&bound| nanos <= bound).unwrap_or(bounds.len());
        self.histogram[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// The delays so far.
    pub(crate) fn statistics(&self) -> ThrottleStatistics {
        ThrottleStatistics {
            total: Duration::from_nanos(self.total_nanos.load(Ordering::Relaxed)),
            histogram: std::array::from_fn(|i| self.histogram[i].load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_continuous_and_unbounded() {
        let delay = WriteDelay::default();
        let mut before = Duration::ZERO;
        for step in 0..=1000 {
            delay.set(f64::from(step) / 1000.0, 100e6);
            let per_mib = delay.per_mib();
            assert!(per_mib >= before);
            if step <= 500 {
                assert_eq!(per_mib, Duration::ZERO);
            }
            if (501..900).contains(&step) {
                assert!(per_mib - before < Duration::from_millis(1), "a step at {step}");
            }
            before = per_mib;
        }
        assert!(before > Duration::from_secs(4));
    }

    #[test]
    fn no_delay_is_long_and_all_are_counted() {
        let throttle = Throttle::default();
        let clock = Clock::simulated();
        let delay = WriteDelay::default();
        delay.set(0.99, 1e6);
        for _ in 0..100 {
            let before = clock.nanos();
            throttle.delay(1 << 20, &delay, &clock);
            assert!(clock.nanos() - before <= DELAY_MAX.as_nanos() as u64);
        }
        let statistics = throttle.statistics();
        assert_eq!(statistics.histogram.iter().sum::<u64>(), 100);
        assert_eq!(statistics.total.as_nanos() as u64, clock.nanos());
    }
}
