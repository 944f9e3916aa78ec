//! The failures of background work, for those who wait until it is done (`idle`).
//!
//! Invariants:
//! 1. Each keyspace has its own failures, those of flushes apart from those of compactions. A success of other work
//!    hides none of them.
//! 2. A failure does not replace one for another cause.
//! 3. Failures are numbered. A waiting thread considers those noted since its wait began, and removes none.

use crate::base::error::Error;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// The causes that `idle` distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No room, which may be over soon.
    Full,
    /// Damage at a place that is quarantined from then on: all other work can be done.
    Quarantined,
    Other,
}

/// The last failures of one kind of background work, by cause.
#[derive(Default)]
pub(crate) struct Failures(Mutex<[Option<(u64, Error)>; 3]>);

impl Failures {
    /// Notes a failure. It is numbered under the lock, so that the last one that is kept has the highest number.
    pub(super) fn note(&self, count: &FailureCount, error: &Error, is_quarantined: bool) {
        let cause = match error {
            Error::Full { .. } => Cause::Full,
            _ if is_quarantined => Cause::Quarantined,
            _ => Cause::Other,
        };
        let mut failures = self.0.lock();
        failures[cause as usize] = Some((count.next(), error.clone()));
    }

    /// Forgets all: the work has succeeded.
    pub(super) fn forget(&self) {
        *self.0.lock() = [None, None, None];
    }

    /// There may be room now.
    pub(super) fn forget_full(&self) {
        self.0.lock()[Cause::Full as usize] = None;
    }

    /// The failure for this cause that was noted after `mark`.
    pub(super) fn since(&self, mark: u64, cause: Cause) -> Option<Error> {
        let failures = self.0.lock();
        let failure = failures[cause as usize].as_ref().filter(|failure| failure.0 > mark);
        failure.map(|(_, error)| error.clone())
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
        failures.note(&count, &Error::invalid("damage"), false);
        failures.note(&count, &full, false);
        failures.note(&count, &Error::invalid("quarantined"), true);
        assert!(failures.since(2, Cause::Other).is_some());
        assert!(failures.since(3, Cause::Other).is_none());
        assert!(
            failures.since(3, Cause::Full).is_some() && failures.since(4, Cause::Full).is_none()
        );
        assert!(failures.since(4, Cause::Quarantined).is_some());
        failures.forget_full();
        assert!(failures.since(2, Cause::Full).is_none());
        assert!(failures.since(2, Cause::Other).is_some());
        failures.forget();
        assert!(failures.since(0, Cause::Other).is_none());
    }
}
