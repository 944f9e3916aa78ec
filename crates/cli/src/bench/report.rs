//! Results as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use spinney::{LatencySummary, Statistics, Traffic};

use super::runner::WorkloadResult;
use super::workload::Operation;
use super::{BenchOptions, KEYSPACE};
use crate::store::{CompressionChoice, DurabilityChoice, StoreOptions};
use spinney_bench::quantity::{bytes, grouped, nanoseconds, ratio, whole};

/// The percentiles that are reported.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];
/// The throttle histogram's classes.
const THROTTLE_CLASSES: [&str; 6] = ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "more"];

impl WorkloadResult {
    fn operations_per_second(&self) -> f64 {
        self.measured.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn processor_nanoseconds_per_operation(&self, processor: Duration) -> f64 {
        processor.as_nanos() as f64 / self.measured.operations.max(1) as f64
    }

    fn user_bytes_written(&self) -> u64 {
        self.after.user_bytes_written - self.before.user_bytes_written
    }

    fn user_bytes_read(&self) -> u64 {
        self.after.user_bytes_read - self.before.user_bytes_read
    }

    fn traffic(&self, of: fn(&Statistics) -> Traffic) -> Traffic {
        let (before, after) = (of(&self.before), of(&self.after));
        Traffic {
            read_bytes: after.read_bytes - before.read_bytes,
            written_bytes: after.written_bytes - before.written_bytes,
            count: after.count - before.count,
        }
    }

    fn write_amplification(&self) -> f64 {
        let parts: [fn(&Statistics) -> Traffic; 3] =
            [|s| s.flush, |s| s.compaction, |s| s.manifest];
        let written = parts.iter().map(|part| self.traffic(*part).written_bytes).sum();
        ratio(written, self.user_bytes_written())
    }

    fn write_amplification_with_journal(&self) -> f64 {
        let journal = self.traffic(|s| s.journal).written_bytes;
        self.write_amplification() + ratio(journal, self.user_bytes_written())
    }

    fn pages_per_get(&self) -> f64 {
        let keys = |s: &Statistics| s.gets + s.multi_get_keys;
        ratio(
            self.after.pages_read - self.before.pages_read,
            keys(&self.after) - keys(&self.before),
        )
    }

    fn throttle_histogram(&self) -> [u64; 6] {
        std::array::from_fn(|class| {
            self.after.throttle_histogram[class] - self.before.throttle_histogram[class]
        })
    }
}

/// The table's head.
pub(crate) fn table_head() -> String {
    format!(
        "{:<10} {:>17} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n{}",
        "workload",
        "",
        "per second",
        "cpu/op",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "─".repeat(100)
    )
}

/// A workload's lines: the whole, then each kind of operation if there are several.
pub(crate) fn table_lines(result: &WorkloadResult) -> String {
    let mut out = String::new();
    for (position, (operation, histogram)) in sorted(result).into_iter().enumerate() {
        if position > 0 {
            out.push('\n');
        }
        let (name, rate, processor) = if position == 0 {
            let processor = result.processor_nanoseconds_per_operation(result.processor_settled);
            (result.name, whole(result.operations_per_second()), nanoseconds(processor))
        } else {
            ("", String::new(), String::new())
        };
        let _ = write!(out, "{name:<10} {:>17} {rate:>11} {processor:>9}", operation.name());
        for percentile in [50.0, 99.0, 99.9, 99.99] {
            let value = histogram.value_at_percentile(percentile);
            let _ = write!(out, " {:>9}", nanoseconds(value as f64));
        }
        let _ = write!(out, " {:>9}", nanoseconds(histogram.max() as f64));
    }
    if result.measured.missing + result.measured.wrong > 0 {
        let _ = write!(
            out,
            "\n{:<10} {} missing and {} wrong values",
            "",
            grouped(result.measured.missing),
            grouped(result.measured.wrong)
        );
    }
    if out.is_empty() {
        let _ = write!(out, "{:<10} no operations", result.name);
    }
    out
}

fn sorted(result: &WorkloadResult) -> Vec<(Operation, &Histogram<u64>)> {
    let of = |operation| {
        let found = result.measured.latencies.iter().find(|(known, _)| *known == operation);
        found.map(|(_, histogram)| (operation, histogram))
    };
    Operation::ALL.into_iter().filter_map(of).collect()
}

/// A second table: what the operations cost besides time.
pub(crate) fn details(results: &[WorkloadResult]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\n{:<10} {:>6} {:>7} {:>6} {:>9} {:>11} {:>11} {:>10} {:>9} {:>9}",
        "workload",
        "write×",
        "+jrnl×",
        "space×",
        "pages/get",
        "disk read",
        "disk write",
        "memory",
        "settled",
        "throttled"
    );
    let _ = writeln!(out, "{}", "─".repeat(100));
    for result in results {
        let resident =
            result.resident_bytes_peak.unwrap_or(0).max(result.resident_bytes_sampled_max);
        let throttled = result.after.throttled.saturating_sub(result.before.throttled);
        let _ = writeln!(
            out,
            "{:<10} {:>6.2} {:>7.2} {:>6.2} {:>9.2} {:>11} {:>11} {:>10} {:>9} {:>9}",
            result.name,
            result.write_amplification(),
            result.write_amplification_with_journal(),
            result.after.space_amplification(),
            result.pages_per_get(),
            bytes(result.disk_read_bytes),
            bytes(result.disk_written_bytes),
            bytes(resident),
            nanoseconds(result.settling.as_nanos() as f64),
            nanoseconds(throttled.as_nanos() as f64),
        );
    }
    for result in results {
        let histogram = result.throttle_histogram();
        if histogram.iter().any(|&count| count > 0) {
            let classes = THROTTLE_CLASSES.iter().zip(histogram).filter(|(_, count)| *count > 0);
            let classes: Vec<String> =
                classes.map(|(class, count)| format!("≤ {class}: {}", grouped(count))).collect();
            let _ = writeln!(out, "{}: commits delayed {}", result.name, classes.join(", "));
        }
    }
    out
}

