//! Group commit: one leader syncs for all who wait, and a failure poisons the store.
//!
//! `base::group_commit` has the leader's part.
//!
//! Invariants:
//! 1. A round of syncs covers everything that was appended before the round began.
//! 2. What a round made durable is published (shard watermarks, `durable`) only after all of its
//!    syncs have succeeded, and before anybody is told.

use std::sync::Arc;

use super::Journal;
use super::format::Position;
use super::shard::ShardState;
use crate::base::error::Result;
use crate::base::group_commit::Rounds;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::vfs::MappedFile;

/// What those who wait share.
#[derive(Default)]
pub(crate) struct SyncState {
    rounds_begun: u64,
    rounds_done: u64,
    /// The largest sequence number anybody said to have been appended, with all before it.
    claimed: Seqno,
}

/// One round of syncs.
pub(crate) struct Round {
    number: u64,
    /// As `SyncState::claimed` when it began.
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
        let mut state = self.sync.lock();
        let needed = state.rounds_begun + 1;
        self.sync.wait(&mut state, self, &self.poison, |state| state.rounds_done >= needed)
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
        let is_durable = |_: &SyncState| self.durable.load(Ordering::Acquire) >= seqno.0;
        self.sync.wait(&mut state, self, &self.poison, is_durable)
    }

    /// Everything up to here is durable: the largest number that a `sync_upto` has answered for.
    #[cfg(test)]
    pub(crate) fn durable(&self) -> Seqno {
        Seqno(self.durable.load(Ordering::Acquire))
    }

    /// The largest number that a `sync_upto` waits for, or has waited for.
    #[cfg(test)]
    pub(crate) fn claimed(&self) -> Seqno {
        self.sync.lock().claimed
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

impl Rounds for Journal {
    type State = SyncState;
    type Round = Round;
    type Done = ();

    const WHAT: &'static str = "a sync of the journal";

    fn begin(&self, state: &mut SyncState) -> Round {
        state.rounds_begun += 1;
        Round { number: state.rounds_begun, claimed: state.claimed }
    }

    fn work(&self, round: &Round) -> Result<()> {
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
        self.sync_logs()?;
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
        self.durable.fetch_max(round.claimed.0, Ordering::AcqRel);
        Ok(())
    }

    fn end(&self, state: &mut SyncState, round: Round, done: Result<()>) -> Result<()> {
        done?;
        state.rounds_done = round.number;
        Ok(())
    }
}
