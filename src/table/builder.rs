//! Writes a table from sorted entries.
//!
//! Invariants:
//! 1. Entries arrive strictly in order. This is asserted in release builds too, and checked again
//!    by [`Table::check`](super::Table::check).
//! 2. A leaf uses one unit (four before compression). An entry that does not fit is split, if the table is not
//!    compressed and two leaves can hold it: its value goes on in the next leaf. Otherwise the leaf grows to at most
//!    eight units if closing it would waste more than a quarter. A larger entry has its own page.
//! 3. A builder that is dropped removes its file.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blob_files::BlobFiles;
use super::blob_pointer::BlobPointer;
use super::footer::{FilterSection, Footer};
use super::index::{LevelBuilder, PLAIN_SEPARATOR, Subtree};
use super::key_list::KeyList;
use super::key_list_page::{FILTER_KIND_KEYS, file_bytes, pages_of};
use super::node::{FLAG_CONTINUES, FLAG_SPLIT, KIND_BITS, KIND_MASK, REST_TAG};
use super::node_builder::{Measure, NodeBuilder, common_prefix};
use super::page_kind;
use super::properties::{BlobReference, Origin, Properties};
use super::reader::Table;
use super::sample::{KeySample, KeySampler, SampleLimit};
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::limits::{KEY_BYTES_MAX, UNIT_BYTES, VALUE_BYTES_MAX};
use crate::base::planted::{Bug, planted};
use crate::cache::{
    Compression, DataFiles, FileType, PAGE_HEADER_BYTES, PageClass, PageFileWriter, PagePointer,
};
use crate::filter::{BlockFilterBuilder, FILTER_KIND_BLOCKS};
use crate::perfect_hash::{Construction, FILTER_KIND_PIECE, PageSink, PieceBuilder, PieceIndex};

/// Units of a leaf before compression, if it is compressed.
const COMPRESSED_LEAF_UNITS: usize = 4;
/// The smallest part of a value that is split off.
const PART_BYTES_MIN: usize = 128;
/// The smallest part relative to the key, which splitting writes twice more: before the rest and into the index.
const PART_BYTES_PER_KEY_BYTE: usize = 4;
/// The largest size of a leaf with several entries, in units.
const LEAF_UNITS_MAX: usize = 8;

/// What a table's file has by which keys are found or excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableFilter {
    /// Nothing.
    None,
    /// A filter in blocks.
    Blocks,
    /// The local index of a piece of a TPH, with so many bytes of a signature for each key.
    Piece(Construction, u8),
    /// None: an index outside the table has its keys. The finished table has a list of them ([`Table::take_keys`]), and its
    /// file has it too, if that takes at most this percentage of what leaves take.
    Listed(u8),
}

impl TableFilter {
    /// Bytes that it takes for a key, about.
    pub(crate) fn entry_bytes(self) -> usize {
        match self {
            TableFilter::None => 0,
            TableFilter::Listed(_) => 0,
            TableFilter::Blocks => 2,
            TableFilter::Piece(..) => 8,
        }
    }

    /// A filter in blocks if `has_filter`.
    pub(crate) fn blocks(has_filter: bool) -> TableFilter {
        if has_filter { TableFilter::Blocks } else { TableFilter::None }
    }
}

/// Options of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableOptions {
    /// Compression of the leaves; nothing else is compressed.
    pub(crate) compression: Compression,
    /// Stored in the properties: a number that increases with every table.
    pub(crate) creation: u64,
    /// The table's filter.
    pub(crate) filter: TableFilter,
    /// The number of keys in the table's sample.
    pub(crate) sample_limit: SampleLimit,
    /// The origin of the table.
    pub(crate) origin: Option<Arc<Origin>>,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions {
            compression: Compression::None,
            creation: 0,
            filter: TableFilter::None,
            sample_limit: SampleLimit::keys(256),
            origin: None,
        }
    }
}

