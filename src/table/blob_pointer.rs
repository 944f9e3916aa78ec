//! `BlobPointer`: the reference in a table to a value in a blob file.

use crate::base::codec::{put_varint, read_varint};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;

/// The location of a value, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobPointer {
    /// The blob file.
    pub(crate) file: FileId,
    /// The position of the value's first byte among the bytes of all values in the file (page
    /// headers not counted).
    pub(crate) offset: u64,
    /// Bytes of the value.
    pub(crate) length: u32,
    /// Checksum of the value, seeded with `offset`.
    pub(crate) checksum: u64,
}

impl BlobPointer {
    /// Appends the pointer's bytes: varint file, varint offset, varint length, checksum.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.file.0);
        put_varint(out, self.offset);
        put_varint(out, u64::from(self.length));
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    /// Reads the pointer of a blob entry. An entry with anything else is refused where it is read
    /// from a page or the journal, with file and offset. A caller that has it in memory could name
    /// neither.
    pub(crate) fn of_entry(value: &[u8]) -> Result<BlobPointer> {
        let refused = || Error::invalid("the value of a blob entry is not a blob pointer");
        BlobPointer::decode(value).ok_or_else(refused)
    }

    /// Reads a pointer that fills `bytes`; `None` if it does not. The caller knows which file and
    /// offset to name.
    pub(crate) fn decode(bytes: &[u8]) -> Option<BlobPointer> {
        let mut rest = bytes;
        let mut varint = || {
            let (value, used) = read_varint(rest)?;
            rest = rest.get(used..)?;
            Some(value)
        };
        let (file, offset, length) = (FileId(varint()?), varint()?, varint()?);
        let checksum = u64::from_le_bytes(rest.try_into().ok()?);
        Some(BlobPointer { file, offset, length: u32::try_from(length).ok()?, checksum })
    }
}
