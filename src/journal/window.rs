//! A file read front to back through one buffer.
//!
//! Invariants:
//! 1. The buffer is about `WINDOW_BYTES`; only a record that is known to lie within the file makes it
//!    larger, and only until the window moves on.

use std::sync::Arc;

use super::format::{RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, seed_at};
use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::vfs::File;

/// How much is read at once.
const WINDOW_BYTES: u64 = 256 * 1024;

/// What stands at a place of a segment.
pub(super) enum Found {
    /// A valid record.
    Record(RecordHeader),
    /// No valid record; what seems to belong to the bad one is `extent` bytes long.
    Bad { extent: u64, what: &'static str },
}

/// A part of a file, in memory.
pub(super) struct Window {
    file: Arc<dyn File>,
    len: u64,
    start: u64,
    buf: Vec<u8>,
}

impl Window {
    /// A window on `file`.
    pub(super) fn new(file: Arc<dyn File>) -> Result<Window> {
        let len = file.len()?;
        Ok(Window { file, len, start: 0, buf: Vec::new() })
    }

    /// Length of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The `n` bytes at `offset`.
    pub(super) fn bytes(&mut self, offset: u64, n: u64) -> Result<&[u8]> {
        if offset.checked_add(n).is_none_or(|end| end > self.len) {
            return Err(Error::corruption(
                self.file.path(),
                offset,
                "journal segment",
                format_args!("{n} bytes"),
                format_args!("a file of {} bytes", self.len),
            ));
        }
        let inside = offset >= self.start && offset + n <= self.start + self.buf.len() as u64;
        if !inside {
            self.load(offset, n)?;
        }
        // Both fit: the range lies within the buffer.
        let at = (offset - self.start) as usize;
        Ok(self.buf.get(at..at + n as usize).unwrap_or_default())
    }

    fn load(&mut self, offset: u64, n: u64) -> Result<()> {
        let wanted = n.max(WINDOW_BYTES).min(self.len - offset);
        let wanted = usize::try_from(wanted)
            .map_err(|_| Error::invalid(format!("a record of {wanted} bytes on this machine")))?;
        self.buf.clear();
        if self.buf.capacity() as u64 > 2 * WINDOW_BYTES {
            self.buf.shrink_to(wanted);
        }
        self.buf.resize(wanted, 0);
        self.start = offset;
        if let Err(error) = self.file.read_at(offset, &mut self.buf) {
            self.buf.clear();
            return Err(error);
        }
        Ok(())
    }

    /// What stands at `offset`, which is a multiple of 8, in the segment with this seed.
    pub(super) fn examine(&mut self, segment_seed: u64, offset: u64) -> Result<Found> {
        let seed = seed_at(segment_seed, offset);
        let room = self.len.saturating_sub(offset);
        if room < RECORD_HEADER_BYTES as u64 {
            return Ok(Found::Bad { extent: room, what: "journal record header" });
        }
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes.copy_from_slice(self.bytes(offset, RECORD_HEADER_BYTES as u64)?);
        let Some(header) = RecordHeader::decode(&bytes, seed) else {
            let extent = RECORD_HEADER_BYTES as u64;
            return Ok(Found::Bad { extent, what: "journal record header" });
        };
        let extent = header.record_bytes();
        if extent > room {
            return Ok(Found::Bad { extent: room, what: "journal record length" });
        }
        let record = self.bytes(offset, extent)?;
        let (payload, padding) = record
            .get(header.header_bytes()..)
            .and_then(|rest| rest.split_at_checked(header.payload_bytes as usize))
            .unwrap_or_default();
        let whole = checksum(seed, payload) == header.payload_checksum
            && padding.iter().all(|&byte| byte == 0);
        if whole || planted(Bug::ReplayPayloadUnchecked) {
            Ok(Found::Record(header))
        } else {
            Ok(Found::Bad { extent, what: "journal record payload" })
        }
    }

    /// The first place from `offset` on, in steps of 8, whose word is not zero.
    pub(super) fn next_nonzero_word(&mut self, offset: u64) -> Result<Option<u64>> {
        self.next_word(offset, self.len, |word| word != [0; RECORD_ALIGN as usize])
    }

    /// Whether any whole word in the `extent` bytes at `offset` is zero.
    pub(super) fn has_zero_word(&mut self, offset: u64, extent: u64) -> Result<bool> {
        let end = (offset + extent).min(self.len);
        Ok(self.next_word(offset, end, |word| word == [0; RECORD_ALIGN as usize])?.is_some())
    }

    fn next_word(
        &mut self,
        mut offset: u64,
        end: u64,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<u64>> {
        while offset < end {
            let n = (end - offset).min(WINDOW_BYTES / 4);
            let words = self.bytes(offset, n)?.chunks_exact(RECORD_ALIGN as usize);
            if let Some(index) = words.clone().position(&is_wanted) {
                return Ok(Some(offset + index as u64 * RECORD_ALIGN));
            }
            let whole = n - n % RECORD_ALIGN;
            if whole == 0 {
                break;
            }
            offset += whole;
        }
        Ok(None)
    }
}
