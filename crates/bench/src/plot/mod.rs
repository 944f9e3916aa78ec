//! Pictures of a comparison, made from its JSON: an SVG for each figure, and one HTML page with all of
//! them that needs nothing from outside.
//!
//! Invariants:
//! 1. Pictures are made from the JSON alone.

mod figures;
mod page;
pub mod summary;
mod svg;
pub(crate) mod unit;
pub mod words;

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A picture and its name.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The file's name without its ending.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The SVG element.
    pub svg: String,
}

/// Writes all pictures and `report.html` into a directory; gives their number.
///
/// # Errors
/// Files that cannot be written.
pub fn write(document: &Value, dir: &Path) -> Result<usize, String> {
    fs::create_dir_all(dir).map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    let save = |name: &str, text: &str| {
        let file = dir.join(name);
        fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
    };
    let figures = figures::all(document);
    for figure in &figures {
        save(&format!("{}.svg", figure.name), &figure.svg)?;
    }
    save("report.html", &page::page(document, &figures))?;
    Ok(figures.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        let result = |engine: &str, workload: &str, rate: f64| {
            json!({
                "engine": engine, "workload": workload, "rounds": 1, "failures": [],
                "threads": 1.0, "operations_per_second": rate, "pairs_per_second": rate * 10.0,
                "processor_microseconds_per_operation": 1.0,
                "spread": {"operations_per_second": [rate / 2.0, rate * 2.0]},
                "ratios": {},
            })
        };
        let mut results = Vec::new();
        for (engine, factor) in [("spinney:stb", 2.0), ("<peer>", 1.0)] {
            for (workload, rate) in
                [("scan10", 100.0), ("scan100", 50.0), ("get@1", 10.0), ("get@16", 90.0)]
            {
                results.push(result(engine, workload, rate * factor));
            }
        }
        results.push(json!({"engine": "dead", "workload": "scan10", "rounds": 0,
            "failures": ["killed & gone"]}));
        let rounds = json!([{"engine": "spinney:stb", "workload": "load", "round": 1,
            "user_bytes_written": 5, "seconds": 2.3,
            "timeline": [{"operations": 5, "latency_max_nanoseconds": 7000},
                         {"operations": 6, "latency_max_nanoseconds": 9000},
                         {"operations": 1, "latency_max_nanoseconds": 100}]}]);
        json!({"results": results, "rounds": rounds,
            "device": {"sequential_read_bytes_per_second": 1e9, "random_reads": [{"threads": 2, "reads_per_second": 12345.6}], "ring": null},
            "configuration": {"records": 5_000_000, "limit_bytes": 7 << 20}, "machine": {"cores": 2}})
    }

    #[test]
    fn every_figure_is_well_formed_and_on_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let count = write(&document(), dir.path()).unwrap();
        let page = fs::read_to_string(dir.path().join("report.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), count);
        for name in ["comparison", "scan_length", "threads_get", "timeline_load"] {
            let svg = fs::read_to_string(dir.path().join(format!("{name}.svg"))).unwrap();
            assert!(page.contains(&svg), "{name}");
            for tag in ["svg", "text", "g"] {
                let opened = svg.matches(&format!("<{tag} ")).count();
                assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{name} {tag}");
            }
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        }
        // Of 2.3 seconds the last three tenths looked like a fall.
        let timeline = fs::read_to_string(dir.path().join("timeline_load.svg")).unwrap();
        assert_eq!(timeline.matches("<circle").count(), 2, "{timeline}");
        // What people ask first, then figures, then the method.
        let mut rest = page.as_str();
        for text in [
            "Who is ahead",
            "Spinney is at or above the rate of &lt;peer&gt; in 4 of 4 workloads",
            "Spinney is ahead, 2.00 times &lt;peer&gt;",
            "<table>",
            "How it was measured",
            "5 M pairs",
            "two cores",
            "7.00 MiB, page cache included",
            "12.3 k random pages per second with two threads",
        ] {
            let at = rest.find(text).unwrap_or_else(|| panic!("{text}: {rest}"));
            rest = &rest[at..];
        }
        assert!(!page.contains("{&quot;") && !page.contains(" ns<") && !page.contains("null"));
        assert!(!page.contains("<peer>") && page.contains("&lt;peer&gt;"));
        assert!(page.contains("killed &amp; gone"));
        for outside in ["http://", "https://", "<script src", "<link"] {
            let found = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }
}
