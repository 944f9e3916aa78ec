//! Group commit: one leader syncs for all who wait, and a failure poisons the store.
//!
//! Invariants:
//! 1. A round of syncs covers everything that was appended before the round began. Who arrives while
//!    a round runs waits for the next one.
//! 2. The leader holds no lock while it syncs.
//! 3. What a round made durable is published (shard watermarks, `durable`) only after all of its
//!    syncs have succeeded, and before anybody is told.

use std::sync::Arc;

use super::Journal;
use super::format::Position;
use super::shard::ShardState;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::panics::caught;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::sync::MutexGuard;
use crate::base::sync::atomic::Ordering;
use crate::vfs::MappedFile;

/// What those who wait share.
#[derive(Default)]
pub(super) struct SyncState {
    rounds_begun: u64,
    rounds_done: u64,
    leading: bool,
    /// The largest sequence number anybody said to have been appended, with all before it.
    claimed: Seqno,
}

/// What one round has to sync in a shard.
struct Target {
    shard: usize,
    files: Vec<Arc<dyn MappedFile>>,
    upto: Position,
}

impl Journal {
    /// Makes everything durable that was appended, on any shard, before the call. Must not be called
    /// with a shard locked.
    ///
    /// # Errors
    /// `Poisoned` if a sync failed earlier; its own error if the failing sync was this caller's.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let state = self.sync.lock();
        let needed = state.rounds_begun + 1;
        self.wait_until(state, |state| state.rounds_done >= needed)
    }

    /// Makes everything durable up to `seqno`. The caller vouches that all of it has been appended.
    /// Must not be called with a shard locked.
    ///
    /// # Errors
    /// As for `sync_all`.
    pub(crate) fn sync_upto(&self, seqno: Seqno) -> Result<()> {
        if self.durable.load(Ordering::Acquire) >= seqno.0 {
            return Ok(());
        }
        let mut state = self.sync.lock();
        state.claimed = state.claimed.max(seqno);
        self.wait_until(state, |_| self.durable.load(Ordering::Acquire) >= seqno.0)
    }

    /// Everything up to here is durable: the largest number that a `sync_upto` has answered for.
    #[cfg(test)]
    pub(crate) fn durable(&self) -> Seqno {
        Seqno(self.durable.load(Ordering::Acquire))
    }

    /// Fails if appends are refused.
    #[inline]
    pub(super) fn check_open(&self) -> Result<()> {
        if self.poison.is_set() || self.closed.load(Ordering::SeqCst) {
            self.poison.check()?;
            return Err(self.closed_error());
        }
        Ok(())
    }

    fn wait_until(
        &self,
        mut state: MutexGuard<'_, SyncState>,
        done: impl Fn(&SyncState) -> bool,
    ) -> Result<()> {
        loop {
            if done(&state) {
                return Ok(());
            }
            self.poison.check()?;
            if state.leading {
                self.sync_done.wait(&mut state);
                continue;
            }
            state.leading = true;
            state.rounds_begun += 1;
            let (round, claimed) = (state.rounds_begun, state.claimed);
            // A leader that did not come back would leave the others waiting for it.
            let result = MutexGuard::unlocked(&mut state, || caught(|| self.lead_round(claimed)));
            let result = result.unwrap_or_else(|message| {
                Err(Error::Poisoned {
                    reason: format!("a sync of the journal panicked: {message}"),
                })
            });
            if planted(Bug::JournalLeaderLost) && result.is_err() {
                // Who comes later is refused at once.
                MutexGuard::unlocked(&mut state, || hold_open(Bug::JournalLeaderLost, 1));
                return result;
            }
            state.leading = false;
            match &result {
                Ok(()) => state.rounds_done = round,
                Err(error) => self.poison.set(error),
            }
            self.sync_done.notify_all();
            result?;
        }
    }

    fn lead_round(&self, claimed: Seqno) -> Result<()> {
        let mut targets = Vec::with_capacity(self.shards.len());
        for index in 0..self.shards.len() {
            targets.extend(self.sync_target(index));
        }
        if planted(Bug::JournalSyncFirstShardOnly) {
            targets.truncate(1);
        }
        for target in &targets {
            for file in &target.files {
                if !planted(Bug::JournalSyncSkipped) {
                    file.sync().map_err(|error| error.not_refused("sync"))?;
                }
                self.files_synced.fetch_add(1, Ordering::Relaxed);
            }
        }
        for target in &targets {
            let mut state = self.shards[target.shard].state.lock();
            state.synced = state.synced.max(target.upto);
            let ShardState { rolled, removed, .. } = &mut *state;
            for rolled in removed.iter_mut().chain(rolled) {
                if rolled.number < target.upto.segment {
                    rolled.unsynced = None;
                }
            }
        }
        if !targets.is_empty() {
            self.syncs.fetch_add(1, Ordering::Relaxed);
        }
        self.durable.fetch_max(claimed.0, Ordering::AcqRel);
        Ok(())
    }

    /// The files of a shard that hold bytes not synced yet, oldest first.
    fn sync_target(&self, index: usize) -> Option<Target> {
        let state = self.shards[index].state.lock();
        let current = state.current.as_ref()?;
        let upto = Position { segment: current.segment.number, offset: current.offset };
        if upto <= state.synced {
            return None;
        }
        let rolled = state.removed.iter().chain(&state.rolled);
        let rolled = rolled.filter_map(|rolled| rolled.unsynced.clone());
        let files = rolled.chain([Arc::clone(&current.segment.file)]).collect();
        Some(Target { shard: index, files, upto })
    }
}
