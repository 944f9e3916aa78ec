//! How much memory of memtables readers keep, and what the store allows them: the state of `kept`.

use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, Ordering};

/// What readers may keep, and the cursors of iterators, have this part of the budget together, in eighths.
const SHARED_EIGHTHS: u64 = 3;
/// Readers may keep this part in any case.
const LEAST_PART: u64 = 32;
/// The page cache does not give up memory for this part.
const UNPROVIDED_PART: u64 = 8;
/// It has memory back that nobody has needed for so long: what it evicts it has to read again.
const BACK_NANOS: u64 = 1_000_000_000;

/// See the module's description.
pub(crate) struct Kept {
    /// Bytes of memtables that are in trees already, and that readers keep, when somebody last looked.
    bytes: AtomicU64,
    /// What readers may keep, when somebody last looked: beyond that they keep too much.
    bytes_max: AtomicU64,
    /// The same without cursors, and with many.
    bytes_most: u64,
    bytes_least: u64,
    /// What the page cache has given up.
    provided_bytes: AtomicU64,
    /// It does not give up memory for so many, which calls that are short keep for a moment.
    unprovided_bytes: u64,
    /// It gives up memory in steps of so many bytes.
    step_bytes: u64,
    /// When as much as is provided was last kept. Locked while anything is noted.
    needed_nanos: Mutex<u64>,
    /// One thread looks at a time, and not before this time.
    pub(super) looking: Mutex<u64>,
    /// When the next writer goes on, beyond `bytes_max`.
    pub(super) next_nanos: AtomicU64,
}

impl Kept {
    /// Nothing is kept yet.
    pub(crate) fn new(memory_budget: u64) -> Kept {
        Kept {
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(memory_budget / 8 * SHARED_EIGHTHS),
            bytes_most: memory_budget / 8 * SHARED_EIGHTHS,
            bytes_least: memory_budget / LEAST_PART,
            provided_bytes: AtomicU64::new(0),
            unprovided_bytes: memory_budget / UNPROVIDED_PART,
            step_bytes: (memory_budget / 64).max(1),
            needed_nanos: Mutex::default(),
            looking: Mutex::default(),
            next_nanos: AtomicU64::new(0),
        }
    }

    /// As far as is known.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What memtables may use beside their share.
    #[inline]
    pub(super) fn allowed_bytes(&self) -> u64 {
        self.bytes().min(self.bytes_max())
    }

    /// What they may use.
    #[inline]
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Whether readers keep too much, as far as is known.
    #[inline]
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes() > self.bytes_max()
    }

    /// What the page cache has given up.
    pub(super) fn provided_bytes(&self) -> u64 {
        self.provided_bytes.load(Ordering::Relaxed)
    }

    /// Notes what is kept while cursors use so much. Returns true if the page cache is to give up more, or may have some
    /// back.
    pub(super) fn set(&self, bytes: u64, cursor_bytes: u64, now_nanos: u64) -> bool {
        let mut needed_nanos = self.needed_nanos.lock();
        let bytes_max = self.bytes_most.saturating_sub(cursor_bytes).max(self.bytes_least);
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        let needed = bytes.saturating_sub(self.unprovided_bytes).next_multiple_of(self.step_bytes);
        let provided = self.provided_bytes();
        let since = now_nanos.saturating_sub(*needed_nanos);
        if needed < provided && since < BACK_NANOS {
            return false;
        }
        *needed_nanos = now_nanos;
        self.provided_bytes.store(needed, Ordering::Relaxed);
        needed != provided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page cache evicted pages for each memtable that a get kept for a moment.
    #[test]
    fn the_cache_gives_up_what_is_kept_for_some_time() {
        let kept = Kept::new(64 << 20);
        assert!(!kept.set(8 << 20, 0, 1));
        assert_eq!((kept.provided_bytes(), kept.allowed_bytes()), (0, 8 << 20));
        assert!(kept.set(12 << 20, 0, 2));
        assert_eq!(kept.provided_bytes(), 4 << 20);
        assert!(!kept.set(0, 0, 3) && !kept.set(12 << 20, 0, BACK_NANOS));
        assert!(!kept.set(0, 0, BACK_NANOS * 2 - 1) && kept.set(0, 0, BACK_NANOS * 2));
        assert_eq!((kept.provided_bytes(), kept.is_too_much()), (0, false));
        assert!(kept.set(100 << 20, 0, BACK_NANOS * 2));
        assert_eq!((kept.allowed_bytes(), kept.is_too_much()), (24 << 20, true));
        kept.set(100 << 20, 20 << 20, BACK_NANOS * 2);
        assert_eq!(kept.allowed_bytes(), 4 << 20);
        kept.set(100 << 20, 64 << 20, BACK_NANOS * 2);
        assert_eq!(kept.allowed_bytes(), 2 << 20);
    }
}
