//! Replaying the journal into memtables, and making room among them while that lasts.
//!
//! Invariants:
//! 1. The cost follows from the journal's bytes. All keyspaces are looked at only to make room, and only
//!    once so many bytes have been replayed since the last time that they pay for it.
//! 2. Memtables together take up to half of the budget while that lasts, since nothing else needs it yet, and
//!    a third of that more until room is made. At the end they take what they may in a store that is open.
//! 3. What is read goes into memtables keyspace by keyspace, many operations at once (`staged`). Before a memtable is
//!    frozen it has all that was read.
//! 4. Room is made by freezing the largest memtables, whosesoever they are: the largest make the largest
//!    tables.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use super::quarantine::concerns_one;
use super::room::Room;
use super::staged::Staged;
use super::state::{KeyspaceState, ReadState};
use super::store::StoreContext;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::jobs::for_each_at_once;
use crate::journal::{EpochLimit, Journal, Operation, Operations, ReplayPlan, ReplayReport};
use crate::manifest::RecoveredState;
use crate::table::BlobPointer;
use crate::tree::OperationSource;

/// Memtables that become tables at once: their syncs then go together.
const FLUSHED_AT_ONCE_MAX: usize = 8;

/// What a replay has done.
pub(super) struct Replayed {
    pub(super) report: ReplayReport,
    /// The keyspaces that cannot take in what the journal has of them, and why.
    pub(super) failed: BTreeMap<KeyspaceId, Error>,
    /// How many memtables were weighed to make room, which follows from the journal's bytes.
    pub(super) memtables_weighed: u64,
}

/// A replay under way.
struct Replay<'a> {
    context: &'a StoreContext,
    recovered: &'a RecoveredState,
    keyspaces: &'a BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
    /// The blob files that active memtables point to.
    blobs: BTreeMap<KeyspaceId, BTreeSet<FileId>>,
    failed: BTreeMap<KeyspaceId, Error>,
    /// Present if nothing may be written to make room.
    room: Option<Room>,
    /// What has been read and is not in memtables yet.
    staged: Staged,
    /// What was replayed since room was made.
    replayed_bytes: u64,
    /// How many memtables were weighed to make room.
    weighed: u64,
}

impl StoreContext {
    /// Replays the journal into the keyspaces' memtables.
    pub(super) fn replay(
        &self,
        recovered: &RecoveredState,
        keyspaces: &BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
        logs: &[Arc<dyn OperationSource>],
        salvage: bool,
    ) -> Result<Replayed> {
        let limits = recovered
            .epochs
            .older
            .iter()
            .map(|&(epoch, last)| Ok(EpochLimit { epoch: epoch_number(epoch)?, last }));
        let plan = ReplayPlan {
            store_id: recovered.store_id,
            floor: recovered.journal_floor,
            limits: limits.collect::<Result<_>>()?,
            newest_epoch: epoch_number(recovered.epochs.current)?,
            logs: logs.to_vec(),
            salvage,
            read_only: self.read_only,
        };
        let mut replay = Replay {
            context: self,
            recovered,
            keyspaces,
            blobs: BTreeMap::new(),
            failed: BTreeMap::new(),
            room: self.read_only.then(|| Room::new(&self.sizes)),
            staged: Staged::new(self.sizes.replay_memtables_bytes_max()),
            replayed_bytes: 0,
            weighed: 0,
        };
        let report = Journal::replay(&*self.vfs, &self.path, &plan, |first, count, operations| {
            replay.record(first, count, operations)
        })?;
        replay.insert_staged()?;
        match replay.room {
            Some(room) => room.check(&self.path)?,
            None => replay.fit_share(report.last)?,
        }
        Ok(Replayed { report, failed: replay.failed, memtables_weighed: replay.weighed })
    }

