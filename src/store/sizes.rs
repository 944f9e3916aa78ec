//! What each part of a store may take of the memory budget, and of the disk.
//!
//! Invariants:
//! 1. The buffers of all background threads use at most a quarter of the budget, and the open journal segments of all
//!    shards at most a sixteenth, however many cores there are and whatever the options ask for.

use super::options::{BackgroundMode, Builder};
use crate::base::limits::INLINE_BYTES_MAX;

/// What memtables may take at most while the journal is replayed: all of it may be one keyspace's, and a memtable has
/// a limit of its own.
const REPLAY_BYTES_MAX: u64 = 1 << 30;
/// What a background job's thread uses beside the buffers of inputs.
const JOB_REST_BYTES_MAX: u64 = 2 << 20;
/// All background threads together use at most this part of the budget.
const JOBS_PART: u64 = 4;
/// A thread has at least this much, half of it for inputs: with less a compaction reads in pieces of a few pages, and
/// what it uses beside them is more than is counted. Fewer threads do more then.
const USEFUL_JOB_BYTES: u64 = 2 * JOB_REST_BYTES_MAX;
/// The smallest buffers for inputs where the budget is small for even two threads.
const INPUT_BYTES_MIN: u64 = 512 << 10;
/// Nor does a store have more threads than have this much each, if its options ask for many.
const JOB_BYTES_MIN: u64 = 64 << 10;
/// The open segments of all shards together have at most this part of the budget.
const SEGMENTS_PART: u64 = 16;
/// To make a segment takes two syncs. At a million inserts a second a segment of this size is full in five
/// milliseconds, which is about how long that takes.
const USEFUL_SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENT_BYTES_MIN: u64 = 8 << 10;
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
/// Mapped indexes may have this part of the budget as long as the page cache has its least size.
const INDEXES_PART: u64 = 4;
/// And this part in any case.
const INDEXES_PART_MIN: u64 = 16;

/// A part of the page cache with a lock of its own has at least so much, also when the cache has least, so that values
/// of up to 2 MiB are cached and its memory is in large pages.
const STRIPE_BYTES_MIN: usize = 8 << 20;
/// With two for each core, two threads rarely want the same one.
const STRIPES_PER_CORE: usize = 2;

/// Into how many stripes a cache is divided that has so many bytes when it has least: a power of two. Stores whose work
/// is repeatable have one, on any machine.
pub(crate) fn cache_stripes(builder: &Builder, cores: usize, cache_bytes_min: usize) -> usize {
    match (builder.cache_stripes, builder.background) {
        (0, BackgroundMode::Stepped(_)) => 1,
        (0, BackgroundMode::Threads(_)) => {
            let room = (cache_bytes_min / STRIPE_BYTES_MIN).max(1);
            let room = 1 << room.ilog2();
            (cores * STRIPES_PER_CORE).next_power_of_two().min(room)
        }
        (n, _) => n,
    }
}

/// How many background threads and journal shards a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parallelism {
    pub(crate) workers: usize,
    pub(crate) shards: usize,
}

impl Parallelism {
    /// What the options ask for. Else a thread for each core and at least two, and shards by the root of that, since a
    /// sync has to sync the files of all shards that were written to. Less where the budget has no room for buffers and
    /// segments that are large enough to be of use.
    pub(crate) fn new(builder: &Builder, cores: usize) -> Parallelism {
        let (jobs_bytes, segments_bytes) =
            (builder.memory_budget / JOBS_PART, builder.memory_budget / SEGMENTS_PART);
        let room = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
        let (wanted, workers) = match builder.background {
            BackgroundMode::Threads(0) => {
                let wanted = cores.max(2);
                (wanted, wanted.min(room(jobs_bytes, USEFUL_JOB_BYTES).max(2)))
            }
            BackgroundMode::Threads(n) => (n, n.min(room(jobs_bytes, JOB_BYTES_MIN).max(1))),
            BackgroundMode::Stepped(_) => (1, 1),
        };
        let useful = USEFUL_SEGMENT_BYTES.min(segment_bytes_wanted(memtable_bytes(builder)));
        let shards = match builder.journal_shards {
            0 => shards_wanted(wanted).min(room(segments_bytes, useful)),
            n => n.min(room(segments_bytes, SEGMENT_BYTES_MIN)),
        };
        Parallelism { workers, shards: shards.max(1) }
    }
}

/// Twice the root of the number of threads, but not more than one each. A writer holds its shard for as long as it takes
/// to copy its batch.
fn shards_wanted(threads: usize) -> usize {
    (4 * threads).isqrt().min(threads)
}

