//! Counters and latency histograms that threads update without contention.
//!
//! Invariants:
//! 1. A thread that owns a stripe is the only one that writes to it, so it needs no locked
//!    instruction. Threads beyond the number of stripes share the last one and use atomic adds.
//! 2. A stripe outlives its thread, with its counts. The next owner continues from them.
//! 3. No count is lost. A sum taken concurrently with additions includes at least those that ended
//!    before it began.

use std::cell::Cell;
use std::sync::OnceLock;

use super::sync::CachePadded;
use super::sync::plain::{AtomicU64, Ordering};

#[cfg(all(test, loom))]
mod loom_tests;
mod stripes;

use stripes::{Count, Owners, SHARED_STRIPE};

const UNASSIGNED: usize = usize::MAX;

#[cfg(not(loom))]
static OWNERS: Owners = Owners::new();

// Loom's atomics cannot be created before a model runs.
#[cfg(loom)]
loom::lazy_static! {
    static ref OWNERS: Owners = Owners::new();
}

thread_local! {
    // Two variables: this one has no destructor, so reading it is one instruction.
    static STRIPE: Cell<usize> = const { Cell::new(UNASSIGNED) };
    static OWNERSHIP: Ownership = Ownership(OWNERS.claim());
}

struct Ownership(usize);

impl Drop for Ownership {
    fn drop(&mut self) {
        // Destructors that run after this one use the shared stripe.
        STRIPE.set(SHARED_STRIPE);
        OWNERS.release(self.0);
    }
}

#[inline]
fn stripe() -> usize {
    let stripe = STRIPE.get();
    if stripe == UNASSIGNED { assign_stripe() } else { stripe }
}

#[cold]
fn assign_stripe() -> usize {
    let stripe = OWNERSHIP.try_with(|ownership| ownership.0).unwrap_or(SHARED_STRIPE);
    STRIPE.set(stripe);
    stripe
}

/// `N` counters that are updated together by any number of threads. Up to eight share a cache line
/// in each stripe.
#[derive(Debug)]
pub(crate) struct ShardedCounters<const N: usize> {
    stripes: Box<[CachePadded<[Count; N]>]>,
}

impl<const N: usize> ShardedCounters<N> {
    /// All counters zero.
    pub(crate) fn new() -> ShardedCounters<N> {
        let stripe = || CachePadded::new(std::array::from_fn(|_| Count::default()));
        ShardedCounters { stripes: (0..=SHARED_STRIPE).map(|_| stripe()).collect() }
    }

    /// Adds `n` to counter `counter`.
    #[inline]
    pub(crate) fn add(&self, counter: usize, n: u64) {
        let stripe = stripe();
        let count = &self.stripes[stripe][counter];
        if stripe == SHARED_STRIPE {
            count.add_shared(n);
        } else {
            count.add_owned(n);
        }
    }

    /// Adds to all counters at once, to each its own number.
    #[inline]
    pub(crate) fn add_all(&self, amounts: [u64; N]) {
        let stripe = stripe();
        for (count, n) in self.stripes[stripe].iter().zip(amounts) {
            if stripe == SHARED_STRIPE {
                count.add_shared(n);
            } else {
                count.add_owned(n);
            }
        }
    }

    /// The sum of all threads' additions to counter `counter`.
    pub(crate) fn sum(&self, counter: usize) -> u64 {
        let counts = self.stripes.iter().map(|stripe| stripe[counter].get());
        counts.fold(0, u64::wrapping_add)
    }
}

impl<const N: usize> Default for ShardedCounters<N> {
    fn default() -> Self {
        ShardedCounters::new()
    }
}

/// One counter. See [`ShardedCounters`].
#[derive(Debug, Default)]
pub(crate) struct ShardedCounter(ShardedCounters<1>);

impl ShardedCounter {
    /// Adds `n`.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.add(0, n);
    }

    /// The sum of all threads' additions.
    pub(crate) fn sum(&self) -> u64 {
        self.0.sum(0)
    }
}

/// The number of buckets per doubling of the value, as a power of two: 32. A bucket's width is at
/// most 1/32 of its values, and its middle is off by at most 1.6%.
const BUCKETS_PER_DOUBLING_LOG2: u32 = 5;
const BUCKETS_PER_DOUBLING: usize = 1 << BUCKETS_PER_DOUBLING_LOG2;
/// Greater values (73 minutes in nanoseconds and more) share the last bucket.
const VALUE_LOG2_MAX: u32 = 42;
const BUCKETS: usize =
    (VALUE_LOG2_MAX - BUCKETS_PER_DOUBLING_LOG2 + 1) as usize * BUCKETS_PER_DOUBLING;
/// Fewer than the counters have, because each uses 10 KB.
const HISTOGRAM_SHARDS: usize = 8;

fn bucket_of(nanos: u64) -> usize {
    if nanos < BUCKETS_PER_DOUBLING as u64 {
        return nanos as usize;
    }
    let doubling = nanos.ilog2() - BUCKETS_PER_DOUBLING_LOG2;
    let within = (nanos >> doubling) as usize - BUCKETS_PER_DOUBLING;
    ((doubling as usize + 1) * BUCKETS_PER_DOUBLING + within).min(BUCKETS - 1)
}

