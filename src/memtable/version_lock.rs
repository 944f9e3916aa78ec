//! The lock of a node whose readers write nothing: they read its version, read the node, and look
//! whether the version is still the same.
//!
//! Invariants:
//! 1. The version is odd while a writer holds the lock, and grows with every change. What was read
//!    between two equal, even versions is consistent.
//! 2. Whatever a writer had written before it took the lock is seen by whoever sees, with an
//!    acquiring load, one of its stores under the lock: an entry may be read before the version is
//!    looked at again.

use crate::base::sync::modelled::{AtomicU64, Ordering, fence};
use crate::base::sync::{spin_loop, yield_now};

/// See the module's description.
pub(super) struct VersionLock(AtomicU64);

impl VersionLock {
    pub(super) fn new() -> VersionLock {
        VersionLock(AtomicU64::new(0))
    }

    /// Waits until no writer holds the lock and returns the version.
    #[inline]
    pub(super) fn read(&self) -> u64 {
        let mut spins = 0;
        loop {
            let version = self.0.load(Ordering::Acquire);
            if version & 1 == 0 {
                return version;
            }
            spins += 1;
            pause(spins);
        }
    }

    /// Whether nothing has changed since `version` was read.
    #[inline]
    pub(super) fn is_still(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        let is_still = self.0.load(Ordering::Relaxed) == version;
        // What follows are plain loads: without this, no scenario would change anything before
        // them.
        #[cfg(shuttle)]
        self.0.load(Ordering::Relaxed);
        is_still
    }

    /// Takes the lock if nothing has changed since `version` was read.
    #[inline]
    pub(super) fn try_lock(&self, version: u64) -> Option<VersionGuard<'_>> {
        self.0.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Whoever sees one of our later stores sees the odd version too.
        fence(Ordering::Release);
        Some(VersionGuard { lock: self, version })
    }
}

/// Waits a moment: longer if it has been long, since the holder may have been scheduled away.
#[inline]
pub(super) fn pause(spins: u32) {
    if spins.is_multiple_of(64) {
        yield_now();
    } else {
        spin_loop();
    }
}

/// The right to change a node; dropping it publishes the changes.
pub(super) struct VersionGuard<'a> {
    lock: &'a VersionLock,
    version: u64,
}

impl Drop for VersionGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.store(self.version + 2, Ordering::Release);
    }
}
