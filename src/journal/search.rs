//! What lies beyond a bad record: the search that tells a torn tail from damage.

use super::format::{Position, RecordHeader, RecordKind};
use super::window::{Found, Window};
use crate::base::error::Result;

/// What was found beyond a bad record.
#[derive(Default)]
pub(super) struct Later {
    /// Valid batches.
    pub(super) records: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Whether any byte is not zero.
    pub(super) any_bytes: bool,
    /// The farthest place that a valid record knows to have been synced; `None` without any record.
    pub(super) watermark: Option<Position>,
    /// The largest sequence number that a valid record knows to be durable.
    pub(super) durable: u64,
    /// The first valid batch: index of its segment, offset, first sequence number.
    pub(super) first: Option<(usize, u64, u64)>,
}

impl Later {
    /// Notes all valid records at or after `offset` of one segment.
    pub(super) fn search(
        &mut self,
        window: &mut Window,
        seed: u64,
        index: usize,
        mut offset: u64,
    ) -> Result<()> {
        while let Some(place) = window.next_nonzero_word(offset)? {
            self.any_bytes = true;
            offset = place + 8;
            if let Found::Record(header) = window.examine(seed, place)? {
                self.note(&header, index, place);
                offset = place + header.record_bytes();
            }
        }
        Ok(())
    }

    fn note(&mut self, header: &RecordHeader, index: usize, offset: u64) {
        self.watermark = self.watermark.max(Some(header.watermark));
        match header.kind {
            RecordKind::Batch => {
                self.records += 1;
                self.bytes += header.record_bytes();
                self.durable = self.durable.max(header.durable);
                self.first = self.first.or(Some((index, offset, header.seqno)));
            }
            RecordKind::Roll => {}
            RecordKind::Clean => self.durable = self.durable.max(header.seqno),
        }
    }
}
