//! The command `spinney-sim`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use spinney_sim::crash::{self, Extent, Outcome, StateName};

#[derive(Parser)]
#[command(about = "Simulated crashes for Spinney stores")]
struct Arguments {
    #[command(subcommand)]
    regime: Regime,
}

#[derive(Subcommand)]
enum Regime {
    /// Works on small stores, crashes them everywhere and judges what is left.
    Crash(CrashArguments),
}

#[derive(clap::Args)]
struct CrashArguments {
    /// The first run's seed; each run takes the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so many crash states.
    #[arg(long, default_value_t = u64::MAX)]
    states: u64,
    /// Stop after so many runs.
    #[arg(long, default_value_t = u64::MAX)]
    runs: u64,
    /// Stop after so many seconds.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Steps of work between two crashes.
    #[arg(long, default_value_t = Extent::default().steps)]
    steps: usize,
    /// Judge only this state, as `generation.number`.
    #[arg(long, value_parser = parse_state)]
    only: Option<StateName>,
    /// Go on after a violation.
    #[arg(long)]
    keep_going: bool,
}

fn parse_state(text: &str) -> Result<StateName, String> {
    let parts = text.split_once('.').and_then(|(generation, number)| {
        Some(StateName { generation: generation.parse().ok()?, number: number.parse().ok()? })
    });
    parts.ok_or_else(|| format!("{text:?} is not two numbers with a point between them"))
}

fn main() -> ExitCode {
    let Regime::Crash(arguments) = Arguments::parse().regime;
    let extent = Extent { steps: arguments.steps, ..Extent::default() };
    let started = Instant::now();
    let mut told = started;
    let mut total = Outcome::default();
    let mut runs = 0;
    while runs < arguments.runs
        && total.state_count() < arguments.states
        && started.elapsed().as_secs_f64() < arguments.seconds
    {
        let outcome = crash::run(arguments.seed.wrapping_add(runs), extent, arguments.only);
        for violation in &outcome.violations {
            eprintln!("{}\n{}", violation.command(extent), violation.what);
        }
        total.add(outcome);
        runs += 1;
        if !total.violations.is_empty() && !arguments.keep_going {
            break;
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            eprintln!("{runs} runs, {} states, {:.0?}", total.state_count(), started.elapsed());
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let line = serde_json::json!({
        "regime": "crash",
        "seed": arguments.seed,
        "runs": runs,
        "states": total.state_count(),
        "states_by_policy": total.states,
        "seconds": (seconds * 1000.0).round() / 1000.0,
        "states_per_second": (total.state_count() as f64 / seconds).round(),
        "violations": total.violations.len(),
    });
    println!("{line}");
    if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
