//! Values that readers keep without a copy.
//!
//! A value in the cache is *kept* while a [`Slice`] refers to it. It may be evicted meanwhile: then its memory is the
//! reader's, does not count as the cache's any more, and goes back to it when the last such slice is dropped.
//!
//! Invariants:
//! 1. A slot is kept only by a reader that is pinned (`grace`) and has found it in the index since. So whoever asks after
//!    the grace period of its eviction (`SlotPool::reclaim`) knows of all who keep it.
//! 2. Slots that are kept are neither written nor released. The frames exist as long as one is kept.

use std::sync::Arc;

use super::frames::{Frames, PageHome};
use crate::base::slice::{Keeps, Slice};
use crate::base::sync::CachePadded;

/// Slices refer to the frames by one of so many counts: one for all would be written by every reader.
const OWNERS: usize = 16;

/// What slices refer to the frames by.
pub(super) struct Owners([Arc<CachePadded<Arc<Frames>>>; OWNERS]);

impl Owners {
    pub(super) fn new(frames: &Arc<Frames>) -> Owners {
        Owners(std::array::from_fn(|_| Arc::new(CachePadded::new(Arc::clone(frames)))))
    }

    /// The value in the slot, without a copy.
    ///
    /// # Safety
    /// As for [`Frames::bytes`]. The slot holds a value in a frame or a multi-unit frame.
    #[inline]
    pub(super) unsafe fn keep(&self, slot: u32, home: PageHome) -> Slice {
        let owner = Arc::clone(&self.0[slot as usize % OWNERS]);
        owner.keep(slot);
        Slice::kept(Arc::new(Kept { owner, slot, home }))
    }

    /// Whether nothing is kept. Nobody may be reading.
    pub(super) fn is_idle(&self) -> bool {
        self.0.iter().all(|owner| Arc::strong_count(owner) == 1)
    }
}

/// A value that somebody keeps.
struct Kept {
    owner: Arc<CachePadded<Arc<Frames>>>,
    slot: u32,
    home: PageHome,
}

impl Keeps for Kept {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the slot held a page of that home when it was kept, and has not been recycled since (invariant 2).
        unsafe { self.owner.bytes(self.slot, self.home) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.owner.leave(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::base::ids::FileId;
    use crate::base::random::SplitMix;
    use crate::base::slice::Slice;
    use crate::cache::page_cache::{Cache, PageClass, PageKey};

    const PAGE: usize = 4096;
    /// Copied; in a frame; in a multi-unit frame, the longest there; on the heap.
    const LENGTHS: [usize; 7] = [1024, 1025, 4096, 4097, 12_000, 32_768, 32_769];

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

    #[test]
    fn a_kept_value_stays_whatever_becomes_of_the_cache() {
        let cache = Cache::new(64 * PAGE);
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
        let cache = Cache::new(256 * PAGE);
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
    fn only_short_values_are_copied() {
        let cache = Cache::new(256 * PAGE);
        for (len, unit) in LENGTHS.into_iter().zip(0..) {
            let (first, second) =
                (keep(&cache, key(1, unit), len), keep(&cache, key(1, unit), len));
            assert_eq!(first.as_ptr() == second.as_ptr(), len > 1024, "{len} bytes");
        }
    }

    /// However many values are kept, the cache goes on with the memory that it may use, and gets the slots back.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn what_is_kept_is_not_counted_and_its_memory_comes_back() {
        let capacity = 1024 * PAGE;
        let cache = Cache::new(capacity);
        let mut kept = Vec::new();
        for round in 1..4 {
            // Six times what the cache holds.
            for unit in 0..4000 {
                let len = if unit % 3 == 0 { 7000 } else { 4000 };
                kept.push((unit, len, keep(&cache, key(round, unit), len)));
            }
            let statistics = cache.statistics();
            assert!(statistics.bytes <= statistics.capacity_bytes, "{statistics:?}");
            // Of the last values, most are in the cache still.
            assert!(statistics.pages > 300, "{statistics:?}");
            let kept_bytes: usize =
                kept.iter().map(|(_, len, _)| usize::next_multiple_of(*len, PAGE)).sum();
            assert!(cache.resident_bytes() <= statistics.bytes as usize + kept_bytes);
            assert!(kept.iter().all(|(unit, len, value)| is_right(value, key(round, *unit), *len)));
            kept.clear();
            for unit in 0..8000 {
                put(&cache, key(9, unit % 3000), 4000);
            }
            let (resident, counted) = (cache.resident_bytes(), cache.statistics().bytes as usize);
            assert!(
                resident <= counted && counted <= capacity,
                "{resident}, {counted} of {capacity}"
            );
            cache.remove_file(FileId(9), 3000, true);
        }
        // The tables were made for what was kept at once, not for what was kept in all.
        cache.set_capacity(0);
        let tables = cache.statistics().bytes as usize;
        assert!(tables < capacity / 4, "{tables} of {capacity}");
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
