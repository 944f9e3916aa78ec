//! `spinney stats`: the statistics of a store.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use spinney::{LatencySummary, Statistics, Traffic};

use super::StorePath;
use crate::failure::Outcome;
use crate::store::StoreOptions;
use spinney_quantity::{bytes, grouped, ratio};

/// The classes of the throttle histogram.
const THROTTLE_CLASSES: [&str; 6] = ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "more"];

/// Print the store's statistics: current sizes, and counters since it was opened
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
            "memory     {} of {}: memtables {} (idle {}), cache {}, trees {}, iterators {}, transactions {}, \
             read-ahead {}, jobs up to {}, journal up to {}",
            bytes(statistics.memory_total()),
            bytes(statistics.memory_budget),
            bytes(statistics.memory_memtables),
            bytes(statistics.memory_idle),
            bytes(statistics.memory_cache),
            bytes(statistics.memory_trees),
            bytes(statistics.memory_iterators),
            bytes(statistics.memory_transactions),
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

/// The statistics for programs. Names end in their unit.
fn statistics_json(statistics: &Statistics) -> Value {
    let keyspaces: Vec<Value> = statistics
        .keyspaces
        .iter()
        .map(|keyspace| {
            json!({
                "name": keyspace.name,
                "kind": keyspace.kind,
                "table_entries": keyspace.table_entries,
                "memtable_entries": keyspace.memtable_entries,
                "tables": keyspace.tables,
                "disk_bytes": keyspace.disk_bytes,
                "live_bytes": keyspace.live_bytes,
                "memtable_bytes": keyspace.memtable_bytes,
                "memtables_frozen": keyspace.memtables_frozen,
                "compaction_pending_bytes": keyspace.compaction_pending_bytes,
            })
        })
        .collect();
    json!({
        "gets": statistics.gets,
        "gets_absent": statistics.gets_absent,
        "multi_get_keys": statistics.multi_get_keys,
        "writes": statistics.writes,
        "commits": statistics.commits,
        "commits_sync": statistics.commits_sync,
        "iterators": statistics.iterators,
        "user_written_bytes": statistics.user_bytes_written,
        "user_read_bytes": statistics.user_bytes_read,
        "get_latency": latency_json(&statistics.get_latency),
        "commit_latency": latency_json(&statistics.commit_latency),
        "journal": traffic_json(statistics.journal),
        "flush": traffic_json(statistics.flush),
        "compaction": traffic_json(statistics.compaction),
        "manifest": traffic_json(statistics.manifest),
        "pages_read": statistics.pages_read,
        "dead_entries_read": statistics.dead_entries_read,
        "gaps_skipped": statistics.gaps_skipped,
        "cache_hits_leaf": statistics.cache_hits_leaf,
        "cache_hits_index": statistics.cache_hits_index,
        "cache_hits_filter": statistics.cache_hits_filter,
        "cache_hits_value": statistics.cache_hits_value,
        "cache_misses": statistics.cache_misses,
        "cache_evictions": statistics.cache_evictions,
        "filter_probes": statistics.filter_probes,
        "filter_false_positives": statistics.filter_false_positives,
        "memory_memtables_bytes": statistics.memory_memtables,
        "memory_cache_bytes": statistics.memory_cache,
        "memory_trees_bytes": statistics.memory_trees,
        "memory_iterators_bytes": statistics.memory_iterators,
        "memory_transactions_bytes": statistics.memory_transactions,
        "memory_read_ahead_bytes": statistics.memory_read_ahead,
        "memory_total_bytes": statistics.memory_total(),
        "memory_budget_bytes": statistics.memory_budget,
        "journal_live_bytes": statistics.journal_live_bytes,
        "throttled_seconds": statistics.throttled.as_secs_f64(),
        "throttle_histogram": throttle_json(statistics.throttle_histogram),
        "snapshots": statistics.snapshots,
        "keyspaces": keyspaces,
    })
}

fn throttle_json(histogram: [u64; 6]) -> Value {
    let classes = THROTTLE_CLASSES.iter().zip(histogram);
    Value::Object(classes.map(|(class, count)| ((*class).to_string(), json!(count))).collect())
}

fn traffic_json(traffic: Traffic) -> Value {
    json!({
        "read_bytes": traffic.read_bytes,
        "written_bytes": traffic.written_bytes,
        "count": traffic.count,
    })
}

fn latency_json(latency: &LatencySummary) -> Value {
    json!({
        "samples": latency.samples,
        "mean_seconds": latency.mean.as_secs_f64(),
        "p50_seconds": latency.p50.as_secs_f64(),
        "p99_seconds": latency.p99.as_secs_f64(),
        "p99.9_seconds": latency.p999.as_secs_f64(),
        "max_seconds": latency.max.as_secs_f64(),
    })
}