    /// Freezes memtables at `cut` and makes them part of their trees. An error that is one keyspace's affair alone
    /// goes to `failed`, if that is there.
    pub(super) fn freeze_and_flush(
        &self,
        keyspaces: &[&Arc<KeyspaceState>],
        cut: Seqno,
        failed: Option<&mut BTreeMap<KeyspaceId, Error>>,
    ) -> Result<()> {
        let frozen: Vec<&Arc<KeyspaceState>> = (keyspaces.iter().copied())
            .filter(|keyspace| keyspace.freeze(cut, &self.pool, 0))
            .collect();
        let at_once = if self.clock.is_real() { FLUSHED_AT_ONCE_MAX } else { 1 };
        let failed = failed.map(Mutex::new);
        for_each_at_once(at_once, &frozen, |keyspace| match (keyspace.flush_alone(), &failed) {
            (Err(error), Some(failed)) => self.fails_alone(keyspace, error, &mut failed.lock()),
            (flushed, _) => flushed,
        })
    }

    /// Notes that a keyspace cannot take in what the journal has of it, if that is its affair alone.
    fn fails_alone(
        &self,
        keyspace: &KeyspaceState,
        error: Error,
        failed: &mut BTreeMap<KeyspaceId, Error>,
    ) -> Result<()> {
        let manifest = self.manifest.path();
        if !concerns_one(&error, |file| *file == manifest) {
            return Err(error);
        }
        failed.insert(keyspace.id, error);
        Ok(())
    }
}

