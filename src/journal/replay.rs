//! Replay: the shards of each epoch, and the logs that trees keep, merged by sequence number, up to the first gap.
//!
//! Invariants:
//! 1. Epochs are read one after another: all of an older one's records that count come before those
//!    of a later one. So the memory in use is one window per shard.
//! 2. What is delivered is dense from the floor on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::SegmentId;
use super::log_reader::LogReader;
use super::reader::{End, Rules, SegmentFile, ShardReader};
use super::{Journal, OldSegment, Operations};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::tree::{BadBatch, OperationSource};
use crate::vfs::{Access, Vfs};

/// How much of a segment is stored again at once.
const STORE_AGAIN_BYTES: u64 = 64 * 1024;

/// Up to where an older epoch is valid: what an earlier recovery delivered of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochLimit {
    pub(crate) epoch: u32,
    pub(crate) last: Seqno,
}

/// What to replay.
#[derive(Debug, Clone)]
pub(crate) struct ReplayPlan {
    pub(crate) store_id: u64,
    /// Records that end here or before are not needed.
    pub(crate) floor: Seqno,
    /// The older epochs that the manifest holds. Segments of others are left over and go unread.
    pub(crate) limits: Vec<EpochLimit>,
    /// The epoch of the last open, which has no limit yet.
    pub(crate) newest_epoch: u32,
    /// What trees keep themselves of the numbered operations.
    pub(crate) logs: Vec<Arc<dyn OperationSource>>,
    /// Stop at damage instead of failing.
    pub(crate) salvage: bool,
    /// Do not sync what is delivered: for inspection, when no new epoch follows.
    pub(crate) read_only: bool,
}

/// A shard that ended in something that was never synced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TornTail {
    pub(crate) file: PathBuf,
    pub(crate) offset: u64,
    pub(crate) what: &'static str,
    /// Whole records of the shard beyond it, all dropped.
    pub(crate) records_dropped: u64,
}

/// Where the merge stopped although there were more records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) expected: Seqno,
    pub(crate) found: Seqno,
}

/// What a replay did.
#[derive(Debug, Default)]
pub(crate) struct ReplayReport {
    /// The last sequence number delivered, or the floor.
    pub(crate) last: Seqno,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Records at or below the floor.
    pub(crate) records_skipped: u64,
    /// Whole records beyond the gap, a torn record or damage.
    pub(crate) records_dropped: u64,
    pub(crate) bytes_dropped: u64,
    pub(crate) gap: Option<Gap>,
    pub(crate) torn: Vec<TornTail>,
    /// Damage that did not matter, since it lay below the floor.
    pub(crate) damage_skipped: Vec<Error>,
    /// Damage that `salvage` stopped at.
    pub(crate) damage_salvaged: Vec<Error>,
    /// Whether every used shard of the newest epoch ends in the marker of a clean close.
    pub(crate) clean: bool,
    /// For `Journal::create`.
    pub(crate) segments: Vec<OldSegment>,
    /// For the manifest: the limit of each epoch that still has segments, or batches in a log.
    pub(crate) limits: Vec<EpochLimit>,
    /// The epochs that have batches in a log.
    log_epochs: BTreeSet<u32>,
}

impl ReplayReport {
    /// Adds damage, which may have been told already, as why commits are missing.
    fn add_salvaged(&mut self, error: Error) {
        let text = error.description();
        if !self.damage_salvaged.iter().any(|known| known.description().contains(&text)) {
            self.damage_salvaged.push(error);
        }
    }
}

type Shards = BTreeMap<(u32, u32), Vec<SegmentFile>>;

