//! `spinney-sim planted`.

use std::process::ExitCode;

/// Plants bugs into the engine, one at a time, and sees whether the regimes find them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Needs a build with the bugs in it, which ordinary builds have not:
  RUSTFLAGS='--cfg planted' cargo run --profile planted --target-dir target/bugs -p spinney-sim -- \\
    planted

Examples:
  spinney-sim planted --list
  spinney-sim planted --jobs 2 --seeds 3
  spinney-sim planted --bug journal-sync-skipped --bug separator-too-short --rounds 20")]
pub struct Arguments {
    /// Only this bug; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub bug: Vec<String>,
    /// Carry out only this regime in each round; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub regime: Vec<String>,
    /// Name the bugs and what they break, and end.
    #[arg(long)]
    pub list: bool,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// From so many first seeds each bug has to be found.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Look for a bug from one first seed for at most so many rounds, each of which carries out
    /// every regime once.
    #[arg(long, default_value_t = 100)]
    pub rounds: u64,
    /// Give a search up after so many seconds: a last resort, for rounds are the same work on any
    /// machine.
    #[arg(long, default_value_t = 3600.0)]
    pub seconds: f64,
    /// Processes at a time [default: one a core].
    #[arg(long)]
    pub jobs: Option<usize>,
    /// Tell what was found of each bug, not only its regime.
    #[arg(long)]
    pub verbose: bool,
    /// Be one of the processes: plant this bug, or `none`.
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

/// Carries the command out.
#[cfg(planted)]
pub fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.child {
        Some(name) => crate::planted::child(name, arguments),
        None => crate::planted::run(arguments),
    }
}

/// Says what is missing.
#[cfg(not(planted))]
pub fn run(_arguments: &Arguments) -> ExitCode {
    eprintln!(
        "no bugs are compiled in. Build with them first:\n  RUSTFLAGS='--cfg planted' cargo run \
         --profile planted --target-dir target/bugs -p spinney-sim -- planted"
    );
    ExitCode::FAILURE
}
