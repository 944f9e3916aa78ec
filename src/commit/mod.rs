//! The total order of commits: sequence numbers, visibility, throttling.
//!
//! A commit locks a journal shard, takes its sequence numbers, appends one record, and releases the shard. Then it inserts
//! its entries into the memtables. It is acknowledged once all lower numbers have been applied too.
//!
//! Invariants:
//! 1. Every number up to `visible` has been journaled and applied; readers read at `visible`.
//! 2. A commit that has been acknowledged is visible.
//! 3. A commit that panics half-way never becomes visible, nor do later ones: waiting writers get an error.
//! 4. The shard stays locked from taking numbers until the record has been appended, so numbers rise within a shard. No
//!    number is taken while all shards are locked. A [`Committer::barrier`] locks them and then waits until all numbers
//!    are visible, so in it no commit is half done.

#[cfg(all(test, loom))]
mod loom_tests;
mod order;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod tests;
mod throttle;

use std::sync::Arc;

use crate::base::durability::Durability;
use crate::base::error::{Error, Result};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::panics::watched;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::sync::{Backoff, Mutex, thread_number, waiting};
use crate::journal::{Journal, Payload, ShardGuard};
use crate::tree::OperationLog;

pub(crate) use throttle::{Throttle, WriteDelay};

#[cfg(all(test, loom))]
pub(crate) use order::CommitOrder;
#[cfg(not(all(test, loom)))]
use order::CommitOrder;

/// A batch to be committed.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    /// Its operations, as the journal keeps them.
    pub(crate) payload: Payload<'a>,
    /// How many there are.
    pub(crate) count: u32,
    pub(crate) durability: Durability,
    /// The log of its keyspace, if it has only one and that has a log.
    pub(crate) own: Option<(KeyspaceId, &'a dyn OperationLog)>,
}

/// How often [`Committer::catch_up`] looks whether the last commit is visible.
const LOOKS_TO_CATCH_UP: u32 = 32;

/// Orders commits.
pub(crate) struct Committer {
    journal: Arc<Journal>,
    order: CommitOrder,
    /// Held while all shards are locked.
    barrier: Mutex<()>,
    /// The shard depends only on the commits before.
    deterministic: bool,
}

impl Committer {
    /// Continues after `last`.
    pub(crate) fn new(journal: Arc<Journal>, last: Seqno, deterministic: bool) -> Committer {
        Committer {
            order: CommitOrder::new(last.0),
            journal,
            barrier: Mutex::new(()),
            deterministic,
        }
    }

