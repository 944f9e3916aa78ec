//! One HTML page: what was measured how, the tables, and every figure.

use std::fmt::Write as _;

use serde_json::Value;

use super::Figure;
use super::unit::Unit;
use spinney_quantity::escaped;
use spinney_quantity::grouped;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;\
color:#222}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;text-align:right;\
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;\
height:auto;margin:.6rem 0}.failed{color:#b00;text-align:left}";

/// Columns of the tables: field, head.
const COLUMNS: [(&str, &str); 12] = [
    ("operations_per_second", "per second"),
    ("processor_microseconds_per_operation", "CPU µs"),
    ("processor_user_microseconds_per_operation", "user µs"),
    ("bytes_written_per_user_byte", "written ×"),
    ("disk_bytes_read_per_operation", "read/op"),
    ("latency_p50_nanoseconds", "p50"),
    ("latency_p99_nanoseconds", "p99"),
    ("latency_p999_nanoseconds", "p99.9"),
    ("latency_max_nanoseconds", "max"),
    ("resident_bytes_peak", "memory"),
    ("space_amplification_max", "space ×"),
    ("device_share", "of device"),
];

/// The page.
pub(super) fn page(document: &Value, figures: &[Figure]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>spinney-bench</title>\
         <style>{STYLE}</style><h1>spinney-bench</h1>"
    );
    let runs = document["runs"].as_array();
    for run in runs.map_or(std::slice::from_ref(document), Vec::as_slice) {
        one_run(run, &mut out);
    }
    for figure in figures {
        out.push_str(&figure.svg);
        out.push('\n');
    }
    out.push_str("</html>\n");
    out
}

/// What was measured how, and the tables.
fn one_run(document: &Value, out: &mut String) {
    for section in ["machine", "configuration", "harness", "device"] {
        if let Some(fields) = document[section].as_object() {
            let _ = write!(out, "<h2>{section}</h2><table>");
            for (name, value) in fields {
                let value = escaped(&readable(name, value));
                let name = escaped(&words(name));
                let _ = write!(out, "<tr><td>{name}</td><td>{value}</td></tr>");
            }
            out.push_str("</table>");
        }
    }
    out.push_str("<h2>results</h2><p>Medians over the rounds.</p>");
    tables(document, out);
}

/// A field's name in words, without the unit that its value has.
fn words(name: &str) -> String {
    let name =
        ["_bytes", "_nanoseconds"].iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    name.replace('_', " ")
}

/// A value as people write it: numbers with their unit, lists and parts one behind the other.
fn readable(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "–".to_string(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_string(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_u64(), Unit::of_field(name)) {
            (Some(count), Unit::Plain) => grouped(count),
            (_, unit) => unit.text(number.as_f64().unwrap_or(0.0)),
        },
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| readable(name, item)).collect();
            items.join("; ")
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", words(name), readable(name, value)))
                .collect();
            fields.join(", ")
        }
    }
}

fn tables(document: &Value, out: &mut String) {
    let results = document["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut last = None;
    for result in results {
        let workload = result["workload"].as_str().unwrap_or_default();
        if last != Some(workload) {
            out.push_str(if last.is_some() { "</table>" } else { "" });
            let _ = write!(out, "<table><tr><th>{}</th>", escaped(workload));
            for (_, head) in COLUMNS {
                let _ = write!(out, "<th>{head}</th>");
            }
            out.push_str("</tr>");
            last = Some(workload);
        }
        let engine = escaped(result["engine"].as_str().unwrap_or_default());
        let _ = write!(out, "<tr><td>{engine}</td>");
        if result["rounds"] == 0 {
            let why = result["failures"][0].as_str().unwrap_or("not run: it had failed before");
            let columns = COLUMNS.len();
            let _ = write!(out, "<td class=\"failed\" colspan=\"{columns}\">{}</td>", escaped(why));
        } else {
            for (field, _) in COLUMNS {
                let value = result[field].as_f64();
                let text = value.map_or("–".into(), |value| Unit::of_field(field).text(value));
                let _ = write!(out, "<td>{text}</td>");
            }
        }
        out.push_str("</tr>");
    }
    out.push_str(if last.is_some() { "</table>" } else { "" });
}
