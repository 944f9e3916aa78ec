//! The measurements of one thread, and their sum.
//!
//! Invariants:
//! 1. Every operation is in a histogram: nothing is sampled, so the highest percentiles are real.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Operation;

/// The longest latency that histograms tell apart.
const LATENCY_NANOSECONDS_MAX: u64 = 600_000_000_000;

/// One second of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// Operations that ended in it.
    pub operations: u64,
    /// The longest of them.
    pub nanoseconds_max: u64,
}

/// Counts and latencies.
#[derive(Debug, Default)]
pub struct Measured {
    /// Latencies by operation.
    pub latencies: Vec<(Operation, Histogram<u64>)>,
    /// Operations done; a batched read counts its keys, a scan of everything its pairs.
    pub operations: u64,
    /// Pairs that scans returned.
    pub pairs_scanned: u64,
    /// Bytes of keys and values written.
    pub user_bytes_written: u64,
    /// Bytes of keys and values read.
    pub user_bytes_read: u64,
    /// Keys that should have had a value and had none, or the other way round.
    pub missing: u64,
    /// Values that are not what was written, and pairs out of order.
    pub wrong: u64,
    /// The operations of each second since the start.
    pub timeline: Vec<Moment>,
}

fn histogram() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, LATENCY_NANOSECONDS_MAX, 3);
    histogram.expect("the bounds are constants in range")
}

impl Measured {
    /// Records an operation's start and end; `count` is its weight.
    #[inline]
    pub(crate) fn record(
        &mut self,
        operation: Operation,
        taken: Duration,
        since_start: Duration,
        count: u64,
    ) {
        let nanoseconds = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.histogram(operation).saturating_record(nanoseconds);
        self.operations += count;
        let second = since_start.as_secs() as usize;
        if self.timeline.len() <= second {
            self.timeline.resize(second + 1, Moment::default());
        }
        let moment = &mut self.timeline[second];
        moment.operations += count;
        moment.nanoseconds_max = moment.nanoseconds_max.max(nanoseconds);
    }

    /// Adds another thread's.
    pub(crate) fn merge(&mut self, other: &Measured) {
        self.operations += other.operations;
        self.pairs_scanned += other.pairs_scanned;
        self.user_bytes_written += other.user_bytes_written;
        self.user_bytes_read += other.user_bytes_read;
        self.missing += other.missing;
        self.wrong += other.wrong;
        for (operation, histogram) in &other.latencies {
            // The bounds are the same everywhere, so adding cannot fail.
            let _ = self.histogram(*operation).add(histogram);
        }
        let seconds = self.timeline.len().max(other.timeline.len());
        self.timeline.resize(seconds, Moment::default());
        for (moment, more) in self.timeline.iter_mut().zip(&other.timeline) {
            moment.operations += more.operations;
            moment.nanoseconds_max = moment.nanoseconds_max.max(more.nanoseconds_max);
        }
    }

    /// The latencies of all operations together.
    pub fn all_latencies(&self) -> Histogram<u64> {
        let mut all = histogram();
        for (_, histogram) in &self.latencies {
            let _ = all.add(histogram);
        }
        all
    }

    fn histogram(&mut self, operation: Operation) -> &mut Histogram<u64> {
        let position = self.latencies.iter().position(|(known, _)| *known == operation);
        let position = position.unwrap_or_else(|| {
            self.latencies.push((operation, histogram()));
            self.latencies.len() - 1
        });
        &mut self.latencies[position].1
    }
}

/// Times operations of one thread against the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) start: Instant,
    pub(crate) deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_seconds_are_those_of_all_threads() {
        let (mut one, mut two) = (Measured::default(), Measured::default());
        for micros in 1..=999_u64 {
            let since_start = Duration::from_millis(micros * 2);
            one.record(Operation::Read, Duration::from_micros(micros), since_start, 1);
        }
        two.record(Operation::Update, Duration::from_millis(500), Duration::from_secs(2), 1);
        one.merge(&two);
        let all = one.all_latencies();
        assert_eq!(one.operations, 1000);
        let near = |percentile: f64, micros: f64| {
            let found = all.value_at_percentile(percentile) as f64 / 1e3;
            assert!((found / micros - 1.0).abs() < 0.002, "{percentile}: {found} {micros}");
        };
        near(50.0, 500.0);
        near(99.0, 990.0);
        near(99.8, 998.0);
        near(100.0, 500_000.0);
        let by_second: Vec<u64> = one.timeline.iter().map(|moment| moment.operations).collect();
        assert_eq!(by_second, [499, 500, 1]);
        assert_eq!(one.timeline[2].nanoseconds_max, 500_000_000);
    }
}
