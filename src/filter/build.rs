//! Builds a maplet by a linear merge of the sorted fingerprints of new branches and of older
//! maplets.
//!
//! The fingerprint space is divided into the nominal pages of the new maplet. For each page, every
//! source supplies its entries up to the page's nominal end. These few thousand entries are merged
//! while they are in the processor's caches, and as many as fit become the page. The rest, if any,
//! is placed first in the next page.
//!
//! Invariants:
//! 1. Pages partition the fingerprint space: each starts where the previous one ended, and a page
//!    ends at or before its nominal end. So a fingerprint is in its nominal page or in a later one.
//! 2. Building terminates for any distribution of fingerprints: each page either reaches its
//!    nominal end or is full.

use super::fingerprint::SortedFingerprints;
use super::geometry::{BRANCHES_MAX, FINGERPRINT_BITS_MAX, FINGERPRINT_BITS_MIN};
use super::geometry::{GROUP_BUCKETS, Geometry};
use super::header::{BranchCounts, MapletHeader};
use super::maplet::{Maplet, PAGE_KIND_MAPLET, PAGE_KIND_MAPLET_HEADER};
use super::page::{self, GROUP_BITS, PAGE_BITS, PAYLOAD_BYTES, entry, entry_fingerprint};
use super::reader::MapletReader;
use super::runs::Runs;
use crate::base::error::{Error, Result};
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::cache::{Compression, PageClass, PageFileWriter};
#[cfg(any(test, feature = "fuzz"))]
use crate::cache::{DataFiles, FileType};
#[cfg(any(test, feature = "fuzz"))]
use std::sync::Arc;

/// The destination of finished pages, in order. They must be consecutive units of one file.
pub(crate) trait MapletSink {
    /// Takes the payload of the next page: one unit with its header.
    fn page(&mut self, payload: &[u8]) -> Result<()>;
}

impl MapletSink for PageFileWriter {
    fn page(&mut self, payload: &[u8]) -> Result<()> {
        self.append_cached(PAGE_KIND_MAPLET, payload, PageClass::Filter).map(|_| ())
    }
}

/// Collects the sources of a new maplet.
pub(crate) struct MapletBuilder {
    fingerprint_bits: u32,
    branches: usize,
    sources: Vec<Source>,
    entries_max: u64,
    used: [bool; BRANCHES_MAX],
    /// True if two sources, or two branches of one, may have the same pair.
    collapses: bool,
}

impl MapletBuilder {
    /// Begins a maplet over the branches with ordinals `0..branches`, 0 being the oldest.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more than 256 branches or `fingerprint_bits` is not 32 to 48.
    pub(crate) fn new(fingerprint_bits: u32, branches: usize) -> Result<MapletBuilder> {
        if !(FINGERPRINT_BITS_MIN..=FINGERPRINT_BITS_MAX).contains(&fingerprint_bits) {
            return Err(Error::invalid("a fingerprint has 32 to 48 bits"));
        }
        if branches > BRANCHES_MAX {
            return Err(Error::invalid("a maplet has at most 256 branches"));
        }
        Ok(MapletBuilder {
            fingerprint_bits,
            branches,
            sources: Vec::new(),
            entries_max: 0,
            used: [false; BRANCHES_MAX],
            collapses: false,
        })
    }

    /// Adds a new branch.
    ///
    /// # Errors
    /// `InvalidArgument` if the ordinal is too large or the fingerprints have another width.
    pub(crate) fn add_branch(
        &mut self,
        ordinal: u8,
        fingerprints: SortedFingerprints,
    ) -> Result<()> {
        self.use_width(fingerprints.bits)?;
        self.use_ordinal(ordinal)?;
        self.entries_max = self.entries_max.saturating_add(fingerprints.len() as u64);
        let from = Sorted { fingerprints: fingerprints.sorted, next: 0, ordinal };
        self.sources.push(Source::Branch(from));
        Ok(())
    }

