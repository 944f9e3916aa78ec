//! [`Counts`]: how large an index is, for those who must not wait for its writer.
//!
//! Whoever divides the memory of the store asks each index, with locks held that all others need. A writer has the index for
//! many keys, with reads from the disk among them.
//!
//! Invariants:
//! 1. The counts are those of the last writer that has let the index go.

use super::Writer;
use super::node::BLOCK_WORDS;
use super::write::{EIGHTHS, key_block_count};
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::pmem::WORD_BYTES;

/// What a key takes beside its bytes: slot and record, and its part of inner nodes, about.
const RECORD_BYTES: u64 = 28;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Counts {
    keys: AtomicU64,
    /// Blocks that take space.
    blocks: AtomicU64,
    /// Those of them that are free.
    free: AtomicU64,
    live: AtomicU64,
    filled: [AtomicU64; EIGHTHS],
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
        for (count, nodes) in self.filled.iter().zip(nodes.filled) {
            count.store(nodes, Ordering::Relaxed);
        }
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

    /// What the region may have to grow by for so many new keys, with so many bytes. Where keys come evenly, all leaves may be
    /// full at the same time: the index becomes twice as large then, whatever few keys come.
    pub(super) fn room_bytes(&self, keys: u64, key_bytes: u64) -> u64 {
        let block_bytes = (BLOCK_WORDS * WORD_BYTES) as u64;
        let (used, all) = self.blocks();
        let new_bytes = key_bytes + keys * RECORD_BYTES;
        let share = (new_bytes * EIGHTHS as u64 / (used * block_bytes).max(1)) as usize;
        // Those that will be full once all have got their share, or one eighth more: they do not come that evenly.
        let least_filled = (EIGHTHS - 1).saturating_sub(share + 1);
        let filled =
            self.filled.iter().skip(least_filled).map(|count| count.load(Ordering::Relaxed));
        let split = filled.sum::<u64>().min(keys);
        let of_key = key_bytes.checked_div(keys).unwrap_or(0) as usize;
        let of_long_keys = keys * key_block_count(of_key) as u64 * block_bytes;
        // Leaves are half full after they have been split.
        (new_bytes * 2 + split * block_bytes + of_long_keys)
            .saturating_sub((all - used) * block_bytes)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }
}
