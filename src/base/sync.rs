//! Synchronization of threads: atomics, locks, waiting and starting threads, from one place.
//!
//! In ordinary builds these are the standard library's, except that [`locks`] are not poisoned. Two
//! test builds replace them; the rest of the engine is the same in all three:
//!
//! - `--cfg shuttle`: locks, [`atomic`]s and threads are shuttle's. It runs all tasks of a scenario
//!   on one thread and switches between them according to a seed (`db::schedules`).
//! - `--cfg loom`: the atomics of [`modelled`] are loom's, which tries all orders that the memory
//!   model allows. Only small types can be tested in this way; each has its model beside it
//!   (`loom_tests`). Everything else is as in ordinary builds.
//! - `--cfg lock_counts`: locks and atomics count writes and waits (`counted`).
//!
//! Invariants:
//! 1. Engine modules use only these types for synchronization (`tests/tidy` checks it).
//! 2. Ordinary builds add nothing to the standard library's types on any hot path.
//! 3. [`plain`] atomics never switch tasks in any build: no decision depends on them, or a
//!    [`modelled`] atomic guards their memory. Plain locks never switch either; only tests have
//!    them.

pub(crate) use crossbeam_utils::CachePadded;

#[cfg(lock_counts)]
pub(crate) mod counted;
mod locks;
#[cfg(shuttle)]
mod scheduled;

/// Always the standard library's.
pub(crate) mod plain {
    pub(crate) use arc_swap::ArcSwapOption;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };

    /// A lock for the disks of tests. No other task runs between taking one lock and the next, so a
    /// consistent copy of several files can be made.
    #[cfg(test)]
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    #[cfg(test)]
    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> std::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

/// Atomics that decisions depend on.
#[cfg(lock_counts)]
pub(crate) mod atomic {
    pub(crate) use super::counted::{AtomicBool, AtomicPtr, AtomicU64, narrow::AtomicU32};
    pub(crate) use std::sync::atomic::Ordering;
}

/// Atomics that decisions depend on.
#[cfg(not(any(shuttle, lock_counts)))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
}

/// Atomics that decisions depend on.
#[cfg(shuttle)]
pub(crate) mod atomic {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
}

/// The atomics and locks of the small types that loom tests.
pub(crate) mod modelled {
    #[cfg(not(any(loom, shuttle, lock_counts)))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

    #[cfg(lock_counts)]
    pub(crate) use super::counted::{AtomicBool, AtomicU64};
    #[cfg(lock_counts)]
    pub(crate) use std::sync::atomic::{Ordering, fence};

    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    #[cfg(shuttle)]
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

    #[cfg(not(loom))]
    pub(crate) use super::Mutex;

    /// As [`super::Mutex`].
    #[cfg(loom)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    #[cfg(loom)]
    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

#[cfg(not(shuttle))]
pub(crate) use crossbeam_utils::Backoff;
pub(crate) use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(shuttle)]
pub(crate) use scheduled::{ArcSwap, Backoff};

#[cfg(not(shuttle))]
pub(crate) use arc_swap::ArcSwap;

/// Calls `f`, which waits for other threads; counted in builds that count.
#[inline]
pub(crate) fn waiting<R>(what: &'static str, f: impl FnOnce() -> R) -> R {
    #[cfg(lock_counts)]
    return counted::waiting(what, f);
    #[cfg(not(lock_counts))]
    {
        let _ = what;
        f()
    }
}

/// A hint to the processor in a waiting loop.
#[inline]
pub(crate) fn spin_loop() {
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Lets other threads run.
#[inline]
pub(crate) fn yield_now() {
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Threads, for `jobs`.
pub(crate) mod thread {
    #[cfg(not(shuttle))]
    pub(crate) use std::thread::{Builder, JoinHandle, ThreadId, current};

    #[cfg(shuttle)]
    pub(crate) use shuttle::thread::{Builder, JoinHandle, ThreadId, current};
}

/// The calling thread's number, assigned when the thread first asks.
#[cfg(not(shuttle))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const NONE: usize = usize::MAX;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(NONE) };
    }
    MINE.with(|mine| {
        if mine.get() == NONE {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        mine.get()
    })
}

/// The calling task's number, the same in each run of a schedule.
#[cfg(shuttle)]
pub(crate) fn thread_number() -> usize {
    shuttle::current::me().into()
}
