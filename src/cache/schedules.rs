//! Scenarios of the page cache: readers that are pinned while pages are evicted, removed and put
//! back.

use std::sync::Arc;

use shuttle::thread;

use super::frames::MULTI_UNITS;
use super::page_cache::{Cache, CacheOptions, PageClass, PageKey};
use crate::base::ids::FileId;

const PAGE_BYTES: usize = 4096;

fn key(file: u64, unit: u32) -> PageKey {
    PageKey { file: FileId(file), unit }
}

/// What a page's ends hold; the middle is not looked at.
fn stamp(key: PageKey) -> u8 {
    (key.file.0 as u8) << 4 | key.unit as u8
}

/// Room for `pages` pages and the tables.
fn cache(pages: usize) -> Arc<Cache> {
    Arc::new(Cache::new(pages * (PAGE_BYTES + 100) + 1024))
}

/// Reads through the cache, as tables do.
fn read(cache: &Cache, key: PageKey, bytes: usize) {
    let check = |page: &[u8]| {
        assert_eq!(page.len(), bytes);
        assert_eq!([page[0], page[bytes - 1]], [stamp(key); 2], "another page's bytes");
    };
    if cache.get(key, PageClass::Leaf, check).is_none() {
        cache.insert(key, PageClass::Leaf, &vec![stamp(key); bytes]);
        cache.get(key, PageClass::Leaf, check);
    }
}

fn check_size(cache: &Cache) {
    let statistics = cache.statistics();
    assert!(statistics.bytes <= statistics.capacity_bytes, "{statistics:?}");
}

/// Pages of one to three units take turns in a cache of a few units.
pub(crate) fn pages_of_several_units() {
    let cache = cache(4 * MULTI_UNITS);
    let readers: Vec<_> = (1..3)
        .map(|file| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                for unit in 0..5 {
                    let units = (file + unit) as usize % MULTI_UNITS + 1;
                    read(&cache, key(file, unit as u32), units * PAGE_BYTES - 1);
                }
            })
        })
        .collect();
    for unit in [5, 0, 3] {
        read(&cache, key(3, unit), PAGE_BYTES);
        check_size(&cache);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    check_size(&cache);
}

/// A cache of a few pages, more readers than room: each sees the bytes of the page it asked for,
/// and no more memory is taken than there may be.
pub(crate) fn readers_and_evictions() {
    let cache = cache(3);
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                for unit in 0..5 {
                    read(&cache, key(1, (unit + reader * 2) % 6), PAGE_BYTES);
                }
            })
        })
        .collect();
    for unit in [5, 0, 3] {
        read(&cache, key(1, unit), PAGE_BYTES);
        check_size(&cache);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    check_size(&cache);
}

/// A file's pages are removed while they are read; afterwards they are gone.
pub(crate) fn removed_files() {
    let cache = cache(4);
    for unit in 0..3 {
        read(&cache, key(1, unit), 64);
    }
    let reader = {
        let cache = Arc::clone(&cache);
        thread::spawn(move || {
            for unit in 0..3 {
                let found = cache.get(key(1, unit), PageClass::Leaf, |page| page[0]);
                assert!(found.is_none_or(|byte| byte == stamp(key(1, unit))));
            }
        })
    };
    let other = {
        let cache = Arc::clone(&cache);
        thread::spawn(move || (0..3).for_each(|unit| read(&cache, key(2, unit), 64)))
    };
    cache.remove_file(FileId(1), 3, false);
    for unit in 0..3 {
        assert!(!cache.contains(key(1, unit)), "a page of a file that was removed");
    }
    reader.join().unwrap();
    other.join().unwrap();
    check_size(&cache);
}

