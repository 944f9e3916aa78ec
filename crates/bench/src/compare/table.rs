//! The results as tables for people: one for each workload.

use std::fmt::Write as _;

use serde_json::Value;

use spinney_quantity::{bytes, grouped, nanoseconds};

/// All tables of a document, for each size in turn where it has several.
pub fn tables(document: &Value) -> String {
    let mut out = String::new();
    for run in document["runs"].as_array().into_iter().flatten() {
        let configuration = &run["configuration"];
        let _ = writeln!(
            out,
            "\n══ {} records, values of {} bytes, {} of memory {}",
            count(&configuration["records"]),
            count(&configuration["value_bytes"]),
            bytes(configuration["memory_bytes"].as_u64().unwrap_or(0)),
            "═".repeat(100)
        );
        out += &tables(run);
    }
    if document["runs"].is_array() {
        return out;
    }
    let results = document["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut last = "";
    for result in results {
        let workload = result["workload"].as_str().unwrap_or_default();
        if workload != last {
            head(workload, &mut out);
            last = workload;
        }
        line(result, &mut out);
    }
    if let Some(device) = document.get("device").filter(|device| !device.is_null()) {
        let _ = write!(
            out,
            "\nThe device by itself: {}/s in order; random 4 KiB reads/s with",
            bytes(device["sequential_read_bytes_per_second"].as_f64().unwrap_or(0.0) as u64)
        );
        for reads in device["random_reads"].as_array().into_iter().flatten() {
            let _ = write!(
                out,
                " {} threads: {};",
                reads["threads"],
                count(&reads["reads_per_second"])
            );
        }
        let _ = writeln!(
            out,
            " io_uring, depth 32: {}.",
            count(&device["io_uring_depth_32_reads_per_second"])
        );
    }
    let harness = &document["harness"];
    if let (Some(insert), Some(read)) = (
        harness["insert_processor_microseconds"].as_f64(),
        harness["read_processor_microseconds"].as_f64(),
    ) {
        let _ = writeln!(
            out,
            "Of cpu/op, the benchmark itself takes {} of an insert and {} of a read.",
            nanoseconds(insert * 1e3),
            nanoseconds(read * 1e3)
        );
    }
    let limit = &document["configuration"]["limit_bytes"];
    let _ = match limit.as_u64() {
        Some(limit) => writeln!(out, "Memory cgroup: {}.", bytes(limit)),
        None => writeln!(out, "No memory cgroup: engines may have used the machine's page cache."),
    };
    out
}

fn head(workload: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "\n{workload:<22} {:>11} {:>15} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7}",
        "per second",
        "(spread)",
        "cpu/op",
        "user",
        "write×",
        "read/op",
        "p50",
        "p99",
        "p99.9",
        "max",
        "memory",
        "space×",
        "device"
    );
    let _ = writeln!(out, "{}", "─".repeat(152));
}

fn count(value: &Value) -> String {
    value.as_f64().map_or("–".to_string(), |value| grouped(value as u64))
}

fn line(result: &Value, out: &mut String) {
    let engine = result["engine"].as_str().unwrap_or_default();
    if result["rounds"].as_u64() == Some(0) {
        let why = result["failures"][0].as_str().unwrap_or("not run: it had failed before");
        let _ = writeln!(out, "{engine:<22} {why}");
        return;
    }
    let number = |name: &str| result[name].as_f64();
    let text =
        |name: &str, show: &dyn Fn(f64) -> String| number(name).map_or("–".to_string(), show);
    let short = |value: &Value| match value.as_f64().unwrap_or(0.0) {
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value => format!("{value:.0}"),
    };
    let spread = &result["spread"]["operations_per_second"];
    let spread = format!("{}–{}", short(&spread[0]), short(&spread[1]));
    let micros = |value: f64| nanoseconds(value * 1e3);
    let _ = writeln!(
        out,
        "{engine:<22} {:>11} {spread:>15} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7}",
        count(&result["operations_per_second"]),
        text("processor_microseconds_per_operation", &micros),
        text("processor_user_microseconds_per_operation", &micros),
        text("bytes_written_per_user_byte", &|value| format!("{value:.2}")),
        text("disk_bytes_read_per_operation", &|value| bytes(value as u64)),
        text("latency_p50_nanoseconds", &nanoseconds),
        text("latency_p99_nanoseconds", &nanoseconds),
        text("latency_p999_nanoseconds", &nanoseconds),
        text("latency_max_nanoseconds", &nanoseconds),
        text("resident_bytes_peak", &|value| bytes(value as u64)),
        text("space_amplification_max", &|value| format!("{value:.2}")),
        text("device_share", &|value| format!("{:.0}%", value * 100.0)),
    );
    if let Some(seconds) = number("open_seconds") {
        let _ = writeln!(out, "{:<22} open again after kill -9 in {seconds:.3} s", "");
    }
    if let Some(failure) = result["failures"][0].as_str() {
        let _ = writeln!(out, "{:<22} failed in another round: {failure}", "");
    }
}
