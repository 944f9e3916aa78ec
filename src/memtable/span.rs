//! A piece of memory, of at most `UNITS`, that threads cut entries from without a lock.
//!
//! Invariants:
//! 1. No two [`Span::take`] give the same units.
//! 2. A span is renewed by one thread at a time, and only once it is spent.
//! 3. What a thread had written before it renewed the span is seen by all who take from it since.

use crate::base::sync::modelled::{AtomicU64, Ordering};

/// See the module's description.
pub(super) struct Span<const UNITS: u64> {
    /// `id << 32 | units used`. A smaller piece is the end of a whole one: the id is that of the
    /// whole one's start, of whose units those before the piece are used already.
    word: AtomicU64,
}

impl<const UNITS: u64> Span<UNITS> {
    /// A span with nothing left in it.
    pub(super) fn new() -> Self {
        Span { word: AtomicU64::new(UNITS) }
    }

    /// Takes `units`; returns their id. Without enough of them left, the span is spent.
    #[inline]
    pub(super) fn take(&self, units: u64) -> Option<u32> {
        let word = self.word.fetch_add(units, Ordering::AcqRel);
        let used = word & 0xffff_ffff;
        (used + units <= UNITS).then_some(((word >> 32) as u32).wrapping_add(used as u32))
    }

    /// Whether somebody has asked for more than there was left. To be asked under a lock that keeps
    /// others from renewing.
    pub(super) fn is_spent(&self) -> bool {
        self.word.load(Ordering::Acquire) & 0xffff_ffff > UNITS
    }

    /// Goes on with `size` new units from `id` on, `used` of which are the caller's.
    pub(super) fn renew(&self, id: u32, size: u64, used: u64) {
        let missing = UNITS - size;
        let whole = id.wrapping_sub(missing as u32);
        // Swapped, not stored: loom orders it among the additions then, as the language does
        // anyway.
        self.word.swap(u64::from(whole) << 32 | (missing + used), Ordering::AcqRel);
    }
}
