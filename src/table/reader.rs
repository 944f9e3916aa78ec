//! An open table: point reads, and the descent through the index that all other reads start with.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use super::blob::BlobFile;
use super::blob_files::BlobFiles;
use super::filter::{filter_of, piece_units_of};
use super::footer::Footer;
use super::index::child_pointer;
use super::key_list::KeyList;
use super::key_list_page::FILTER_KIND_KEYS;
use super::node::{Damage, FLAG_CONTINUES, KIND_BITS, KIND_MASK, Node, Parsed, Shape};
use super::properties::Properties;
use super::run_length::RunLength;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::prefetch::prefetch;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::cache::{
    DataFiles, FileType, PageClass, PageFile, PageKey, PageMiss, PagePointer, ReadContext, UnitRun,
    fetch_misses, read_ends, read_pages,
};
use crate::filter::BlockFilter;
use crate::perfect_hash::{Found, PieceIndex};

/// The most leaves that are looked for to see how many a pass has passed.
const LEAVES_PASSED_MAX: u32 = 16;

/// A finished table.
pub(crate) struct Table {
    pub(super) file: Arc<PageFile>,
    pub(super) footer: Footer,
    properties: Properties,
    pub(super) filter: Option<BlockFilter>,
    /// The units of the local index, if the table is a piece of a TPH.
    pub(super) piece_units: Option<Range<u32>>,
    /// The local index, once it has been asked for.
    pub(super) piece: OnceLock<PieceIndex>,
    blobs: Vec<Arc<BlobFile>>,
    /// The list of its keys, until it is taken, if one was asked for when the table was written.
    pub(super) keys: Mutex<Option<KeyList>>,
    /// The recent run length of cursors.
    pub(super) run_length: RunLength<RUN_LEAVES_MAX>,
    /// It has nothing that range deletes up to this number delete. Known of what compactions have written since the open.
    range_deletes_applied: AtomicU64,
}

/// One step of the descent through the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// The index page.
    pub(super) page: PagePointer,
    /// The child taken.
    pub(super) child: usize,
    /// The number of children.
    pub(super) children: usize,
    /// Whether the next child, a leaf, begins with the rest of an entry of the sought key.
    pub(super) is_split: bool,
}

/// What a leaf has of a key.
enum Versions {
    /// All that was asked for.
    Done,
    /// The next leaf goes on with this sequence number.
    Continue(u64),
    /// The next version is split.
    Split(SplitVersion),
}

/// A version whose value goes on in the next leaf.
struct SplitVersion {
    seqno: Seqno,
    kind: EntryKind,
    value: Vec<u8>,
}

/// Of longer runs, so many leaves count.
const RUN_LEAVES_MAX: u32 = 32;

/// The leaf after a leaf with a split entry: it begins with the rest, and has one unit.
pub(crate) fn rest_page(leaf: PagePointer) -> PagePointer {
    PagePointer { unit: leaf.unit.saturating_add(u32::from(leaf.units)), units: 1 }
}

