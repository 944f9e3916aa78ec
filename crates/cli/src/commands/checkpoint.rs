//! `spinney checkpoint`: a consistent copy.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::StorePath;
use crate::failure::{Failure, Outcome};
use crate::store::StoreOptions;
use spinney_quantity::bytes;

/// Make a consistent copy of a store in a new directory
///
/// Its files are hard links, which use no space. On another file system they are copied.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney checkpoint my.store my.store.monday")]
pub(crate) struct CheckpointOptions {
    #[command(flatten)]
    store: StorePath,
    /// The new directory
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
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:32.green} {pos} of {len} files  {msg}");
    bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
    database.checkpoint_with(&options.directory, |progress| {
        bar.set_length(progress.files_total);
        bar.set_position(progress.files);
        if progress.bytes_copied > 0 {
            bar.set_message(format!("{} copied", bytes(progress.bytes_copied)));
        }
    })?;
    bar.finish_and_clear();
    Ok(database.close()?)
}
