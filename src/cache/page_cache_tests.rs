//! What the page cache promises: bytes, capacity, eviction, threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::page_cache::{Cache, CacheOptions, PageClass, PageKey};
use crate::base::ids::FileId;
use crate::base::random::SplitMix;

const PAGE: usize = 4096;
/// What most pages hold: all of a frame, except under the interpreter, where bytes cost time.
const BYTES: usize = if cfg!(miri) { 32 } else { PAGE };

fn key(file: u64, unit: u32) -> PageKey {
    PageKey { file: FileId(file), unit }
}

fn of_stripes(stripes: usize, deterministic: bool) -> CacheOptions {
    CacheOptions { row_cache_bytes_max: 0, stripes, deterministic }
}

/// A page that says in every eight bytes whose it is.
fn page(key: PageKey, len: usize) -> Vec<u8> {
    let word = (key.file.0 << 32 | u64::from(key.unit)) ^ (len as u64) << 56;
    let mut bytes = word.to_le_bytes().repeat(len.div_ceil(8));
    bytes.truncate(len);
    bytes
}

fn len_of(key: PageKey) -> usize {
    // Most are units; some are short, some long.
    match key.unit % 16 {
        0 => 0,
        1 => BYTES - 1,
        2 => 4097,
        3 if !cfg!(miri) => 3 * PAGE,
        4 => 20,
        // On the heap.
        5 if !cfg!(miri) => 9 * PAGE - 7,
        _ => BYTES,
    }
}

fn check(key: PageKey, bytes: &[u8]) {
    assert_eq!(bytes.len(), len_of(key), "{key:?}");
    // Whole comparison costs too much in an unoptimised stress: the ends and the middle.
    let expected = page(key, len_of(key).min(8));
    for at in [0, bytes.len() / 16 * 8, bytes.len().saturating_sub(16) / 8 * 8] {
        let found = &bytes[at..bytes.len().min(at + 8)];
        if found.len() == 8 {
            assert_eq!(found[..7], word_of(key)[..7], "{key:?} at {at}");
        }
    }
    assert!(expected.len() <= 8);
}

fn word_of(key: PageKey) -> [u8; 8] {
    (key.file.0 << 32 | u64::from(key.unit)).to_le_bytes()
}

fn class_of(key: PageKey) -> PageClass {
    match key.unit % 11 {
        0 => PageClass::Index,
        1 => PageClass::Filter,
        _ => PageClass::Leaf,
    }
}

fn insert(cache: &Cache, key: PageKey) {
    cache.insert(key, class_of(key), &page(key, len_of(key)));
}

fn get(cache: &Cache, key: PageKey) -> bool {
    cache.get(key, class_of(key), |bytes| check(key, bytes)).is_some()
}

/// Tries until it is so: a reader of another test that has been preempted while pinned delays the
/// end of grace periods, which are the process's.
fn patiently(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    panic!("never: {what}");
}

/// The tables of a larger capacity may outlast a change to less than they take; pages must not.
fn assert_within_capacity(cache: &Cache) {
    patiently("memory is within the capacity", || {
        let statistics = cache.statistics();
        if statistics.bytes <= statistics.capacity_bytes || statistics.pages == 0 {
            return true;
        }
        cache.set_capacity(statistics.capacity_bytes as usize);
        false
    });
}

