//! How much cursors have recently read per seek: leaves of a table, or keys of a keyspace. The next cursor reads about as
//! much at once.
//!
//! Invariants:
//! 1. It is an estimate: only the number of reads depends on it.

use crate::base::sync::plain::{AtomicU32, Ordering};

/// The resolution, in parts of a leaf or key.
const PARTS: u32 = 256;
/// One needed by this many of [`PARTS`] runs is read together with those before it. An unneeded
/// read costs about a tenth of another read and the wait for it.
const PARTS_WORTH: u32 = PARTS / 8;
/// The weight of the past is this number minus one.
const RUNS: u32 = 8;

/// The mean, in parts; 0 before the first run. Longer runs than `MAX` count as that many: they read ahead anyway.
#[derive(Default)]
pub(crate) struct RunLength<const MAX: u32>(AtomicU32);

impl<const MAX: u32> RunLength<MAX> {
    /// Records the number of leaves or keys that a cursor has read after it was positioned.
    pub(crate) fn note(&self, count: u32) {
        let run = count.clamp(1, MAX) * PARTS;
        let mean = match self.0.load(Ordering::Relaxed) {
            0 => run,
            mean => (mean * (RUNS - 1) + run + RUNS / 2) / RUNS,
        };
        // If two threads record at the same time, one record is lost.
        self.0.store(mean, Ordering::Relaxed);
    }

    /// The number to read at once.
    pub(crate) fn expected(&self) -> usize {
        let parts = self.0.load(Ordering::Relaxed) + (PARTS - PARTS_WORTH);
        (parts / PARTS).max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_follows_the_runs_and_forgets_a_long_one() {
        const LEAVES_MAX: u32 = 32;
        let run = RunLength::<LEAVES_MAX>::default();
        assert_eq!(run.expected(), 1);
        run.note(3);
        assert_eq!(run.expected(), 3);
        (0..40).for_each(|_| run.note(1));
        assert_eq!(run.expected(), 1);
        // A next leaf is worth reading if one run in four needs it, but not if only few do.
        (0..40).for_each(|i| run.note(1 + u32::from(i % 4 == 0)));
        assert_eq!(run.expected(), 2);
        (0..40).for_each(|i| run.note(1 + u32::from(i == 0)));
        assert_eq!(run.expected(), 1);
        run.note(1_000_000);
        assert!(run.expected() <= 5, "{}", run.expected());
        (0..40).for_each(|_| run.note(1));
        assert_eq!(run.expected(), 1);
        (0..60).for_each(|_| run.note(1_000_000));
        assert_eq!(run.expected(), LEAVES_MAX as usize);
    }
}
