//! One HTML page: what was measured how, the tables, and every figure.

use std::fmt::Write as _;

use serde_json::Value;

use super::Figure;
use super::svg::{escaped, short};

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
    ("disk_bytes_read_per_operation", "read B/op"),
    ("latency_p50_nanoseconds", "p50 ns"),
    ("latency_p99_nanoseconds", "p99 ns"),
    ("latency_p999_nanoseconds", "p99.9 ns"),
    ("latency_max_nanoseconds", "max ns"),
    ("resident_bytes_peak", "memory B"),
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
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                let _ =
                    write!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(&value));
            }
            out.push_str("</table>");
        }
    }
    out.push_str("<h2>results</h2><p>Medians over the rounds.</p>");
    tables(document, out);
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
                let _ =
                    write!(out, "<td>{}</td>", result[field].as_f64().map_or("–".into(), short));
            }
        }
        out.push_str("</tr>");
    }
    out.push_str(if last.is_some() { "</table>" } else { "" });
}
