//! The regimes of a search, each reduced to about a fifth of a second.

use std::ops::Range;
use std::time::Duration;

use spinney::planted::Bug;

use crate::crash::{self, exhaustive};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};
use crate::{bitflip, random};
use crate::{compare, concurrent, counters, faults, memory, promises, space};

/// A regime, cut to be one part of a round.
pub(super) struct Regime {
    /// Its name.
    pub(super) name: &'static str,
    /// Carries it out once.
    pub(super) run: fn(seed: u64, kinds: Kinds) -> Outcome,
}

/// Those of these names, in the order of a round; all if none is named.
pub(super) fn chosen(names: &[String]) -> Vec<&'static Regime> {
    let is_chosen = |regime: &&Regime| names.is_empty() || names.iter().any(|n| n == regime.name);
    REGIMES.iter().filter(is_chosen).collect()
}

/// The parts of a search for a bug: the round and regime that found it last; rounds of that regime alone; then rounds
/// of all. Most bugs are found by the first of these, in a small part of the work. If regimes are named, rounds of
/// those.
pub(super) fn parts(
    bug: Option<Bug>,
    names: &[String],
    rounds: Range<u64>,
) -> impl Iterator<Item = (u64, &'static Regime)> + use<> {
    let regimes = chosen(names);
    let finder = bug.filter(|_| names.is_empty()).and_then(finder);
    let first = finder.into_iter().flat_map({
        let rounds = rounds.clone();
        move |(regime, round)| {
            let again = Some(round).filter(|round| rounds.contains(round));
            again.into_iter().chain(rounds.clone()).map(move |round| (round, regime))
        }
    });
    first.chain(rounds.flat_map(move |round| regimes.clone().into_iter().map(move |r| (round, r))))
}

/// The regime that found a bug when that was last recorded, and the round in which it did.
fn finder(bug: Bug) -> Option<(&'static Regime, u64)> {
    let found = FINDERS.lines().filter_map(parse_finder);
    found.filter(|(of, ..)| *of == bug).map(|(_, regime, round)| (regime, round)).next()
}

fn parse_finder(line: &str) -> Option<(Bug, &'static Regime, u64)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [bug, regime, round] = words[..] else { return None };
    let bug = *Bug::ALL.iter().find(|known| known.name() == bug)?;
    let regime = REGIMES.iter().find(|known| known.name == regime)?;
    Some((bug, regime, round.parse().ok()?))
}

/// A line that names a bug or a regime which does not exist (any more).
pub(super) fn stale_finder() -> Option<&'static str> {
    FINDERS.lines().find(|line| parse_finder(line).is_none())
}

/// A line for each bug: its name, a regime's, and a round. `planted --finders` writes it.
const FINDERS: &str = include_str!("finders.txt");

const REGIMES: &[Regime] = &[
    Regime { name: "crash", run: run_crash },
    Regime { name: "model", run: run_model },
    Regime { name: "threads", run: run_threads },
    Regime { name: "views", run: run_views },
    Regime { name: "transactions", run: crate::transactions::run },
    Regime { name: "callbacks", run: crate::callbacks::run },
    Regime { name: "exhaustive", run: run_exhaustive },
    Regime { name: "recovery", run: run_recovery },
    Regime { name: "faults", run: run_faults },
    Regime { name: "bitflip", run: run_bitflip },
    Regime { name: "memory", run: memory::run },
    Regime { name: "opening", run: promises::run_opening },
    Regime { name: "system", run: super::system::run },
    Regime { name: "space", run: space::run },
    Regime { name: "counters", run: counters::run },
];

/// Runs of `views` in a round.
const VIEWS: u64 = 4;

/// Violations are counted here, not cut down.
const CRASH: crash::Extent = crash::Extent {
    generations: 3,
    steps: 150,
    states: 25,
    sweeps: 0,
    shrink: Duration::ZERO,
    lie: None,
};

fn run_crash(seed: u64, kinds: Kinds) -> Outcome {
    crash::run(seed, kinds, CRASH, None)
}

fn run_recovery(seed: u64, kinds: Kinds) -> Outcome {
    crash::run(seed, kinds, crash::Extent { steps: 60, states: 0, sweeps: 1, ..CRASH }, None)
}

/// One sequence of at most two actions: in turn one action, one right after a write, and any two.
/// The first write after an open makes names durable that later ones do not.
fn run_exhaustive(seed: u64, kinds: Kinds) -> Outcome {
    let base = match exhaustive::begin(kinds) {
        Ok(base) => base,
        Err(what) => {
            let violations = vec![Violation { what, command: String::new() }];
            return Outcome { violations, ..Outcome::default() };
        }
    };
    let letter = seed / 3 % exhaustive::sequences(1);
    // Sequences of two go by their first action, and the first action that there is writes.
    let (length, number) = match seed % 3 {
        0 => (1, letter),
        1 => (2, letter),
        _ => (2, random::mix(seed) % exhaustive::sequences(2)),
    };
    exhaustive::run(&base, length, number, &exhaustive::Seen::default())
}

fn run_model(seed: u64, kinds: Kinds) -> Outcome {
    compare::run(seed, kinds, compare::Extent { actions: 3000, shrink_for: Duration::ZERO }, None)
}

fn run_threads(seed: u64, kinds: Kinds) -> Outcome {
    // Now and then a crowd: far more threads than cores, so that some lose theirs in the middle of
    // a read.
    let (threads, operations) = match random::mix(seed) as usize % 4 {
        3 => (16, 150),
        few => (2 + few, 300),
    };
    let extent = concurrent::Extent { threads, operations, ..concurrent::Extent::default() };
    concurrent::run(seed, kinds, &extent)
}

/// Several: each is short, and finds a window of microseconds once in some fifty runs.
fn run_views(seed: u64, kinds: Kinds) -> Outcome {
    let mut all = Outcome::default();
    for n in 0..VIEWS {
        all.add(crate::views::run(seed.wrapping_mul(VIEWS).wrapping_add(n), kinds));
        if !all.violations.is_empty() {
            break;
        }
    }
    all
}

fn run_bitflip(seed: u64, kinds: Kinds) -> Outcome {
    // A store of all kinds is as large as all of theirs together, and each flip is judged by all that it has.
    let every = if kinds == Kinds::Mixed { 2503 } else { 997 };
    let extent = bitflip::Extent { every, ..bitflip::Extent::default() };
    bitflip::run(seed, kinds, extent, None, &mut |_| true)
}

fn run_faults(seed: u64, kinds: Kinds) -> Outcome {
    let extent = faults::Extent {
        steps: 40,
        every: 40,
        shrink: Duration::ZERO,
        ..faults::Extent::default()
    };
    faults::run(seed, kinds, extent, None)
}