impl Journal {
    /// Reads the segments in `dir` and calls `deliver` with each batch above the floor, in strict
    /// order, up to the first gap. A batch that straddles the floor is delivered whole. What is
    /// delivered is durable: it may become part of a tree before the rest has been read.
    ///
    /// # Errors
    /// `Corruption` if a record is damaged or missing that had been promised (see the module's
    /// documentation); `UnsupportedVersion`; `Io`; whatever `deliver` returns.
    pub(crate) fn replay(
        vfs: &dyn Vfs,
        dir: &Path,
        plan: &ReplayPlan,
        mut deliver: impl FnMut(Seqno, u32, Operations<'_>) -> Result<()>,
    ) -> Result<ReplayReport> {
        let mut report = ReplayReport { last: plan.floor, clean: true, ..ReplayReport::default() };
        let mut shards = list(vfs, dir, plan, &mut report)?;
        let mut limits = plan.limits.clone();
        limits.sort_by_key(|limit| limit.epoch);
        for limit in &limits {
            let shards = take_epoch(&mut shards, limit.epoch);
            let merge = Merge::new(vfs, dir, plan, limit.epoch, Some(limit.last));
            merge.run(shards, &mut report, &mut deliver)?;
        }
        let newest = take_epoch(&mut shards, plan.newest_epoch);
        if !plan.read_only && !planted(Bug::ReplayNotSynced) {
            // The segments of older epochs were synced by the recoveries that set their limits.
            for segment in newest.iter().flatten() {
                store_again(vfs, &segment.path)?;
            }
            for log in plan.logs.iter().filter(|log| log.epoch() == plan.newest_epoch) {
                // Who reads it tells that it is missing.
                if vfs.exists(log.path())? {
                    store_again(vfs, log.path())?;
                }
            }
        }
        let merge = Merge::new(vfs, dir, plan, plan.newest_epoch, None);
        merge.run(newest, &mut report, &mut deliver)?;
        limits.push(EpochLimit { epoch: plan.newest_epoch, last: report.last });
        limits.retain(|limit| {
            report.log_epochs.contains(&limit.epoch)
                || report.segments.iter().any(|s| s.id.epoch == limit.epoch)
        });
        for limit in &mut limits {
            limit.last = limit.last.min(report.last);
        }
        if planted(Bug::ReplayForgetsLimits) {
            limits.clear();
        }
        report.limits = limits;
        Ok(report)
    }
}

/// Makes a segment durable. Who wrote it may have died of a sync that failed: then the system holds for
/// stored what never got to the disk, and syncs it only if it is written once more. What is read here
/// and stays zero was never written.
fn store_again(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    let file = vfs.open(path, Access::Buffered, true)?;
    let len = file.len()?;
    let mut buf = vec![0; len.min(STORE_AGAIN_BYTES) as usize];
    let mut offset = 0;
    while offset < len {
        let n = (len - offset).min(STORE_AGAIN_BYTES) as usize;
        let Some(bytes) = buf.get_mut(..n) else { break };
        file.read_at(offset, bytes)?;
        if bytes.iter().any(|&byte| byte != 0) {
            file.write_at(offset, bytes)?;
        }
        offset += n as u64;
    }
    file.sync()
}

/// The segments of the epochs in the plan, per shard and in order.
fn list(vfs: &dyn Vfs, dir: &Path, plan: &ReplayPlan, report: &mut ReplayReport) -> Result<Shards> {
    let mut shards = Shards::new();
    for entry in vfs.read_dir(dir)? {
        let Some(id) = SegmentId::parse(&entry.name) else { continue };
        let path = dir.join(&entry.name);
        if id.epoch > plan.newest_epoch {
            // An epoch is in the manifest before it has segments: this manifest is too old.
            return Err(Error::corruption(
                &path,
                0,
                "journal segment epoch",
                format_args!("at most {}, the manifest's newest", plan.newest_epoch),
                id.epoch,
            ));
        }
        let live = id.epoch == plan.newest_epoch
            || plan.limits.iter().any(|limit| limit.epoch == id.epoch);
        if live {
            let segment = SegmentFile { id, path, bytes: entry.len, last: 0 };
            shards.entry((id.epoch, id.shard)).or_default().push(segment);
        } else {
            report.segments.push(OldSegment { id, path, bytes: entry.len, last: Seqno(0) });
        }
    }
    for segments in shards.values_mut() {
        segments.sort_by_key(|segment| segment.id);
    }
    Ok(shards)
}

fn take_epoch(shards: &mut Shards, epoch: u32) -> Vec<Vec<SegmentFile>> {
    let mut taken = shards.split_off(&(epoch, 0));
    let mut later = taken.split_off(&(epoch, u32::MAX));
    shards.append(&mut later);
    taken.into_values().collect()
}

/// The batch on which a reader stands.
struct Head<'a> {
    last: Seqno,
    count: u32,
    bytes: u64,
    /// Where it begins in the file.
    at: u64,
    payload: &'a [u8],
    file: &'a Path,
    /// Where the payload begins in the file.
    offset: u64,
}

/// The merge of one epoch's shards.
struct Merge<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    plan: &'a ReplayPlan,
    epoch: u32,
    limit: Option<Seqno>,
    readers: Vec<ShardReader<'a>>,
    /// They are counted on behind the shards' readers.
    logs: Vec<LogReader>,
    /// The readers that have a record, by its first sequence number.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    /// The record beyond the gap that the merge stopped at.
    gap: Option<(Gap, Error)>,
}

