//! `spinney count`: how many keys there are.

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
    #[command(flatten)]
    choice: KeyChoice,
    #[command(flatten)]
    spelling: SpellingOptions,
}

pub(super) fn run(store: &StoreOptions, options: &CountOptions) -> Outcome {
    let range = options.choice.range(options.spelling.spelling())?;
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let count = range.map_or(Ok(0), |range| keyspace.count(range))?;
    let mut out = super::output();
    writeln!(out, "{count}")?;
    out.flush()?;
    drop(keyspace);
    Ok(database.close()?)
}
