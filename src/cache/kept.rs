//! Values that readers keep without a copy.
//!
//! A value in the cache is *kept* while a [`Slice`] refers to it. It may be evicted meanwhile: then its slot is *left to
//! its keepers*. The memory is theirs and does not count as the cache's any more. The last of them gives the slot back.
//!
//! Invariants:
//! 1. A slot is kept only by a reader that is pinned (`grace`) and has found it in the index since. So whoever asks after
//!    the grace period of its eviction (`SlotPool::reclaim`) knows of all who keep it.
//! 2. Slots that are kept are neither written nor released. The frames exist as long as one is kept.
//! 3. While many slots are left to their keepers, values are copied (`Owners::limit`): slots and the tables of the cache
//!    are no more than a little over twice those for the pages that it holds.

use std::sync::Arc;

use super::frames::{Frames, PageHome};
use crate::base::slice::{Keeps, Slice};
use crate::base::sync::CachePadded;
use crate::base::sync::plain::{AtomicBool, Ordering};

/// Slices refer to the frames by one of so many counts: one for all would be written by every reader.
const OWNERS: usize = 16;

/// What slices refer to the frames by.
pub(super) struct Owners {
    owners: [Arc<CachePadded<Arc<Frames>>>; OWNERS],
    /// Values are copied.
    is_limited: AtomicBool,
}

impl Owners {
    pub(super) fn new(frames: &Arc<Frames>) -> Owners {
        Owners {
            owners: std::array::from_fn(|_| Arc::new(CachePadded::new(Arc::clone(frames)))),
            is_limited: AtomicBool::new(false),
        }
    }

    /// The value in the slot, without a copy unless there is a limit.
    ///
    /// # Safety
    /// As for [`Frames::bytes`]. The slot holds a value in a frame or a multi-unit frame.
    #[inline]
    pub(super) unsafe fn keep(&self, slot: u32, home: PageHome) -> Slice {
        let owner = &self.owners[slot as usize % OWNERS];
        // SAFETY: as the caller vouches.
        let bytes = unsafe { owner.bytes(slot, home) };
        if self.is_limited.load(Ordering::Relaxed) {
            return Slice::from(bytes);
        }
        owner.keep(slot);
        let keeper = Keeper { owner: Arc::clone(owner), slot, home };
        // SAFETY: the slot holds the value, and is not recycled while it is kept (invariant 2).
        unsafe { Slice::kept(bytes, keeper) }
    }

    /// Whether values are copied.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Says whether values are to be copied from now on.
    pub(super) fn limit(&self, is_limited: bool) {
        if self.is_limited.load(Ordering::Relaxed) != is_limited {
            self.is_limited.store(is_limited, Ordering::Relaxed);
        }
    }

    /// Whether nothing is kept. Nobody may be reading.
    pub(super) fn is_idle(&self) -> bool {
        self.owners.iter().all(|owner| Arc::strong_count(owner) == 1)
    }
}

/// One who keeps a value.
struct Keeper {
    owner: Arc<CachePadded<Arc<Frames>>>,
    slot: u32,
    home: PageHome,
}

