//! `spinney get`: one value.

use std::ffi::OsString;
use std::io::Write;

use clap::Args;

use super::{StorePath, argument};
use crate::failure::{EXIT_NOT_FOUND, Failure, Outcome};
use crate::spelling::SpellingOptions;
use crate::store::StoreOptions;

/// Print the value of a key; exit with 1 if it has none
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney get my.store apple
  spinney get my.store image.png --no-newline > image.png   the value's exact bytes
  spinney get my.store 0000000000000001 --hex               key and value in hex")]
pub(crate) struct GetOptions {
    #[command(flatten)]
    store: StorePath,
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
    /// Do not add a newline after the value
    #[arg(long, short)]
    no_newline: bool,
    #[command(flatten)]
    spelling: SpellingOptions,
}

pub(super) fn run(store: &StoreOptions, options: &GetOptions) -> Outcome {
    let spelling = options.spelling.spelling();
    let key = argument(spelling, "KEY", &options.key)?;
    let database = store.open_for_reading(&options.store.path)?;
    let value = store.existing(&database)?.get(&key)?;
    database.close()?;
    let Some(value) = value else { return Err(Failure::Silent(EXIT_NOT_FOUND)) };
    let mut text = Vec::new();
    spelling.encode(&value, &mut text);
    if !options.no_newline {
        text.push(b'\n');
    }
    let mut out = super::output();
    out.write_all(&text)?;
    Ok(out.flush()?)
}
