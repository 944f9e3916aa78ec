//! The page cache: pages of data files, verified and decompressed, up to a memory limit.
//!
//! A hit takes no lock. Unless it is the page's first hit in a while, it also writes to no memory
//! that another thread uses: the reader pins itself (on its own cache line), finds the page in the
//! index, and reads its bytes in place. Insertion and eviction take one short lock, that of the page's [`Stripe`].
//!
//! Invariants:
//! 1. `get` shows the bytes that were inserted for that key.
//! 2. Memory stays within the capacity. It includes pages, tables, and what waits for the end of a
//!    grace period.
//! 3. The cache may evict any page at any time, and may refuse an insertion. Nothing relies on a
//!    page being cached after it was inserted.

use super::frames::{Frames, PageHome};
use super::grace::{Guard, Readers};
use super::index::{Entry, Locator, PackedKey};
use super::rows::RowCache;
use super::stripe::{Admitted, Stripe};
use crate::base::counter::ShardedCounters;
use crate::base::ids::FileId;
use crate::base::planted::{Bug, planted};
use crate::base::prefetch::prefetch;
use crate::base::slice::Slice;
use crate::base::sync::CachePadded;
use crate::base::sync::atomic::{AtomicU64, Ordering};

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
/// More stripes would not be smaller than what their tables use.
const STRIPES_MAX: usize = 1 << 10;

/// How a cache is divided and reused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheOptions {
    /// Rows may use up to this much of the capacity.
    pub(crate) row_cache_bytes_max: usize,
    /// How many threads can miss or evict at once; rounded up to a power of two.
    pub(crate) stripes: usize,
    /// The reuse of memory does not depend on readers of other caches.
    pub(crate) deterministic: bool,
}

/// The page cache.
pub(crate) struct Cache {
    /// A power of two of them, each with the same share of the capacity.
    stripes: Box<[CachePadded<Stripe>]>,
    readers: Readers,
    counters: ShardedCounters<9>,
    /// The largest size of pages and rows together.
    capacity_bytes: AtomicU64,
    rows: RowCache,
}