impl Keeps for Keeper {}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.owner.leave(self.slot, self.home);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::base::ids::FileId;
    use crate::base::random::SplitMix;
    use crate::base::slice::Slice;
    use crate::cache::page_cache::{Cache, CacheOptions, PageClass, PageKey};

    const PAGE: usize = 4096;
    /// In a frame; in a multi-unit frame, the longest there; on the heap.
    const LENGTHS: [usize; 6] = [100, 4096, 4097, 12_000, 32_768, 32_769];

    fn key(file: u64, unit: u32) -> PageKey {
        PageKey::of_value(FileId(file), unit).unwrap()
    }

    /// The interpreter takes its time for bytes.
    fn scaled(n: u32) -> u32 {
        if cfg!(miri) { n / 20 } else { n }
    }

    fn bytes(key: PageKey, len: usize) -> Vec<u8> {
        let mut bytes =
            (key.file.0 << 32 | u64::from(key.unit)).to_le_bytes().repeat(len.div_ceil(8));
        bytes.truncate(len);
        bytes
    }

    fn is_right(value: &Slice, key: PageKey, len: usize) -> bool {
        value[..] == bytes(key, len)[..]
    }

    /// Until it is cached: readers of other tests may delay the end of grace periods.
    fn put(cache: &Cache, key: PageKey, len: usize) {
        for _ in 0..100_000 {
            cache.insert(key, PageClass::Value, &bytes(key, len));
            if cache.contains(key) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("a value of {len} bytes was never cached");
    }

    fn keep(cache: &Cache, key: PageKey, len: usize) -> Slice {
        for _ in 0..100_000 {
            put(cache, key, len);
            if let Some(value) = cache.value(key) {
                return value;
            }
        }
        panic!("a value of {len} bytes was never found");
    }

    /// Puts as many other values through the cache as it holds several times.
    fn displace(cache: &Cache, file: u64) {
        for unit in 0..scaled(400) {
            let len = LENGTHS[unit as usize % LENGTHS.len()];
            cache.insert(key(file, unit), PageClass::Value, &bytes(key(file, unit), len));
        }
    }

    /// Readers of other tests' caches do not delay the end of its grace periods.
    fn new_cache(capacity_bytes: usize) -> Cache {
        let options = CacheOptions { row_cache_bytes_max: 0, stripes: 1, deterministic: true };
        Cache::with_options(capacity_bytes, options)
    }

    #[test]
    fn a_kept_value_stays_whatever_becomes_of_the_cache() {
        let cache = new_cache(64 * PAGE);
        let kept: Vec<_> =
            LENGTHS.iter().zip(0..).map(|(len, unit)| keep(&cache, key(1, unit), *len)).collect();
        let check = |when: &str| {
            for ((value, len), unit) in kept.iter().zip(LENGTHS).zip(0..) {
                assert!(is_right(value, key(1, unit), len), "a value of {len} bytes, {when}");
            }
        };
        displace(&cache, 2);
        check("when others had taken its place");
        cache.remove_file(FileId(1), 100, true);
        assert!((0..LENGTHS.len() as u32).all(|unit| cache.value(key(1, unit)).is_none()));
        displace(&cache, 3);
        check("when its file was gone");
        cache.set_capacity(0);
        check("when the cache had no room");
        cache.set_capacity(64 * PAGE);
        displace(&cache, 4);
        check("when the cache had room again");
        let copies = kept.clone();
        drop(cache);
        check("when the cache was gone");
        drop(copies);
        check("when its copies were gone");
    }

    /// A value that is removed and put back while it is kept is there twice.
    #[test]
    fn a_kept_value_is_no_obstacle_to_its_successor() {
        let cache = new_cache(256 * PAGE);
        let first = keep(&cache, key(1, 1), 5000);
        cache.remove_file(FileId(1), 10, true);
        let second = bytes(key(7, 7), 5000);
        for _ in 0..100_000 {
            cache.insert(key(1, 1), PageClass::Value, &second);
            if cache.contains(key(1, 1)) {
                break;
            }
            std::thread::yield_now();
        }
        let found = cache.value(key(1, 1)).unwrap();
        assert!(found[..] == second[..] && is_right(&first, key(1, 1), 5000));
    }

    #[test]
    fn what_is_kept_is_no_copy() {
        let cache = new_cache(256 * PAGE);
        for (len, unit) in LENGTHS.into_iter().zip(0..) {
            let (first, second) =
                (keep(&cache, key(1, unit), len), keep(&cache, key(1, unit), len));
            assert_eq!(first.as_ptr(), second.as_ptr(), "{len} bytes");
        }
    }

    /// How many of `n` pages of a file are cached when they have been inserted.
    #[cfg(not(miri))]
    fn insert_pages(cache: &Cache, file: u64, n: u32) -> u64 {
        let before = cache.statistics().refusals;
        for unit in 0..n {
            let key = PageKey { file: FileId(file), unit };
            cache.insert(key, PageClass::Leaf, &[7; PAGE]);
        }
        u64::from(n) - (cache.statistics().refusals - before)
    }

    /// A slot that was kept was not counted any more, but was a slot: a cache of 16 MiB of which 100 values were kept had
    /// room and no slots, did not evict for that, and refused every page from then on.
    #[test]
    #[cfg(not(miri))]
    fn a_cache_of_which_values_are_kept_goes_on() {
        for (pages, kept) in [(1024, 30), (4096, 100), (4096, 1000), (16_384, 200)] {
            let cache = new_cache(pages * PAGE);
            let values: Vec<Slice> =
                (0..kept).map(|unit| keep(&cache, key(1, unit), PAGE)).collect();
            let n = pages as u32 * 3;
            insert_pages(&cache, 2, n);
            let cached = insert_pages(&cache, 3, n);
            assert!(
                cached > u64::from(n) * 9 / 10,
                "{cached} of {n} pages were cached, {kept} values kept"
            );
            assert!(cache.statistics().pages > pages as u64 * 9 / 10, "{:?}", cache.statistics());
            // As large a cache again, and as small.
            for scale in [4, 1] {
                cache.set_capacity(pages * scale * PAGE);
                let n = n * scale as u32;
                insert_pages(&cache, 4 + scale as u64, n);
                assert!(
                    cache.statistics().pages > (pages * scale) as u64 * 9 / 10,
                    "{scale}: {:?}",
                    cache.statistics()
                );
            }
            assert!(values.iter().zip(0..).all(|(value, unit)| is_right(
                value,
                key(1, unit),
                PAGE
            )));
        }
    }

    /// However many values are kept, the cache goes on with the memory that it may use, and gets the slots back. The
    /// tables for slots that were kept once took all of a small cache.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn what_is_kept_is_not_counted_and_its_memory_comes_back() {
        let capacity = 256 * PAGE;
        let cache = new_cache(capacity);
        let mut kept = Vec::new();
        for round in 1..4 {
            for unit in 0..8000 {
                let len = if unit % 3 == 0 { 7000 } else { 4000 };
                kept.push((unit, len, keep(&cache, key(round, unit), len)));
            }
            let statistics = cache.statistics();
            assert!(statistics.bytes <= statistics.capacity_bytes, "{statistics:?}");
            assert!(statistics.left_bytes <= 3 * capacity as u64, "{statistics:?}");
            // Of the last values, most are in the cache still.
            assert!(statistics.pages > 120, "{statistics:?}");
            let most = (statistics.bytes + statistics.left_bytes) as usize;
            assert!(cache.resident_bytes() <= most, "{statistics:?}");
            assert!(kept.iter().all(|(unit, len, value)| is_right(value, key(round, *unit), *len)));
            kept.clear();
            // Without an insertion, what was kept has gone, but for a few slots.
            let resident = cache.resident_bytes();
            assert!(resident <= capacity + 64 * 2 * PAGE, "{resident}");
            assert_eq!(cache.statistics().left_bytes, 0);
            for unit in 0..4000 {
                put(&cache, key(9, unit % 1000), 4000);
            }
            let statistics = cache.statistics();
            let (resident, counted) = (cache.resident_bytes(), statistics.bytes as usize);
            assert!(resident <= counted && counted <= capacity, "{resident}: {statistics:?}");
            assert!(statistics.pages > 200, "{statistics:?}");
            cache.remove_file(FileId(9), 1000, true);
        }
    }

    /// Readers of a few hot values kept one slot each, also while very many others were kept.
    #[test]
    #[cfg(not(miri))]
    fn while_very_much_is_kept_values_are_copied() {
        let cache = new_cache(256 * PAGE);
        let kept: Vec<Slice> = (0..2000).map(|unit| keep(&cache, key(1, unit), PAGE)).collect();
        let hot = || [keep(&cache, key(2, 1), PAGE), keep(&cache, key(2, 1), PAGE)];
        let [first, second] = hot();
        assert!(first == second && first.as_ptr() != second.as_ptr());
        drop(kept);
        hot();
        let [first, second] = hot();
        assert_eq!(first.as_ptr(), second.as_ptr());
    }

    /// One value that was kept when the store was closed kept the memory of all that had been.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn after_the_cache_is_gone_each_value_keeps_its_own_memory() {
        let cache = new_cache(1024 * PAGE);
        let frames = cache.frames();
        let mut kept = Vec::new();
        for unit in 0..100 {
            for len in [4096, 9000, 40_000] {
                kept.push(keep(&cache, key(len as u64, unit), len));
            }
        }
        insert_pages(&cache, 2, 3000);
        drop(cache);
        assert_eq!(frames.resident_units(), 100 * (1 + 3));
        let last = kept.split_off(297);
        drop(kept);
        assert_eq!(frames.resident_units(), 1 + 3);
        assert!(is_right(&last[0], key(4096, 99), 4096) && is_right(&last[1], key(9000, 99), 9000));
        drop(last);
        assert_eq!(frames.resident_units(), 0);
    }

    #[test]
    fn threads_that_keep_values_never_see_a_wrong_byte() {
        let cache = Cache::new(48 * PAGE);
        let done = AtomicBool::new(false);
        let left = std::thread::scope(|scope| {
            let (cache, done) = (&cache, &done);
            let readers: Vec<_> = (0..3)
                .map(|seed| {
                    scope.spawn(move || {
                        let mut random = SplitMix::new(seed);
                        let mut kept = std::collections::VecDeque::new();
                        for _ in 0..scaled(6000) {
                            let unit = random.below(24).min(random.below(24)) as u32;
                            let (file, len) =
                                (1 + random.below(2), LENGTHS[unit as usize % LENGTHS.len()]);
                            match cache.value(key(file, unit)) {
                                Some(value) => {
                                    assert!(is_right(&value, key(file, unit), len));
                                    kept.push_back((file, unit, len, value));
                                }
                                None => cache.insert(
                                    key(file, unit),
                                    PageClass::Value,
                                    &bytes(key(file, unit), len),
                                ),
                            }
                            if kept.len() > 20 {
                                let (file, unit, len, value) = kept.pop_front().unwrap();
                                assert!(
                                    is_right(&value, key(file, unit), len),
                                    "it changed while it was kept"
                                );
                            }
                        }
                        kept
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut random = SplitMix::new(99);
                while !done.load(Ordering::Relaxed) {
                    match random.below(3) {
                        0 => cache.remove_file(FileId(1 + random.below(2)), 64, true),
                        1 => cache.set_capacity(random.below(96) as usize * PAGE),
                        _ => cache.set_capacity(48 * PAGE),
                    }
                    std::thread::sleep(std::time::Duration::from_micros(300));
                }
            });
            let left: Vec<_> =
                readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
            done.store(true, Ordering::Relaxed);
            left
        });
        drop(cache);
        assert!(!left.is_empty());
        // They are dropped by threads that have nothing to do with the cache.
        std::thread::scope(|scope| {
            for (file, unit, len, value) in left {
                scope.spawn(move || assert!(is_right(&value, key(file, unit), len)));
            }
        });
    }
}