/// Everything, for programs. Names end in their unit.
pub(crate) fn json(
    store: &StoreOptions,
    options: &BenchOptions,
    results: &[WorkloadResult],
) -> Value {
    json!({
        "spinney_version": env!("CARGO_PKG_VERSION"),
        "configuration": {
            "keyspace": store.keyspace_chosen.as_deref().unwrap_or(KEYSPACE),
            "kind": options.creation.kind.unwrap_or_default().name(),
            "compression": match options.creation.compression {
                None | Some(CompressionChoice::None) => "none",
                Some(CompressionChoice::Lz4) => "lz4",
            },
            "memory_bytes": store.memory,
            "records": options.records,
            "operations": options.operations,
            "seconds_max": options.seconds,
            "key_bytes": options.key_bytes,
            "value_bytes": options.value_bytes,
            "value_entropy_percent": options.value_entropy,
            "threads": options.threads,
            "sequential_percent": options.sequential_percent,
            "durability": match options.durability {
                DurabilityChoice::Buffered => "buffered",
                DurabilityChoice::Sync => "sync",
            },
            "scan_length": options.scan_length,
            "batch": options.batch,
            "load_batch": options.load_batch,
            "latency_every": options.latency_every,
            "settled": !options.no_settle,
            "seed": options.seed,
        },
        "workloads": results.iter().map(workload_json).collect::<Vec<_>>(),
    })
}

fn workload_json(result: &WorkloadResult) -> Value {
    let latency: serde_json::Map<String, Value> = sorted(result)
        .into_iter()
        .map(|(operation, histogram)| (operation.name().to_string(), histogram_json(histogram)))
        .collect();
    let throttled = result.after.throttled.saturating_sub(result.before.throttled);
    let disk_bytes: u64 = result.after.keyspaces.iter().map(|keyspace| keyspace.disk_bytes).sum();
    let live_bytes: u64 = result.after.keyspaces.iter().map(|keyspace| keyspace.live_bytes).sum();
    json!({
        "name": result.name,
        "distribution": result.distribution.name(),
        "operations": result.measured.operations,
        "seconds": result.elapsed.as_secs_f64(),
        "settling_seconds": result.settling.as_secs_f64(),
        "operations_per_second": result.operations_per_second(),
        "processor_seconds": result.processor.as_secs_f64(),
        "processor_seconds_settled": result.processor_settled.as_secs_f64(),
        "processor_microseconds_per_operation":
            result.processor_nanoseconds_per_operation(result.processor) / 1e3,
        "processor_microseconds_per_operation_settled":
            result.processor_nanoseconds_per_operation(result.processor_settled) / 1e3,
        "latency": latency,
        "pairs_scanned": result.measured.pairs_scanned,
        "missing": result.measured.missing,
        "wrong": result.measured.wrong,
        "user_written_bytes": result.user_bytes_written(),
        "user_read_bytes": result.user_bytes_read(),
        "write_amplification": result.write_amplification(),
        "write_amplification_with_journal": result.write_amplification_with_journal(),
        "read_amplification": ratio(result.disk_read_bytes, result.user_bytes_read()),
        "space_amplification": result.after.space_amplification(),
        "disk_bytes": disk_bytes,
        "live_bytes": live_bytes,
        "pages_per_get": result.pages_per_get(),
        "process_read_bytes": result.disk_read_bytes,
        "process_written_bytes": result.disk_written_bytes,
        "journal": traffic_json(result.traffic(|s| s.journal)),
        "flush": traffic_json(result.traffic(|s| s.flush)),
        "compaction": traffic_json(result.traffic(|s| s.compaction)),
        "manifest": traffic_json(result.traffic(|s| s.manifest)),
        "throttled_seconds": throttled.as_secs_f64(),
        "throttle_histogram": throttle_json(result.throttle_histogram()),
        "resident_bytes_sampled_max": result.resident_bytes_sampled_max,
        "resident_bytes_peak": result.resident_bytes_peak,
    })
}

fn histogram_json(histogram: &Histogram<u64>) -> Value {
    let mut out = serde_json::Map::new();
    out.insert("count".to_string(), json!(histogram.len()));
    out.insert("mean_nanoseconds".to_string(), json!(histogram.mean()));
    for (name, percentile) in PERCENTILES {
        let value = histogram.value_at_percentile(percentile);
        out.insert(format!("{name}_nanoseconds"), json!(value));
    }
    out.insert("max_nanoseconds".to_string(), json!(histogram.max()));
    Value::Object(out)
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

/// The store's own statistics.
pub(crate) fn statistics_json(statistics: &Statistics) -> Value {
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
        "cache_hits_leaf": statistics.cache_hits_leaf,
        "cache_hits_index": statistics.cache_hits_index,
        "cache_hits_filter": statistics.cache_hits_filter,
        "cache_misses": statistics.cache_misses,
        "cache_evictions": statistics.cache_evictions,
        "filter_probes": statistics.filter_probes,
        "filter_false_positives": statistics.filter_false_positives,
        "memory_memtables_bytes": statistics.memory_memtables,
        "memory_cache_bytes": statistics.memory_cache,
        "memory_trees_bytes": statistics.memory_trees,
        "memory_iterators_bytes": statistics.memory_iterators,
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
