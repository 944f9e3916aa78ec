//! Statistics: what users of RocksDB expect, as a typed struct and as Prometheus text.

use std::fmt::Write as _;
use std::time::Duration;

use crate::base::counter::LatencyHistogram;
use crate::base::sync::plain::Ordering;
use crate::store::open_iterators::ITERATOR_BYTES;
use crate::store::store::Store;

/// Latencies of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatencySummary {
    /// How many operations were measured. It is a sample, not their number: see `Statistics::gets` and
    /// `Statistics::commits` for that.
    pub samples: u64,
    /// Their mean.
    pub mean: Duration,
    /// Half were at most this long.
    pub p50: Duration,
    /// 99% were at most this long.
    pub p99: Duration,
    /// 99.9% were at most this long.
    pub p999: Duration,
    /// The longest.
    pub max: Duration,
}

/// Bytes moved for one purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// How many jobs (flushes, compactions) or records (journal, manifest).
    pub count: u64,
}

/// One keyspace's part.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyspaceStatistics {
    /// Its name.
    pub name: String,
    /// Its tree kind.
    pub kind: String,
    /// Entries in tables. Versions that are superseded and tombstones count, so this is not a number of keys.
    pub table_entries: u64,
    /// Entries in memtables, counted likewise: what tables do not hold yet.
    pub memtable_entries: u64,
    /// Tables in the current version.
    pub tables: u64,
    /// Bytes of its files on disk.
    pub disk_bytes: u64,
    /// What its files would take if they held live pairs alone, freshly compacted. An estimate: within 10%.
    pub live_bytes: u64,
    /// How many keys have a value. An estimate: within 10% once the keyspace has been flushed. Entries in memtables
    /// are taken to be of new keys as often as those before them were.
    pub keys_estimate: u64,
    /// Bytes in memtables.
    pub memtable_bytes: u64,
    /// Memtables frozen and not yet part of the tree.
    pub memtables_frozen: u64,
    /// Bytes that pending compactions would read.
    pub compaction_pending_bytes: u64,
    /// How often its merge operator has panicked.
    pub operator_panics: u64,
}

/// Everything the store counts. Counters are since open; gauges are now.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// Point reads.
    pub gets: u64,
    /// Point reads that found nothing.
    pub gets_absent: u64,
    /// Keys asked for by `multi_get`.
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
    /// The journal's traffic; `count` is records.
    pub journal: Traffic,
    /// Packing of memtables.
    pub flush: Traffic,
    /// Compactions.
    pub compaction: Traffic,
    /// The manifest's traffic; `count` is edits.
    pub manifest: Traffic,
    /// Pages that point reads and iterators read from disk.
    pub pages_read: u64,
    /// Page reads answered by the cache, by class.
    pub cache_hits_leaf: u64,
    /// As above, index pages.
    pub cache_hits_index: u64,
    /// As above, filter pages.
    pub cache_hits_filter: u64,
    /// Reads of keys that the row cache answered.
    pub cache_hits_row: u64,
    /// Page reads the cache could not answer.
    pub cache_misses: u64,
    /// Pages evicted.
    pub cache_evictions: u64,
    /// Maplets and filters of tables probed.
    pub filter_probes: u64,
    /// Branches that a maplet named and that did not hold the key.
    pub filter_false_positives: u64,
    /// Memory of memtables.
    pub memory_memtables: u64,
    /// Memory of the page cache and the row cache.
    pub memory_cache: u64,
    /// Memory of the row cache.
    pub memory_row_cache: u64,
    /// Memory of trunks and table handles (estimate).
    pub memory_trees: u64,
    /// Memory of iterators: their cursors, and what each keeps without.
    pub memory_iterators: u64,
    /// Memory of buffers of readers that look ahead.
    pub memory_read_ahead: u64,
    /// Memory that lies idle for later memtables.
    pub memory_idle: u64,
    /// Memory that background threads may use for buffers and for what they are writing.
    pub memory_jobs: u64,
    /// Memory that the journal's mapped segments may take: what is written of the current ones, and of the next
    /// ones what is made ready.
    pub memory_journal: u64,
    /// The budget.
    pub memory_budget: u64,
    /// Journal bytes on disk not yet retired.
    pub journal_live_bytes: u64,
    /// Time that writers were delayed in all.
    pub throttled: Duration,
    /// Delays of single commits: counts of those up to 0.1, 1, 10, 100, 1000 ms and above.
    pub throttle_histogram: [u64; 6],
    /// Snapshots held.
    pub snapshots: u64,
    /// Iterators held.
    pub iterators_held: u64,
    /// Data files that are open now, of all stores that share a file system.
    pub open_files: u64,
    /// At most so many are kept open; 0 where there is no bound.
    pub open_files_max: u64,
    /// How often a data file was opened again since others had needed its descriptor.
    pub files_reopened: u64,
    /// How often the event listener has panicked.
    pub listener_panics: u64,
    /// The message of the listener's first panic.
    pub listener_first_panic: Option<String>,
    /// Events that the listener was not told of, since too many were waiting for it.
    pub events_lost: u64,
    /// Each keyspace.
    pub keyspaces: Vec<KeyspaceStatistics>,
}