impl<'a> Merge<'a> {
    fn new(
        vfs: &'a dyn Vfs,
        dir: &'a Path,
        plan: &'a ReplayPlan,
        epoch: u32,
        limit: Option<Seqno>,
    ) -> Merge<'a> {
        let (readers, logs, heap) = (Vec::new(), Vec::new(), BinaryHeap::new());
        Merge { vfs, dir, plan, epoch, limit, readers, logs, heap, gap: None }
    }

    fn run(
        mut self,
        shards: Vec<Vec<SegmentFile>>,
        report: &mut ReplayReport,
        deliver: &mut impl FnMut(Seqno, u32, Operations<'_>) -> Result<()>,
    ) -> Result<()> {
        let rules = Rules {
            store_id: self.plan.store_id,
            floor: self.plan.floor.0,
            limit: self.limit.map(|limit| limit.0),
            salvage: self.plan.salvage,
        };
        for segments in shards {
            self.readers.push(ShardReader::new(self.vfs, rules, segments));
        }
        // Nothing of an epoch below the floor is needed, so it is not even opened.
        if self.limit.is_none_or(|limit| limit > self.plan.floor) {
            for log in self.plan.logs.iter().filter(|log| log.epoch() == self.epoch) {
                self.logs.push(LogReader::open(&**log, rules)?);
            }
            for index in 0..self.readers.len() + self.logs.len() {
                self.advance(index)?;
            }
            self.merge(report, deliver)?;
            self.drain(report)?;
            self.check_complete(report)?;
        }
        self.conclude(report);
        Ok(())
    }

    fn advance(&mut self, index: usize) -> Result<()> {
        let first = match index.checked_sub(self.readers.len()) {
            None => {
                let Some(reader) = self.readers.get_mut(index) else { return Ok(()) };
                reader.advance()?;
                reader.head.map(|(header, _)| header.seqno)
            }
            Some(index) => {
                let Some(log) = self.logs.get_mut(index) else { return Ok(()) };
                log.advance()?;
                log.head.as_ref().map(|batch| batch.first.0)
            }
        };
        self.heap.extend(first.map(|first| Reverse((first, index))));
        Ok(())
    }

    /// The batch on which a reader stands.
    fn head(&mut self, index: usize) -> Result<Option<Head<'_>>> {
        let Some(log) = index.checked_sub(self.readers.len()) else {
            let Some(reader) = self.readers.get_mut(index) else { return Ok(None) };
            let Some((header, at)) = reader.head else { return Ok(None) };
            let (payload, file, offset) = reader.payload()?;
            let (last, count, bytes) = (Seqno(header.last()), header.count, header.record_bytes());
            return Ok(Some(Head { last, count, bytes, at, payload, file, offset }));
        };
        Ok(self.logs.get(log).and_then(|log| {
            let batch = log.head.as_ref()?;
            Some(Head {
                last: batch.last(),
                count: batch.count,
                bytes: batch.payload.len() as u64,
                at: batch.offset,
                payload: &batch.payload,
                file: &log.path,
                offset: batch.offset,
            })
        }))
    }

    /// Delivers up to the end or the first gap.
    fn merge(
        &mut self,
        report: &mut ReplayReport,
        deliver: &mut impl FnMut(Seqno, u32, Operations<'_>) -> Result<()>,
    ) -> Result<()> {
        let floor = self.plan.floor;
        while let Some(&Reverse((first, index))) = self.heap.peek() {
            let Some(head) = self.head(index)? else { break };
            let Head { last, count, bytes, at, payload, file, offset } = head;
            if last <= floor {
                report.records_skipped += 1;
            } else {
                let expected = report.last.0 + 1;
                let straddles = first <= floor.0 && report.last == floor;
                let ignored = planted(Bug::ReplayPastGap) && first > expected;
                if first != expected && !straddles && !ignored {
                    let what = "journal record sequence numbers";
                    let wanted = format_args!("{expected} as the next");
                    let error = Error::corruption(file, at, what, wanted, first);
                    if first < expected {
                        return Err(error);
                    }
                    let gap = Gap { expected: Seqno(expected), found: Seqno(first) };
                    self.gap = Some((gap, error));
                    return Ok(());
                }
                deliver(Seqno(first), count, Operations::new(payload, count, file, offset))?;
                report.last = last;
                report.records += 1;
                report.bytes += bytes;
            }
            self.heap.pop();
            self.advance(index)?;
        }
        Ok(())
    }

    /// Reads what is left beyond the gap, which may know that more had been durable.
    fn drain(&mut self, report: &mut ReplayReport) -> Result<()> {
        self.heap.clear();
        for reader in &mut self.readers {
            while let Some((header, _)) = reader.head {
                report.records_dropped += 1;
                report.bytes_dropped += header.record_bytes();
                reader.advance()?;
            }
        }
        for log in &mut self.logs {
            while let Some(batch) = &log.head {
                report.records_dropped += 1;
                report.bytes_dropped += batch.payload.len() as u64;
                log.advance()?;
            }
        }
        Ok(())
    }

    /// Fails if the merge stopped before what is known to have been durable.
    fn check_complete(&mut self, report: &mut ReplayReport) -> Result<()> {
        let durable = self.readers.iter().map(|reader| reader.durable);
        let durable = durable.chain(self.logs.iter().map(|log| log.durable.0)).max();
        let required = self.limit.unwrap_or(Seqno(durable.unwrap_or_default()));
        if report.last >= required {
            return Ok(());
        }
        let expected = format_args!("records up to {required}, which were durable");
        let found = format_args!("no more after {}", report.last);
        let what = "journal records";
        let missing = |file: &Path, at| Error::corruption(file, at, what, expected, found);
        let ends = self.readers.iter().filter_map(|reader| match &reader.end {
            Some(End::Damaged { error, .. }) => Some(error.clone()),
            Some(End::Torn { file, offset, .. }) => Some(missing(file, *offset)),
            _ => None,
        });
        let ends = ends.chain(self.logs.iter().filter_map(|log| {
            let bad = |bad: BadBatch| missing(&log.path, bad.offset);
            log.damage.clone().or_else(|| log.bad.map(bad))
        }));
        // Each of them may have had the records that are missing.
        let error = ends
            .reduce(|error, other| match other {
                Error::Corruption { file, offset, .. } => error.or_damaged(&file, offset),
                _ => error,
            })
            .or_else(|| self.gap.as_ref().map(|(_, error)| error.clone()))
            .unwrap_or_else(|| {
                let none = SegmentId { epoch: self.epoch, shard: 0, number: 1 };
                missing(&self.dir.join(none.file_name()), 0)
            });
        if !self.plan.salvage {
            return Err(error);
        }
        report.damage_salvaged.push(error);
        Ok(())
    }

    fn conclude(self, report: &mut ReplayReport) {
        report.gap = report.gap.or(self.gap.map(|(gap, _)| gap));
        for log in self.logs {
            if log.last > Seqno(0) {
                report.log_epochs.insert(self.epoch);
            }
            // In an older epoch it lay beyond the limit, or has been reported.
            if self.limit.is_some() {
                continue;
            }
            if let Some(error) = log.damage {
                report.clean = false;
                report.add_salvaged(error);
            }
            if let Some(bad) = log.bad {
                report.clean = false;
                report.records_dropped += bad.batches;
                report.torn.push(TornTail {
                    file: log.path,
                    offset: bad.offset,
                    what: "batch in a tree's log",
                    records_dropped: bad.batches,
                });
            }
        }
        for reader in self.readers {
            report.damage_skipped.extend(reader.skipped);
            let newest = self.limit.is_none();
            match reader.end {
                Some(End::Clean) => {}
                // A shard that was never used has no marker.
                Some(End::Data) => {
                    let used = reader.segments.iter().any(|segment| segment.last > 0);
                    report.clean &= !(newest && used);
                }
                Some(End::Torn { file, offset, what, records, bytes }) if newest => {
                    report.clean = false;
                    report.records_dropped += records;
                    report.bytes_dropped += bytes;
                    report.torn.push(TornTail { file, offset, what, records_dropped: records });
                }
                Some(End::Damaged { error, records, bytes }) if newest => {
                    report.clean = false;
                    report.records_dropped += records;
                    report.bytes_dropped += bytes;
                    report.add_salvaged(error);
                }
                // In an older epoch it lay beyond the limit, or has been reported.
                _ => {}
            }
            let mut last = 0;
            for segment in reader.segments {
                last = match self.limit {
                    Some(limit) if limit <= self.plan.floor => limit.0,
                    _ => segment.last.max(last).min(report.last.0),
                };
                let last = Seqno(last);
                let SegmentFile { id, path, bytes, .. } = segment;
                report.segments.push(OldSegment { id, path, bytes, last });
            }
        }
    }
}