    /// The number at which readers read now.
    #[inline]
    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.order.visible())
    }

    /// Commits a batch: journals its payload, in the log of its own if that has room, calls `apply` with the first number
    /// and returns the last, when it and all before it are visible. On a full disk `makes_room` is asked whether the batch
    /// may have what is left free for that. What `check` sees is as the last
    /// [`Committer::barrier`] left it, and no other begins before the batch has been applied: `check` is
    /// called with the room reserved, when nothing is left to wait for.
    ///
    /// # Errors
    /// As `check` and [`ShardGuard::reserve`], and nothing has happened then; as [`ShardGuard::check`].
    // Inlined into the closure that watches for a panic it costs a put 20 instructions more.
    #[inline(never)]
    pub(crate) fn commit(
        &self,
        Batch { payload, count, durability, own }: Batch<'_>,
        makes_room: impl Fn() -> bool,
        check: impl Fn() -> Result<()>,
        apply: impl FnOnce(Seqno),
    ) -> Result<Seqno> {
        // Writers that sync share a shard: one file to sync for all of them.
        let preferred = match durability {
            // Spread over the shards as several threads would, but the same at each run.
            Durability::Buffered if self.deterministic => {
                (self.order.next().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
            }
            Durability::Buffered => thread_number(),
            Durability::Sync => 0,
        };
        let mut shard = match own {
            Some((keyspace, _)) => self.journal.lock_shard_of(keyspace),
            None => self.journal.lock_shard(preferred),
        };
        if planted(Bug::CommitChecksBeforeWait) {
            check()?;
            // As it does to wait for a segment.
            drop(shard);
            hold_open(Bug::CommitChecksBeforeWait, 256);
            shard = self.journal.lock_shard(preferred);
        }
        let own = match own {
            Some((_, log)) => shard.reserve_in(log, &payload)?.then_some(log),
            None => None,
        };
        if own.is_none()
            && let Err(error) = shard.reserve(payload.len())
        {
            if !matches!(error, Error::Full { .. }) || !makes_room() {
                return Err(error);
            }
            shard.reserve_to_make_room(payload.len())?;
        }
        // Not before: a reservation may have to wait for a segment, and lets barriers pass meanwhile.
        if !planted(Bug::CommitChecksBeforeWait) {
            check()?;
        }
        let first = self.order.take(count);
        let append_and_apply = || {
            match own {
                Some(log) => shard.append_to(log, Seqno(first), count, &payload),
                None => shard.append(Seqno(first), count, payload),
            }
            // Only where files cannot be mapped can the append have failed.
            let appended = match own {
                Some(log) => shard.check_log(log),
                None => shard.check(),
            };
            // The shard is others' now. Barriers wait for what follows.
            drop(shard);
            if planted(Bug::CommitAppliedEarly) {
                self.order.applied(first, count);
                hold_open(Bug::CommitAppliedEarly, 64);
            }
            hold_open(Bug::CommitBarrierEarly, 64);
            apply(Seqno(first));
            appended
        };
        let appended = watched(append_and_apply, || self.order.abandon(first));
        let last = Seqno(first + u64::from(count) - 1);
        // Also one that failed, since it has been applied: a later commit or barrier would show it.
        if planted(Bug::CommitAppliedEarly) || !self.order.applied(first, count) {
            self.await_visible(last)?;
        }
        if !planted(Bug::CommitFailedAppend) {
            appended?;
        }
        Ok(last)
    }

    /// Waits until `last` is visible. Those before it are being applied at this moment, so the wait
    /// is short unless one of them has lost its core.
    ///
    /// # Errors
    /// `Poisoned` if one of them will never be applied, since it has panicked.
    #[inline]
    fn await_visible(&self, last: Seqno) -> Result<()> {
        match self.order.advance() >= last.0 {
            true => Ok(()),
            false => waiting("earlier commits", || self.await_earlier(last)),
        }
    }

    #[cold]
    fn await_earlier(&self, last: Seqno) -> Result<()> {
        let backoff = Backoff::new();
        loop {
            if self.order.advance() >= last.0 {
                return Ok(());
            }
            if self.order.is_abandoned_before(last.0) {
                let reason = "a commit panicked half-way".to_string();
                return Err(Error::Poisoned { reason });
            }
            backoff.snooze();
        }
    }

    /// Returns the last number taken, once it is visible; `None` if that takes long. A commit that takes its number
    /// later finds in `apply` all that the caller has done before.
    #[cold]
    pub(crate) fn catch_up(&self) -> Option<Seqno> {
        let last = self.order.last_taken();
        if planted(Bug::GapNotCaughtUp) {
            return Some(Seqno(last));
        }
        let backoff = Backoff::new();
        for _ in 0..LOOKS_TO_CATCH_UP {
            if self.order.visible() >= last || self.order.advance() >= last {
                return Some(Seqno(last));
            }
            backoff.snooze();
        }
        None
    }

    /// Calls `f` with the last number taken, while no commit is under way.
    pub(crate) fn barrier<R>(&self, f: impl FnOnce(Seqno) -> R) -> R {
        let _alone = self.barrier.lock();
        let shards = match self.journal.shard_count() {
            several @ 2.. if planted(Bug::CommitBarrierLeaky) => several - 1,
            shards => shards,
        };
        let mut held: Vec<ShardGuard<'_>> = Vec::with_capacity(shards);
        let mut is_held = vec![false; self.journal.shard_count()];
        // Another shard than the one asked for may be locked, if it is free.
        let mut missing = 0;
        while held.len() < shards {
            while is_held.get(missing) == Some(&true) {
                missing += 1;
            }
            let guard = self.journal.lock_shard(missing);
            is_held[guard.index()] = true;
            held.push(guard);
        }
        let last = self.await_all();
        hold_open(Bug::CommitBarrierLeaky, 4);
        f(Seqno(last))
    }

    /// Waits until all numbers that have been taken are visible, and returns the last. If a commit has panicked, then those
    /// before it: nothing later will ever be acknowledged.
    fn await_all(&self) -> u64 {
        let backoff = Backoff::new();
        loop {
            let visible = self.order.advance();
            if visible >= self.order.last_taken()
                || self.order.is_abandoned_before(visible + 1)
                || planted(Bug::CommitBarrierEarly)
            {
                return visible;
            }
            backoff.snooze();
        }
    }
}
