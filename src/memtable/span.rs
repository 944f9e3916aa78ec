//! A piece of memory, of at most `UNITS`, from which threads allocate entries without a lock.
//!
//! Invariants:
//! 1. No two calls of [`Span::take`] return the same units.
//! 2. A span is renewed by one thread at a time, and only once it is exhausted.
//! 3. Everything that a thread wrote before it renewed the span is visible to all who take from it
//!    afterwards.

use crate::base::sync::modelled::{AtomicU64, Ordering};

/// The span. See the module's description.
pub(super) struct Span<const UNITS: u64> {
    /// `id << 32 | units used`. A smaller piece is the end of a whole one: the id is that of the
    /// whole piece, with the units before the smaller piece already used.
    word: AtomicU64,
}

impl<const UNITS: u64> Span<UNITS> {
    /// A span without free units.
    pub(super) fn new() -> Self {
        Span { word: AtomicU64::new(UNITS) }
    }

    /// Takes `units` and returns their id. If too few are left, the span is exhausted.
    #[inline]
    pub(super) fn take(&self, units: u64) -> Option<u32> {
        let word = self.word.fetch_add(units, Ordering::AcqRel);
        let used = word & 0xffff_ffff;
        (used + units <= UNITS).then_some(((word >> 32) as u32).wrapping_add(used as u32))
    }

    /// Returns true if a request did not fit. Call it under a lock that excludes renewal.
    pub(super) fn is_spent(&self) -> bool {
        self.word.load(Ordering::Acquire) & 0xffff_ffff > UNITS
    }

    /// Continues with `size` new units from `id` on. The caller has used the first `used` of them.
    pub(super) fn renew(&self, id: u32, size: u64, used: u64) {
        let missing = UNITS - size;
        let whole = id.wrapping_sub(missing as u32);
        // A swap instead of a store: loom then orders it among the additions, as the language does
        // anyway.
        self.word.swap(u64::from(whole) << 32 | (missing + used), Ordering::AcqRel);
    }
}
