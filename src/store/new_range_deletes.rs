//! The range deletes of a memtable.
//!
//! A range delete is also an entry of the memtable: a delete of its first key. So a memtable with range deletes is never
//! empty, and its numbers are among those of its entries.
//!
//! Invariants:
//! 1. A range delete is added before its commit counts as applied. So a reader that determines its number first, and looks
//!    here then, finds all that its number has.
//! 2. Once the memtable is frozen, nothing is added.

use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::range_delete::RangeDelete;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{ArcSwap, Mutex};
use crate::merge::RangeDeletes;

/// A memtable with so many is full. Each that lies over others is noted with all of their fragments, so the cost of many
/// rises with their square.
const MANY: u64 = 1024;

/// See the module's description.
pub(crate) struct NewRangeDeletes {
    are_there: AtomicBool,
    map: ArcSwap<RangeDeletes>,
    list: Mutex<Vec<RangeDelete>>,
    count: AtomicU64,
    bytes: AtomicU64,
    /// When the first one came.
    since_nanos: AtomicU64,
}

impl Default for NewRangeDeletes {
    fn default() -> NewRangeDeletes {
        NewRangeDeletes {
            are_there: AtomicBool::new(false),
            map: ArcSwap::from_pointee(RangeDeletes::default()),
            list: Mutex::default(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            since_nanos: AtomicU64::new(0),
        }
    }
}

impl NewRangeDeletes {
    /// Adds one, at some time. No reader has a number from `since` on that is below the range delete's.
    pub(super) fn add(&self, delete: RangeDelete, since: Seqno, now_nanos: u64) {
        let mut list = self.list.lock();
        if list.is_empty() {
            self.since_nanos.store(now_nanos, Ordering::Relaxed);
        }
        let map = self.map.load_full().with(&delete, since);
        let bounds = delete.memory_bytes();
        // Each has its number, of 8 bytes.
        let fragments = map.overlapping(&delete.lower, delete.upper.as_deref()).count() as u64;
        list.push(delete);
        self.count.store(list.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bounds + 8 * fragments, Ordering::Relaxed);
        self.map.store(Arc::new(map));
        self.are_there.store(true, Ordering::SeqCst);
    }

    /// Whether there are so many that the memtable counts as full.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= MANY
    }

    /// Whether there are any.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::SeqCst)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        if self.are_there() { self.list.lock().len() } else { 0 }
    }

    /// About how much memory they take.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When the first one came; `None` if there is none.
    pub(super) fn since_nanos(&self) -> Option<u64> {
        self.are_there().then(|| self.since_nanos.load(Ordering::Relaxed))
    }

    /// All of them.
    pub(super) fn list(&self) -> Vec<RangeDelete> {
        self.list.lock().clone()
    }

    /// The same as a map, if there are any.
    pub(crate) fn map(&self) -> Option<Arc<RangeDeletes>> {
        self.are_there().then(|| self.map.load_full())
    }

    /// The newest number, up to the snapshot's, that deletes a key.
    #[cold]
    pub(crate) fn newest(&self, key: &[u8], snapshot: Seqno) -> Option<Seqno> {
        self.map.load().newest(key, snapshot)
    }

    /// The number of a range delete above `since` that has a key of `[lower, upper)`.
    #[cold]
    pub(crate) fn overlaps(&self, lower: &[u8], upper: Option<&[u8]>, since: Seqno) -> bool {
        let map = self.map.load_full();
        let mut fragments = map.overlapping(lower, upper);
        fragments.any(|fragment| fragment.seqnos.first().is_some_and(|newest| *newest > since))
    }
}
