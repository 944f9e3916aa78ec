//! A lock with optimistic readers that write nothing: they read the version, read the node, and
//! check that the version is unchanged.
//!
//! Invariants:
//! 1. The version is odd while a writer holds the lock, and grows with every change. Data read
//!    between two equal, even versions is consistent.
//! 2. If a reader sees, with an acquiring load, a store that a writer made under the lock, it also
//!    sees everything that the writer wrote before it took the lock. So an entry may be read before
//!    the version is checked again.

use crate::base::sync::modelled::{AtomicU64, Ordering, fence};
use crate::base::sync::{spin_loop, yield_now};

/// The lock. See the module's description.
pub(crate) struct VersionLock(AtomicU64);

impl VersionLock {
    pub(crate) fn new() -> VersionLock {
        VersionLock(AtomicU64::new(0))
    }

    /// Waits until no writer holds the lock and returns the version.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
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

    /// Returns true if nothing has changed since `version` was read.
    #[inline]
    pub(crate) fn is_still(&self, version: u64) -> bool {
        fence(Ordering::Acquire);
        let is_still = self.0.load(Ordering::Relaxed) == version;
        // The loads that follow are plain: without a switch here, no scenario would change anything
        // before them.
        #[cfg(shuttle)]
        self.0.load(Ordering::Relaxed);
        is_still
    }

    /// Takes the lock if nothing has changed since `version` was read.
    #[inline]
    pub(crate) fn try_lock(&self, version: u64) -> Option<VersionGuard<'_>> {
        self.0.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // A thread that sees one of the later stores also sees the odd version.
        fence(Ordering::Release);
        Some(VersionGuard { lock: self, version })
    }
}

/// Waits briefly; longer if it has waited long, because the holder may have been descheduled.
#[inline]
pub(crate) fn pause(spins: u32) {
    if spins.is_multiple_of(64) {
        yield_now();
    } else {
        spin_loop();
    }
}

/// The exclusive right to change a node. Dropping it publishes the changes.
pub(crate) struct VersionGuard<'a> {
    lock: &'a VersionLock,
    version: u64,
}

impl Drop for VersionGuard<'_> {
    fn drop(&mut self) {
        self.lock.0.store(self.version + 2, Ordering::Release);
    }
}
