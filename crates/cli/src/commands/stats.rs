//! `spinney stats`: what the store counts.

use std::io::Write;

use clap::Args;

use super::StorePath;
use crate::bench::report::statistics_json;
use crate::failure::Outcome;
use crate::store::StoreOptions;
use spinney_bench::quantity::{bytes, grouped, ratio};

/// Print what the store counts: sizes now, and counters since it was opened
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  spinney stats my.store
  spinney stats my.store --json
  spinney stats my.store --prometheus")]
pub(crate) struct StatsOptions {
    #[command(flatten)]
    store: StorePath,
    /// As JSON
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// As text that Prometheus scrapes
    #[arg(long)]
    prometheus: bool,
}

pub(super) fn run(store: &StoreOptions, options: &StatsOptions) -> Outcome {
    let database = store.open_for_reading(&options.store.path)?;
    let statistics = database.stats();
    let recovery = database.recovery();
    let mut out = super::output();
    if options.json {
        writeln!(out, "{:#}", statistics_json(&statistics))?;
    } else if options.prometheus {
        out.write_all(statistics.to_prometheus().as_bytes())?;
    } else {
        writeln!(
            out,
            "memory     {} of {}: memtables {} (idle {}), cache {}, trees {}, iterators {}, read-ahead {}, \
             jobs up to {}, journal up to {}",
            bytes(statistics.memory_total()),
            bytes(statistics.memory_budget),
            bytes(statistics.memory_memtables),
            bytes(statistics.memory_idle),
            bytes(statistics.memory_cache),
            bytes(statistics.memory_trees),
            bytes(statistics.memory_iterators),
            bytes(statistics.memory_read_ahead),
            bytes(statistics.memory_jobs),
            bytes(statistics.memory_journal),
        )?;
        writeln!(out, "journal    {} not yet retired", bytes(statistics.journal_live_bytes))?;
        writeln!(
            out,
            "recovered  {} records, {}, from the journal at opening",
            grouped(recovery.records_replayed),
            bytes(recovery.bytes_replayed)
        )?;
        for keyspace in &statistics.keyspaces {
            writeln!(out, "\nkeyspace {} ({})", keyspace.name, keyspace.kind)?;
            writeln!(out, "  keys      about {}", grouped(keyspace.keys_estimate))?;
            writeln!(
                out,
                "  entries   {} in {} tables, {} in memtables (versions and tombstones included)",
                grouped(keyspace.table_entries),
                grouped(keyspace.tables),
                grouped(keyspace.memtable_entries)
            )?;
            writeln!(
                out,
                "  disk      {}, of which about {} live (× {:.2})",
                bytes(keyspace.disk_bytes),
                bytes(keyspace.live_bytes),
                ratio(keyspace.disk_bytes, keyspace.live_bytes)
            )?;
            writeln!(
                out,
                "  memtables {}, {} frozen",
                bytes(keyspace.memtable_bytes),
                keyspace.memtables_frozen
            )?;
            writeln!(out, "  to compact {}", bytes(keyspace.compaction_pending_bytes))?;
        }
    }
    out.flush()?;
    Ok(database.close()?)
}
