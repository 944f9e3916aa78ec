//! The `spinney` command: a store from the shell. `docs/cli.md` describes it for its users.
//!
//! The modules: `commands` (one file a command), `formats` (text in and out), `bench` (workloads),
//! `inspect` (the tree as a person would want to see it), and the small things they share.

mod bench;
mod commands;
mod failure;
mod formats;
mod input;
mod inspect;
mod spelling;
mod store;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let arguments = commands::Arguments::parse();
    match commands::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (code, message) = failure.into_parts();
            if let Some(message) = message {
                eprintln!("spinney: {message}");
            }
            ExitCode::from(code)
        }
    }
}
