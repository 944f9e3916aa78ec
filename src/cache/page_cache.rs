//! The page cache: pages of data files, verified and decompressed, up to a memory limit.
//!
//! A hit takes no lock. Unless it is the page's first hit in a while, it also writes to no memory
//! that another thread uses: the reader pins itself (on its own cache line), finds the page in the
//! [`Index`], and reads its bytes in place. Insertion and eviction take one short lock.
//!
//! Invariants:
//! 1. `get` shows the bytes that were inserted for that key.
//! 2. Memory stays within the capacity. It includes pages, tables, and what waits for the end of a
//!    grace period.
//! 3. The cache may evict any page at any time, and may refuse an insertion. Nothing relies on a
//!    page being cached after it was inserted.

use std::sync::Arc;

use super::frames::{Frames, PageHome};
use super::grace::{Guard, Readers};
use super::index::{Index, Locator, PackedKey};
use super::kept::Owners;
use super::pool::SlotPool;
use super::rows::RowCache;
use crate::base::counter::ShardedCounters;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::prefetch::prefetch;
use crate::base::slice::Slice;
use crate::base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::base::sync::{Mutex, MutexGuard};

/// The key of a page: its file and its first unit (of 4 KiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageKey {
    pub(crate) file: FileId,
    pub(crate) unit: u32,
}

/// Set in the unit of a value's key: a file may have a page and a value that begin in one unit.
const VALUE_BIT: u32 = 1 << 31;

impl PageKey {
    /// The key of a value that begins in `unit` of `file`, and is the only one there that is cached
    /// as a value. `None` if the file is too large for values to be cached.
    #[inline]
    pub(crate) fn of_value(file: FileId, unit: u32) -> Option<PageKey> {
        (unit & VALUE_BIT == 0).then_some(PageKey { file, unit: unit | VALUE_BIT })
    }
}

/// The value of keeping a page: index and filter pages serve many leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageClass {
    /// Entries.
    Leaf,
    /// Separators of a table's index.
    Index,
    /// Fingerprints.
    Filter,
    /// A value in a blob file: not a page, but all of its bytes.
    Value,
}

/// Counters since the cache was created, and its current content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStatistics {
    pub(crate) hits_leaf: u64,
    pub(crate) hits_index: u64,
    pub(crate) hits_filter: u64,
    pub(crate) hits_value: u64,
    /// Of all classes together.
    pub(crate) misses: u64,
    pub(crate) misses_index: u64,
    pub(crate) misses_filter: u64,
    pub(crate) misses_value: u64,
    /// Pages that were not cached because no memory became free in time.
    pub(crate) refusals: u64,
    pub(crate) evictions: u64,
    pub(crate) pages: u64,
    /// Memory of evicted values that readers keep; not the cache's.
    pub(crate) left_bytes: u64,
    /// Memory that rows take.
    pub(crate) row_cache_bytes: u64,
    /// All memory used, including the cache's tables and the row cache.
    pub(crate) bytes: u64,
    pub(crate) capacity_bytes: u64,
}

/// Counters: hits by class, then misses by class, then refusals.
const MISSES: usize = 4;
const REFUSALS: usize = 8;

/// A larger part of the cache than this is never one value.
const VALUE_SHARE_MAX: usize = 16;

/// Units of a file whose pages are removed under one lock.
const REMOVE_UNITS: u32 = 64;
/// Slots that are examined under one lock.
const REMOVE_SLOTS: u32 = 256;

/// The page cache.
pub(crate) struct Cache {
    /// From `Arc::into_raw`; replaced under `pool`'s lock.
    index: AtomicPtr<Index>,
    frames: Arc<Frames>,
    owners: Owners,
    readers: Readers,
    counters: ShardedCounters<9>,
    pool: Mutex<SlotPool>,
    /// The largest size of pages and rows together.
    capacity_bytes: AtomicU64,
    rows: RowCache,
}

