//! `spinney-sim crash`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::crash::story::{self, Story};
use crate::crash::{self, Crash, Extent, Lie, StateName, Then, exhaustive};
use crate::disk::Policy;
use crate::keep::Keep;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};

/// Runs workloads on small stores, crashes them at every operation and judges the result.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim crash --seconds 600
  spinney-sim crash --kind mixed --states 50000 --seed 7
  spinney-sim crash --recovery --states 10000
  spinney-sim crash --exhaustive 2
  spinney-sim crash --seed 7 --runs 1 --only 1.17")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of steps between two crashes [default: 200, in recovery mode 100].
    #[arg(long)]
    steps: Option<usize>,
    /// Crash inside recovery: at each of its operations, with each policy.
    #[arg(long)]
    recovery: bool,
    /// Number of parallel runs [default: one per core]. The result of a run depends on its seed
    /// alone.
    #[arg(long)]
    jobs: Option<usize>,
    /// Run all sequences of up to this many actions, crashed at each operation with each policy.
    #[arg(long, value_name = "LENGTH", conflicts_with = "recovery")]
    exhaustive: Option<usize>,
    /// Judge only this state, as `generation.number`.
    #[arg(long, value_parser = parse_state)]
    only: Option<StateName>,
    /// Time limit for shortening a violation, in seconds.
    #[arg(long, default_value_t = 60.0)]
    shrink: f64,
    /// Let the disk lie, to test that the regime detects it.
    #[arg(long)]
    lie: Option<Lie>,
    /// Replay a story: in this generation,
    #[arg(long, requires = "keep")]
    generation: Option<usize>,
    /// do only these of its actions,
    #[arg(long, requires = "generation")]
    keep: Option<Keep>,
    /// or these of the actions of exhaustive sequences;
    #[arg(long, conflicts_with = "keep", value_delimiter = ',')]
    sequence: Option<Vec<usize>>,
    /// crash before this operation,
    #[arg(long)]
    at: Option<usize>,
    /// with this policy,
    #[arg(long, default_value = "Kill")]
    policy: Policy,
    /// with this random seed,
    #[arg(long, default_value_t = 0)]
    draw: u64,
    /// with this many crashes inside recovery,
    #[arg(long, default_value_t = 0)]
    nested: usize,
    /// or one at each of its operations.
    #[arg(long)]
    sweep: bool,
}

fn parse_state(text: &str) -> Result<StateName, String> {
    let parts = text.split_once('.').and_then(|(generation, number)| {
        Some(StateName { generation: generation.parse().ok()?, number: number.parse().ok()? })
    });
    parts.ok_or_else(|| format!("{text:?} is not two numbers with a point between them"))
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let Arguments { common, .. } = arguments;
    let jobs = arguments.jobs.unwrap_or_else(cores);
    let extent = arguments.extent();
    let (regime, total) = if arguments.at.is_some() || arguments.sequence.is_some() {
        let once = Common { runs: Some(1), ..common.clone() };
        ("story", once.repeat(|seed, kinds| arguments.tell(seed, kinds)))
    } else if let Some(length) = arguments.exhaustive {
        ("exhaustive", arguments.exhaust(length, jobs))
    } else {
        let run = |seed, kinds| crash::run(seed, kinds, extent, arguments.only);
        let regime = if arguments.recovery { "recovery" } else { "crash" };
        (regime, common.repeat_at_once(jobs, run))
    };
    let mut more = json!({ "jobs": jobs });
    for (what, count) in &total.counts {
        more[what] = json!(count);
    }
    finish(regime, common.seed, started, &total, more)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Arguments {
    fn extent(&self) -> Extent {
        let extent = if self.recovery { Extent::recovery() } else { Extent::default() };
        let shrink = Duration::try_from_secs_f64(self.shrink).unwrap_or(extent.shrink);
        Extent { steps: self.steps.unwrap_or(extent.steps), shrink, lie: self.lie, ..extent }
    }

    /// Judges one state.
    fn tell(&self, seed: u64, kinds: Kinds) -> Outcome {
        let then = if self.sweep { Then::Sweep } else { Then::Recovery(self.nested) };
        let crash =
            Crash { at: self.at.unwrap_or(usize::MAX), policy: self.policy, draw: self.draw, then };
        let judged = match (&self.sequence, &self.keep) {
            (Some(numbers), _) => exhaustive::begin(kinds).and_then(|base| {
                let actions = exhaustive::actions(numbers)?;
                let story = Story { generation: base.number, keep: story::all(&actions), crash };
                story.judge(&base, &actions)
            }),
            (None, keep) => {
                let keep = keep.clone().unwrap_or_else(|| Keep::new(Vec::new()));
                let generation = self.generation.unwrap_or(0);
                let run = crash::Run { seed, kinds, extent: self.extent() };
                run.tell(&Story { generation, keep, crash })
            }
        };
        let mut outcome = Outcome::default();
        outcome.count(self.policy.to_string());
        if let Err(what) = judged {
            let command = std::env::args().collect::<Vec<_>>().join(" ");
            outcome.violations.push(Violation { what, command });
        }
        outcome
    }

    /// Runs all sequences, the short ones first. Those of one length come in an order that spreads them, from the seed
    /// on: a limit in seconds leaves out some of each kind, and another seed others.
    fn exhaust(&self, length: usize, jobs: usize) -> Outcome {
        let mut total = Outcome::default();
        for kinds in self.common.kind.runs() {
            let base = match exhaustive::begin(kinds) {
                Ok(base) => base,
                Err(what) => {
                    let command = format!("spinney-sim crash --kind {kinds} --exhaustive 0");
                    total.violations.push(Violation { what, command });
                    continue;
                }
            };
            let seen = exhaustive::Seen::default();
            for length in 0..=length {
                let count = exhaustive::sequences(length);
                let (kind, runs) = (kinds, Some(count));
                let common = Common { kind, runs, seed: 0, states: None, ..self.common.clone() };
                let (first, stride) = (self.common.seed % count, spreading(count));
                let run = |number: u64, _| {
                    let number = (first + number * stride) % count;
                    exhaustive::run(&base, length, number, &seen)
                };
                total.add(common.repeat_at_once(jobs, run));
                if !total.violations.is_empty() && !self.common.keep_going {
                    return total;
                }
            }
        }
        total
    }
}

/// A number so that its multiples, modulo `count`, are all numbers below that, and neighbours lie far apart.
fn spreading(count: u64) -> u64 {
    let common_divisor = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // The golden section.
    let mut stride = (count as f64 * 0.618) as u64 + 1;
    while common_divisor(stride, count) > 1 {
        stride += 1;
    }
    stride
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_met_once() {
        for count in [1, 2, 3, 37, 1369, 1600] {
            let stride = spreading(count);
            let mut met: Vec<u64> =
                (0..count).map(|number| (5 + number * stride) % count).collect();
            met.sort_unstable();
            assert_eq!(met, (0..count).collect::<Vec<_>>());
        }
    }
}
