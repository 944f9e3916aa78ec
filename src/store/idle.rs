//! Waiting until no background work is left.
//!
//! Invariants:
//! 1. Work that found no room is retried as long as other work completes: that may have freed some.
//! 2. The store is idle only if no job was running, and none ended, from before the search for work until after it. A
//!    job that begins meanwhile claims the work that there is, and one that ends may leave more.
//! 3. Damage at a quarantined place is reported only once all other work has been done.
//! 4. Threads are notified only if there is work that nobody has claimed. While they look for work they count as busy,
//!    so a waiting thread that notified them repeatedly would never see them idle.

use std::sync::Arc;

use super::failures::Cause;
use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use crate::base::error::{Error, Result};
use crate::base::sync::atomic::Ordering;

/// If no work completes for so long, what is retried finds no room.
const FRUITLESS_NANOS_MAX: u64 = 3_000_000_000;

/// If there is damage and no work completes for so long, the wait ends: quarantined places are retried every minute, and
/// many of them together may never all pause.
const DAMAGED_NANOS_MAX: u64 = 60_000_000_000;

/// What background work is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Idle,
    /// Threads do work or look for it.
    UnderWay,
    /// There is work that nobody has claimed.
    ToDo,
}

impl Store {
    pub(crate) fn wait_idle(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only {
            // There is no background work.
            return Ok(());
        }
        // Earlier failures are retried, and count only if they repeat.
        let mark = self.failure_mark();
        for keyspace in self.all_keyspaces() {
            keyspace.tree.retry_damaged();
        }
        self.clear_backoff();
        self.refused();
        self.wait_idle_since(mark)
    }

    /// The same; failures noted after `mark` count.
    pub(crate) fn wait_idle_since(&self, mark: u64) -> Result<()> {
        let poisoned = || self.poison.first().map_or(Ok(()), Err);
        let mut done = self.work_done.load(Ordering::Acquire);
        let mut since = self.clock.nanos();
        // How much work had been done when what was refused was last retried: a job that was under way when the wait
        // began may have been refused what there is by now.
        let mut retried = None;
        let mut moved = (done, since);
        let mut is_settled = false;
        loop {
            let ended = self.executor.ended();
            self.check_open()?;
            poisoned()?;
            let activity = self.activity_while(|| ());
            // A job notes its failure before it ends, so those that had ended by then have.
            poisoned()?;
            if activity == Activity::Idle && !is_settled {
                is_settled = true;
                self.settle();
                continue;
            }
            if activity == Activity::Idle {
                let Some(error) = self.refused() else {
                    // What found no room need not be done any more.
                    let failed = self.failed_since(mark, Cause::Other);
                    let failed = failed.or_else(|| self.failed_since(mark, Cause::Quarantined));
                    failed.map_or(Ok(()), Err)?;
                    self.drop_unheld();
                    return self.operator_failures();
                };
                let now_done = self.work_done.load(Ordering::Acquire);
                if retried == Some(now_done) {
                    return Err(error);
                }
                retried = Some(now_done);
                done = now_done;
                since = self.clock.nanos();
            }
            if let Some(error) = self.failed_since(mark, Cause::Other) {
                return Err(error);
            }
            if let Some(error) = self.failed_since(mark, Cause::Full) {
                let fruitless = self.work_done.load(Ordering::Acquire) == done
                    && self.clock.nanos().saturating_sub(since) > FRUITLESS_NANOS_MAX;
                if fruitless || self.executor.is_stepped() {
                    return Err(self.failed_since(mark, Cause::Quarantined).unwrap_or(error));
                }
            }
            if activity != Activity::UnderWay {
                self.executor.notify();
            }
            let now_done = self.work_done.load(Ordering::Acquire);
            if now_done != moved.0 {
                moved = (now_done, self.clock.nanos());
            } else if self.clock.nanos().saturating_sub(moved.1) > DAMAGED_NANOS_MAX
                && let Some(error) = self.failed_since(mark, Cause::Quarantined)
            {
                return Err(error);
            }
            if self.executor.wait(ended, WAIT_MAX) {
                continue;
            }
            // No time passes for a stepped executor that would end a pause after a failure.
            self.clear_backoff();
            if !self.executor.wait(ended, WAIT_MAX) {
                return self.failed_since(mark, Cause::Quarantined).map_or(Ok(()), Err);
            }
        }
    }

    /// What background work is doing. Work refused for lack of room does not count; [`Store::refused`] retries it. Calls
    /// `meanwhile` once no job is seen, before it looks for work.
    pub(crate) fn activity_while(&self, meanwhile: impl FnOnce()) -> Activity {
        let Some(ended) = self.executor.quiet() else { return Activity::UnderWay };
        meanwhile();
        let flushes = |keyspace: &Arc<KeyspaceState>| {
            let refused = matches!(*keyspace.flush_failure.lock(), Some(Error::Full { .. }));
            !refused && keyspace.is_flushing()
        };
        if self.all_keyspaces().iter().any(flushes) || self.has_work() {
            return Activity::ToDo;
        }
        match self.executor.quiet() {
            Some(now) if now == ended => Activity::Idle,
            _ => Activity::UnderWay,
        }
    }

    /// The error of work that was refused for lack of room, if there is such work. It is retried from now on.
    fn refused(&self) -> Option<Error> {
        let mut refused = None;
        for keyspace in self.all_keyspaces() {
            let flush =
                keyspace.is_flushing().then(|| keyspace.flush_failure.lock().take()).flatten();
            refused = refused.or(flush).or(keyspace.tree.retry_refused());
        }
        if refused.is_some() {
            self.forget_full_failures();
            self.clear_backoff();
        }
        refused
    }

    /// Fails if a merge operator has panicked in the background since this was last asked.
    fn operator_failures(&self) -> Result<()> {
        let mut failure = None;
        for keyspace in self.all_keyspaces() {
            self.report_operator_panic(&keyspace);
            let taken = keyspace.operator_failure.lock().take();
            failure = failure.or(taken);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Drops what was kept for readers that have ended, and what idle iterators keep.
    pub(crate) fn drop_unheld(&self) {
        self.give_back(&self.all_keyspaces());
    }
}
