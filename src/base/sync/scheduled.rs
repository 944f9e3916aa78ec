//! `parking_lot`'s interface on shuttle's locks, and the like.
//!
//! Invariants:
//! 1. No lock is poisoned: a task that panics has failed the scenario already.
//! 2. Each operation here is a place where shuttle may switch to another task, as each may be where
//!    another thread gets ahead.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, Ordering};

/// A wait that is limited to less may end at once: its time may be over at any moment. A longer one
/// is as good as one without a limit: whoever is not woken before has been forgotten.
const LONG_WAIT: Duration = Duration::from_millis(100);

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// As `parking_lot::MutexGuard`.
pub(crate) struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    /// Always there, but while the guard's lock is let go of for a while.
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { lock: self, held: Some(held) }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
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
    /// Lets go of the lock for the time of `f`.
    pub(crate) fn unlocked<R>(guard: &mut Self, f: impl FnOnce() -> R) -> R {
        guard.held = None;
        let result = f();
        guard.held = Some(guard.lock.0.lock().unwrap_or_else(PoisonError::into_inner));
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("a guard holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("a guard holds its lock")
    }
}

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.held.take().expect("a guard holds its lock");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

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

/// As `crossbeam_utils::Backoff`.
pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff
    }

    pub(crate) fn snooze(&self) {
        shuttle::thread::yield_now();
    }
}

/// As `arc_swap::ArcSwap`. Nothing in it ever waits for another task, so the real one serves.
pub(crate) struct ArcSwap<T> {
    inner: arc_swap::ArcSwap<T>,
    /// Asked before each operation, to make it a place where tasks are switched.
    point: AtomicBool,
}

impl<T> ArcSwap<T> {
    pub(crate) fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap { inner: arc_swap::ArcSwap::from_pointee(value), point: AtomicBool::new(false) }
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.point.load(Ordering::SeqCst);
        self.inner.load()
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        self.point.load(Ordering::SeqCst);
        self.inner.load_full()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        self.point.load(Ordering::SeqCst);
        self.inner.store(value);
    }
}
