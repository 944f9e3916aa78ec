//! The way of a write: admission, and the commit of a batch.

use std::cell::Cell;
use std::sync::Arc;

use super::condition::{Condition, Preconditions, lock_hash};
use super::counters::is_timed;
use super::in_flight::{COUNTED_BYTES_MIN, Flight};
use super::large::LargeValues;
use super::locking::lock_keyspaces;
use super::memtable_state::MemtableState;
use super::operation::{Operation, check_kind, check_sizes, too_large};
use super::payload::{LARGE_BYTES, with_parts};
use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use super::transaction_locks::Owner;
use super::tries::Tries;
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::{BATCH_BYTES_MAX, BATCH_OPERATION_BYTES};
use crate::base::panics::watched;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::sync::atomic::Ordering;
use crate::base::sync::yield_now;
use crate::cache::Room;
use crate::commit;
use crate::journal::{Payload, encode_operation};
use crate::merge::Contained;

/// A thread keeps its buffer for journal records up to this size.
const PAYLOAD_KEPT_BYTES_MAX: usize = 32 << 10;
/// On a full disk memtables are flushed from this part of a journal segment on: a table of less takes as much as it
/// gives back of the journal.
const FLUSHED_PART: u64 = 4;
/// What writing a blob file uses.
const BLOB_BUFFERS_BYTES: u64 = 512 << 10;
/// Larger batches are refused inside a merge operator.
const LARGE_BATCH_BYTES: u64 = 4 << 20;

/// What is known of a batch before it is committed.
struct Checked<'a> {
    /// Its operations.
    count: u32,
    /// Bytes of its keys and values.
    bytes: u64,
    /// Bytes that journal and memtable get to hold, with `BATCH_OPERATION_BYTES` for each operation.
    held: u64,
    /// The operations whose values go to a blob file, ascending, if there are any.
    #[expect(clippy::box_collection, reason = "most batches have none, and are moved")]
    large: Option<Box<Vec<u32>>>,
    /// A memtable that it goes to is full.
    is_full: bool,
    /// Its only keyspace.
    only: Option<&'a KeyspaceState>,
    /// The keyspace whose writers are delayed most.
    slowest: Option<&'a KeyspaceState>,
    /// How many keyspaces had been dropped or guarded when it was checked.
    changes: u64,
    locking: Cell<Locking>,
    /// What must hold when it is committed.
    preconditions: &'a Preconditions<'a>,
    /// Who has locked keys for it.
    owner: Option<Owner>,
}

/// How a try to commit has ended.
enum Outcome {
    /// The last number of the commit.
    Committed(Seqno),
    /// A precondition does not hold.
    Refused,
    /// A transaction has locked a key that it writes to.
    Blocked,
}

/// Whether a commit locks its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locking {
    /// None of its keyspaces is guarded.
    Needless,
    /// One is. So it is as well if that is seen only with the shard locked.
    Needed,
    Locked,
}

impl Checked<'_> {
    /// Notes that the next operation's value is large.
    #[cold]
    #[inline(never)]
    fn note_large(&mut self) {
        self.large.get_or_insert_default().push(self.count);
    }
}

