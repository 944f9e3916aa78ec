//! `spinney-sim faults`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::fault::{Fault, Plan};
use crate::faults::{self, Case, Extent};
use crate::keep::Keep;

/// Strikes the operations of small stores, one after the other, with every fault a disk has.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim faults --seconds 120
  spinney-sim faults --kind mixed --every 1 --fault sync-forgets --states 20000
  spinney-sim faults --seed 7 --runs 1 --fault eio --at 112 --from-then-on
  spinney-sim faults --seed 7 --runs 1 --keep 3,17-19 --fault full --at 12")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Steps of work in a run.
    #[arg(long, default_value_t = Extent::default().steps)]
    steps: usize,
    /// Strike each so many-th operation; seeds begin at different ones.
    #[arg(long, default_value_t = Extent::default().every)]
    every: u64,
    /// Crashes judged after each strike.
    #[arg(long, default_value_t = Extent::default().crashes)]
    crashes: usize,
    /// Only this fault.
    #[arg(long, value_name = "NAME")]
    fault: Option<Fault>,
    /// Strike only this operation, counted among those the fault can strike.
    #[arg(long, requires = "fault", value_name = "NUMBER")]
    at: Option<u64>,
    /// With `--at`: strike all operations from there on.
    #[arg(long, requires = "at")]
    from_then_on: bool,
    /// Instead of faults, only a disk of this size.
    #[arg(long, conflicts_with = "fault", value_name = "BYTES")]
    disk_bytes: Option<u64>,
    /// Do only these steps, as `3,17-19`.
    #[arg(long, value_name = "NUMBERS")]
    keep: Option<Keep>,
    /// For how long the first violation of a run is cut down.
    #[arg(long, default_value_t = Extent::default().shrink.as_secs())]
    shrink_seconds: u64,
}

/// Carries the command out.
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
    // A run of every position takes longer than a limit in seconds may allow.
    let limit = common.seconds.map(Duration::from_secs_f64);
    let goes_on = || limit.is_none_or(|limit| started.elapsed() < limit);
    let keep = arguments.keep.as_ref();
    let total =
        common.repeat(|seed, kinds| faults::run_while(seed, kinds, extent, only, keep, goes_on));
    finish("faults", common.seed, started, &total, json!({ "every": every }))
}
