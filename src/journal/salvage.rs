//! Reads every batch of a journal that can be read, for repairs: without a manifest that says which count.
//!
//! Invariants:
//! 1. Batches come in the order of their numbers; gaps are reported, not ended at.
//! 2. An epoch counts up to the first number of the next, which its recovery had not got to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

use super::format::{SEGMENT_HEADER_BYTES, SegmentId};
use super::reader::{End, Rules, SegmentFile, ShardReader};
use super::{Journal, Operations};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::vfs::{Access, Vfs};

/// What was read of a journal.
#[derive(Debug, Default)]
pub(crate) struct SalvagedJournal {
    pub(crate) records: u64,
    /// Numbers between the first and the last that no batch has: the first missing, and the last.
    pub(crate) gaps: Vec<(Seqno, Seqno)>,
    /// What cannot be read.
    pub(crate) problems: Vec<Error>,
    /// The last number read.
    pub(crate) last: Seqno,
}

type Shards = BTreeMap<u32, BTreeMap<u32, Vec<SegmentFile>>>;

impl Journal {
    /// The store's number, as the first segment says it whose header is whole.
    pub(crate) fn find_store_id(vfs: &dyn Vfs, dir: &Path) -> Result<Option<u64>> {
        for (id, path, len) in segments(vfs, dir)? {
            let mut header = [0; SEGMENT_HEADER_BYTES];
            let file = vfs.open(&path, Access::Buffered, false)?;
            if file.read_at(0, &mut header).is_err() {
                continue;
            }
            let [.., a, b, c, d, e, f, g, h] = header[..24] else { continue };
            let store_id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
            if id.check_header(&header, &path, store_id, len).is_ok() {
                return Ok(Some(store_id));
            }
        }
        Ok(None)
    }

    /// Calls `deliver` with every batch that can be read.
    ///
    /// # Errors
    /// `UnsupportedVersion`; `Io`; whatever `deliver` returns.
    pub(crate) fn salvage(
        vfs: &dyn Vfs,
        dir: &Path,
        store_id: u64,
        mut deliver: impl FnMut(Seqno, Operations<'_>) -> Result<()>,
    ) -> Result<SalvagedJournal> {
        let mut shards = Shards::new();
        for (id, path, bytes) in segments(vfs, dir)? {
            let file = SegmentFile { id, path, bytes, last: 0 };
            shards.entry(id.epoch).or_default().entry(id.shard).or_default().push(file);
        }
        let mut found = SalvagedJournal::default();
        let mut epochs = Vec::new();
        let mut limit = None;
        for (epoch, shards) in shards.into_iter().rev() {
            let files: Vec<Vec<SegmentFile>> = shards.into_values().collect();
            // Every bad record is stepped over, whatever follows it.
            let rules = Rules { store_id, floor: u64::MAX - 1, limit, salvage: true };
            let mut readers: Vec<ShardReader<'_>> =
                files.into_iter().map(|files| ShardReader::new(vfs, rules, files)).collect();
            readers.iter_mut().try_for_each(ShardReader::advance)?;
            let heads = readers.iter().filter_map(|reader| reader.head);
            let first = heads.map(|(header, _)| header.seqno).min();
            limit = first.map(|first| first.saturating_sub(1)).or(limit);
            epochs.push((epoch, readers));
        }
        for (_, readers) in epochs.into_iter().rev() {
            merge(readers, &mut found, &mut deliver)?;
        }
        Ok(found)
    }
}

fn merge(
    mut readers: Vec<ShardReader<'_>>,
    found: &mut SalvagedJournal,
    deliver: &mut impl FnMut(Seqno, Operations<'_>) -> Result<()>,
) -> Result<()> {
    let head = |reader: &ShardReader<'_>| reader.head.map(|(header, _)| header.seqno);
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = (readers.iter().enumerate())
        .filter_map(|(at, reader)| Some(Reverse((head(reader)?, at))))
        .collect();
    while let Some(Reverse((first, at))) = heap.pop() {
        let Some(reader) = readers.get_mut(at) else { break };
        let Some((header, _)) = reader.head else { continue };
        if found.records > 0 && first > found.last.0 + 1 {
            found.gaps.push((Seqno(found.last.0 + 1), Seqno(first - 1)));
        }
        let (payload, file, offset) = reader.payload()?;
        let operations = Operations::new(payload, header.count, file, offset);
        match deliver(Seqno(first), operations) {
            Err(error) if error.is_corruption() => found.problems.push(error),
            result => result?,
        }
        found.records += 1;
        found.last = found.last.max(Seqno(header.last()));
        reader.advance()?;
        heap.extend(head(reader).map(|next| Reverse((next, at))));
    }
    for reader in readers {
        found.problems.extend(reader.skipped);
        if let Some(End::Damaged { error, .. }) = reader.end {
            found.problems.push(error);
        }
    }
    Ok(())
}

/// The segments in `dir`, in order.
fn segments(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<(SegmentId, std::path::PathBuf, u64)>> {
    let entries = vfs.read_dir(dir)?.into_iter();
    let found = entries.filter_map(|entry| {
        let id = SegmentId::parse(&entry.name)?;
        Some((id, dir.join(&entry.name), entry.len))
    });
    let mut segments: Vec<_> = found.collect();
    segments.sort_by_key(|(id, ..)| *id);
    Ok(segments)
}
