//! The command `spinney-sim`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spinney_sim::command;

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
    Model(command::model::Arguments),
    Planted(command::planted::Arguments),
    Threads(command::threads::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().regime {
        Regime::Bitflip(arguments) => command::bitflip::run(&arguments),
        Regime::Crash(arguments) => command::crash::run(&arguments),
        Regime::Model(arguments) => command::model::run(&arguments),
        Regime::Planted(arguments) => command::planted::run(&arguments),
        Regime::Threads(arguments) => command::threads::run(&arguments),
    }
}
