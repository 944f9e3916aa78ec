//! Batched page reads: the uncached pages that several operations need, or that one operation
//! prefetches.
//!
//! Invariants:
//! 1. Each page is read once, and adjacent pages of a file are read with one request. The cost of a
//!    request hardly depends on its length.
//! 2. A page is verified before it enters the cache, as with single reads.
//! 3. Buffers are leased from the read-ahead budget ([`ReadAhead`](super::ReadAhead)). Without a
//!    lease, at most [`UNCOUNTED_BYTES`] are read at a time, or a single page.

use std::ops::Range;
use std::sync::Arc;

use super::page_cache::PageClass;
use super::page_file::{PageFile, PagePointer};
use super::read_ahead::Lease;
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::vfs::{AlignedBuf, ReadRequest, Vfs};

/// A page that an operation needs and that is not cached.
pub(crate) struct PageMiss {
    pub(crate) file: Arc<PageFile>,
    pub(crate) pointer: PagePointer,
    pub(crate) class: PageClass,
}

impl PageMiss {
    /// Whether `next` is adjacent.
    fn borders(&self, next: &PageMiss) -> bool {
        let end = u64::from(self.pointer.unit) + u64::from(self.pointer.units);
        self.file.id() == next.file.id() && end == u64::from(next.pointer.unit)
    }
}

/// Bytes read at a time without a lease.
const UNCOUNTED_BYTES: usize = 16 << 10;

/// Pages read together past the cache.
const UNCACHED_PAGES_MAX: usize = 256;

/// Reads ranges of files (offset and length) together, one after another into `buf`. Returns one
/// result per range.
fn read_ranges<'a>(
    vfs: &dyn Vfs,
    ranges: impl Iterator<Item = (&'a PageFile, u64, usize)>,
    mut buf: &mut [u8],
) -> Vec<Result<()>> {
    let mut requests: Vec<ReadRequest<'_>> = Vec::new();
    for (file, offset, bytes) in ranges {
        let (of_range, behind) = std::mem::take(&mut buf).split_at_mut(bytes);
        buf = behind;
        let file = &**file.file();
        requests.push(ReadRequest { file, offset, buf: of_range, result: Ok(()) });
    }
    vfs.read_batch(&mut requests);
    requests.into_iter().map(|request| request.result).collect()
}

