//! Backpressure: one continuous price per byte, from how far behind the background is.
//!
//! Invariants:
//! 1. Up to half a backlog writing is free; from there the price rises without a step and without
//!    bound as the backlog nears 1.
//! 2. A single delay is at most `DELAY_MAX`: short ones, never a long one.

use std::time::Duration;

use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::jobs::Clock;

const DELAY_MAX: Duration = Duration::from_millis(10);
/// Delays are saved up to this before they are slept. Each sleep costs two changes of context and the
/// system's slack of 50 µs, and meets one commit: under full load, one in 2,500 waits a millisecond, where one
/// in 250 would wait a tenth of that.
const DELAY_MIN_NANOS: u64 = 1_000_000;
/// Backlog below which writing is free.
const FREE_BELOW: f64 = 0.5;

/// What has been paid so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThrottleStatistics {
    pub(crate) total: Duration,
    /// Delays up to 0.1, 1, 10, 100, 1000 ms and above.
    pub(crate) histogram: [u64; 6],
}

/// What a byte written to one keyspace costs.
#[derive(Debug, Default)]
pub(crate) struct Price {
    /// Picoseconds per byte.
    picos: AtomicU64,
}

impl Price {
    /// Sets the price from the backlog and the rate at which the background drains it. Returns
    /// whether throttling has begun or ended with this.
    pub(crate) fn set(&self, backlog: f64, drain_bytes_per_second: f64) -> bool {
        let picos = if backlog <= FREE_BELOW {
            0
        } else {
            let behind = (backlog.min(0.999) - FREE_BELOW) / (1.0 - backlog.min(0.999));
            (behind * 1e12 / drain_bytes_per_second.max(1e6)) as u64
        };
        let before = self.picos.swap(picos, Ordering::Relaxed);
        (before == 0) != (picos == 0)
    }

    /// The price of a mebibyte.
    pub(crate) fn per_mib(&self) -> Duration {
        Duration::from_nanos((self.picos.load(Ordering::Relaxed) as f64 * 1048.576) as u64)
    }
}

/// Slows writers.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    owed_nanos: AtomicU64,
    total_nanos: AtomicU64,
    histogram: [AtomicU64; 6],
}

impl Throttle {
    /// Pays for `bytes`.
    #[inline]
    pub(crate) fn pay(&self, bytes: u64, price: &Price, clock: &Clock) {
        let picos = price.picos.load(Ordering::Relaxed);
        if picos > 0 {
            self.pay_slow(bytes, picos, clock);
        }
    }

    #[cold]
    fn pay_slow(&self, bytes: u64, picos: u64, clock: &Clock) {
        let nanos = bytes.saturating_mul(picos) / 1000;
        let owed = self.owed_nanos.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if owed < DELAY_MIN_NANOS {
            return;
        }
        let owed = self.owed_nanos.swap(0, Ordering::Relaxed);
        if owed > 0 {
            let before = clock.nanos();
            clock.sleep(Duration::from_nanos(owed).min(DELAY_MAX));
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

    /// What has been paid so far.
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
    fn the_price_is_continuous_and_unbounded() {
        let price = Price::default();
        let mut before = Duration::ZERO;
        for step in 0..=1000 {
            price.set(f64::from(step) / 1000.0, 100e6);
            let price = price.per_mib();
            assert!(price >= before);
            if step <= 500 {
                assert_eq!(price, Duration::ZERO);
            }
            if (501..900).contains(&step) {
                assert!(price - before < Duration::from_millis(1), "a step at {step}");
            }
            before = price;
        }
        assert!(before > Duration::from_secs(4));
    }

    #[test]
    fn no_delay_is_long_and_all_are_counted() {
        let throttle = Throttle::default();
        let clock = Clock::simulated();
        let price = Price::default();
        price.set(0.99, 1e6);
        for _ in 0..100 {
            let before = clock.nanos();
            throttle.pay(1 << 20, &price, &clock);
            assert!(clock.nanos() - before <= DELAY_MAX.as_nanos() as u64);
        }
        let statistics = throttle.statistics();
        assert_eq!(statistics.histogram.iter().sum::<u64>(), 100);
        assert_eq!(statistics.total.as_nanos() as u64, clock.nanos());
    }
}