/// The middle of a bucket's values.
fn value_of(bucket: usize) -> u64 {
    if bucket < BUCKETS_PER_DOUBLING {
        return bucket as u64;
    }
    let doubling = bucket / BUCKETS_PER_DOUBLING - 1;
    let from = ((bucket % BUCKETS_PER_DOUBLING + BUCKETS_PER_DOUBLING) as u64) << doubling;
    from + (1 << doubling) / 2
}

#[derive(Debug)]
struct HistogramShard {
    sum: AtomicU64,
    max: AtomicU64,
    buckets: Box<[AtomicU64]>,
}

impl HistogramShard {
    fn new() -> HistogramShard {
        HistogramShard {
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

/// A histogram of latencies in nanoseconds. A shard uses memory only after a thread has used it.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    shards: [OnceLock<CachePadded<HistogramShard>>; HISTOGRAM_SHARDS],
}

impl LatencyHistogram {
    /// Records that an operation took `nanos` nanoseconds.
    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        let shard = self.shards[stripe() % HISTOGRAM_SHARDS]
            .get_or_init(|| CachePadded::new(HistogramShard::new()));
        shard.buckets[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        shard.sum.fetch_add(nanos, Ordering::Relaxed);
        if nanos > shard.max.load(Ordering::Relaxed) {
            shard.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// A copy of the values recorded so far.
    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        let mut snapshot = LatencySnapshot::default();
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            for (to, from) in snapshot.buckets.iter_mut().zip(&shard.buckets) {
                let n = from.load(Ordering::Relaxed);
                *to += n;
                snapshot.count += n;
            }
            snapshot.sum = snapshot.sum.wrapping_add(shard.sum.load(Ordering::Relaxed));
            snapshot.max = snapshot.max.max(shard.max.load(Ordering::Relaxed));
        }
        snapshot
    }
}

/// A copy of a [`LatencyHistogram`]. Copies can be merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LatencySnapshot {
    buckets: Box<[u64]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Default for LatencySnapshot {
    fn default() -> Self {
        LatencySnapshot { buckets: vec![0; BUCKETS].into(), count: 0, sum: 0, max: 0 }
    }
}

impl LatencySnapshot {
    /// The number of operations.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The exact sum of all values in nanoseconds.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// The exact maximum in nanoseconds.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The value that `percent` of the operations did not exceed, to within 1.6%; 0 without
    /// operations.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64;
        let rank = rank.clamp(1, self.count.max(1));
        if rank == self.count {
            return self.max;
        }
        let mut seen = 0;
        for (bucket, &n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return value_of(bucket).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl LatencySnapshot {
        /// Adds what `other` holds.
        fn merge(&mut self, other: &LatencySnapshot) {
            for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
                *to += from;
            }
            self.count += other.count;
            self.sum = self.sum.wrapping_add(other.sum);
            self.max = self.max.max(other.max);
        }
    }

    #[test]
    fn more_threads_than_stripes_lose_no_count() {
        let (threads, rounds) = if cfg!(miri) { (5, 20) } else { (48, 2000) };
        let counters = ShardedCounters::<2>::new();
        let total = ShardedCounter::default();
        for _generation in 0..2 {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for n in 0..rounds {
                            counters.add(0, 1);
                            counters.add(1, n);
                            total.add(3);
                        }
                    });
                }
            });
        }
        assert_eq!(counters.sum(0), 2 * threads * rounds);
        assert_eq!(counters.sum(1), 2 * threads * (rounds * (rounds - 1) / 2));
        assert_eq!(total.sum(), 6 * threads * rounds);
    }

    #[test]
    fn every_bucket_is_within_its_error_and_in_order() {
        let mut last = 0;
        let step = if cfg!(miri) { 97 } else { 7 };
        for shift in 0..42 {
            for part in (0..1000).step_by(step) {
                let value = (1u64 << shift) + (1u64 << shift) * part / 1000;
                let bucket = bucket_of(value);
                assert!(bucket >= last, "{value}");
                last = bucket;
                let off = value_of(bucket).abs_diff(value);
                assert!(off * 1000 <= value * 16, "{value} is reported as {}", value_of(bucket));
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << VALUE_LOG2_MAX) - 1), BUCKETS - 1);
    }

    #[test]
    fn percentiles_agree_with_a_sorted_list() {
        let histograms = [LatencyHistogram::default(), LatencyHistogram::default()];
        let mut values = Vec::new();
        let mut state = 7u64;
        for i in 0..if cfg!(miri) { 200 } else { 20_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = (state >> 33) >> (state % 25);
            values.push(value);
            histograms[i % 2].record(value);
        }
        values.sort_unstable();
        let mut snapshot = histograms[0].snapshot();
        snapshot.merge(&histograms[1].snapshot());
        assert_eq!(snapshot.count(), values.len() as u64);
        assert_eq!(snapshot.sum(), values.iter().sum::<u64>());
        assert_eq!(Some(&snapshot.max()), values.last());
        for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let rank = (values.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
            let expected = values[rank - 1];
            let found = snapshot.percentile(percent);
            assert!(
                found.abs_diff(expected) * 100 <= expected * 3,
                "{percent}: {found}/{expected}"
            );
        }
        assert_eq!(LatencySnapshot::default().percentile(99.0), 0);
    }
}
