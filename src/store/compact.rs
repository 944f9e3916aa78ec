//! Compactions that a caller asks for and waits for: the calling thread and the background threads share the work.
//!
//! Invariants:
//! 1. The calling thread uses the memory of one more background thread, and the page cache gives that up for the time.
//! 2. No wait is without an end: a closed or poisoned store ends it.

use std::cell::Cell;
use std::sync::Arc;

use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use crate::base::error::Result;
use crate::base::sync::atomic::Ordering;
use crate::tree::Helpers;

/// The store's background threads, for one calling thread.
struct Threads<'a> {
    store: &'a Store,
    /// How many jobs had ended when the caller last looked for work.
    ended: Cell<u64>,
}

impl Helpers for Threads<'_> {
    fn invite(&self) {
        self.store.executor.notify();
    }

    fn interleave(&self) {
        if self.store.executor.is_stepped() {
            // The failure of a step reaches whoever waits for its job.
            let _ = self.store.executor.step();
        }
    }

    fn wait(&self) -> Result<()> {
        // A conflicting job that panicked never ends: without this check the wait would not either.
        self.store.check_writable()?;
        let executor = &self.store.executor;
        executor.wait(self.ended.get(), WAIT_MAX);
        self.ended.set(executor.ended());
        Ok(())
    }
}

/// A calling thread, for as long as it compacts.
struct Caller<'a>(&'a Store);

impl<'a> Caller<'a> {
    fn begin(store: &'a Store) -> Caller<'a> {
        store.compacting.fetch_add(1, Ordering::AcqRel);
        store.share_memory();
        // Its lists count as those of a job.
        store.begin_buffers();
        Caller(store)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.end_buffers();
        self.0.compacting.fetch_sub(1, Ordering::AcqRel);
        self.0.share_memory();
    }
}

impl Store {
    /// Compacts a keyspace's tree in a range.
    pub(crate) fn compact(
        &self,
        keyspace: &KeyspaceState,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<()> {
        let _caller = Caller::begin(self);
        let threads = Threads { store: self, ended: Cell::new(self.executor.ended()) };
        let compacted = Arc::clone(&keyspace.tree).compact(lower, upper, &threads);
        self.update_backlog_of(keyspace);
        compacted
    }

    /// The most jobs that can be running at once, each with memory of its own.
    pub(super) fn jobs_max(&self) -> usize {
        self.workers + self.compacting.load(Ordering::Acquire) as usize
    }
}
