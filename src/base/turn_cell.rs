//! `TurnCell`: a value that its owner uses often and another thread occasionally.
//!
//! The owner enters with one atomic exchange and leaves with a plain store, at about half the cost
//! of a mutex. Other threads only try to enter.
//!
//! Invariants:
//! 1. At most one [`Turn`] of a cell exists at a time.
//! 2. What one turn wrote is seen by the next.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use super::sync::modelled::{AtomicBool, Ordering};
use super::sync::{spin_loop, yield_now};

/// The cell. See the module's description.
pub(crate) struct TurnCell<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is accessed only through a `Turn`, and there is at most one (invariant 1). So
// sharing the cell moves the value between threads and never shares it.
unsafe impl<T: Send> Sync for TurnCell<T> {}

/// Exclusive use of a cell's value, until dropped.
pub(crate) struct Turn<'a, T>(&'a TurnCell<T>);

impl<T> TurnCell<T> {
    /// Creates a cell that nobody uses.
    pub(crate) fn new(value: T) -> TurnCell<T> {
        TurnCell { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the value. For the owner: other threads hold it only briefly.
    #[inline]
    pub(crate) fn enter(&self) -> Turn<'_, T> {
        if !self.take() {
            self.wait();
        }
        Turn(self)
    }

    /// Begins a turn, unless there is one. (A failed exchange writes nothing, so the end of the
    /// other turn remains the last write.)
    #[inline]
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The value, unless another thread uses it.
    pub(crate) fn try_enter(&self) -> Option<Turn<'_, T>> {
        // A turn that was not acquired must not be dropped either.
        if self.take() { Some(Turn(self)) } else { None }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0u32;
        while !self.take() {
            tries += 1;
            if tries.is_multiple_of(64) { yield_now() } else { spin_loop() }
        }
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only turn (invariant 1).
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only turn (invariant 1), and `&mut self` makes the access exclusive.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn turns_do_not_overlap() {
        let cell = TurnCell::new(0u64);
        let turn = cell.enter();
        assert!(cell.try_enter().is_none());
        assert!(cell.try_enter().is_none(), "a failed attempt had ended the other's turn");
        drop(turn);
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let added = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for owner in [true, false, false] {
                let (cell, added) = (&cell, &added);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let turn = if owner { Some(cell.enter()) } else { cell.try_enter() };
                        if let Some(mut turn) = turn {
                            *turn += 1;
                            added.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(*cell.enter(), added.into_inner());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    /// The owner and a thread that tries: no count is lost.
    #[test]
    fn turns_do_not_overlap() {
        loom::model(|| {
            let cell = Arc::new(TurnCell::new(0));
            let other = {
                let cell = Arc::clone(&cell);
                loom::thread::spawn(move || match cell.try_enter() {
                    Some(mut turn) => {
                        *turn += 1;
                        1
                    }
                    None => 0,
                })
            };
            *cell.enter() += 1;
            let added = other.join().unwrap();
            assert_eq!(*cell.enter(), 1 + added);
        });
    }
}