impl Statistics {
    /// Bytes written to disk per byte that the user wrote, without the journal.
    pub fn write_amplification(&self) -> f64 {
        let written =
            self.flush.written_bytes + self.compaction.written_bytes + self.manifest.written_bytes;
        ratio(written, self.user_bytes_written)
    }

    /// The same with the journal.
    pub fn write_amplification_with_journal(&self) -> f64 {
        self.write_amplification() + ratio(self.journal.written_bytes, self.user_bytes_written)
    }

    /// All memory that is counted: beside it there are the program, the stacks of its threads and what the allocator
    /// keeps. What background threads and the journal may take counts in full.
    pub fn memory_total(&self) -> u64 {
        self.memory_memtables
            + self.memory_idle
            + self.memory_cache
            + self.memory_trees
            + self.memory_iterators
            + self.memory_read_ahead
            + self.memory_jobs
            + self.memory_journal
    }

    /// Pages read from disk per key asked for by point reads.
    pub fn pages_per_get(&self) -> f64 {
        ratio(self.pages_read, self.gets + self.multi_get_keys)
    }

    /// Disk bytes of all keyspaces per estimated live byte.
    pub fn space_amplification(&self) -> f64 {
        let disk: u64 = self.keyspaces.iter().map(|k| k.disk_bytes).sum();
        let live: u64 = self.keyspaces.iter().map(|k| k.live_bytes).sum();
        ratio(disk, live)
    }

    /// The text format that Prometheus scrapes.
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        let counters: [(&str, u64); 22] = [
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
            ("cache_hits_leaf", self.cache_hits_leaf),
            ("cache_hits_index", self.cache_hits_index),
            ("cache_hits_filter", self.cache_hits_filter),
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
        let gauges: [(&str, u64); 15] = [
            ("memory_memtables_bytes", self.memory_memtables),
            ("memory_cache_bytes", self.memory_cache),
            ("memory_row_cache_bytes", self.memory_row_cache),
            ("memory_trees_bytes", self.memory_trees),
            ("memory_iterators_bytes", self.memory_iterators),
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
            // Of a sample of the operations: `spinney_gets_total` and `spinney_commits_total` count them all.
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

/// Picks one gauge of a keyspace.
type KeyspaceGauge = fn(&KeyspaceStatistics) -> u64;

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Store {
    /// Takes all counters and gauges.
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
            cache_hits_leaf: cache.hits_leaf,
            cache_hits_index: cache.hits_index,
            cache_hits_filter: cache.hits_filter,
            cache_hits_row: counters.row_cache_hits.sum(),
            cache_misses: cache.misses,
            cache_evictions: cache.evictions,
            memory_memtables: self.pool.bytes_in_use() as u64,
            memory_cache: cache.bytes,
            memory_row_cache: cache.row_cache_bytes,
            memory_budget: self.sizes.memory_budget,
            journal_live_bytes: self.journal.bytes_live(),
            throttled: throttle.total,
            throttle_histogram: throttle.histogram,
            memory_jobs: self.sizes.job_bytes() * self.workers as u64,
            memory_journal: self.sizes.segment_bytes / 4 * 7 * self.journal.shard_count() as u64,
            memory_read_ahead: self.files.read_ahead.bytes_used() as u64,
            memory_idle: self.pool.bytes_retained() as u64,
            memory_iterators: self.open_iterators.bytes()
                + self.open_iterators.held() * ITERATOR_BYTES,
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
            statistics.memory_trees += state.memory_bytes;
            let memtables = || read.frozen.iter().chain([&read.active]);
            let memtable_entries = memtables().map(|memtable| memtable.memtable.len() as u64).sum();
            let new_keys = memtable_entries as f64 * (1.0 - state.superseding_share);
            statistics.keyspaces.push(KeyspaceStatistics {
                name: keyspace.name.clone(),
                kind: keyspace.options.kind().to_string(),
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
