//! The global index of a TPH (section 3.3 of the CompassDB paper), in a file of its own: which piece has a key.
//!
//! A slot says the youngest piece that has a key with the hash, and whether an older one has too. So an update and a
//! collision of hashes need not be told apart: who does not find his key in the youngest piece, or not the version that
//! he may see, goes on to the older ones if there is one. A deleted key has its slot while a piece has its tombstone.
//!
//! A head is made of the [lists of hashes](super::hash_list) of its pieces, oldest first. What the paper's MergeArray
//! does with the slots of delta and base, a merge of sorted lists does here: a hash that only the base has stays where it
//! is, and any other leads to the new piece.
//!
//! Leaves of the trunk share pieces. A head has the hashes alone that a piece may have in its own key range, and its counts
//! are of those.
//!
//! Invariants:
//! 1. A probe with the hash of a key of the head's range names each piece that has the key.
//! 2. Pieces are numbered by age: the youngest has the greatest number.

use std::sync::{Arc, OnceLock};

use super::hash_list::HashListReader;
use super::index::{HashIndex, IndexFront, IndexWriter, PageSink, index_hash};
use super::index_page::Shape;
use super::segment::Construction;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::cache::{Compression, PageClass, PageFile, PageFileWriter, ReadContext, read_pages};
use crate::filter::{BranchCounts, BranchSet, Runs};

/// The most pieces of a head.
const PIECES_MAX: usize = 256;
/// The page kinds of a head's file. On disk: never renumber.
const PAGE_KIND_INDEX: u8 = 32;
const PAGE_KIND_BOUNDS: u8 = 33;
const PAGE_KIND_FRONT: u8 = 34;
/// Entries that are merged at once, about.
const STEP_ENTRIES: u64 = 2048;
/// Hashes have so many bits.
const HASH_BITS: u32 = 48;
/// Units read at once by a check.
const CHUNK_UNITS: u32 = 64;

impl PageSink for PageFileWriter {
    fn append(&mut self, payload: &[u8], is_probed: bool) -> Result<()> {
        match is_probed {
            true => self.append_cached(PAGE_KIND_INDEX, payload, PageClass::Filter)?,
            false => self.append(PAGE_KIND_BOUNDS, payload, Compression::None)?,
        };
        Ok(())
    }
}

/// The last page of a head's file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HeadFront {
    index: IndexFront,
    pieces: Vec<BranchCounts>,
}

impl HeadFront {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.index.encode(&mut out);
        out.extend_from_slice(&(self.pieces.len() as u16).to_le_bytes());
        for piece in &self.pieces {
            put_varint(&mut out, piece.entries);
            put_varint(&mut out, piece.superseded);
        }
        out
    }

    fn decode(from: &mut Decoder<'_>, hash_id: u32) -> Result<HeadFront> {
        let index = IndexFront::decode(from, hash_id)?;
        let count = usize::from(from.u16("pieces of a head")?);
        if count > PIECES_MAX || shape_of(count, 0).value_bits > index.shape.value_bits {
            return Err(from.corrupt("pieces of a head", "as many as its values tell", count));
        }
        let mut pieces = Vec::with_capacity(count);
        let mut keys = 0u64;
        for _ in 0..count {
            let entries = from.varint("entries of a piece")?;
            let superseded = from.varint("superseded entries of a piece")?;
            if entries > index.keys || superseded > entries {
                let found = format_args!("{superseded} of {entries}");
                return Err(from.corrupt("superseded entries of a piece", "fewer", found));
            }
            // Each is at most the number of hashes, of which there are fewer than 2^47.
            keys += entries - superseded;
            pieces.push(BranchCounts { entries, superseded });
        }
        if keys != index.keys {
            return Err(from.corrupt("entries of a head's pieces", index.keys, keys));
        }
        if !from.is_empty() {
            return Err(from.corrupt("last page of a head", "its end", "more bytes"));
        }
        Ok(HeadFront { index, pieces })
    }
}

/// A value is the number of a piece times two, plus one if an older piece has the hash.
fn shape_of(pieces: usize, signature_bytes: u8) -> Shape {
    Shape::for_values((2 * pieces).saturating_sub(1) as u32, signature_bytes)
}

/// A finished head.
pub(crate) struct Head {
    file: Arc<PageFile>,
    front: HeadFront,
    index: OnceLock<HashIndex>,
}

