//! The command `spinney-sim`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spinney_sim::allocation::Counting;
use spinney_sim::{callbacks, command, promises, transactions, views};

/// Fuzzing measures the allocations of a case.
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
    /// Calls user code that panics: merge operators, listeners, the file system. No thread may wait
    /// indefinitely, and each caller must get its error.
    #[command(after_help = "Examples:
  spinney-sim callbacks --seconds 30
  spinney-sim callbacks --kind stb --seed 7 --runs 1")]
    Callbacks(command::plain::Arguments),
    Crash(command::crash::Arguments),
    Faults(command::faults::Arguments),
    Fuzz(command::fuzz::Arguments),
    Kill(command::kill::Arguments),
    #[command(hide = true)]
    KillChild(command::kill::ChildArguments),
    Model(command::model::Arguments),
    Planted(command::planted::Arguments),
    /// Judges space, memory and opening work of stores in memory, without crashes.
    #[command(after_help = "Examples:
  spinney-sim promises --runs 20
  spinney-sim promises --kind mixed --seed 7 --runs 1")]
    Promises(command::plain::Arguments),
    Soak(command::soak::Arguments),
    Threads(command::threads::Arguments),
    Torture(command::torture::Arguments),
    #[command(hide = true)]
    TortureChild(command::torture::ChildArguments),
    /// Lets the transactions of threads append to lists and read them, and judges whether one order explains what they saw.
    #[command(after_help = "Examples:
  spinney-sim transactions --seconds 60
  spinney-sim transactions --kind mixed --seed 7 --runs 1")]
    Transactions(command::plain::Arguments),
    /// Lets threads overwrite the same keys in whole batches, and compares what readers see.
    #[command(after_help = "Examples:
  spinney-sim views --seconds 30
  spinney-sim views --kind flsm --seed 7 --runs 1")]
    Views(command::plain::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().regime {
        Regime::Bitflip(arguments) => command::bitflip::run(&arguments),
        Regime::Callbacks(arguments) => {
            // Panics are what this is about: they are judged, not shown.
            std::panic::set_hook(Box::new(|_| ()));
            command::plain::run("callbacks", &arguments, callbacks::run)
        }
        Regime::Crash(arguments) => command::crash::run(&arguments),
        Regime::Faults(arguments) => command::faults::run(&arguments),
        Regime::Fuzz(arguments) => command::fuzz::run(&arguments),
        Regime::Kill(arguments) => command::kill::run(&arguments),
        Regime::KillChild(arguments) => command::kill::run_child(&arguments),
        Regime::Model(arguments) => command::model::run(&arguments),
        Regime::Planted(arguments) => command::planted::run(&arguments),
        Regime::Promises(arguments) => command::plain::run("promises", &arguments, promises::run),
        Regime::Soak(arguments) => command::soak::run(&arguments),
        Regime::Threads(arguments) => command::threads::run(&arguments),
        Regime::Torture(arguments) => command::torture::run(&arguments),
        Regime::TortureChild(arguments) => command::torture::run_child(&arguments),
        Regime::Transactions(arguments) => {
            command::plain::run("transactions", &arguments, transactions::run)
        }
        Regime::Views(arguments) => command::plain::run("views", &arguments, views::run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `threads` had two options named `--operations`, its own and the common one, so the command
    /// panicked before it had done anything.
    #[test]
    fn no_two_arguments_have_one_name() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
