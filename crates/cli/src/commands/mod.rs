//! The command line: one file per command, and their common parts here.

mod alter;
mod bench;
mod check;
mod checkpoint;
mod count;
mod export;
mod get;
mod import;
mod keyspaces;
mod maintain;
mod put;
mod repair;
mod scan;
mod stats;

use std::ffi::OsStr;
use std::io::{self, BufWriter, StdoutLock};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::failure::{Failure, Outcome};
use crate::inspect;
use crate::spelling::Spelling;
use crate::store::StoreOptions;

/// A Spinney store from the shell
#[derive(Debug, Parser)]
#[command(
    name = "spinney",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Exit codes: 0 done, 1 not found or no result, 2 wrong usage, 3 the store is damaged, 4 other errors.

Examples:
  spinney import my.store table.tsv          put key TAB value lines into a new store
  spinney get my.store apple                 print one value
  spinney scan my.store --prefix app         print pairs
  spinney inspect my.store --html tree.html  draw the tree"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Import(import::ImportOptions),
    Export(export::ExportOptions),
    Get(get::GetOptions),
    Put(put::PutOptions),
    Delete(put::DeleteOptions),
    Scan(scan::ScanOptions),
    Count(count::CountOptions),
    Stats(stats::StatsOptions),
    Check(check::CheckOptions),
    Repair(repair::RepairOptions),
    Compact(maintain::CompactOptions),
    Flush(maintain::FlushOptions),
    Options(alter::OptionsOptions),
    Alter(alter::AlterOptions),
    Keyspaces(keyspaces::KeyspacesOptions),
    DropKeyspace(keyspaces::DropKeyspaceOptions),
    Checkpoint(checkpoint::CheckpointOptions),
    Inspect(inspect::InspectOptions),
    Bench(bench::BenchOptions),
}

/// The store a command works on.
#[derive(Debug, Clone, Args)]
pub(crate) struct StorePath {
    /// The store's directory
    #[arg(value_name = "STORE")]
    pub(crate) path: PathBuf,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Outcome {
    let store = &arguments.store;
    match arguments.command {
        Command::Import(options) => import::run(store, &options),
        Command::Export(options) => export::run(store, &options),
        Command::Get(options) => get::run(store, &options),
        Command::Put(options) => put::run(store, &options),
        Command::Delete(options) => put::run_delete(store, &options),
        Command::Scan(options) => scan::run(store, &options),
        Command::Count(options) => count::run(store, &options),
        Command::Stats(options) => stats::run(store, &options),
        Command::Check(options) => check::run(store, &options),
        Command::Repair(options) => repair::run(store, &options),
        Command::Compact(options) => maintain::run_compact(store, &options),
        Command::Flush(options) => maintain::run_flush(store, &options),
        Command::Options(options) => alter::run_options(store, &options),
        Command::Alter(options) => alter::run_alter(store, &options),
        Command::Keyspaces(options) => keyspaces::run(store, &options),
        Command::DropKeyspace(options) => keyspaces::run_drop(store, &options),
        Command::Checkpoint(options) => checkpoint::run(store, &options),
        Command::Inspect(options) => inspect::run(store, &options),
        Command::Bench(options) => bench::run(store, &options),
    }
}

/// Standard output, buffered.
fn output() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(64 << 10, io::stdout().lock())
}

/// The bytes that an argument spells.
fn argument(spelling: Spelling, name: &str, text: &OsStr) -> Outcome<Vec<u8>> {
    spelling.argument(text).map_err(|why| Failure::usage(format!("{name}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        let mut command = Arguments::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("spinney {} ", subcommand.get_name());
            assert!(help.contains(&example), "{} has no example", subcommand.get_name());
        }
    }

    #[test]
    fn global_options_may_stand_behind_the_command() {
        let arguments = Arguments::try_parse_from([
            "spinney",
            "get",
            "s",
            "k",
            "--keyspace",
            "x",
            "--memory",
            "1GiB",
        ])
        .unwrap();
        assert_eq!((arguments.store.keyspace.as_str(), arguments.store.memory), ("x", 1 << 30));
    }
}