impl Head {
    /// Opens heads and returns them in the same order. Reads their last pages at once.
    ///
    /// # Errors
    /// `Corruption` if one is damaged.
    pub(crate) fn open_all(files: Vec<Arc<PageFile>>) -> Result<Vec<Head>> {
        let last: Vec<_> = files.iter().map(|file| (&**file, file.last_unit())).collect();
        let fronts = read_pages(&last)?;
        let open = |(file, payload): (Arc<PageFile>, Vec<u8>)| {
            let (path, pointer) = (file.path(), file.last_unit());
            let hash_id = file.files().hasher.id();
            let mut from = Decoder::new(&payload, &path, pointer.offset());
            let front = HeadFront::decode(&mut from, hash_id)?;
            if front.index.units() != u64::from(pointer.unit) {
                let (expected, found) = (pointer.unit, front.index.units());
                return Err(file.corrupt(pointer, "pages of a head", expected, found));
            }
            Ok(Head { file, front, index: OnceLock::new() })
        };
        files.into_iter().zip(fronts).map(open).collect()
    }

    /// The index, whose bounds are read by the first who asks.
    #[inline]
    fn index(&self, context: &ReadContext) -> Result<&HashIndex> {
        match self.index.get() {
            Some(index) => Ok(index),
            None => {
                let index = HashIndex::load(&self.file, 0, &self.front.index, context)?;
                Ok(self.index.get_or_init(|| index))
            }
        }
    }

    /// The pieces that may have the key with this hash: every one that has, and for one absent key of 255 (65,535 with
    /// long signatures) others.
    ///
    /// # Errors
    /// `Corruption` if a page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn probe(&self, hash: u64, context: &ReadContext) -> Result<BranchSet> {
        let Some(value) = self.index(context)?.probe(&self.file, index_hash(hash), context)? else {
            return Ok(BranchSet::EMPTY);
        };
        let piece = (value >> 1) as usize;
        if piece >= self.front.pieces.len() {
            let (pointer, expected) = (self.file.last_unit(), self.front.pieces.len());
            let expected = format_args!("below {expected}");
            return Err(self.file.corrupt(pointer, "piece in a head", expected, piece));
        }
        let has_older = value & 1 == 1 && !planted(Bug::HeadForgetsOlder);
        Ok(BranchSet::of_newest(piece as u8, has_older))
    }

    /// The file.
    pub(crate) fn file(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// Memory that it uses once it has been asked.
    pub(crate) fn memory_bytes(&self) -> u64 {
        u64::from(self.front.index.pages) * 8
    }

    /// The counts of each piece.
    pub(crate) fn pieces(&self) -> &[BranchCounts] {
        &self.front.pieces
    }

    /// Reads all pages, and verifies that they belong together.
    ///
    /// # Errors
    /// `Corruption` for the first problem found.
    pub(crate) fn check(&self) -> Result<()> {
        let context = ReadContext::blocking();
        self.index(&context)?;
        let mut pages = self.file.scan(0..self.file.units(), CHUNK_UNITS);
        let mut count = 0;
        while pages.next_page()?.is_some() {
            count += 1;
        }
        match count == self.file.units() {
            true => Ok(()),
            false => {
                let last = self.file.last_unit();
                Err(self.file.corrupt(last, "pages of a head", self.file.units(), count))
            }
        }
    }
}

/// Whether a piece may have a key with a hash in the range of a head.
pub(crate) type Keep = Box<dyn FnMut(u64) -> Result<bool> + Send>;

/// Collects the pieces of a new head.
pub(crate) struct HeadBuilder {
    construction: Construction,
    signature_bytes: u8,
    pieces: usize,
    sources: Vec<Source>,
    keys_max: u64,
}

/// The hashes of a piece.
struct Source {
    piece: u8,
    /// Those that have been read, of which the first `next` are merged.
    buffer: Vec<u64>,
    next: usize,
    reader: Option<HashListReader>,
    /// Which of the hashes count; `None`: all.
    keep: Option<Keep>,
}

impl HeadBuilder {
    /// A head of so many pieces.
    ///
    /// # Errors
    /// `InvalidArgument` if those are too many.
    pub(crate) fn new(
        construction: Construction,
        signature_bytes: u8,
        pieces: usize,
    ) -> Result<HeadBuilder> {
        if pieces > PIECES_MAX {
            return Err(Error::invalid("a head has at most 256 pieces"));
        }
        let sources = Vec::new();
        Ok(HeadBuilder { construction, signature_bytes, pieces, sources, keys_max: 0 })
    }

