//! The kind's manifest edit: which file holds the tree, which of the file's roots counts, and which files hold the
//! tree's own operations.
//!
//! Layout: a version byte (1), varint file number, varint generation, varint number of log files, and for each
//! a varint file number and a varint epoch.
//!
//! Invariants:
//! 1. An edit says all: the last one replaces those before it.

use std::path::Path;

use crate::base::codec::{Decoder, put_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::manifest::TreeEdit;

const EDIT_VERSION: u8 = 1;

/// The place of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) file: FileId,
    pub(super) generation: u64,
    /// The files of the tree's log, oldest first.
    pub(super) logs: Vec<NamedLog>,
}

/// A file of the tree's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamedLog {
    pub(super) file: FileId,
    /// The epoch of its batches.
    pub(super) epoch: u32,
}

impl Named {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![EDIT_VERSION];
        put_varint(&mut out, self.file.0);
        put_varint(&mut out, self.generation);
        put_varint(&mut out, self.logs.len() as u64);
        for log in &self.logs {
            put_varint(&mut out, log.file.0);
            put_varint(&mut out, u64::from(log.epoch));
        }
        out
    }

    /// Reads an edit of the manifest.
    pub(super) fn decode(edit: &TreeEdit, manifest: &Path) -> Result<Named> {
        let mut from = Decoder::new(&edit.bytes, manifest, edit.offset);
        match from.u8("example edit version")? {
            EDIT_VERSION => {}
            0 => {
                return Err(Error::corruption(manifest, edit.offset, "example edit version", 1, 0));
            }
            found => {
                return Err(Error::UnsupportedVersion {
                    file: manifest.to_path_buf(),
                    found: u32::from(found),
                    supported: u32::from(EDIT_VERSION),
                });
            }
        }
        let file = FileId(from.varint("example file number")?);
        let generation = from.varint("example generation")?;
        let mut logs = Vec::new();
        for _ in 0..from.varint("example number of log files")? {
            let file = FileId(from.varint("example log file number")?);
            let epoch = from.varint("example log epoch")?;
            let epoch = u32::try_from(epoch)
                .map_err(|_| from.corrupt("example log epoch", "a 32-bit number", epoch))?;
            logs.push(NamedLog { file, epoch });
        }
        match from.is_empty() {
            true => Ok(Named { file, generation, logs }),
            false => Err(from.corrupt("example edit", "its end", "more bytes")),
        }
    }
}
