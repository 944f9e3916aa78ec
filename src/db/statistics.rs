//! [`Statistics`]: counters and gauges of a store, as a struct and as Prometheus text.

use std::fmt::Write as _;
use std::time::Duration;

use crate::base::counter::LatencyHistogram;
use crate::base::sync::plain::Ordering;
use crate::store::open_iterators::ITERATOR_BYTES;
use crate::store::store::Store;

/// Latencies of one kind of operation, over a sample of the operations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatencySummary {
    /// Number of operations measured. `Statistics::gets` and `Statistics::commits` count all operations.
    pub samples: u64,
    /// Mean latency.
    pub mean: Duration,
    /// Median latency.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// Maximum latency.
    pub max: Duration,
}

/// File traffic of one purpose: journal, manifest, flush or compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Number of jobs (flush, compaction), records (journal) or edits (manifest).
    pub count: u64,
}

/// Gauges and counters of one keyspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyspaceStatistics {
    /// The keyspace's name.
    pub name: String,
    /// The tree kind.
    pub kind: String,
    /// Number of entries in tables. Includes superseded versions and tombstones, so it is not the number
    /// of keys.
    pub table_entries: u64,
    /// Number of entries in memtables, including superseded versions and tombstones.
    pub memtable_entries: u64,
    /// Number of tables in the current version of the tree.
    pub tables: u64,
    /// Size of the keyspace's files on disk, in bytes.
    pub disk_bytes: u64,
    /// Estimated size of the files in bytes if they held only live pairs, freshly compacted. Within 10%.
    pub live_bytes: u64,
    /// Estimated number of keys that have a value. Within 10% once the keyspace has been flushed. For
    /// memtables, the share of new keys is assumed to be that of earlier entries.
    pub keys_estimate: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Number of memtables that are frozen and not yet part of the tree.
    pub memtables_frozen: u64,
    /// Bytes that pending compactions would read.
    pub compaction_pending_bytes: u64,
    /// Number of panics of the merge operator.
    pub operator_panics: u64,
    /// Number of range deletes of which tables or memtables may still hold what they delete. Until that has been dropped, the
    /// estimates count it as live.
    pub range_deletes: u64,
}

