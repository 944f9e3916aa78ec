//! The regimes that a search carries out, each cut to about a fifth of a second.

use crate::concurrent;
use crate::crash;
use crate::kinds::Kinds;
use crate::outcome::Outcome;
use crate::{bitflip, random};

/// A regime, cut to be one part of a round.
pub(super) struct Regime {
    /// Its name.
    pub(super) name: &'static str,
    /// Carries it out once.
    pub(super) run: fn(seed: u64, kinds: Kinds) -> Outcome,
}

/// In the order of a round.
pub(super) const REGIMES: &[Regime] = &[
    Regime { name: "crash", run: run_crash },
    Regime { name: "threads", run: run_threads },
    Regime { name: "bitflip", run: run_bitflip },
];

fn run_crash(seed: u64, kinds: Kinds) -> Outcome {
    let extent = crash::Extent { generations: 3, steps: 150, states: 25 };
    crash::run(seed, kinds, extent, None)
}

fn run_threads(seed: u64, kinds: Kinds) -> Outcome {
    let threads = 2 + random::mix(seed) as usize % 3;
    let extent = concurrent::Extent { threads, operations: 300, ..concurrent::Extent::default() };
    concurrent::run(seed, kinds, &extent)
}

fn run_bitflip(seed: u64, kinds: Kinds) -> Outcome {
    let extent = bitflip::Extent { every: 997, ..bitflip::Extent::default() };
    bitflip::run(seed, kinds, extent, None, &mut |_| true)
}