/// The capacity changes while pages of all sorts, in frames, in multi-unit frames and on the heap,
/// come and go.
pub(crate) fn changing_capacity() {
    let cache = cache(4 * MULTI_UNITS + 1);
    let readers: Vec<_> = [PAGE_BYTES, PAGE_BYTES + 1, MULTI_UNITS * PAGE_BYTES + 1]
        .into_iter()
        .zip(1..)
        .map(|(bytes, file)| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || (0..4).for_each(|unit| read(&cache, key(file, unit), bytes)))
        })
        .collect();
    cache.set_capacity(8 * (PAGE_BYTES + 100) + 1024);
    cache.set_capacity(2 * (PAGE_BYTES + 100) + 1024);
    cache.set_capacity(40 * (PAGE_BYTES + 100) + 1024);
    for reader in readers {
        reader.join().unwrap();
    }
    check_size(&cache);
}

/// Readers of a cache of two stripes, while its capacity changes and a file is removed from both: the stripes together keep
/// to the capacity, and neither keeps a page of the file.
pub(crate) fn stripes() {
    let options = CacheOptions { row_cache_bytes_max: 0, stripes: 2, deterministic: false };
    let cache = Arc::new(Cache::with_options(8 * (PAGE_BYTES + 100) + 2048, options));
    for unit in 0..3 {
        read(&cache, key(1, unit), PAGE_BYTES);
    }
    let readers: Vec<_> = (2..4)
        .map(|file| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || (0..4).for_each(|unit| read(&cache, key(file, unit), PAGE_BYTES)))
        })
        .collect();
    cache.set_capacity(4 * (PAGE_BYTES + 100) + 2048);
    cache.remove_file(FileId(1), 3, false);
    for unit in 0..3 {
        assert!(!cache.contains(key(1, unit)), "a page of a file that was removed");
    }
    check_size(&cache);
    cache.set_capacity(8 * (PAGE_BYTES + 100) + 2048);
    for reader in readers {
        reader.join().unwrap();
    }
    check_size(&cache);
    let capacity_bytes = cache.statistics().capacity_bytes as usize;
    assert!(capacity_bytes <= 8 * (PAGE_BYTES + 100) + 2048, "{capacity_bytes}");
}

/// A value's key.
fn value_key(file: u64, unit: u32) -> PageKey {
    PageKey::of_value(FileId(file), unit).unwrap()
}

/// Values of one and of three units are kept while they are evicted, removed and put back, by more readers than there is
/// room for, and after the cache is gone: each stays what it was.
pub(crate) fn kept_values() {
    let cache = cache(4 * MULTI_UNITS + 1);
    // A value is at most a sixteenth of the cache, unless the test inserts it as a page is.
    let put = |cache: &Cache, key: PageKey, bytes: usize| {
        cache.insert(key, PageClass::Value, &vec![stamp(key); bytes]);
    };
    let readers: Vec<_> = [PAGE_BYTES, MULTI_UNITS * PAGE_BYTES]
        .into_iter()
        .zip(1..)
        .map(|(bytes, file)| {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                let mut kept = Vec::new();
                for unit in 0..4 {
                    let key = value_key(file, unit);
                    put(&cache, key, bytes);
                    if let Some(value) = cache.value(key) {
                        kept.push((key, value));
                    }
                    if unit == 2 && !kept.is_empty() {
                        kept.remove(0);
                    }
                }
                (bytes, kept, cache)
            })
        })
        .collect();
    for unit in 0..3 {
        put(&cache, value_key(1, unit), PAGE_BYTES);
        check_size(&cache);
    }
    cache.remove_file(FileId(1), 4, true);
    cache.set_capacity(2 * (PAGE_BYTES + 100) + 1024);
    cache.set_capacity((4 * MULTI_UNITS + 1) * (PAGE_BYTES + 100) + 1024);
    for unit in 0..3 {
        read(&cache, key(3, unit), PAGE_BYTES);
    }
    check_size(&cache);
    drop(cache);
    for reader in readers {
        let (bytes, kept, cache) = reader.join().unwrap();
        drop(cache);
        for (key, value) in kept {
            assert_eq!(value.len(), bytes);
            assert_eq!([value[0], value[bytes - 1]], [stamp(key); 2], "another value's bytes");
        }
    }
}
