//! The full check: reads every page and verifies every promise of the format.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::blob_pointer::BlobPointer;
use super::index::{Child, PLAIN_SEPARATOR, child};
use super::key_list_page::TableKey;
use super::key_scan::StoredList;
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::{
    FLAG_CONTINUES, FLAG_REST, FLAG_SPLIT, KIND_BITS, KIND_MASK, Node, Parsed, REST_TAG, Shape,
};
use super::properties::BlobReference;
use super::reader::Table;
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::limits::UNIT_BYTES;
use crate::cache::{Compression, PagePointer, PageScan, ReadContext};
use crate::filter::LoadedFilter;
use crate::perfect_hash::{Found, PieceIndex, index_hash};

/// Units read at once.
const CHUNK_UNITS: u32 = 64;

/// The totals of a check that found no damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TableCheck {
    pub(crate) entries: u64,
    pub(crate) leaf_pages: u32,
    pub(crate) index_pages: u32,
    pub(crate) filter_pages: u32,
}

/// A position in the order of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    key: Vec<u8>,
    seqno: Seqno,
}

impl Place {
    fn is_before(&self, key: &[u8], seqno: Seqno) -> bool {
        match self.key.as_slice().cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => self.seqno > seqno,
            Ordering::Greater => false,
        }
    }

    fn is_after(&self, key: &[u8], seqno: Seqno) -> bool {
        !self.is_before(key, seqno) && (self.key != key || self.seqno != seqno)
    }
}

/// The sums over the entries.
struct Totals {
    last: Option<Place>,
    kinds: [u64; 7],
    key_bytes: u64,
    value_bytes: u64,
    seqnos: (Seqno, Seqno),
    blobs: BTreeMap<FileId, BlobReference>,
}

impl Totals {
    /// Adds an entry, or returns what is wrong with it.
    fn add(&mut self, entry: &EntryRef<'_>) -> Parsed<()> {
        if self.last.as_ref().is_some_and(|last| !last.is_before(entry.key, entry.seqno)) {
            return Err("order of entries");
        }
        let last = self.last.get_or_insert_with(|| Place { key: Vec::new(), seqno: Seqno(0) });
        last.key.clear();
        last.key.extend_from_slice(entry.key);
        last.seqno = entry.seqno;
        self.key_bytes += entry.key.len() as u64;
        self.value_bytes += entry.value.len() as u64;
        self.seqnos = (self.seqnos.0.min(entry.seqno), self.seqnos.1.max(entry.seqno));
        self.kinds[usize::from(entry.kind as u8)] += 1;
        if entry.kind.is_blob() {
            let pointer = BlobPointer::decode(entry.value).ok_or("blob pointer")?;
            let fresh = BlobReference { file: pointer.file, values: 0, bytes: 0 };
            let reference = self.blobs.entry(pointer.file).or_insert(fresh);
            reference.values += 1;
            reference.bytes += u64::from(pointer.length);
        }
        Ok(())
    }
}

/// Compares the list of a table's keys with its leaves.
struct ListCheck {
    stored: StoredList,
    listed: TableKey,
    /// What the leaves have of the last key.
    found: TableKey,
}

impl ListCheck {
    fn new(stored: StoredList) -> ListCheck {
        ListCheck { stored, listed: TableKey::none(), found: TableKey::none() }
    }

    /// All versions of the last key have been read, if there is one.
    fn end_key(&mut self, table: &Table) -> Result<()> {
        if self.found == TableKey::none() {
            return Ok(());
        }
        let is_listed = self.stored.next(&mut self.listed)?;
        if is_listed && self.listed == self.found {
            return Ok(());
        }
        let found = if is_listed { self.listed.describe() } else { "no more keys".to_string() };
        let expected = self.found.describe();
        Err(table.file.corrupt(table.footer.properties, "list of keys", expected, found))
    }
}

