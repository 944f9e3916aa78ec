//! [`Provided`]: what the page cache has given up for something whose need varies.
//!
//! What the cache evicts it has to read again. So it gives up at once what is needed, and has back what has not been needed
//! for a whole period.

use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, Ordering};

/// See the module's description.
pub(super) struct Provided {
    bytes: AtomicU64,
    recent: Mutex<Recent>,
    period_nanos: u64,
}

/// What was needed after the period began: when as much as is provided was last needed, or when that last fell.
#[derive(Default)]
struct Recent {
    since_nanos: u64,
    most_bytes: u64,
}

impl Provided {
    /// Nothing yet.
    pub(super) fn new(period_nanos: u64) -> Provided {
        Provided { bytes: AtomicU64::new(0), recent: Mutex::default(), period_nanos }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes what is needed, which `needed` finds out while nobody else notes anything. Returns true if the cache is to give
    /// up more, or may have some back.
    pub(super) fn note(&self, now_nanos: u64, needed: impl FnOnce() -> u64) -> bool {
        let mut recent = self.recent.lock();
        let (needed, before) = (needed(), self.bytes());
        let is_over = now_nanos.saturating_sub(recent.since_nanos) >= self.period_nanos;
        let most = recent.most_bytes.max(needed);
        if needed < before && !is_over {
            recent.most_bytes = most;
            return false;
        }
        let bytes = if needed < before { most } else { needed };
        *recent = Recent { since_nanos: now_nanos, most_bytes: 0 };
        self.bytes.store(bytes, Ordering::Relaxed);
        bytes != before
    }

    /// The cache has all of it back.
    pub(super) fn take_back(&self) {
        let mut recent = self.recent.lock();
        recent.most_bytes = 0;
        self.bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It fell to what was needed at the very moment when a period ended, and rose again a moment later. And as long as
    /// anything was needed, however little, all of it stayed.
    #[test]
    fn it_falls_to_the_most_of_a_period() {
        let provided = Provided::new(10);
        let note = |now, bytes| (provided.note(now, || bytes), provided.bytes());
        assert_eq!(note(0, 8), (true, 8));
        assert_eq!(note(1, 8), (false, 8));
        assert_eq!(note(3, 5), (false, 8));
        assert_eq!(note(4, 0), (false, 8));
        // As much was last needed at 1.
        assert_eq!(note(10, 2), (false, 8));
        assert_eq!(note(11, 0), (true, 5));
        assert_eq!(note(15, 5), (false, 5));
        assert_eq!(note(21, 1), (false, 5));
        assert_eq!(note(25, 0), (true, 1));
        assert_eq!(note(34, 0), (false, 1));
        assert_eq!(note(35, 0), (true, 0));
        assert_eq!(note(42, 3), (true, 3));
        provided.take_back();
        assert_eq!(provided.bytes(), 0);
    }
}