/// Counters and gauges of a store. Counters start at zero when the store is opened; gauges have the
/// current value.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// Point reads.
    pub gets: u64,
    /// Point reads that found nothing.
    pub gets_absent: u64,
    /// Keys requested by `multi_get`.
    pub multi_get_keys: u64,
    /// Entries written (puts, deletes, merges).
    pub writes: u64,
    /// Commits.
    pub commits: u64,
    /// Commits with `Durability::Sync`.
    pub commits_sync: u64,
    /// Iterators opened.
    pub iterators: u64,
    /// Bytes of keys and values written by the user.
    pub user_bytes_written: u64,
    /// Bytes of keys and values read by the user.
    pub user_bytes_read: u64,
    /// Latency of point reads.
    pub get_latency: LatencySummary,
    /// Latency of commits.
    pub commit_latency: LatencySummary,
    /// Journal traffic; `count` is the number of records.
    pub journal: Traffic,
    /// Traffic of flushes; `count` is the number of flushes. `written_bytes` includes large values, which are
    /// written to blob files before they are committed.
    pub flush: Traffic,
    /// Traffic of compactions; `count` is their number.
    pub compaction: Traffic,
    /// Manifest traffic; `count` is the number of edits.
    pub manifest: Traffic,
    /// Pages that point reads and iterators read from disk.
    pub pages_read: u64,
    /// Deleted entries that iterators stepped over: tombstones, and what they hide.
    pub dead_entries_read: u64,
    /// Ranges without a pair that iterators skipped as a whole, since an earlier one had stepped over them.
    pub gaps_skipped: u64,
    /// Cache hits for leaf pages.
    pub cache_hits_leaf: u64,
    /// Cache hits for index pages.
    pub cache_hits_index: u64,
    /// Cache hits for filter pages.
    pub cache_hits_filter: u64,
    /// Cache hits for values in blob files.
    pub cache_hits_value: u64,
    /// Point reads answered by the row cache.
    pub cache_hits_row: u64,
    /// Page cache misses.
    pub cache_misses: u64,
    /// Page cache evictions.
    pub cache_evictions: u64,
    /// Probes of maplets and table filters.
    pub filter_probes: u64,
    /// Branches named by a maplet that did not hold the key.
    pub filter_false_positives: u64,
    /// Memory of memtables, in bytes.
    pub memory_memtables: u64,
    /// Memory of the page cache and the row cache, in bytes.
    pub memory_cache: u64,
    /// Memory of the row cache, in bytes.
    pub memory_row_cache: u64,
    /// Memory of values that [`Slice`](crate::Slice)s keep after the cache has evicted them, in bytes. It is not a part of
    /// the budget.
    pub memory_kept: u64,
    /// Memory of trunks, table handles and remembered gaps, and what mapped indexes may have, in bytes (estimate).
    pub memory_trees: u64,
    /// Memory of open iterators including their cursors, in bytes.
    pub memory_iterators: u64,
    /// Memory of the writes and read sets of open transactions, in bytes.
    pub memory_transactions: u64,
    /// Memory of read-ahead buffers, in bytes.
    pub memory_read_ahead: u64,
    /// Memory of freed memtables that is kept for later ones, in bytes.
    pub memory_idle: u64,
    /// Memory limit of background threads for buffers, unwritten output and lists of keys, in bytes. 0 while the page cache
    /// has it.
    pub memory_jobs: u64,
    /// Memory limit of the journal's mapped segments, current and prepared, in bytes.
    pub memory_journal: u64,
    /// The memory budget, in bytes.
    pub memory_budget: u64,
    /// Journal bytes on disk that are not yet retired.
    pub journal_live_bytes: u64,
    /// Total delay of writers by the throttle.
    pub throttled: Duration,
    /// Number of commits by delay: up to 0.1, 1, 10, 100, 1000 ms, and longer.
    pub throttle_histogram: [u64; 6],
    /// Snapshots held.
    pub snapshots: u64,
    /// Iterators held.
    pub iterators_held: u64,
    /// Data files now open, of all stores that share a file system.
    pub open_files: u64,
    /// Largest number of data files kept open; 0 if there is no limit.
    pub open_files_max: u64,
    /// Number of times a data file was reopened after its descriptor had been closed for another file.
    pub files_reopened: u64,
    /// Panics of the event listener.
    pub listener_panics: u64,
    /// The message of the listener's first panic.
    pub listener_first_panic: Option<String>,
    /// Events dropped because the listener's queue was full.
    pub events_lost: u64,
    /// Statistics of each keyspace.
    pub keyspaces: Vec<KeyspaceStatistics>,
}

impl Statistics {
    /// Returns the write amplification without the journal: bytes written by flushes, compactions and
    /// the manifest per user byte.
    pub fn write_amplification(&self) -> f64 {
        let written =
            self.flush.written_bytes + self.compaction.written_bytes + self.manifest.written_bytes;
        ratio(written, self.user_bytes_written)
    }

    /// Returns the write amplification including the journal.
    pub fn write_amplification_with_journal(&self) -> f64 {
        self.write_amplification() + ratio(self.journal.written_bytes, self.user_bytes_written)
    }

    /// Returns the total memory accounted for, in bytes. Does not include the program, thread stacks and
    /// allocator overhead. Background threads and the journal count with their limits.
    pub fn memory_total(&self) -> u64 {
        self.memory_memtables
            + self.memory_idle
            + self.memory_cache
            + self.memory_trees
            + self.memory_iterators
            + self.memory_transactions
            + self.memory_read_ahead
            + self.memory_jobs
            + self.memory_journal
    }

    /// Returns the pages read from disk per key requested by point reads.
    pub fn pages_per_get(&self) -> f64 {
        ratio(self.pages_read, self.gets + self.multi_get_keys)
    }

