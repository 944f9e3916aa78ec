//! The format of a manifest file: a header, then records.
//!
//! Invariants:
//! 1. A record's checksum covers everything else in it. It is seeded with store, manifest and
//!    offset, so a whole record in the wrong place does not pass.
//! 2. Records start at multiples of 8.
//! 3. One append writes one record. A crash leaves all of it, or a bad record at the end with
//!    nothing valid after it.

use std::path::Path;

use super::FORMAT_VERSION;
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};

const MAGIC: [u8; 8] = *b"SPINMANI";
const ALIGNMENT: usize = 8;

/// The size of the header in bytes.
pub(super) const HEADER_BYTES: usize = 40;
/// The size of a record before its payload, in bytes.
pub(super) const RECORD_HEAD_BYTES: usize = 16;

/// The kind of a record. The numbers are on disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordKind {
    /// The whole state, as one edit of an empty one. Always the first record, and only that.
    Snapshot = 1,
    /// Edits that were committed together, each length-prefixed.
    Edits = 2,
}

/// The identity of a manifest: its store and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) store_id: u64,
    pub(super) number: u64,
}

impl Identity {
    /// The log that replaces this one.
    pub(super) fn next(self) -> Identity {
        Identity { number: self.number + 1, ..self }
    }

    pub(super) fn seed(self, offset: u64) -> u64 {
        self.store_id ^ self.number.rotate_left(40) ^ offset
    }

    /// The header.
    pub(super) fn encode_header(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.store_id.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&checksum(0, &out).to_le_bytes());
        out
    }

    /// Reads a file's header.
    pub(super) fn decode_header(bytes: &[u8], file: &Path) -> Result<Identity> {
        let names = ["manifest header", "manifest magic", "manifest header checksum"];
        let mut decoder = Decoder::of_header(bytes, file, (&MAGIC, HEADER_BYTES - 8), names)?;
        decoder.version(FORMAT_VERSION, "manifest version")?;
        decoder.u32("manifest reserved bytes")?;
        let store_id = decoder.u64("manifest store id")?;
        Ok(Identity { store_id, number: decoder.u64("manifest number")? })
    }

    /// The record at `offset` with `payload`.
    pub(super) fn encode_record(
        self,
        offset: u64,
        kind: RecordKind,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let Ok(payload_bytes) = u32::try_from(payload.len()) else {
            let bytes = payload.len();
            return Err(Error::invalid(format!("a manifest record of {bytes} bytes, above 4 GiB")));
        };
        let bytes = RECORD_HEAD_BYTES + payload.len().next_multiple_of(ALIGNMENT);
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&payload_bytes.to_le_bytes());
        out.extend_from_slice(&[kind as u8, 0, 0, 0]);
        out.extend_from_slice(payload);
        out.resize(bytes, 0);
        let sum = checksum(self.seed(offset), &out[8..]);
        out[..8].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// Decodes the record at `offset` of a file's bytes, or returns the problem.
    pub(super) fn record<'a>(
        self,
        bytes: &'a [u8],
        offset: usize,
        file: &'a Path,
    ) -> Result<Record<'a>> {
        let rest = bytes.get(offset..).unwrap_or_default();
        let mut decoder = Decoder::new(rest, file, offset as u64);
        let found = decoder.u64("record checksum")?;
        let payload_bytes = decoder.u32("record payload length")? as usize;
        let kind = match decoder.u8("record kind")? {
            1 => RecordKind::Snapshot,
            2 => RecordKind::Edits,
            other => return Err(decoder.corrupt("record kind", "1 or 2", other)),
        };
        let reserved = decoder.take(3, "record reserved bytes")?;
        if reserved != [0; 3] {
            let found = reserved.escape_ascii();
            return Err(decoder.corrupt("record reserved bytes", "zeros", found));
        }
        let padded = decoder.take(payload_bytes.next_multiple_of(ALIGNMENT), "record payload")?;
        let end = RECORD_HEAD_BYTES + padded.len();
        let expected = checksum(self.seed(offset as u64), &rest[8..end]);
        if found != expected && !planted(Bug::ManifestTornAccepted) {
            return Err(Error::corruption(
                file,
                offset as u64,
                "record checksum",
                format_args!("{expected:#018x}"),
                format_args!("{found:#018x}"),
            ));
        }
        Ok(Record { kind, payload: &padded[..payload_bytes], end: offset + end })
    }

    /// Returns true if the bad record at `offset` ends at the end of the file and has no blank
    /// word: then the append was complete, and the record is damaged, not torn.
    pub(super) fn is_complete(bytes: &[u8], offset: usize) -> bool {
        let record = bytes.get(offset..).unwrap_or_default();
        let Some(&[a, b, c, d]) = record.get(8..12) else { return false };
        let padded = u64::from(u32::from_le_bytes([a, b, c, d])).next_multiple_of(ALIGNMENT as u64);
        RECORD_HEAD_BYTES as u64 + padded == record.len() as u64
            && record.chunks(ALIGNMENT).all(|word| word.iter().any(|&byte| byte != 0))
    }

    /// The offset of the next valid record after a bad one at `offset`.
    pub(super) fn valid_record_after(
        self,
        bytes: &[u8],
        offset: usize,
        file: &Path,
    ) -> Option<usize> {
        (offset + ALIGNMENT..bytes.len()).step_by(ALIGNMENT).find(|&candidate| {
            self.plausible(bytes, candidate) && self.record(bytes, candidate, file).is_ok()
        })
    }

    /// A cheap check that avoids creating an error at most wrong offsets.
    fn plausible(self, bytes: &[u8], offset: usize) -> bool {
        matches!(bytes.get(offset + 12..offset + RECORD_HEAD_BYTES), Some([1 | 2, 0, 0, 0]))
    }
}

/// A valid record.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: RecordKind,
    pub(super) payload: &'a [u8],
    /// The offset of the next record.
    pub(super) end: usize,
}
