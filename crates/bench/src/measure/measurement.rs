//! The figures of one engine, one workload and one round, under the names that the JSON has.
//!
//! Invariants:
//! 1. Names end in their unit, unless they count something; a name keeps its meaning for good.
//! 2. A figure that could not be measured is absent, never 0.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::disk::DeviceCounters;
use super::meter::Reading;
use super::watch::Watched;
use crate::workload::measured::Measured;

/// Figures of one kind of operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub operation: String,
    pub count: u64,
    pub mean_nanoseconds: f64,
    pub p50_nanoseconds: u64,
    pub p99_nanoseconds: u64,
    pub p999_nanoseconds: u64,
    pub p9999_nanoseconds: u64,
    pub max_nanoseconds: u64,
}

/// One second of the run, from its first operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Second {
    pub operations: u64,
    pub latency_max_nanoseconds: u64,
}

/// All figures. `docs/benchmarks.md` explains each.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Measurement {
    pub engine: String,
    pub workload: String,
    pub round: u64,
    /// The failure that ended the engine, if there was one; all other figures are then missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    pub threads: u64,
    pub operations: u64,
    pub seconds: f64,
    pub settle_seconds: f64,
    pub operations_per_second: f64,
    pub operations_per_second_settled: f64,
    pub processor_microseconds_per_operation: f64,
    pub processor_user_microseconds_per_operation: f64,
    pub processor_system_microseconds_per_operation: f64,
    pub pairs_scanned: u64,
    pub pairs_per_second: f64,
    pub user_bytes_written: u64,
    pub user_bytes_read: u64,
    pub disk_bytes_written: u64,
    pub disk_bytes_read: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_written_per_user_byte: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_read_per_user_byte: Option<f64>,
    pub disk_bytes_read_per_operation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_reads_per_operation: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_writes_per_operation: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes_peak: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_bytes_peak: Option<u64>,
    pub records: u64,
    pub space_bytes: u64,
    pub space_bytes_max: u64,
    pub space_amplification: f64,
    pub space_amplification_max: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer_operations_per_second: Option<f64>,
    pub latency_mean_nanoseconds: f64,
    pub latency_p50_nanoseconds: u64,
    pub latency_p99_nanoseconds: u64,
    pub latency_p999_nanoseconds: u64,
    pub latency_p9999_nanoseconds: u64,
    pub latency_max_nanoseconds: u64,
    pub missing: u64,
    pub wrong: u64,
    #[serde(default)]
    pub latencies: Vec<Latency>,
    #[serde(default)]
    pub timeline: Vec<Second>,
    #[serde(default)]
    pub space_timeline_bytes: Vec<u64>,
}

/// The operating system's counters at one moment.
#[derive(Debug, Clone)]
pub struct Readings {
    process: Reading,
    device: Option<DeviceCounters>,
}

impl Readings {
    /// Now, for a store in this directory.
    pub fn now(dir: &Path) -> Readings {
        Readings { device: DeviceCounters::of(dir), process: Reading::now() }
    }
}

fn per(part: f64, whole: u64) -> f64 {
    part / whole.max(1) as f64
}

impl Measurement {
    /// The figures that the threads counted.
    pub fn new(engine: &str, workload: &str, threads: usize, measured: &Measured) -> Measurement {
        let latency = |operation: &str, histogram: &hdrhistogram::Histogram<u64>| Latency {
            operation: operation.to_string(),
            count: histogram.len(),
            mean_nanoseconds: histogram.mean(),
            p50_nanoseconds: histogram.value_at_percentile(50.0),
            p99_nanoseconds: histogram.value_at_percentile(99.0),
            p999_nanoseconds: histogram.value_at_percentile(99.9),
            p9999_nanoseconds: histogram.value_at_percentile(99.99),
            max_nanoseconds: histogram.max(),
        };
        let all = latency("all", &measured.all_latencies());
        let mut latencies: Vec<Latency> =
            measured.latencies.iter().map(|(kind, found)| latency(kind.name(), found)).collect();
        latencies.sort_by(|a, b| a.operation.cmp(&b.operation));
        Measurement {
            engine: engine.to_string(),
            workload: workload.to_string(),
            threads: threads as u64,
            operations: measured.operations,
            pairs_scanned: measured.pairs_scanned,
            user_bytes_read: measured.user_bytes_read,
            latency_mean_nanoseconds: all.mean_nanoseconds,
            latency_p50_nanoseconds: all.p50_nanoseconds,
            latency_p99_nanoseconds: all.p99_nanoseconds,
            latency_p999_nanoseconds: all.p999_nanoseconds,
            latency_p9999_nanoseconds: all.p9999_nanoseconds,
            latency_max_nanoseconds: all.max_nanoseconds,
            missing: measured.missing,
            wrong: measured.wrong,
            latencies,
            timeline: measured
                .timeline
                .iter()
                .map(|moment| Second {
                    operations: moment.operations,
                    latency_max_nanoseconds: moment.nanoseconds_max,
                })
                .collect(),
            ..Measurement::default()
        }
    }

