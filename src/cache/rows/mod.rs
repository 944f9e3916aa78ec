//! The row cache: single entries that point reads had to read from disk repeatedly.
//!
//! A page of 4 KiB holds about thirty small entries. If a few keys are read much more often than
//! their neighbours, a page cache mostly caches the neighbours; the row cache holds only the keys
//! themselves. Entries of cached pages are not admitted, because the page already uses memory for
//! them.
//!
//! A row is the newest version of a key in a tree. Before a tree shows a version with a memtable's
//! entries, the store does the following, in this order (`KeyspaceState::installed`):
//! - It marks running reads as outdated, by the number that `admit` checks.
//! - It calls [`RowCache::wait_for_admissions`].
//! - It calls [`RowCache::supersede`] for each key of the memtable.
//!
//! Invariants:
//! 1. A row is a put. It is the newest version of its key in the newest version of its keyspace's
//!    tree, and in each older version that holds the same memtables.
//! 2. A read takes no lock. It writes to shared memory only to count the use of a row, and only
//!    until the count is saturated.
//! 3. A row is admitted when its key is offered for the second time, as far as the shard remembers.
//! 4. Rows have at most half of the memory that they share with pages, once [`RowCache::fit`] has been told how much that is.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
mod shard;
#[cfg(test)]
mod tests;

use self::shard::Shard;
use crate::base::entry::EntryRef;
use crate::base::ids::KeyspaceId;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{CachePadded, Mutex};

/// Bytes of key and value of the largest row. Beyond this size, a page holds little more than the
/// row.
pub(crate) const ROW_BYTES_MAX: usize = if cfg!(loom) { 16 } else { 2048 };
/// A smaller row cache is not worth having.
const SHARD_BYTES_MIN: usize = 8 << 10;
/// A shard of at least this size may be divided, for concurrent writers.
const SHARD_BYTES: usize = 512 << 10;
const SHARDS_MAX: usize = 64;

/// See the module's description.
pub(crate) struct RowCache {
    shards: Box<[CachePadded<Shard>]>,
    /// Memory that is in use.
    bytes: AtomicU64,
    bytes_max: usize,
    /// The part of the rings that rows may use now, in percent; none are admitted at 0.
    percent: AtomicU64,
    fitting: Mutex<()>,
}

impl RowCache {
    /// A cache of up to `bytes_max`. Memory is used as rows are added. The cache is empty if that
    /// is too little, or if the system refuses.
    pub(crate) fn new(bytes_max: usize) -> RowCache {
        let count = match bytes_max {
            0..SHARD_BYTES_MIN => 0,
            _ => (bytes_max / SHARD_BYTES).clamp(1, SHARDS_MAX).next_power_of_two().min(SHARDS_MAX),
        };
        let shards: Option<Box<[_]>> =
            (0..count).map(|_| Shard::reserve(bytes_max / count).map(CachePadded::new)).collect();
        let shards = shards.unwrap_or_default();
        let memory: usize = shards.iter().map(|shard| shard.doorkeeper_bytes()).sum();
        let (bytes, percent) = (AtomicU64::new(memory as u64), AtomicU64::new(100));
        RowCache { shards, bytes, bytes_max, percent, fitting: Mutex::default() }
    }

    /// Sets the size of the memory that rows share with pages. Rows may use a third of it. If they use more than half, all
    /// rows are dropped. All rows are also dropped if they use their whole part and it becomes at least twice as large: the
    /// rings get another length.
    pub(crate) fn fit(&self, shared_bytes: usize) {
        let rings: usize = self.shards.iter().map(|shard| shard.ring_bytes_max()).sum();
        let fixed = self.bytes_max.saturating_sub(rings);
        // A budget may be beyond any machine.
        let wanted = (shared_bytes / 3).saturating_sub(fixed) as f64 / rings.max(1) as f64;
        let wanted = (wanted.min(1.0) * 100.0) as u64;
        let _alone = self.fitting.lock();
        let (percent, used) = (self.percent.load(Ordering::Relaxed), self.bytes());
        let allowed = fixed + rings / 100 * percent as usize;
        // A part that is only slightly smaller would soon be exceeded again.
        let is_much = used > shared_bytes / 2 && wanted <= percent / 4 * 3;
        let is_full = percent == 0 || used >= allowed / 8 * 7;
        let is_little =
            is_full && (wanted >= 2 * percent.max(1) || (wanted == 100 && percent < 60));
        if is_much || is_little {
            self.percent.store(wanted, Ordering::Relaxed);
            for shard in &self.shards {
                shard.empty(wanted as f64 / 100.0, &self.bytes);
            }
        }
    }

