//! `spinney check`: verification of a store.

use std::io::Write;

use clap::Args;
use spinney::CheckLevel;

use super::StorePath;
use crate::failure::{EXIT_DAMAGED, Failure, Outcome};
use crate::store::{StoreOptions, journal_lost};
use spinney_quantity::grouped;

/// Verify a store; list each problem and exit with 3 if it is damaged
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney check my.store          structure: manifest, trees, each file's footer
  spinney check my.store --full   every page of every file")]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    store: StorePath,
    /// Read everything: each page with its checksum, order, counts and filter
    #[arg(long)]
    full: bool,
}

pub(super) fn run(store: &StoreOptions, options: &CheckOptions) -> Outcome {
    let database = store.open_quietly(&options.store.path)?;
    let level = if options.full { CheckLevel::Full } else { CheckLevel::Structure };
    let report = database.check(level)?;
    let recovery = database.recovery();
    let mut out = super::output();
    for problem in &report.problems {
        writeln!(out, "{}", problem.description())?;
    }
    let damage = &recovery.journal_damage;
    for problem in damage {
        writeln!(out, "{problem}")?;
    }
    let problems = report.problems.len() + damage.len();
    let found = match problems {
        1 => "1 problem".to_string(),
        problems => format!("{} problems", grouped(problems as u64)),
    };
    let (files, pages) = (grouped(report.files), grouped(report.pages));
    match options.full {
        true => {
            let entries = grouped(report.entries);
            writeln!(out, "checked {files} files, {pages} pages, {entries} entries: {found}")?;
        }
        false => writeln!(
            out,
            "checked the structure of {files} files: {found} (--full reads their {pages} pages too)"
        )?,
    }
    if let Some(lost) = journal_lost(&recovery) {
        writeln!(out, "{lost}")?;
    }
    if recovery.manifest_bytes_dropped > 0 {
        writeln!(
            out,
            "opening dropped {} bytes at the end of the manifest that are no record: a crash has torn what was \
             written last, or it is damaged",
            grouped(recovery.manifest_bytes_dropped)
        )?;
    }
    for damage in &recovery.journal_damage_skipped {
        writeln!(out, "opening skipped a part of the journal that is not needed: {damage}")?;
    }
    out.flush()?;
    if problems == 0 {
        return Ok(database.close()?);
    }
    Err(Failure::Message(
        EXIT_DAMAGED,
        format!(
            "{} is damaged ({found}); restore the named files from a checkpoint, or make a new store of what \
             can be read with `spinney repair`",
            options.store.path.display(),
        ),
    ))
}
