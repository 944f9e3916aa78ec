//! `spinney-sim promises`.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::promises;

/// Judges space, memory and work to open of stores in memory, without crashes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim promises --runs 20
  spinney-sim promises --kind mixed --seed 7 --runs 1")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
}

/// Carries the command out.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let total = arguments.common.repeat(promises::run);
    finish("promises", arguments.common.seed, started, &total, json!({}))
}
