//! `spinney keyspaces` and `spinney drop-keyspace`.

use std::io::Write;

use clap::Args;

use super::StorePath;
use super::import::header_keyspace;
use crate::failure::{Failure, Outcome};
use crate::store::StoreOptions;

/// List the keyspaces of a store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney keyspaces my.store")]
pub(crate) struct KeyspacesOptions {
    #[command(flatten)]
    store: StorePath,
}

/// Drop a keyspace and all its data
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney drop-keyspace my.store old --yes")]
pub(crate) struct DropKeyspaceOptions {
    #[command(flatten)]
    store: StorePath,
    /// The keyspace's name
    #[arg(value_name = "NAME")]
    name: String,
    /// Yes, drop it
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(store: &StoreOptions, options: &KeyspacesOptions) -> Outcome {
    let database = store.open_for_reading(&options.store.path)?;
    let mut out = super::output();
    for name in database.keyspaces() {
        writeln!(out, "{name}")?;
    }
    out.flush()?;
    Ok(database.close()?)
}

pub(super) fn run_drop(store: &StoreOptions, options: &DropKeyspaceOptions) -> Outcome {
    if !options.yes {
        return Err(Failure::usage("this deletes the keyspace's data; say --yes to do it"));
    }
    let database = store.open(&options.store.path, false)?;
    database.drop_keyspace(&options.name)?;
    match database.drop_keyspace(&header_keyspace(&options.name)) {
        Ok(()) | Err(spinney::Error::NotFound { .. }) => Ok(database.close()?),
        Err(error) => Err(error.into()),
    }
}
