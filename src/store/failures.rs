//! What background work has failed with, for whoever waits until it is done (`idle`).
//!
//! Invariants:
//! 1. Each keyspace has its own failures, those of flushes apart from those of compactions. A success of other work
//!    hides none of them.
//! 2. A failure for want of room does not replace one for another reason: it may be over soon.
//! 3. Failures are numbered. Who waits counts those noted since the wait began, and takes none from others who wait.

use crate::base::error::Error;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// The last failures of one sort of background work. The first is for want of room, the second for another reason.
#[derive(Default)]
pub(crate) struct Failures(Mutex<[Option<(u64, Error)>; 2]>);

/// Where a failure for want of room stands.
const FULL: usize = 0;
/// Where any other does.
const OTHER: usize = 1;

impl Failures {
    /// Notes a failure. It is numbered under the lock, so that the last one that is kept has the highest number.
    pub(super) fn note(&self, count: &FailureCount, error: &Error) {
        let place = if matches!(error, Error::Full { .. }) { FULL } else { OTHER };
        let mut failures = self.0.lock();
        failures[place] = Some((count.next(), error.clone()));
    }

    /// The work has succeeded.
    pub(super) fn forget(&self) {
        *self.0.lock() = [None, None];
    }

    /// There may be room now.
    pub(super) fn forget_full(&self) {
        self.0.lock()[FULL] = None;
    }

    /// The failure that was noted after `mark`; one for want of room only if there is no other.
    pub(super) fn since(&self, mark: u64) -> Option<Error> {
        let failures = self.0.lock();
        let is_new = |failure: &&(u64, Error)| failure.0 > mark;
        let [full, other] = [FULL, OTHER].map(|place| failures[place].as_ref().filter(is_new));
        other.or(full).map(|(_, error)| error.clone())
    }
}

/// Numbers failures.
#[derive(Default)]
pub(crate) struct FailureCount(AtomicU64);

impl FailureCount {
    /// The number of the last failure.
    pub(super) fn last(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_failure_counts_for_those_who_waited_before_it() {
        let (failures, count) = (Failures::default(), FailureCount(AtomicU64::new(2)));
        let full = Error::Full { path: PathBuf::from("/store"), needed: 1 };
        failures.note(&count, &Error::invalid("damage"));
        failures.note(&count, &full);
        assert!(matches!(failures.since(2), Some(Error::InvalidArgument { .. })));
        assert!(matches!(failures.since(3), Some(Error::Full { .. })));
        assert!(failures.since(4).is_none());
        failures.forget_full();
        assert!(failures.since(2).is_some() && failures.since(3).is_none());
        failures.forget();
        assert!(failures.since(0).is_none());
    }
}
