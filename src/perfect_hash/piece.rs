//! The local index of a piece (section 3.3 of the CompassDB paper): in which leaf of a table a key is.
//!
//! It stands in the table's file: the pages of a [`HashIndex`], its bounds, the [list of hashes](super::hash_list), and
//! a front. A value names a leaf, with the number of its units, or that the next leaf is needed too.
//!
//! Invariants:
//! 1. The leaf that is found for a key of the table has the key's newest version, unless the answer is
//!    [`Found::Unknown`].

use std::ops::Range;
use std::sync::Arc;

use super::hash_list::{HashListReader, HashListWriter};
use super::index::{HashIndex, IndexFront, IndexWriter, PageSink, index_hash};
use super::index_page::Shape;
use super::segment::Construction;
use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::pages::PageVec;
use crate::base::planted::{Bug, planted};
use crate::cache::{PageClass, PageFile, PagePointer, ReadContext};

/// The filter type in a table's footer that means the local index of a piece. On disk: never renumber.
pub(crate) const FILTER_KIND_PIECE: u8 = 2;

/// Leaves from this number on are not told apart.
const LEAVES_TOLD: u32 = 0x7fff;
/// The bit of a key's place that says that its entry goes on in the next leaf.
const SPLIT: u64 = 1;

/// Collects the keys of a table. Uses 8 bytes per key.
#[derive(Debug)]
pub(crate) struct PieceBuilder {
    construction: Construction,
    signature_bytes: u8,
    /// The hash in the upper 48 bits, then the number of the leaf, and [`SPLIT`].
    keys: PageVec<u64>,
    leaves: Vec<PagePointer>,
}

impl PieceBuilder {
    /// With signatures, most absent keys are found to be absent.
    pub(crate) fn new(construction: Construction, signature_bytes: u8) -> PieceBuilder {
        PieceBuilder {
            construction,
            signature_bytes,
            keys: PageVec::with_capacity(0),
            leaves: Vec::new(),
        }
    }

    /// Adds a key by its hash, whose newest version begins in the leaf of this number and goes on in the next one if
    /// `is_split`.
    #[inline]
    pub(crate) fn add_key(&mut self, hash: u64, leaf: u32, is_split: bool) {
        let place = u64::from(leaf.min(LEAVES_TOLD)) << 1 | if is_split { SPLIT } else { 0 };
        self.keys.push(index_hash(hash) | place);
    }

    /// Memory of the keys.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<u64>()
    }

    /// Adds the next leaf.
    pub(crate) fn add_leaf(&mut self, pointer: PagePointer) {
        self.leaves.push(pointer);
    }

    /// Writes all pages of the index.
    pub(crate) fn write(mut self, hash_id: u32, sink: &mut impl PageSink) -> Result<WrittenPiece> {
        self.keys.sort_unstable();
        let units_max = self.leaves.iter().map(|leaf| leaf.units).max().unwrap_or(1);
        let is_plain = units_max == 1 && !self.keys.iter().any(|key| key & SPLIT != 0);
        let codes = if is_plain { 1 } else { u32::from(units_max) + 1 };
        let last = self.leaves.last().map_or(0, |leaf| leaf.unit);
        // One more says that a hash is of keys in several leaves. A table too large for that has no such values.
        let unknown = value_at(last, codes, codes).unwrap_or(u32::MAX);
        let value_of = |place: u64| match self.leaves.get((place >> 1) as usize) {
            Some(leaf) if place >> 1 < u64::from(LEAVES_TOLD) => {
                let is_split = place & SPLIT != 0;
                let code = if is_split { codes - 1 } else { u32::from(leaf.units) - 1 };
                value_at(leaf.unit, codes, code).unwrap_or(unknown)
            }
            _ => unknown,
        };
        let shape = Shape::for_values(unknown, self.signature_bytes);
        let mut index = IndexWriter::new(self.construction, shape);
        let mut groups = self.keys.chunk_by(|a, b| index_hash(*a) == index_hash(*b));
        groups.try_for_each(|group| {
            let (first, last) = (group[0], group[group.len() - 1]);
            let value = if first == last { value_of(first & 0xffff) } else { unknown };
            index.add(index_hash(first), value, sink)
        })?;
        let (front, bounds) = index.finish(hash_id, sink)?;
        let mut list = HashListWriter::default();
        let mut groups = self.keys.chunk_by(|a, b| index_hash(*a) == index_hash(*b));
        let keys = front.keys - u64::from(planted(Bug::HashListShort) && front.keys > 1);
        let mut listed = groups.by_ref().take(keys as usize);
        listed.try_for_each(|group| list.add(index_hash(group[0]), sink))?;
        let front = PieceFront { index: front, list_pages: list.finish(sink)?, codes, unknown };
        let mut payload = Vec::new();
        front.encode(&mut payload);
        sink.append(&payload, false)?;
        Ok(WrittenPiece { front, bounds })
    }
}

/// The value of a leaf. None is 0, which slots without a hash have.
fn value_at(unit: u32, codes: u32, code: u32) -> Option<u32> {
    unit.checked_mul(codes)?.checked_add(code)?.checked_add(1)
}

/// What a local index has in memory.
#[derive(Debug)]
pub(crate) struct WrittenPiece {
    front: PieceFront,
    bounds: Arc<[u64]>,
}

/// The last page of a piece's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PieceFront {
    index: IndexFront,
    list_pages: u32,
    /// A value is the leaf's first unit times this, plus a code, plus one. The code is its units less one, or, as the
    /// greatest code, that the entry goes on in the next leaf.
    codes: u32,
    /// The value of a hash whose leaf is not known.
    unknown: u32,
}

