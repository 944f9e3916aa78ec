//! Grace periods for scenarios, which run all tasks on one thread. Each pin is counted separately,
//! and the end of a period depends only on the schedule.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};

type Deferred = (u64, Box<dyn FnOnce()>);

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static PINNED: RefCell<BTreeSet<u64>> = const { RefCell::new(BTreeSet::new()) };
    static DEFERRED: RefCell<VecDeque<Deferred>> = const { RefCell::new(VecDeque::new()) };
}

/// A pin.
pub(in crate::cache) struct Guard(u64);

fn next() -> u64 {
    NEXT.replace(NEXT.get() + 1)
}

/// Those whom a grace period waits for: here all tasks, whichever cache they read.
#[derive(Debug, Clone)]
pub(in crate::cache) enum Readers {
    /// The readers of all caches.
    Shared,
}

impl Readers {
    /// As [`Readers::Shared`]: to wait for more readers than needed does no harm.
    pub(in crate::cache) fn own() -> Readers {
        Readers::Shared
    }

    /// Pins the calling task until the guard is dropped.
    pub(in crate::cache) fn pin(&self) -> Guard {
        let number = next();
        PINNED.with_borrow_mut(|pinned| pinned.insert(number));
        Guard(number)
    }

    /// Ends the periods whose readers have all ended.
    pub(in crate::cache) fn advance(&self) {
        let oldest = PINNED.with_borrow(|pinned| pinned.first().copied()).unwrap_or(u64::MAX);
        loop {
            // Not while the list is borrowed: the call may switch to another task.
            let due =
                DEFERRED.with_borrow_mut(|deferred| deferred.pop_front_if(|(at, _)| *at < oldest));
            let Some((_, f)) = due else { return };
            f();
        }
    }

    /// Calls `f` once all who are pinned now have ended.
    pub(super) fn defer(&self, f: impl FnOnce() + 'static) {
        let at = next();
        DEFERRED.with_borrow_mut(|deferred| deferred.push_back((at, Box::new(f))));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        PINNED.with_borrow_mut(|pinned| pinned.remove(&self.0));
    }
}
