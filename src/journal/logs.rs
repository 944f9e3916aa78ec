//! The logs that trees keep, as the journal uses them: one more place for batches, synced and retired with the shards.

use std::sync::Arc;

use super::shard::ShardGuard;
use super::{Journal, Payload};
use crate::base::error::Result;
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::tree::OperationLog;

impl Journal {
    /// Begins this epoch in the log of a tree. Everything so far is numbered `last` or less.
    pub(crate) fn attach(&self, log: &Arc<dyn OperationLog>, last: Seqno) {
        log.begin(self.options.epoch, last);
        self.logs.lock().push(Arc::clone(log));
    }

    /// Forgets the log of a tree that has been dropped. The manifest's floor is at or above its last number.
    pub(crate) fn detach(&self, log: &Arc<dyn OperationLog>) {
        self.logs.lock().retain(|other| !Arc::ptr_eq(other, log));
    }

    /// Locks the shard under whose lock batches are appended to the log of this keyspace: always the same one, so that
    /// the log's sequence numbers rise.
    pub(crate) fn lock_shard_of(&self, keyspace: KeyspaceId) -> ShardGuard<'_> {
        self.lock_shard_exactly(keyspace.0 as usize % self.shards.len())
    }

    /// Makes what is in the logs durable; part of a round of group commit.
    pub(super) fn sync_logs(&self) -> Result<()> {
        let logs = self.logs.lock().clone();
        for log in logs.iter().filter(|_| !planted(Bug::OperationLogNotSynced)) {
            let files = log.sync().map_err(|error| error.not_refused("sync"))?;
            self.files_synced.fetch_add(files, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The manifest's floor is at `floor` durably.
    pub(super) fn retire_logs(&self, floor: Seqno) {
        let logs = self.logs.lock().clone();
        let floor = if planted(Bug::OperationLogRetiredEarly) { Seqno::MAX } else { floor };
        logs.iter().for_each(|log| log.retire(floor));
    }
}

impl ShardGuard<'_> {
    /// Returns true if the log has room for a payload: then `append_to` cannot fail.
    ///
    /// # Errors
    /// `Poisoned`; `Closed`.
    pub(crate) fn reserve_in(&self, log: &dyn OperationLog, payload: &Payload<'_>) -> Result<bool> {
        self.journal().check_open()?;
        Ok(matches!(payload, Payload::Whole(bytes) if log.reserve(bytes.len())))
    }

    /// Appends a batch to a tree's log, after [`ShardGuard::reserve_in`].
    pub(crate) fn append_to(
        &mut self,
        log: &dyn OperationLog,
        first: Seqno,
        count: u32,
        payload: &Payload<'_>,
    ) {
        let Payload::Whole(payload) = payload else { unreachable!("no room was reserved for it") };
        let durable = Seqno(self.journal().durable.load(Ordering::Acquire));
        log.append(first, count, durable, payload);
        self.note_last(Seqno(first.0 + u64::from(count) - 1));
    }

    /// Whether what was appended to the log has arrived, as [`ShardGuard::check`] says it of the shard.
    ///
    /// # Errors
    /// The write's error; the journal is poisoned.
    pub(crate) fn check_log(&self, log: &dyn OperationLog) -> Result<()> {
        log.check()
            .map_err(|error| error.not_refused("write"))
            .inspect_err(|error| self.journal().poison.set(error))
    }
}
