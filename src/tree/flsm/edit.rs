//! The guards' part of an edit: fragments and children (`docs/format/flsm-edit.md`).

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use super::guard::{Fragment, Guard};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, NodeId};
use crate::table::Table;
use crate::tree::range::{RangeSize, SIZE_LIMIT, TablePart};
use crate::tree::versioned::{self, EDIT_VERSION, Names, NodeBody, NodeRef, Recovered};

/// The fragment holds one version a key and no tombstone.
const FLAG_FULLY_MERGED: u8 = 1;

/// Writes an edit that defines the guards below `root` of a number from `first_new` on.
pub(super) fn encode(root: &Arc<Guard>, first_new: u64) -> Vec<u8> {
    versioned::encode(root, first_new, |_, _| EDIT_VERSION, encode_body)
}

fn encode_body(guard: &Guard, out: &mut Vec<u8>) {
    put_varint(out, guard.fragments.len() as u64);
    for fragment in &guard.fragments {
        put_varint(out, fragment.table.id().0);
        out.push(if fragment.fully_merged { FLAG_FULLY_MERGED } else { 0 });
        put_varint(out, fragment.size.bytes);
        put_varint(out, fragment.size.entries);
        put_varint(out, fragment.first);
    }
    put_varint(out, guard.children.len() as u64);
    for child in &guard.children {
        put_varint(out, child.id.0);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FragmentRecord {
    table: FileId,
    fully_merged: bool,
    part: TablePart,
}

/// The part of a guard's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    fragments: Vec<FragmentRecord>,
    children: Vec<u64>,
}

impl Body {
    pub(super) fn table_ids(&self) -> impl Iterator<Item = FileId> {
        self.fragments.iter().map(|fragment| fragment.table)
    }
}

impl NodeBody for Body {
    const NAMES: Names = Names {
        edit: "flsm edit",
        version: "flsm edit version",
        root: "flsm root number",
        count: "flsm guard count",
        number: "flsm guard number",
        height: "flsm guard height",
        key: "flsm guard key",
    };
    const RECORD_BYTES_MIN: usize = 5;
    type Shared = ();

    fn decode(decoder: &mut Decoder<'_>) -> Result<Body> {
        let count = decoder.count(5, "flsm fragment count")?;
        let mut fragments = Vec::with_capacity(count);
        for _ in 0..count {
            let table = FileId(decoder.varint("flsm table number")?);
            let fully_merged = match decoder.u8("flsm fragment flags")? {
                0 => false,
                FLAG_FULLY_MERGED => true,
                other => return Err(decoder.corrupt("flsm fragment flags", "0 or 1", other)),
            };
            let bytes = decoder.varint("flsm fragment bytes")?;
            let entries = decoder.varint("flsm fragment entries")?;
            let first = decoder.varint("flsm fragment place")?;
            // Sums of these are made without looking.
            if bytes | entries | first >= SIZE_LIMIT {
                return Err(decoder.corrupt(
                    "flsm fragment size",
                    "below 2^48",
                    bytes.max(entries).max(first),
                ));
            }
            let part = TablePart { first, size: RangeSize { bytes, entries } };
            fragments.push(FragmentRecord { table, fully_merged, part });
        }
        let count = decoder.count(1, "flsm child count")?;
        let children = (0..count)
            .map(|_| decoder.varint("flsm child number"))
            .collect::<Result<Vec<u64>>>()?;
        Ok(Body { fragments, children })
    }

    fn children(&self) -> impl Iterator<Item = u64> {
        self.children.iter().copied()
    }

    fn check(&self, height: u32, wrong: &mut dyn FnMut(&'static str, &dyn Display, &dyn Display)) {
        if (height == 0) != self.children.is_empty() {
            let found = format_args!("{} at height {height}", self.children.len());
            wrong("flsm child count", &"some above the last level alone", &found);
        }
    }

    fn tables(
        &self,
        _child: usize,
        _shared: &(),
        tables: &mut Vec<FileId>,
    ) -> std::result::Result<(), (&'static str, u64)> {
        tables.extend(self.table_ids());
        Ok(())
    }
}

/// Opens a table that a guard names.
pub(super) type OpenTable<'a> = dyn FnMut(FileId) -> Result<Arc<Table>> + 'a;

/// Builds the guards that edits have defined; `open` opens their tables.
///
/// # Errors
/// As [`Recovered::build`], and what `open` returns.
pub(super) fn build(
    recovered: &Recovered<Body>,
    file: &Path,
    open: &mut OpenTable<'_>,
) -> Result<Arc<Guard>> {
    recovered.build(file, &mut |NodeRef { id, place, .. }, record, children| {
        let mut guard = Guard::empty(place.height, place.lower, place.upper);
        guard.id = NodeId(id);
        for FragmentRecord { table, fully_merged, part } in &record.body.fragments {
            let (table, TablePart { first, size }) = (open(*table)?, *part);
            guard.fragments.push(Fragment { table, size, first, fully_merged: *fully_merged });
        }
        guard.children = children;
        Ok(guard)
    })
}

#[cfg(any(test, feature = "fuzz"))]
impl crate::tree::edits::Edits for Recovered<Body> {
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()> {
        self.apply(edit, file, 0)
    }

    fn rewritten(&self, file: &Path) -> Result<Vec<u8>> {
        // A fragment needs its file; a tree without any is built.
        let none = || crate::base::error::Error::corruption(file, 0, "table", "a file", "none");
        Ok(encode(&build(self, file, &mut |_| Err(none()))?, 0))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