impl Cache {
    /// A cache of one stripe without a row cache, of up to `capacity_bytes`.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn new(capacity_bytes: usize) -> Cache {
        let options = CacheOptions { row_cache_bytes_max: 0, stripes: 1, deterministic: false };
        Cache::with_options(capacity_bytes, options)
    }

    /// A cache of up to `capacity_bytes`. Memory is used as pages and rows are added.
    pub(crate) fn with_options(
        capacity_bytes: usize,
        CacheOptions { row_cache_bytes_max, stripes, deterministic }: CacheOptions,
    ) -> Cache {
        let readers = if deterministic { Readers::own() } else { Readers::Shared };
        let stripes = stripes.clamp(1, STRIPES_MAX).next_power_of_two();
        let cache = Cache {
            stripes: (0..stripes).map(|_| CachePadded::new(Stripe::new(&readers))).collect(),
            readers,
            counters: ShardedCounters::new(),
            capacity_bytes: AtomicU64::new(0),
            rows: RowCache::new(row_cache_bytes_max),
        };
        cache.set_capacity(capacity_bytes);
        cache
    }

    #[inline]
    fn stripe(&self, key: PackedKey) -> &Stripe {
        &self.stripes[self.stripe_index(key)]
    }

    #[inline]
    fn stripe_index(&self, key: PackedKey) -> usize {
        key.stripe() & (self.stripes.len() - 1)
    }

    /// The row cache, which shares its memory with the pages.
    #[inline]
    pub(crate) fn row_cache(&self) -> &RowCache {
        &self.rows
    }

    /// Reduces the memory of pages by the growth of the row cache.
    pub(crate) fn row_cache_has_grown(&self) {
        // Also if memory became less before there were rows.
        self.rows.fit(self.capacity_bytes.load(Ordering::Relaxed) as usize);
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
            Some((stripe, entry, locator)) => {
                entry.mark_used(locator);
                self.counters.add(counter(class), 1);
                // SAFETY: `guard` has pinned this thread since before the page was found.
                Some(f(unsafe { stripe.frames.bytes(locator.slot(), locator.home()) }))
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
        let Some((stripe, entry, locator)) = self.find(key, &guard) else {
            self.counters.add(MISSES + counter(PageClass::Value), 1);
            return None;
        };
        entry.mark_used(locator);
        self.counters.add(counter(PageClass::Value), 1);
        Some(stripe.keep(locator, &guard))
    }

    /// Caches a value, unless it is larger than a sixteenth of the cache or a quarter of its stripe. As a page, it must
    /// be used again before the clock skips it: values that are read once replace one another.
    pub(crate) fn insert_value(&self, key: PageKey, value: &Slice) {
        if value.len() <= self.capacity_bytes.load(Ordering::Relaxed) as usize / VALUE_SHARE_MAX {
            self.admit(key, PageClass::Value, value.len(), false, |frames, slot, home| {
                // SAFETY: as `admit` says.
                unsafe { frames.fill_shared(slot, home, value) };
            });
        }
    }

    /// Prefetches the page's index entry into the processor's cache, for a later `get`.
    #[inline]
    pub(crate) fn prefetch_place(&self, key: PageKey) {
        let guard = self.readers.pin();
        if let Some(key) = PackedKey::new(key) {
            self.stripe(key).prefetch_place(key, &guard);
        }
    }

    /// Prefetches the start of the page, if it is cached, and the cache lines around `offset` into
    /// the processor's cache, for a later `get`. Does not count as a use.
    #[inline]
    pub(crate) fn prefetch_bytes(&self, key: PageKey, offset: usize) {
        let guard = self.readers.pin();
        if let Some((stripe, _, locator)) = self.find(key, &guard) {
            // SAFETY: `guard` has pinned this thread since before the page was found.
            let bytes = unsafe { stripe.frames.bytes(locator.slot(), locator.home()) };
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
        guard: &'a Guard,
    ) -> Option<(&'a Stripe, &'a Entry, Locator)> {
        let key = PackedKey::new(key)?;
        let stripe = self.stripe(key);
        let (entry, locator) = stripe.find(key, guard)?;
        Some((stripe, entry, locator))
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

    /// Whether the cache has room for at least half of so many bytes of data.
    pub(crate) fn holds_most_of(&self, bytes: u64) -> bool {
        bytes / 2 <= self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn insert_copy(&self, key: PageKey, class: PageClass, bytes: &[u8], awaited: bool) {
        self.admit(key, class, bytes.len(), awaited, |frames, slot, home| {
            // SAFETY: as `admit` says.
            unsafe { frames.fill(slot, home, bytes) };
        });
    }

    /// Caches a page of `len` bytes that `fill` copies; see [`Stripe::admit`].
    fn admit(
        &self,
        key: PageKey,
        class: PageClass,
        len: usize,
        awaited: bool,
        fill: impl FnOnce(&Frames, u32, PageHome),
    ) {
        let Some(packed) = PackedKey::new(key) else { return };
        if self.contains(key) {
            return;
        }
        if self.stripe(packed).admit(packed, class, len, awaited, fill) == Admitted::Refused {
            self.counters.add(REFUSALS, 1);
        }
    }

    /// Removes every page of a deleted file, units `0..units`, and every value if it is a blob file.
    pub(crate) fn remove_file(&self, file: FileId, units: u32, has_values: bool) {
        if units as usize > self.stripes.iter().map(|stripe| stripe.pages()).sum() {
            // A large file and a small cache: search the cache instead.
            self.stripes.iter().for_each(|stripe| stripe.remove_file(file));
            return;
        }
        let mut found: Vec<(usize, PackedKey)> = Vec::new();
        for first in (0..units).step_by(REMOVE_UNITS as usize) {
            {
                let guard = self.readers.pin();
                let last = units.min(first.saturating_add(REMOVE_UNITS));
                let bits: &[u32] = if has_values { &[0, VALUE_BIT] } else { &[0] };
                let keys = (first..last).flat_map(|unit| {
                    bits.iter().map(move |bit| PageKey { file, unit: unit | bit })
                });
                let keys = keys.filter(|&key| self.find(key, &guard).is_some());
                let keys = keys.filter_map(PackedKey::new);
                found.extend(keys.map(|key| (self.stripe_index(key), key)));
            }
            found.sort_by_key(|(stripe, _)| *stripe);
            for found in found.chunk_by(|(one, _), (other, _)| one == other) {
                self.stripes[found[0].0].remove(found.iter().map(|(_, key)| *key));
            }
            found.clear();
        }
    }

    /// Changes the capacity, and evicts pages as needed.
    pub(crate) fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity_bytes.store(capacity_bytes as u64, Ordering::Relaxed);
        self.rows.fit(capacity_bytes);
        self.divide_capacity();
    }

    /// The capacity.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    fn divide_capacity(&self) {
        let share = || {
            let capacity_bytes = self.capacity_bytes.load(Ordering::Relaxed) as usize;
            let parts = if planted(Bug::CacheStripesUndivided) { 1 } else { self.stripes.len() };
            capacity_bytes.saturating_sub(self.rows.bytes()) / parts
        };
        self.stripes.iter().for_each(|stripe| stripe.resize(share));
    }

    /// Resident bytes of frames and multi-unit frames, according to the operating system.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(super) fn resident_bytes(&self) -> usize {
        let units = self.stripes.iter().map(|stripe| stripe.frames.resident_units());
        units.sum::<usize>() * crate::base::limits::UNIT_BYTES
    }

    /// The slots' memory of a cache of one stripe, which may outlive the cache.
    #[cfg(all(test, target_os = "linux", not(miri)))]
    pub(super) fn frames(&self) -> std::sync::Arc<Frames> {
        std::sync::Arc::clone(&self.stripes[0].frames)
    }

    /// Counters and sizes.
    pub(crate) fn statistics(&self) -> CacheStatistics {
        let hits = |class| self.counters.sum(counter(class));
        let misses = |class| self.counters.sum(MISSES + counter(class));
        let (misses_index, misses_filter) = (misses(PageClass::Index), misses(PageClass::Filter));
        let misses_value = misses(PageClass::Value);
        let row_cache_bytes = self.rows.bytes();
        let mut statistics = CacheStatistics {
            hits_leaf: hits(PageClass::Leaf),
            hits_index: hits(PageClass::Index),
            hits_filter: hits(PageClass::Filter),
            hits_value: hits(PageClass::Value),
            misses: misses(PageClass::Leaf) + misses_index + misses_filter + misses_value,
            misses_index,
            misses_filter,
            misses_value,
            refusals: self.counters.sum(REFUSALS),
            bytes: row_cache_bytes as u64,
            row_cache_bytes: row_cache_bytes as u64,
            capacity_bytes: row_cache_bytes as u64,
            ..CacheStatistics::default()
        };
        for stripe in &self.stripes {
            let pool = stripe.look();
            statistics.evictions += pool.evictions();
            statistics.pages += pool.pages() as u64;
            statistics.bytes += pool.used_bytes() as u64;
            statistics.left_bytes += pool.left_bytes() as u64;
            statistics.capacity_bytes += pool.capacity_bytes() as u64;
        }
        statistics
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
