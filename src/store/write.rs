//! The way of a write: admission, and the commit of a batch.

use std::sync::Arc;

use super::counters::is_timed;
use super::in_flight::{COUNTED_BYTES_MIN, Flight};
use super::large;
use super::memtable_state::MemtableState;
use super::operation::{Operation, check_sizes, no_operator, still_there, too_large};
use super::payload::{LARGE_BYTES, with_parts};
use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::{BATCH_BYTES_MAX, BATCH_OPERATION_BYTES};
use crate::base::panics::watched;
use crate::base::planted::{Bug, planted};
use crate::cache::Room;
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

impl Store {
    /// Commits a batch whose operations `operations` yields each time it is called.
    pub(crate) fn commit<'a, I>(
        &self,
        operations: impl Fn() -> I,
        durability: Durability,
    ) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let timed = is_timed().then(|| self.clock.nanos());
        self.check_open()?;
        self.check_not_read_only()?;
        let mut count = 0u32;
        let mut bytes = 0u64;
        // What journal and memtable get to hold.
        let mut held = 0u64;
        let mut large = false;
        for operation in operations() {
            check_sizes(operation.key, operation.value)?;
            operation.keyspace.check_exists()?;
            if operation.kind == EntryKind::Merge && operation.keyspace.merge.operator.is_none() {
                return Err(no_operator(operation.keyspace));
            }
            // A batch that is let through has fewer operations than a `u32` counts.
            count = count.wrapping_add(1);
            let is_large = operation.is_large(&self.sizes);
            let value_bytes = if is_large { 0 } else { operation.value.len() };
            bytes += (operation.key.len() + operation.value.len()) as u64;
            held += (operation.key.len() + value_bytes) as u64 + BATCH_OPERATION_BYTES;
            large |= is_large;
        }
        if held > BATCH_BYTES_MAX {
            return Err(too_large(held));
        }
        if count == 0 {
            return if durability == Durability::Sync { self.sync() } else { Ok(()) };
        }
        let last = if large || held >= COUNTED_BYTES_MIN {
            let _flight = self.begin_flight(held, large)?;
            self.commit_counted(&operations, (count, bytes, large), durability)?
        } else {
            self.admit(bytes, &operations)?;
            self.commit_admitted(&operations, count, bytes, durability)?
        };
        if durability == Durability::Sync && !planted(Bug::CommitBeforeSync) {
            self.journal.sync_upto(last)?;
            self.counters.commits_sync.add(1);
        }
        if self.journal.is_maintenance_new() {
            // The next segment wants to be ready before this one is full.
            self.executor.notify();
        }
        self.counters.count_commit(count, bytes);
        if let Some(start) = timed {
            self.counters.commit_latency.record(self.clock.nanos().saturating_sub(start));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn commit_admitted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        count: u32,
        bytes: u64,
        durability: Durability,
    ) -> Result<Seqno>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        thread_local! {
            // `with` and a `Cell` rather than `take` and `set`: 26 instructions fewer.
            static PAYLOAD: std::cell::Cell<Vec<u8>> = const { std::cell::Cell::new(Vec::new()) };
        }
        let makes_room = || {
            let is_delete = |operation: Operation<'_>| operation.kind == EntryKind::Delete;
            operations().all(is_delete) && self.leaves_room_to_compact(bytes)
        };
        let check = || still_there(operations);
        let apply = |first: Seqno| {
            for (mut seqno, operation) in (first.0..).zip(operations()) {
                if planted(Bug::CommitOneNumberABatch) {
                    seqno = first.0;
                }
                let read = operation.keyspace.read.load();
                read.active.memtable.insert(
                    operation.key,
                    Seqno(seqno),
                    operation.kind,
                    operation.value,
                );
            }
        };
        let half_done = || self.panicked("a commit panicked half-way");
        let commit = |payload: Payload<'_>| {
            watched(
                || self.committer.commit(payload, count, durability, makes_room, check, apply),
                half_done,
            )
        };
        let result = if bytes >= LARGE_BYTES {
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
        };
        match result {
            Ok(last) => Ok(last),
            Err(error) => self.not_committed(error),
        }
    }

    /// A commit has failed: with what it ends.
    #[cold]
    pub(super) fn not_committed(&self, error: Error) -> Result<Seqno> {
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
    pub(super) fn begin_flight(&self, held: u64, has_large_values: bool) -> Result<Flight<'_>> {
        if held > LARGE_BATCH_BYTES {
            // Whoever commits another one may wait for background work.
            Contained::refuse_inside("a batch of more than 4 MiB")?;
        }
        let buffers = if has_large_values { BLOB_BUFFERS_BYTES } else { 0 };
        Ok(self.in_flight.begin(held + buffers, !Contained::is_inside()))
    }

    /// Commits a batch that is counted as in flight.
    #[cold]
    pub(super) fn commit_counted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        (count, bytes, large): (u32, u64, bool),
        durability: Durability,
    ) -> Result<Seqno>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        self.admit(bytes, operations)?;
        match large {
            true => large::commit(self, operations, count, durability),
            false => self.commit_admitted(operations, count, bytes, durability),
        }
    }

    /// Lets a writer of `bytes` in: slowed by how far the background is behind, and not before there
    /// is room in the memtables.
    pub(super) fn admit<'a, I>(&self, bytes: u64, operations: &impl Fn() -> I) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let mut last: Option<&Arc<KeyspaceState>> = None;
        let mut dearest: Option<&Arc<KeyspaceState>> = None;
        for operation in operations() {
            if last.is_some_and(|last| Arc::ptr_eq(last, operation.keyspace)) {
                continue;
            }
            last = Some(operation.keyspace);
            if self.is_full(&operation.keyspace.read.load().active) {
                self.make_room(operation.keyspace)?;
            }
            if dearest
                .is_none_or(|dearest| dearest.price.per_mib() < operation.keyspace.price.per_mib())
            {
                dearest = last;
            }
        }
        if self.is_pressed() {
            self.relieve_pressure(operations)?;
        }
        if let Some(dearest) = dearest {
            self.throttle.pay(bytes, &dearest.price, &self.clock);
        }
        Ok(())
    }

    #[inline]
    fn is_full(&self, memtable: &MemtableState) -> bool {
        let limit = self.sizes.memtable_bytes;
        if limit >= 4 << 20 {
            memtable.bytes() >= limit
        } else {
            !memtable.memtable.is_empty() && memtable.exact_bytes() >= limit
        }
    }

    /// Freezes a full memtable, once there is room for one more that waits.
    #[cold]
    fn make_room(&self, keyspace: &Arc<KeyspaceState>) -> Result<()> {
        let made = self.wait_for_room(keyspace);
        self.deliver_events();
        made
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
            let crowded = memtables > self.sizes.memtables_bytes_max && !read.frozen.is_empty();
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
                self.clear_rests();
            }
            Contained::refuse_inside("a write that must wait for room")?;
            waited_from.get_or_insert_with(|| self.clock.nanos());
            self.executor.notify();
            if !self.executor.wait(ended, WAIT_MAX) {
                // A stepped executor without work although memtables wait: their job has failed.
                self.clear_rests();
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
