//! `spinney alter` and `spinney options`: the options of a keyspace.

use std::io::Write;

use clap::Args;
use spinney::{Keyspace, KeyspaceOptions};

use super::StorePath;
use crate::failure::{Failure, Outcome};
use crate::store::{CompressionChoice, StoreOptions, kind_options_help, parse_option};
use spinney_quantity::parse_bytes;

/// Print the options of a keyspace
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney options my.store
  spinney options my.store --keyspace index")]
pub(crate) struct OptionsOptions {
    #[command(flatten)]
    store: StorePath,
}

/// Change options of a keyspace, durably
///
/// New files and compactions follow the new options. What is stored already changes when a compaction writes it anew;
/// `spinney compact` leaves what is merged already. A lower limit slows writers until the tree has come near it. The tree kind and the merge operator are fixed when a keyspace is created.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney alter my.store --space-amplification-max 1.15    less disk space, more writing
  spinney alter my.store --compression lz4                 new files alone
  spinney alter my.store --option tables_per_guard_max=4 --keyspace index")]
pub(crate) struct AlterOptions {
    #[command(flatten)]
    store: StorePath,
    /// How new files are compressed
    #[arg(long, value_name = "METHOD")]
    compression: Option<CompressionChoice>,
    /// Disk space per live data, at least 1.1, above which space is reclaimed
    #[arg(long, value_name = "TIMES", value_parser = parse_times)]
    space_amplification_max: Option<f64>,
    /// Values of at least this size are stored in blob files: from 64 to 1MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    blob_bytes_min: Option<u64>,
    /// An option that only some kinds of tree have; --help lists them
    #[arg(
        long = "option",
        value_name = "NAME=NUMBER",
        value_parser = parse_option,
        long_help = kind_options_help()
    )]
    options: Vec<(String, u32)>,
}

/// Reads a value of `--space-amplification-max`.
fn parse_times(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if (1.1..=100.0).contains(&times) => Ok(times),
        _ => Err("write a number from 1.1 to 100".to_string()),
    }
}

pub(super) fn run_options(store: &StoreOptions, options: &OptionsOptions) -> Outcome {
    let database = store.open_for_reading(&options.store.path)?;
    let keyspace = store.existing(&database)?;
    let mut out = super::output();
    for (name, value) in keyspace.options().values() {
        writeln!(out, "{name} {value}")?;
    }
    out.flush()?;
    drop(keyspace);
    Ok(database.close()?)
}

pub(super) fn run_alter(store: &StoreOptions, options: &AlterOptions) -> Outcome {
    if options.is_empty() {
        return Err(Failure::usage(
            "nothing to change; `spinney options` shows what there is, and `spinney alter --help` what can be changed",
        ));
    }
    let database = store.open(&options.store.path, false)?;
    let keyspace = store.existing(&database)?;
    let before = keyspace.options();
    let wanted = options.applied_to(before.clone())?;
    // Nobody else has the store open.
    keyspace.alter(|_| wanted.clone())?;
    let told = tell(&keyspace, &before);
    drop(keyspace);
    database.close()?;
    told
}

/// Says what has changed.
fn tell(keyspace: &Keyspace, before: &KeyspaceOptions) -> Outcome {
    let mut out = super::output();
    let (before, after) = (before.values(), keyspace.options().values());
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        if before != after {
            writeln!(out, "{name}: {before} → {after}")?;
        }
    }
    if before == after {
        writeln!(out, "nothing changed: keyspace {:?} has these options", keyspace.name())?;
    }
    Ok(out.flush()?)
}

impl AlterOptions {
    fn is_empty(&self) -> bool {
        self.compression.is_none()
            && self.space_amplification_max.is_none()
            && self.blob_bytes_min.is_none()
            && self.options.is_empty()
    }

    fn applied_to(&self, mut options: KeyspaceOptions) -> Outcome<KeyspaceOptions> {
        if let Some(choice) = self.compression {
            options = options.compression(choice.into());
        }
        if let Some(times) = self.space_amplification_max {
            options = options.space_amplification_max(times);
        }
        if let Some(bytes) = self.blob_bytes_min {
            if !(64..=1 << 20).contains(&bytes) {
                return Err(Failure::usage("--blob-bytes-min: write a size from 64 to 1MiB"));
            }
            options = options.blob_bytes_min(bytes as u32);
        }
        for (name, value) in &self.options {
            let with = options.kind_option(name, *value);
            options = with.map_err(|error| Failure::usage(format!("--option: {error}")))?;
        }
        Ok(options)
    }
}
