//! A tree's edits, as docs/format/slm-edit.md describes them: the tables that go and those that come.
//!
//! Invariants:
//! 1. No two tables of a level have the same file or the same number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use super::level::{Level, LevelRefs};
use super::level_tables::{LevelTable, LevelTables};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, NodeId, Seqno};
use crate::location_index::TABLE_MAX;
use crate::table::Table;
use crate::tree::versioned::{self, EDIT_VERSION, Names, NodeBody, NodeRef, Recovered};

/// Opens tables.
type OpenTables<'a> = dyn FnMut(&[FileId]) -> Result<Vec<Arc<Table>>> + 'a;

const NUMBER: &str = "slm table number";

/// An edit that makes this the level, unless its number is below `first_new`: then it is only named. It has what has
/// changed of the tables `before`; without these, all.
pub(super) fn encode(root: &Arc<Level>, first_new: u64, before: Option<&LevelRefs>) -> Vec<u8> {
    let none = LevelTables::default();
    let changes = |out: &mut Vec<u8>| {
        let difference = root.tables.since(before.map_or(&none, |before| &before.tables));
        put_varint(out, difference.removed.len() as u64);
        for removed in &difference.removed {
            put_varint(out, u64::from(removed.number));
        }
        put_varint(out, difference.added.len() as u64);
        for LevelTable { table, settled, number } in &difference.added {
            put_varint(out, u64::from(*number));
            put_varint(out, table.id().0);
            put_varint(out, settled.0);
        }
    };
    let shared = |_: &[&Arc<Level>], out: &mut Vec<u8>| {
        changes(out);
        EDIT_VERSION
    };
    versioned::encode(root, first_new, shared, |level, out| put_varint(out, level.index.0))
}

/// Builds the level that edits have defined.
pub(super) fn build(
    recovered: &Recovered<Body>,
    file: &Path,
    open: &mut OpenTables<'_>,
) -> Result<Arc<Level>> {
    recovered.build(file, &mut |NodeRef { id, .. }, record, _children| {
        let records = &recovered.shared.tables;
        let files: Vec<FileId> = records.values().map(|record| record.file).collect();
        let mut tables = LevelTables::default();
        for ((number, record), table) in records.iter().zip(open(&files)?) {
            tables.insert(LevelTable { table, settled: record.settled, number: *number });
        }
        let mut level = Level::new(tables, record.body.index);
        level.id = NodeId(id);
        Ok(level)
    })
}

/// A table as edits define it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tree) struct TableRecord {
    pub(super) file: FileId,
    pub(super) settled: Seqno,
}

/// The tables that edits define, by number.
#[derive(Debug, Default)]
pub(in crate::tree) struct TableRecords {
    pub(super) tables: BTreeMap<u32, TableRecord>,
    files: BTreeSet<FileId>,
}

/// The part of the level's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    /// The file of the location index; 0 if there is none.
    pub(super) index: FileId,
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
    const RECORD_BYTES_MIN: usize = 4;
    type Shared = TableRecords;

    fn decode_shared(decoder: &mut Decoder<'_>, records: &mut TableRecords) -> Result<()> {
        for _ in 0..decoder.count(1, "slm removed table count")? {
            let number = table_number(decoder)?;
            let removed = records.tables.remove(&number);
            let removed = removed
                .ok_or_else(|| decoder.corrupt(NUMBER, "that of a table of the level", number))?;
            records.files.remove(&removed.file);
        }
        for _ in 0..decoder.count(3, "slm table count")? {
            let number = table_number(decoder)?;
            let what = "slm table file";
            let file = FileId(decoder.varint(what)?);
            if !records.files.insert(file) {
                return Err(decoder.corrupt(what, "one of no other table", file.0));
            }
            let settled = Seqno(decoder.varint("slm settled number")?);
            if records.tables.insert(number, TableRecord { file, settled }).is_some() {
                return Err(decoder.corrupt(NUMBER, "one of no other table", number));
            }
        }
        Ok(())
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Body> {
        Ok(Body { index: FileId(decoder.varint("slm index file")?) })
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
        records: &TableRecords,
        tables: &mut Vec<FileId>,
    ) -> std::result::Result<(), (&'static str, u64)> {
        tables.extend(records.tables.values().map(|record| record.file));
        Ok(())
    }
}

fn table_number(decoder: &mut Decoder<'_>) -> Result<u32> {
    let number = decoder.varint(NUMBER)?;
    let placed = u32::try_from(number).ok().filter(|number| *number <= TABLE_MAX);
    placed.ok_or_else(|| decoder.corrupt(NUMBER, "22 bits", number))
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
        Ok(encode(&build(self, file, &mut open)?, 0, None))
    }
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
