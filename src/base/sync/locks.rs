//! Locks without poisoning, based on the standard library's locks, or on shuttle's in its build.
//!
//! The standard library's locks keep all data about waiting threads in themselves and in the
//! kernel. Locks with a process-wide table of waiting threads do not survive a fork: the child has
//! the table but not the threads, and its first new thread may get the memory in which one of them
//! waited.
//!
//! Invariants:
//! 1. A thread that panics with a lock held does not poison it: the store has its own state for
//!    that.
//! 2. A lock works in a forked child unless it was held or waited for at the moment of the fork.
//! 3. So nobody in a child waits for a lock of its parent's, which may never be released. With debug assertions that is a
//!    panic, whether the lock is held or not.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

#[cfg(shuttle)]
use shuttle::sync as provider;
#[cfg(not(shuttle))]
use std::sync as provider;

/// Shorter timeouts may end at once. Longer ones never end in a schedule: a thread that is not
/// woken before has been forgotten.
#[cfg(shuttle)]
const LONG_WAIT: Duration = Duration::from_millis(100);

/// The process that took a lock first (invariant 3). Empty without debug assertions.
#[derive(Debug, Default)]
struct Owner {
    #[cfg(all(debug_assertions, not(any(shuttle, miri))))]
    process: std::sync::atomic::AtomicU32,
}

impl Owner {
    const fn new() -> Owner {
        Owner {
            #[cfg(all(debug_assertions, not(any(shuttle, miri))))]
            process: std::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Somebody may wait for the lock.
    #[inline]
    #[track_caller]
    fn check(&self) {
        #[cfg(all(debug_assertions, not(any(shuttle, miri))))]
        {
            use std::sync::atomic::Ordering::Relaxed;
            let here = std::process::id();
            if let Err(first) = self.process.compare_exchange(0, here, Relaxed, Relaxed) {
                assert!(first == here, "a forked child waits for a lock of its parent's");
            }
        }
    }
}

/// A lock for one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(provider::Mutex<T>, Owner);

/// Holds a [`Mutex`].
pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    /// `None` only while the guard's lock is temporarily released.
    held: Option<provider::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(provider::Mutex::new(value), Owner::new())
    }

    #[inline]
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.1.check();
        #[cfg(lock_counts)]
        {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            super::counted::wrote(self);
            let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let held = super::counted::waiting(std::any::type_name::<T>(), lock);
            return MutexGuard { lock: self, held: Some(held) };
        }
        #[cfg(not(lock_counts))]
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(not(lock_counts))]
        MutexGuard { lock: self, held: Some(held) }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(lock_counts)]
        super::counted::wrote(self);
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { lock: self, held: Some(held) })
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    /// Releases the lock while `f` runs.
    pub(crate) fn unlocked<R>(guard: &mut Self, f: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = f();
        guard.held = Some(guard.lock.0.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.held.as_ref().expect("a guard holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("a guard holds its lock")
    }
}

/// A lock for one writer or any number of readers at a time.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(provider::RwLock<T>, Owner);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(provider::RwLock::new(value), Owner::new())
    }

    #[inline]
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.1.check();
        #[cfg(lock_counts)]
        {
            super::counted::wrote(self);
            if let Err(TryLockError::WouldBlock) = self.0.try_read() {
                let lock = || self.0.read().unwrap_or_else(PoisonError::into_inner);
                return super::counted::waiting(std::any::type_name::<T>(), lock);
            }
        }
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody writes.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        #[cfg(lock_counts)]
        super::counted::wrote(self);
        match self.0.try_read() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.1.check();
        #[cfg(lock_counts)]
        {
            super::counted::wrote(self);
            if let Err(TryLockError::WouldBlock) = self.0.try_write() {
                let lock = || self.0.write().unwrap_or_else(PoisonError::into_inner);
                return super::counted::waiting(std::any::type_name::<T>(), lock);
            }
        }
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds a [`RwLock`] with others.
pub(crate) type RwLockReadGuard<'a, T> = provider::RwLockReadGuard<'a, T>;
/// Holds a [`RwLock`] alone.
pub(crate) type RwLockWriteGuard<'a, T> = provider::RwLockWriteGuard<'a, T>;

/// A condition variable for a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(provider::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(provider::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("a guard holds its lock");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    #[cfg(not(shuttle))]
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
        let held = guard.held.take().expect("a guard holds its lock");
        let waited = self.0.wait_timeout(held, at_most);
        guard.held = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
    }

    /// No time passes in a schedule.
    #[cfg(shuttle)]
    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) {
        if at_most < LONG_WAIT {
            MutexGuard::unlocked(guard, shuttle::thread::yield_now);
        } else {
            self.wait(guard);
        }
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
