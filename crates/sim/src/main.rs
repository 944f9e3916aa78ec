//! The command `spinney-sim`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spinney_sim::allocation::Counting;
use spinney_sim::command;

/// Fuzzing looks at what a case allocates.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Parser)]
#[command(about = "Tries to make Spinney stores lie: simulated crashes, faults and models")]
struct Arguments {
    #[command(subcommand)]
    regime: Regime,
}

#[derive(Subcommand)]
enum Regime {
    Bitflip(command::bitflip::Arguments),
    Crash(command::crash::Arguments),
    Soak(command::soak::Arguments),
    Kill(command::kill::Arguments),
    #[command(hide = true)]
    KillChild(command::kill::ChildArguments),
    Threads(command::threads::Arguments),
    Model(command::model::Arguments),
    Faults(command::faults::Arguments),
    Fuzz(command::fuzz::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().regime {
        Regime::Bitflip(arguments) => command::bitflip::run(&arguments),
        Regime::Crash(arguments) => command::crash::run(&arguments),
        Regime::Soak(arguments) => command::soak::run(&arguments),
        Regime::Kill(arguments) => command::kill::run(&arguments),
        Regime::KillChild(arguments) => command::kill::run_child(&arguments),
        Regime::Threads(arguments) => command::threads::run(&arguments),
        Regime::Model(arguments) => command::model::run(&arguments),
        Regime::Faults(arguments) => command::faults::run(&arguments),
        Regime::Fuzz(arguments) => command::fuzz::run(&arguments),
    }
}
