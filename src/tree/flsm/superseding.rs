//! How much of what is young supersedes something older. Tables keep no count of that (what they hold twice
//! shows only when they are merged), so it is learned from merges.
//!
//! Invariants:
//! 1. The share is from 0 to 1.

/// Merges over which the mean runs.
const MERGES: u32 = 8;

/// A running mean of what merges of old with young have told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Superseding {
    /// Of young bytes, those that superseded others.
    pub(super) share: f64,
    /// How many merges it stands for, at most `MERGES`.
    merges: u32,
}

impl Superseding {
    /// Of a new tree: nothing has superseded anything, and the first merges alter that little by little.
    pub(super) fn nothing() -> Superseding {
        Superseding { share: 0.0, merges: MERGES }
    }

    /// Of a tree that was there before and of which nothing is known: 0 until the first merge, which counts in
    /// full.
    pub(super) fn unknown() -> Superseding {
        Superseding { share: 0.0, merges: 0 }
    }

    /// With a merge of some young bytes with old ones, which dropped so much.
    pub(super) fn learn(self, young_bytes: u64, dropped_bytes: u64) -> Superseding {
        let merges = (self.merges + 1).min(MERGES);
        let seen = (dropped_bytes as f64 / young_bytes.max(1) as f64).min(1.0);
        let share = self.share + (seen - self.share) / f64::from(merges);
        Superseding { share, merges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After opening, the share began at 0 as in a new tree and took some dozen merges to get near what it had
    /// been before: that long the tree took what it could have given back for live.
    #[test]
    fn what_is_not_known_is_learned_from_the_first_merge() {
        let opened = Superseding::unknown().learn(1000, 600);
        assert!((opened.share - 0.6).abs() < 1e-9);
        let twice = opened.learn(1000, 200);
        assert!((twice.share - 0.4).abs() < 1e-9);
        let new = Superseding::nothing().learn(1000, 600);
        assert!((new.share - 0.6 / 8.0).abs() < 1e-9);
    }

    #[test]
    fn later_merges_count_an_eighth_and_no_share_is_above_one() {
        for start in [Superseding::unknown(), Superseding::nothing()] {
            let long = (0..100).fold(start, |mean, _| mean.learn(1000, 5000));
            assert!(long.share > 0.99 && long.share <= 1.0);
            assert!((long.learn(1000, 0).share - long.share * 0.875).abs() < 1e-9);
        }
        assert_eq!(Superseding::unknown().learn(0, 0).share, 0.0);
    }
}
