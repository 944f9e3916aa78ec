//! `spinney repair`: a new store from the readable parts of a damaged one.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use spinney::{Repair, RepairBasis, RepairReport};

use crate::failure::{EXIT_DAMAGED, Failure, Outcome};
use crate::store::StoreOptions;
use spinney_quantity::grouped;

/// Make a new store from the readable parts of a damaged one; exit with 3 if something may be missing
#[derive(Debug, Args)]
#[command(after_help = "\
The source is not changed. Each key gets the newest version that can be read. Where newer ones may be lost,
the ranges of keys are listed: there, values may be older than they were and deleted keys may be back.

Examples:
  spinney repair my.store new.store                      what can be read goes into new.store
  spinney repair my.store new.store --without-doubtful   leave out the keys of damaged ranges
  spinney repair my.store --in-place                     the original is kept as my.store.damaged")]
pub(crate) struct RepairOptions {
    /// The damaged store's directory
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The new store's directory, which must not exist or be empty
    #[arg(
        value_name = "TARGET",
        required_unless_present = "in_place",
        conflicts_with = "in_place"
    )]
    target: Option<PathBuf>,
    /// Put the new store in the place of the damaged one, which is kept as SOURCE.damaged
    #[arg(long)]
    in_place: bool,
    /// Omit keys of which a newer version may be lost
    #[arg(long)]
    without_doubtful: bool,
}

pub(super) fn run(store: &StoreOptions, options: &RepairOptions) -> Outcome {
    let shows_progress = std::io::stderr().is_terminal();
    let repair = Repair::new(&options.source)
        .memory_budget(store.memory)
        .without_doubtful(options.without_doubtful)
        .progress(move |progress| {
            if shows_progress {
                eprint!("\r{}: {} pairs\x1b[K", progress.keyspace, grouped(progress.pairs));
            }
        });
    let repair = match store.persistent_memory() {
        Some(memory) => repair.persistent_memory(memory),
        None => repair,
    };
    let result = match &options.target {
        Some(target) => repair.into_new(target),
        None => repair.in_place(),
    };
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    let report = result?;
    print(&report)?;
    if report.is_exact() {
        return Ok(());
    }
    Err(Failure::Message(
        EXIT_DAMAGED,
        "the new store is sound, but something of the damaged one may be missing; see the list"
            .to_string(),
    ))
}

fn print(report: &RepairReport) -> Outcome {
    let mut out = super::output();
    for problem in &report.problems {
        writeln!(out, "damaged: {}", problem.description())?;
    }
    for left_out in &report.left_out {
        writeln!(out, "left out: {left_out}")?;
    }
    for damage in &report.damage {
        writeln!(
            out,
            "{}: {} may be older or missing: {}",
            damage.keyspace,
            damage.range,
            damage.error.description()
        )?;
    }
    if report.basis == RepairBasis::Files {
        writeln!(
            out,
            "the manifest is lost or damaged: everything found in data files and journal was merged; keys that had been \
             deleted may be back, and values may be older"
        )?;
    }
    if report.journal_incomplete {
        writeln!(out, "the journal is incomplete: commits are missing, and any key may be older")?;
    }
    for keyspace in &report.keyspaces {
        write!(out, "keyspace {}: {} pairs", keyspace.name, grouped(keyspace.pairs))?;
        if keyspace.pairs_left_out > 0 {
            write!(out, ", {} in damaged ranges left out", grouped(keyspace.pairs_left_out))?;
        }
        writeln!(out)?;
        if let Some(why) = &keyspace.not_folded {
            let keys = match keyspace.keys_not_folded {
                1 => "1 more key has".to_string(),
                keys => format!("{} more keys have", grouped(keys)),
            };
            writeln!(
                out,
                "keyspace {}: {keys} merge operands that could not be folded, and were copied as they are ({})",
                keyspace.name,
                why.description()
            )?;
        }
        if let Some(why) = &keyspace.options_lost {
            writeln!(
                out,
                "keyspace {}: its options are lost, and it has those of a new one: {}",
                keyspace.name,
                why.description()
            )?;
        }
    }
    writeln!(out, "{} journal records replayed", grouped(report.journal_records))?;
    Ok(out.flush()?)
}