impl Store {
    /// Commits a batch whose operations `operations` yields each time it is called.
    #[inline]
    pub(crate) fn commit<'a, I>(
        &self,
        operations: impl Fn() -> I,
        durability: Durability,
    ) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        self.commit_if(operations, durability, &Preconditions::NONE, &mut Tries::default())
            .map(|_| ())
    }

    /// The same if all `preconditions` hold; else nothing is written, and the answer is no. Their keyspaces are guarded.
    /// `tries` is what earlier tries of the same commit have done.
    pub(crate) fn commit_if<'a, I>(
        &self,
        operations: impl Fn() -> I,
        durability: Durability,
        preconditions: &'a Preconditions<'a>,
        tries: &mut Tries,
    ) -> Result<bool>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let timed = is_timed().then(|| self.clock.nanos());
        self.check_open()?;
        self.check_not_read_only()?;
        let mut batch = self.check(operations(), preconditions)?;
        batch.owner = tries.owner().or(preconditions.owner);
        if batch.count == 0 {
            return self.commit_nothing(durability, preconditions);
        }
        // Before it holds what others wait for.
        self.wait_for_readers(batch.held);
        let last = match self.try_to_commit(&operations, &mut batch, durability, tries)? {
            Outcome::Committed(last) => last,
            Outcome::Refused => return Ok(false),
            Outcome::Blocked => {
                match self.commit_after_others(&operations, &mut batch, durability, tries)? {
                    None => return Ok(false),
                    Some(last) => last,
                }
            }
        };
        if durability == Durability::Sync && !planted(Bug::CommitBeforeSync) {
            self.journal.sync_upto(last)?;
            self.counters.commits_sync.add(1);
        }
        if self.journal.take_maintenance_notice() {
            // The next segment wants to be ready before this one is full.
            self.executor.notify();
        }
        self.counters.count_commit(batch.count, batch.bytes);
        if let Some(start) = timed {
            self.counters.commit_latency.record(self.clock.nanos().saturating_sub(start));
        }
        Ok(true)
    }

    /// Tries once to commit a batch.
    #[inline]
    fn try_to_commit<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &mut Checked<'a>,
        durability: Durability,
        tries: &mut Tries,
    ) -> Result<Outcome>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        if batch.large.is_some() || batch.held >= COUNTED_BYTES_MIN {
            return self.commit_counted(operations, batch, durability, tries);
        }
        self.admit(operations, batch, tries)?;
        self.commit_in_order(operations, batch, durability, None)
    }

    /// Commits a batch that writes to keys which transactions have locked: waits for these keys as a transaction of this one
    /// commit, and passes them on once it is visible. `None` if a precondition does not hold.
    #[cold]
    fn commit_after_others<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &mut Checked<'a>,
        durability: Durability,
        tries: &mut Tries,
    ) -> Result<Option<Seqno>>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        Contained::refuse_inside("a write to a key that a transaction has locked")?;
        // Kept until the last try, which reads again what has changed while it waited.
        let owner = batch.owner;
        let mut taken = tries.rest().taken.take().unwrap_or_else(|| self.takes_keys(owner));
        batch.owner = Some(taken.owner);
        let outcome = loop {
            match self.take_locked(operations(), &mut taken) {
                // A transaction waits for a key that this batch has taken, and needs nothing but to be let by.
                Err(not_locked)
                    if not_locked.circle_at.is_some() && !taken.owner.is_transaction =>
                {
                    taken.release();
                    yield_now();
                    continue;
                }
                Err(not_locked) => {
                    tries.rest().circle_at = not_locked.circle_at.map(|key| *key);
                    return Err(not_locked.error);
                }
                Ok(()) => {}
            }
            // It may have waited for long.
            batch.is_full = true;
            match self.try_to_commit(operations, batch, durability, tries)? {
                Outcome::Committed(last) => break Some(last),
                Outcome::Refused => break None,
                Outcome::Blocked => {}
            }
        };
        if outcome.is_none() {
            tries.rest().taken = Some(taken);
        }
        Ok(outcome)
    }

    /// Whether all conditions hold at one moment; what was committed before is durable then, if wanted.
    #[cold]
    fn commit_nothing(
        &self,
        durability: Durability,
        preconditions: &Preconditions<'_>,
    ) -> Result<bool> {
        if !preconditions.is_empty() {
            let _locked = self.key_locks.lock(preconditions.conditions.iter().map(Condition::hash));
            if !self.all_hold(preconditions)? {
                return Ok(false);
            }
        }
        if durability == Durability::Sync {
            self.sync()?;
        }
        Ok(true)
    }

    /// Refuses what cannot be committed, and finds out what admission has to know.
    #[inline]
    fn check<'a>(
        &self,
        operations: impl Iterator<Item = Operation<'a>>,
        preconditions: &'a Preconditions<'a>,
    ) -> Result<Checked<'a>> {
        let mut batch = Checked {
            count: 0,
            bytes: 0,
            held: 0,
            large: None,
            is_full: false,
            only: None,
            slowest: None,
            // Before a keyspace is looked at.
            changes: self.keyspace_changes.load(Ordering::Acquire),
            locking: Cell::new(Locking::Needless),
            preconditions,
            owner: None,
        };
        let mut last: Option<&Arc<KeyspaceState>> = None;
        for operation in operations {
            let Operation { keyspace, kind, key, value } = operation;
            check_sizes(key, value)?;
            if matches!(kind, EntryKind::Merge | EntryKind::RangeDelete) {
                check_kind(&operation)?;
            }
            // A batch that is let through has fewer operations than a `u32` counts.
            let is_large = operation.is_large(&self.sizes);
            if is_large {
                batch.note_large();
            }
            batch.count = batch.count.wrapping_add(1);
            let value_bytes = if is_large { 0 } else { value.len() };
            batch.bytes += (key.len() + value.len()) as u64;
            batch.held += (key.len() + value_bytes) as u64 + BATCH_OPERATION_BYTES;
            if last.is_some_and(|last| Arc::ptr_eq(last, keyspace)) {
                continue;
            }
            batch.only = last.is_none().then_some(&**keyspace);
            last = Some(keyspace);
            keyspace.check_exists()?;
            batch.is_full |= self.is_full(&keyspace.read.load().active);
            if keyspace.is_guarded.load(Ordering::Relaxed) && !planted(Bug::GuardedWriteUnlocked) {
                batch.locking.set(Locking::Needed);
            }
            let is_faster = |slowest: &KeyspaceState| {
                slowest.write_delay.per_mib() < keyspace.write_delay.per_mib()
            };
            if batch.slowest.is_none_or(is_faster) {
                batch.slowest = Some(keyspace);
            }
        }
        if batch.held > BATCH_BYTES_MAX {
            return Err(too_large(batch.held));
        }
        Ok(batch)
    }

    /// Lets a writer in: once there is room in the memtables, and delayed by how far the background is behind.
    #[inline]
    fn admit<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &Checked<'_>,
        tries: &mut Tries,
    ) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        if batch.is_full {
            self.make_room(operations)?;
        }
        if self.is_pressed(batch.held) {
            self.relieve_pressure(operations)?;
        }
        if let Some(slowest) = batch.slowest.filter(|_| !tries.was_delayed) {
            tries.was_delayed = true;
            self.throttle.delay(batch.bytes, &slowest.write_delay, &self.clock);
        }
        Ok(())
    }

    /// Commits a batch that is counted as in flight, with its large values in blob files.
    #[cold]
    fn commit_counted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &mut Checked<'a>,
        durability: Durability,
        tries: &mut Tries,
    ) -> Result<Outcome>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let _flight = self.begin_flight(batch.held, batch.large.is_some())?;
        // Those that were in flight before may have filled the memtables.
        batch.is_full = true;
        self.admit(operations, batch, tries)?;
        let Some(large) = &batch.large else {
            return self.commit_in_order(operations, batch, durability, None);
        };
        let written = &mut tries.rest().values;
        written.take_if(|values| !values.are_those_of(large));
        let values = match written {
            Some(values) => values,
            // No blob file is written in vain.
            None if !self.all_hold(batch.preconditions)? => return Ok(Outcome::Refused),
            none => none.insert(LargeValues::write(self, operations(), large)?),
        };
        let stored = values.replace(operations());
        let stored = || stored.iter().copied();
        self.commit_in_order(&stored, batch, durability, Some(values))
    }

    /// Commits a batch that has been admitted, with its keys locked if need be.
    #[inline]
    fn commit_in_order<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &Checked<'a>,
        durability: Durability,
        values: Option<&LargeValues>,
    ) -> Result<Outcome>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let committed = |result: Result<Seqno>| match result {
            Ok(last) => Ok(Outcome::Committed(last)),
            Err(error) => self.not_committed(error).map(Outcome::Committed),
        };
        if batch.locking.get() == Locking::Needless && batch.preconditions.is_empty() {
            let result = self.commit_admitted(operations, batch, durability, values);
            // Otherwise a keyspace has been guarded since it was checked.
            if batch.locking.get() != Locking::Needed {
                return committed(result);
            }
        }
        match self.commit_locked(operations, batch, durability, values)? {
            Ok(result) => committed(result),
            Err(outcome) => Ok(outcome),
        }
    }

    /// The same with its keyspaces and keys locked. What the commit has failed with is returned for whoever holds no lock.
    #[cold]
    fn commit_locked<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &Checked<'a>,
        durability: Durability,
        values: Option<&LargeValues>,
    ) -> Result<std::result::Result<Result<Seqno>, Outcome>>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let wanted = batch.preconditions;
        let keyspaces = lock_keyspaces(operations, wanted);
        let hashes = || operations().map(|operation| lock_hash(operation.keyspace, operation.key));
        let of_conditions = match planted(Bug::ConditionKeysUnlocked) {
            true => &[],
            false => wanted.conditions,
        };
        let locked = self.key_locks.lock(hashes().chain(of_conditions.iter().map(Condition::hash)));
        if !self.all_hold(wanted)? {
            return Ok(Err(Outcome::Refused));
        }
        if self.transaction_locks.is_used() && self.is_blocked(operations(), batch.owner) {
            return Ok(Err(Outcome::Blocked));
        }
        hold_open(Bug::ConditionKeysUnlocked, 16);
        hold_open(Bug::WatchedKeyspaceShared, 8);
        hold_open(Bug::LockTakenBesideCommit, 8);
        batch.locking.set(Locking::Locked);
        let result = self.commit_admitted(operations, batch, durability, values);
        if planted(Bug::GuardWithoutBarrier) {
            wanted.keyspaces().for_each(|it| it.is_guarded.store(false, Ordering::SeqCst));
        }
        drop(locked);
        drop(keyspaces);
        Ok(Ok(result))
    }

    /// A keyspace has been dropped or guarded since the batch was checked. With the shard locked.
    #[cold]
    fn check_again<'a>(
        &self,
        mut operations: impl Iterator<Item = Operation<'a>>,
        batch: &Checked<'_>,
    ) -> Result<()> {
        batch.preconditions.keyspaces().try_for_each(|keyspace| keyspace.check_exists())?;
        operations.try_for_each(|Operation { keyspace, .. }| {
            keyspace.check_exists()?;
            let is_guarded = keyspace.is_guarded.load(Ordering::Acquire);
            if is_guarded && batch.locking.get() == Locking::Needless {
                batch.locking.set(Locking::Needed);
                // Nobody is told: it begins anew with its keys locked.
                return Err(Error::Closed { what: "a commit that locks no keys".to_string() });
            }
            Ok(())
        })
    }

    /// Commits a batch that has been admitted; its blob operations point to `values`.
    #[inline]
    fn commit_admitted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        batch: &Checked<'a>,
        durability: Durability,
        values: Option<&LargeValues>,
    ) -> Result<Seqno>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        thread_local! {
            // `with` and a `Cell` rather than `take` and `set`: 26 instructions fewer.
            static PAYLOAD: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
        }
        let makes_room = || {
            let is_delete = |operation: Operation<'_>| {
                matches!(operation.kind, EntryKind::Delete | EntryKind::RangeDelete)
            };
            operations().all(is_delete) && self.leaves_room_to_compact(batch.bytes)
        };
        // An iterator that was told of the number must find that no gap has the key (see `gaps`).
        let end_gaps = |operation: &Operation<'_>| {
            let is_put = match operation.kind {
                EntryKind::Delete | EntryKind::RangeDelete => false,
                EntryKind::Merge | EntryKind::MergeBlob => !planted(Bug::GapSurvivesMerge),
                _ => true,
            };
            if is_put && operation.keyspace.gaps.is_watched() {
                operation.keyspace.gaps.note(operation.key);
            }
        };
        // With the shard locked: a keyspace that is there then stays until the batch has been applied.
        let check = || {
            if self.keyspace_changes.load(Ordering::Acquire) != batch.changes {
                self.check_again(operations(), batch)?;
            }
            // Nothing is left that the commit could fail with before it has its number.
            if batch.locking.get() == Locking::Locked {
                self.tell_watches(operations(), batch.preconditions);
            }
            Ok(())
        };
        let check = || {
            if planted(Bug::GapEndedBeforeNumber) {
                operations().for_each(|operation| end_gaps(&operation));
                hold_open(Bug::GapEndedBeforeNumber, 8);
            }
            check()
        };
        let apply = |first: Seqno| {
            hold_open(Bug::GuardWithoutBarrier, 4);
            hold_open(Bug::WatchWithoutBarrier, 16);
            for (mut seqno, operation) in (first.0..).zip(operations()) {
                if planted(Bug::CommitOneNumberABatch) {
                    seqno = first.0;
                }
                if !planted(Bug::GapEndedBeforeNumber) {
                    end_gaps(&operation);
                    hold_open(Bug::GapNotCaughtUp, 8);
                }
                let Operation { keyspace, kind, key, value } = operation;
                let read = keyspace.read.load();
                if let Some(values) = values {
                    values.hold(&read.active, kind, value);
                }
                match kind {
                    EntryKind::RangeDelete => {
                        let now_nanos = self.clock.nanos();
                        read.active.delete_range((key, value), Seqno(seqno), first, now_nanos);
                    }
                    kind => read.active.memtable.insert(key, Seqno(seqno), kind, value),
                }
            }
        };
        let own = batch.only.and_then(|only| Some((only.id, &**only.log.as_ref()?)));
        let half_done = || self.panicked("a commit panicked half-way");
        let commit = |payload: Payload<'_>| {
            let batch = commit::Batch { payload, count: batch.count, durability, own };
            watched(|| self.committer.commit(batch, makes_room, check, apply), half_done)
        };
        if batch.held >= LARGE_BYTES {
            with_parts(operations, commit)
        } else {
            let mut payload = PAYLOAD.with(std::cell::Cell::take);
            payload.clear();
            for operation in operations() {
                let Operation { keyspace, kind, key, value } = operation;
                encode_operation(&mut payload, keyspace.id, kind, key, value);
            }
            let result = commit(Payload::Whole(&payload));
            if payload.capacity() <= PAYLOAD_KEPT_BYTES_MAX {
                PAYLOAD.with(|kept| kept.replace(payload));
            }
            result
        }
    }

    /// A commit has failed: with what it ends. No key is locked.
    #[cold]
    fn not_committed(&self, error: Error) -> Result<Seqno> {
        if matches!(error, Error::Full { .. }) {
            if planted(Bug::CommitFullSwallowed) {
                return Ok(self.committer.visible());
            }
            self.flush_for_room();
        }
        match error {
            Error::InvalidArgument { .. } | Error::Closed { .. } => Err(error),
            error => self.poison.unless_refused(Err(error)),
        }
    }

    /// Whether a batch of so many bytes, which makes room, leaves what memtables need to get into trees, and a
    /// compaction to drop what was deleted.
    #[cold]
    fn leaves_room_to_compact(&self, bytes: u64) -> bool {
        self.files.check_room(Room::ButForCompactions, bytes).is_ok()
    }

    /// A batch was refused for want of room. The journal takes as much of it as memtables have, and gives that back
    /// once they are in the trees, where compactions can drop what they delete.
    #[cold]
    fn flush_for_room(&self) {
        let keyspaces = self.all_keyspaces();
        if keyspaces.iter().any(|keyspace| keyspace.is_flushing()) {
            return;
        }
        let active_bytes = |keyspace: &KeyspaceState| keyspace.read.load().active.exact_bytes();
        let all: u64 = keyspaces.iter().map(|keyspace| active_bytes(keyspace)).sum();
        // Each refused batch would make a table of less.
        if all >= self.sizes.segment_bytes / FLUSHED_PART {
            self.freeze(&keyspaces, |keyspace| active_bytes(keyspace) > 0);
        }
    }

    /// Waits until a batch of so many bytes may be in flight beside others.
    #[cold]
    fn begin_flight(&self, held: u64, has_large_values: bool) -> Result<Flight<'_>> {
        if held > LARGE_BATCH_BYTES {
            // Whoever commits another one may wait for background work.
            Contained::refuse_inside("a batch of more than 4 MiB")?;
        }
        let buffers = if has_large_values { BLOB_BUFFERS_BYTES } else { 0 };
        Ok(self.in_flight.begin(held + buffers, !Contained::is_inside()))
    }

    #[inline]
    fn is_full(&self, memtable: &MemtableState) -> bool {
        let limit = self.sizes.memtable_bytes;
        if memtable.range_deletes.are_many() {
            return true;
        }
        if limit >= 4 << 20 {
            memtable.bytes() >= limit
        } else {
            let bytes = memtable.exact_bytes();
            bytes > 0 && bytes >= limit
        }
    }

    /// Freezes the batch's full memtables, each once there is room for one more that waits.
    #[cold]
    fn make_room<'a, I>(&self, operations: &impl Fn() -> I) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        for Operation { keyspace, .. } in operations() {
            if self.is_full(&keyspace.read.load().active) {
                let made = self.wait_for_room(keyspace);
                self.deliver_events();
                made?;
            }
        }
        Ok(())
    }

    fn wait_for_room(&self, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let mut waited_from = None;
        let mut tried_again = false;
        loop {
            let ended = self.executor.ended();
            self.check_writable()?;
            let read = keyspace.read.load_full();
            if !self.is_full(&read.active) || keyspace.is_dropped() {
                break;
            }
            let memtables = self.pool.bytes_in_use() as u64;
            let crowded = memtables > self.memtables_limit() && !read.frozen.is_empty();
            if read.frozen.len() < self.sizes.frozen_max && !crowded {
                self.freeze(std::slice::from_ref(keyspace), |keyspace| {
                    self.is_full(&keyspace.read.load().active)
                });
                break;
            }
            if let Some(error) = &*keyspace.flush_failure.lock() {
                // No time passes for a stepped executor that would end the rest after a failure.
                if tried_again || !self.executor.is_stepped() {
                    return Err(error.clone());
                }
                tried_again = true;
                self.clear_backoff();
            }
            Contained::refuse_inside("a write that must wait for room")?;
            waited_from.get_or_insert_with(|| self.clock.nanos());
            self.executor.notify();
            if !self.executor.wait(ended, WAIT_MAX) {
                // A stepped executor without work although memtables wait: their job has failed.
                self.clear_backoff();
                if !self.executor.wait(ended, WAIT_MAX) {
                    break;
                }
            }
        }
        if let Some(from) = waited_from {
            self.throttle.record(self.clock.nanos().saturating_sub(from));
        }
        Ok(())
    }
}