/// Reads the pages into the cache, all together, and returns the number of pages read. A page that
/// is listed twice is read once.
///
/// The cache may decline to keep a page (it may be too large). An operation that still misses a
/// page after it was fetched must read it with
/// [`ReadContext::blocking`](super::ReadContext::blocking), or it might never end.
pub(crate) fn fetch_misses(mut misses: Vec<PageMiss>) -> Result<u32> {
    misses.sort_by_key(|miss| (miss.file.id(), miss.pointer));
    misses.dedup_by_key(|miss| (miss.file.id(), miss.pointer));
    misses.iter().try_for_each(|miss| miss.file.check_bounds(miss.pointer))?;
    let mut rest = &misses[..];
    while let Some(first) = rest.first() {
        let wanted = rest.iter().map(|miss| miss.pointer.bytes()).sum();
        let lease = first.file.files().read_ahead.lease(wanted, UNCOUNTED_BYTES.min(wanted));
        let mut room = lease.as_ref().map_or(UNCOUNTED_BYTES, Lease::bytes);
        let fits = |miss: &&PageMiss| {
            let left = room.checked_sub(miss.pointer.bytes());
            room = left.unwrap_or_default();
            left.is_some()
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        fetch_at_once(now)?;
        rest = later;
    }
    Ok(misses.len() as u32)
}

/// Reads pages, sorted and without duplicates, into the cache.
fn fetch_at_once(misses: &[PageMiss]) -> Result<()> {
    let Some(first) = misses.first() else { return Ok(()) };
    let vfs = Arc::clone(&first.file.files().vfs);
    let total_bytes = misses.iter().map(|miss| miss.pointer.bytes()).sum();
    let mut buf = AlignedBuf::unzeroed(total_bytes);
    let runs = misses.chunk_by(PageMiss::borders).map(|run| {
        let bytes = run.iter().map(|miss| miss.pointer.bytes()).sum();
        (&*run[0].file, run[0].pointer.offset(), bytes)
    });
    let results = read_ranges(&*vfs, runs, &mut buf);
    if planted(Bug::FetchMixedUp) {
        buf[..total_bytes].rotate_left(UNIT_BYTES);
    }
    let mut rest = &buf[..];
    for (run, result) in misses.chunk_by(PageMiss::borders).zip(results) {
        result?;
        for miss in run {
            let (page, behind) = rest.split_at(miss.pointer.bytes());
            rest = behind;
            miss.file.admit(miss.pointer, miss.class, page, true, |_| ())?;
        }
    }
    Ok(())
}

/// Reads the pages past the cache, many together, and returns their payloads in the same order. A
/// store opens faster this way than file by file.
pub(crate) fn read_pages(pages: &[(&PageFile, PagePointer)]) -> Result<Vec<Vec<u8>>> {
    let mut payloads = Vec::with_capacity(pages.len());
    let mut scratch = Vec::new();
    for pages in pages.chunks(UNCACHED_PAGES_MAX) {
        let [(first, _), ..] = pages else { break };
        pages.iter().try_for_each(|(file, pointer)| file.check_bounds(*pointer))?;
        let total_bytes = pages.iter().map(|(_, pointer)| pointer.bytes()).sum();
        let mut buf = AlignedBuf::unzeroed(total_bytes);
        let ranges = pages.iter().map(|(file, pointer)| (*file, pointer.offset(), pointer.bytes()));
        read_ranges(&*first.files().vfs, ranges, &mut buf).into_iter().collect::<Result<()>>()?;
        let mut rest = &buf[..];
        for (file, pointer) in pages {
            let (page, behind) = rest.split_at(pointer.bytes());
            rest = behind;
            payloads.push(file.verify(*pointer, page, &mut scratch)?.1.to_vec());
        }
    }
    Ok(payloads)
}

/// A run of units of a file.
pub(crate) struct UnitRun {
    pub(crate) file: Arc<PageFile>,
    pub(crate) units: Range<u32>,
}

impl UnitRun {
    fn bytes(&self) -> usize {
        self.units.len() * UNIT_BYTES
    }
}

/// Reads runs together, and calls `f` with each, and with its bytes or what reading them failed with, until that fails.
fn read_at_once<'a>(
    runs: &'a [UnitRun],
    mut f: impl FnMut(&'a UnitRun, Result<&[u8]>) -> Result<()>,
) -> Result<()> {
    let Some(first) = runs.first() else { return Ok(()) };
    let mut buf = AlignedBuf::unzeroed(runs.iter().map(UnitRun::bytes).sum());
    let start = |run: &UnitRun| u64::from(run.units.start) * UNIT_BYTES as u64;
    let ranges = runs.iter().map(|run| (&*run.file, start(run), run.bytes()));
    let results = read_ranges(&*first.file.files().vfs, ranges, &mut buf);
    let mut rest = &buf[..];
    for (run, result) in runs.iter().zip(results) {
        let (of_run, behind) = rest.split_at(run.bytes());
        rest = behind;
        f(run, result.map(|()| of_run))?;
    }
    Ok(())
}

/// Reads runs of units past the cache, as many together as the read-ahead budget allows, and calls `f` with each run and
/// its bytes, which [`PageFile::pages_of_run`] verifies. A run is read whole, so it should not be much longer than that
/// budget.
pub(crate) fn read_unit_runs<'a>(
    runs: &'a [UnitRun],
    mut f: impl FnMut(&'a UnitRun, &[u8]) -> Result<()>,
) -> Result<()> {
    runs.iter().try_for_each(|run| run.file.check_run(&run.units))?;
    let mut rest = runs;
    while let Some(first) = rest.first() {
        let files = first.file.files();
        let wanted = rest.iter().map(UnitRun::bytes).sum();
        let lease = files.read_ahead.lease(wanted, UNCOUNTED_BYTES.min(wanted));
        let mut room = lease.as_ref().map_or(UNCOUNTED_BYTES, Lease::bytes);
        let fits = |run: &&UnitRun| {
            let left = room.checked_sub(run.bytes());
            room = left.unwrap_or_default();
            left.is_some()
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        read_at_once(now, |run, bytes| f(run, bytes?))?;
        rest = later;
    }
    Ok(())
}

/// What [`fetch_runs`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fetched {
    /// The number of pages that were read.
    pub(crate) pages: u32,
    /// Nothing was left out.
    pub(crate) is_whole: bool,
}

/// Reads the pages that lie in runs of units into the cache, all together. Runs that overlap or are adjacent are read as
/// one. Reads nothing if the read-ahead budget has no room for all.
///
/// # Errors
/// If a file has no such units. What cannot be read, and what is damaged, is left to whoever needs it.
pub(crate) fn fetch_runs(mut runs: Vec<UnitRun>, class: PageClass) -> Result<Fetched> {
    runs.iter().try_for_each(|run| run.file.check_run(&run.units))?;
    runs.sort_by_key(|run| (run.file.id(), run.units.start));
    runs.dedup_by(|next, run| {
        let joins = next.file.id() == run.file.id() && next.units.start <= run.units.end;
        if joins {
            run.units.end = run.units.end.max(next.units.end);
        }
        joins
    });
    let mut fetched = Fetched { pages: 0, is_whole: true };
    let Some(first) = runs.first() else { return Ok(fetched) };
    let bytes: usize = runs.iter().map(UnitRun::bytes).sum();
    let lease = first.file.files().read_ahead.lease(bytes, bytes);
    if lease.is_none() && bytes > UNCOUNTED_BYTES {
        return Ok(Fetched { is_whole: false, ..fetched });
    }
    read_at_once(&runs, |run, bytes| {
        match bytes {
            Ok(bytes) => fetched.pages += run.file.admit_run(run.units.clone(), class, bytes),
            Err(_) => fetched.is_whole = false,
        }
        Ok(())
    })?;
    Ok(fetched)
}

/// The last units of a file, as read.
pub(crate) struct FileEnd<'a> {
    file: &'a PageFile,
    first_unit: u32,
    bytes: &'a [u8],
}

