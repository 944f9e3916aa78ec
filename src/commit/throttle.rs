//! Backpressure: a continuous delay per byte written, from the backlog of background work.
//!
//! Invariants:
//! 1. Up to a backlog of one half the delay is zero. From there it rises continuously, and without bound as the
//!    backlog approaches 1.
//! 2. A write of up to [`DELAY_BYTES`] waits at most [`DELAY_MAX`], a larger one as long as so many of them, and none
//!    longer than [`LARGE_DELAY_MAX`]. Else large values could not be slowed to the rate of background work.

use std::time::Duration;

use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::jobs::Clock;

const DELAY_MAX: Duration = Duration::from_millis(10);
const DELAY_BYTES: u64 = 8 << 10;
const LARGE_DELAY_MAX: Duration = Duration::from_millis(500);
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

    /// Whether writers are delayed.
    pub(crate) fn is_set(&self) -> bool {
        self.picos_per_byte.load(Ordering::Relaxed) > 0
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
        if nanos >= DELAY_MIN_NANOS {
            let parts = u32::try_from(bytes.div_ceil(DELAY_BYTES)).unwrap_or(u32::MAX);
            let most = DELAY_MAX.saturating_mul(parts).min(LARGE_DELAY_MAX);
            self.sleep(Duration::from_nanos(nanos).min(most), clock);
            return;
        }
        let pending = self.pending_nanos.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if pending < DELAY_MIN_NANOS {
            return;
        }
        let pending = self.pending_nanos.swap(0, Ordering::Relaxed);
        if pending > 0 {
            self.sleep(Duration::from_nanos(pending).min(DELAY_MAX), clock);
        }
    }

    fn sleep(&self, delay: Duration, clock: &Clock) {
        let before = clock.nanos();
        clock.sleep(delay);
        self.record(clock.nanos().saturating_sub(before));
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
        for (bytes, most_ms) in [(DELAY_BYTES, 10), (20_000, 30), (1 << 20, 500), (1 << 29, 500)] {
            for _ in 0..25 {
                let before = clock.nanos();
                throttle.delay(bytes, &delay, &clock);
                assert!(clock.nanos() - before <= most_ms * 1_000_000);
            }
        }
        let statistics = throttle.statistics();
        assert_eq!(statistics.histogram.iter().sum::<u64>(), 100);
        assert_eq!(statistics.total.as_nanos() as u64, clock.nanos());
    }

    /// Values of 40 kB were written four times as fast as the delay per byte asked for: no delay was longer than 10 ms.
    /// Stores of such values took up to 1.79 times their data on a busy machine.
    #[test]
    fn large_values_are_slowed_to_the_rate_that_small_ones_have() {
        let bytes_per_second = |each: u64| {
            let (throttle, clock, delay) =
                (Throttle::default(), Clock::simulated(), WriteDelay::default());
            delay.set(0.99, 64e6);
            let began = clock.nanos();
            (0..10_000_000 / each).for_each(|_| throttle.delay(each, &delay, &clock));
            10e9 * 1e6 / (clock.nanos() - began) as f64
        };
        for each in [4_000, 40_000, 400_000] {
            let ratio = bytes_per_second(each) / bytes_per_second(100);
            assert!((0.9..1.1).contains(&ratio), "{each} bytes: {ratio:.2}");
        }
    }
}
