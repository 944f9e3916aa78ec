//! `spinney-sim crash`.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::crash::{self, Extent, StateName};

/// Works on small stores, crashes them everywhere and judges what is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim crash --seconds 600
  spinney-sim crash --kind mixed --states 50000 --seed 7
  spinney-sim crash --recovery --states 10000
  spinney-sim crash --seed 7 --runs 1 --only 1.17")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Steps of work between two crashes [default: 200, in recovery mode 100].
    #[arg(long)]
    steps: Option<usize>,
    /// Crash inside recovery: at each of its operations, by each policy.
    #[arg(long)]
    recovery: bool,
    /// Runs at once [default: one a core]. What a run does depends on its seed alone.
    #[arg(long)]
    jobs: Option<usize>,
    /// Judge only this state, as `generation.number`.
    #[arg(long, value_parser = parse_state)]
    only: Option<StateName>,
}

fn parse_state(text: &str) -> Result<StateName, String> {
    let parts = text.split_once('.').and_then(|(generation, number)| {
        Some(StateName { generation: generation.parse().ok()?, number: number.parse().ok()? })
    });
    parts.ok_or_else(|| format!("{text:?} is not two numbers with a point between them"))
}

/// Carries the command out.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let Arguments { common, .. } = arguments;
    let extent = match arguments.recovery {
        true => Extent::recovery(),
        false => Extent::default(),
    };
    let extent = Extent { steps: arguments.steps.unwrap_or(extent.steps), ..extent };
    let jobs = arguments.jobs.unwrap_or_else(cores);
    let run = |seed, kinds| crash::run(seed, kinds, extent, arguments.only);
    let total = common.repeat_at_once(jobs, run);
    let regime = if arguments.recovery { "recovery" } else { "crash" };
    let mut more = json!({ "jobs": jobs });
    for (what, count) in &total.counts {
        more[what] = json!(count);
    }
    finish(regime, common.seed, started, &total, more)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
