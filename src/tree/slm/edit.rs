//! The level's part of an edit: its tables.

use std::fmt::Display;

use super::level::Level;
use crate::base::codec::{Decoder, put_varint};
use crate::base::error::Result;
use crate::base::ids::FileId;
use crate::tree::versioned::{Names, NodeBody};

pub(super) fn encode_body(level: &Level, out: &mut Vec<u8>) {
    put_varint(out, level.tables.len() as u64);
    level.tables.iter().for_each(|table| put_varint(out, table.id().0));
}

/// The part of the level's record that is this kind's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tree) struct Body {
    pub(super) tables: Vec<FileId>,
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
        let count = decoder.count(1, "slm table count")?;
        let table = |_| Ok(FileId(decoder.varint("slm table number")?));
        Ok(Body { tables: (0..count).map(table).collect::<Result<_>>()? })
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
