//! Memory of a store that nobody writes to: the memtables' share, and that of idle background threads, goes to the page
//! cache, and comes back.
//!
//! After [`REST_NANOS`] without a commit the store *rests*. Memtables of some size are flushed, so gets need not look
//! there, and the next open replays little. Then the page cache gets what memtables do not hold. Once somebody writes more
//! than a little, a job takes it back in small steps, before all other background work. Writers do not wait for it. What
//! was lent of the background threads' buffers comes back when the next of them is about to use its own.
//!
//! Invariants:
//! 1. While memory is lent, memtables use no more than `limit_bytes` before a job begins to take it back: what they may
//!    use until then is kept free for them.
//! 2. Rest begins once nothing is on its way into a tree, and once until the next commit.

use std::cmp::Reverse;
use std::sync::Arc;

use super::state::KeyspaceState;
use super::store::Store;
use crate::base::error::Result;
use crate::base::sync::atomic::Ordering;
use crate::jobs::{Job, Step};

/// How long nobody has written when a store begins to rest.
const REST_NANOS: u64 = 3_000_000_000;
/// Memtables of less than this part of the usual size, all together, are not flushed for it.
const FLUSHED_PART: u64 = 8;
/// Bounds of what is taken back at once. Memtables of several keyspaces grow by chunks of 256 KiB.
const LENT_STEP_BYTES_MIN: u64 = 512 << 10;
const LENT_STEP_BYTES_MAX: u64 = 4 << 20;
/// No table is made of less.
const FLUSHED_BYTES_MIN: u64 = 64 << 10;

impl Store {
    /// How much comes back in a step.
    pub(super) fn lent_step_bytes(&self) -> u64 {
        (self.sizes.memtable_bytes / 8).clamp(LENT_STEP_BYTES_MIN, LENT_STEP_BYTES_MAX)
    }

    /// Whether nobody has written for so long that the store should rest, and it does not yet.
    pub(super) fn rest_is_due(&self) -> bool {
        let (visible, now) = (self.committer.visible().0, self.clock.nanos());
        let rest = &self.rest;
        if rest.seen.swap(visible, Ordering::Relaxed) != visible {
            rest.since_nanos.store(now, Ordering::Relaxed);
            rest.is_done.store(false, Ordering::Relaxed);
            return false;
        }
        let period = self.switches.rest_nanos.unwrap_or(REST_NANOS);
        (!rest.is_done.load(Ordering::Relaxed)
            || self.is_too_little_lent()
            || (rest.is_lent() && self.are_buffers_idle(now, period)))
            && now.saturating_sub(rest.since_nanos.load(Ordering::Relaxed)) >= period
            && !self.all_keyspaces().iter().any(|keyspace| keyspace.is_flushing())
    }

    /// Begins to rest, or freezes the memtables that are to be flushed before.
    pub(super) fn begin_rest(&self) {
        let chosen = self.worth_a_flush();
        if !chosen.is_empty() {
            let least = self.flushed_bytes_min();
            self.freeze(&chosen, |keyspace| keyspace.read.load().active.bytes() >= least);
            return;
        }
        // Before memory is lent: a writer that comes now makes it due anew.
        if !self.rest.is_done.swap(true, Ordering::Relaxed) {
            self.settle();
        }
        self.lend_memory();
    }

    fn flushed_bytes_min(&self) -> u64 {
        FLUSHED_BYTES_MIN.min(self.sizes.memtable_bytes / FLUSHED_PART)
    }

    /// The largest memtables, so that what is left of all together is little.
    fn worth_a_flush(&self) -> Vec<Arc<KeyspaceState>> {
        let sized = self.all_keyspaces().into_iter().filter_map(|keyspace| {
            let bytes = {
                let read = keyspace.read.load();
                if read.active.memtable.is_empty() { 0 } else { read.active.bytes() }
            };
            let can_freeze = bytes > 0 && keyspace.flush_failure.lock().is_none();
            can_freeze.then_some((bytes, keyspace))
        });
        let mut sized: Vec<(u64, Arc<KeyspaceState>)> = sized.collect();
        sized.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut left: u64 = sized.iter().map(|(bytes, _)| bytes).sum();
        let most = self.sizes.memtable_bytes / FLUSHED_PART;
        let least = self.flushed_bytes_min();
        let is_chosen = |(bytes, _): &(u64, Arc<KeyspaceState>)| {
            let is_chosen = left > most && *bytes >= least;
            left -= *bytes;
            is_chosen
        };
        sized.into_iter().take_while(is_chosen).map(|(_, keyspace)| keyspace).collect()
    }

    /// Lends the page cache what memtables do not hold.
    fn lend_memory(&self) {
        if self.sizes.cache_bytes_chosen.is_some() {
            return;
        }
        {
            let _share = self.cache_share.lock();
            self.pool.keep_nothing_idle();
            self.memtables_share.store(0, Ordering::Relaxed);
            self.rest.is_lent.store(true, Ordering::Relaxed);
            let used = self.pool.bytes_in_use() as u64;
            self.rest.limit_bytes.store(used + self.lent_step_bytes(), Ordering::Relaxed);
            self.lend_buffers();
        }
        self.share_memory();
    }

    /// Whether memtables have been freed since memory was lent: readers held them.
    fn is_too_little_lent(&self) -> bool {
        let used = self.pool.bytes_in_use() as u64;
        let share = self.memtables_share.load(Ordering::Relaxed);
        self.rest.is_lent() && used + 3 * self.lent_step_bytes() < share
    }

    /// A writer needs what has been lent. It does not wait for it: evicting pages takes longer than a write should.
    #[cold]
    pub(super) fn want_memory_back(&self) {
        if self.rest.is_lent() {
            self.rest.limit_bytes.store(0, Ordering::Relaxed);
            self.pool.keep_idle();
            if !self.rest.is_wanted.swap(true, Ordering::AcqRel) {
                self.executor.notify();
            }
        }
    }

    /// The job that takes back what has been lent, if a writer needs it.
    pub(super) fn next_return(self: &Arc<Self>) -> Option<Box<dyn Job>> {
        let rest = &self.rest;
        let is_due = rest.is_wanted.load(Ordering::Acquire)
            && !rest.is_coming_back.swap(true, Ordering::AcqRel);
        is_due.then(|| Box::new(TakeBack { store: Arc::clone(self) }) as Box<dyn Job>)
    }
}

/// Takes back what has been lent. The page cache is locked in each step.
struct TakeBack {
    store: Arc<Store>,
}

impl Job for TakeBack {
    fn step(&mut self) -> Result<Step> {
        let store = &self.store;
        let is_done = {
            let _share = store.cache_share.lock();
            let taken = (store.pool.bytes_in_use() + store.pool.bytes_retained()) as u64;
            let usual = taken + 2 * store.sizes.memtable_bytes;
            let usual = usual.min(store.sizes.memtables_bytes_max);
            let share = store.memtables_share.load(Ordering::Relaxed) + store.lent_step_bytes();
            store.memtables_share.fetch_max(share.min(usual), Ordering::Relaxed);
            if share >= usual {
                // Also if the store has begun to rest once more meanwhile.
                store.rest.limit_bytes.store(0, Ordering::Relaxed);
                store.pool.keep_idle();
                store.rest.is_lent.store(false, Ordering::Relaxed);
                store.rest.is_wanted.store(false, Ordering::Release);
            }
            share >= usual
        };
        store.share_memory();
        Ok(if is_done { Step::Done } else { Step::Again })
    }
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        self.store.rest.is_coming_back.store(false, Ordering::Release);
    }
}
