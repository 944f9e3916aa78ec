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
  spinney-sim crash --seed 7 --runs 1 --only 1.17")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Steps of work between two crashes.
    #[arg(long, default_value_t = Extent::default().steps)]
    steps: usize,
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
    let extent = Extent { steps: arguments.steps, ..Extent::default() };
    let total =
        arguments.common.repeat(|seed, kinds| crash::run(seed, kinds, extent, arguments.only));
    finish("crash", arguments.common.seed, started, &total, json!({}))
}
