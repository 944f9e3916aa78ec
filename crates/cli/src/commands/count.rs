//! `spinney count`: how many keys there are.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;

use super::StorePath;
use super::scan::KeyChoice;
use crate::failure::Outcome;
use crate::spelling::SpellingOptions;
use crate::store::StoreOptions;

/// Print the number of keys
///
/// The count is exact: it includes memory and journal, without deleted and superseded entries. All keys
/// are read, so it takes as long as a scan; `stats` has an immediate estimate.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney count my.store
  spinney count my.store --keyspace users --prefix de/
  spinney count my.store --from b --to d     keys from b to before d")]
pub(crate) struct CountOptions {
    #[command(flatten)]
    store: StorePath,
    /// Only keys that start with this
    #[arg(long, value_name = "KEY")]
    prefix: Option<OsString>,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Up to this key, without it
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    #[command(flatten)]
    spelling: SpellingOptions,
}

pub(super) fn run(store: &StoreOptions, options: &CountOptions) -> Outcome {
    let choice = KeyChoice {
        prefix: options.prefix.as_ref(),
        from: options.from.as_ref(),
        to: options.to.as_ref(),
    };
    let range = choice.range(options.spelling.spelling())?;
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let count = range.map_or(Ok(0), |range| keyspace.count(range))?;
    let mut out = super::output();
    writeln!(out, "{count}")?;
    out.flush()?;
    drop(keyspace);
    Ok(database.close()?)
}
