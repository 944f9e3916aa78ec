//! Memory of background jobs: their buffers, which the page cache has while no job works, and lists of keys that grow.
//!
//! Each background thread has a part of the budget for its job's buffers. While the store rests (`rest`), these parts are
//! lent to the page cache. A compaction also keeps eight bytes of each key that it writes until it has written the index.
//! Where pairs are small, that is more than its part: the page cache gives up the rest.
//!
//! Invariants:
//! 1. What is lent, and what the jobs that have buffers may use, is together no more than all threads' parts: a job is
//!    counted before it looks, and whoever lends counts them, both with `cache_share` locked. (Of two jobs that begin at
//!    once one may be a step ahead.)
//! 2. What was given up for lists comes back once it has not been needed for some time: the next merges need it again.

use super::store::Store;
use crate::base::sync::atomic::Ordering;

/// The page cache makes room for lists in steps of this part of the budget.
const LIST_STEPS: u64 = 64;

impl Store {
    /// Memory that is kept for jobs.
    pub(crate) fn jobs_bytes(&self) -> u64 {
        let all = self.sizes.job_bytes() * self.jobs_max() as u64;
        let memory = &self.job_memory;
        all.saturating_sub(memory.lent_bytes.load(Ordering::Relaxed)) + memory.lists.bytes()
    }

    /// Lends buffers, if no job has any. The caller holds `cache_share`.
    pub(super) fn lend_buffers(&self) {
        let memory = &self.job_memory;
        if memory.jobs_with_buffers.load(Ordering::SeqCst) == 0 {
            memory.lent_bytes.store(self.idle_bytes(), Ordering::Relaxed);
            memory.lists.take_back();
        }
    }

    /// The parts of the threads that have no job.
    fn idle_bytes(&self) -> u64 {
        let busy = self.job_memory.jobs_with_buffers.load(Ordering::SeqCst);
        self.sizes.job_bytes() * (self.workers as u64).saturating_sub(busy)
    }

    /// Whether buffers could be lent that were not, or that have come back for a job that ended a while ago.
    pub(super) fn are_buffers_idle(&self, now: u64, period: u64) -> bool {
        let memory = &self.job_memory;
        let used = memory.used_nanos.load(Ordering::Relaxed);
        memory.jobs_with_buffers.load(Ordering::Relaxed) == 0
            && memory.lent_bytes.load(Ordering::Relaxed) < self.idle_bytes()
            && now.saturating_sub(used) >= period
    }

    /// Before a job makes its buffers: takes back as much as it may use, step by step.
    pub(super) fn begin_buffers(&self) {
        let memory = &self.job_memory;
        memory.jobs_with_buffers.fetch_add(1, Ordering::SeqCst);
        loop {
            {
                let _share = self.cache_share.lock();
                let lent = memory.lent_bytes.load(Ordering::Relaxed);
                let idle = self.idle_bytes();
                if lent <= idle {
                    return;
                }
                let left = lent.saturating_sub(self.lent_step_bytes()).max(idle);
                memory.lent_bytes.store(left, Ordering::Relaxed);
            }
            self.share_memory();
        }
    }

    /// The job has none any more.
    pub(super) fn end_buffers(&self) {
        self.job_memory.used_nanos.store(self.clock.nanos(), Ordering::Relaxed);
        self.job_memory.jobs_with_buffers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Memory of lists that does not fit the jobs' parts, in steps.
    fn lists_beyond(&self) -> u64 {
        let fit = self.sizes.job_list_bytes() * self.jobs_max() as u64;
        let beyond = self.files.list_bytes().saturating_sub(fit);
        beyond.next_multiple_of((self.sizes.memory_budget / LIST_STEPS).max(1))
    }

    /// Compactions have other lists than before: the page cache provides for longer ones at once, and has back what has not
    /// been needed for some time.
    pub(super) fn provide_for_lists(&self) {
        if self.job_memory.lists.note(self.clock.nanos(), || self.lists_beyond()) {
            self.share_memory();
        }
    }
}

/// A job has buffers.
pub(super) struct Buffers<'a>(&'a Store);

impl<'a> Buffers<'a> {
    pub(super) fn begin(store: &'a Store) -> Buffers<'a> {
        store.begin_buffers();
        Buffers(store)
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        self.0.end_buffers();
    }
}