impl Replay<'_> {
    /// Takes in one record.
    fn record(&mut self, first: Seqno, count: u32, operations: Operations<'_>) -> Result<()> {
        for (seqno, operation) in (first.0..).zip(operations) {
            let operation = operation?;
            match self.keyspaces.get(&operation.keyspace) {
                Some(keyspace) => {
                    if !self.staged.add(Seqno(seqno), &operation) {
                        self.insert(keyspace, [(Seqno(seqno), operation)].into_iter())?;
                    } else if self.staged.is_full() {
                        self.insert_staged()?;
                    }
                }
                None if operation.keyspace >= self.recovered.next_keyspace_id => {
                    return Err(Error::corruption(
                        &self.context.manifest.path(),
                        0,
                        "keyspaces in the manifest",
                        format_args!("number {}, which the journal has", operation.keyspace),
                        format_args!("numbers below {}", self.recovered.next_keyspace_id),
                    ));
                }
                None if planted(Bug::OpenReplaysDropped) => {
                    let other = self.keyspaces.range(..operation.keyspace).next_back();
                    if let Some((_, other)) = other {
                        self.insert(other, [(Seqno(seqno), operation)].into_iter())?;
                    }
                }
                // It was dropped after this was written.
                None => {}
            }
        }
        let last = Seqno(first.0 + u64::from(count) - 1);
        if planted(Bug::OpenWeighsEachRecord) {
            let weights = self.keyspaces.values().map(|it| it.read.load().active.exact_bytes());
            self.weighed += weights.filter(|bytes| *bytes < u64::MAX).count() as u64;
        }
        let limit = self.context.sizes.replay_memtables_bytes_max();
        if self.context.pool.bytes_in_use() as u64 <= limit || self.room.is_some() {
            return Ok(());
        }
        // Where chunks of memory are large and keyspaces many, there may never be room.
        if self.replayed_bytes < limit / 3 {
            return Ok(());
        }
        self.make_room(last)
    }

    /// Inserts what has been gathered.
    fn insert_staged(&mut self) -> Result<()> {
        let mut staged = mem::take(&mut self.staged);
        let keyspaces = self.keyspaces;
        staged.take(|keyspace, operations| match keyspaces.get(&keyspace) {
            Some(keyspace) => self.insert(keyspace, operations),
            None => Ok(()),
        })?;
        self.staged = staged;
        Ok(())
    }

    /// Inserts operations into a keyspace's memtable, unless that keyspace has failed.
    fn insert<'a>(
        &mut self,
        keyspace: &KeyspaceState,
        mut operations: impl Iterator<Item = (Seqno, Operation<'a>)>,
    ) -> Result<()> {
        if self.failed.contains_key(&keyspace.id) {
            return Ok(());
        }
        let read = keyspace.read.load();
        let inserted = operations
            .try_for_each(|(seqno, operation)| self.apply(keyspace, &read, seqno, &operation));
        inserted.or_else(|error| self.context.fails_alone(keyspace, error, &mut self.failed))
    }

    fn apply(
        &mut self,
        keyspace: &KeyspaceState,
        read: &ReadState,
        seqno: Seqno,
        operation: &Operation<'_>,
    ) -> Result<()> {
        if seqno <= read.version.flushed() && !planted(Bug::OpenReplaysFlushed) {
            return Ok(());
        }
        let context = self.context;
        if self.room.as_mut().is_some_and(|room| !room.takes(operation, &context.pool)) {
            return Ok(());
        }
        let is_blob = operation.kind == EntryKind::PutBlob
            || (operation.kind == EntryKind::MergeBlob && !planted(Bug::MergeBlobNotReplayed));
        if is_blob {
            let pointer = BlobPointer::of_entry(operation.value)?;
            if self.blobs.entry(keyspace.id).or_default().insert(pointer.file) {
                let blob = context.blobs.open(pointer.file)?;
                read.active.blobs.lock().push(blob);
            }
        }
        match operation.kind {
            EntryKind::RangeDelete => {
                let now_nanos = context.clock.nanos();
                let bounds = (operation.key, operation.value);
                // There are no readers yet.
                read.active.delete_range(bounds, seqno, Seqno(0), now_nanos);
            }
            kind => read.active.memtable.insert(operation.key, seqno, kind, operation.value),
        }
        // As `Slot::exact_bytes` counts.
        self.replayed_bytes += (operation.key.len() + operation.value.len()) as u64 + 32;
        Ok(())
    }

    /// After the last record: memtables are left with what they may take, so that no writer has to wait.
    fn fit_share(&mut self, last: Seqno) -> Result<()> {
        let sizes = &self.context.sizes;
        let share = sizes.replay_memtables_bytes_max().min(sizes.memtables_bytes_max * 3 / 4);
        while self.context.pool.bytes_in_use() as u64 > share {
            // (Where chunks of memory are large and keyspaces many, they may never fit.)
            let held = (self.keyspaces.values())
                .filter(|keyspace| !self.failed.contains_key(&keyspace.id))
                .map(|keyspace| keyspace.read.load().active.exact_bytes());
            if held.sum::<u64>() < share / 3 {
                break;
            }
            self.make_room(last)?;
        }
        Ok(())
    }

    /// Makes tables of the largest memtables, until half of what all hold has gone.
    fn make_room(&mut self, last: Seqno) -> Result<()> {
        // What is frozen has all operations up to its cut.
        self.insert_staged()?;
        self.weighed += self.keyspaces.len() as u64;
        let mut sizes: Vec<(u64, &Arc<KeyspaceState>)> = (self.keyspaces.values())
            .filter(|keyspace| !self.failed.contains_key(&keyspace.id))
            .map(|keyspace| (keyspace.read.load().active.exact_bytes(), keyspace))
            .collect();
        sizes.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let half = sizes.iter().map(|(bytes, _)| bytes).sum::<u64>() / 2;
        let mut freed = 0;
        let chosen: Vec<&Arc<KeyspaceState>> = (sizes.iter())
            .take_while(|(bytes, _)| {
                let wanted = freed < half && *bytes > 0;
                freed += bytes;
                wanted
            })
            .map(|(_, keyspace)| *keyspace)
            .collect();
        chosen.iter().for_each(|keyspace| drop(self.blobs.remove(&keyspace.id)));
        self.replayed_bytes = 0;
        self.context.freeze_and_flush(&chosen, last, Some(&mut self.failed))
    }
}

pub(super) fn epoch_number(epoch: u64) -> Result<u32> {
    u32::try_from(epoch).map_err(|_| Error::Conflict {
        what: format!("the store has come to epoch {epoch}: it has been opened more often than its format can count"),
    })
}
