//! The level's part of an edit: its tables.

use std::fmt::Display;

use super::level::{Level, Placed};
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::location_index::TABLE_MAX;
use crate::tree::versioned::{Names, NodeBody};

pub(super) fn encode_body(level: &Level, out: &mut Vec<u8>) {
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
        for _ in 0..count {
            body.tables.push(FileId(decoder.varint("slm table file")?));
            let settled = Seqno(decoder.varint("slm settled number")?);
            let what = "slm table number";
            let number = decoder.varint(what)?;
            let placed = u32::try_from(number).ok().filter(|number| *number <= TABLE_MAX);
            let number = placed.ok_or_else(|| decoder.corrupt(what, "22 bits", number))?;
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
