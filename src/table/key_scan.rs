//! [`KeyScan`]: the keys of a table one after the other, each with what an index outside the table needs to know.
//!
//! They come from the list in the table's file, if it has one, and otherwise from the leaves. A list that cannot be read is as
//! good as none: the leaves have all of it.

use std::path::PathBuf;
use std::sync::Arc;

use super::key_list_page::{FILTER_KIND_KEYS, ListLimits, TableKey, read_key};
use super::reader::Table;
use super::scan::TableScan;
use crate::base::codec::Decoder;
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::cache::{PagePointer, PageScan};

/// See the module's description.
pub(crate) struct KeyScan {
    table: Arc<Table>,
    source: Source,
    chunk_bytes: usize,
    key: TableKey,
}

enum Source {
    List(Box<StoredList>),
    Leaves(Box<TableScan>),
}

/// A list of keys in a table's file.
pub(super) struct StoredList {
    pages: PageScan,
    path: PathBuf,
    limits: ListLimits,
    /// The page that is read, and how much of it has been.
    page: Vec<u8>,
    pointer: PagePointer,
    read: usize,
    /// Keys of the table that have been read.
    keys: u64,
}

impl Table {
    /// The list of keys in the file, if it has one.
    pub(super) fn stored_list(self: &Arc<Self>, chunk_bytes: usize) -> Option<StoredList> {
        let section = self.footer.filter;
        if section.kind != FILTER_KIND_KEYS {
            return None;
        }
        let properties = self.properties();
        let chunk_units = u32::try_from(chunk_bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        Some(StoredList {
            pages: self.pages().scan(
                section.first_unit..section.first_unit.saturating_add(section.units),
                chunk_units,
            ),
            path: self.pages().path(),
            limits: ListLimits {
                leaf_units: self.footer.leaf_units,
                seqno_min: properties.seqno_min,
                seqno_max: properties.seqno_max,
            },
            page: Vec::new(),
            pointer: PagePointer { unit: section.first_unit, units: 1 },
            read: 0,
            keys: 0,
        })
    }
}

impl StoredList {
    /// Reads the next key over the one before. Returns false at the end.
    ///
    /// # Errors
    /// `Corruption` if a page is damaged; I/O errors.
    pub(super) fn next(&mut self, key: &mut TableKey) -> Result<bool> {
        let is_first = self.read == self.page.len();
        if is_first {
            self.page.clear();
            self.read = 0;
            let Some((pointer, payload)) = self.pages.next_page()? else { return Ok(false) };
            self.page.extend_from_slice(payload);
            self.pointer = pointer;
        }
        let offset = self.pointer.offset() + self.read as u64;
        let mut from = Decoder::new(&self.page[self.read..], &self.path, offset);
        read_key(&mut from, is_first, &self.limits, key)?;
        self.read = self.page.len() - from.remaining();
        self.keys += 1;
        Ok(true)
    }
}

impl KeyScan {
    /// Begins before the first key. About so many bytes are read at once.
    pub(crate) fn new(table: &Arc<Table>, chunk_bytes: usize) -> Result<KeyScan> {
        let source = match table.stored_list(chunk_bytes) {
            Some(list) => Source::List(Box::new(list)),
            None => Source::Leaves(Box::new(table.scan(None, None, chunk_bytes)?)),
        };
        Ok(KeyScan { table: Arc::clone(table), source, chunk_bytes, key: TableKey::none() })
    }

    /// The same without the list.
    #[cfg(test)]
    pub(super) fn of_leaves(table: &Arc<Table>, chunk_bytes: usize) -> Result<KeyScan> {
        let source = Source::Leaves(Box::new(table.scan(None, None, chunk_bytes)?));
        Ok(KeyScan { table: Arc::clone(table), source, chunk_bytes, key: TableKey::none() })
    }

    /// Goes to the next key. Returns false at the end.
    ///
    /// # Errors
    /// Those of reading the leaves.
    pub(crate) fn next(&mut self) -> Result<bool> {
        if let Source::List(list) = &mut self.source {
            match list.next(&mut self.key) {
                Ok(has_next) => {
                    let is_last = has_next && *self.key.key == *self.table.last_key();
                    return Ok(has_next && !(is_last && planted(Bug::KeyListLastKeyLost)));
                }
                Err(_) => {
                    let mut scan = Box::new(self.table.scan(None, None, self.chunk_bytes)?);
                    for _ in 0..list.keys {
                        next_in_leaves(&mut scan, &mut self.key)?;
                    }
                    self.source = Source::Leaves(scan);
                }
            }
        }
        match &mut self.source {
            Source::Leaves(scan) => next_in_leaves(scan, &mut self.key),
            Source::List(_) => Ok(false),
        }
    }

    /// The key. There is one if [`KeyScan::next`] has said so.
    pub(crate) fn key(&self) -> &TableKey {
        &self.key
    }
}

/// Goes to the next key of a scan. Returns false at the end.
fn next_in_leaves(scan: &mut TableScan, key: &mut TableKey) -> Result<bool> {
    let Some(entry) = scan.entry() else { return Ok(false) };
    let (seqno, kind) = (entry.seqno, entry.kind);
    key.begin(entry.key, scan.leaf(), seqno, kind);
    loop {
        scan.next()?;
        let Some(entry) = scan.entry().filter(|entry| entry.key == key.key) else {
            return Ok(true);
        };
        key.add(entry.seqno, entry.kind);
    }
}
