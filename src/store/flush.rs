//! The way from a frozen memtable into the tree: build its table, then incorporate it.
//!
//! `memtable_state` has the stages and draws them. Everyone who flushes moves memtables along them: background jobs
//! ([`FlushJob`]), callers that wait for a flush ([`Store::flush_frozen`]), and the replay of the journal
//! ([`KeyspaceState::flush_alone`]), which has no store yet.
//!
//! Invariants:
//! 1. Memtables of a keyspace are built in any order, several at once if there are threads, and incorporated oldest
//!    first, by a thread that holds `incorporation`.
//! 2. A memtable is looked for in the read state only. So whoever finds it finds it frozen for all readers.

use std::sync::Arc;
use std::time::Duration;

use super::events::Event;
use super::job_memory::Buffers;
use super::memtable_state::MemtableState;
use super::state::{KeyspaceState, ReadState};
use super::store::Store;
use crate::base::entry::{Cursor, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::jobs::{Job, Step, WorkSource};
use crate::memtable::MemtableCursor;
use crate::tree::{PackSource, Packed};

/// How long a keyspace's flushes pause after one has failed.
const BACKOFF_NANOS: u64 = 1_000_000_000;

/// A frozen memtable in order.
struct FrozenEntries {
    cursor: MemtableCursor,
    entries: usize,
    started: bool,
}

impl PackSource for FrozenEntries {
    fn next(&mut self) -> Result<()> {
        if self.started {
            return self.cursor.next();
        }
        self.started = true;
        self.cursor.seek_first()
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.cursor.entry()
    }

    fn entries(&self) -> usize {
        self.entries
    }
}

/// The frozen memtables, oldest first.
fn oldest_first(read: &ReadState) -> impl Iterator<Item = &Arc<MemtableState>> {
    let early = planted(Bug::FreezeAnnouncedEarly).then_some(&read.active);
    read.frozen.iter().rev().chain(early)
}

impl KeyspaceState {
    /// Returns true while memtables are on their way into the tree.
    pub(crate) fn is_flushing(&self) -> bool {
        !self.is_gone() && !self.read.load().frozen.is_empty()
    }

    /// Claims the oldest memtable that nobody builds.
    pub(crate) fn claim_waiting(&self) -> Option<Arc<MemtableState>> {
        let read = self.read.load();
        oldest_first(&read).find(|memtable| !self.is_gone() && memtable.claim()).cloned()
    }

    /// Builds the table of a memtable that the caller has claimed.
    pub(crate) fn build(&self, memtable: &MemtableState) -> Result<()> {
        let (cursor, entries) = (memtable.memtable.cursor(), memtable.memtable.len());
        let packed =
            Arc::clone(&self.tree).pack(&mut FrozenEntries { cursor, entries, started: false });
        let packed = packed.inspect_err(|_| memtable.give_back())?;
        memtable.built(packed, || self.is_gone());
        Ok(())
    }

    /// Takes the oldest memtable to incorporate it, if it was frozen at `upto` or before and has been built.
    fn take_built(&self, upto: Seqno) -> Option<(Arc<MemtableState>, Box<dyn Packed>)> {
        if self.is_dropped() {
            return None;
        }
        let read = self.read.load();
        let is_next = |memtable: &&Arc<MemtableState>| {
            memtable.is_built() || !planted(Bug::IncorporateOutOfOrder)
        };
        let next = oldest_first(&read).find(is_next).filter(|next| next.is_frozen_upto(upto))?;
        next.take().map(|packed| (Arc::clone(next), packed))
    }

    /// Flushes all frozen memtables, in a store that is being opened: nobody else does.
    pub(crate) fn flush_alone(&self) -> Result<()> {
        while let Some(claimed) = self.claim_waiting() {
            self.build(&claimed)?;
            while let Some((memtable, packed)) = self.take_built(Seqno::MAX) {
                let upto = memtable.freeze_seqno.get().copied().unwrap_or_default();
                // What is replayed is durable.
                self.keep_range_deletes(&memtable, upto, None, &[])?;
                self.move_into_tree(&memtable, packed)?;
            }
        }
        Ok(())
    }

    fn move_into_tree(&self, memtable: &MemtableState, packed: Box<dyn Packed>) -> Result<()> {
        let freeze_seqno = memtable.freeze_seqno.get().copied().unwrap_or_default();
        packed.incorporate(freeze_seqno)?;
        memtable.incorporated();
        Ok(())
    }
}

impl Store {
    /// Builds the table of a claimed memtable.
    fn build_claimed(&self, keyspace: &KeyspaceState, memtable: &MemtableState) -> Result<()> {
        let _buffers = Buffers::begin(self);
        keyspace.build(memtable).inspect_err(|error| self.flush_failed(keyspace, error))
    }

    /// Incorporates the built memtables of all keyspaces, oldest first. If another thread does so, it is left to that
    /// one, which looks again before it ends.
    ///
    /// # Errors
    /// The first failure. It keeps no other keyspace's memtables waiting.
    pub(crate) fn incorporate_built(&self) -> Result<()> {
        let mut first = None;
        self.incorporate_each(&mut |keyspace, error| {
            self.note_failure(&keyspace.flush_failures, &error, false);
            first.get_or_insert(error);
        });
        first.map_or(Ok(()), Err)
    }

    /// The same for a caller that waits for one keyspace: failures of others are reported as those of background work.
    fn incorporate_built_of(&self, keyspace: &KeyspaceState) -> Result<()> {
        let mut mine = None;
        self.incorporate_each(&mut |other, error| match other.id == keyspace.id {
            true => mine = Some(error),
            false => self.flush_failed_for(other, &error),
        });
        mine.map_or(Ok(()), Err)
    }

    /// Calls `f` while no other thread incorporates memtables. What was built meanwhile is incorporated afterwards,
    /// however `f` ends.
    ///
    /// # Errors
    /// As `f`; failures of the incorporation are reported as those of background work.
    pub(crate) fn while_incorporating_alone<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let result = {
            let _alone = self.incorporation.lock();
            f()
        };
        self.incorporate_each(&mut |keyspace, error| self.flush_failed_for(keyspace, &error));
        result
    }

    /// A keyspace's flush has failed and nobody waits for it: reports that as background work's failure.
    fn flush_failed_for(&self, keyspace: &KeyspaceState, error: &Error) {
        self.note_failure(&keyspace.flush_failures, error, false);
        self.job_failed(error);
    }

    fn incorporate_each(&self, failed: &mut dyn FnMut(&KeyspaceState, Error)) {
        loop {
            {
                let Some(_alone) = self.incorporation.try_lock() else { return };
                for keyspace in self.all_keyspaces() {
                    let Err(error) = self.incorporate_due(&keyspace, Seqno::MAX) else { continue };
                    failed(&keyspace, error);
                    // A poisoned store incorporates nothing.
                    if planted(Bug::IncorporationStops) || self.poison.is_set() {
                        return;
                    }
                }
            }
            let is_due = |keyspace: &Arc<KeyspaceState>| {
                let read = keyspace.read.load();
                !keyspace.is_dropped() && read.frozen.last().is_some_and(|oldest| oldest.is_built())
            };
            if !self.all_keyspaces().iter().any(is_due) {
                self.trim_indexes();
                return;
            }
        }
    }

    /// Incorporates one keyspace's built memtables that were frozen at `upto` or before. The caller holds
    /// `incorporation`.
    fn incorporate_due(&self, keyspace: &KeyspaceState, upto: Seqno) -> Result<()> {
        while let Some((memtable, packed)) = keyspace.take_built(upto) {
            self.incorporate(keyspace, &memtable, packed).inspect_err(|error| {
                // What was built is gone, and its files with it.
                memtable.give_back();
                self.flush_failed(keyspace, error);
            })?;
        }
        Ok(())
    }

    /// A memtable did not get into the tree: writers that need its room are refused, and it is tried again after a
    /// pause.
    fn flush_failed(&self, keyspace: &KeyspaceState, error: &Error) {
        *keyspace.flush_failure.lock() = Some(error.clone());
        let until = self.clock.nanos() + BACKOFF_NANOS;
        keyspace.flush_backoff_until_nanos.store(until, Ordering::Relaxed);
    }

    fn incorporate(
        &self,
        keyspace: &KeyspaceState,
        memtable: &MemtableState,
        packed: Box<dyn Packed>,
    ) -> Result<()> {
        let bytes = packed.bytes();
        let freeze_seqno = memtable.freeze_seqno.get().copied().unwrap_or_default();
        self.sync_journal_before(keyspace, freeze_seqno)?;
        let (journal, snapshots) = (Some(&*self.journal), self.live_snapshots());
        keyspace.keep_range_deletes(memtable, freeze_seqno, journal, &snapshots)?;
        keyspace.move_into_tree(memtable, packed).inspect_err(|error| match error {
            // Nothing has changed: the manifest is as it was, or was never reached.
            Error::Corruption { .. } | Error::Io { op: "read", .. } => {}
            error if error.is_refusal() => {}
            error => self.poison.set(error),
        })?;
        keyspace.flush_failures.forget();
        *keyspace.flush_failure.lock() = None;
        self.work_done.fetch_add(1, Ordering::AcqRel);
        let nanos = memtable.nanos_since_freeze(self.clock.nanos()).max(1);
        self.note_drained(bytes.data, nanos);
        self.emit(|| Event::Flush {
            keyspace: keyspace.name.clone(),
            data_bytes: bytes.data,
            written_bytes: bytes.written,
            elapsed: Duration::from_nanos(nanos),
        });
        self.executor.notify();
        Ok(())
    }

    /// Before the tree of one keyspace durably holds everything up to `seqno`, what other keyspaces have in memtables
    /// alone must be durable up to there. Otherwise a power loss would leave a gap.
    fn sync_journal_before(&self, keyspace: &KeyspaceState, seqno: Seqno) -> Result<()> {
        let others = self.all_keyspaces();
        let is_behind = |other: &Arc<KeyspaceState>| {
            other.id != keyspace.id && other.persisted_upto(seqno) < seqno
        };
        if others.iter().any(is_behind) && !planted(Bug::IncorporateBeforeSync) {
            self.journal.sync_upto(seqno)?;
            self.manifest.require_journal_upto(seqno);
        }
        Ok(())
    }

    /// Keeps a running mean of the rate at which memtables are incorporated.
    fn note_drained(&self, bytes: u64, nanos: u64) {
        if bytes == 0 {
            return;
        }
        let seen = bytes as f64 * 1e9 / nanos as f64;
        let before = f64::from_bits(self.drain_rate.load(Ordering::Relaxed));
        let mean = before * 0.8 + seen * 0.2;
        self.drain_rate.store(mean.max(4e6).to_bits(), Ordering::Relaxed);
    }

    /// Flushes what is frozen up to `upto`, on this thread as far as no other does.
    pub(crate) fn flush_frozen(&self, keyspace: &Arc<KeyspaceState>, upto: Seqno) -> Result<()> {
        self.drain(keyspace, upto, || self.incorporate_built_of(keyspace))
    }

    /// The same for a caller that holds `incorporation`; nothing frozen later is incorporated.
    pub(crate) fn flush_frozen_alone(
        &self,
        keyspace: &Arc<KeyspaceState>,
        upto: Seqno,
    ) -> Result<()> {
        self.drain(keyspace, upto, || self.incorporate_due(keyspace, upto))
    }

    /// Brings everything up to `upto` into the trees of all keyspaces but `name`. Afterwards the journal is not needed up
    /// to there if `name` is dropped. The caller holds `incorporation`.
    ///
    /// # Errors
    /// The error of another quarantined keyspace, which needs the journal; of a flush.
    pub(crate) fn persist_all_but(&self, name: &str, upto: Seqno) -> Result<()> {
        self.quarantine.check_all_but(name)?;
        let mut others = self.all_keyspaces();
        others.retain(|keyspace| keyspace.name != name);
        let cut = self.freeze(&others, |keyspace| keyspace.persisted_upto(upto) < upto);
        others.iter().try_for_each(|keyspace| self.flush_frozen_alone(keyspace, cut))
    }

    fn drain(
        &self,
        keyspace: &KeyspaceState,
        upto: Seqno,
        incorporate: impl Fn() -> Result<()>,
    ) -> Result<()> {
        loop {
            let ended = self.executor.ended();
            incorporate()?;
            // What a dropped keyspace has frozen stays.
            keyspace.check_exists()?;
            if !keyspace.read.load().frozen.iter().any(|memtable| memtable.is_frozen_upto(upto)) {
                return Ok(());
            }
            self.check_writable()?;
            match keyspace.claim_waiting() {
                Some(memtable) => self.build_claimed(keyspace, &memtable)?,
                None => {
                    self.executor.wait(ended, Duration::from_millis(1));
                }
            }
        }
    }
}

/// Builds the table of one memtable, then incorporates what is due.
pub(super) struct FlushJob {
    pub(super) store: Arc<Store>,
    pub(super) keyspace: Arc<KeyspaceState>,
    /// Claimed, and not built yet.
    pub(super) claimed: Option<Arc<MemtableState>>,
}

impl Job for FlushJob {
    fn step(&mut self) -> Result<Step> {
        let Some(memtable) = self.claimed.take() else { return Ok(Step::Done) };
        let built = self.store.build_claimed(&self.keyspace, &memtable);
        self.store.report_operator_panic(&self.keyspace);
        if built.is_err() && self.keyspace.is_dropped() {
            return Ok(Step::Done);
        }
        built.inspect_err(|e| self.store.note_failure(&self.keyspace.flush_failures, e, false))?;
        self.store.incorporate_built()?;
        Ok(Step::Done)
    }
}

impl Drop for FlushJob {
    fn drop(&mut self) {
        if let Some(memtable) = &self.claimed {
            memtable.give_back();
        }
    }
}
