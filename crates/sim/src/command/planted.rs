//! `spinney-sim planted`.

use std::path::PathBuf;
use std::process::ExitCode;

/// Activates planted bugs in the engine, one at a time, and measures whether the regimes find them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Needs a build that contains the bugs:
  RUSTFLAGS='--cfg planted' cargo run --profile planted --target-dir target/bugs -p spinney-sim -- \\
    planted

Examples:
  spinney-sim planted --list
  spinney-sim planted --jobs 2 --seeds 3
  spinney-sim planted --bug journal-sync-skipped --bug separator-too-short --rounds 20")]
pub struct Arguments {
    /// Search only for this bug; can be repeated.
    #[arg(long, value_name = "NAME")]
    pub bug: Vec<String>,
    /// Run only this regime in each round; can be repeated.
    #[arg(long, value_name = "NAME")]
    pub regime: Vec<String>,
    /// List the bugs and what they break.
    #[arg(long)]
    pub list: bool,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of first seeds from which each bug must be found.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Limit of rounds per search. A round runs every regime once.
    #[arg(long, default_value_t = 100)]
    pub rounds: u64,
    /// Time limit of a search in seconds. A last resort, because a round is the same work on every
    /// machine.
    #[arg(long, default_value_t = 3600.0)]
    pub seconds: f64,
    /// Number of parallel processes [default: one per core].
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Write which regime found each bug to this file. Searches begin with these regimes once it is
    /// crates/sim/src/planted/finders.txt.
    #[arg(long, value_name = "FILE")]
    pub finders: Option<PathBuf>,
    /// Print the report that found each bug, not only its regime.
    #[arg(long)]
    pub verbose: bool,
    /// Run as one of the processes: activate this bug, or `none`.
    #[arg(long, hide = true)]
    pub child: Option<String>,
    /// With `--child none`: on the trees of a search for this bug.
    #[arg(long, hide = true)]
    pub as_for: Option<String>,
    /// With `--child`: begin with the round of this number.
    #[arg(long, hide = true, default_value_t = 0)]
    pub first_round: u64,
}

/// Runs the command.
#[cfg(planted)]
pub fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.child {
        Some(name) => crate::planted::child(name, arguments),
        None => crate::planted::run(arguments),
    }
}

/// Reports that the build has no planted bugs.
#[cfg(not(planted))]
pub fn run(_arguments: &Arguments) -> ExitCode {
    eprintln!(
        "no bugs are compiled in. Build with them first:\n  RUSTFLAGS='--cfg planted' cargo run \
         --profile planted --target-dir target/bugs -p spinney-sim -- planted"
    );
    ExitCode::FAILURE
}
