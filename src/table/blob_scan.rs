//! Reads many values of a blob file in ascending order, as compactions do that copy them out: ahead, in long runs. A
//! value at a time, each was a disk read.
//!
//! Invariants:
//! 1. What is read ahead and damaged is no error: only a value that is asked for is.

use std::ops::Range;
use std::sync::Arc;

use super::blob::{BlobFile, PIECE_BYTES};
use super::blob_pointer::BlobPointer;
use crate::base::error::Result;

/// What is read at first; twice as much with each run that follows the last.
const AHEAD_UNITS_MIN: u32 = 4;
/// The most that is read ahead.
const AHEAD_UNITS_MAX: u32 = 32;

/// Values of one blob file.
pub(crate) struct BlobScan {
    file: Arc<BlobFile>,
    /// The units that have been read, and their part of the values.
    units: Range<u32>,
    bytes: Vec<u8>,
    ahead_units: u32,
    ahead_units_max: u32,
}

impl BlobScan {
    /// Reads ahead no more than `bytes_max`. A longer value is read and kept as a whole: see `memory_bytes`.
    pub(crate) fn new(file: Arc<BlobFile>, bytes_max: usize) -> BlobScan {
        let ahead_units_max = (bytes_max / PIECE_BYTES).clamp(1, AHEAD_UNITS_MAX as usize) as u32;
        let ahead_units = AHEAD_UNITS_MIN.min(ahead_units_max);
        BlobScan { file, units: 0..0, bytes: Vec::new(), ahead_units, ahead_units_max }
    }

    /// A value.
    ///
    /// # Errors
    /// As [`BlobFile::read`].
    pub(crate) fn read(&mut self, pointer: &BlobPointer) -> Result<&[u8]> {
        self.file.check_bounds(pointer)?;
        let units = self.file.units_of(pointer);
        if units.start < self.units.start || self.units.end < units.end {
            self.read_ahead(units)?;
        }
        let from = pointer.offset.saturating_sub(u64::from(self.units.start) * PIECE_BYTES as u64);
        let from = (from as usize).min(self.bytes.len());
        let to = (from + pointer.length as usize).min(self.bytes.len());
        let value = self.bytes.get(from..to).unwrap_or_default();
        self.file.check_value(pointer, value)?;
        Ok(value)
    }

    /// The memory that keeps what was read last.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn read_ahead(&mut self, wanted: Range<u32>) -> Result<()> {
        let follows = self.units.start <= wanted.start && wanted.start <= self.units.end;
        self.ahead_units = match follows {
            true => (self.ahead_units * 2).min(self.ahead_units_max),
            false => AHEAD_UNITS_MIN.min(self.ahead_units_max),
        };
        let end = wanted.end.max(wanted.start.saturating_add(self.ahead_units));
        let end = end.min(self.file.value_units()).max(wanted.end);
        if self.read_units(wanted.start..end).is_ok() {
            return Ok(());
        }
        self.read_units(wanted)
    }

    fn read_units(&mut self, units: Range<u32>) -> Result<()> {
        self.units = 0..0;
        self.bytes.clear();
        self.bytes.reserve_exact(units.len() * PIECE_BYTES);
        let bytes = &mut self.bytes;
        self.file.read_units(units.clone(), &mut |_, piece| bytes.extend_from_slice(piece))?;
        self.units = units;
        Ok(())
    }
}
