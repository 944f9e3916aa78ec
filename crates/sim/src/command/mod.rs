//! The regimes as commands, and their common part. Each prints its progress, each violation with
//! the command that reproduces it, and one line of JSON at the end.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kinds::Kinds;
use crate::outcome::Outcome;

mod at_once;
pub mod bitflip;
pub mod crash;
pub mod faults;
pub mod fuzz;
pub mod kill;
pub mod model;
pub mod plain;
pub mod planted;
pub mod soak;
pub mod threads;
pub mod torture;

/// The options of every regime.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// The tree kind, `mixed` (all kinds in one store) or `all` (one after the other).
    #[arg(long, default_value = "all", value_name = "KIND")]
    pub kind: Kinds,
    /// The first seed. Each run uses the next.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Stop after this many seconds, shared by the kinds [default: 60, none if another limit is
    /// given].
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Stop after this many states of each kind.
    #[arg(long)]
    pub states: Option<u64>,
    /// Stop after this many operations of each kind.
    #[arg(long)]
    pub operations: Option<u64>,
    /// Stop after this many runs of each kind.
    #[arg(long)]
    pub runs: Option<u64>,
    /// Continue after a violation.
    #[arg(long)]
    pub keep_going: bool,
}

impl Common {
    /// The limits of one of several choices of kinds. A kind for tests gets a small part.
    fn part_of(&self, kinds: Kinds, choices: &[Kinds]) -> Common {
        let unlimited = [self.states, self.operations, self.runs].iter().all(Option::is_none);
        let seconds = self.seconds.or(unlimited.then_some(60.0));
        let shares: f64 = choices.iter().map(|kinds| kinds.share()).sum();
        let part = if choices.len() > 1 { kinds.share() } else { 1.0 };
        let of = |limit: u64| (limit as f64 * part).ceil() as u64;
        Common {
            kind: kinds,
            seconds: seconds.map(|seconds| seconds * kinds.share() / shares),
            states: self.states.map(of),
            operations: self.operations.map(of),
            runs: self.runs.map(of),
            ..self.clone()
        }
    }

    /// Calls `run` for each seed and each choice of kinds until a limit is reached. Prints the
    /// progress and returns the sum of the outcomes.
    pub fn repeat(&self, mut run: impl FnMut(u64, Kinds) -> Outcome) -> Outcome {
        let mut total = Outcome::default();
        let mut told = Instant::now();
        let choices = self.kind.runs();
        for &kinds in &choices {
            let part = self.part_of(kinds, &choices);
            let seconds = part.seconds.unwrap_or(f64::INFINITY);
            let started = Instant::now();
            let (mut runs, mut states, mut operations) = (0, 0, 0);
            while runs < part.runs.unwrap_or(u64::MAX)
                && states < part.states.unwrap_or(u64::MAX)
                && operations < part.operations.unwrap_or(u64::MAX)
                && started.elapsed().as_secs_f64() < seconds
            {
                let outcome = run(self.seed.wrapping_add(runs), kinds);
                outcome.violations.iter().for_each(|violation| {
                    eprintln!("{}\n  again: {}", violation.what, violation.command);
                });
                states += outcome.state_count();
                operations += outcome.operations;
                total.add(outcome);
                runs += 1;
                if !total.violations.is_empty() && !self.keep_going {
                    return total;
                }
                if told.elapsed() > Duration::from_secs(5) {
                    told = Instant::now();
                    eprintln!(
                        "{kinds}: {runs} runs, {states} states, {operations} operations in {:.0} s",
                        started.elapsed().as_secs_f64()
                    );
                }
            }
        }
        total
    }
}

/// Prints the final line of JSON, with the regime's own fields, and returns the exit code.
pub fn finish(regime: &str, seed: u64, started: Instant, total: &Outcome, more: Value) -> ExitCode {
    let seconds = started.elapsed().as_secs_f64();
    let mut line = json!({
        "regime": regime,
        "seed": seed,
        "states": total.state_count(),
        "states_by": total.states,
        "operations": total.operations,
        "violations": total.violations.len(),
        "seconds": (seconds * 1000.0).round() / 1000.0,
        "states_per_second": (total.state_count() as f64 / seconds).round(),
    });
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.extend(more);
    }
    println!("{line}");
    if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
