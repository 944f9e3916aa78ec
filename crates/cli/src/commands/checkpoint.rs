//! `spinney checkpoint`: a consistent copy, by hard links.

use std::path::PathBuf;

use clap::Args;

use super::StorePath;
use crate::failure::{Failure, Outcome};
use crate::store::StoreOptions;

/// Make a consistent copy of a store in a new directory, by hard links
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney checkpoint my.store my.store.monday")]
pub(crate) struct CheckpointOptions {
    #[command(flatten)]
    store: StorePath,
    /// The new directory, on the same file system
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(store: &StoreOptions, options: &CheckpointOptions) -> Outcome {
    if options.directory.exists() {
        return Err(Failure::usage(format!(
            "{} exists already; name a new directory",
            options.directory.display()
        )));
    }
    let database = store.open(&options.store.path, false)?;
    database.checkpoint(&options.directory)?;
    Ok(database.close()?)
}
