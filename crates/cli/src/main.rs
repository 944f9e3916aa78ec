//! The `spinney` command: a store from the shell. `docs/cli.md` describes it for its users.
//!
//! The modules: `commands` (one file per command), `formats` (text in and out), `inspect` (the tree as
//! text and as a page), and what they share.

mod commands;
mod damaged;
mod failure;
mod formats;
mod input;
mod inspect;
mod spelling;
mod store;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

fn main() -> ExitCode {
    let arguments = match commands::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
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

/// Prints the help that was asked for; otherwise the error of the command line, in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    eprintln!("spinney: {}", failure::usage_line(&error.to_string()));
    ExitCode::from(failure::EXIT_USAGE)
}