    /// Returns the space amplification: disk bytes of all keyspaces per estimated live byte.
    pub fn space_amplification(&self) -> f64 {
        let disk: u64 = self.keyspaces.iter().map(|k| k.disk_bytes).sum();
        let live: u64 = self.keyspaces.iter().map(|k| k.live_bytes).sum();
        ratio(disk, live)
    }

    /// Returns all statistics in the Prometheus text format.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        let counters: [(&str, u64); 25] = [
            ("gets", self.gets),
            ("gets_absent", self.gets_absent),
            ("multi_get_keys", self.multi_get_keys),
            ("writes", self.writes),
            ("commits", self.commits),
            ("commits_sync", self.commits_sync),
            ("iterators", self.iterators),
            ("user_written_bytes", self.user_bytes_written),
            ("user_read_bytes", self.user_bytes_read),
            ("pages_read", self.pages_read),
            ("dead_entries_read", self.dead_entries_read),
            ("gaps_skipped", self.gaps_skipped),
            ("cache_hits_leaf", self.cache_hits_leaf),
            ("cache_hits_index", self.cache_hits_index),
            ("cache_hits_filter", self.cache_hits_filter),
            ("cache_hits_value", self.cache_hits_value),
            ("cache_hits_row", self.cache_hits_row),
            ("cache_misses", self.cache_misses),
            ("cache_evictions", self.cache_evictions),
            ("filter_probes", self.filter_probes),
            ("filter_false_positives", self.filter_false_positives),
            ("files_reopened", self.files_reopened),
            ("listener_panics", self.listener_panics),
            ("events_lost", self.events_lost),
            ("throttled_microseconds", self.throttled.as_micros() as u64),
        ];
        for (name, value) in counters {
            let _ = writeln!(out, "# TYPE spinney_{name}_total counter");
            let _ = writeln!(out, "spinney_{name}_total {value}");
        }
        let purposes = [
            ("journal", self.journal),
            ("flush", self.flush),
            ("compaction", self.compaction),
            ("manifest", self.manifest),
        ];
        for direction in ["read", "written"] {
            let _ = writeln!(out, "# TYPE spinney_{direction}_bytes_total counter");
            for (purpose, traffic) in purposes {
                let bytes =
                    if direction == "read" { traffic.read_bytes } else { traffic.written_bytes };
                let _ = writeln!(
                    out,
                    "spinney_{direction}_bytes_total{{purpose=\"{purpose}\"}} {bytes}"
                );
            }
        }
        let gauges: [(&str, u64); 17] = [
            ("memory_memtables_bytes", self.memory_memtables),
            ("memory_cache_bytes", self.memory_cache),
            ("memory_row_cache_bytes", self.memory_row_cache),
            ("memory_kept_bytes", self.memory_kept),
            ("memory_trees_bytes", self.memory_trees),
            ("memory_iterators_bytes", self.memory_iterators),
            ("memory_transactions_bytes", self.memory_transactions),
            ("memory_read_ahead_bytes", self.memory_read_ahead),
            ("memory_idle_bytes", self.memory_idle),
            ("memory_jobs_bytes", self.memory_jobs),
            ("memory_journal_bytes", self.memory_journal),
            ("memory_budget_bytes", self.memory_budget),
            ("journal_live_bytes", self.journal_live_bytes),
            ("snapshots", self.snapshots),
            ("iterators_held", self.iterators_held),
            ("open_files", self.open_files),
            ("open_files_max", self.open_files_max),
        ];
        for (name, value) in gauges {
            let _ = writeln!(out, "# TYPE spinney_{name} gauge");
            let _ = writeln!(out, "spinney_{name} {value}");
        }
        for (name, latency) in [("get", &self.get_latency), ("commit", &self.commit_latency)] {
            // A sample. `spinney_gets_total` and `spinney_commits_total` count all operations.
            let name = format!("spinney_{name}_sampled_seconds");
            let _ = writeln!(out, "# TYPE {name} summary");
            for (quantile, value) in [
                ("0.5", latency.p50),
                ("0.99", latency.p99),
                ("0.999", latency.p999),
                ("1", latency.max),
            ] {
                let seconds = value.as_secs_f64();
                let _ = writeln!(out, "{name}{{quantile=\"{quantile}\"}} {seconds}");
            }
            let sum = latency.mean.as_secs_f64() * latency.samples as f64;
            let _ = writeln!(out, "{name}_sum {sum}");
            let _ = writeln!(out, "{name}_count {}", latency.samples);
        }
        let _ = writeln!(out, "# TYPE spinney_throttle_seconds histogram");
        let mut cumulative = 0;
        for (bound, count) in
            ["0.0001", "0.001", "0.01", "0.1", "1", "+Inf"].iter().zip(self.throttle_histogram)
        {
            cumulative += count;
            let _ = writeln!(out, "spinney_throttle_seconds_bucket{{le=\"{bound}\"}} {cumulative}");
        }
        let _ = writeln!(out, "spinney_throttle_seconds_sum {}", self.throttled.as_secs_f64());
        let _ = writeln!(out, "spinney_throttle_seconds_count {cumulative}");
        let by_keyspace: [(&str, KeyspaceGauge); 10] = [
            ("table_entries", |k| k.table_entries),
            ("memtable_entries", |k| k.memtable_entries),
            ("tables", |k| k.tables),
            ("disk_bytes", |k| k.disk_bytes),
            ("live_bytes", |k| k.live_bytes),
            ("keys_estimate", |k| k.keys_estimate),
            ("memtable_bytes", |k| k.memtable_bytes),
            ("memtables_frozen", |k| k.memtables_frozen),
            ("compaction_pending_bytes", |k| k.compaction_pending_bytes),
            ("operator_panics", |k| k.operator_panics),
        ];
        for (name, value) in by_keyspace {
            let _ = writeln!(out, "# TYPE spinney_keyspace_{name} gauge");
            for keyspace in &self.keyspaces {
                let escaped = keyspace.name.replace('\\', "\\\\").replace('"', "\\\"");
                let escaped = escaped.replace('\n', "\\n");
                let value = value(keyspace);
                let _ = writeln!(out, "spinney_keyspace_{name}{{keyspace=\"{escaped}\"}} {value}");
            }
        }
        out
    }
}

