//! `spinney compact` and `spinney flush`.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;

use super::StorePath;
use super::scan::key_range;
use crate::failure::Outcome;
use crate::spelling::SpellingOptions;
use crate::store::StoreOptions;
use spinney_quantity::bytes;

/// Drop superseded versions and deleted keys of a key range, and wait until this is done
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney compact my.store
  spinney compact my.store --from b --to d   keys from b to before d")]
pub(crate) struct CompactOptions {
    #[command(flatten)]
    store: StorePath,
    /// The first key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// The end of the range, exclusive
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    #[command(flatten)]
    spelling: SpellingOptions,
}

/// Write the memtable into the tree, and wait until this is done
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney flush my.store")]
pub(crate) struct FlushOptions {
    #[command(flatten)]
    store: StorePath,
}

pub(super) fn run_compact(store: &StoreOptions, options: &CompactOptions) -> Outcome {
    let range = key_range(options.spelling.spelling(), options.from.as_ref(), options.to.as_ref())?;
    let database = store.open(&options.store.path, false)?;
    let keyspace = store.existing(&database)?;
    let before = keyspace.describe()?.disk_bytes;
    keyspace.compact(range)?;
    let after = keyspace.describe()?.disk_bytes;
    drop(keyspace);
    database.close()?;
    Ok(writeln!(
        std::io::stdout(),
        "compacted: {} on disk, {} before",
        bytes(after),
        bytes(before)
    )?)
}

pub(super) fn run_flush(store: &StoreOptions, options: &FlushOptions) -> Outcome {
    let database = store.open(&options.store.path, false)?;
    store.existing(&database)?.flush()?;
    Ok(database.close()?)
}
