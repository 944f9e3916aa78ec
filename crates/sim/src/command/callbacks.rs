//! `spinney-sim callbacks`.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::callbacks;

/// Gives stores code that panics to call: operators, listeners, the file system. Nobody waits for ever, and
/// each is told what concerns them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim callbacks --seconds 30
  spinney-sim callbacks --kind stb --seed 7 --runs 1")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
}

/// Carries the command out.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    // Panics are what this is about: they are judged, not shown.
    std::panic::set_hook(Box::new(|_| ()));
    let total = arguments.common.repeat(callbacks::run);
    finish("callbacks", arguments.common.seed, started, &total, json!({}))
}
