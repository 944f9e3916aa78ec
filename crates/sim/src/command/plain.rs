//! Commands of regimes without options of their own.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::kinds::Kinds;
use crate::outcome::Outcome;

/// The common options.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
}

/// Runs the regime with that name.
pub fn run(name: &str, arguments: &Arguments, regime: fn(u64, Kinds) -> Outcome) -> ExitCode {
    let started = Instant::now();
    let total = arguments.common.repeat(regime);
    finish(name, arguments.common.seed, started, &total, json!({}))
}
