//! How memtables and the page cache share the memory budget at present.
//!
//! Invariants:
//! 1. What memtables hold, and room for a memtable more, is not the cache's.
//! 2. The memtables' share grows when a memtable is frozen. It shrinks once none has been for a while: a
//!    store that is only read keeps more pages, and a pause between bursts costs no memory back and forth.

use super::store::Store;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// After so long without a frozen memtable, memory that memtables do not hold is the cache's.
const REST_NANOS: u64 = 2_000_000_000;

/// Who has what.
pub(crate) struct MemoryShares {
    /// Bytes of the budget that memtables have. The cache's capacity is set while this is held.
    memtables_bytes: Mutex<u64>,
    /// When a memtable was last frozen.
    frozen_nanos: AtomicU64,
}

impl MemoryShares {
    /// Memtables have so many bytes to begin with.
    pub(crate) fn new(memtables_bytes: u64) -> MemoryShares {
        MemoryShares {
            memtables_bytes: Mutex::new(memtables_bytes),
            frozen_nanos: AtomicU64::new(0),
        }
    }
}

impl Store {
    /// What memtables need, with what lies idle for the next.
    fn memtables_need(&self) -> u64 {
        let spare = self.sizes.memtable_bytes * 2;
        let taken = (self.pool.bytes_in_use() + self.pool.bytes_retained()) as u64 + spare;
        let step = self.sizes.memtable_bytes.max(1 << 20);
        taken.min(self.sizes.memtables_bytes_max).next_multiple_of(step)
    }

    fn set_memtables_share(&self, share: &mut u64, bytes: u64) {
        *share = bytes;
        self.cache.set_capacity(self.sizes.cache_bytes(self.workers, bytes) as usize);
    }

    /// A memtable has been frozen: the cache makes room for the next.
    pub(crate) fn grow_memtables_share(&self, now_nanos: u64) {
        self.memory_shares.frozen_nanos.store(now_nanos, Ordering::Relaxed);
        let mut share = self.memory_shares.memtables_bytes.lock();
        let need = self.memtables_need();
        if need > *share {
            self.set_memtables_share(&mut share, need);
        }
    }

    /// There is nothing to do in the background: if it has been so for a while, the cache gets what
    /// memtables do not hold.
    pub(crate) fn shrink_memtables_share(&self, now_nanos: u64) {
        let frozen_nanos = self.memory_shares.frozen_nanos.load(Ordering::Relaxed);
        if now_nanos.saturating_sub(frozen_nanos) < REST_NANOS {
            return;
        }
        let mut share = self.memory_shares.memtables_bytes.lock();
        let held = self.pool.bytes_in_use() as u64 + self.sizes.memtable_bytes;
        let step = self.sizes.memtable_bytes.max(1 << 20);
        let bytes = held.min(self.sizes.memtables_bytes_max).next_multiple_of(step);
        if bytes < *share {
            self.pool.release_idle();
            self.set_memtables_share(&mut share, bytes);
        }
    }
}
