//! [`Maplet`], a finished maplet in its own file, ready to be probed.

use super::branch_set::BranchSet;
use super::fingerprint::Fingerprint;
use super::header::MapletHeader;
use super::page::{self, Answer, PageFront};
use super::reader::MapletReader;
use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::cache::{PageClass, PageFile, PageKey, PagePointer, ReadContext, read_pages};
use std::sync::Arc;

/// The page kind of a maplet's pages.
pub(crate) const PAGE_KIND_MAPLET: u8 = 16;
/// The page kind of a maplet file's last page.
pub(crate) const PAGE_KIND_MAPLET_HEADER: u8 = 17;

/// A maplet. A probe with a key's hash returns the branches that may hold the key.
#[derive(Clone)]
pub(crate) struct Maplet {
    file: Arc<PageFile>,
    header: Arc<MapletHeader>,
}

/// The size of the page header, front and directory of a nearly full page.
const DIRECTORY_BYTES_TYPICAL: usize = 224;

impl Maplet {
    /// Opens a maplet file: its last page is the header, the pages before it are the maplet's.
    ///
    /// # Errors
    /// `Corruption` if the header is damaged or does not fit the file.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn open(file: Arc<PageFile>) -> Result<Maplet> {
        let mut maplets = Maplet::open_all(vec![file])?;
        Ok(maplets.swap_remove(0))
    }

    /// Opens maplet files and returns them in the same order. Reads all their headers at once.
    ///
    /// # Errors
    /// The errors of [`Maplet::open`].
    pub(crate) fn open_all(files: Vec<Arc<PageFile>>) -> Result<Vec<Maplet>> {
        let last: Vec<_> = files.iter().map(|file| (&**file, file.last_unit())).collect();
        let headers = read_pages(&last)?;
        let open = |(file, payload): (Arc<PageFile>, Vec<u8>)| {
            let (path, pointer) = (file.path(), file.last_unit());
            let mut decoder = Decoder::new(&payload, &path, pointer.offset());
            let header = MapletHeader::decode(&mut decoder)?;
            if header.pages != pointer.unit {
                return Err(file.corrupt(pointer, "maplet pages", pointer.unit, header.pages));
            }
            let hash_id = file.files().hasher.id();
            if header.hash_id != hash_id {
                let expected = format_args!("{hash_id:#010x}, this store's");
                let found = format_args!("{:#010x}", header.hash_id);
                return Err(file.corrupt(pointer, "maplet key hash", expected, found));
            }
            Ok(Maplet::new(file, header))
        };
        files.into_iter().zip(headers).map(open).collect()
    }

    /// The maplet with this header. Its pages are the first of the file.
    pub(super) fn new(file: Arc<PageFile>, header: MapletHeader) -> Maplet {
        debug_assert!(header.pages <= file.units());
        Maplet { file, header: Arc::new(header) }
    }

    /// Returns the branches that may hold the key with this hash: every branch that does, and any
    /// other one with a probability below `fingerprints / 2^fingerprint_bits`.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn probe(&self, hash: u64, context: &ReadContext) -> Result<BranchSet> {
        if self.header.pages == 0 {
            return Ok(BranchSet::EMPTY);
        }
        let geometry = &self.header.geometry;
        let fingerprint = Fingerprint::of_hash(hash, geometry.fingerprint_bits);
        let page = geometry.nominal_page(fingerprint.0);
        match self.ask(page, fingerprint, context)? {
            Some(branches) => Ok(branches),
            None => self.probe_later(page + 1, fingerprint, context),
        }
    }

    /// The first of two prefetch hints before a probe, for lookups in several maplets: their cache
    /// misses then overlap.
    #[inline]
    pub(crate) fn prefetch_place(&self, hash: u64) {
        if let Some((key, _)) = self.expected_place(hash) {
            self.file.files().cache.prefetch_place(key);
        }
    }

    /// The second hint, to be given once the first has taken effect.
    #[inline]
    pub(crate) fn prefetch_bytes(&self, hash: u64) {
        if let Some((key, offset)) = self.expected_place(hash) {
            self.file.files().cache.prefetch_bytes(key, offset);
        }
    }

    /// The page that a probe reads, and the approximate position in it.
    #[inline]
    fn expected_place(&self, hash: u64) -> Option<(PageKey, usize)> {
        if self.header.pages == 0 {
            return None;
        }
        let geometry = &self.header.geometry;
        let fingerprint = Fingerprint::of_hash(hash, geometry.fingerprint_bits);
        let (page, part) = geometry.nominal_place(fingerprint.0);
        // Entries follow the directory in order, about evenly distributed.
        let offset = DIRECTORY_BYTES_TYPICAL
            + (((UNIT_BYTES - DIRECTORY_BYTES_TYPICAL) * part as usize) >> 16);
        Some((PageKey { file: self.file.id(), unit: page }, offset))
    }

    /// Probes one page. Returns `None` if a later page has the fingerprint.
    #[inline]
    fn ask(
        &self,
        page: u32,
        fingerprint: Fingerprint,
        context: &ReadContext,
    ) -> Result<Option<BranchSet>> {
        let geometry = &self.header.geometry;
        let pointer = self.pointer(page);
        let answer = self.file.with_page(pointer, PageClass::Filter, context, |payload| {
            page::probe(geometry, payload, fingerprint.0)
        })?;
        match answer {
            Answer::Branches(branches) => Ok(Some(branches)),
            Answer::Later => Ok(None),
            Answer::Damaged(what) => {
                Err(self.file.corrupt(pointer, what, "a maplet page", "other bytes"))
            }
        }
    }

    /// Handles a fingerprint that did not fit into its nominal page: one probe in a thousand. It is
    /// in the next page unless hashes are skewed on purpose; then a binary search over the
    /// remaining pages finds it.
    #[cold]
    #[inline(never)]
    fn probe_later(
        &self,
        page: u32,
        fingerprint: Fingerprint,
        context: &ReadContext,
    ) -> Result<BranchSet> {
        if page < self.header.pages
            && let Some(branches) = self.ask(page, fingerprint, context)?
        {
            return Ok(branches);
        }
        let (mut from, mut to) = (page + 1, self.header.pages);
        while from < to {
            let middle = from + (to - from) / 2;
            let front = self.file.with_page(
                self.pointer(middle),
                PageClass::Filter,
                context,
                PageFront::decode,
            )?;
            match front {
                Some(front) if fingerprint.0 < front.start => to = middle,
                _ => match self.ask(middle, fingerprint, context)? {
                    Some(branches) => return Ok(branches),
                    None => from = middle + 1,
                },
            }
        }
        let found = format!("none of pages {page}..{}", self.header.pages);
        let expected = format!("a page for fingerprint {:#x}", fingerprint.0);
        Err(self.file.corrupt(self.pointer(page - 1), "maplet page bounds", expected, found))
    }

    fn pointer(&self, page: u32) -> PagePointer {
        PagePointer { unit: page, units: 1 }
    }

    /// Reads the whole maplet in order.
    pub(crate) fn reader(&self) -> MapletReader {
        MapletReader::new(self)
    }

    /// Reads the whole maplet and verifies pages, order, bounds and all counts.
    ///
    /// # Errors
    /// `Corruption` for the first problem found.
    pub(crate) fn check(&self) -> Result<()> {
        let mut counts = vec![super::BranchCounts::default(); self.header.branches()];
        let mut reader = self.reader();
        let mut entries = Vec::new();
        let mut page = 0;
        loop {
            entries.clear();
            if !reader.next_page(&mut entries)? {
                break;
            }
            page += 1;
            for (i, &entry) in entries.iter().enumerate() {
                // The reader has checked the ordinals.
                let Some(count) = counts.get_mut((entry & 0xff) as usize) else { continue };
                count.entries += 1;
                let next = entries.get(i + 1);
                count.superseded += u64::from(next.is_some_and(|n| n >> 8 == entry >> 8));
            }
        }
        if page != self.header.pages || counts != self.header.branches {
            let pointer = self.pointer(0);
            let found = format!("{counts:?} in {page} pages");
            let expected = format!("{:?} in {} pages", self.header.branches, self.header.pages);
            return Err(self.file.corrupt(pointer, "maplet branch counts", expected, found));
        }
        Ok(())
    }

    /// The maplet's header.
    pub(crate) fn header(&self) -> &MapletHeader {
        &self.header
    }

    /// The file that holds the pages.
    pub(crate) fn file(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// The number of pairs (fingerprint, branch).
    pub(crate) fn entries(&self) -> u64 {
        self.header.entries()
    }

    /// The number of branches.
    pub(crate) fn branches(&self) -> usize {
        self.header.branches()
    }

    /// The number of the branch's fingerprints that a younger branch has too.
    #[cfg(test)]
    pub(crate) fn superseded(&self, ordinal: u8) -> u64 {
        self.header.branch(ordinal).superseded
    }

    /// The size of all pages in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.header.pages) * UNIT_BYTES as u64
    }
}