impl Cache {
    /// A cache without a row cache, of up to `capacity_bytes`.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn new(capacity_bytes: usize) -> Cache {
        Cache::with_readers(capacity_bytes, 0, Readers::Shared)
    }

    /// A cache of up to `capacity_bytes`, of which the row cache may use up to
    /// `row_cache_bytes_max`. Memory is used as pages and rows are added. If `deterministic`, the
    /// reuse of memory does not depend on readers of other caches.
    pub(crate) fn with_row_cache(
        capacity_bytes: usize,
        row_cache_bytes_max: usize,
        deterministic: bool,
    ) -> Cache {
        let readers = if deterministic { Readers::own() } else { Readers::Shared };
        Cache::with_readers(capacity_bytes, row_cache_bytes_max, readers)
    }

    fn with_readers(capacity_bytes: usize, row_cache_bytes_max: usize, readers: Readers) -> Cache {
        let index = Arc::new(Index::new(0));
        let frames = Arc::new(Frames::default());
        let cache = Cache {
            pool: Mutex::new(SlotPool::new(&index, readers.clone())),
            readers,
            index: AtomicPtr::new(Arc::into_raw(index).cast_mut()),
            owners: Owners::new(&frames),
            frames,
            counters: ShardedCounters::new(),
            capacity_bytes: AtomicU64::new(0),
            rows: RowCache::new(row_cache_bytes_max),
        };
        cache.set_capacity(capacity_bytes);
        cache
    }

    /// The row cache, which shares its memory with the pages.
    #[inline]
    pub(crate) fn row_cache(&self) -> &RowCache {
        &self.rows
    }

    /// Reduces the memory of pages by the growth of the row cache.
    pub(crate) fn row_cache_has_grown(&self) {
        self.divide_capacity();
    }

    /// Calls `f` with the page's bytes if it is cached. `f` must be short and must not call the
    /// cache.
    #[inline]
    pub(crate) fn get<R>(
        &self,
        key: PageKey,
        class: PageClass,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        let guard = self.readers.pin();
        match self.find(key, &guard) {
            Some((entry, locator)) => {
                entry.mark_used(locator);
                self.counters.add(counter(class), 1);
                // SAFETY: `guard` has pinned this thread since before the page was found.
                Some(f(unsafe { self.frames.bytes(locator.slot(), locator.home()) }))
            }
            None => {
                self.counters.add(MISSES + counter(class), 1);
                None
            }
        }
    }

    /// Returns the value with this key ([`PageKey::of_value`]) if it is cached. It is shared with the cache, not copied,
    /// unless readers keep very much.
    #[inline]
    pub(crate) fn value(&self, key: PageKey) -> Option<Slice> {
        let guard = self.readers.pin();
        let Some((entry, locator)) = self.find(key, &guard) else {
            self.counters.add(MISSES + counter(PageClass::Value), 1);
            return None;
        };
        entry.mark_used(locator);
        self.counters.add(counter(PageClass::Value), 1);
        if self.owners.is_limited() && self.frames.has_given_back() {
            self.take_back();
        }
        let slot = locator.slot();
        Some(match locator.home() {
            // SAFETY: `guard` has pinned this thread since before the value was found.
            PageHome::Heap => unsafe { self.frames.heap_page(slot).clone() },
            // SAFETY: likewise.
            home => unsafe { self.owners.keep(slot, home) },
        })
    }

    /// Slots have been given back: perhaps values need not be copied any more.
    #[cold]
    fn take_back(&self) {
        let mut pool = self.pool.lock();
        pool.take_back(&self.frames);
        self.owners.limit(pool.is_much_left());
    }

    /// Caches a value, unless it is larger than a sixteenth of the cache. As a page, it must be used
    /// again before the clock skips it: values that are read once replace one another.
    pub(crate) fn insert_value(&self, key: PageKey, value: &Slice) {
        if value.len() <= self.capacity_bytes.load(Ordering::Relaxed) as usize / VALUE_SHARE_MAX {
            self.admit(key, PageClass::Value, value.len(), false, |slot, home| {
                // SAFETY: as `admit` says.
                unsafe { self.frames.fill_shared(slot, home, value) };
            });
        }
    }

    /// Prefetches the page's index entry into the processor's cache, for a later `get`.
    #[inline]
    pub(crate) fn prefetch_place(&self, key: PageKey) {
        let _guard = self.readers.pin();
        let index = self.index.load(Ordering::Acquire);
        if let Some(key) = PackedKey::new(key) {
            // SAFETY: an index that has been replaced is dropped only after a grace period.
            unsafe { &*index }.prefetch(key);
        }
    }

    /// Prefetches the start of the page, if it is cached, and the cache lines around `offset` into
    /// the processor's cache, for a later `get`. Does not count as a use.
    #[inline]
    pub(crate) fn prefetch_bytes(&self, key: PageKey, offset: usize) {
        let guard = self.readers.pin();
        if let Some((_, locator)) = self.find(key, &guard) {
            // SAFETY: `guard` has pinned this thread since before the page was found.
            let bytes = unsafe { self.frames.bytes(locator.slot(), locator.home()) };
            for at in [0, 128, offset, offset + 64] {
                if let Some(byte) = bytes.get(at) {
                    prefetch(byte);
                }
            }
        }
    }

    #[inline]
    fn find<'a>(
        &'a self,
        key: PageKey,
        _guard: &'a Guard,
    ) -> Option<(&'a super::index::Entry, Locator)> {
        let index = self.index.load(Ordering::Acquire);
        // SAFETY: an index that has been replaced is dropped only after a grace period, and the
        // caller is pinned for as long as the result lives.
        unsafe { &*index }.find(PackedKey::new(key)?)
    }

    /// Whether the page is cached; does not count as a use.
    pub(crate) fn contains(&self, key: PageKey) -> bool {
        self.find(key, &self.readers.pin()).is_some()
    }

    /// Caches a copy of `bytes` (usually one unit of 4 KiB, more for a large page).
    pub(crate) fn insert(&self, key: PageKey, class: PageClass, bytes: &[u8]) {
        self.insert_copy(key, class, bytes, false);
    }

    /// As [`Cache::insert`], for a page that was read for a `get` that follows. That `get` does not
    /// count as its second use.
    pub(crate) fn insert_awaited(&self, key: PageKey, class: PageClass, bytes: &[u8]) {
        self.insert_copy(key, class, bytes, true);
    }

    fn insert_copy(&self, key: PageKey, class: PageClass, bytes: &[u8], awaited: bool) {
        self.admit(key, class, bytes.len(), awaited, |slot, home| {
            // SAFETY: as `admit` says.
            unsafe { self.frames.fill(slot, home, bytes) };
        });
    }

    /// Takes a slot for a page of `len` bytes, and publishes it once `fill` has filled it. The slot comes from the free
    /// slots, which no reader sees, for this page.
    fn admit(
        &self,
        key: PageKey,
        class: PageClass,
        len: usize,
        awaited: bool,
        fill: impl FnOnce(u32, PageHome),
    ) {
        let Some(packed) = PackedKey::new(key) else { return };
        if self.contains(key) {
            return;
        }
        let taken = {
            let (mut pool, index) = self.lock();
            if len > UNIT_BYTES && len > pool.capacity_bytes() / 4 {
                return;
            }
            let taken = pool.take(len, &self.frames, index);
            if class == PageClass::Value
                && let Some((slot, PageHome::Frame(_) | PageHome::MultiUnit(_))) = taken
            {
                pool.prepare_kept(slot, &self.frames);
            }
            taken
        };
        let Some((slot, home)) = taken else {
            self.counters.add(REFUSALS, 1);
            return;
        };
        // The lock is not held during the copy.
        fill(slot, home);
        let (mut pool, index) = self.lock();
        pool.publish(packed, Locator::new(slot, home, class, awaited), &self.frames, index);
        self.owners.limit(pool.is_much_left());
    }

    /// Removes every page of a deleted file, units `0..units`, and every value if it is a blob file.
    pub(crate) fn remove_file(&self, file: FileId, units: u32, has_values: bool) {
        if units as usize > self.pool.lock().pages() {
            // A large file and a small cache: search the cache instead.
            let mut first = 0;
            loop {
                let (mut pool, index) = self.lock();
                if !pool.remove_file(file, first, REMOVE_SLOTS, &self.frames, index) {
                    return;
                }
                pool.seal();
                pool.reclaim(&self.frames);
                first += REMOVE_SLOTS;
            }
        }
        let mut found = Vec::new();
        for first in (0..units).step_by(REMOVE_UNITS as usize) {
            {
                let guard = self.readers.pin();
                let last = units.min(first.saturating_add(REMOVE_UNITS));
                let bits: &[u32] = if has_values { &[0, VALUE_BIT] } else { &[0] };
                let keys = (first..last).flat_map(|unit| {
                    bits.iter().map(move |bit| PageKey { file, unit: unit | bit })
                });
                found.extend(keys.filter(|&key| self.find(key, &guard).is_some()));
            }
            if !found.is_empty() {
                let (mut pool, index) = self.lock();
                for key in found.drain(..).filter_map(PackedKey::new) {
                    pool.remove(key, &self.frames, index);
                }
                pool.seal();
                pool.reclaim(&self.frames);
            }
        }
    }

    /// Changes the capacity, and evicts pages as needed.
    pub(crate) fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity_bytes.store(capacity_bytes as u64, Ordering::Relaxed);
        self.divide_capacity();
    }

    /// The capacity.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn divide_capacity(&self) {
        let (mut pool, index) = self.lock();
        // Read under the lock, so that the last thread to get the lock uses the latest numbers.
        let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed) as usize;
        let capacity_bytes = capacity_bytes.saturating_sub(self.rows.bytes());
        match pool.resize(capacity_bytes, &self.frames, index) {
            Some(new) => {
                let raw = Arc::into_raw(Arc::clone(&new)).cast_mut();
                let old = self.index.swap(raw, Ordering::AcqRel);
                // SAFETY: `old` came from `Arc::into_raw`, and this is the one time it is taken
                // back: it is no longer in `self.index`, which changes only under the lock.
                pool.retire_index(unsafe { Arc::from_raw(old) });
                pool.shrink(&self.frames, &new);
            }
            None => pool.shrink(&self.frames, index),
        }
    }

    /// The locked pool, and the index, which is not replaced while the lock is held.
    fn lock(&self) -> (MutexGuard<'_, SlotPool>, &Index) {
        let pool = self.pool.lock();
        // SAFETY: the index is replaced only under the lock. The reference outlives the guard only
        // as far as the borrow checker can see: all callers drop both together.
        let index = unsafe { &*self.index.load(Ordering::Acquire) };
        (pool, index)
    }

    /// Resident bytes of frames and multi-unit frames, according to the operating system.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(super) fn resident_bytes(&self) -> usize {
        self.frames.resident_units() * UNIT_BYTES
    }

    /// The slots' memory, which may outlive the cache.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(super) fn frames(&self) -> Arc<Frames> {
        Arc::clone(&self.frames)
    }

    /// Counters and sizes.
    pub(crate) fn statistics(&self) -> CacheStatistics {
        let hits = |class| self.counters.sum(counter(class));
        let misses = |class| self.counters.sum(MISSES + counter(class));
        let (misses_index, misses_filter) = (misses(PageClass::Index), misses(PageClass::Filter));
        let misses_value = misses(PageClass::Value);
        let mut pool = self.pool.lock();
        pool.take_back(&self.frames);
        CacheStatistics {
            hits_leaf: hits(PageClass::Leaf),
            hits_index: hits(PageClass::Index),
            hits_filter: hits(PageClass::Filter),
            hits_value: hits(PageClass::Value),
            misses: misses(PageClass::Leaf) + misses_index + misses_filter + misses_value,
            misses_index,
            misses_filter,
            misses_value,
            refusals: self.counters.sum(REFUSALS),
            evictions: pool.evictions(),
            pages: pool.pages() as u64,
            bytes: (pool.used_bytes() + self.rows.bytes()) as u64,
            left_bytes: pool.left_bytes() as u64,
            row_cache_bytes: self.rows.bytes() as u64,
            capacity_bytes: (pool.capacity_bytes() + self.rows.bytes()) as u64,
        }
    }
}

#[inline]
fn counter(class: PageClass) -> usize {
    match class {
        PageClass::Leaf => 0,
        PageClass::Index => 1,
        PageClass::Filter => 2,
        PageClass::Value => 3,
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if !self.owners.is_idle() {
            let end = self.pool.get_mut().slots_begun();
            // SAFETY: `&mut self`: no reader is left.
            unsafe { self.frames.close(end) };
        }
        // SAFETY: `&mut self`: no reader is left, and the index came from `Arc::into_raw`.
        drop(unsafe { Arc::from_raw(*self.index.get_mut()) });
    }
}
