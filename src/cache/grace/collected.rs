//! Grace periods by `crossbeam_epoch`.

use std::cell::RefCell;
use std::sync::OnceLock;

use crossbeam_epoch::{Collector, LocalHandle};

pub(in crate::cache) use crossbeam_epoch::Guard;

use crate::base::sync::plain::{AtomicU64, Ordering};

fn collector() -> &'static Collector {
    static COLLECTOR: OnceLock<Collector> = OnceLock::new();
    COLLECTOR.get_or_init(Collector::new)
}

thread_local! {
    static PARTICIPANT: LocalHandle = collector().register();
    /// The thread's handle of the private collector that it used last.
    static LAST_OWN: RefCell<Option<OwnPart>> = const { RefCell::new(None) };
}

/// A thread's handle of the collector with that number.
struct OwnPart {
    number: u64,
    /// Declared before the collector, so that it is dropped first
    /// (`a_thread_may_outlive_the_cache_it_has_read`).
    handle: LocalHandle,
    _collector: Collector,
}

/// The readers that a grace period waits for.
#[derive(Debug, Clone)]
pub(in crate::cache) enum Readers {
    /// The readers of all caches that share a collector. Pins nest and are nearly free.
    Shared,
    /// The readers of one cache, independent of all others, with an identifying number.
    Own(u64, Collector),
}

impl Readers {
    /// Readers of one cache alone.
    pub(in crate::cache) fn own() -> Readers {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Readers::Own(NUMBERS.fetch_add(1, Ordering::Relaxed), Collector::new())
    }

    /// Pins the calling thread until the guard is dropped. Pins nest, inner ones are cheaper.
    #[inline]
    pub(in crate::cache) fn pin(&self) -> Guard {
        match self {
            Readers::Shared => PARTICIPANT
                .try_with(LocalHandle::pin)
                // The handle of a thread that is ending is gone.
                .unwrap_or_else(|_| collector().register().pin()),
            Readers::Own(number, collector) => pin_own(*number, collector),
        }
    }

    /// Tries to advance the epoch: a few calls end a grace period unless a reader is still pinned.
    pub(in crate::cache) fn advance(&self) {
        self.pin().flush();
    }

    /// Calls `f` once all current pins have ended.
    pub(super) fn defer(&self, f: impl FnOnce() + Send + 'static) {
        let guard = self.pin();
        guard.defer(f);
        // Otherwise it would wait in this thread's bag for 63 more functions.
        guard.flush();
    }
}

fn pin_own(number: u64, collector: &Collector) -> Guard {
    let pinned = LAST_OWN.try_with(|last| {
        let mut last = last.borrow_mut();
        match &*last {
            Some(part) if part.number == number => part.handle.pin(),
            _ => {
                let handle = collector.register();
                let guard = handle.pin();
                *last = Some(OwnPart { number, handle, _collector: collector.clone() });
                guard
            }
        }
    });
    pinned.unwrap_or_else(|_| collector.register().pin())
}
