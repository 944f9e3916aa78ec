//! Whether a store rests, and what it has lent: the state that `rest` and `job_memory` keep.

use super::provided::Provided;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The page cache has back what was given up for lists of compactions once it has not been needed for so long.
const LISTS_BACK_NANOS: u64 = 5_000_000_000;

/// Whether a store rests, and what it has lent.
#[derive(Default)]
pub(crate) struct Rest {
    /// The last commit when somebody looked, and since when it is the last.
    pub(super) seen: AtomicU64,
    pub(super) since_nanos: AtomicU64,
    /// Nothing is left to do before the next commit.
    pub(super) is_done: AtomicBool,
    /// Memory of memtables is lent. Changed with `cache_share` locked, as the limit is.
    pub(super) is_lent: AtomicBool,
    /// What memtables may use before it is taken back; no limit if 0.
    pub(super) limit_bytes: AtomicU64,
    /// A writer needs it, and a job takes it back.
    pub(super) is_wanted: AtomicBool,
    pub(super) is_coming_back: AtomicBool,
}

impl Rest {
    /// Whether memtables that will use so much need what they have lent.
    #[inline]
    pub(super) fn is_exceeded(&self, used_bytes: u64) -> bool {
        let limit = self.limit_bytes.load(Ordering::Relaxed);
        limit != 0 && used_bytes > limit
    }

    pub(super) fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Relaxed)
    }
}

/// What the page cache has of jobs' memory, or has given up for them.
pub(crate) struct JobMemory {
    /// Memory of buffers that is lent. Changed with `cache_share` locked.
    pub(super) lent_bytes: AtomicU64,
    /// How many jobs have buffers, and when one last had.
    pub(super) jobs_with_buffers: AtomicU64,
    pub(super) used_nanos: AtomicU64,
    /// For lists that do not fit the jobs' parts.
    pub(super) lists: Provided,
}

impl JobMemory {
    /// Nothing is lent, and nothing was given up.
    pub(crate) fn new() -> JobMemory {
        JobMemory {
            lent_bytes: AtomicU64::new(0),
            jobs_with_buffers: AtomicU64::new(0),
            used_nanos: AtomicU64::new(0),
            lists: Provided::new(LISTS_BACK_NANOS),
        }
    }
}
