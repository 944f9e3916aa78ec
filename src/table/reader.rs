//! An open table: point reads, and the descent through the index that all other reads start with.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::blob::BlobFile;
use super::blob_files::BlobFiles;
use super::filter::filter_of;
use super::footer::Footer;
use super::index::child_pointer;
use super::node::{Damage, FLAG_CONTINUES, KIND_BITS, Node, Parsed, Shape};
use super::properties::Properties;
use super::run_length::RunLength;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::prefetch::prefetch;
use crate::cache::{
    DataFiles, FileType, PageClass, PageFile, PageKey, PagePointer, ReadContext, read_ends,
    read_pages,
};
use crate::filter::BlockFilter;

/// A finished table.
pub(crate) struct Table {
    pub(super) file: Arc<PageFile>,
    pub(super) footer: Footer,
    properties: Properties,
    pub(super) filter: Option<BlockFilter>,
    blobs: Vec<Arc<BlobFile>>,
    /// The recent run length of cursors.
    pub(super) run_length: RunLength,
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
        let filter = filter_of(&footer, file.files().hasher.id());
        Arc::new(Table {
            file,
            footer,
            properties,
            filter,
            blobs,
            run_length: RunLength::default(),
        })
    }

    /// The file's number.
    pub(crate) fn id(&self) -> FileId {
        #[cfg(test)]
        crate::base::visits::note();
        self.file.id()
    }

    /// The table's totals.
    pub(crate) fn properties(&self) -> &Properties {
        #[cfg(test)]
        crate::base::visits::note();
        &self.properties
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

    /// Calls `f` with the versions of `key` up to `snapshot`, newest first, until it breaks.
    pub(crate) fn get(
        &self,
        key: &[u8],
        snapshot: Seqno,
        context: &ReadContext,
        mut f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut newest = snapshot.0.min(Seqno::MAX.0);
        loop {
            let leaf = self.find_leaf(key, newest, context, |_| ())?;
            let next = self
                .file
                .with_page(leaf, PageClass::Leaf, context, |payload| {
                    leaf_versions(payload, key, newest, &mut f)
                })?
                .map_err(|damage| self.damaged(leaf, damage))?;
            match next {
                Some(seqno) => newest = seqno,
                None => return Ok(()),
            }
        }
    }

    pub(super) fn is_cached(&self, page: PagePointer) -> bool {
        let key = PageKey { file: self.file.id(), unit: page.unit };
        self.file.files().cache.contains(key)
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
            let (child, children, pointer) = self.with_index(page, level, context, |node| {
                let child = node.search(key, threshold)?.saturating_sub(1);
                Ok((child, node.shape.entries, child_pointer(node, child)?))
            })?;
            visit(Step { page, child, children });
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
    match EntryKind::from_tag((meta & ((1 << KIND_BITS) - 1)) as u8) {
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

/// Calls `f` with the versions of `key` in this leaf. Returns `Some` with the sequence number to
/// continue with in the next leaf.
#[inline]
fn leaf_versions(
    payload: &[u8],
    key: &[u8],
    newest: u64,
    f: &mut impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
) -> Parsed<Option<u64>> {
    prefetch_front(payload);
    let shape = Shape::parse(payload, 0)?;
    let node = Node { bytes: payload, shape: &shape };
    let missed = usize::from(planted(Bug::LeafLastMissed));
    for i in node.search(key, newest + 1)?..shape.entries - missed {
        if !node.key_is(i, key)? {
            return Ok(None);
        }
        let meta = node.meta(i);
        let entry = EntryRef {
            key,
            seqno: Seqno(meta >> KIND_BITS),
            kind: kind_of(meta)?,
            value: node.value(i)?,
        };
        check_pointer(entry.kind, entry.value)?;
        if f(entry).is_break() {
            return Ok(None);
        }
    }
    let last = shape.entries - 1;
    if shape.flags & FLAG_CONTINUES == 0 || !node.key_is(last, key)? {
        return Ok(None);
    }
    match (node.meta(last) >> KIND_BITS).checked_sub(1) {
        Some(next) if next < newest => Ok(Some(next)),
        _ => Err("leaf continues flag"),
    }
}
