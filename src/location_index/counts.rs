//! [`Counts`]: how large an index is, for those who must not wait for its writer.
//!
//! Whoever divides the memory of the store asks each index, with locks held that all others need. A writer has the index for
//! many keys, with reads from the disk among them.
//!
//! Invariants:
//! 1. The counts are those of the last writer that has let the index go.

use super::Writer;
use crate::base::sync::plain::{AtomicU64, Ordering};

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Counts {
    keys: AtomicU64,
    /// Blocks that take space.
    blocks: AtomicU64,
    /// Those of them that are free.
    free: AtomicU64,
    live: AtomicU64,
    memory_bytes: AtomicU64,
}

impl Counts {
    /// The writer lets the index go, whose region has `count` blocks.
    pub(super) fn note(&self, writer: &Writer, count: u32) {
        let Writer { free, nodes, keys, uses, .. } = writer;
        let blocks = u64::from(count - free.away());
        let used = blocks - u64::from(free.left());
        let live = used - nodes.count + nodes.packed_count(*keys);
        let memory_bytes = size_of_val(uses.as_slice()) as u64 + free.memory_bytes();
        self.keys.store(*keys, Ordering::Relaxed);
        self.blocks.store(blocks, Ordering::Relaxed);
        self.free.store(u64::from(free.left()), Ordering::Relaxed);
        self.live.store(live, Ordering::Relaxed);
        self.memory_bytes.store(memory_bytes, Ordering::Relaxed);
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// The number of blocks that are in use, of those that take space.
    pub(super) fn blocks(&self) -> (u64, u64) {
        let blocks = self.blocks.load(Ordering::Relaxed);
        (blocks.saturating_sub(self.free.load(Ordering::Relaxed)), blocks)
    }

    pub(super) fn live_blocks(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}
