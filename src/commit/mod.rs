//! From a batch to a place in the one total order: sequence numbers, visibility, throttling.
//!
//! A commit locks a journal shard, takes its sequence numbers, appends one record, applies itself to
//! the memtables, and releases the shard; it is acknowledged once every lower number is in too.
//!
//! Invariants:
//! 1. Every number up to `visible` has been journaled and applied; readers read at `visible`.
//! 2. A commit that has been acknowledged is visible.
//! 3. Between taking numbers and the end of the application the shard stays locked: who holds all
//!    shards ([`Committer::barrier`]) meets no commit half done.
//! 4. A shard's `in_flight` never exceeds a number that it has taken and not yet applied.

mod throttle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::{Backoff, CachePadded};
use parking_lot::Mutex;

use crate::base::durability::Durability;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::journal::{Journal, ShardGuard};

pub(crate) use throttle::{Price, Throttle};

/// A shard without a commit under way.
const IDLE: u64 = u64::MAX;

/// Orders commits.
pub(crate) struct Committer {
    journal: Arc<Journal>,
    /// The next number to be taken.
    next: CachePadded<AtomicU64>,
    visible: CachePadded<AtomicU64>,
    /// For each shard the first number under way, or `IDLE`.
    in_flight: Box<[CachePadded<AtomicU64>]>,
    /// Held by whoever locks all shards.
    barrier: Mutex<()>,
    /// Whether the shard depends on nothing but the commits before.
    deterministic: bool,
}

/// The shard that the calling thread prefers.
fn preferred_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|mine| *mine)
}

impl Committer {
    /// Continues after `last`.
    pub(crate) fn new(journal: Arc<Journal>, last: Seqno, deterministic: bool) -> Committer {
        let idle = || CachePadded::new(AtomicU64::new(IDLE));
        Committer {
            in_flight: (0..journal.shard_count()).map(|_| idle()).collect(),
            journal,
            next: CachePadded::new(AtomicU64::new(last.0 + 1)),
            visible: CachePadded::new(AtomicU64::new(last.0)),
            barrier: Mutex::new(()),
            deterministic,
        }
    }

    /// The number that readers read at now.
    #[inline]
    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Ordering::Acquire))
    }

    /// Commits a batch of `count` operations: journals `payload`, calls `apply` with the first number
    /// and returns the last, when it and all before it are visible.
    ///
    /// # Errors
    /// As [`ShardGuard::reserve`], and nothing has happened then; as [`ShardGuard::check`].
    pub(crate) fn commit(
        &self,
        payload: &[u8],
        count: u32,
        durability: Durability,
        apply: impl FnOnce(Seqno),
    ) -> Result<Seqno> {
        // Writers that sync share a shard: one file to sync for all of them.
        let preferred = match durability {
            // Spread over the shards as several threads would, but the same at each run.
            Durability::Buffered if self.deterministic => {
                (self.next.load(Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40)
                    as usize
            }
            Durability::Buffered => preferred_shard(),
            Durability::Sync => 0,
        };
        let mut shard = self.journal.lock_shard(preferred);
        shard.reserve(payload.len())?;
        let in_flight = &self.in_flight[shard.index()];
        // First a lower bound, so that no number is ever taken and not announced (invariant 4).
        in_flight.store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        let first = self.next.fetch_add(u64::from(count), Ordering::SeqCst);
        in_flight.store(first, Ordering::SeqCst);
        shard.append(Seqno(first), count, payload);
        apply(Seqno(first));
        in_flight.store(IDLE, Ordering::SeqCst);
        // Only where files cannot be mapped can the append have failed.
        let appended = shard.check();
        drop(shard);
        if !planted(Bug::CommitFailedAppend) {
            appended?;
        }
        let last = Seqno(first + u64::from(count) - 1);
        self.await_visible(last);
        Ok(last)
    }

    /// Waits until `last` is visible. Those before it are being applied at this moment, so the wait
    /// is short unless one of them has lost its core.
    fn await_visible(&self, last: Seqno) {
        let backoff = Backoff::new();
        loop {
            if self.visible.load(Ordering::Acquire) >= last.0 || self.advance() >= last.0 {
                return;
            }
            backoff.snooze();
        }
    }

    /// Raises `visible` as far as it may go and returns it.
    fn advance(&self) -> u64 {
        // In this order: a number below `next` that is not applied is announced by its shard.
        let next = self.next.load(Ordering::SeqCst);
        let in_flight = self.in_flight.iter().map(|shard| shard.load(Ordering::SeqCst)).min();
        let in_flight = in_flight.filter(|_| !planted(Bug::CommitVisibleEarly));
        let visible = next.min(in_flight.unwrap_or(IDLE)) - 1;
        self.visible.fetch_max(visible, Ordering::AcqRel).max(visible)
    }

    /// Calls `f` with the last number taken, while no commit is under way.
    pub(crate) fn barrier<R>(&self, f: impl FnOnce(Seqno) -> R) -> R {
        let _alone = self.barrier.lock();
        let shards = match self.journal.shard_count() {
            several @ 2.. if planted(Bug::CommitBarrierLeaky) => several - 1,
            shards => shards,
        };
        let mut held: Vec<ShardGuard<'_>> = Vec::with_capacity(shards);
        while held.len() < shards {
            let missing = (0..shards).find(|index| held.iter().all(|g| g.index() != *index));
            held.push(self.journal.lock_shard(missing.unwrap_or(0)));
        }
        let last = self.advance();
        f(Seqno(last))
    }
}
