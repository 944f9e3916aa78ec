//! Waiting until the background has nothing left to do.
//!
//! Invariants:
//! 1. Work that there is no room for is tried again for as long as other work is done: that may have made some.
//! 2. The store is idle only if no job was under way, and none ended, from before the search for work until after it:
//!    a job that begins meanwhile claims the work that there is, and one that ends may leave more.
//! 3. Damage at a place that is left alone is told only once all other work has been done.
//! 4. Threads are told to look for work only if there is some that nobody has claimed. While they look they are at work,
//!    and who tells them again and again never sees them idle.

use std::sync::Arc;

use super::failures::Cause;
use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use crate::base::error::{Error, Result};
use crate::base::sync::atomic::Ordering;

/// Without anything having been done for so long, what is tried again and again finds no room.
const FRUITLESS_NANOS_MAX: u64 = 3_000_000_000;

/// With damage that is left alone and nothing done for so long, nobody waits for the rest: such places are tried again
/// every minute, and many of them together may never all rest.
const DAMAGED_NANOS_MAX: u64 = 60_000_000_000;

/// What the background is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Idle,
    /// Threads carry out work or look for it.
    UnderWay,
    /// There is work that nobody has claimed.
    ToDo,
}

impl Store {
    pub(crate) fn wait_idle(&self) -> Result<()> {
        if self.read_only {
            // Nobody works on what there would be to do.
            return self.check_open();
        }
        // What failed before is tried again, and counts only if it fails again.
        let mark = self.failure_mark();
        for keyspace in self.all_keyspaces() {
            keyspace.tree.retry_damaged();
        }
        self.clear_rests();
        self.refused();
        self.wait_idle_since(mark)
    }

    /// The same; failures noted after `mark` count.
    pub(crate) fn wait_idle_since(&self, mark: u64) -> Result<()> {
        let poisoned = || self.poison.first().map_or(Ok(()), Err);
        let mut done = self.work_done.load(Ordering::Acquire);
        let mut since = self.clock.nanos();
        let mut moved = (done, since);
        loop {
            let ended = self.executor.ended();
            self.check_open()?;
            poisoned()?;
            let activity = self.activity_while(|| ());
            // A job tells its failure before it ends, so what ended before that look has told.
            poisoned()?;
            if activity == Activity::Idle {
                let Some(error) = self.refused() else {
                    // What there was no room for is no more to be done.
                    let failed = self.failed_since(mark, Cause::Other);
                    let failed = failed.or_else(|| self.failed_since(mark, Cause::LeftAlone));
                    failed.map_or(Ok(()), Err)?;
                    self.drop_unheld();
                    return self.operator_failures();
                };
                let now_done = self.work_done.load(Ordering::Acquire);
                if now_done == done {
                    return Err(error);
                }
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
                    return Err(self.failed_since(mark, Cause::LeftAlone).unwrap_or(error));
                }
            }
            if activity != Activity::UnderWay {
                self.executor.notify();
            }
            let now_done = self.work_done.load(Ordering::Acquire);
            if now_done != moved.0 {
                moved = (now_done, self.clock.nanos());
            } else if self.clock.nanos().saturating_sub(moved.1) > DAMAGED_NANOS_MAX
                && let Some(error) = self.failed_since(mark, Cause::LeftAlone)
            {
                return Err(error);
            }
            if self.executor.wait(ended, WAIT_MAX) {
                continue;
            }
            // No time passes for a stepped executor that would end the rest of a keyspace after a failure.
            self.clear_rests();
            if !self.executor.wait(ended, WAIT_MAX) {
                return self.failed_since(mark, Cause::LeftAlone).map_or(Ok(()), Err);
            }
        }
    }

    /// Whether there is work under way, or to do. What was refused for want of room is left to whoever asks
    /// [`Store::refused`]. Calls `meanwhile` once no job is seen, before it looks for work.
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

    /// What the work was refused with that there was no room for, if there is such. It is tried again from now on.
    fn refused(&self) -> Option<Error> {
        let mut refused = None;
        for keyspace in self.all_keyspaces() {
            let flush =
                keyspace.is_flushing().then(|| keyspace.flush_failure.lock().take()).flatten();
            refused = refused.or(flush).or(keyspace.tree.retry_refused());
        }
        if refused.is_some() {
            self.forget_full_failures();
            self.clear_rests();
        }
        refused
    }

    /// Fails if a merge operator has panicked in the background since this was last asked.
    fn operator_failures(&self) -> Result<()> {
        let mut failure = None;
        for keyspace in self.all_keyspaces() {
            self.hear_of_operator(&keyspace);
            let taken = keyspace.operator_failure.lock().take();
            failure = failure.or(taken);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Drops what was kept for readers that are gone, and makes idle iterators give back what they keep.
    pub(crate) fn drop_unheld(&self) {
        self.give_back(&self.all_keyspaces());
    }
}
