//! What the store counts on its hot paths.

use crate::base::counter::{LatencyHistogram, ShardedCounter, ShardedCounters};

/// Operations since open.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) gets: ShardedCounter,
    pub(crate) gets_absent: ShardedCounter,
    pub(crate) multi_get_keys: ShardedCounter,
    /// Commits, their operations, and the bytes of their keys and values.
    commits: ShardedCounters<3>,
    pub(crate) commits_sync: ShardedCounter,
    pub(crate) iterators: ShardedCounter,
    pub(crate) user_bytes_read: ShardedCounter,
    pub(crate) pages_read: ShardedCounter,
    /// Deleted entries that iterators stepped over, and gaps that they skipped.
    pub(crate) dead_entries: ShardedCounter,
    pub(crate) gaps_skipped: ShardedCounter,
    /// Reads that the row cache answered.
    pub(crate) row_cache_hits: ShardedCounter,
    pub(crate) blob_direct_bytes: ShardedCounter,
    pub(crate) get_latency: LatencyHistogram,
    pub(crate) commit_latency: LatencyHistogram,
}

impl Counters {
    /// Counts a commit of so many operations with so many bytes.
    #[inline]
    pub(crate) fn count_commit(&self, operations: u32, bytes: u64) {
        self.commits.add_all([1, u64::from(operations), bytes]);
    }

    /// Commits, their operations, and the bytes of their keys and values.
    pub(crate) fn commits(&self) -> [u64; 3] {
        [0, 1, 2].map(|counter| self.commits.sum(counter))
    }
}

/// One operation in this many is timed: two readings of the clock cost as much as a cached read.
const TIMED_EVERY: u32 = 32;

/// Whether the calling thread should time this operation.
#[inline]
pub(crate) fn is_timed() -> bool {
    use std::cell::Cell;
    thread_local! {
        static COUNT: Cell<u32> = const { Cell::new(0) };
    }
    COUNT.with(|count| {
        let next = count.get().wrapping_add(1);
        count.set(next);
        next % TIMED_EVERY == 0
    })
}
