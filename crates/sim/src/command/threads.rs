//! `spinney-sim threads`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::concurrent::{self, Extent, history::History};
use crate::outcome::Outcome;

/// Runs real threads on small stores and judges whether one order of commits explains their
/// results. Thread schedules are not repeatable: keep the history of a violation with `--out`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim threads --seconds 120
  spinney-sim threads --kind mixed --threads 8 --seed 7 --out violation.history
  spinney-sim threads --dir /mnt/disk --seconds 60
  spinney-sim threads --judge violation.history")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Number of threads that write and read [default: two to eight, depending on the seed].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Number of operations of each thread between two openings of the store.
    #[arg(long, default_value_t = Extent::default().operations)]
    session_operations: usize,
    /// Number of times that a store is opened.
    #[arg(long, default_value_t = Extent::default().sessions)]
    sessions: usize,
    /// Create the stores in this directory instead of in memory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Write the history of a violation to this file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only judge the history in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["threads", "dir", "out"])]
    judge: Option<PathBuf>,
}

fn judge(file: &Path) -> Result<Outcome, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let history: History = text.parse()?;
    Ok(concurrent::outcome(&history, &format!("spinney-sim threads --judge {}", file.display())))
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let total = match &arguments.judge {
        Some(file) => match judge(file) {
            Ok(outcome) => {
                outcome.violations.iter().for_each(|violation| eprintln!("{}", violation.what));
                outcome
            }
            Err(what) => {
                eprintln!("{}: {what}", file.display());
                return ExitCode::from(2);
            }
        },
        None => {
            let extent = Extent {
                threads: arguments.threads,
                operations: arguments.session_operations,
                sessions: arguments.sessions,
                dir: arguments.dir.clone(),
                out: arguments.out.clone(),
            };
            arguments.common.repeat(|seed, kinds| concurrent::run(seed, kinds, &extent))
        }
    };
    finish("threads", arguments.common.seed, started, &total, json!({}))
}
