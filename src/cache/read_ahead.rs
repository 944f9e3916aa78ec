//! The memory budget of read-ahead buffers, shared by all threads.
//!
//! When little is left, less is read ahead. Nothing waits, and nothing fails.
//!
//! Invariants:
//! 1. `used` is the sum of all leases.
//! 2. `used` is at most `bytes_max`, unless `bytes_max` was lowered.

use std::sync::Arc;

use crate::base::sync::plain::{AtomicUsize, Ordering};

/// See the module's description.
pub(crate) struct ReadAhead {
    used: AtomicUsize,
    bytes_max: AtomicUsize,
}

/// A leased part of the budget, returned when dropped.
pub(crate) struct Lease {
    account: Arc<ReadAhead>,
    bytes: usize,
}

impl ReadAhead {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Arc<ReadAhead> {
        Arc::new(ReadAhead { used: AtomicUsize::new(0), bytes_max: AtomicUsize::new(bytes_max) })
    }

    /// Changes the size of the budget.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// The size of the budget.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes that are lent.
    pub(crate) fn bytes_used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Leases up to `wanted` bytes, or nothing if less than `least` is available. No lease exceeds
    /// a quarter of the budget.
    pub(crate) fn lease(self: &Arc<Self>, wanted: usize, least: usize) -> Option<Lease> {
        let most = self.bytes_max.load(Ordering::Relaxed);
        let wanted = wanted.min((most / 4).max(least));
        let before = self.used.fetch_add(wanted, Ordering::Relaxed);
        let bytes = wanted.min(most.saturating_sub(before));
        let bytes = if bytes < least { 0 } else { bytes };
        self.used.fetch_sub(wanted - bytes, Ordering::Relaxed);
        (bytes > 0).then(|| Lease { account: Arc::clone(self), bytes })
    }
}

impl Lease {
    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_get_smaller_and_never_exceed_the_share() {
        let account = ReadAhead::new(1000);
        let first = account.lease(2000, 10).unwrap();
        assert_eq!(first.bytes(), 250, "a quarter");
        let mut held = vec![first];
        while let Some(lease) = account.lease(170, 10) {
            held.push(lease);
            assert!(account.bytes_used() <= 1000);
        }
        assert_eq!(held.last().unwrap().bytes(), 70);
        assert!(account.lease(1, 1).is_none());
        drop(held);
        assert_eq!(account.bytes_used(), 0);
        assert!(account.lease(400, 400).is_some(), "the least may be more than a quarter");
    }
}