#[test]
fn whatever_happens_a_page_has_its_own_bytes_and_memory_stays_within_capacity() {
    for capacity_pages in [0u64, 1, 8, 9, 33, 300] {
        if cfg!(miri) && capacity_pages > 9 {
            continue;
        }
        let mut random = SplitMix::new(capacity_pages);
        let cache = Cache::new(capacity_pages as usize * PAGE);
        // Pages that were inserted and not removed since: only these may be found.
        let mut model: BTreeMap<PageKey, ()> = BTreeMap::new();
        let (mut hits, mut misses) = (0, 0);
        let mut capacity = capacity_pages as usize * PAGE;
        for _ in 0..if cfg!(miri) { 60 } else { 8_000 } {
            let k = key(1 + random.below(3), random.below(2 * capacity_pages + 5) as u32);
            match random.below(if capacity_pages > 30 { 2000 } else { 100 }) {
                0 => {
                    let units = if random.below(2) == 0 { k.unit } else { u32::MAX };
                    cache.remove_file(k.file, units, true);
                    model.retain(|m, ()| m.file != k.file || m.unit >= units);
                    for unit in 0..units.min(700) {
                        assert!(!cache.contains(key(k.file.0, unit)));
                    }
                }
                1 => {
                    capacity = random.below(2 * capacity_pages + 1) as usize * PAGE;
                    cache.set_capacity(capacity);
                }
                2..50 => {
                    insert(&cache, k);
                    model.insert(k, ());
                }
                _ => {
                    let hit = get(&cache, k);
                    assert!(
                        !hit || model.contains_key(&k),
                        "{k:?} was never inserted or is removed"
                    );
                    hits += u64::from(hit);
                    misses += u64::from(!hit);
                    if !hit {
                        insert(&cache, k);
                        model.insert(k, ());
                    }
                }
            }
            assert_within_capacity(&cache);
            let statistics = cache.statistics();
            assert_eq!(statistics.capacity_bytes, capacity as u64);
        }
        let statistics = cache.statistics();
        let counted = statistics.hits_leaf + statistics.hits_index + statistics.hits_filter;
        assert_eq!((counted, statistics.misses), (hits, misses));
        assert!(capacity_pages < 8 || cfg!(miri) || hits > 100, "{statistics:?}");
    }
}

#[test]
fn a_page_that_is_too_large_is_not_kept() {
    let cache = Cache::new(64 * PAGE);
    cache.insert(key(1, 1), PageClass::Leaf, &[7; 16 * PAGE + 1]);
    assert!(!cache.contains(key(1, 1)));
    cache.insert(key(1, 1), PageClass::Leaf, &[7; 16 * PAGE - 64]);
    assert_eq!(cache.get(key(1, 1), PageClass::Leaf, <[u8]>::len), Some(16 * PAGE - 64));
    assert!(!cache.contains(key(1 << 50, 1)));
    cache.insert(key(1 << 50, 1), PageClass::Leaf, &[7; 1]);
    assert!(!cache.contains(key(1 << 50, 1)));
    assert_within_capacity(&cache);
}

#[test]
fn the_first_page_inserted_stays() {
    let cache = Cache::new(64 * PAGE);
    cache.insert(key(1, 1), PageClass::Leaf, b"first");
    cache.insert(key(1, 1), PageClass::Leaf, b"second");
    assert_eq!(cache.get(key(1, 1), PageClass::Leaf, <[u8]>::to_vec), Some(b"first".to_vec()));
}

fn insert_surely(cache: &Cache, key: PageKey, class: PageClass) {
    patiently("the page is cached", || {
        cache.insert(key, class, &page(key, BYTES));
        cache.contains(key)
    });
}

#[test]
fn a_hot_set_survives_a_scan_of_ten_times_the_capacity() {
    let pages: u32 = if cfg!(miri) { 40 } else { 2000 };
    let cache = Cache::new(pages as usize * PAGE);
    let hot = pages / 2;
    for unit in 0..hot {
        insert_surely(&cache, key(1, unit), PageClass::Leaf);
        assert!(cache.get(key(1, unit), PageClass::Leaf, |_| ()).is_some());
    }
    for unit in 0..10 * pages {
        insert_surely(&cache, key(2, unit), PageClass::Leaf);
    }
    let left = (0..hot).filter(|&unit| cache.contains(key(1, unit))).count();
    assert!(left * 100 >= hot as usize * 95, "{left} of {hot} are left");
    assert_within_capacity(&cache);
}

#[test]
fn pages_read_ahead_of_their_first_use_do_not_pass_for_hot_ones() {
    let pages: u32 = if cfg!(miri) { 40 } else { 1000 };
    let cache = Cache::new(pages as usize * PAGE);
    let hot = pages / 2;
    for unit in 0..hot {
        insert_surely(&cache, key(1, unit), PageClass::Leaf);
        assert!(cache.get(key(1, unit), PageClass::Leaf, |_| ()).is_some());
    }
    for unit in 0..10 * pages {
        let k = key(2, unit);
        cache.insert_awaited(k, PageClass::Leaf, &page(k, BYTES));
        cache.get(k, PageClass::Leaf, |_| ());
    }
    let left = (0..hot).filter(|&unit| cache.contains(key(1, unit))).count();
    assert!(left * 100 >= hot as usize * 95, "{left} of {hot} are left");
}

