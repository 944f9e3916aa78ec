//! The commands of regimes that take nothing but what all take.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::kinds::Kinds;
use crate::outcome::Outcome;

/// What they take.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
}

/// Carries out the regime of that name.
pub fn run(name: &str, arguments: &Arguments, regime: fn(u64, Kinds) -> Outcome) -> ExitCode {
    let started = Instant::now();
    let total = arguments.common.repeat(regime);
    finish(name, arguments.common.seed, started, &total, json!({}))
}
