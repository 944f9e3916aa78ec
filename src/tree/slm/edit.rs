//! A tree's edits, as docs/format/slm-edit.md describes them: the level with all of its tables.
//!
//! Invariants:
//! 1. No two tables of a level have the same file or the same number.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use super::level::{Level, Placed};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, NodeId, Seqno};
use crate::location_index::TABLE_MAX;
use crate::table::Table;
use crate::tree::versioned::{self, EDIT_VERSION, Names, NodeBody, NodeRef, Recovered};

/// Opens tables.
type OpenTables<'a> = dyn FnMut(&[FileId]) -> Result<Vec<Arc<Table>>> + 'a;

/// An edit that makes this the level, unless its number is below `first_new`: then it is only named.
pub(super) fn encode(root: &Arc<Level>, first_new: u64) -> Vec<u8> {
    versioned::encode(root, first_new, |_, _| EDIT_VERSION, encode_body)
}

/// Builds the level that edits have defined.
pub(super) fn build(
    recovered: &Recovered<Body>,
    file: &Path,
    open: &mut OpenTables<'_>,
) -> Result<Arc<Level>> {
    recovered.build(file, &mut |NodeRef { id, .. }, record, _children| {
        let Body { index, tables, placed } = &record.body;
        let mut level = Level::new(open(tables)?, placed.clone(), *index);
        level.id = NodeId(id);
        Ok(level)
    })
}

fn encode_body(level: &Level, out: &mut Vec<u8>) {
    put_varint(out, level.index.0);
    put_varint(out, level.tables.len() as u64);
    for (table, placed) in level.tables.iter().zip(&level.placed) {
        put_varint(out, table.id().0);
        put_varint(out, placed.settled.0);
        put_varint(out, u64::from(placed.number));
    }
}

/// The part of the level's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    /// The file of the location index; 0 if there is none.
    pub(super) index: FileId,
    pub(super) tables: Vec<FileId>,
    pub(super) placed: Vec<Placed>,
}

impl NodeBody for Body {
    const NAMES: Names = Names {
        edit: "slm edit",
        version: "slm edit version",
        root: "slm root number",
        count: "slm level count",
        number: "slm level number",
        height: "slm level height",
        key: "slm level key",
    };
    const RECORD_BYTES_MIN: usize = 5;
    type Shared = ();

    fn decode(decoder: &mut Decoder<'_>) -> Result<Body> {
        let index = FileId(decoder.varint("slm index file")?);
        let count = decoder.count(3, "slm table count")?;
        let mut body = Body { index, tables: Vec::new(), placed: Vec::new() };
        let (mut files, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..count {
            let what = "slm table file";
            let table = decoder.varint(what)?;
            if !files.insert(table) {
                return Err(decoder.corrupt(what, "one of no other table", table));
            }
            body.tables.push(FileId(table));
            let settled = Seqno(decoder.varint("slm settled number")?);
            let what = "slm table number";
            let number = decoder.varint(what)?;
            let placed = u32::try_from(number).ok().filter(|number| *number <= TABLE_MAX);
            let number = placed.ok_or_else(|| decoder.corrupt(what, "22 bits", number))?;
            if !numbers.insert(number) {
                return Err(decoder.corrupt(what, "one of no other table", number));
            }
            body.placed.push(Placed { settled, number });
        }
        Ok(body)
    }

    fn children(&self) -> impl Iterator<Item = u64> {
        std::iter::empty()
    }

    fn check(&self, height: u32, wrong: &mut dyn FnMut(&'static str, &dyn Display, &dyn Display)) {
        if height > 0 {
            wrong("slm level height", &0, &height);
        }
    }

    fn tables(
        &self,
        _child: usize,
        _shared: &(),
        tables: &mut Vec<FileId>,
    ) -> std::result::Result<(), (&'static str, u64)> {
        tables.extend(&self.tables);
        Ok(())
    }
}

#[cfg(any(test, feature = "fuzz"))]
impl crate::tree::edits::Edits for Recovered<Body> {
    fn take(&mut self, edit: &[u8], file: &Path) -> Result<()> {
        self.apply(edit, file, 0)
    }

    fn rewritten(&self, file: &Path) -> Result<Vec<u8>> {
        // A table needs its file; a level without any is built.
        let none = || crate::base::error::Error::corruption(file, 0, "table", "a file", "none");
        let mut open = |tables: &[FileId]| match tables {
            [] => Ok(Vec::new()),
            _ => Err(none()),
        };
        Ok(encode(&build(self, file, &mut open)?, 0))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