/// Reads one gauge of a keyspace.
type KeyspaceGauge = fn(&KeyspaceStatistics) -> u64;

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Store {
    /// Reads all counters and gauges.
    pub(crate) fn statistics(&self) -> Statistics {
        let counters = &self.counters;
        let [commits, writes, user_bytes_written] = counters.commits();
        let journal = self.journal.statistics();
        let cache = self.cache.statistics();
        let throttle = self.throttle.statistics();
        let open_files = self.vfs.open_files();
        let events = self.events.as_ref().map(|events| events.deliveries()).unwrap_or_default();
        let mut statistics = Statistics {
            open_files: open_files.open,
            open_files_max: open_files.max,
            files_reopened: open_files.reopened,
            listener_panics: events.panics,
            listener_first_panic: events.first_panic,
            events_lost: events.lost,
            gets: counters.gets.sum(),
            gets_absent: counters.gets_absent.sum(),
            multi_get_keys: counters.multi_get_keys.sum(),
            writes,
            commits,
            commits_sync: counters.commits_sync.sum(),
            iterators: counters.iterators.sum(),
            user_bytes_written,
            user_bytes_read: counters.user_bytes_read.sum(),
            get_latency: latency(&counters.get_latency),
            commit_latency: latency(&counters.commit_latency),
            journal: Traffic {
                read_bytes: self.recovery.bytes_replayed,
                written_bytes: journal.bytes_appended,
                count: journal.records,
            },
            manifest: Traffic {
                read_bytes: 0,
                written_bytes: self.manifest.bytes_written(),
                count: self.manifest.edits_submitted(),
            },
            pages_read: counters.pages_read.sum(),
            dead_entries_read: counters.dead_entries.sum(),
            gaps_skipped: counters.gaps_skipped.sum(),
            cache_hits_leaf: cache.hits_leaf,
            cache_hits_index: cache.hits_index,
            cache_hits_filter: cache.hits_filter,
            cache_hits_value: cache.hits_value,
            cache_hits_row: counters.row_cache_hits.sum(),
            cache_misses: cache.misses,
            cache_evictions: cache.evictions,
            memory_memtables: self.pool.bytes_in_use() as u64,
            memory_cache: cache.bytes,
            memory_row_cache: cache.row_cache_bytes,
            memory_kept: cache.left_bytes,
            memory_budget: self.sizes.memory_budget,
            journal_live_bytes: self.journal.bytes_live(),
            throttled: throttle.total,
            throttle_histogram: throttle.histogram,
            memory_jobs: self.jobs_bytes(),
            memory_journal: self.sizes.segment_bytes / 4 * 7 * self.journal.shard_count() as u64,
            memory_read_ahead: self.files.read_ahead.bytes_used() as u64,
            memory_idle: self.pool.bytes_retained() as u64,
            memory_iterators: self.open_iterators.bytes()
                + self.open_iterators.held() * ITERATOR_BYTES,
            memory_transactions: self.transaction_memory.bytes(),
            snapshots: self.snapshots.snapshots(),
            iterators_held: self.open_iterators.held(),
            ..Statistics::default()
        };
        statistics.flush.written_bytes += counters.blob_direct_bytes.sum();
        for keyspace in self.all_keyspaces() {
            let (read, state) = keyspace.with_tree_state();
            let trees = &keyspace.counters;
            statistics.flush.written_bytes += trees.flush_written_bytes.load(Ordering::Relaxed);
            statistics.flush.count += trees.flushes.load(Ordering::Relaxed);
            statistics.compaction.read_bytes += trees.compaction_read_bytes.load(Ordering::Relaxed);
            statistics.compaction.written_bytes +=
                trees.compaction_written_bytes.load(Ordering::Relaxed);
            statistics.compaction.count += trees.compactions.load(Ordering::Relaxed);
            statistics.filter_probes += trees.filter_probes();
            statistics.filter_false_positives += trees.filter_false_positives();
            statistics.memory_trees +=
                state.memory_bytes + keyspace.gaps.memory_bytes() + keyspace.range_deletes_bytes();
            let memtables = || read.frozen.iter().chain([&read.active]);
            let memtable_entries = memtables().map(|memtable| memtable.memtable.len() as u64).sum();
            let new_keys = memtable_entries as f64 * (1.0 - state.superseding_share);
            statistics.keyspaces.push(KeyspaceStatistics {
                name: keyspace.name.clone(),
                kind: keyspace.options().kind().to_string(),
                table_entries: state.entries,
                tables: state.tables,
                disk_bytes: state.disk_bytes,
                live_bytes: state.live_bytes,
                memtable_entries,
                keys_estimate: state.live_keys + new_keys as u64,
                memtable_bytes: memtables().map(|memtable| memtable.bytes()).sum(),
                memtables_frozen: read.frozen.len() as u64,
                compaction_pending_bytes: state.compaction_pending_bytes,
                operator_panics: keyspace.operator.as_ref().map_or(0, |it| it.panics()),
                range_deletes: read.range_deletes() as u64,
            });
        }
        statistics
    }
}

fn latency(histogram: &LatencyHistogram) -> LatencySummary {
    let snapshot = histogram.snapshot();
    let percentile = |percent| Duration::from_nanos(snapshot.percentile(percent));
    LatencySummary {
        samples: snapshot.count(),
        mean: Duration::from_nanos(snapshot.sum() / snapshot.count().max(1)),
        p50: percentile(50.0),
        p99: percentile(99.0),
        p999: percentile(99.9),
        max: Duration::from_nanos(snapshot.max()),
    }
}
