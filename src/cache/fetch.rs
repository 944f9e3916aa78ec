//! Pages that are read together: what several operations, or one that looks ahead, need and the cache
//! does not have.
//!
//! Invariants:
//! 1. A page is read once, and neighbours in a file with one read: what a drive and the system ask for a
//!    read hardly grows with its length.
//! 2. A page enters the cache verified, as pages read one by one do.

use std::cell::Cell;
use std::sync::Arc;

use super::page_cache::PageClass;
use super::page_file::{PageFile, PagePointer};
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::vfs::{AlignedBuf, ReadRequest};

/// A page that an operation needs and the cache does not have.
pub(crate) struct PageMiss {
    pub(crate) file: Arc<PageFile>,
    pub(crate) pointer: PagePointer,
    pub(crate) class: PageClass,
}

impl PageMiss {
    /// Whether `next` lies right behind it.
    fn borders(&self, next: &PageMiss) -> bool {
        let end = u64::from(self.pointer.unit) + u64::from(self.pointer.units);
        self.file.id() == next.file.id() && end == u64::from(next.pointer.unit)
    }
}

/// A thread keeps a buffer of up to so many bytes for its next batch.
const KEPT_BYTES_MAX: usize = 256 << 10;

thread_local! {
    static BUF: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// Reads the pages into the cache, all at once; returns how many pages were read. A page named
/// twice is read once.
///
/// The cache need not keep them (a page may be too large for it): an operation that finds a page still
/// missing after it has been fetched must read it with
/// [`ReadContext::blocking`](super::ReadContext::blocking), or it might go on for ever.
pub(crate) fn fetch_misses(mut misses: Vec<PageMiss>) -> Result<u32> {
    misses.sort_by_key(|miss| (miss.file.id(), miss.pointer));
    misses.dedup_by_key(|miss| (miss.file.id(), miss.pointer));
    let Some(first) = misses.first() else { return Ok(0) };
    misses.iter().try_for_each(|miss| miss.file.check_bounds(miss.pointer))?;
    let vfs = Arc::clone(&first.file.files().vfs);
    let total_bytes = misses.iter().map(|miss| miss.pointer.bytes()).sum();
    let kept = BUF.take().filter(|buf| buf.len() >= total_bytes);
    let mut buf = kept.unwrap_or_else(|| AlignedBuf::new(total_bytes));
    let mut requests: Vec<ReadRequest<'_>> = Vec::new();
    let mut rest = &mut buf[..];
    for run in misses.chunk_by(PageMiss::borders) {
        let bytes = run.iter().map(|miss| miss.pointer.bytes()).sum();
        let (of_run, behind) = std::mem::take(&mut rest).split_at_mut(bytes);
        rest = behind;
        requests.push(ReadRequest {
            file: &**run[0].file.file(),
            offset: run[0].pointer.offset(),
            buf: of_run,
            result: Ok(()),
        });
    }
    vfs.read_batch(&mut requests);
    let results: Vec<Result<()>> = requests.into_iter().map(|request| request.result).collect();
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
    if buf.len() <= KEPT_BYTES_MAX {
        BUF.set(Some(buf));
    }
    Ok(misses.len() as u32)
}
