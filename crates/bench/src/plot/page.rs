//! One HTML page: who is ahead and by how much, the tables, every figure, and how it was measured.

use std::fmt::Write as _;

use serde_json::Value;
use spinney_quantity::escaped;

use super::Figure;
use super::figures::{distinct, results};
use super::summary::sentences;
use super::unit::Unit;
use super::words;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;\
color:#222}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;text-align:right;\
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;\
height:auto;margin:.6rem 0}.failed{color:#b00;text-align:left}pre{white-space:pre-wrap}";

/// Columns of the tables: field, heading.
const COLUMNS: [(&str, &str); 12] = [
    ("operations_per_second", "per second"),
    ("processor_microseconds_per_operation", "processor µs per operation"),
    ("processor_user_microseconds_per_operation", "of it user µs"),
    ("bytes_written_per_user_byte", "write amplification"),
    ("disk_bytes_read_per_operation", "read per operation"),
    ("latency_p50_nanoseconds", "p50"),
    ("latency_p99_nanoseconds", "p99"),
    ("latency_p999_nanoseconds", "p99.9"),
    ("latency_max_nanoseconds", "longest"),
    ("resident_bytes_peak", "peak memory"),
    ("space_amplification_max", "peak space amplification"),
    ("device_share", "share of the device's rate"),
];

/// The page.
pub(super) fn page(document: &Value, figures: &[Figure]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>spinney-bench</title>\
         <style>{STYLE}</style>\n"
    );
    let runs = document["runs"].as_array();
    let runs = runs.map_or(std::slice::from_ref(document), Vec::as_slice);
    out.push_str("<h1>Who is ahead</h1>");
    for run in runs {
        if runs.len() > 1 {
            let _ = write!(out, "<h2>{}</h2>", escaped(&words::caption(run)));
        }
        let (engines, workloads) =
            (distinct(results(run), "engine"), distinct(results(run), "workload"));
        paragraphs(&sentences(run, &engines, &workloads), &mut out);
    }
    // The first figure compares the rates; of several sizes, all figures do.
    let (first, others) =
        figures.split_at(if runs.len() > 1 { figures.len() } else { figures.len().min(1) });
    pictures(first, &mut out);
    out.push_str("<h1>Figures</h1>");
    for run in runs {
        let _ = write!(out, "<p>{}</p>", escaped(&words::caption(run)));
        tables(run, &mut out);
    }
    pictures(others, &mut out);
    out.push_str("<h1>How it was measured</h1>");
    for run in runs {
        paragraphs(&words::method(run), &mut out);
        if let Some(command) = run["command"].as_str() {
            let _ = write!(out, "<pre>{}</pre>", escaped(command));
        }
    }
    out.push_str("</html>\n");
    out
}

fn pictures(figures: &[Figure], out: &mut String) {
    for figure in figures {
        out.push_str(&figure.svg);
        out.push('\n');
    }
}

fn paragraphs(sentences: &[String], out: &mut String) {
    for sentence in sentences {
        let _ = write!(out, "<p>{}</p>", escaped(sentence));
    }
}

fn tables(document: &Value, out: &mut String) {
    let mut last = None;
    for result in results(document) {
        let workload = result["workload"].as_str().unwrap_or_default();
        if last != Some(workload) {
            out.push_str(if last.is_some() { "</table>" } else { "" });
            let words = escaped(&words::workload(workload));
            let _ = write!(out, "<table><tr><th>{words}</th>");
            for (_, heading) in COLUMNS {
                let _ = write!(out, "<th>{heading}</th>");
            }
            out.push_str("</tr>");
            last = Some(workload);
        }
        let engine = escaped(&words::engine(result["engine"].as_str().unwrap_or_default()));
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
