//! `spinney-sim threads`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::concurrent::{self, Extent, history::History};
use crate::outcome::Outcome;

/// Lets real threads loose on small stores and judges whether one order of commits explains what
/// they saw. Threads do not do the same twice: keep the history of a violation with `--out`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim threads --seconds 120
  spinney-sim threads --kind mixed --threads 8 --seed 7 --out violation.history
  spinney-sim threads --dir /mnt/disk --seconds 60
  spinney-sim threads --judge violation.history")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Threads that write and read [default: two to eight, drawn from the seed].
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// What each of them does from one opening of the store to the next.
    #[arg(long, default_value_t = Extent::default().operations)]
    session_operations: usize,
    /// How often a store is opened to be worked on.
    #[arg(long, default_value_t = Extent::default().sessions)]
    sessions: usize,
    /// Make the stores in this directory, not in memory.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Write the history of a violation to this file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Do nothing but judge the history in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["threads", "dir", "out"])]
    judge: Option<PathBuf>,
}

fn judge(file: &Path) -> Result<Outcome, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let history: History = text.parse()?;
    Ok(concurrent::outcome(&history, &format!("spinney-sim threads --judge {}", file.display())))
}

/// Carries the command out.
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