/// With readers of its own: those of other tests, which were preempted while pinned, held back the
/// memory of evicted pages, so that new ones were refused and too few hit.
#[test]
fn a_new_hot_set_takes_the_place_of_an_old_one() {
    let pages: u32 = if cfg!(miri) { 32 } else { 1000 };
    let cache = Cache::with_options(pages as usize * PAGE, of_stripes(1, true));
    let mut random = SplitMix::new(1);
    for file in 1..4 {
        let mut hits = 0;
        let rounds = if cfg!(miri) { 300 } else { 20_000 };
        for round in 0..rounds {
            let k = key(file, random.below(u64::from(pages) * 3 / 4) as u32);
            if cache.get(k, PageClass::Leaf, |_| ()).is_some() {
                hits += u32::from(round >= rounds / 2);
            } else {
                cache.insert(k, PageClass::Leaf, &page(k, BYTES));
            }
        }
        assert!(hits * 100 >= rounds / 2 * 80, "file {file}: {hits} hits of {}", rounds / 2);
    }
}

#[test]
fn index_and_filter_pages_outlive_leaves() {
    let pages: u32 = if cfg!(miri) { 48 } else { 1000 };
    let cache = Cache::new(pages as usize * PAGE);
    for unit in 0..pages / 4 {
        insert_surely(&cache, key(1, unit), PageClass::Leaf);
        insert_surely(&cache, key(2, unit), PageClass::Index);
        insert_surely(&cache, key(3, unit), PageClass::Filter);
    }
    // Twice the capacity of leaves that are all hit, and so compete.
    for unit in 0..2 * pages {
        insert_surely(&cache, key(4, unit), PageClass::Leaf);
        cache.get(key(4, unit), PageClass::Leaf, |_| ());
    }
    let left = |file| (0..pages / 4).filter(|&unit| cache.contains(key(file, unit))).count();
    assert!(left(1) * 2 < left(2), "{} leaves, {} index pages", left(1), left(2));
    assert!(left(1) * 2 < left(3), "{} leaves, {} filter pages", left(1), left(3));
    let before = cache.statistics();
    cache.get(key(5, 0), PageClass::Index, |_| ());
    cache.get(key(5, 0), PageClass::Filter, |_| ());
    let after = cache.statistics();
    assert_eq!(after.misses - before.misses, 2);
    assert_eq!(after.misses_index - before.misses_index, 1);
    assert_eq!(after.misses_filter - before.misses_filter, 1);
}

#[test]
fn frames_serve_again_and_again_when_one_thread_works() {
    for capacity_pages in [8u32, 100] {
        let cache = Cache::new(capacity_pages as usize * PAGE);
        for unit in 0..if cfg!(miri) { 60 } else { 5000 } {
            insert_surely(&cache, key(1, unit), PageClass::Leaf);
        }
        let statistics = cache.statistics();
        assert!(statistics.pages * 10 >= u64::from(capacity_pages) * 6, "{statistics:?}");
        assert_within_capacity(&cache);
    }
}

#[test]
fn no_frame_is_recycled_under_a_reader() {
    let cache = Cache::new(16 * PAGE);
    insert_surely(&cache, key(1, 7), PageClass::Leaf);
    cache
        .get(key(1, 7), PageClass::Leaf, |bytes| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    cache.remove_file(FileId(1), 100, false);
                    assert!(!cache.contains(key(1, 7)));
                    for unit in 0..if cfg!(miri) { 20 } else { 200 } {
                        cache.insert(key(2, unit), PageClass::Leaf, &page(key(2, unit), BYTES));
                    }
                    assert!(cache.statistics().refusals > 0);
                });
            });
            assert_eq!(bytes, page(key(1, 7), BYTES));
        })
        .unwrap();
    insert_surely(&cache, key(1, 7), PageClass::Leaf);
}