    /// The measurement of an engine that died.
    pub fn failure(engine: &str, workload: &str, what: String) -> Measurement {
        Measurement {
            engine: engine.to_string(),
            workload: workload.to_string(),
            failed: Some(what),
            ..Measurement::default()
        }
    }

    /// Adds the operating system's counters: `begun`, `worked` when the last operation was done, `settled`
    /// when background work was.
    pub fn set_readings(
        &mut self,
        measured: &Measured,
        writer: Option<&Measured>,
        begun: &Readings,
        worked: &Readings,
        settled: &Readings,
    ) {
        let (from, to) = (&begun.process, &settled.process);
        let operations = measured.operations;
        self.seconds = (worked.process.at - from.at).as_secs_f64();
        self.settle_seconds = (to.at - worked.process.at).as_secs_f64();
        self.operations_per_second = operations as f64 / self.seconds.max(1e-9);
        self.operations_per_second_settled =
            operations as f64 / (self.seconds + self.settle_seconds).max(1e-9);
        self.pairs_per_second = measured.pairs_scanned as f64 / self.seconds.max(1e-9);
        let processor = to.processor.saturating_sub(from.processor).as_secs_f64() * 1e6;
        let system = to.processor_system.saturating_sub(from.processor_system).as_secs_f64() * 1e6;
        self.processor_microseconds_per_operation = per(processor, operations);
        self.processor_system_microseconds_per_operation = per(system.min(processor), operations);
        self.processor_user_microseconds_per_operation =
            per((processor - system).max(0.0), operations);
        self.user_bytes_written =
            measured.user_bytes_written + writer.map_or(0, |writer| writer.user_bytes_written);
        self.disk_bytes_written = to.disk_written_bytes.saturating_sub(from.disk_written_bytes);
        self.disk_bytes_read = to.disk_read_bytes.saturating_sub(from.disk_read_bytes);
        let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        self.bytes_written_per_user_byte = ratio(self.disk_bytes_written, self.user_bytes_written);
        self.bytes_read_per_user_byte = ratio(self.disk_bytes_read, self.user_bytes_read);
        self.disk_bytes_read_per_operation = per(self.disk_bytes_read as f64, operations);
        if let (Some(from), Some(to)) = (&begun.device, &settled.device) {
            let of = |from: u64, to: u64| Some(per(to.saturating_sub(from) as f64, operations));
            self.device_reads_per_operation = of(from.reads, to.reads);
            self.device_writes_per_operation = of(from.writes, to.writes);
        }
        self.writer_operations_per_second =
            writer.map(|writer| writer.operations as f64 / self.seconds.max(1e-9));
    }

    /// Adds the observed use of memory and disk.
    pub fn set_watched(&mut self, watched: &Watched, records: u64, pair_bytes: u64) {
        self.records = records;
        self.resident_bytes_peak = watched.resident_bytes_peak;
        self.cgroup_bytes_peak = watched.cgroup_bytes_peak;
        self.space_bytes = watched.space_bytes;
        self.space_bytes_max = watched.space_bytes_max;
        let live = (records * pair_bytes).max(1) as f64;
        self.space_amplification = watched.space_bytes as f64 / live;
        self.space_amplification_max = watched.space_bytes_max as f64 / live;
        self.space_timeline_bytes.clone_from(&watched.space_timeline_bytes);
    }
}