struct Checker<'a> {
    table: &'a Table,
    leaves: PageScan,
    leaf: LeafCursor,
    /// The flags of the previous leaf.
    flags_before: u8,
    has_splits: bool,
    seen: TableCheck,
    filter: Option<LoadedFilter>,
    /// The local index, if the table is a piece.
    piece: Option<&'a PieceIndex>,
    hash_sum: u64,
    /// The list of keys, if the table has one.
    list: Option<ListCheck>,
    context: ReadContext,
    /// Distinct keys.
    keys: u64,
    totals: Totals,
}

impl Table {
    /// Reads the whole table (not the blob files) and verifies order, separators, pointers, counts,
    /// checksums, properties, and that the filter excludes no key.
    pub(crate) fn check(self: &Arc<Self>) -> Result<TableCheck> {
        let mut checker = Checker {
            table: self,
            leaves: self.file.scan(0..self.footer.leaf_units, CHUNK_UNITS),
            leaf: LeafCursor::new(),
            flags_before: 0,
            has_splits: false,
            seen: TableCheck::default(),
            filter: self.filter.map(|filter| filter.load(&self.file)).transpose()?,
            piece: self.piece(&ReadContext::blocking())?,
            hash_sum: 0,
            list: self.stored_list(CHUNK_UNITS as usize * UNIT_BYTES).map(ListCheck::new),
            context: ReadContext::blocking(),
            keys: 0,
            totals: Totals {
                last: None,
                kinds: [0; 7],
                key_bytes: 0,
                value_bytes: 0,
                seqnos: (Seqno::MAX, Seqno(0)),
                blobs: BTreeMap::new(),
            },
        };
        let root = self.footer.root;
        let first = Place { key: self.first_key().to_vec(), seqno: Seqno::MAX };
        let totals = Child {
            pointer: root,
            tuples: (0, self.properties().entries()),
            bytes: (0, self.properties().entry_bytes()),
        };
        if self.footer.height == 0 {
            checker.leaf(&first, &totals)?;
        } else {
            checker.index(self.footer.height, &first, &totals)?;
        }
        checker.finish()
    }
}

impl Table {
    /// Reports all damaged pages except the one at which [`Table::check`] stopped with `known`.
    /// Each page is judged by its own checksums. Adjacent damaged pages are reported once, by the
    /// first.
    pub(crate) fn check_other_pages(&self, known: &Error, problem: &mut dyn FnMut(Error)) {
        let offset_of = |error: &Error| match error {
            Error::Corruption { offset, .. } => Some(*offset),
            _ => None,
        };
        let mut pages = self.file.scan(0..self.file.units(), CHUNK_UNITS);
        let mut in_damage = false;
        loop {
            match pages.next_page() {
                Ok(None) => return,
                Ok(Some(_)) => in_damage = false,
                Err(error) if error.is_corruption() => {
                    pages.skip_unit();
                    if !in_damage && offset_of(&error) != offset_of(known) {
                        problem(error);
                    }
                    in_damage = true;
                }
                // A failing disk would be read again for each page.
                Err(error) => return problem(error),
            }
        }
    }
}

