//! Which figures a document gives: who is ahead, bars for every workload, and the papers' lines where the workloads for
//! them were run.

use serde_json::Value;

use super::Figure;
use super::summary::summary;
use super::svg::{Axis, Bar, Line, bars, lines};
use super::unit::Unit;

/// Bars: field, title.
const BARS: [(&str, &str); 8] = [
    ("processor_microseconds_per_operation", "Processor time per operation, µs (less is better)"),
    ("bytes_written_per_user_byte", "Bytes written per user byte (less is better)"),
    ("disk_bytes_read_per_operation", "Bytes read per operation (less is better)"),
    ("latency_p50_nanoseconds", "Median latency (less is better)"),
    ("latency_p999_nanoseconds", "99.9% latency (less is better)"),
    ("latency_max_nanoseconds", "Longest latency (less is better)"),
    ("resident_bytes_peak", "Peak resident memory (less is better)"),
    ("space_amplification_max", "Most disk space per byte of live data (less is better)"),
];
/// Workloads whose names end in a number, for a figure over that number.
const BY_NUMBER: [(&str, &str, &str, &str, Axis); 3] = [
    (
        "scan",
        "scan_length",
        "Pairs per second by scan length",
        "pairs_per_second",
        Axis::Logarithmic,
    ),
    (
        "local",
        "local_inserts",
        "Inserts per second by share of ascending keys",
        "operations_per_second",
        Axis::Linear,
    ),
    (
        "multiget",
        "multiget_batch",
        "Keys read per second by batch",
        "operations_per_second",
        Axis::Logarithmic,
    ),
];

