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
    Callbacks(command::callbacks::Arguments),
    Crash(command::crash::Arguments),
    Faults(command::faults::Arguments),
    Fuzz(command::fuzz::Arguments),
    Kill(command::kill::Arguments),
    #[command(hide = true)]
    KillChild(command::kill::ChildArguments),
    Model(command::model::Arguments),
    Planted(command::planted::Arguments),
    Promises(command::promises::Arguments),
    Soak(command::soak::Arguments),
    Threads(command::threads::Arguments),
    Torture(command::torture::Arguments),
    #[command(hide = true)]
    TortureChild(command::torture::ChildArguments),
}

fn main() -> ExitCode {
    match Arguments::parse().regime {
        Regime::Bitflip(arguments) => command::bitflip::run(&arguments),
        Regime::Callbacks(arguments) => command::callbacks::run(&arguments),
        Regime::Crash(arguments) => command::crash::run(&arguments),
        Regime::Faults(arguments) => command::faults::run(&arguments),
        Regime::Fuzz(arguments) => command::fuzz::run(&arguments),
        Regime::Kill(arguments) => command::kill::run(&arguments),
        Regime::KillChild(arguments) => command::kill::run_child(&arguments),
        Regime::Model(arguments) => command::model::run(&arguments),
        Regime::Planted(arguments) => command::planted::run(&arguments),
        Regime::Promises(arguments) => command::promises::run(&arguments),
        Regime::Soak(arguments) => command::soak::run(&arguments),
        Regime::Threads(arguments) => command::threads::run(&arguments),
        Regime::Torture(arguments) => command::torture::run(&arguments),
        Regime::TortureChild(arguments) => command::torture::run_child(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two arguments of `threads` had one name, its own `--operations` and that of all regimes, so that
    /// the command ended with a panic before it had done anything.
    #[test]
    fn no_two_arguments_have_one_name() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