/// Builds a table.
pub(crate) struct TableBuilder {
    writer: PageFileWriter,
    blobs: Arc<BlobFiles>,
    properties: Properties,
    origin: Option<Arc<Origin>>,
    blob_references: BTreeMap<FileId, BlobReference>,
    leaf: NodeBuilder,
    values: Vec<u8>,
    value_ends: Vec<usize>,
    /// The largest allowed size of the open leaf.
    leaf_bytes_max: usize,
    /// The future separator and counts of the open leaf.
    subtree: Subtree,
    index: LevelBuilder,
    only_leaf: Option<PagePointer>,
    leaf_units: u32,
    filter: FilterSection,
    /// The last entry of the open leaf is split.
    is_split: bool,
    /// An entry of the table is split.
    has_splits: bool,
    /// The keys, if the table is to have a filter.
    filter_keys: Option<BlockFilterBuilder>,
    /// The keys and leaves, if it is to be a piece.
    piece: Option<PieceBuilder>,
    /// The keys and leaves, if they are to be listed.
    list: Option<KeyList>,
    /// See [`TableFilter::Listed`].
    list_percent_max: usize,
    sampler: KeySampler,
    /// The last key of the closed leaf, while the open leaf is empty.
    last_key: Vec<u8>,
    page: Vec<u8>,
}

fn capacity(units: usize) -> usize {
    units * UNIT_BYTES - PAGE_HEADER_BYTES
}

impl TableBuilder {
    /// Creates a table file.
    pub(crate) fn new(
        files: &Arc<DataFiles>,
        blobs: &Arc<BlobFiles>,
        options: TableOptions,
    ) -> Result<TableBuilder> {
        Ok(TableBuilder {
            writer: PageFileWriter::create(files, FileType::Table)?,
            blobs: Arc::clone(blobs),
            properties: Properties {
                first_key: Vec::new(),
                last_key: Vec::new(),
                puts: 0,
                deletes: 0,
                merges: 0,
                blob_puts: 0,
                blob_merges: 0,
                key_bytes: 0,
                value_bytes: 0,
                seqno_min: Seqno::MAX,
                seqno_max: Seqno(0),
                compression: options.compression,
                leaf_pages: 0,
                index_pages: 0,
                creation: options.creation,
                blobs: Vec::new(),
                sample: KeySample::default(),
            },
            origin: options.origin,
            blob_references: BTreeMap::new(),
            leaf: NodeBuilder::new(),
            values: Vec::new(),
            value_ends: Vec::new(),
            leaf_bytes_max: 0,
            subtree: Subtree {
                separator: Vec::new(),
                separator_meta: PLAIN_SEPARATOR,
                tuples: 0,
                bytes: 0,
            },
            index: LevelBuilder::new(1),
            only_leaf: None,
            leaf_units: 0,
            filter: FilterSection::default(),
            is_split: false,
            has_splits: false,
            filter_keys: (options.filter == TableFilter::Blocks).then(BlockFilterBuilder::default),
            piece: match options.filter {
                TableFilter::Piece(construction, signature_bytes) => {
                    Some(PieceBuilder::new(construction, signature_bytes))
                }
                TableFilter::None | TableFilter::Blocks => None,
                TableFilter::Listed(_) => None,
            },
            list_percent_max: match options.filter {
                TableFilter::Listed(percent) => usize::from(percent),
                _ => 0,
            },
            list: matches!(options.filter, TableFilter::Listed(_)).then(KeyList::default),
            sampler: KeySampler::new(options.sample_limit),
            last_key: Vec::new(),
            page: Vec::new(),
        })
    }