#[test]
fn capacity_can_go_to_nothing_and_come_back() {
    let cache = Cache::new(0);
    insert(&cache, key(1, 5));
    assert!(!get(&cache, key(1, 5)));
    let n = if cfg!(miri) { 20 } else { 100 };
    let scale = if cfg!(miri) { 10 } else { 1 };
    for pages in [50usize, 0, 200, 20, 1000, 0, 30].map(|pages| pages / scale * 2) {
        cache.set_capacity(pages * PAGE);
        for unit in 0..n {
            insert(&cache, key(1, unit));
        }
        if pages > 0 {
            insert_surely(&cache, key(1, 8), PageClass::Leaf);
        }
        let found = (0..n).filter(|&unit| get(&cache, key(1, unit))).count();
        assert_eq!(found > 0, pages > 0);
        assert!(pages < 1000 / scale || found == n as usize);
        assert_within_capacity(&cache);
    }
    cache.set_capacity(0);
    assert_eq!(cache.statistics().pages, 0);
}

#[test]
fn many_threads_never_see_a_wrong_byte() {
    let threads = if cfg!(miri) { 3 } else { 6 };
    let rounds = if cfg!(miri) { 25 } else { 6_000 };
    for capacity_pages in [8u64, 64, 512] {
        if cfg!(miri) && capacity_pages > 8 {
            continue;
        }
        let cache = Cache::new(capacity_pages as usize * PAGE);
        let done = AtomicBool::new(false);
        let hits = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for seed in 0..threads {
                let (cache, hits) = (&cache, &hits);
                scope.spawn(move || {
                    let mut random = SplitMix::new(seed);
                    for _ in 0..rounds {
                        let file = 1 + random.below(4);
                        // Skewed, so that threads meet on the same pages.
                        let units = capacity_pages / 2 + 2;
                        let unit = random.below(units).min(random.below(units)) as u32;
                        let k = key(file, unit);
                        if get(cache, k) {
                            hits.fetch_add(1, Ordering::Relaxed);
                        } else {
                            insert(cache, k);
                        }
                    }
                });
            }
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let mut random = SplitMix::new(99);
                while !done.load(Ordering::Relaxed) {
                    match random.below(3) {
                        0 => cache.remove_file(FileId(1 + random.below(4)), 64, false),
                        1 => cache.set_capacity(random.below(2 * capacity_pages) as usize * PAGE),
                        _ => cache.set_capacity(capacity_pages as usize * PAGE),
                    }
                    assert!(cache.statistics().pages <= 2 * capacity_pages);
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            // The scope's first threads are joined by the last one's condition.
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(if cfg!(miri) { 2 } else { 150 }));
                done.store(true, Ordering::Relaxed);
            });
        });
        assert!(hits.load(Ordering::Relaxed) > 0);
        cache.set_capacity(capacity_pages as usize * PAGE);
        insert_surely(&cache, key(9, 9), PageClass::Leaf);
        assert_within_capacity(&cache);
    }
}

/// Pages of several units were objects on the heap, and the process grew to 221 MiB for a budget of
/// 128: a first use of a frame brings the 2 MiB around it into memory, also the frames of slots
/// whose pages lie on the heap, which were counted as nothing.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn what_is_in_memory_is_what_is_counted() {
    let capacity = 24 << 20;
    let cache = Cache::new(capacity);
    let mut random = SplitMix::new(5);
    // The mix changes: few and many long pages, of one length and of all.
    for (file, long_percent, units_max) in
        [(1, 50, 2), (2, 90, 2), (3, 50, 8), (4, 0, 1), (5, 95, 3)]
    {
        for unit in 0..8000 {
            let is_long = random.below(100) < long_percent;
            let units = if is_long { 2 + random.below(units_max - 1) as usize } else { 1 };
            let k = key(file, unit);
            cache.insert(k, PageClass::Leaf, &page(k, units * PAGE - 8));
            if unit % 1000 == 999 {
                let statistics = cache.statistics();
                let (resident, counted) = (cache.resident_bytes(), statistics.bytes as usize);
                assert!(resident <= counted, "{resident}: {statistics:?}");
                assert!(counted <= capacity, "{statistics:?}");
                assert!(unit < 4000 || counted * 10 > capacity * 8, "{statistics:?}");
            }
        }
    }
}

