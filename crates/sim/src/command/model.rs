//! `spinney-sim model`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::compare::{self, Extent};
use crate::keep::Keep;

/// Applies the same actions to small stores and to a map of all versions, and compares every read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim model --seconds 60
  spinney-sim model --kind mixed --operations 750000 --seed 7
  spinney-sim model --seed 7 --runs 1 --keep 3,17-19")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of actions in a list.
    #[arg(long, default_value_t = Extent::default().actions)]
    actions: usize,
    /// Keep only the actions with these numbers of each list.
    #[arg(long)]
    keep: Option<Keep>,
    /// Time limit for shortening a failing list, in seconds.
    #[arg(long, default_value_t = Extent::default().shrink_for.as_secs())]
    shrink_seconds: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let shrink_for = Duration::from_secs(arguments.shrink_seconds);
    let extent = Extent { actions: arguments.actions, shrink_for };
    let keep = arguments.keep.as_ref();
    let total = arguments.common.repeat(|seed, kinds| compare::run(seed, kinds, extent, keep));
    let rate = total.operations as f64 / started.elapsed().as_secs_f64();
    let more = json!({ "operations_per_second": rate.round() });
    finish("model", arguments.common.seed, started, &total, more)
}
