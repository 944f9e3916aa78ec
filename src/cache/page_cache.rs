//! The page cache. (A plain map behind a lock for now; the concurrent one replaces it.)

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::base::ids::FileId;

/// Names a page: the file and the unit (of 4 KiB) it starts at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageKey {
    pub(crate) file: FileId,
    pub(crate) unit: u32,
}

/// What a page is worth to keep: index and filter pages answer for many leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageClass {
    /// Entries.
    Leaf,
    /// Separators of a table's index.
    Index,
    /// Fingerprints.
    Filter,
}

/// Counters since the cache was made, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheStatistics {
    pub(crate) hits_leaf: u64,
    pub(crate) hits_index: u64,
    pub(crate) hits_filter: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
    pub(crate) bytes: u64,
    pub(crate) capacity_bytes: u64,
}

/// The page cache.
pub(crate) struct Cache {
    pages: Mutex<BTreeMap<PageKey, Box<[u8]>>>,
}

impl Cache {
    /// A cache of up to `capacity_bytes`.
    pub(crate) fn new(_capacity_bytes: usize) -> Cache {
        Cache { pages: Mutex::new(BTreeMap::new()) }
    }

    /// Calls `f` with the page's bytes if it is cached. `f` must be short and must not call the cache.
    pub(crate) fn get<R>(
        &self,
        key: PageKey,
        _class: PageClass,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.pages.lock().get(&key).map(|page| f(page))
    }

    /// Whether the page is cached; does not count as a use.
    pub(crate) fn contains(&self, key: PageKey) -> bool {
        self.pages.lock().contains_key(&key)
    }

    /// Caches a copy of `bytes` (one 4 KiB unit in the usual case, more for a large page).
    pub(crate) fn insert(&self, key: PageKey, _class: PageClass, bytes: &[u8]) {
        self.pages.lock().insert(key, Box::from(bytes));
    }

    /// Forgets every page of a file that has been deleted: units `0..units`.
    pub(crate) fn remove_file(&self, file: FileId, units: u32) {
        let mut pages = self.pages.lock();
        for unit in 0..units {
            pages.remove(&PageKey { file, unit });
        }
    }

    /// Changes the most bytes the cache may hold, evicting as needed.
    pub(crate) fn set_capacity(&self, _capacity_bytes: usize) {}

    /// Counters and sizes.
    pub(crate) fn statistics(&self) -> CacheStatistics {
        CacheStatistics::default()
    }
}
