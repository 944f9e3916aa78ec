//! The sharded journal: what makes a commit survive the process, and a `Sync` commit power loss.
//!
//! A writer locks a shard, reserves room ([`ShardGuard::reserve`]; the only step that can fail), takes
//! its sequence numbers, and stores one record with [`ShardGuard::append`]: a memcpy into a mapped,
//! preallocated segment. One leader at a time syncs for all who wait ([`Journal::sync_upto`]).
//! [`Journal::replay`] merges the shards by sequence number and stops at the first gap, which is what
//! makes recovery a prefix of the commit order.
//!
//! Invariants:
//! 1. Within a shard, sequence numbers rise from record to record; over all shards they are dense and
//!    none is used twice. Within an epoch, a shard's segments are numbered 1, 2, 3, …; each exists
//!    under its durable name, with a durable header, before it is used.
//! 2. A segment keeps room for one marker: `Roll` as its last record before the shard goes on in the
//!    next segment, `Clean` when the journal is closed.
//! 3. Nothing fails between taking sequence numbers and the end of `append`. (Where the file system
//!    cannot map files, [`ShardGuard::check`] tells afterwards whether the write failed.)
//! 4. A failed sync is permanent: every later reserve and sync fails with `Poisoned`, and
//!    nothing is retried. A full disk is no failure of that kind: nothing had been promised.
//! 5. Segments go oldest first within their shard, one per shard between two syncs of the directory,
//!    so that the numbers of those that exist are consecutive after any crash.
//! 6. A tree's log is one more shard in all that follows: rounds sync it, replays merge it. A batch in it has the
//!    shard's lock as one in the shard would, and the shard notes its numbers.
//! 7. What a replay delivers is durable. Only when it has returned may the manifest record the
//!    epoch's limit, and only then may the next epoch begin.
//!
//! # What a torn tail may look like, and what is damage
//!
//! A segment starts as zeros and only grows, so after power loss each byte beyond the last sync is
//! either what was written or the zero from before. Sectors get lost in any order, and a page may be
//! on its way to the disk while a record is being copied into it, so a torn record may have stale
//! (zero) words anywhere: but stale words it must have. From these facts follow the rules, for a bad
//! record at place *x* of the newest epoch:
//!
//! - With no valid record after *x* in its shard (the rest of the segment and all later segments are
//!   searched, in steps of 8 bytes): a torn tail. The shard ends at *x*.
//! - Otherwise it is damage if (a) a later valid record's watermark lies beyond *x*: each record
//!   carries the place up to which its shard was known to be synced when it was written, and what was
//!   synced cannot be lost legally; or (b) no word of the bad record is zero (of its whole extent if
//!   its header is whole, of the header if not), so that no stale word explains it.
//! - Otherwise sectors were lost before they were synced: the shard ends at *x*, and what follows is
//!   dropped, for its sequence numbers lie beyond a gap anyway.
//!
//! Three facts bind the shards together. Each record also carries a sequence number up to which *all*
//! shards were known to be durable; a `Clean` marker carries the journal's last; and the manifest
//! carries, for each older epoch, the number up to which an earlier recovery delivered it and made it
//! durable ([`EpochLimit`]). A merge that stops before any of these has lost what was promised, and
//! is `Corruption` even if each shard by itself looks torn, or is missing altogether. In older epochs
//! nothing else counts: what lies beyond the limit was dropped once and never comes back.
//!
//! Damage among records that lie wholly at or below the floor is skipped and reported, not fatal.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::base::error::{Error, Result};
use crate::base::group_commit::GroupCommit;
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::poison::Poison;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{CachePadded, Mutex};
use crate::tree::OperationLog;
use crate::vfs::Vfs;

mod format;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod log_reader;
mod logs;
mod operation;
mod reader;
mod replay;
mod retire;
mod salvage;
mod search;
mod shard;
mod sync;
mod window;

#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use format::SegmentId;
pub(crate) use operation::{
    Operation, Operations, encode_operation, encode_operation_head, operation_bytes,
};
pub(crate) use replay::{EpochLimit, ReplayPlan, ReplayReport};
pub(crate) use retire::OldSegment;
pub(crate) use shard::{Parts, Payload, ShardGuard};

use shard::Shard;
use sync::SyncState;

/// The most shards a journal can have: far more than there are cores.
pub(crate) const SHARDS_MAX: usize = 1 << 16;

/// How a journal is laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JournalOptions {
    /// How many writers can append at once, 1 to `SHARDS_MAX`. A shard without a writer costs nothing.
    pub(crate) shards: usize,
    /// Length of a segment; rounded up to whole 4 KiB units.
    pub(crate) segment_bytes: u64,
    /// So much is left free for what makes room: deletes, flushes, compactions. At most a tenth of the disk.
    pub(crate) free_bytes_min: u64,
    /// The store's own random number: no other store's records pass as this one's.
    pub(crate) store_id: u64,
    /// One more than that of the last open. The manifest must have recorded it durably before.
    pub(crate) epoch: u32,
}

/// What a journal has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalStatistics {
    pub(crate) records: u64,
    /// Bytes of records, headers and padding included.
    pub(crate) bytes_appended: u64,
    /// Rounds of group commit that reached the disk.
    pub(crate) syncs: u64,
    /// File syncs that these rounds took.
    pub(crate) files_synced: u64,
    pub(crate) segments_created: u64,
    pub(crate) segments_removed: u64,
    /// Segments a writer had to create itself since no spare was ready.
    pub(crate) segments_created_inline: u64,
}

