//! The level's part of an edit: its tables.

use std::fmt::Display;

use super::level::Level;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::{FileId, Seqno};
use crate::tree::versioned::{Names, NodeBody};

pub(super) fn encode_body(level: &Level, out: &mut Vec<u8>) {
    put_varint(out, level.tables.len() as u64);
    for (table, settled) in level.tables.iter().zip(&level.settled) {
        put_varint(out, table.id().0);
        put_varint(out, settled.0);
    }
}

/// The part of the level's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    pub(super) tables: Vec<FileId>,
    pub(super) settled: Vec<Seqno>,
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
    type Shared = ();

    fn decode(decoder: &mut Decoder<'_>) -> Result<Body> {
        let count = decoder.count(2, "slm table count")?;
        let mut body = Body { tables: Vec::new(), settled: Vec::new() };
        for _ in 0..count {
            body.tables.push(FileId(decoder.varint("slm table number")?));
            body.settled.push(Seqno(decoder.varint("slm settled number")?));
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
