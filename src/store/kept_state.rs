//! How much memory of memtables readers keep, and what the store allows them: the state of `kept`.

use super::provided::Provided;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, Ordering};

/// What readers may keep, and the cursors of iterators, have this part of the budget together, in eighths.
const SHARED_EIGHTHS: u64 = 3;
/// Readers may keep this part in any case.
const LEAST_PART: u64 = 32;
/// The page cache does not give up memory for this part.
const UNPROVIDED_PART: u64 = 8;
/// It has memory back that nobody has needed for so long.
const BACK_NANOS: u64 = 1_000_000_000;
/// Shorter waits are summed up, and who completes so much waits for all.
const WAIT_MIN_NANOS: u64 = 1_000_000;

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
    provided: Provided,
    /// It does not give up memory for so many, which calls that are short keep for a moment.
    unprovided_bytes: u64,
    /// It gives up memory in steps of so many bytes.
    step_bytes: u64,
    /// One thread looks at a time, and not before this time.
    pub(super) looking: Mutex<u64>,
    /// How many writers wait, beyond `bytes_max`.
    waiting: AtomicU64,
    /// Waits of small writes that nobody has waited yet.
    owed_nanos: AtomicU64,
}

impl Kept {
    /// Nothing is kept yet.
    pub(crate) fn new(memory_budget: u64) -> Kept {
        Kept {
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(memory_budget / 8 * SHARED_EIGHTHS),
            bytes_most: memory_budget / 8 * SHARED_EIGHTHS,
            bytes_least: memory_budget / LEAST_PART,
            provided: Provided::new(BACK_NANOS),
            unprovided_bytes: memory_budget / UNPROVIDED_PART,
            step_bytes: (memory_budget / 64).max(1),
            looking: Mutex::default(),
            waiting: AtomicU64::new(0),
            owed_nanos: AtomicU64::new(0),
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

    /// By how much they keep too much, as far as is known.
    #[inline]
    pub(super) fn excess_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.bytes_max())
    }

    /// Whether the page cache has to give up memory for what they keep.
    #[inline]
    pub(super) fn is_provided_for(&self) -> bool {
        self.bytes() > self.unprovided_bytes
    }

    /// What the page cache has given up.
    pub(super) fn provided_bytes(&self) -> u64 {
        self.provided.bytes()
    }

    /// What a writer waits that owes so much. Small waits are summed up.
    pub(super) fn owed(&self, nanos: u64) -> Option<u64> {
        if nanos >= WAIT_MIN_NANOS {
            return Some(nanos);
        }
        let owed = self.owed_nanos.fetch_add(nanos, Ordering::Relaxed) + nanos;
        if owed < WAIT_MIN_NANOS {
            return None;
        }
        Some(self.owed_nanos.swap(0, Ordering::Relaxed)).filter(|owed| *owed > 0)
    }

    /// One more writer waits.
    pub(super) fn begin_to_wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    /// Notes what is kept while cursors use so much. Returns true if the page cache is to give up more, or may have some
    /// back.
    pub(super) fn set(&self, bytes: u64, cursor_bytes: u64, now_nanos: u64) -> bool {
        let bytes_max = self.bytes_most.saturating_sub(cursor_bytes).max(self.bytes_least);
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        let needed = bytes.saturating_sub(self.unprovided_bytes).next_multiple_of(self.step_bytes);
        self.provided.note(now_nanos, || needed)
    }
}

/// A writer that waits for readers.
pub(super) struct Waiting<'a>(&'a AtomicU64);

impl Waiting<'_> {
    /// How many share the rate at which writers are let in.
    pub(super) fn parts(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