/// The journal of one epoch, open for appends.
pub(crate) struct Journal {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    options: JournalOptions,
    shards: Box<[CachePadded<Shard>]>,
    sync: GroupCommit<SyncState>,
    /// Everything up to here is durable on every shard.
    durable: AtomicU64,
    /// What is to be left beyond `free_bytes_min`, with so many bytes of records to come.
    claims: OnceLock<Box<dyn Fn(u64) -> u64 + Send + Sync>>,
    /// The store's.
    poison: Arc<Poison>,
    closed: AtomicBool,
    maintenance_due: AtomicBool,
    /// A thread has been notified of it.
    maintenance_notified: AtomicBool,
    /// The logs that trees keep.
    logs: Mutex<Vec<Arc<dyn OperationLog>>>,
    /// Segments of older epochs.
    old: Mutex<Vec<OldSegment>>,
    /// Lets one `retire` run at a time. True while names have been removed and not synced.
    retiring: Mutex<bool>,
    syncs: AtomicU64,
    files_synced: AtomicU64,
    segments_created: AtomicU64,
    segments_created_inline: AtomicU64,
    segments_removed: AtomicU64,
}

impl Journal {
    /// Starts a new epoch in `dir`, which exists. `old` is what the replay of the older epochs found;
    /// `retire` will remove it when its time comes. A failed write or sync sets `poison`.
    ///
    /// # Errors
    /// `InvalidArgument` for options out of range.
    pub(crate) fn create(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        mut options: JournalOptions,
        old: Vec<OldSegment>,
        poison: Arc<Poison>,
    ) -> Result<Journal> {
        if !(1..=SHARDS_MAX).contains(&options.shards) {
            return Err(Error::invalid(format!(
                "a journal has 1 to {SHARDS_MAX} shards, not {}",
                options.shards
            )));
        }
        let most = 1 << 30;
        if options.segment_bytes > most {
            return Err(Error::invalid(format!(
                "a journal segment has at most {most} bytes, not {}",
                options.segment_bytes
            )));
        }
        options.segment_bytes = options.segment_bytes.max(1).next_multiple_of(UNIT_BYTES as u64);
        Ok(Journal {
            vfs,
            dir: dir.to_path_buf(),
            options,
            shards: (0..options.shards).map(|_| CachePadded::new(Shard::new())).collect(),
            sync: GroupCommit::default(),
            durable: AtomicU64::new(0),
            claims: OnceLock::new(),
            poison,
            closed: AtomicBool::new(false),
            maintenance_due: AtomicBool::new(false),
            maintenance_notified: AtomicBool::new(false),
            logs: Mutex::default(),
            old: Mutex::new(old),
            retiring: Mutex::new(false),
            syncs: AtomicU64::new(0),
            files_synced: AtomicU64::new(0),
            segments_created: AtomicU64::new(0),
            segments_created_inline: AtomicU64::new(0),
            segments_removed: AtomicU64::new(0),
        })
    }

    /// From now on so much is left free beyond `free_bytes_min`. `claims` gets the bytes of records that may come before it is
    /// asked again, and is asked while a shard is locked.
    pub(crate) fn leave_claimed(&self, claims: impl Fn(u64) -> u64 + Send + Sync + 'static) {
        // The first to say so.
        let _ = self.claims.set(Box::new(claims));
    }

    /// How many shards there are.
    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Refuses further appends, makes everything durable and marks the journal as closed cleanly.
    /// Appends that hold a reservation are waited for.
    ///
    /// # Errors
    /// `Poisoned` if a sync failed, now or earlier.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Err(self.closed_error());
        }
        // A reservation is made under the shard's lock, and only while not closed: once each lock has
        // been held, there are no more appends.
        let mut last = Seqno(0);
        for shard in &self.shards {
            last = last.max(shard.state.lock().last);
        }
        if !planted(Bug::JournalCleanBeforeData) {
            self.sync_all()?;
        }
        for shard in &self.shards {
            let mut state = shard.state.lock();
            state.mark_clean(last);
            // Empty segments that stay behind are harmless and go with the next retirement.
            let _ = self.remove_spares(&mut state);
        }
        self.sync_all()
    }

    /// The counters.
    pub(crate) fn statistics(&self) -> JournalStatistics {
        let mut statistics = JournalStatistics {
            syncs: self.syncs.load(Ordering::Relaxed),
            files_synced: self.files_synced.load(Ordering::Relaxed),
            segments_created: self.segments_created.load(Ordering::Relaxed),
            segments_created_inline: self.segments_created_inline.load(Ordering::Relaxed),
            segments_removed: self.segments_removed.load(Ordering::Relaxed),
            ..JournalStatistics::default()
        };
        for shard in &self.shards {
            let state = shard.state.lock();
            statistics.records += state.records;
            statistics.bytes_appended += state.bytes_appended;
        }
        statistics
    }

    fn segment_id(&self, shard: usize, number: u32) -> SegmentId {
        SegmentId { epoch: self.options.epoch, shard: shard as u32, number }
    }

    fn segment_path(&self, shard: usize, number: u32) -> PathBuf {
        self.dir.join(self.segment_id(shard, number).file_name())
    }

    fn closed_error(&self) -> Error {
        Error::Closed { what: format!("the journal in {}", self.dir.display()) }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("dir", &self.dir).field("options", &self.options).finish()
    }
}