    /// Adds an older maplet. `ordinals` has the new ordinal of each of its branches, or `None` to
    /// drop the branch's entries. Several branches may get the same ordinal, in any order.
    ///
    /// # Errors
    /// `InvalidArgument` if an ordinal is too large or missing or the fingerprints have another
    /// width.
    pub(crate) fn add_maplet(&mut self, maplet: &Maplet, ordinals: &[Option<u8>]) -> Result<()> {
        self.use_width(maplet.header().fingerprint_bits())?;
        if ordinals.len() != maplet.branches() {
            return Err(Error::invalid("a maplet's branches all need an ordinal or none"));
        }
        let mut table = [DROPPED; 256];
        let mut entries = 0u64;
        for (old, &new) in ordinals.iter().enumerate() {
            let Some(new) = new else { continue };
            self.use_ordinal(new)?;
            table[old] = u16::from(new);
            entries = entries.saturating_add(maplet.header().branch(old as u8).entries);
        }
        if entries > 0 {
            self.entries_max = self.entries_max.saturating_add(entries);
            let keeps_order = ordinals.iter().flatten().is_sorted();
            let keeps_all = keeps_order
                && ordinals.iter().enumerate().all(|(old, &new)| new == Some(old as u8));
            let reader = maplet.reader();
            let buffer = Vec::new();
            let older =
                Older { reader, table, keeps_order, keeps_all, buffer, next: 0, ended: false };
            self.sources.push(Source::Maplet(Box::new(older)));
        }
        Ok(())
    }

    fn use_width(&self, bits: u32) -> Result<()> {
        if bits == self.fingerprint_bits {
            return Ok(());
        }
        Err(Error::invalid("merged maplets have fingerprints of equal width"))
    }

    fn use_ordinal(&mut self, ordinal: u8) -> Result<()> {
        if usize::from(ordinal) >= self.branches {
            return Err(Error::invalid("a branch's ordinal is below the number of branches"));
        }
        self.collapses |= std::mem::replace(&mut self.used[usize::from(ordinal)], true);
        Ok(())
    }

    /// Starts the merge.
    ///
    /// # Errors
    /// `InvalidArgument` if the maplet would have more than 2^32 pages.
    pub(crate) fn start(self) -> Result<MapletMerge> {
        let Some(geometry) = Geometry::new(self.fingerprint_bits, self.branches, self.entries_max)
        else {
            return Err(too_large());
        };
        Ok(MapletMerge {
            geometry,
            branches: self.branches,
            sources: self.sources,
            collapses: self.collapses,
            runs: Runs::default(),
            pending: Vec::new(),
            pending_from: 0,
            page: 0,
            start: 0,
            fingerprints: 0,
            counts: Box::new([BranchCounts::default(); BRANCHES_MAX]),
            payload: Box::new([0; PAYLOAD_BYTES]),
        })
    }

    /// Merges everything into `sink`.
    #[cfg(test)]
    pub(crate) fn write(self, sink: &mut impl MapletSink) -> Result<MapletHeader> {
        let mut merge = self.start()?;
        while !merge.step(sink, u32::MAX)? {}
        Ok(merge.header(crate::base::key_hash::test_hasher().id()))
    }

    /// Merges everything into a maplet file. The file's name is not durable yet.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn write_file(self, files: &Arc<DataFiles>) -> Result<Maplet> {
        let mut writer = PageFileWriter::create(files, FileType::Maplet)?;
        let mut merge = self.start()?;
        while !merge.step(&mut writer, u32::MAX)? {}
        merge.finish_file(writer)
    }
}

fn too_large() -> Error {
    Error::invalid("a maplet has at most 2^32 pages")
}

/// In a table of ordinals: drops the branch.
const DROPPED: u16 = 256;

enum Source {
    Branch(Sorted),
    Maplet(Box<Older>),
}