impl FileEnd<'_> {
    /// The payload of the file's last unit, which is a page.
    pub(crate) fn last_page(&self) -> Result<Vec<u8>> {
        let last = self.file.last_unit();
        self.verified(last, &self.bytes[self.bytes.len() - UNIT_BYTES..])
    }

    /// The payload of a page, or `None` if it is not completely in these units.
    pub(crate) fn page(&self, pointer: PagePointer) -> Result<Option<Vec<u8>>> {
        let page = (pointer.unit.checked_sub(self.first_unit))
            .and_then(|unit| self.bytes.get(unit as usize * UNIT_BYTES..)?.get(..pointer.bytes()));
        page.map(|page| self.verified(pointer, page)).transpose()
    }

    fn verified(&self, pointer: PagePointer, page: &[u8]) -> Result<Vec<u8>> {
        let mut scratch = Vec::new();
        Ok(self.file.verify(pointer, page, &mut scratch)?.1.to_vec())
    }
}

/// Reads the last `units` of each file (all of a shorter file) past the cache, many together, and
/// passes them to `f` in order.
pub(crate) fn read_ends<'a>(
    files: &'a [Arc<PageFile>],
    units: u32,
    mut f: impl FnMut(&'a PageFile, &FileEnd<'_>) -> Result<()>,
) -> Result<()> {
    for files in files.chunks(UNCACHED_PAGES_MAX / units.max(1) as usize) {
        let [first, ..] = files else { break };
        let ends: Vec<(u32, usize)> = (files.iter())
            .map(|file| {
                let first_unit = file.units().saturating_sub(units);
                (first_unit, (file.units() - first_unit) as usize * UNIT_BYTES)
            })
            .collect();
        let mut buf = AlignedBuf::unzeroed(ends.iter().map(|(_, bytes)| bytes).sum());
        let ranges = files.iter().zip(&ends).map(|(file, &(first_unit, bytes))| {
            (&**file, u64::from(first_unit) * UNIT_BYTES as u64, bytes)
        });
        read_ranges(&*first.files().vfs, ranges, &mut buf).into_iter().collect::<Result<()>>()?;
        let mut rest = &buf[..];
        for (file, (first_unit, bytes)) in files.iter().zip(ends) {
            let (bytes, behind) = rest.split_at(bytes);
            rest = behind;
            f(file, &FileEnd { file, first_unit, bytes })?;
        }
    }
    Ok(())
}