pub(super) fn results(document: &Value) -> &[Value] {
    document["results"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn name<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Each value of a field once, in order of appearance.
pub(super) fn distinct(values: &[Value], field: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for value in values {
        let value = name(value, field);
        if !found.iter().any(|known| known == value) {
            found.push(value.to_string());
        }
    }
    found
}

/// Of a document with several sizes: for each workload, lines over the size that differs.
fn by_size(runs: &[Value]) -> Vec<Figure> {
    let of = |run: &Value, field: &str| run["configuration"][field].as_f64().unwrap_or(0.0);
    let differs = |field| runs.windows(2).any(|pair| of(&pair[0], field) != of(&pair[1], field));
    let (what, unit, field, one) = match (differs("memory_bytes"), differs("value_bytes")) {
        (true, _) => ("memory", "MiB of memory", "memory_bytes", f64::from(1 << 20)),
        (_, true) => ("value_size", "bytes of a value", "value_bytes", 1.0),
        _ => ("records", "records", "records", 1.0),
    };
    let mut all = Vec::new();
    for run in runs {
        let size = of(run, field) / one;
        for result in results(run) {
            let mut result = result.clone();
            result["size"] = size.into();
            all.push(result);
        }
    }
    let engines = distinct(&all, "engine");
    let figure = |workload: &String| {
        let file = format!("by_{what}_{}", workload.replace(['@', ':'], "_"));
        let title = format!("{workload}: operations per second by {}", what.replace('_', " "));
        let axis = (unit, Axis::Logarithmic);
        line_figure(&all, &engines, &file, &title, axis, "operations_per_second", |result| {
            result["size"].as_f64().filter(|_| name(result, "workload") == workload)
        })
    };
    distinct(&all, "workload").iter().filter_map(figure).collect()
}

/// All figures.
pub(super) fn all(document: &Value) -> Vec<Figure> {
    if let Some(runs) = document["runs"].as_array() {
        return by_size(runs);
    }
    let results = results(document);
    let (engines, workloads) = (distinct(results, "engine"), distinct(results, "workload"));
    let columns: Vec<_> = engines.iter().map(|engine| vec![engine.clone()]).collect();
    let mut out: Vec<Figure> = summary(document, &columns, &workloads).into_iter().collect();
    for (field, title) in BARS {
        let group = |workload: &String| {
            let bars: Vec<Bar> = results
                .iter()
                .filter(|result| name(result, "workload") == workload)
                .filter_map(|result| bar(result, field))
                .collect();
            (!bars.is_empty()).then(|| (workload.clone(), bars))
        };
        let groups: Vec<_> = workloads.iter().filter_map(group).collect();
        if !groups.is_empty() {
            let svg = bars(title, &engines, &groups);
            out.push(Figure { name: field.to_string(), title: title.to_string(), svg });
        }
    }
    for (prefix, file, title, field, x_axis) in BY_NUMBER {
        let number =
            |result: &Value| name(result, "workload").strip_prefix(prefix)?.parse::<f64>().ok();
        let axis = (prefix_meaning(prefix), x_axis);
        out.extend(line_figure(results, &engines, file, title, axis, field, number));
    }
    for base in workloads.iter().filter_map(|workload| Some(workload.split_once('@')?.0)) {
        let file = format!("threads_{base}");
        if out.iter().any(|figure: &Figure| figure.name == file) {
            continue;
        }
        let number = |result: &Value| {
            let (found, threads) = name(result, "workload").split_once('@')?;
            if found == base { threads.parse::<f64>().ok() } else { None }
        };
        let title = format!("{base}: operations per second by threads");
        let axis = ("threads", Axis::Linear);
        let field = "operations_per_second";
        out.extend(line_figure(results, &engines, &file, &title, axis, field, number));
    }
    out.extend(timelines(document, &engines));
    out
}

fn prefix_meaning(prefix: &str) -> &'static str {
    match prefix {
        "scan" => "pairs a scan",
        "local" => "percent of keys that ascend",
        _ => "keys a batch",
    }
}

fn bar(result: &Value, field: &str) -> Option<Bar> {
    let spread = &result["spread"][field];
    let value = result[field].as_f64()?;
    Some(Bar {
        engine: name(result, "engine").to_string(),
        value,
        spread: spread[0].as_f64().zip(spread[1].as_f64()),
        text: Unit::of_field(field).text(value),
    })
}

/// A figure with a line for each engine, if any has two points.
fn line_figure(
    results: &[Value],
    engines: &[String],
    file: &str,
    title: &str,
    axis: (&str, Axis),
    field: &str,
    number: impl Fn(&Value) -> Option<f64>,
) -> Option<Figure> {
    let line = |engine: &String| {
        let own = results.iter().filter(|result| name(result, "engine") == engine);
        let mut points: Vec<(f64, f64)> =
            own.filter_map(|result| Some((number(result)?, result[field].as_f64()?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (points.len() > 1).then(|| Line { engine: engine.clone(), points })
    };
    let found: Vec<Line> = engines.iter().filter_map(line).collect();
    if found.is_empty() {
        return None;
    }
    let svg = lines(title, axis, ("per second", Axis::Linear, Unit::Plain), engines, &found);
    Some(Figure { name: file.to_string(), title: title.to_string(), svg })
}

/// The seconds of a timeline that were worked through to their end: what is left over behind the last would be
/// drawn as a fall to nothing.
fn whole_seconds<'a>(found: &Value, seconds: &'a [Value]) -> &'a [Value] {
    // Without a duration, only the last can be in parts.
    let whole = match found["seconds"].as_f64() {
        Some(duration) => duration.floor() as usize,
        None => seconds.len().saturating_sub(1),
    };
    &seconds[..whole.min(seconds.len())]
}

/// For each workload that writes: operations and the longest latency, second by second, in the first
/// round.
fn timelines(document: &Value, engines: &[String]) -> Vec<Figure> {
    let rounds = document["rounds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first: Vec<Value> = rounds
        .iter()
        .filter(|found| found["round"] == 1 && found["user_bytes_written"].as_u64() > Some(0))
        .cloned()
        .collect();
    let mut out = Vec::new();
    for workload in distinct(&first, "workload") {
        for (field, file, what, axis) in [
            ("operations", "timeline", "operations in each second", Axis::Linear),
            (
                "latency_max_nanoseconds",
                "timeline_latency",
                "longest latency in each second",
                Axis::Logarithmic,
            ),
        ] {
            let line = |found: &Value| {
                let seconds = found["timeline"].as_array()?;
                let points: Vec<(f64, f64)> = whole_seconds(found, seconds)
                    .iter()
                    .enumerate()
                    .filter_map(|(second, moment)| Some((second as f64, moment[field].as_f64()?)))
                    .collect();
                (points.len() > 1)
                    .then(|| Line { engine: name(found, "engine").to_string(), points })
            };
            let own = first.iter().filter(|found| name(found, "workload") == workload);
            let found: Vec<Line> = own.filter_map(line).collect();
            if found.is_empty() {
                continue;
            }
            let title = format!("{workload}: {what}");
            let y = ("", axis, Unit::of_field(field));
            let svg = lines(&title, ("seconds", Axis::Linear), y, engines, &found);
            let name = format!("{file}_{}", workload.replace(['@', ':'], "_"));
            out.push(Figure { name, title, svg });
        }
    }
    out
}