struct Sorted {
    fingerprints: PageVec<u64>,
    next: usize,
    ordinal: u8,
}

struct Older {
    reader: MapletReader,
    table: [u16; 256],
    keeps_order: bool,
    keeps_all: bool,
    /// Entries with new ordinals, sorted. Those before `next` have been merged.
    buffer: Vec<u64>,
    next: usize,
    ended: bool,
}

impl Source {
    /// Appends the entries with fingerprints below `end` that have not been merged yet.
    fn give(&mut self, end: u64, out: &mut Vec<u64>) -> Result<()> {
        match self {
            Source::Branch(from) => {
                let rest = &from.fingerprints[from.next..];
                let count = rest.iter().position(|&f| f >= end).unwrap_or(rest.len());
                out.extend(rest[..count].iter().map(|&f| entry(f, from.ordinal)));
                from.next += count;
                Ok(())
            }
            Source::Maplet(older) => older.give(end, out),
        }
    }
}

impl Older {
    fn give(&mut self, end: u64, out: &mut Vec<u64>) -> Result<()> {
        let bound = entry(end, 0);
        loop {
            let rest = &self.buffer[self.next..];
            let count = rest.partition_point(|&e| e < bound);
            out.extend_from_slice(&rest[..count]);
            self.next += count;
            if self.ended || self.next < self.buffer.len() {
                return Ok(());
            }
            self.buffer.clear();
            self.next = 0;
            self.ended = !self.reader.next_page(&mut self.buffer)?;
            self.translate();
        }
    }

    /// Gives a page's entries their new ordinals.
    fn translate(&mut self) {
        if self.keeps_all || planted(Bug::MapletUntranslated) {
            return;
        }
        let mut kept = 0;
        for i in 0..self.buffer.len() {
            let entry = self.buffer[i];
            let ordinal = self.table[(entry & 0xff) as usize];
            self.buffer[kept] = entry & !0xff | u64::from(ordinal & 0xff);
            kept += usize::from(ordinal != DROPPED);
        }
        self.buffer.truncate(kept);
        if !self.keeps_order {
            // Nearly sorted, and all entries of a fingerprint are in this page.
            self.buffer.sort_unstable();
        }
    }
}

/// A merge in progress.
pub(crate) struct MapletMerge {
    geometry: Geometry,
    branches: usize,
    sources: Vec<Source>,
    collapses: bool,
    runs: Runs,
    /// Merged entries. Those before `pending_from` are in pages.
    pending: Vec<u64>,
    pending_from: usize,
    /// The number and the start of the next page.
    page: u32,
    start: u64,
    fingerprints: u64,
    counts: Box<[BranchCounts; BRANCHES_MAX]>,
    payload: Box<[u8; PAYLOAD_BYTES]>,
}

impl MapletMerge {
    /// Returns true when all pages have been written.
    pub(crate) fn is_done(&self) -> bool {
        self.geometry.nominal_pages == 0 || self.start == self.geometry.fingerprint_end()
    }

    /// The number of pages, unless the last one overflows.
    #[cfg(test)]
    pub(crate) fn pages_expected(&self) -> u32 {
        self.geometry.nominal_pages
    }

    /// Writes up to `pages_max` more pages (of about 1500 entries each). Returns true when all are
    /// written.
    pub(crate) fn step(&mut self, sink: &mut impl MapletSink, pages_max: u32) -> Result<bool> {
        for _ in 0..pages_max {
            if self.is_done() {
                return Ok(true);
            }
            self.gather()?;
            let (count, end) = self.fit();
            let to = self.pending_from + count;
            let entries = &self.pending[self.pending_from..to];
            page::encode(&self.geometry, self.page, self.start, end, entries, &mut self.payload);
            sink.page(&self.payload[..])?;
            self.pending_from = to;
            self.start = end;
            self.page = self.page.checked_add(1).ok_or_else(too_large)?;
        }
        Ok(self.is_done())
    }

