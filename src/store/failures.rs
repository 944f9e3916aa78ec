//! What background work has failed with, for whoever waits until it is done (`idle`).
//!
//! Invariants:
//! 1. Each keyspace has its own failures, those of flushes apart from those of compactions. A success of other work
//!    hides none of them.
//! 2. A failure does not replace one for another cause.
//! 3. Failures are numbered. Who waits counts those noted since the wait began, and takes none from others who wait.

use crate::base::error::Error;
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicU64, Ordering};

/// Why background work failed, as far as that tells whether to wait for other work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// For want of room, which may be over soon.
    Full,
    /// For damage at a place that is left alone from then on: all other work can be done.
    LeftAlone,
    Other,
}

/// The last failures of one sort of background work, by their cause.
#[derive(Default)]
pub(crate) struct Failures(Mutex<[Option<(u64, Error)>; 3]>);

impl Failures {
    /// Notes a failure. It is numbered under the lock, so that the last one that is kept has the highest number.
    pub(super) fn note(&self, count: &FailureCount, error: &Error, is_left_alone: bool) {
        let cause = match error {
            Error::Full { .. } => Cause::Full,
            _ if is_left_alone => Cause::LeftAlone,
            _ => Cause::Other,
        };
        let mut failures = self.0.lock();
        failures[cause as usize] = Some((count.next(), error.clone()));
    }

    /// The work has succeeded.
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
        failures.note(&count, &Error::invalid("left alone"), true);
        assert!(failures.since(2, Cause::Other).is_some());
        assert!(failures.since(3, Cause::Other).is_none());
        assert!(
            failures.since(3, Cause::Full).is_some() && failures.since(4, Cause::Full).is_none()
        );
        assert!(failures.since(4, Cause::LeftAlone).is_some());
        failures.forget_full();
        assert!(failures.since(2, Cause::Full).is_none());
        assert!(failures.since(2, Cause::Other).is_some());
        failures.forget();
        assert!(failures.since(0, Cause::Other).is_none());
    }
}
