//! `spinney put` and `spinney delete`.

use std::ffi::OsString;
use std::io::Read;

use clap::Args;

use super::scan::KeyChoice;
use super::{StorePath, argument};
use crate::failure::Outcome;
use crate::spelling::SpellingOptions;
use crate::store::{CreationOptions, DurabilityChoice, StoreOptions};

/// Store a value under a key
///
/// The store and the keyspace are created if they are missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney put my.store apple red
  spinney put my.store image.png - < image.png       the value from standard input
  spinney put my.store 'a\\x00b' 'x\\ty' --escape      binary key and value")]
pub(crate) struct PutOptions {
    #[command(flatten)]
    store: StorePath,
    /// The key
    #[arg(value_name = "KEY")]
    key: OsString,
    /// The value; `-` reads it from standard input unchanged
    #[arg(value_name = "VALUE")]
    value: OsString,
    /// When the write counts as done
    #[arg(long, default_value = "buffered")]
    durability: DurabilityChoice,
    #[command(flatten)]
    spelling: SpellingOptions,
    #[command(flatten)]
    creation: CreationOptions,
}

/// Delete keys, or all keys of a range; those without a value are no error
///
/// A range is deleted at once, however many keys it has. Several keys, and a range, are deleted together.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney delete my.store apple pear
  spinney delete my.store 0000000000000001 --hex
  spinney delete my.store --prefix users/ada/
  spinney delete my.store --to 2026-01         keys before 2026-01
  spinney delete my.store --all --keyspace cache")]
pub(crate) struct DeleteOptions {
    #[command(flatten)]
    store: StorePath,
    /// The keys
    #[arg(value_name = "KEY", required_unless_present_any = ["prefix", "from", "to", "all"])]
    keys: Vec<OsString>,
    #[command(flatten)]
    choice: KeyChoice,
    /// All keys of the keyspace
    #[arg(long, conflicts_with_all = ["prefix", "from", "to"])]
    all: bool,
    /// When the write counts as done
    #[arg(long, default_value = "buffered")]
    durability: DurabilityChoice,
    #[command(flatten)]
    spelling: SpellingOptions,
}

pub(super) fn run(store: &StoreOptions, options: &PutOptions) -> Outcome {
    let spelling = options.spelling.spelling();
    let key = argument(spelling, "KEY", &options.key)?;
    let value = if options.value == "-" {
        let mut value = Vec::new();
        std::io::stdin().lock().read_to_end(&mut value)?;
        value
    } else {
        argument(spelling, "VALUE", &options.value)?
    };
    let database = store.open(&options.store.path, true)?;
    let keyspace = store.existing_or_new(&database, &options.creation)?;
    let mut batch = database.batch().durability(options.durability.into());
    batch.put(&keyspace, key, value);
    batch.commit()?;
    drop(keyspace);
    Ok(database.close()?)
}

pub(super) fn run_delete(store: &StoreOptions, options: &DeleteOptions) -> Outcome {
    let spelling = options.spelling.spelling();
    let keys: Outcome<Vec<Vec<u8>>> =
        options.keys.iter().map(|key| argument(spelling, "KEY", key)).collect();
    let keys = keys?;
    let has_range = options.all || options.choice.is_limited();
    let range = if has_range { options.choice.range(spelling)? } else { None };
    let database = store.open(&options.store.path, false)?;
    let keyspace = store.existing(&database)?;
    let mut batch = database.batch().durability(options.durability.into());
    for key in keys {
        batch.delete(&keyspace, key);
    }
    if let Some(range) = range {
        batch.delete_range(&keyspace, range);
    }
    batch.commit()?;
    drop(keyspace);
    Ok(database.close()?)
}
