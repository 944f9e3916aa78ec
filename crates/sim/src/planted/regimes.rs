//! The regimes that a search carries out, each cut to about a fifth of a second.

use crate::crash::{self, Extent};
use crate::kinds::Kinds;
use crate::outcome::Outcome;

/// A regime, cut to be one part of a round.
pub(super) struct Regime {
    /// Its name.
    pub(super) name: &'static str,
    /// Carries it out once.
    pub(super) run: fn(seed: u64, kinds: Kinds) -> Outcome,
}

/// In the order of a round.
pub(super) const REGIMES: &[Regime] = &[Regime { name: "crash", run: run_crash }];

fn run_crash(seed: u64, kinds: Kinds) -> Outcome {
    crash::run(seed, kinds, Extent { generations: 3, steps: 150, states: 25 }, None)
}