impl PieceFront {
    fn encode(&self, out: &mut Vec<u8>) {
        self.index.encode(out);
        for field in [self.list_pages, self.codes, self.unknown] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    fn of_page(file: &PageFile, pointer: PagePointer, payload: &[u8]) -> Result<PieceFront> {
        let (path, hash_id) = (file.path(), file.files().hasher.id());
        PieceFront::decode(&mut Decoder::new(payload, &path, pointer.offset()), hash_id)
    }

    fn decode(from: &mut Decoder<'_>, hash_id: u32) -> Result<PieceFront> {
        let index = IndexFront::decode(from, hash_id)?;
        let list_pages = from.u32("pages of a list of hashes")?;
        let codes = from.u32("codes of a piece's leaves")?;
        if codes == 0 || codes > 1 << 16 {
            return Err(from.corrupt("codes of a piece's leaves", "1 to 65,536", codes));
        }
        let unknown = from.u32("value of unknown leaves")?;
        if !from.is_empty() {
            return Err(from.corrupt("last page of a piece's index", "its end", "more bytes"));
        }
        Ok(PieceFront { index, list_pages, codes, unknown })
    }
}

/// The answer of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The table does not have the key.
    Absent,
    /// The key is in this leaf or not in the table. If `is_split`, its entry may go on in the next leaf.
    Leaf { pointer: PagePointer, is_split: bool },
    /// The table's own index says it.
    Unknown,
}

/// The local index of a table.
#[derive(Debug)]
pub(crate) struct PieceIndex {
    index: HashIndex,
    front: PieceFront,
    /// The first unit of the list of hashes.
    list_unit: u32,
}

impl PieceIndex {
    /// An index that has just been written, from `first_unit` on.
    pub(crate) fn of_written(first_unit: u32, written: WrittenPiece) -> PieceIndex {
        let WrittenPiece { front, bounds } = written;
        let index = HashIndex::new(first_unit, &front.index, bounds);
        let list_unit = first_unit + front.index.units() as u32;
        PieceIndex { index, front, list_unit }
    }

    /// Reads the front and the bounds of the index in these units, which are in the file.
    ///
    /// # Errors
    /// `Corruption` if they are damaged, `NotResident` as [`PageFile::with_page`].
    #[cold]
    pub(crate) fn load(
        file: &Arc<PageFile>,
        units: Range<u32>,
        context: &ReadContext,
    ) -> Result<PieceIndex> {
        let pointer = PieceIndex::front_of(&units);
        let front = file.with_page(pointer, PageClass::Index, context, |payload| {
            PieceFront::of_page(file, pointer, payload)
        })??;
        let expected = front.index.units() + u64::from(front.list_pages) + 1;
        if expected != u64::from(units.end - units.start) {
            let found = units.end - units.start;
            return Err(file.corrupt(pointer, "pages of a piece's index", expected, found));
        }
        let index = HashIndex::load(file, units.start, &front.index, context)?;
        let list_unit = pointer.unit - front.list_pages;
        Ok(PieceIndex { index, front, list_unit })
    }

    /// The page of the front of an index in these units.
    pub(crate) fn front_of(units: &Range<u32>) -> PagePointer {
        PagePointer { unit: units.end.saturating_sub(1), units: 1 }
    }

    /// The number of distinct hashes of keys, from that page.
    ///
    /// # Errors
    /// `Corruption` if it is no front.
    pub(crate) fn keys_in_front(
        file: &PageFile,
        units: &Range<u32>,
        payload: &[u8],
    ) -> Result<u64> {
        let front = PieceFront::of_page(file, PieceIndex::front_of(units), payload)?;
        Ok(front.index.keys)
    }

    /// Where the key with this hash is. Reads one page through the cache. Leaves are in units below `leaf_units`.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged, `NotResident` as [`PageFile::with_page`].
    #[inline]
    pub(crate) fn find(
        &self,
        file: &Arc<PageFile>,
        hash: u64,
        leaf_units: u32,
        context: &ReadContext,
    ) -> Result<Found> {
        let Some(value) = self.index.probe(file, index_hash(hash), context)? else {
            return Ok(Found::Absent);
        };
        let PieceFront { codes, unknown, .. } = self.front;
        if value >= unknown {
            return Ok(Found::Unknown);
        }
        // A slot without a hash.
        let Some(place) = value.checked_sub(1) else { return Ok(Found::Absent) };
        let (unit, code) = (place / codes, place % codes);
        let is_split = codes > 1 && code == codes - 1;
        let is_one = is_split || planted(Bug::PieceUnitsShort);
        let units = if is_one { 1 } else { code as u16 + 1 };
        let pointer = PagePointer { unit, units };
        match u64::from(unit) + u64::from(units) <= u64::from(leaf_units) {
            true => Ok(Found::Leaf { pointer, is_split }),
            false => {
                let what = "leaf of a piece's index";
                Err(file.corrupt(pointer, what, format_args!("below {leaf_units}"), unit))
            }
        }
    }

    /// Whether it can tell that most absent keys are absent.
    pub(crate) fn has_signatures(&self) -> bool {
        self.front.index.shape.signature_bytes > 0
    }

    /// The hashes of all keys.
    pub(crate) fn hashes(&self, file: &Arc<PageFile>) -> HashListReader {
        HashListReader::new(file, self.list_unit, self.front.list_pages, self.keys())
    }

    /// Memory with which gets read no page of the index: its pages, and their bounds beside them. The list of hashes is not
    /// kept.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let index = &self.front.index;
        (index.units() * UNIT_BYTES as u64) + index.bounds_bytes()
    }

    /// The number of distinct hashes of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.front.index.keys
    }
}