    /// Returns true if nothing has been added.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaf.is_empty() && self.properties.leaf_pages == 0
    }

    /// The key of the last entry.
    #[inline]
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.leaf.last().map(|(key, _)| key)
    }

    /// Memory of the list of keys for the filter or the local index, until the table is finished: in whole pages, up to ten
    /// bytes per key, and twenty for a local index.
    pub(crate) fn list_bytes(&self) -> usize {
        let filter = self.filter_keys.as_ref().map_or(0, BlockFilterBuilder::memory_bytes);
        let filter = filter + self.list.as_ref().map_or(0, KeyList::memory_bytes);
        filter + self.piece.as_ref().map_or(0, PieceBuilder::memory_bytes)
    }

    /// Appends an entry. After an error the builder can only be dropped.
    ///
    /// # Panics
    /// If the entry is out of order: continuing would write a table that gives wrong answers.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        seqno: Seqno,
        kind: EntryKind,
        value: &[u8],
    ) -> Result<()> {
        let hash = self.writer.files().hasher.hash(key);
        self.add_hashed(hash, key, seqno, kind, value)
    }

    /// As [`TableBuilder::add`], for a key with a known hash.
    pub(crate) fn add_hashed(
        &mut self,
        hash: u64,
        key: &[u8],
        seqno: Seqno,
        kind: EntryKind,
        value: &[u8],
    ) -> Result<()> {
        assert!(seqno <= Seqno::MAX, "sequence number {seqno} is out of range");
        assert!(self.filter.pages == 0, "entries come before the filter");
        if key.len() > KEY_BYTES_MAX || value.len() as u64 > VALUE_BYTES_MAX {
            return Err(Error::invalid("a key has at most 64 KiB, a value less than 4 GiB"));
        }
        let blob = match kind {
            EntryKind::RangeDelete => {
                return Err(Error::invalid("range deletes are not written by this version"));
            }
            EntryKind::PutBlob | EntryKind::MergeBlob => Some(BlobPointer::of_entry(value)?),
            EntryKind::Put | EntryKind::Delete | EntryKind::Merge => None,
        };
        let meta = seqno.0 << KIND_BITS | kind as u64;
        let (mut shared, mut is_new_key) = (0, true);
        if let Some((last, last_meta)) = self.leaf.last() {
            shared = common_prefix(last, key);
            let ordered = match (last.get(shared), key.get(shared)) {
                (Some(before), Some(after)) => before < after,
                (None, Some(_)) => true,
                (None, None) => last_meta >> KIND_BITS > seqno.0,
                (Some(_), None) => false,
            };
            assert!(ordered, "entries must be added by key ascending, then seqno descending");
            // In this order, only the key itself begins with all of it.
            is_new_key = shared < key.len();
        } else {
            self.properties.first_key = key.to_vec();
            self.subtree.separator = key.to_vec();
        }
        let is_split = self.append(key, shared, meta, value)?;
        let (bytes, blob_bytes) = ((key.len(), value.len()), blob.map_or(0, |b| b.length));
        if is_new_key {
            if let Some(keys) = &mut self.filter_keys {
                keys.add(hash);
            }
            if let Some(piece) = &mut self.piece {
                let before = is_split || planted(Bug::PieceLeafBefore);
                let leaf = self.properties.leaf_pages.saturating_sub(u32::from(before));
                piece.add_key(hash, leaf, is_split);
            }
            if let Some(list) = &mut self.list {
                let leaf = self.properties.leaf_pages.saturating_sub(u32::from(is_split));
                list.add_key(key, (leaf, is_split), seqno, kind);
            }
            self.sampler.add_key(hash, self.properties.entries(), bytes, kind, blob_bytes);
        } else {
            if let Some(list) = &mut self.list {
                list.add_version(seqno, kind);
            }
            self.sampler.add_version(bytes, kind, blob_bytes);
        }
        self.note(seqno, kind, blob);
        self.properties.key_bytes += key.len() as u64;
        self.properties.value_bytes += value.len() as u64;
        Ok(())
    }

    /// Appends an entry to the open leaf. If it does not fit, it is split, or the leaf grows or is closed. The key
    /// shares `shared` bytes with the leaf's last key. Returns true if it was split: then it begins in the leaf before the
    /// open one.
    fn append(&mut self, key: &[u8], shared: usize, meta: u64, value: &[u8]) -> Result<bool> {
        if self.leaf.is_empty() {
            let units = if self.is_compressed() { COMPRESSED_LEAF_UNITS } else { 1 };
            self.leaf_bytes_max = capacity(units);
        }
        let grown = self.leaf.measure.with(key.len(), shared, meta, value.len());
        let bytes = grown.node_bytes(0);
        if bytes > self.leaf_bytes_max {
            if let Some(part) = self.part_that_fits(key, shared, meta, value) {
                self.count(key, value);
                self.append_split(key, shared, meta, value.split_at(part))?;
                return Ok(true);
            }
            if !self.leaf.is_empty() && !self.may_grow(bytes) {
                self.close_leaf(Some((key, shared)))?;
                return self.append(key, 0, meta, value);
            }
            self.leaf_bytes_max = capacity((bytes + PAGE_HEADER_BYTES).div_ceil(UNIT_BYTES));
        }
        self.count(key, value);
        self.push(key, meta, value, grown);
        if self.leaf_bytes_max > capacity(LEAF_UNITS_MAX) {
            // An entry this large has a page of its own.
            self.leaf_bytes_max = 0;
        }
        Ok(false)
    }

    /// Counts an entry that begins in the open leaf.
    fn count(&mut self, key: &[u8], value: &[u8]) {
        self.subtree.tuples += 1;
        self.subtree.bytes += (key.len() + value.len()) as u64;
    }

    fn push(&mut self, key: &[u8], meta: u64, value: &[u8], grown: Measure) {
        self.leaf.push(key, meta, grown);
        self.values.extend_from_slice(value);
        self.value_ends.push(self.values.len());
    }

    fn is_compressed(&self) -> bool {
        self.properties.compression != Compression::None
    }

    /// Returns true if the open leaf should grow to `bytes` instead of being closed.
    fn may_grow(&self, bytes: usize) -> bool {
        let now = self.leaf.measure.node_bytes(0);
        let is_wasteful = now * 4 < self.leaf_bytes_max * 3;
        now > 0 && is_wasteful && bytes <= capacity(LEAF_UNITS_MAX) && !self.leaf.begins_with_rest()
    }

    /// How many bytes of a value still fit into the leaf, if the entry should be split there. The rest, and the key once
    /// more, must fit into the next leaf, and the bytes gained must be worth the second key.
    fn part_that_fits(&self, key: &[u8], shared: usize, meta: u64, value: &[u8]) -> Option<usize> {
        let is_one_unit = self.leaf_bytes_max == capacity(1) && !self.is_compressed();
        // The separator of the next leaf has a smaller sequence number.
        if !is_one_unit || meta >> KIND_BITS == 0 || value.is_empty() {
            return None;
        }
        // Two bytes for each end: bodies may so far have had one length.
        let entry = self.leaf.measure.with(key.len(), shared, meta, 0);
        let used = entry.node_bytes(0) + 2 * entry.entries;
        let part = capacity(1).checked_sub(used)?.min(value.len() - 1);
        let rest = Measure::EMPTY.with(key.len(), 0, meta, value.len() - part);
        let is_worth = part >= PART_BYTES_MIN.max(PART_BYTES_PER_KEY_BYTE * key.len());
        (is_worth && rest.node_bytes(0) <= capacity(1)).then_some(part)
    }

    /// Appends an entry whose value goes on in the next leaf.
    fn append_split(
        &mut self,
        key: &[u8],
        shared: usize,
        meta: u64,
        (part, rest): (&[u8], &[u8]),
    ) -> Result<()> {
        let grown = self.leaf.measure.with(key.len(), shared, meta, part.len());
        assert!(grown.node_bytes(0) <= capacity(1), "a split entry's part fits into its leaf");
        self.push(key, meta, part, grown);
        self.is_split = true;
        self.close_leaf(Some((key, key.len())))?;
        let rest_meta = meta & !KIND_MASK | REST_TAG;
        let grown = self.leaf.measure.with(key.len(), 0, rest_meta, rest.len());
        self.push(key, rest_meta, rest, grown);
        Ok(())
    }

    fn note(&mut self, seqno: Seqno, kind: EntryKind, blob: Option<BlobPointer>) {
        let properties = &mut self.properties;
        match kind {
            EntryKind::Put => properties.puts += 1,
            EntryKind::Delete if planted(Bug::TableDeletesUncounted) => {}
            EntryKind::Delete => properties.deletes += 1,
            EntryKind::Merge => properties.merges += 1,
            EntryKind::PutBlob => properties.blob_puts += 1,
            EntryKind::MergeBlob => properties.blob_merges += 1,
            EntryKind::RangeDelete => unreachable!("refused in add"),
        }
        let blob =
            blob.filter(|_| kind == EntryKind::PutBlob || !planted(Bug::MergeBlobNotReferred));
        if let Some(pointer) = blob {
            let fresh = BlobReference { file: pointer.file, values: 0, bytes: 0 };
            let reference = self.blob_references.entry(pointer.file).or_insert(fresh);
            reference.values += 1;
            reference.bytes += u64::from(pointer.length);
        }
        properties.seqno_min = properties.seqno_min.min(seqno);
        properties.seqno_max = properties.seqno_max.max(seqno);
    }

    /// Writes the open leaf. `next` is the first key of the next leaf, and the number of bytes that
    /// it shares with this leaf's last key.
    fn close_leaf(&mut self, next: Option<(&[u8], usize)>) -> Result<()> {
        let Some((last, last_meta)) = self.leaf.last() else { return Ok(()) };
        let continues = matches!(next, Some((key, shared)) if shared == key.len());
        let is_split = std::mem::take(&mut self.is_split);
        let flags =
            if continues { FLAG_CONTINUES } else { 0 } | if is_split { FLAG_SPLIT } else { 0 };
        self.last_key.clear();
        self.last_key.extend_from_slice(last);
        self.leaf.encode(0, flags, &[], &self.values, &self.value_ends, &mut self.page);
        let compression = self.properties.compression;
        let pointer = self.writer.append(page_kind::LEAF, &self.page, compression)?;
        self.index.add(&self.subtree, pointer);
        if let Some(piece) = &mut self.piece {
            piece.add_leaf(pointer);
        }
        if let Some(list) = &mut self.list {
            list.add_leaf(pointer);
        }
        self.only_leaf = Some(pointer).filter(|_| self.properties.leaf_pages == 0);
        self.properties.leaf_pages += 1;
        self.leaf_units = pointer.unit + u32::from(pointer.units);
        if let Some((key, shared)) = next {
            // The shortest bytes above the last key and not above the next.
            self.subtree.separator.clear();
            let more = usize::from(!planted(Bug::SeparatorTooShort));
            self.subtree.separator.extend_from_slice(&key[..(shared + more).min(key.len())]);
            self.subtree.separator_meta = match (continues, last_meta >> KIND_BITS) {
                (true, last_seqno) => {
                    (last_seqno - 1) << KIND_BITS | if is_split { REST_TAG } else { 0 }
                }
                (false, _) => PLAIN_SEPARATOR,
            };
            self.has_splits |= is_split;
        }
        (self.subtree.tuples, self.subtree.bytes) = (0, 0);
        self.leaf.clear();
        self.values.clear();
        self.value_ends.clear();
        Ok(())
    }

    /// Appends a page of the filter, after the last entry. `kind` (not 0) identifies the format of
    /// its pages and is the same for all of them. If `is_probed`, lookups read it.
    pub(super) fn append_filter_page(
        &mut self,
        kind: u8,
        payload: &[u8],
        is_probed: bool,
    ) -> Result<PagePointer> {
        assert!(kind != 0 && (self.filter.pages == 0 || self.filter.kind == kind));
        self.close_leaf(None)?;
        let kind_of_page = page_kind::FILTER;
        let pointer = match is_probed {
            true => self.writer.append_cached(kind_of_page, payload, PageClass::Filter)?,
            false => self.writer.append(kind_of_page, payload, Compression::None)?,
        };
        if self.filter.pages == 0 {
            self.filter.kind = kind;
            self.filter.first_unit = pointer.unit;
            self.filter.hash_id = self.writer.files().hasher.id();
        }
        self.filter.pages += 1;
        self.filter.units += u32::from(pointer.units);
        Ok(pointer)
    }

    /// What the list of keys will take in the file, after the last entry; 0 if it will not be there.
    pub(crate) fn key_list_bytes(&mut self) -> Result<usize> {
        self.close_leaf(None)?;
        let bytes_max = self.leaf_units as usize * UNIT_BYTES * self.list_percent_max / 100;
        let list = self.list.as_ref();
        Ok(list.and_then(|it| file_bytes(it, self.properties.seqno_min, bytes_max)).unwrap_or(0))
    }

    /// The list of keys will not be in the file.
    pub(crate) fn leave_key_list_out(&mut self) {
        self.list_percent_max = 0;
    }

    /// Writes the rest, syncs the file (its name is not durable yet) and opens the table. Blob
    /// files that it refers to must have been finished.
    pub(crate) fn finish(mut self) -> Result<Arc<Table>> {
        if self.is_empty() {
            return Err(Error::invalid("a table needs at least one entry"));
        }
        self.close_leaf(None)?;
        if let Some(keys) = self.filter_keys.take() {
            keys.write(|page| self.append_filter_page(FILTER_KIND_BLOCKS, page, true).map(|_| ()))?;
        }
        let mut piece_index = None;
        if let Some(piece) = self.piece.take() {
            let hash_id = self.writer.files().hasher.id();
            piece_index = Some(piece.write(hash_id, &mut self)?);
        }
        if self.key_list_bytes()? > 0
            && let Some(list) = self.list.take()
        {
            for page in pages_of(&list, self.properties.seqno_min) {
                self.append_filter_page(FILTER_KIND_KEYS, &page, false)?;
            }
            self.list = Some(list);
        }
        self.list.iter_mut().for_each(KeyList::forget_tombstones);
        let (mut height, mut level) = (0, self.index);
        let root = match self.only_leaf {
            Some(leaf) => leaf,
            None => loop {
                height += 1;
                let mut above = LevelBuilder::new(height + 1);
                let pages = level.finish();
                let count = pages.len();
                let mut root = None;
                for (subtree, payload) in pages {
                    let pointer =
                        self.writer.append_cached(page_kind::INDEX, &payload, PageClass::Index)?;
                    above.add(&subtree, pointer);
                    self.properties.index_pages += 1;
                    root = Some(pointer);
                }
                match root {
                    Some(root) if count == 1 => break root,
                    _ => level = above,
                }
            },
        };
        self.properties.last_key = self.last_key;
        if planted(Bug::TableLastKeyShort) {
            self.properties.last_key.pop();
        }
        self.properties.blobs = self.blob_references.into_values().collect();
        self.properties.sample = self.sampler.finish(self.properties.entry_bytes());
        let blobs: Result<Vec<_>> =
            self.properties.blobs.iter().map(|blob| self.blobs.open(blob.file)).collect();
        let mut encoded = self.properties.encode();
        if let Some(origin) = &self.origin {
            origin.encode(&mut encoded);
        }
        let properties = self.writer.append(page_kind::PROPERTIES, &encoded, Compression::None)?;
        let leaf_units = self.leaf_units;
        let footer = Footer {
            height,
            root,
            properties,
            leaf_units,
            filter: self.filter,
            has_splits: self.has_splits,
        };
        self.writer.append(page_kind::FOOTER, &footer.encode(), Compression::None)?;
        let blobs = blobs?;
        let first_unit = footer.filter.first_unit;
        let table = Table::finished(self.writer.finish()?, footer, self.properties, blobs);
        if let Some(written) = piece_index {
            let _ = table.piece.set(PieceIndex::of_written(first_unit, written));
        }
        {
            *table.keys.lock() = self.list;
        }
        Ok(table)
    }
}

/// The pages of a piece's index are those of the table's filter.
impl PageSink for TableBuilder {
    fn append(&mut self, payload: &[u8], is_probed: bool) -> Result<()> {
        self.append_filter_page(FILTER_KIND_PIECE, payload, is_probed).map(|_| ())
    }
}