fn memtable_bytes(builder: &Builder) -> u64 {
    let default = (builder.memory_budget / 16).clamp(256 << 10, 64 << 20);
    builder.memtable_bytes.unwrap_or(default)
}

/// The length of a journal segment if there is room for it.
fn segment_bytes_wanted(memtable_bytes: u64) -> u64 {
    (memtable_bytes / 2).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
}

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
    /// Merges for reads of a tree that run at once: half of the background threads.
    pub(crate) merges_for_reads_max: usize,
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
    pub(crate) fn new(builder: &Builder, Parallelism { workers, shards }: Parallelism) -> Sizes {
        let budget = builder.memory_budget;
        let memtable_bytes = memtable_bytes(builder);
        let frozen_max = 3;
        let memtables_bytes_max = (memtable_bytes * (frozen_max as u64 + 1)).max(budget / 4);
        let segment_bytes = segment_bytes_wanted(memtable_bytes)
            .min(budget / SEGMENTS_PART / shards as u64)
            .max(SEGMENT_BYTES_MIN);
        // With what a job uses beside these buffers (see `job_bytes`).
        let job_bytes = budget / JOBS_PART / workers.max(1) as u64;
        let job_bytes_room = (job_bytes / 2).max(job_bytes.saturating_sub(JOB_REST_BYTES_MAX));
        Sizes {
            memory_budget: budget,
            memtable_bytes,
            cache_bytes_chosen: builder.cache_bytes,
            frozen_max,
            memtables_bytes_max,
            active_bytes_max: memtables_bytes_max / 8 * 5,
            merges_for_reads_max: (workers / 2).max(1),
            job_bytes_max: (budget / 32).clamp(INPUT_BYTES_MIN, 16 << 20).min(job_bytes_room),
            iterators_bytes_max: (budget / 4).max(256 << 10),
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
        self.job_bytes_max + self.job_list_bytes()
    }

    /// What its lists may take of that.
    pub(crate) fn job_list_bytes(&self) -> u64 {
        self.job_bytes_max.min(JOB_REST_BYTES_MAX)
    }

    /// What memtables may take while the journal is replayed: no cache needs the rest of the budget yet. Fewer
    /// and larger tables come of it.
    pub(crate) fn replay_memtables_bytes_max(&self) -> u64 {
        (self.memtable_bytes * 8).min(self.memory_budget / 2).min(REPLAY_BYTES_MAX)
    }

    /// What is left of the budget for the page cache while jobs, memtables and trees hold so much.
    pub(crate) fn cache_bytes(
        &self,
        jobs_bytes: u64,
        memtables_bytes: u64,
        trees_bytes: u64,
    ) -> u64 {
        if let Some(bytes) = self.cache_bytes_chosen {
            return bytes;
        }
        let used = memtables_bytes + trees_bytes + jobs_bytes;
        self.memory_budget.saturating_sub(used).max(self.cache_bytes_min())
    }

    /// What mapped indexes of all trees may have in memory, while the rest of the store but the page cache uses so much: half
    /// of what that leaves. (A page of an index has the places of about a hundred keys. But it is not known whether anybody
    /// reads the index.)
    pub(crate) fn indexes_bytes_max(&self, used_bytes: u64) -> u64 {
        let left = self.memory_budget.saturating_sub(used_bytes);
        let room = left.saturating_sub(self.cache_bytes_min());
        let wanted = match self.cache_bytes_chosen {
            None => (left / 2).max(self.memory_budget / INDEXES_PART),
            Some(_) => room,
        };
        wanted.min(room).max(self.memory_budget / INDEXES_PART_MIN)
    }

    /// What the page cache has at least.
    pub(crate) fn cache_bytes_min(&self) -> u64 {
        self.cache_bytes_chosen.unwrap_or((self.memory_budget / 8).max(128 << 10))
    }

    /// The largest share of the cache that the row cache may use.
    pub(crate) fn row_cache_bytes_max(&self, workers: usize) -> u64 {
        self.cache_bytes(self.job_bytes() * workers as u64, self.memtables_bytes_max, 0) / 3
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
        let sizes = Sizes::new(&builder, Parallelism::new(&builder, 1));
        assert_eq!(sizes.memtable_bytes, GIB);
        // A memtable that is not full yet gets a batch, or as many as are in flight together.
        let in_flight = BATCH_BYTES_MAX.max(sizes.memtable_bytes / 2);
        assert!(sizes.memtable_bytes + in_flight < BYTES_MAX);
        // A replay makes room once it has read a third more than all memtables may have, and a whole batch.
        let replayed = sizes.replay_memtables_bytes_max();
        assert!(replayed + replayed / 3 + BATCH_BYTES_MAX < BYTES_MAX, "{replayed}");
    }

    fn check(builder: &Builder, cores: usize) -> (Parallelism, Sizes) {
        let parallelism = Parallelism::new(builder, cores);
        let Parallelism { workers, shards } = parallelism;
        let sizes = Sizes::new(builder, parallelism);
        let budget = builder.memory_budget;
        let told = format!("{parallelism:?} {sizes:?}");
        assert!(workers >= 1 && shards >= 1, "{told}");
        assert!(sizes.job_bytes() * workers as u64 <= budget / 4, "{told}");
        assert!(sizes.segment_bytes * shards as u64 <= budget / 16, "{told}");
        assert!(
            sizes.cache_bytes(sizes.job_bytes() * workers as u64, 0, 0) >= budget / 2,
            "{told}"
        );
        (parallelism, sizes)
    }

    /// Threads and shards follow the cores as far as there is memory for them, and memory never follows the cores.
    #[test]
    fn threads_and_shards_follow_the_cores_within_the_budget() {
        for cores in [1, 2, 8, 64, 256] {
            for shift in 20..=36 {
                let builder = Database::builder_in_memory().memory_budget(1 << shift);
                let (found, sizes) = check(&builder, cores);
                let budget = builder.memory_budget;
                let wanted = cores.max(2);
                let shards_wanted = wanted.min((2.0 * (wanted as f64).sqrt()) as usize);
                assert!(found.workers <= wanted && found.shards <= shards_wanted, "{found:?}");
                // Fewer only for want of memory.
                let one_more_job = 4 << 20;
                let crowded = (found.workers as u64 + 1) * one_more_job > budget / 4;
                assert!(found.workers == wanted || crowded, "{found:?} {budget}");
                let one_more_segment = 1 << 20;
                let crowded = (found.shards as u64 + 1) * one_more_segment > budget / 16;
                assert!(found.shards == shards_wanted || crowded, "{found:?} {budget}");
                // Of a useful size, but in the smallest stores.
                assert!(sizes.job_bytes() >= 1 << 20 || budget < 8 << 20, "{sizes:?}");
                // With many threads all that a job uses is counted.
                assert!(found.workers == 2 || sizes.job_bytes() >= 4 << 20, "{sizes:?}");
                assert!(sizes.segment_bytes >= 1 << 20 || budget < 32 << 20, "{sizes:?}");
            }
        }
        let of =
            |cores, budget| check(&Database::builder_in_memory().memory_budget(budget), cores).0;
        assert_eq!(of(2, 256 << 20), Parallelism { workers: 2, shards: 2 });
        assert_eq!(of(8, 256 << 20), Parallelism { workers: 8, shards: 5 });
        assert_eq!(of(64, 256 << 20), Parallelism { workers: 16, shards: 16 });
        assert_eq!(of(256, 256 << 20), Parallelism { workers: 16, shards: 16 });
        assert_eq!(of(256, 4 * GIB), Parallelism { workers: 256, shards: 32 });
        assert_eq!(of(4096, 64 * GIB), Parallelism { workers: 4096, shards: 128 });
        // As before there was a limit by memory.
        let builder = Database::builder_in_memory();
        let (_, sizes) = check(&builder, 2);
        assert_eq!((sizes.job_bytes_max, sizes.segment_bytes), (8 << 20, 8 << 20));
    }

    /// So many that threads rarely meet, and none of them small.
    #[test]
    fn the_cache_has_stripes_for_the_cores_and_none_is_small() {
        let builder = Database::builder_in_memory();
        let stripes = |cores, bytes| cache_stripes(&builder, cores, bytes);
        let mib = 1 << 20;
        assert_eq!([1, 2, 3, 64].map(|cores| stripes(cores, 172 * mib)), [2, 4, 8, 16]);
        assert_eq!([0, 7, 15, 16, 4096].map(|n| stripes(256, n * mib)), [1, 1, 1, 2, 512]);
        assert_eq!(cache_stripes(&builder.deterministic(1), 64, 172 * mib), 1);
    }

    /// Also what the options ask for is kept within the budget.
    #[test]
    fn chosen_threads_and_shards_keep_to_the_budget_too() {
        for shift in 20..=36 {
            for n in [1, 2, 8, 64, 1024] {
                let builder = Database::builder_in_memory().memory_budget(1 << shift);
                let builder = builder.background_threads(n).journal_shards(n);
                let (found, _) = check(&builder, 2);
                let is_chosen = found == Parallelism { workers: n, shards: n };
                assert!(is_chosen || shift < 28, "{found:?} of {n} in 2^{shift}");
                let (found, _) = check(&builder.clone().memtable_bytes(GIB), 2);
                assert!(is_chosen == (found == Parallelism { workers: n, shards: n }));
            }
        }
    }
}
