//! What threads write that other threads write too, and how long they wait for locks, counted by the threads themselves.
//!
//! Only in builds with `--cfg lock_counts`, for machines without hardware counters; see `db::lock_waits`. There the
//! locks and atomics of this module's parent note each write: its cache line, and whether another thread was the last
//! one that wrote to it. Such a write has to fetch the line from another core. Reads are not counted, nor writes of
//! libraries (`arc_swap`, `crossbeam_epoch`, the counts of `Arc`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{self, AtomicU32, Ordering};
use std::time::Instant;

const LINE_BYTES: usize = 64;
/// Lines that fall on one entry count as one: the more there are, the fewer counts are wrong.
const ENTRIES: usize = 1 << 20;

/// By cache line: the thread that last wrote to it.
static WRITERS: [AtomicU32; ENTRIES] = [const { AtomicU32::new(0) }; ENTRIES];

/// What a thread has counted.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Writes of locks and atomics.
    pub(crate) writes: u64,
    /// Of these, writes to lines that another thread wrote last.
    pub(crate) fetched: u64,
    /// By lock: how often the thread has waited for it, and how many nanoseconds.
    pub(crate) waits: BTreeMap<&'static str, (u64, u64)>,
}

thread_local! {
    static WRITES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static WAITS: RefCell<BTreeMap<&'static str, (u64, u64)>> = const { RefCell::new(BTreeMap::new()) };
}

/// What the calling thread has counted since it last asked.
pub(crate) fn take() -> Counts {
    let (writes, fetched) = WRITES.take();
    Counts { writes, fetched, waits: WAITS.take() }
}

/// The calling thread writes to this place.
#[inline]
pub(crate) fn wrote<T>(place: *const T) {
    let line = place.addr() / LINE_BYTES;
    let entry = (line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    let me = super::thread_number() as u32 + 1;
    let last = WRITERS[entry as usize].swap(me, Ordering::Relaxed);
    let _ = WRITES.try_with(|counts| {
        let (writes, fetched) = counts.get();
        counts.set((writes + 1, fetched + u64::from(last != me)));
    });
}

/// Times a wait for `what`.
pub(crate) fn waiting<R>(what: &'static str, f: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = f();
    let nanos = began.elapsed().as_nanos() as u64;
    let _ = WAITS.try_with(|waits| {
        let mut waits = waits.borrow_mut();
        let entry = waits.entry(what).or_default();
        *entry = (entry.0 + 1, entry.1 + nanos);
    });
    result
}

macro_rules! counted {
    ($name:ident $(<$parameter:ident>)?, $value:ty, [$($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*]) => {
        #[derive(Debug, Default)]
        pub(crate) struct $name $(<$parameter>)? (atomic::$name $(<$parameter>)?);

        impl $(<$parameter>)? $name $(<$parameter>)? {
            pub(crate) const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            $(
                #[inline]
                #[allow(dead_code)]
                pub(crate) fn $method(&self, $($argument: $type),*) -> $result {
                    wrote(self);
                    self.0.$method($($argument),*)
                }
            )*
        }

        impl $(<$parameter>)? Deref for $name $(<$parameter>)? {
            type Target = atomic::$name $(<$parameter>)?;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $(<$parameter>)? DerefMut for $name $(<$parameter>)? {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    };
}

macro_rules! counted_number {
    ($name:ident, $value:ty) => {
        counted!($name, $value, [
            store(value: $value, order: Ordering) -> ();
            swap(value: $value, order: Ordering) -> $value;
            compare_exchange(old: $value, new: $value, order: Ordering, failed: Ordering) -> Result<$value, $value>;
            compare_exchange_weak(old: $value, new: $value, order: Ordering, failed: Ordering) -> Result<$value, $value>;
            fetch_add(value: $value, order: Ordering) -> $value;
            fetch_sub(value: $value, order: Ordering) -> $value;
            fetch_max(value: $value, order: Ordering) -> $value;
            fetch_min(value: $value, order: Ordering) -> $value;
            fetch_or(value: $value, order: Ordering) -> $value;
            fetch_and(value: $value, order: Ordering) -> $value;
        ]);
    };
}

counted_number!(AtomicU64, u64);
// `AtomicU32` of this module's own table is the standard library's.
pub(crate) mod narrow {
    use super::{Deref, DerefMut, Ordering, atomic, wrote};

    counted_number!(AtomicU32, u32);
}
counted!(AtomicBool, bool, [
    store(value: bool, order: Ordering) -> ();
    swap(value: bool, order: Ordering) -> bool;
    compare_exchange(old: bool, new: bool, order: Ordering, failed: Ordering) -> Result<bool, bool>;
]);
counted!(AtomicPtr<T>, *mut T, [
    store(value: *mut T, order: Ordering) -> ();
    swap(value: *mut T, order: Ordering) -> *mut T;
    compare_exchange(old: *mut T, new: *mut T, order: Ordering, failed: Ordering) -> Result<*mut T, *mut T>;
]);