fn thread_cpu() -> Duration {
    if cfg!(miri) {
        return Duration::ZERO;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Nanoseconds of CPU that each of `threads` threads needs for a hit.
fn cost_of_a_hit(cache: &Cache, threads: u64, pages: u64, rounds: u64) -> Vec<f64> {
    let run = move |seed| {
        let mut random = SplitMix::new(seed);
        let started = thread_cpu();
        let mut sum = 0;
        for _ in 0..rounds {
            let k = key(1, (((random.next() >> 32) * pages) >> 32) as u32);
            sum += cache.get(k, PageClass::Leaf, |bytes| u64::from(bytes[24])).unwrap();
        }
        assert!(sum < u64::MAX);
        (thread_cpu() - started).as_nanos() as f64 / rounds as f64
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Run in release with `--nocapture` for figures; checks that each of the gets was a hit.
#[test]
fn every_get_of_a_cache_that_holds_all_pages_is_a_hit() {
    let (pages, rounds) = if cfg!(miri) {
        (20, 50)
    } else if cfg!(debug_assertions) {
        (2000, 20_000)
    } else {
        (20_000, 3_000_000)
    };
    let cache = Cache::new((pages * PAGE) * 11 / 10 + 64 * PAGE);
    for unit in 0..pages as u32 {
        insert_surely(&cache, key(1, unit), PageClass::Leaf);
    }
    for few in [pages as u64, pages as u64 / 100 + 1] {
        for threads in [1, 2] {
            let nanos = cost_of_a_hit(&cache, threads, few, rounds);
            println!("{threads} threads, {few} pages: {nanos:.1?} ns a hit");
        }
    }
    let statistics = cache.statistics();
    assert_eq!(statistics.misses, 0);
    assert_eq!(statistics.hits_leaf, 6 * rounds);

    let bytes = page(key(3, 0), BYTES);
    let inserts = rounds as u32 / 20;
    let started = thread_cpu();
    for unit in 0..inserts {
        cache.insert(key(3, unit), PageClass::Leaf, &bytes);
    }
    let nanos = (thread_cpu() - started).as_nanos() as f64 / f64::from(inserts);
    let statistics = cache.statistics();
    println!("{nanos:.0} ns an insert with eviction, {statistics:?}");
    let made_way = statistics.evictions + statistics.refusals + u64::from(pages as u32 / 4);
    assert!(made_way >= u64::from(inserts) / 2, "{statistics:?}");
    assert_within_capacity(&cache);
}

/// Stripes share the capacity evenly, also after it has changed, and a file that is removed leaves all of them. A value that
/// is too large for a stripe is not cached, and refuses nothing else.
#[test]
fn stripes_share_the_capacity_and_forget_a_file_together() {
    let pages = 64;
    let capacity = pages * (PAGE + 100);
    let cache = Cache::with_options(capacity, of_stripes(3, true));
    assert!(cache.statistics().capacity_bytes <= capacity as u64);
    for file in 1..4 {
        for unit in 0..pages as u32 {
            cache.insert(key(file, unit), PageClass::Leaf, &page(key(file, unit), PAGE));
        }
    }
    let full = cache.statistics();
    assert!(full.bytes <= full.capacity_bytes, "{full:?}");
    // As much as one stripe would hold, but for what is kept free in each.
    assert!(full.pages >= pages as u64 * 3 / 4, "{full:?}");
    let of_file = |file| (0..pages as u32).filter(|unit| cache.contains(key(file, *unit))).count();
    let kept = (1..4).map(of_file).sum::<usize>() as u64;
    assert_eq!(kept, full.pages);
    // By units, and by slots.
    cache.remove_file(FileId(3), pages as u32 / 2, false);
    cache.remove_file(FileId(3), pages as u32 * 2, false);
    cache.remove_file(FileId(2), 1 << 20, false);
    assert_eq!((of_file(2), of_file(3)), (0, 0));
    cache.insert(key(4, 0), PageClass::Leaf, &vec![0; capacity / 8]);
    assert!(!cache.contains(key(4, 0)));
    for capacity in [capacity / 4, capacity * 2] {
        cache.set_capacity(capacity);
        for unit in 0..4 * pages as u32 {
            cache.insert(key(5, unit), PageClass::Leaf, &page(key(5, unit), PAGE));
        }
        let full = cache.statistics();
        assert!(full.bytes <= full.capacity_bytes && full.capacity_bytes <= capacity as u64);
        assert!(full.bytes >= capacity as u64 * 3 / 4, "{full:?}");
    }
}