    /// Adds a piece by its list of so many hashes, or those of them that `keep` is true for.
    pub(crate) fn add_list(
        &mut self,
        piece: u8,
        keys: u64,
        reader: HashListReader,
        keep: Option<Keep>,
    ) {
        self.keys_max += keys;
        self.sources.push(Source {
            piece,
            buffer: Vec::new(),
            next: 0,
            reader: Some(reader),
            keep,
        });
    }

    /// Begins the merge.
    pub(crate) fn start(self) -> HeadMerge {
        let shape = shape_of(self.pieces, self.signature_bytes);
        let parts = (self.keys_max / STEP_ENTRIES).max(1);
        HeadMerge {
            sources: self.sources,
            runs: Runs::default(),
            index: IndexWriter::new(self.construction, shape),
            counts: vec![BranchCounts::default(); self.pieces],
            part: 0,
            parts,
        }
    }
}

impl Source {
    /// Drops the hashes in the buffer that do not count.
    fn keep_some(&mut self) -> Result<()> {
        let Some(keep) = &mut self.keep else { return Ok(()) };
        let mut failed = None;
        self.buffer.retain(|hash| match keep(*hash) {
            Ok(keeps) => keeps,
            Err(error) => {
                failed.get_or_insert(error);
                true
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Appends the hashes below `end`, with the number of the piece in their lowest bits.
    fn give(&mut self, end: Option<u64>, out: &mut Vec<u64>) -> Result<()> {
        let piece = u64::from(self.piece);
        loop {
            let rest = &self.buffer[self.next..];
            let count = end.map_or(rest.len(), |end| rest.partition_point(|hash| *hash < end));
            out.extend(rest[..count].iter().map(|hash| hash | piece));
            self.next += count;
            let has_more = self.next < self.buffer.len();
            match &mut self.reader {
                Some(reader) if !has_more => {
                    self.buffer.clear();
                    self.next = 0;
                    if !reader.next_page(&mut self.buffer)? {
                        self.reader = None;
                        return Ok(());
                    }
                    self.keep_some()?;
                }
                _ => return Ok(()),
            }
        }
    }
}

/// A head in the making.
pub(crate) struct HeadMerge {
    sources: Vec<Source>,
    runs: Runs,
    index: IndexWriter,
    counts: Vec<BranchCounts>,
    /// The range of hashes is merged in so many equal parts.
    part: u64,
    parts: u64,
}

impl HeadMerge {
    /// Writes some more pages, `pages_max` about. Returns true when all hashes are merged.
    pub(crate) fn step(&mut self, writer: &mut PageFileWriter, pages_max: u32) -> Result<bool> {
        for _ in 0..pages_max {
            if self.part == self.parts {
                return Ok(true);
            }
            self.merge_part(writer)?;
        }
        Ok(self.part == self.parts)
    }

    fn merge_part(&mut self, writer: &mut PageFileWriter) -> Result<()> {
        self.part += 1;
        let end = (u128::from(self.part) << HASH_BITS) / u128::from(self.parts);
        let end = (self.part < self.parts).then_some((end as u64) << (64 - HASH_BITS));
        self.runs.clear();
        for source in &mut self.sources {
            source.give(end, self.runs.run())?;
            self.runs.end_run();
        }
        // A piece may have been added twice: its table is in two bundles that the compaction replaces.
        let merged = self.runs.merge();
        merged.dedup();
        for group in merged.chunk_by(|a, b| index_hash(*a) == index_hash(*b)) {
            let (youngest, older) = (group[group.len() - 1], &group[..group.len() - 1]);
            let piece = youngest & 0xff;
            let piece = match planted(Bug::HeadKeepsOldest) {
                true => group[0] & 0xff,
                false => piece,
            };
            for entry in older {
                self.counts[(entry & 0xff) as usize].superseded += 1;
            }
            for entry in group {
                self.counts[(entry & 0xff) as usize].entries += 1;
            }
            let value = piece as u32 * 2 + u32::from(!older.is_empty());
            self.index.add(index_hash(youngest), value, writer)?;
        }
        Ok(())
    }

    /// Writes the rest, makes the file durable (but not its name) and opens the head.
    pub(crate) fn finish_file(self, mut writer: PageFileWriter) -> Result<Head> {
        let (front, bounds) = self.index.finish(writer.files().hasher.id(), &mut writer)?;
        let index = HashIndex::new(0, &front, bounds);
        let front = HeadFront { index: front, pieces: self.counts };
        writer.append(PAGE_KIND_FRONT, &front.encode(), Compression::None)?;
        Ok(Head { file: writer.finish()?, front, index: OnceLock::from(index) })
    }
}
