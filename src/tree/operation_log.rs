//! Numbered operations that a tree keeps itself, beside the journal's shards.
//!
//! A tree may have a log of its own. Batches of its keyspace alone are then appended to it instead of to a shard of
//! the journal, under the lock of one shard, always the same one. The journal treats the log as one more shard: its
//! rounds of group commit sync it, and its replay merges it by sequence number.
//!
//! Invariants:
//! 1. Within a log and an epoch, sequence numbers rise from batch to batch.
//! 2. A log takes batches of its epoch alone: what an earlier process left in it is read at recovery and never appended
//!    to.
//! 3. A batch stays readable until the manifest's journal floor is at or above its last number. Other keyspaces need it
//!    until then, also after its own tree holds it: without its numbers a replay would end at a gap.

use std::fmt;
use std::path::Path;

use crate::base::error::Result;
use crate::base::ids::Seqno;

/// A tree's log, open for appends.
pub(crate) trait OperationLog: Send + Sync {
    /// Begins an epoch: from now on batches may be appended. Everything that is in the log is numbered `last` or less.
    fn begin(&self, epoch: u32, last: Seqno);

    /// Returns true if a payload of so many bytes fits. The next `append` of at most that size cannot fail then. If
    /// it does not fit, the batch goes to the journal. The caller holds the shard's lock from here to `append`.
    fn reserve(&self, payload_bytes: usize) -> bool;

    /// Appends a batch that `reserve` has made room for. `durable` is a number up to which everything is known to be
    /// durable, in this log, in the others and on all shards.
    fn append(&self, first: Seqno, count: u32, durable: Seqno, payload: &[u8]);

    /// Whether what was appended has arrived, as [`MappedFile::check`](crate::vfs::MappedFile::check) says it.
    fn check(&self) -> Result<()>;

    /// Makes everything durable that was appended before the call. Returns the number of files that this took.
    fn sync(&self) -> Result<u64>;

    /// The manifest's journal floor is at `floor` durably: batches up to there are not needed any more.
    fn retire(&self, floor: Seqno);
}

/// What an earlier process left in a log: for recovery, which reads it even if the tree cannot be opened.
pub(crate) trait OperationSource: Send + Sync + fmt::Debug {
    /// The file. It belongs to one epoch.
    fn path(&self) -> &Path;

    /// The epoch of its batches, as the manifest's edits say it.
    fn epoch(&self) -> u32;

    /// The batches, in the order in which they were appended.
    ///
    /// # Errors
    /// `Corruption` if the file is missing or nothing in it can be read.
    fn batches(&self) -> Result<Box<dyn Iterator<Item = Result<Logged>>>>;
}

/// What is found in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    not(any(test, feature = "example")),
    expect(dead_code, reason = "for kinds that keep operations themselves")
)]
pub(crate) enum Logged {
    Batch(LoggedBatch),
    /// No batch, where one was expected, although the rest of the file is not blank. It is the last item.
    Bad(BadBatch),
}

/// A batch as a log holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedBatch {
    /// The sequence number of its first operation.
    pub(crate) first: Seqno,
    /// How many operations it has; at least one.
    pub(crate) count: u32,
    /// As `append` was told.
    pub(crate) durable: Seqno,
    pub(crate) payload: Vec<u8>,
    /// Where the payload begins in the file.
    pub(crate) offset: u64,
}

impl LoggedBatch {
    /// The sequence number of its last operation.
    pub(crate) fn last(&self) -> Seqno {
        Seqno(self.first.0.saturating_add(u64::from(self.count.max(1)) - 1))
    }
}

/// Where a log ends in something that is no batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BadBatch {
    /// Where it begins.
    pub(crate) offset: u64,
    /// Whole batches behind it.
    pub(crate) batches: u64,
    /// The largest number that these know to be durable.
    pub(crate) durable: Seqno,
}
