//! Who is ahead, and by how much: bars of rates whose headings say so.

use serde_json::Value;

use super::Figure;
use super::svg::{Bar, bars};
use super::unit::short;
use super::words;

/// Several results of which the best one counts, such as those of one engine in several configurations.
pub type Column = Vec<String>;

/// A column's heading.
pub fn heading(column: &Column) -> String {
    match column.as_slice() {
        [one] => words::engine(one),
        // What the alternatives have in common.
        several => {
            let engine = several.first().map_or("", |name| name.split(':').next().unwrap_or(name));
            words::engine(engine)
        }
    }
}

/// The result of an engine at a workload.
pub fn result<'a>(document: &'a Value, engine: &str, workload: &str) -> Option<&'a Value> {
    let results = document["results"].as_array()?;
    results.iter().find(|found| found["engine"] == engine && found["workload"] == workload)
}

/// The best result of a column at a workload, by a field.
pub fn best<'a>(
    document: &'a Value,
    column: &Column,
    workload: &str,
    field: &str,
    more_is_better: bool,
) -> Option<(&'a Value, f64)> {
    let found = column.iter().filter_map(|engine| {
        let result = result(document, engine, workload)?;
        Some((result, result[field].as_f64()?))
    });
    found.reduce(|best, other| if (other.1 > best.1) == more_is_better { other } else { best })
}

/// A ratio as text: three digits, two decimals at most.
pub fn times(ratio: f64) -> String {
    if ratio < 9.995 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
}

/// The rates of a document's workloads as bars; each heading says who leads, and by how much.
pub fn summary(document: &Value, columns: &[Column], workloads: &[String]) -> Option<Figure> {
    const FIELD: &str = "operations_per_second";
    let names: Vec<String> = columns.iter().map(heading).collect();
    let group = |workload: &String| {
        let bars: Vec<Bar> = columns
            .iter()
            .filter_map(|column| {
                let (result, value) = best(document, column, workload, FIELD, true)?;
                let spread = &result["spread"][FIELD];
                Some(Bar {
                    engine: heading(column),
                    value,
                    spread: spread[0].as_f64().zip(spread[1].as_f64()),
                    text: format!("{} {}", short(value), words::rate_unit(workload)),
                })
            })
            .collect();
        let heading = format!("{}{}", words::workload(workload), lead(&bars));
        (!bars.is_empty()).then_some((heading, bars))
    };
    let groups: Vec<_> = workloads.iter().filter_map(group).collect();
    let title = "Who is ahead, and by how much (more is better)";
    (!groups.is_empty()).then(|| Figure {
        name: "comparison".to_string(),
        title: title.to_string(),
        svg: bars(title, &names, &groups),
    })
}

/// The part of a heading that compares the two best.
fn lead(found: &[Bar]) -> String {
    let mut sorted: Vec<&Bar> = found.iter().collect();
    sorted.sort_by(|a, b| b.value.total_cmp(&a.value));
    let [first, second, ..] = sorted.as_slice() else { return String::new() };
    let ratio = times(first.value / second.value.max(1e-12));
    match ratio.as_str() {
        "1.00" => format!(": {} and {} are even", first.engine, second.engine),
        ratio => format!(": {} is ahead, {ratio} times {}", first.engine, second.engine),
    }
}

/// For each peer of the first engine: in how many workloads the first is ahead, and where it is behind.
pub fn sentences(document: &Value, engines: &[String], workloads: &[String]) -> Vec<String> {
    let Some((own, peers)) = engines.split_first() else { return Vec::new() };
    let sentence = |peer: &String| {
        let rate = |engine: &str, workload: &str| {
            let rate = result(document, engine, workload)?["operations_per_second"].as_f64();
            rate.filter(|rate| *rate > 0.0)
        };
        let ratios: Vec<(&String, f64)> = workloads
            .iter()
            .filter_map(|name| Some((name, rate(own, name)? / rate(peer, name)?)))
            .collect();
        if ratios.is_empty() {
            return None;
        }
        let ahead = ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).count();
        let behind: Vec<String> = ratios
            .iter()
            .filter(|(_, ratio)| *ratio < 1.0)
            .map(|(workload, ratio)| format!("{} ({})", words::workload(workload), times(*ratio)))
            .collect();
        let mut text = format!(
            "{} is at or above the rate of {} in {ahead} of {} workloads",
            words::engine(own),
            words::engine(peer),
            ratios.len()
        );
        if !behind.is_empty() {
            text += &format!("; below it in: {}", behind.join(", "));
        }
        Some(text + ".")
    };
    peers.iter().filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        let result = |engine: &str, workload: &str, rate: f64| json!({"engine": engine, "workload": workload, "operations_per_second": rate});
        json!({"results": [
            result("spinney:stb", "get@2", 27_000.0), result("rocksdb:leveled", "get@2", 20_000.0),
            result("rocksdb:universal", "get@2", 18_000.0), result("spinney:stb", "scan1", 5.0),
            result("rocksdb:leveled", "scan1", 10.0), result("spinney:stb", "load", 7.0),
        ]})
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn headings_say_who_is_ahead() {
        let columns = [texts(&["spinney:stb"]), texts(&["rocksdb:leveled", "rocksdb:universal"])];
        let svg = summary(&document(), &columns, &texts(&["get@2", "scan1", "load"])).unwrap().svg;
        for text in [
            "random get, two threads: Spinney is ahead, 1.35 times RocksDB<",
            "scan of 1 pair: RocksDB is ahead, 2.00 times Spinney<",
            ">random insert<",
            "27.0 k gets per second",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("18.0 k"), "the better one counts");
    }

    #[test]
    fn sentences_name_what_is_lost() {
        let found = sentences(
            &document(),
            &texts(&["spinney:stb", "rocksdb:leveled", "rocksdb:universal"]),
            &texts(&["get@2", "scan1", "load"]),
        );
        assert_eq!(
            found,
            [
                "Spinney is at or above the rate of RocksDB leveled in 1 of 2 workloads; below it in: scan of 1 pair \
                 (0.50).",
                "Spinney is at or above the rate of RocksDB universal in 1 of 1 workloads."
            ]
        );
    }
}
