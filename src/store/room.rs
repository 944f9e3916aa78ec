//! Keeps a read-only replay within the memory budget.
//!
//! Invariants:
//! 1. Once memtables have taken their share, no operation is kept any more; the rest of the journal is read
//!    to its end and measured, so that the error can name a budget that suffices.

use std::path::Path;

use super::sizes::Sizes;
use crate::base::error::{Error, Result};
use crate::journal::Operation;
use crate::memtable::ChunkPool;

/// What an operation takes in a memtable beside its key and value, about.
const ENTRY_BYTES: u64 = 64;

/// The room that memtables have.
pub(super) struct Room {
    memory_budget: u64,
    bytes_max: u64,
    /// Bytes of the operations that were kept, and of all.
    kept_bytes: u64,
    total_bytes: u64,
    /// What memtables took when there was no room for more.
    full_at: Option<u64>,
}

impl Room {
    pub(super) fn new(sizes: &Sizes) -> Room {
        Room {
            memory_budget: sizes.memory_budget,
            bytes_max: sizes.memtables_bytes_max,
            kept_bytes: 0,
            total_bytes: 0,
            full_at: None,
        }
    }

    /// Whether there is room for the operation.
    pub(super) fn takes(&mut self, operation: &Operation<'_>, pool: &ChunkPool) -> bool {
        let bytes = (operation.key.len() + operation.value.len()) as u64 + ENTRY_BYTES;
        self.total_bytes += bytes;
        let used = pool.bytes_in_use() as u64;
        if self.full_at.is_none() && used + bytes > self.bytes_max {
            self.full_at = Some(used);
        }
        if self.full_at.is_none() {
            self.kept_bytes += bytes;
        }
        self.full_at.is_none()
    }

    /// Fails if something was not kept.
    pub(super) fn check(self, path: &Path) -> Result<()> {
        let Some(used) = self.full_at else { return Ok(()) };
        // What is kept takes at most this for each of its bytes, since chunks are never emptier than when
        // there are few.
        let per_byte = used as f64 / self.kept_bytes.max(1) as f64;
        let needed = self.total_bytes as f64 * per_byte.clamp(1.0, 4.0) * 1.1;
        // Half of the budget is for memtables.
        let sufficient = (2 * needed as u64 + used).next_multiple_of(1 << 20);
        Err(Error::JournalOverBudget {
            path: path.to_path_buf(),
            budget: self.memory_budget,
            sufficient: sufficient.max(self.memory_budget + (1 << 20)),
        })
    }
}
