//! The results as one JSON document.
//!
//! Invariants:
//! 1. `rounds` has every measurement as it was; `results` has medians over the rounds in which the engine
//!    did not fail, under the same names, with the least and the most in `spread`.
//! 2. A ratio is the engine's median over the peer's, whatever is better.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::Found;
use super::options::Run;
use crate::data::distribution::Distribution;
use crate::measure::device::DeviceRates;
use crate::measure::measurement::Measurement;
use crate::workload::{Operation, Shape, Workload};

/// The fields that are compared with each peer's.
pub const COMPARED: [&str; 14] = [
    "operations_per_second",
    "operations_per_second_settled",
    "processor_microseconds_per_operation",
    "processor_user_microseconds_per_operation",
    "bytes_written_per_user_byte",
    "disk_bytes_read_per_operation",
    "latency_p50_nanoseconds",
    "latency_p99_nanoseconds",
    "latency_p999_nanoseconds",
    "latency_p9999_nanoseconds",
    "latency_max_nanoseconds",
    "resident_bytes_peak",
    "space_bytes",
    "open_seconds",
];

/// Fields of `rounds` that have no median.
const NOT_SUMMED_UP: [&str; 7] =
    ["engine", "workload", "round", "failed", "latencies", "timeline", "space_timeline_bytes"];

/// The whole document.
pub fn document(run: &Run, found: &Found) -> Value {
    let device = DeviceRates::median(&found.device);
    let mut results: Vec<Value> = Vec::new();
    for workload in &run.workloads {
        for engine in &run.engines {
            let name = engine.to_string();
            let of =
                |found: &&Measurement| found.engine == name && found.workload == workload.name();
            let all: Vec<&Measurement> = found.measurements.iter().filter(of).collect();
            let mut found = result(&name, workload, &all, &device);
            found["memory_bytes"] = json!(run.plan.memory_bytes);
            results.push(found);
        }
    }
    let ratios: Vec<Value> = results.iter().map(|result| ratios(result, &results)).collect();
    for (result, ratios) in results.iter_mut().zip(ratios) {
        result["ratios"] = ratios;
    }
    let (limit, limit_missing) = match &found.limit {
        Some(Ok(limit)) => (Some(*limit), None),
        Some(Err(why)) => (None, Some(why.clone())),
        None => (None, None),
    };
    let plan = &run.plan;
    json!({
        "format": 1,
        "spinney_version": env!("CARGO_PKG_VERSION"),
        "date": date(SystemTime::now()),
        "command": command(std::env::args().skip(1)),
        "machine": machine(),
        "configuration": {
            "engines": run.engines.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "workloads": run.workload_names(),
            "records": plan.records,
            "apart": run.apart,
            "key_bytes": plan.key_bytes,
            "value_bytes": plan.value_bytes,
            "value_entropy_percent": plan.value_entropy_percent,
            "compression": plan.compression,
            "memory_bytes": plan.memory_bytes,
            "memtable_bytes": plan.memtable_bytes,
            "limit_bytes": limit,
            "limit_missing": limit_missing,
            "threads": plan.threads,
            "operations": plan.operations,
            "seconds_max": plan.seconds_max,
            "load_seconds_max": plan.load_seconds_max,
            "writes_per_second": plan.writes_per_second,
            "rounds": run.rounds,
            "verify": plan.verify,
            "seed": plan.seed,
        },
        "harness": found.overhead,
        "device": if found.device.is_empty() { Value::Null } else { json!(device) },
        "device_rounds": found.device,
        "results": results,
        "rounds": found.measurements,
    })
}

/// Several documents as one; one alone is itself.
pub fn together(documents: &[Value]) -> Value {
    match documents {
        [one] => one.clone(),
        several => json!({ "format": 1, "runs": several }),
    }
}

/// The day, `2026-11-24`, in universal time.
fn date(now: SystemTime) -> String {
    let days = now.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs() / 86_400);
    // Days since 1 March 0000, in eras of 400 years (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let of_era_year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_era_year + of_era_year / 4 - of_era_year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, turned) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{day:02}", era * 400 + of_era_year + turned)
}

