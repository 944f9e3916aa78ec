//! The assignment of stripes to threads.
//!
//! Invariants:
//! 1. A stripe below [`SHARED_STRIPE`] belongs to one thread at a time.
//! 2. Its next owner sees everything that the last one counted there.

#[cfg(loom)]
use crate::base::sync::modelled::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use crate::base::sync::plain::{AtomicU32, AtomicU64, Ordering};

/// Stripes that belong to one thread at a time.
const OWNED_STRIPES: usize = 32;
/// The stripe of all threads that found no free one.
pub(super) const SHARED_STRIPE: usize = OWNED_STRIPES;

/// One bit per stripe that is owned by a living thread.
pub(super) struct Owners(AtomicU32);

impl Owners {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Owners {
        Owners(AtomicU32::new(0))
    }

    #[cfg(loom)]
    pub(super) fn new() -> Owners {
        Owners(AtomicU32::new(0))
    }

    /// Takes a free stripe, or else the shared one.
    pub(super) fn claim(&self) -> usize {
        let mut owners = self.0.load(Ordering::Relaxed);
        loop {
            let free = (!owners).trailing_zeros();
            if free as usize >= OWNED_STRIPES {
                return SHARED_STRIPE;
            }
            // Acquire: sees all counts of the stripe's last owner.
            match self.0.compare_exchange_weak(
                owners,
                owners | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return free as usize,
                Err(now) => owners = now,
            }
        }
    }

    /// Returns the stripe taken by `claim`.
    pub(super) fn release(&self, stripe: usize) {
        if stripe < OWNED_STRIPES {
            self.0.fetch_and(!(1 << stripe), Ordering::Release);
        }
    }
}

/// One counter in one stripe.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds `n`, in a stripe that the calling thread owns.
    #[inline]
    pub(super) fn add_owned(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds `n`, in the shared stripe.
    #[inline]
    pub(super) fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