impl Table {
    /// Opens one table.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn open(
        files: &Arc<DataFiles>,
        blobs: &Arc<BlobFiles>,
        id: FileId,
    ) -> Result<Arc<Table>> {
        let mut tables = Table::open_all(files, blobs, &[id])?;
        Ok(tables.swap_remove(0))
    }

    /// Opens tables and returns them in the same order. Reads the ends of all files together, which
    /// have the footers and usually the properties; then the other properties, and the footers of
    /// blob files that `blobs` has not opened.
    pub(crate) fn open_all(
        files: &Arc<DataFiles>,
        blobs: &Arc<BlobFiles>,
        ids: &[FileId],
    ) -> Result<Vec<Arc<Table>>> {
        let opened: Vec<Arc<PageFile>> = (ids.iter())
            .map(|&id| PageFile::open(files, id, FileType::Table))
            .collect::<Result<_>>()?;
        let mut found = Vec::with_capacity(opened.len());
        read_ends(&opened, 2, |file, end| {
            let offset = file.last_unit().offset();
            let footer = Footer::decode(&end.last_page()?, &file.path(), offset)?;
            found.push((footer, end.page(footer.properties)?));
            Ok(())
        })?;
        let elsewhere: Vec<_> = (opened.iter().zip(&found))
            .filter(|(_, (_, payload))| payload.is_none())
            .map(|(file, (footer, _))| (&**file, footer.properties))
            .collect();
        let mut elsewhere = read_pages(&elsewhere)?.into_iter();
        let mut tables = Vec::with_capacity(opened.len());
        for (file, (footer, payload)) in opened.iter().zip(found) {
            let offset = footer.properties.offset();
            let payload = payload.or_else(|| elsewhere.next()).unwrap_or_default();
            let properties = Properties::decode(&payload, &file.path(), offset)?;
            let blobs =
                properties.blobs.iter().map(|blob| blobs.open(blob.file)).collect::<Result<_>>()?;
            tables.push(Table::finished(Arc::clone(file), footer, properties, blobs));
        }
        Ok(tables)
    }

    pub(super) fn finished(
        file: Arc<PageFile>,
        footer: Footer,
        properties: Properties,
        blobs: Vec<Arc<BlobFile>>,
    ) -> Arc<Table> {
        let hash_id = file.files().hasher.id();
        Arc::new(Table {
            file,
            footer,
            properties,
            filter: filter_of(&footer, hash_id),
            piece_units: piece_units_of(&footer, hash_id),
            piece: OnceLock::new(),
            blobs,
            keys: Mutex::default(),
            run_length: RunLength::default(),
            range_deletes_applied: AtomicU64::new(0),
        })
    }

    /// The list of its keys, once, if one was asked for when the table was written.
    pub(crate) fn take_keys(&self) -> Option<KeyList> {
        self.keys.lock().take()
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        #[cfg(test)]
        crate::base::visits::note();
        self.file.id()
    }

    /// It has nothing that range deletes up to this number delete.
    pub(crate) fn range_deletes_applied(&self) -> Seqno {
        Seqno(self.range_deletes_applied.load(Ordering::Relaxed))
    }

    /// A compaction has written it without what range deletes up to this number delete.
    pub(crate) fn note_range_deletes_applied(&self, upto: Seqno) {
        self.range_deletes_applied.fetch_max(upto.0, Ordering::Relaxed);
    }

    /// The table's totals.
    pub(crate) fn properties(&self) -> &Properties {
        #[cfg(test)]
        crate::base::visits::note();
        &self.properties
    }

    /// Of the file, what a list of keys takes.
    pub(crate) fn key_list_bytes(&self) -> u64 {
        let section = self.footer.filter;
        let units = if section.kind == FILTER_KIND_KEYS { section.units } else { 0 };
        u64::from(units) * UNIT_BYTES as u64
    }

    /// Length of the file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// The smallest key.
    pub(crate) fn first_key(&self) -> &[u8] {
        &self.properties.first_key
    }

    /// The largest key.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.properties.last_key
    }

    /// The pages.
    pub(crate) fn pages(&self) -> &Arc<PageFile> {
        &self.file
    }

    /// The blob files that the table's entries point into.
    pub(crate) fn blobs(&self) -> &[Arc<BlobFile>] {
        &self.blobs
    }

    pub(super) fn damaged(&self, page: PagePointer, damage: Damage) -> Error {
        self.file.corrupt(page, damage, "a well-formed page", "bytes that cannot be one")
    }

    /// As [`Table::get`], for a key with a known hash: by the local index, if the table has one. Returns false if that knew
    /// that the key is absent.
    #[inline]
    pub(crate) fn get_hashed(
        &self,
        key: &[u8],
        hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<bool> {
        let known = match self.piece(context)? {
            Some(piece) => match piece.find(&self.file, hash, self.footer.leaf_units, context)? {
                Found::Absent => return Ok(false),
                Found::Leaf { pointer, is_split } => Some((pointer, is_split)),
                Found::Unknown => None,
            },
            None => None,
        };
        // An older snapshot may need a version in a later leaf than the newest.
        let is_old = snapshot < self.properties.seqno_max && !planted(Bug::PieceForAnySnapshot);
        self.get_from(key, known.filter(|_| !is_old), snapshot, context, f)?;
        Ok(true)
    }

    /// Calls `f` with the versions of `key` up to `snapshot`, newest first, until it breaks.
    pub(crate) fn get(
        &self,
        key: &[u8],
        snapshot: Seqno,
        context: &ReadContext,
        f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.get_from(key, None, snapshot, context, f)
    }

    /// As [`Table::get`], for a key whose newest version is known to be in a leaf, and whether it goes on in the next.
    pub(crate) fn get_at(
        &self,
        key: &[u8],
        leaf: Option<(PagePointer, bool)>,
        snapshot: Seqno,
        context: &ReadContext,
        f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        // An older snapshot may need a version in a later leaf than the newest.
        let is_old = snapshot < self.properties.seqno_max;
        self.get_from(key, leaf.filter(|_| !is_old), snapshot, context, f)
    }

    /// The same, if the leaf is known in which the versions begin, and whether the next one is needed.
    #[inline]
    fn get_from(
        &self,
        key: &[u8],
        mut known: Option<(PagePointer, bool)>,
        snapshot: Seqno,
        context: &ReadContext,
        mut f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut newest = snapshot.0.min(Seqno::MAX.0);
        loop {
            let mut is_split = false;
            let leaf = match known.take() {
                Some((leaf, may_be_split)) => {
                    is_split = may_be_split;
                    leaf
                }
                None => self.find_leaf(key, newest, context, |step| is_split = step.is_split)?,
            };
            if is_split {
                self.fetch_split(leaf, context)?;
            }
            let next = self
                .file
                .with_page(leaf, PageClass::Leaf, context, |payload| {
                    leaf_versions(payload, key, newest, &mut f)
                })?
                .map_err(|damage| self.damaged(leaf, damage))?;
            let split = match next {
                Versions::Done => return Ok(()),
                Versions::Continue(seqno) => {
                    newest = seqno;
                    continue;
                }
                Versions::Split(split) => split,
            };
            let SplitVersion { seqno, kind, mut value } = split;
            let rest = rest_page(leaf);
            self.file
                .with_page(rest, PageClass::Leaf, context, |payload| {
                    append_rest(payload, key, seqno, &mut value)
                })?
                .map_err(|damage| self.damaged(rest, damage))?;
            if f(EntryRef { key, seqno, kind, value: &value }).is_break() {
                return Ok(());
            }
            match seqno.0.checked_sub(1) {
                Some(older) if older < newest => newest = older,
                _ => return Err(self.damaged(leaf, "split value")),
            }
        }
    }

    /// Reads the two leaves of a split entry with one request, if neither is cached.
    #[cold]
    fn fetch_split(&self, leaf: PagePointer, context: &ReadContext) -> Result<()> {
        let pages = [leaf, rest_page(leaf)];
        if pages.iter().any(|&page| self.is_cached(page)) {
            return Ok(());
        }
        let file = || Arc::clone(&self.file);
        let misses =
            pages.map(|pointer| PageMiss { file: file(), pointer, class: PageClass::Leaf });
        if let Some(collected) = &context.misses {
            collected.borrow_mut().extend(misses);
            return Err(Error::NotResident);
        }
        // Damage is reported by the read that needs the page.
        if let Ok(read) = fetch_misses(misses.into()) {
            context.pages_read.set(context.pages_read.get() + read);
        }
        Ok(())
    }

    pub(crate) fn is_cached(&self, page: PagePointer) -> bool {
        let key = PageKey { file: self.file.id(), unit: page.unit };
        self.file.files().cache.contains(key)
    }

    /// Whether one of the next leaves is cached: a scan would read it again.
    pub(crate) fn is_cached_behind(&self, leaf: PagePointer) -> bool {
        let step = u32::from(leaf.units).max(1);
        let units = (1..=LEAVES_PASSED_MAX).filter_map(|count| leaf.unit.checked_add(count * step));
        let mut leaves = units.map(|unit| PagePointer { unit, ..leaf });
        leaves.any(|leaf| self.is_cached(leaf))
    }

    /// The units of a leaf, and of those that a pass over the table will probably need next and that are not cached: twice as
    /// many as it has passed, by what of them is cached, and `units_max` at most. If not `forward`, those before the leaf.
    pub(crate) fn leaves_ahead(&self, leaf: PagePointer, forward: bool, units_max: u32) -> UnitRun {
        // Most leaves are as long as this one.
        let step = u32::from(leaf.units).max(1);
        let at = |count: u32, forward: bool| match forward {
            true => leaf.unit.checked_add(count * step).filter(|at| *at < self.footer.leaf_units),
            false => leaf.unit.checked_sub(count * step),
        };
        let is_cached = |count: &u32, forward: bool| {
            at(*count, forward).map(|unit| self.is_cached(PagePointer { unit, ..leaf }))
        };
        let passed = (1..=LEAVES_PASSED_MAX).take_while(|it| is_cached(it, !forward) == Some(true));
        let wanted = (2 * passed.count() as u32).min(units_max / step);
        let ahead = (1..=wanted).take_while(|it| is_cached(it, forward) == Some(false)).count();
        let (ahead, end) = (ahead as u32 * step, leaf.unit.saturating_add(step));
        let units = match forward {
            true => leaf.unit..end.saturating_add(ahead).min(self.footer.leaf_units).max(end),
            false => leaf.unit.saturating_sub(ahead)..end,
        };
        UnitRun { file: Arc::clone(&self.file), units }
    }

    /// Returns the leaf with the first entry at or after the position given by `key` and
    /// `threshold` (see [`Node::search`]), unless it is the first entry of the next leaf.
    pub(super) fn find_leaf(
        &self,
        key: &[u8],
        threshold: u64,
        context: &ReadContext,
        mut visit: impl FnMut(Step),
    ) -> Result<PagePointer> {
        let mut page = self.footer.root;
        for level in (1..=self.footer.height).rev() {
            let (step, pointer) = self.with_index(page, level, context, |node| {
                let child = node.search(key, threshold)?.saturating_sub(1);
                let is_split = level == 1 && node.begins_with_rest(child + 1, key)?;
                let step = Step { page, child, children: node.shape.entries, is_split };
                Ok((step, child_pointer(node, child)?))
            })?;
            visit(step);
            page = pointer;
        }
        Ok(page)
    }

    /// Calls `f` with an index page.
    #[inline]
    pub(super) fn with_index<R>(
        &self,
        page: PagePointer,
        level: u8,
        context: &ReadContext,
        f: impl FnOnce(&Node<'_>) -> Parsed<R>,
    ) -> Result<R> {
        self.file
            .with_page(page, PageClass::Index, context, |payload| {
                prefetch_front(payload);
                let shape = Shape::parse(payload, level)?;
                f(&Node { bytes: payload, shape: &shape })
            })?
            .map_err(|damage| self.damaged(page, damage))
    }
}

/// Prefetches a node's header, prefix and heads: a search would wait for their cache lines one by
/// one.
#[inline]
fn prefetch_front(payload: &[u8]) {
    for line in payload.chunks(64).take(FRONT_LINES) {
        prefetch(line.as_ptr());
    }
}

/// The number of cache lines prefetched at once: the heads of a page of small entries.
const FRONT_LINES: usize = 8;

/// The entry kind in a meta number.
#[inline]
pub(super) fn kind_of(meta: u64) -> Parsed<EntryKind> {
    match EntryKind::from_tag((meta & KIND_MASK) as u8) {
        Some(EntryKind::RangeDelete) => Err("entry kind (range deletes are not read yet)"),
        Some(kind) => Ok(kind),
        None => Err("entry kind"),
    }
}

/// Returns an error for a blob entry whose value is not a pointer. A later reader of the value
/// could not name the page.
#[inline]
pub(super) fn check_pointer(kind: EntryKind, value: &[u8]) -> Parsed<()> {
    match kind.is_blob() && super::BlobPointer::decode(value).is_none() {
        true => Err("blob pointer"),
        false => Ok(()),
    }
}

/// Appends the rest of a version's value, with which this leaf begins.
fn append_rest(payload: &[u8], key: &[u8], seqno: Seqno, value: &mut Vec<u8>) -> Parsed<()> {
    let shape = Shape::parse(payload, 0)?;
    let rest = Node { bytes: payload, shape: &shape }.rest_of(key, seqno)?;
    if !planted(Bug::SplitValueCut) {
        value.extend_from_slice(rest);
    }
    Ok(())
}

/// Calls `f` with the versions of `key` in this leaf.
#[inline]
fn leaf_versions(
    payload: &[u8],
    key: &[u8],
    newest: u64,
    f: &mut impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
) -> Parsed<Versions> {
    prefetch_front(payload);
    let shape = Shape::parse(payload, 0)?;
    let node = Node { bytes: payload, shape: &shape };
    let missed = usize::from(planted(Bug::LeafLastMissed));
    for i in node.search(key, newest + 1)?.max(shape.first())..shape.entries - missed {
        if !node.key_is(i, key)? {
            return Ok(Versions::Done);
        }
        let meta = node.meta(i);
        let (seqno, kind, value) = (Seqno(meta >> KIND_BITS), kind_of(meta)?, node.value(i)?);
        if shape.is_split(i) {
            let (.., end) = shape.body(payload, i)?;
            return Ok(Versions::Split(split_version(seqno, kind, value, end == payload.len())?));
        }
        check_pointer(kind, value)?;
        if f(EntryRef { key, seqno, kind, value }).is_break() {
            return Ok(Versions::Done);
        }
    }
    let last = shape.entries - 1;
    if shape.flags & FLAG_CONTINUES == 0 || !node.key_is(last, key)? {
        return Ok(Versions::Done);
    }
    match (node.meta(last) >> KIND_BITS).checked_sub(1) {
        Some(next) if next < newest => Ok(Versions::Continue(next)),
        _ => Err("leaf continues flag"),
    }
}

#[cold]
fn split_version(
    seqno: Seqno,
    kind: EntryKind,
    value: &[u8],
    is_at_end: bool,
) -> Parsed<SplitVersion> {
    match is_at_end && !kind.is_blob() {
        true => Ok(SplitVersion { seqno, kind, value: value.to_vec() }),
        false => Err("split value"),
    }
}
