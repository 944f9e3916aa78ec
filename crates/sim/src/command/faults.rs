//! `spinney-sim faults`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::fault::{Fault, Plan};
use crate::faults::{self, Case, Extent};
use crate::keep::Keep;

/// Injects every disk fault into the operations of small stores, one operation per run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim faults --seconds 120
  spinney-sim faults --kind mixed --every 1 --fault sync-forgets --states 20000
  spinney-sim faults --seed 7 --runs 1 --fault eio --at 112 --from-then-on
  spinney-sim faults --seed 7 --runs 1 --keep 3,17-19 --fault full --at 12")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of steps of a run.
    #[arg(long, default_value_t = Extent::default().steps)]
    steps: usize,
    /// Inject the fault into every Nth operation; each seed begins at another one.
    #[arg(long, default_value_t = Extent::default().every)]
    every: u64,
    /// Number of crashes judged after each fault.
    #[arg(long, default_value_t = Extent::default().crashes)]
    crashes: usize,
    /// Inject only this fault.
    #[arg(long, value_name = "NAME")]
    fault: Option<Fault>,
    /// Inject the fault only into this operation, counted among those that it can affect.
    #[arg(long, requires = "fault", value_name = "NUMBER")]
    at: Option<u64>,
    /// With `--at`: inject the fault into all operations from there on.
    #[arg(long, requires = "at")]
    from_then_on: bool,
    /// Instead of faults, use a disk of this size.
    #[arg(long, conflicts_with = "fault", value_name = "BYTES")]
    disk_bytes: Option<u64>,
    /// Do only these steps, as `3,17-19`.
    #[arg(long, value_name = "NUMBERS")]
    keep: Option<Keep>,
    /// Time limit for shortening the first violation of a run, in seconds.
    #[arg(long, default_value_t = Extent::default().shrink.as_secs())]
    shrink_seconds: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let Arguments { common, steps, every, crashes, fault, .. } = arguments;
    let shrink = Duration::from_secs(arguments.shrink_seconds);
    let extent = Extent { steps: *steps, every: *every, crashes: *crashes, fault: *fault, shrink };
    let only = match (arguments.disk_bytes, fault, arguments.at) {
        (Some(bytes), ..) => Some(Case::SmallDisk(bytes)),
        (None, Some(fault), Some(first)) => {
            let times = if arguments.from_then_on { u64::MAX } else { 1 };
            Some(Case::Struck(Plan { fault: *fault, first, times }))
        }
        _ => None,
    };
    let keep = arguments.keep.as_ref();
    let choices = common.kind.runs();
    let mut begun = None;
    let total = common.repeat(|seed, kinds| {
        // A run of every position takes longer than its kind's part of a limit in seconds may allow.
        let limit = common.part_of(kinds, &choices).seconds.map(Duration::from_secs_f64);
        let since = match begun {
            Some((of, since)) if of == kinds => since,
            _ => Instant::now(),
        };
        begun = Some((kinds, since));
        let goes_on = || limit.is_none_or(|limit| since.elapsed() < limit);
        faults::run_while(seed, kinds, extent, only, keep, goes_on)
    });
    finish("faults", common.seed, started, &total, json!({ "every": every }))
}