impl Checker<'_> {
    fn wrong(&self, page: PagePointer, what: &'static str, found: impl std::fmt::Display) -> Error {
        self.table.file.corrupt(page, what, "agreement with the rest of the table", found)
    }

    fn index(&mut self, level: u8, separator: &Place, expected: &Child) -> Result<()> {
        let page = expected.pointer;
        let damaged = |damage| self.table.damaged(page, damage);
        let payload = self.table.file.read_uncached(page)?;
        let shape = Shape::parse(&payload, level).map_err(damaged)?;
        let node = Node { bytes: &payload, shape: &shape };
        self.seen.index_pages += 1;
        let mut end = (expected.tuples.0, expected.bytes.0);
        for i in 0..shape.entries {
            let found = child(&node, i).map_err(damaged)?;
            let key = node.key(i).map_err(damaged)?;
            let meta = node.meta(i);
            let place = Place { key, seqno: Seqno(meta >> KIND_BITS) };
            if i == 0 && place != *separator {
                return Err(self.wrong(page, "first separator", place.key.escape_ascii()));
            }
            if (found.tuples.0, found.bytes.0) != end || meta > PLAIN_SEPARATOR {
                return Err(self.wrong(page, "index counts", format_args!("{found:?}")));
            }
            end = (found.tuples.1, found.bytes.1);
            if level == 1 {
                let begins_with_rest = meta & KIND_MASK == REST_TAG;
                if begins_with_rest != (self.flags_before & FLAG_SPLIT != 0) {
                    return Err(self.wrong(page, "separator of a rest", begins_with_rest));
                }
                self.leaf(&place, &found)?;
            } else {
                self.index(level - 1, &place, &found)?;
            }
        }
        if end != (expected.tuples.1, expected.bytes.1) {
            return Err(self.wrong(page, "index counts", format_args!("up to {end:?}")));
        }
        Ok(())
    }

    fn leaf(&mut self, separator: &Place, expected: &Child) -> Result<()> {
        let page = expected.pointer;
        let Some((found, payload)) = self.leaves.next_page()? else {
            return Err(self.wrong(page, "leaf pointer", "no leaf there"));
        };
        if found != page {
            return Err(self.wrong(
                page,
                "leaf pointer",
                format_args!("the next leaf at {found:?}"),
            ));
        }
        let damaged = |damage| self.table.damaged(page, damage);
        self.leaf.load(payload).map_err(damaged)?;
        let flags = self.leaf.flags();
        let last = self.totals.last.as_ref();
        if last.is_some_and(|last| !last.is_before(&separator.key, separator.seqno)) {
            return Err(self.wrong(page, "separator", separator.key.escape_ascii()));
        }
        let continued = match last {
            Some(last) => last.key == self.leaf.key_at(0).map_err(damaged)?,
            None => false,
        };
        if continued != (self.flags_before & FLAG_CONTINUES != 0) {
            return Err(self.wrong(page, "leaf continues flag before", !continued));
        }
        let has_rest = flags & FLAG_REST != 0;
        if has_rest != (self.flags_before & FLAG_SPLIT != 0) || has_rest && page.units != 1 {
            return Err(self.wrong(page, "rest of a split value", has_rest));
        }
        if has_rest && self.table.properties().compression != Compression::None {
            return Err(self.wrong(page, "rest of a split value", "compression"));
        }
        if let Some(last) = last {
            self.leaf.check_rest(&last.key, last.seqno).map_err(damaged)?;
        }
        self.has_splits |= has_rest;
        let mut bytes = 0;
        for i in self.leaf.first()..self.leaf.entries() {
            let is_split = self.leaf.place(i).map_err(damaged)? == Placed::Split;
            if is_split {
                let next = self.leaves.peek_page()?;
                let (_, next) = next.ok_or_else(|| damaged("end of a split value"))?;
                self.leaf.join(next).map_err(damaged)?;
            }
            let Some(entry) = self.leaf.entry() else { continue };
            if separator.is_after(entry.key, entry.seqno) {
                return Err(self.wrong(page, "separator", separator.key.escape_ascii()));
            }
            let continued = self.totals.last.as_ref().is_some_and(|last| last.key == entry.key);
            bytes += (entry.key.len() + entry.value.len()) as u64;
            self.keys += u64::from(!continued);
            if let Some(filter) = self.filter.as_ref().filter(|_| !continued)
                && !filter.may_contain(self.table.file.files().hasher.hash(entry.key))
            {
                let found = format_args!("nothing of \"{}\"", entry.key.escape_ascii());
                return Err(self.wrong(page, "filter", found));
            }
            if let Some(piece) = self.piece.filter(|_| !continued) {
                let hash = self.table.file.files().hasher.hash(entry.key);
                self.hash_sum = self.hash_sum.wrapping_add(index_hash(hash));
                let leaf_units = self.table.footer.leaf_units;
                let found = piece.find(&self.table.file, hash, leaf_units, &self.context)?;
                let is_right = match found {
                    Found::Leaf { pointer, .. } => pointer == page,
                    Found::Unknown => true,
                    Found::Absent => false,
                };
                if !is_right {
                    let found = format_args!("{found:?} for \"{}\"", entry.key.escape_ascii());
                    return Err(self.wrong(page, "index of a piece", found));
                }
            }
            if let Some(list) = &mut self.list {
                match continued {
                    true => list.found.add(entry.seqno, entry.kind),
                    false => {
                        list.end_key(self.table)?;
                        list.found.begin(entry.key, (page, is_split), entry.seqno, entry.kind);
                    }
                }
            }
            if let Err(what) = self.totals.add(&entry) {
                return Err(self.wrong(page, what, entry.key.escape_ascii()));
            }
        }
        self.flags_before = flags;
        let tuples = (self.leaf.entries() - self.leaf.first()) as u64;
        if (tuples, bytes)
            != (expected.tuples.1 - expected.tuples.0, expected.bytes.1 - expected.bytes.0)
        {
            return Err(self.wrong(
                page,
                "leaf counts",
                format_args!("{tuples} and {bytes} bytes"),
            ));
        }
        self.seen.leaf_pages += 1;
        self.seen.entries += tuples;
        Ok(())
    }

    fn finish(mut self) -> Result<TableCheck> {
        let table = self.table;
        let (footer, properties) = (&table.footer, table.properties());
        let at = footer.properties;
        if self.flags_before & FLAG_CONTINUES != 0 || self.leaves.next_page()?.is_some() {
            return Err(self.wrong(footer.root, "leaves", "one more than the index knows"));
        }
        if self.has_splits != footer.has_splits {
            return Err(self.wrong(footer.root, "table format version", self.has_splits));
        }
        let mut found = properties.clone();
        let totals = self.totals;
        [_, found.puts, found.deletes, found.merges, _, found.blob_puts, found.blob_merges] =
            totals.kinds;
        (found.key_bytes, found.value_bytes) = (totals.key_bytes, totals.value_bytes);
        (found.seqno_min, found.seqno_max) = totals.seqnos;
        (found.leaf_pages, found.index_pages) = (self.seen.leaf_pages, self.seen.index_pages);
        found.last_key = totals.last.map(|last| last.key).unwrap_or_default();
        found.blobs = totals.blobs.into_values().collect();
        if found != *properties {
            return Err(table.file.corrupt(
                at,
                "properties",
                format_args!("{found:?}"),
                format_args!("{properties:?}"),
            ));
        }
        if let Some(piece) = self.piece {
            let (mut hashes, mut list) = (Vec::new(), piece.hashes(&table.file));
            let mut sum = 0u64;
            while list.next_page(&mut hashes)? {
                hashes.drain(..).for_each(|hash| sum = sum.wrapping_add(hash));
            }
            // Where keys share a hash, it is in the list once.
            let is_right = piece.keys() < self.keys || sum == self.hash_sum;
            if piece.keys() > self.keys || !is_right {
                let found = format_args!("{}, with another sum", piece.keys());
                return Err(table.file.corrupt(at, "hashes of a piece", self.keys, found));
            }
        }
        if let Some(mut list) = self.list {
            list.end_key(table)?;
            if list.stored.next(&mut list.listed)? {
                let found = list.listed.key.escape_ascii();
                return Err(table.file.corrupt(at, "list of keys", "no more keys", found));
            }
        }
        if let Some(filter) = &self.filter {
            if filter.keys() != self.keys {
                let (expected, found) = (self.keys, filter.keys());
                return Err(table.file.corrupt(at, "keys of the filter", expected, found));
            }
            self.seen.filter_pages = filter.pages();
        } else if footer.filter.pages > 0 {
            let first = footer.filter.first_unit;
            let mut pages = table.file.scan(first..first + footer.filter.units, CHUNK_UNITS);
            while pages.next_page()?.is_some() {
                self.seen.filter_pages += 1;
            }
            if self.seen.filter_pages != footer.filter.pages {
                let (expected, found) = (footer.filter.pages, self.seen.filter_pages);
                return Err(table.file.corrupt(at, "filter pages", expected, found));
            }
        }
        Ok(self.seen)
    }
}