    /// Merges the entries of all sources for the next page, up to its nominal end.
    fn gather(&mut self) -> Result<()> {
        if self.page >= self.geometry.nominal_pages {
            return Ok(());
        }
        let end = self.geometry.nominal_end(self.page);
        self.runs.clear();
        for source in &mut self.sources {
            source.give(end, self.runs.run())?;
            self.runs.end_run();
        }
        let merged = self.runs.merge();
        if self.collapses {
            merged.dedup();
        }
        if planted(Bug::MapletFoldsBranches) {
            merged.dedup_by_key(|entry| entry_fingerprint(*entry));
        }
        if self.branches == 1 {
            self.counts[0].entries += merged.len() as u64;
            self.fingerprints += merged.len() as u64;
        } else {
            let mut following = merged.iter().skip(1);
            for &entry in merged.iter() {
                let counts = &mut self.counts[(entry & 0xff) as usize];
                counts.entries += 1;
                let next = following.next().copied().unwrap_or(u64::MAX);
                let same = entry_fingerprint(next) == entry_fingerprint(entry);
                counts.superseded += u64::from(same);
                self.fingerprints += u64::from(!same);
            }
        }
        // Moving the rest costs no more than the entries that have been removed.
        if self.pending_from * 2 >= self.pending.len() {
            self.pending.drain(..self.pending_from);
            self.pending_from = 0;
        }
        self.pending.extend_from_slice(merged);
        Ok(())
    }

    /// The number of pending entries for the next page, and the end of the page.
    fn fit(&self) -> (usize, u64) {
        let pending = &self.pending[self.pending_from..];
        let nominal_end = self.geometry.nominal_end(self.page);
        let room = PAGE_BITS as u64;
        let fits = |count: usize, end: u64| {
            self.geometry.cost(count, self.geometry.groups(self.start, end)) <= room
        };
        if fits(pending.len(), nominal_end) {
            return (pending.len(), nominal_end);
        }
        let (mut count, mut more) = (0, pending.len());
        while count < more {
            let middle = count + (more - count).div_ceil(2);
            if fits(middle, entry_fingerprint(pending[middle - 1]) + 1) {
                count = middle;
            } else {
                more = middle - 1;
            }
        }
        // Entries of one fingerprint stay together. Up to 256 of them always fit into an empty
        // page.
        let fingerprint_of = |index: usize| pending.get(index).map(|&e| entry_fingerprint(e));
        while count > 0 && fingerprint_of(count - 1) == fingerprint_of(count) {
            count -= 1;
        }
        // Includes as much of the following empty space as there is room for.
        let groups = (room - self.geometry.cost(count, 0)) / GROUP_BITS as u64;
        let bits = self.geometry.remainder_bits();
        let reach = ((self.start >> bits) + groups * GROUP_BUCKETS) << bits;
        (count, reach.min(fingerprint_of(count).unwrap_or(nominal_end)))
    }

    /// The finished maplet's header. All pages must have been written. `hash_id` identifies the
    /// hash of the fingerprints.
    pub(crate) fn header(&self, hash_id: u32) -> MapletHeader {
        debug_assert!(self.is_done());
        MapletHeader {
            geometry: self.geometry,
            pages: self.page,
            fingerprints: self.fingerprints,
            branches: self.counts[..self.branches].to_vec(),
            hash_id,
        }
    }

    /// Writes the header page, makes the file durable (but not its name) and opens the maplet. All
    /// pages must have been written, to this writer and nothing else.
    pub(crate) fn finish_file(self, mut writer: PageFileWriter) -> Result<Maplet> {
        let header = self.header(writer.files().hasher.id());
        let mut payload = Vec::new();
        header.encode(&mut payload);
        writer.append(PAGE_KIND_MAPLET_HEADER, &payload, Compression::None)?;
        Ok(Maplet::new(writer.finish()?, header))
    }
}
