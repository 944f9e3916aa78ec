//! One stripe of the page cache: an index, frames and a pool, with a lock of its own.
//!
//! A page belongs to one stripe, which its key alone determines. So threads that miss or evict different pages mostly take
//! different locks, and each stripe keeps the promises of [`SlotPool`] for its share of the capacity. A hit takes no lock,
//! in one stripe or in many.
//!
//! Invariants:
//! 1. The index is replaced only while the pool is locked.
//! 2. Its lock is on cache lines that no hit reads.

use std::sync::Arc;

use super::frames::{Frames, PageHome};
use super::grace::{Guard, Readers};
use super::index::{Entry, Index, Locator, PackedKey};
use super::kept::Owners;
use super::page_cache::PageClass;
use super::pool::SlotPool;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::slice::Slice;
use crate::base::sync::atomic::{AtomicPtr, Ordering};
use crate::base::sync::{CachePadded, Mutex, MutexGuard};

/// Slots that are examined under one lock.
const REMOVE_SLOTS: u32 = 256;

/// See the module's description.
pub(super) struct Stripe {
    /// From `Arc::into_raw`; replaced under `pool`'s lock.
    index: AtomicPtr<Index>,
    pub(super) frames: Arc<Frames>,
    owners: Owners,
    pool: CachePadded<Mutex<SlotPool>>,
}

/// What became of a page that was to be cached.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It is cached now, or another thread has cached it.
    Yes,
    /// It is too large for its stripe.
    TooLarge,
    /// No memory became free in time.
    Refused,
}

impl Stripe {
    /// Without capacity; see [`Stripe::resize`].
    pub(super) fn new(readers: &Readers) -> Stripe {
        let index = Arc::new(Index::new(0));
        let frames = Arc::new(Frames::default());
        Stripe {
            pool: CachePadded::new(Mutex::new(SlotPool::new(&index, readers.clone()))),
            index: AtomicPtr::new(Arc::into_raw(index).cast_mut()),
            owners: Owners::new(&frames),
            frames,
        }
    }

    #[inline]
    pub(super) fn find<'a>(
        &'a self,
        key: PackedKey,
        _guard: &'a Guard,
    ) -> Option<(&'a Entry, Locator)> {
        let index = self.index.load(Ordering::Acquire);
        // SAFETY: an index that has been replaced is dropped only after a grace period, and the
        // caller is pinned for as long as the result lives.
        unsafe { &*index }.find(key)
    }

    /// Prefetches the page's index entry into the processor's cache.
    #[inline]
    pub(super) fn prefetch_place(&self, key: PackedKey, _guard: &Guard) {
        let index = self.index.load(Ordering::Acquire);
        // SAFETY: as in `find`.
        unsafe { &*index }.prefetch(key);
    }

    /// The value that was found, shared with the cache unless readers keep very much.
    #[inline]
    pub(super) fn keep(&self, locator: Locator, _guard: &Guard) -> Slice {
        if self.owners.is_limited() && self.frames.has_given_back() {
            self.take_back();
        }
        let slot = locator.slot();
        match locator.home() {
            // SAFETY: the guard has pinned this thread since before the value was found.
            PageHome::Heap => unsafe { self.frames.heap_page(slot).clone() },
            // SAFETY: likewise.
            home => unsafe { self.owners.keep(slot, home) },
        }
    }

    /// Slots have been given back: perhaps values need not be copied any more.
    #[cold]
    fn take_back(&self) {
        let mut pool = self.pool.lock();
        pool.take_back(&self.frames);
        self.owners.limit(pool.is_much_left());
    }

    /// Takes a slot for a page of `len` bytes, and publishes it once `fill` has filled it. The slot comes from the free
    /// slots, which no reader sees, for this page.
    pub(super) fn admit(
        &self,
        key: PackedKey,
        class: PageClass,
        len: usize,
        awaited: bool,
        fill: impl FnOnce(&Frames, u32, PageHome),
    ) -> Admitted {
        let taken = {
            let (mut pool, index) = self.lock();
            if len > UNIT_BYTES && len > pool.capacity_bytes() / 4 {
                return Admitted::TooLarge;
            }
            let taken = pool.take(len, &self.frames, index);
            if class == PageClass::Value
                && let Some((slot, PageHome::Frame(_) | PageHome::MultiUnit(_))) = taken
            {
                pool.prepare_kept(slot, &self.frames);
            }
            taken
        };
        let Some((slot, home)) = taken else { return Admitted::Refused };
        // The lock is not held during the copy.
        fill(&self.frames, slot, home);
        let (mut pool, index) = self.lock();
        pool.publish(key, Locator::new(slot, home, class, awaited), &self.frames, index);
        self.owners.limit(pool.is_much_left());
        Admitted::Yes
    }

    /// Removes these pages.
    pub(super) fn remove(&self, keys: impl Iterator<Item = PackedKey>) {
        let (mut pool, index) = self.lock();
        for key in keys {
            pool.remove(key, &self.frames, index);
        }
        pool.seal();
        pool.reclaim(&self.frames);
    }

    /// Removes every page of a file.
    pub(super) fn remove_file(&self, file: FileId) {
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

    pub(super) fn pages(&self) -> usize {
        self.pool.lock().pages()
    }

    /// Changes the capacity to what `capacity_bytes` returns, and evicts pages as needed.
    pub(super) fn resize(&self, capacity_bytes: impl FnOnce() -> usize) {
        let (mut pool, index) = self.lock();
        // Read under the lock, so that the last thread to get the lock uses the latest numbers.
        match pool.resize(capacity_bytes(), &self.frames, index) {
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

    /// The locked pool, for statistics.
    pub(super) fn look(&self) -> MutexGuard<'_, SlotPool> {
        let mut pool = self.pool.lock();
        pool.take_back(&self.frames);
        pool
    }

    /// The locked pool, and the index, which is not replaced while the lock is held.
    fn lock(&self) -> (MutexGuard<'_, SlotPool>, &Index) {
        let pool = self.pool.lock();
        // SAFETY: the index is replaced only under the lock. The reference outlives the guard only
        // as far as the borrow checker can see: all callers drop both together.
        let index = unsafe { &*self.index.load(Ordering::Acquire) };
        (pool, index)
    }
}

impl Drop for Stripe {
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
