//! The `spinney-bench` command. `docs/benchmarks.md` describes it for its users.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use spinney_bench::compare::options::CompareOptions;
use spinney_bench::compare::{self, Failure, child};
use spinney_bench::document::{self, DocumentOptions};
use spinney_bench::engine::EngineName;
use spinney_bench::hashes::{self, HashesOptions};
use spinney_bench::instructions::{self, InstructionsOptions};

/// Compare Spinney with other stores: the same work, the same memory, one run
#[derive(Debug, Parser)]
#[command(
    name = "spinney-bench",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Exit codes: 0 done, 2 wrong usage or something that is not installed, 1 an engine failed, gave a wrong
answer, or (`instructions`) costs more than the record.

Examples:
  spinney-bench engines              what can be compared here
  spinney-bench compare --quick      a small comparison, in less than a minute
  spinney-bench instructions         has a change made an operation more expensive?"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Box<CompareOptions>),
    Instructions(InstructionsOptions),
    Hashes(HashesOptions),
    /// Draw the figures of a comparison from its JSON
    #[command(after_help = "Examples:\n  spinney-bench plot results.json figures")]
    Plot {
        /// The results of `compare --json`
        json: PathBuf,
        /// The directory for the figures and report.html
        dir: PathBuf,
    },
    Document(DocumentOptions),
    /// List the engines and whether they are installed
    #[command(after_help = "Examples:\n  spinney-bench engines")]
    Engines,
    /// One engine's process (for `compare` alone)
    #[command(hide = true)]
    Child,
    /// One counted process (for `instructions` alone)
    #[command(hide = true)]
    Counted {
        kind: String,
        stage: String,
        workload: Option<String>,
    },
}

fn engines() {
    for engine in EngineName::all() {
        match engine.check() {
            Ok(()) => println!("{:<22} there", engine.to_string()),
            Err(why) => println!("{:<22} missing: {why}", engine.to_string()),
        }
    }
}

fn plot(json: &Path, dir: &Path) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", json.display());
    let text = std::fs::read_to_string(json).map_err(|error| said(&error))?;
    let document = serde_json::from_str(&text).map_err(|error| said(&error))?;
    let figures = spinney_bench::plot::write(&document, dir)?;
    eprintln!("{figures} figures and report.html in {}", dir.display());
    Ok(())
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Compare(options) => compare::run(&options),
        Command::Plot { json, dir } => plot(&json, &dir).map_err(Failure::Other),
        Command::Document(options) => document::run(&options),
        Command::Engines => {
            engines();
            Ok(())
        }
        Command::Child => child::serve().map_err(Failure::Other),
        Command::Instructions(options) => instructions::run(&options),
        Command::Hashes(options) => hashes::run(&options),
        Command::Counted { kind, stage, workload } => {
            instructions::counted(&kind, &stage, workload.as_deref()).map_err(Failure::Other)
        }
    };
    let (code, what) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(what)) => (2, what),
        Err(Failure::Other(what)) => (1, what),
    };
    eprintln!("spinney-bench: {what}");
    ExitCode::from(code)
}
