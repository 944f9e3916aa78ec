//! A table in Markdown: one quantity in each row, one number in each cell. Of results with several runs (the presets
//! `paper-memory` and `paper-size`), each row of the marker is one row per run, which says what differs in it.

use std::fmt::Write as _;

use serde_json::Value;

use super::marker::{Kind, Marker, Row};
use crate::plot::summary::{Column, best, heading, result, times};
use crate::plot::unit::Unit;
use crate::plot::words;

/// A quantity of a row.
struct Quantity {
    /// Its name in markers.
    name: &'static str,
    field: &'static str,
    /// Its name in tables.
    words: &'static str,
    more_is_better: bool,
    /// Units with their sizes, the smallest first; none for plain numbers.
    units: &'static [(&'static str, f64)],
}

const TIME: &[(&str, f64)] = &[("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
const MEMORY: &[(&str, f64)] = &[("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];

const QUANTITIES: [Quantity; 16] = [
    quantity("rate", "operations_per_second", "", true, &[]),
    quantity(
        "cpu",
        "processor_microseconds_per_operation",
        "processor time per operation",
        false,
        &[("µs", 1.0)],
    ),
    quantity("written", "bytes_written_per_user_byte", "write amplification", false, &[]),
    quantity(
        "read",
        "disk_bytes_read_per_operation",
        "read per operation",
        false,
        &[("bytes", 1.0)],
    ),
    quantity("p50", "latency_p50_nanoseconds", "median latency", false, TIME),
    quantity("p99", "latency_p99_nanoseconds", "p99 latency", false, TIME),
    quantity("p999", "latency_p999_nanoseconds", "p99.9 latency", false, TIME),
    quantity("p9999", "latency_p9999_nanoseconds", "p99.99 latency", false, TIME),
    quantity("max", "latency_max_nanoseconds", "longest latency", false, TIME),
    quantity("memory", "resident_bytes_peak", "peak resident memory", false, MEMORY),
    quantity("cgroup", "cgroup_bytes_peak", "peak memory, page cache included", false, MEMORY),
    quantity("space", "space_amplification", "space amplification", false, &[]),
    quantity("peak-space", "space_amplification_max", "peak space amplification", false, &[]),
    quantity("settle", "settle_seconds", "background work afterwards", false, &[("s", 1.0)]),
    quantity("open", "open_seconds", "opening after `kill -9`", false, &[("s", 1.0)]),
    quantity("records", "records", "records in the store", true, &[]),
];

const fn quantity(
    name: &'static str,
    field: &'static str,
    words: &'static str,
    more_is_better: bool,
    units: &'static [(&'static str, f64)],
) -> Quantity {
    Quantity { name, field, words, more_is_better, units }
}

/// The table with its caption.
pub(super) fn table(document: &Value, marker: &Marker) -> Result<String, String> {
    let compared = marker.columns.len() > 1 && marker.kind != Kind::Choice;
    let mut out = String::from("| workload | unit |");
    for column in &marker.columns {
        let _ = write!(out, " {} |", heading(column));
    }
    out.push_str(if compared { " ratio |\n|---|---|" } else { "\n|---|---|" });
    out.push_str(&"---:|".repeat(marker.columns.len() + usize::from(compared)));
    let runs = runs(document);
    for row in &marker.rows {
        for run in &runs {
            let line = line(run, marker, row, &difference(&runs, run))?;
            let _ = write!(out, "\n{line}");
        }
    }
    let first = runs.first().copied().unwrap_or(&Value::Null);
    let command = wrapped(first["command"].as_str().unwrap_or_default());
    let mut caption = caption(first, marker);
    if runs.len() > 1 {
        caption += " So it was in the first rows; the others say what differed.";
    }
    Ok(format!("{out}\n\n{caption}\n\n```sh\n{command}\n```"))
}

/// The runs of a document: usually itself alone.
pub(super) fn runs(document: &Value) -> Vec<&Value> {
    match document["runs"].as_array() {
        Some(runs) => runs.iter().collect(),
        None => vec![document],
    }
}

/// What a run has that the first one has not, for its rows: `, memory 128 MiB`.
fn difference(runs: &[&Value], run: &Value) -> String {
    let differs = |field: &str| {
        let of = |run: &Value| run["configuration"][field].as_u64();
        runs.iter().any(|other| of(other) != of(run)).then(|| of(run)).flatten()
    };
    let mut out = String::new();
    if let Some(records) = differs("records") {
        let _ = write!(out, ", {} pairs", Unit::Plain.mark(records as f64));
    }
    if let Some(bytes) = differs("value_bytes") {
        // The number of records follows from it.
        out = format!(", values of {} bytes", spinney_quantity::whole(bytes as f64));
    }
    if let Some(memory) = differs("memory_bytes") {
        let _ = write!(out, ", memory {}", spinney_quantity::bytes(memory));
    }
    out
}

fn line(document: &Value, marker: &Marker, row: &Row, difference: &str) -> Result<String, String> {
    let (columns, is_choice) = (&marker.columns, marker.kind == Kind::Choice);
    let quantity = QUANTITIES.iter().find(|quantity| quantity.name == row.quantity);
    let quantity = quantity.ok_or_else(|| {
        let names: Vec<&str> = QUANTITIES.iter().map(|quantity| quantity.name).collect();
        format!("no quantity {:?}; there are {}", row.quantity, names.join(", "))
    })?;
    let value = |column: &Column| {
        let found = best(document, column, &row.workload, quantity.field, quantity.more_is_better);
        found.map(|(_, value)| value)
    };
    let values: Vec<Option<f64>> = columns.iter().map(value).collect();
    let smallest = values.iter().flatten().copied().fold(f64::MAX, f64::min);
    if smallest == f64::MAX {
        return Err(format!("no engine of the table has {} of {}", row.quantity, row.workload));
    }
    // The largest unit of which every value has one, so that a row has one unit.
    let (unit, size) = match quantity.units {
        [] if quantity.name == "rate" => (words::rate_unit(&row.workload), 1.0),
        [] => ("", 1.0),
        units => *units.iter().rev().find(|(_, size)| smallest >= *size).unwrap_or(&units[0]),
    };
    let ratio = ratio(&values, quantity.more_is_better).map(times).filter(|_| !is_choice);
    let better = if quantity.more_is_better { f64::max } else { f64::min };
    // What looks the same is equally good.
    let best = values.iter().flatten().copied().reduce(better).map(|best| number(best / size));
    let workload = words::workload(&row.workload) + difference;
    let name = match (&row.name, quantity.words) {
        (Some(name), _) => format!("{name}{difference}"),
        (None, "") => workload,
        (None, words) => format!("{words}: {workload}"),
    };
    let lost = ratio.as_ref().is_some_and(|ratio| ratio.starts_with("0."));
    let mut out = format!("| {name}{} | {unit} |", if lost { " (**we lose**)" } else { "" });
    for (column, value) in columns.iter().zip(&values) {
        let text = value.map(|value| number(value / size));
        let text = match text {
            Some(text) if is_choice && best.as_ref() == Some(&text) => format!("**{text}**"),
            Some(text) => text,
            None => missing(document, column, row),
        };
        let _ = write!(out, " {text} |");
    }
    if columns.len() > 1 && !is_choice {
        let _ = write!(out, " {} |", ratio.unwrap_or("–".to_string()));
    }
    Ok(out)
}

/// How many times as good the first is as the best of the others.
fn ratio(values: &[Option<f64>], more_is_better: bool) -> Option<f64> {
    let (own, others) = values.split_first()?;
    let better = if more_is_better { f64::max } else { f64::min };
    let (own, other) = ((*own)?, others.iter().flatten().copied().reduce(better)?);
    let (part, whole) = if more_is_better { (own, other) } else { (other, own) };
    (whole > 0.0).then(|| part / whole)
}

/// Why there is no number: the engine failed, or was not asked.
fn missing(document: &Value, column: &Column, row: &Row) -> String {
    let found = column.iter().find_map(|engine| result(document, engine, &row.workload));
    match found.and_then(|result| result["failures"][0].as_str()) {
        Some(failure) if failure.contains("killed") => "killed".to_string(),
        Some(_) => "failed".to_string(),
        None => "–".to_string(),
    }
}

/// A number with three digits, as people read it: `1.31 M`, `187 k`, `4,867`, `0.16`.
fn number(value: f64) -> String {
    let three = |value: f64| match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    };
    match value {
        v if v >= 999_500.0 => format!("{} M", three(v / 1e6)),
        v if v >= 9_999.5 => format!("{} k", three(v / 1e3)),
        v if v >= 999.5 => spinney_quantity::whole(v),
        v => three(v),
    }
}

/// The run of a table or picture.
pub(super) fn caption(document: &Value, marker: &Marker) -> String {
    let mut out = words::caption(document);
    for column in marker.columns.iter().filter(|column| column.len() > 1) {
        let names: Vec<String> = column.iter().map(|engine| words::engine(engine)).collect();
        let _ =
            write!(out, " {}: in each row the better of {}.", heading(column), names.join(" and "));
    }
    out
}

/// A command in lines of at most 110 characters, where that can be done without cutting an option from its value.
fn wrapped(command: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for word in command.split_whitespace() {
        match parts.last_mut() {
            Some(last)
                if last.starts_with('-') && !last.contains(' ') && !word.starts_with('-') =>
            {
                *last = format!("{last} {word}");
            }
            _ => parts.push(word.to_string()),
        }
    }
    let (mut out, mut length) = (String::new(), 0);
    for part in parts {
        let characters = part.chars().count();
        if length > 0 && length + 1 + characters > 110 {
            out.push_str(" \\\n   ");
            length = 3;
        }
        if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(&part);
        length += characters;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(workload: &str, quantity: &str) -> Row {
        Row { workload: workload.to_string(), quantity: quantity.to_string(), name: None }
    }

    fn document() -> Value {
        json!({"command": "spinney-bench compare", "configuration": {"rounds": 1, "records": 8_000_000,
        "key_bytes": 24, "value_bytes": 100, "memory_bytes": 128 << 20},
        "results": [
            {"engine": "spinney:stb", "workload": "load", "operations_per_second": 1_310_000.0,
             "latency_max_nanoseconds": 10_000_000.0, "latency_p999_nanoseconds": 7400.0},
            {"engine": "rocksdb:leveled", "workload": "load", "operations_per_second": 182_700.0,
             "latency_max_nanoseconds": 5_400_000.0, "latency_p999_nanoseconds": 1_049_000.0},
            {"engine": "rocksdb:universal", "workload": "load", "operations_per_second": 186_600.0,
             "latency_max_nanoseconds": 5_100_000.0},
            {"engine": "lmdb", "workload": "load", "rounds": 0, "failures": ["killed by the kernel"]},
        ]})
    }

    fn marker(kind: Kind, names: &[&[&str]], rows: Vec<Row>) -> Marker {
        let column = |column: &&[&str]| column.iter().map(ToString::to_string).collect();
        let columns = names.iter().map(column).collect();
        Marker { kind, results: String::new(), columns, rows }
    }

    #[test]
    fn a_row_has_one_quantity_and_the_ratio_to_the_best_other() {
        let three: &[&[&str]] =
            &[&["spinney:stb"], &["rocksdb:leveled", "rocksdb:universal"], &["lmdb"]];
        let three = marker(Kind::Table, three, Vec::new());
        for (row, expected) in [
            (
                row("load", "rate"),
                "| random insert | inserts per second | 1.31 M | 187 k | killed | 7.02 |",
            ),
            (
                row("load", "max"),
                "| longest latency: random insert (**we lose**) | ms | 10.0 | 5.10 | killed | 0.51 |",
            ),
            (
                row("load", "p999"),
                "| p99.9 latency: random insert | µs | 7.40 | 1,049 | killed | 141.8 |",
            ),
        ] {
            assert_eq!(line(&document(), &three, &row, "").unwrap(), expected);
        }
        for row in [row("load", "speed"), row("get", "rate"), row("load", "open")] {
            assert!(line(&document(), &three, &row, "").is_err(), "{row:?}");
        }
    }

    #[test]
    fn a_choice_has_the_best_in_bold() {
        let two: &[&[&str]] = &[&["rocksdb:leveled"], &["spinney:stb"], &["lmdb"]];
        let two = marker(Kind::Choice, two, Vec::new());
        for (quantity, expected) in [
            ("rate", "| random insert | inserts per second | 183 k | **1.31 M** | killed |"),
            ("max", "| longest latency: random insert | ms | **5.40** | 10.0 | killed |"),
        ] {
            assert_eq!(line(&document(), &two, &row("load", quantity), "").unwrap(), expected);
        }
    }

    #[test]
    fn a_table_says_its_command() {
        let marker = marker(Kind::Table, &[&["spinney:stb"]], vec![row("load", "rate")]);
        let text = table(&document(), &marker).unwrap();
        assert!(
            text.starts_with("| workload | unit | Spinney |\n|---|---|---:|\n| random insert |")
        );
        assert!(
            text.contains("One round: 8 M pairs")
                && text.contains("```sh\nspinney-bench compare\n```")
        );
    }

    #[test]
    fn several_runs_give_a_row_each() {
        let mut second = document();
        second["configuration"]["memory_bytes"] = json!(64 << 20);
        let runs = json!({"format": 1, "runs": [document(), second]});
        let marker = marker(Kind::Table, &[&["spinney:stb"]], vec![row("load", "rate")]);
        let text = table(&runs, &marker).unwrap();
        let of = |memory: &str| format!("| random insert, memory {memory} MiB | inserts");
        assert!(text.contains(&of("128")) && text.contains(&of("64.0")), "{text}");
        assert_eq!(text.matches("spinney-bench compare").count(), 1);
    }

    #[test]
    fn long_commands_are_wrapped() {
        let command = vec!["word --option value"; 20].join(" ");
        let text = wrapped(&command);
        assert!(text.lines().all(|line| line.chars().count() <= 112), "{text}");
        assert!(!text.contains("--option \\"), "{text}");
        assert_eq!(text.replace(" \\\n   ", ""), command);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (1_310_000.0, "1.31 M"),
            (186_600.0, "187 k"),
            (13_000.0, "13.0 k"),
            (4867.0, "4,867"),
            (123.4, "123"),
            (0.16, "0.16"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
