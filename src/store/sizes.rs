//! What each part of a store may take of the memory budget, and of the disk.

use super::options::Builder;
use crate::base::limits::INLINE_BYTES_MAX;

/// What memtables may take at most while the journal is replayed: all of it may be one keyspace's, and a memtable has
/// a limit of its own.
const REPLAY_BYTES_MAX: u64 = 1 << 30;
/// What a background job's thread uses beside the buffers of inputs.
const JOB_REST_BYTES_MAX: u64 = 2 << 20;

/// Sizes derived from the memory budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) memory_budget: u64,
    pub(crate) memtable_bytes: u64,
    /// The cache's, if it is not what the others leave.
    pub(crate) cache_bytes_chosen: Option<u64>,
    /// Frozen memtables that may wait for the tree, per keyspace.
    pub(crate) frozen_max: usize,
    /// All memtables' chunks together.
    pub(crate) memtables_bytes_max: u64,
    /// Of these, chunks of memtables that have not been frozen.
    pub(crate) active_bytes_max: u64,
    /// Buffers of one background job.
    pub(crate) job_bytes_max: u64,
    /// Cursors of idle iterators.
    pub(crate) iterators_bytes_max: u64,
    /// Buffers of readers that look ahead.
    pub(crate) read_ahead_bytes_max: u64,
    pub(crate) segment_bytes: u64,
    /// What is left free of the disk for what makes room there: the memtables of a keyspace can be written, and deletes
    /// journaled. Not those of all: a large budget on a disk that has a few gigabytes left would take no write.
    pub(crate) free_bytes_min: u64,
    /// A manifest below this size is not rewritten.
    pub(crate) manifest_bytes_min: u64,
    /// Journal bytes beyond which the keyspace that holds on to the oldest is flushed.
    pub(crate) journal_bytes_max: u64,
    /// Values and operands of at least this many bytes go to a blob file at once, past journal and memtable.
    pub(crate) direct_value_bytes: usize,
    /// The most bytes that a compaction folds at once.
    pub(crate) fold_bytes_max: u64,
}

impl Sizes {
    pub(crate) fn new(builder: &Builder, shards: usize) -> Sizes {
        let budget = builder.memory_budget;
        let default = (budget / 16).clamp(256 << 10, 64 << 20);
        let memtable_bytes = builder.memtable_bytes.unwrap_or(default);
        let frozen_max = 3;
        let memtables_bytes_max = (memtable_bytes * (frozen_max as u64 + 1)).max(budget / 4);
        let segment_bytes = (memtable_bytes / 2).clamp(8 << 10, 16 << 20);
        Sizes {
            memory_budget: budget,
            memtable_bytes,
            cache_bytes_chosen: builder.cache_bytes,
            frozen_max,
            memtables_bytes_max,
            active_bytes_max: memtables_bytes_max / 8 * 5,
            job_bytes_max: (budget / 32).clamp(512 << 10, 16 << 20),
            iterators_bytes_max: (budget / 16).max(256 << 10),
            read_ahead_bytes_max: (budget / 16).clamp(256 << 10, 64 << 20),
            segment_bytes,
            free_bytes_min: memtable_bytes * (frozen_max as u64 + 1) + (1 << 20),
            manifest_bytes_min: (memtable_bytes * 4).min(1 << 20),
            journal_bytes_max: memtables_bytes_max * 3 + segment_bytes * 2 * shards as u64,
            direct_value_bytes: (memtable_bytes as usize / 4)
                .clamp(16 << 10, INLINE_BYTES_MAX as usize),
            fold_bytes_max: memtable_bytes.max(16 << 10),
        }
    }

    /// What memtables may take where nothing is written: half of the budget, and never less than a writer's
    /// with some room for chunks that one memtable for each keyspace fills less well.
    pub(crate) fn read_only_memtables_bytes_max(&self) -> u64 {
        (self.memory_budget / 2).max(self.memtables_bytes_max / 4 * 5)
    }

    /// What a background job uses: beside its buffers it needs an output's, and lists of what it has written.
    pub(crate) fn job_bytes(&self) -> u64 {
        self.job_bytes_max + self.job_bytes_max.min(JOB_REST_BYTES_MAX)
    }

    /// What memtables may take while the journal is replayed: no cache needs the rest of the budget yet. Fewer
    /// and larger tables come of it.
    pub(crate) fn replay_memtables_bytes_max(&self) -> u64 {
        (self.memtable_bytes * 8).min(self.memory_budget / 2).min(REPLAY_BYTES_MAX)
    }

    /// What is left of the budget for the page cache while memtables and trees hold so much.
    pub(crate) fn cache_bytes(
        &self,
        workers: usize,
        memtables_bytes: u64,
        trees_bytes: u64,
    ) -> u64 {
        if let Some(bytes) = self.cache_bytes_chosen {
            return bytes;
        }
        let used = memtables_bytes + trees_bytes + self.job_bytes() * workers as u64;
        self.memory_budget.saturating_sub(used).max(self.memory_budget / 8).max(128 << 10)
    }

    /// The largest share of the cache that the row cache may use.
    pub(crate) fn row_cache_bytes_max(&self, workers: usize) -> u64 {
        self.cache_bytes(workers, self.memtables_bytes_max, 0) / 3
    }
}

#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests {
    use super::*;
    use crate::base::limits::BATCH_BYTES_MAX;
    use crate::memtable::BYTES_MAX;
    use crate::{Database, GIB};

    /// The replay of a journal with values of a little more than 64 KiB filled a memtable with more chunks than it can
    /// address, from memtables of 240 MiB on, and panicked.
    #[test]
    fn no_memtable_is_given_more_than_it_can_hold() {
        let builder = Database::builder_in_memory().memory_budget(1 << 44).memtable_bytes(1 << 40);
        let sizes = Sizes::new(&builder, 1);
        assert_eq!(sizes.memtable_bytes, GIB);
        // A memtable that is not full yet gets a batch, or as many as are in flight together.
        let in_flight = BATCH_BYTES_MAX.max(sizes.memtable_bytes / 2);
        assert!(sizes.memtable_bytes + in_flight < BYTES_MAX);
        // A replay makes room once it has read a third more than all memtables may have, and a whole batch.
        let replayed = sizes.replay_memtables_bytes_max();
        assert!(replayed + replayed / 3 + BATCH_BYTES_MAX < BYTES_MAX, "{replayed}");
    }
}