    /// Drops all rows.
    pub(crate) fn clear(&self) {
        let _alone = self.fitting.lock();
        let part = self.percent.load(Ordering::Relaxed) as f64 / 100.0;
        self.shards.iter().for_each(|shard| shard.empty(part, &self.bytes));
    }

    /// Memory in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    /// Whether the cache is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.is_empty())
    }

    #[inline]
    fn shard(&self, hash: RowHash) -> Option<&Shard> {
        // The number of shards is a power of two, and the top bits choose.
        let number = ((hash.0 >> 32) * self.shards.len() as u64) >> 32;
        self.shards.get(number as usize).map(|shard| &**shard)
    }

    /// Calls `f` with the key's row, if it is cached.
    #[inline]
    pub(crate) fn get<R>(
        &self,
        keyspace: KeyspaceId,
        hash: u64,
        key: &[u8],
        f: impl FnOnce(EntryRef<'_>) -> R,
    ) -> Option<R> {
        let hash = RowHash::new(keyspace, hash);
        let shard = self.shard(hash)?;
        if shard.is_empty() {
            return None;
        }
        shard.get(hash, keyspace, key, f)
    }

    /// Offers a put that was read from disk: the newest version of its key in the tree. It is
    /// admitted if it was offered before, and `is_current` confirms that it is still the newest.
    /// Returns true if memory has grown.
    pub(crate) fn admit(
        &self,
        keyspace: KeyspaceId,
        hash: u64,
        entry: EntryRef<'_>,
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        let hash = RowHash::new(keyspace, hash);
        if entry.key.len() + entry.value.len() > ROW_BYTES_MAX {
            return false;
        }
        let Some(shard) = self.shard(hash) else { return false };
        if self.percent.load(Ordering::Relaxed) == 0 {
            return false;
        }
        shard.admit(hash, keyspace, entry, is_current, &self.bytes)
    }

    /// Waits for every `admit` that has already called `is_current`.
    pub(crate) fn wait_for_admissions(&self) {
        for shard in &self.shards {
            shard.wait_for_admissions();
        }
    }

    /// Called before the tree shows `entry` as the newest version of its key. Replaces the key's
    /// row, or removes it if `entry` cannot be a row. Returns true if memory has grown.
    pub(crate) fn supersede(&self, keyspace: KeyspaceId, hash: u64, entry: EntryRef<'_>) -> bool {
        let hash = RowHash::new(keyspace, hash);
        let Some(shard) = self.shard(hash) else { return false };
        shard.supersede(hash, keyspace, entry, &self.bytes)
    }

    /// Panics if [`RowCache::bytes`] differs from the memory in use.
    #[cfg(any(test, planted))]
    pub(crate) fn check_bytes(&self) {
        // All writers are kept out, so that nothing is counted in the meantime.
        let held: Vec<_> = self.shards.iter().map(|shard| shard.hold()).collect();
        let used: usize = held.iter().zip(&self.shards).map(|(w, shard)| shard.bytes(w)).sum();
        assert_eq!(self.bytes(), used, "memory of the row cache is counted wrong");
    }
}

/// Where a key's row is: its hash, mixed with the keyspace's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowHash(u64);

impl RowHash {
    #[inline]
    fn new(keyspace: KeyspaceId, hash: u64) -> RowHash {
        let mixed = hash ^ u64::from(keyspace.0).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // `u64::MAX` marks the unused rest of the ring.
        RowHash((mixed ^ mixed >> 29).min(u64::MAX - 1))
    }
}