/// The command without the options that only name places for results and stores.
fn command(arguments: impl Iterator<Item = String>) -> String {
    const PLACES: [&str; 3] = ["--json", "--plot", "--dir"];
    let mut out = "spinney-bench".to_string();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if !PLACES.contains(&name) {
            out = format!("{out} {argument}");
        } else if name == argument {
            arguments.next();
        }
    }
    out
}

fn machine() -> Value {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
    })
}

/// One engine's medians at one workload.
fn result(engine: &str, workload: &Workload, all: &[&Measurement], device: &DeviceRates) -> Value {
    let mut out = Map::new();
    out.insert("engine".to_string(), json!(engine));
    out.insert("workload".to_string(), json!(workload.name()));
    let failures: Vec<&String> = all.iter().filter_map(|found| found.failed.as_ref()).collect();
    let done: Vec<Value> = all
        .iter()
        .filter(|found| found.failed.is_none())
        .filter_map(|found| serde_json::to_value(found).ok())
        .collect();
    out.insert("rounds".to_string(), json!(done.len()));
    out.insert("failures".to_string(), json!(failures));
    let mut spread = Map::new();
    let names = done.first().and_then(Value::as_object).into_iter().flat_map(|first| first.keys());
    for name in names.filter(|name| !NOT_SUMMED_UP.contains(&name.as_str())) {
        let mut values: Vec<f64> = done.iter().filter_map(|each| each[name].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (values.first(), values.last()) else { continue };
        out.insert(name.clone(), json!(median(&values)));
        spread.insert(name.clone(), json!([least, most]));
    }
    out.insert("spread".to_string(), Value::Object(spread));
    if let Some((limit, share)) = device_share(workload, &out, device) {
        out.insert("device_limit".to_string(), json!(limit));
        out.insert("device_share".to_string(), json!(share));
    }
    Value::Object(out)
}

/// Of sorted values.
fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// What the device could at most have done, and the share of it that was: only for workloads that are
/// nothing but reads of one kind, all records alike: of popular ones the cache answers most.
fn device_share(
    workload: &Workload,
    result: &Map<String, Value>,
    device: &DeviceRates,
) -> Option<(&'static str, f64)> {
    let rate = result.get("operations_per_second")?.as_f64()?;
    let (name, limit, rate) = match (&workload.shape, workload.mix.as_slice()) {
        (Shape::FullScan, _) => {
            let bytes = result.get("user_bytes_read")?.as_f64()?;
            let rate = bytes / result.get("seconds")?.as_f64()?;
            ("sequential_read", device.sequential_read_bytes_per_second, rate)
        }
        (_, [(Operation::Read, 100)])
            if !workload.writer
                && !workload.warm
                && workload.distribution == Distribution::Uniform =>
        {
            let threads = result.get("threads")?.as_f64()? as u64;
            ("random_reads_same_threads", device.random(threads)?, rate)
        }
        (_, [(Operation::MultiGet, 100)]) => {
            ("io_uring_depth_32", device.io_uring_depth_32_reads_per_second?, rate)
        }
        _ => return None,
    };
    (limit > 0.0).then_some((name, rate / limit))
}

/// This engine's medians over each peer's at the same workload.
fn ratios(result: &Value, results: &[Value]) -> Value {
    let mut out = Map::new();
    let peers = results.iter().filter(|peer| {
        peer["workload"] == result["workload"] && peer["engine"] != result["engine"]
    });
    for peer in peers {
        let mut fields = Map::new();
        for name in COMPARED {
            if let (Some(own), Some(other)) = (result[name].as_f64(), peer[name].as_f64())
                && other > 0.0
            {
                fields.insert(name.to_string(), json!(own / other));
            }
        }
        out.insert(peer["engine"].as_str().unwrap_or_default().to_string(), Value::Object(fields));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_have_dates() {
        for (days, text) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (20_781, "2026-11-24"),
            (20_819, "2027-01-01"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(days * 86_400 + 5)), text);
        }
    }

    #[test]
    fn a_command_keeps_no_paths() {
        let text =
            "compare -e spinney --json /tmp/a.json --rounds 1 --plot=/tmp/figures --dir /tmp";
        let command = command(text.split(' ').map(ToString::to_string));
        assert_eq!(command, "spinney-bench compare -e spinney --rounds 1");
    }
}
