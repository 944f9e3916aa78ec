//! Markers: HTML comments in a document that say what is made in their place.
//!
//! ```text
//! <!-- table load.json: spinney:stb, rocksdb:leveled|rocksdb:universal
//! load get@2 rate
//! load p999 = p99.9 latency of inserts
//! -->
//! (made)
//! <!-- end -->
//! ```
//!
//! The first line names the results and the columns; of engines joined by `|`, the best one counts. Each further
//! line is a row: workload, quantity, and a name if the usual one does not do. Several workloads before a quantity
//! are a row each. `choice RESULTS: COLUMNS` is a table without ratios, in which the best of each row is bold.
//! `picture FILE RESULTS: COLUMNS` draws rates as bars.

use crate::plot::summary::Column;

/// The end of the generated part.
pub(super) const END: &str = "<!-- end -->";
const BEGINNINGS: [&str; 3] = ["<!-- table ", "<!-- choice ", "<!-- picture "];

/// The kind of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With the ratio of the first column to the best of the others.
    Table,
    /// With the best in bold.
    Choice,
    /// Bars, in this file.
    Picture(String),
}

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) workload: String,
    pub(super) quantity: String,
    pub(super) name: Option<String>,
}

/// A marker.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) kind: Kind,
    pub(super) results: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

/// A part of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Marked { head: &'a str, marker: Marker },
}

/// The parts of a document, in order.
pub(super) fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(start) = BEGINNINGS.iter().filter_map(|beginning| rest.find(beginning)).min() {
        let (before, marked) = rest.split_at(start);
        let end = marked.find("-->").ok_or("a marker without its end")? + "-->".len();
        let (head, after) = marked.split_at(end);
        let made = after.find(END).ok_or_else(|| format!("no {END} after: {head}"))?;
        if BEGINNINGS.iter().any(|beginning| after[..made].contains(beginning)) {
            return Err(format!("no {END} after: {head}"));
        }
        out.push(Part::Text(before));
        out.push(Part::Marked { head, marker: marker(head)? });
        rest = &after[made + END.len()..];
    }
    out.push(Part::Text(rest));
    Ok(out)
}

fn marker(head: &str) -> Result<Marker, String> {
    let wrong = || format!("not a marker: {head}");
    let text = head.trim_start_matches("<!-- ").trim_end_matches("-->");
    let (first, rows) = text.split_once('\n').ok_or_else(wrong)?;
    let (what, columns) = first.split_once(':').ok_or_else(wrong)?;
    let (kind, results) = match what.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["table", results] => (Kind::Table, results.to_string()),
        ["choice", results] => (Kind::Choice, results.to_string()),
        ["picture", file, results] => (Kind::Picture(file.to_string()), results.to_string()),
        _ => return Err(wrong()),
    };
    let column = |text: &str| text.split('|').map(|engine| engine.trim().to_string()).collect();
    let columns = columns.split(',').map(column).collect();
    let mut marker = Marker { kind, results, columns, rows: Vec::new() };
    for line in rows.lines().filter(|line| !line.trim().is_empty()) {
        marker.rows.extend(rows_of(line)?);
    }
    Ok(marker)
}

fn rows_of(line: &str) -> Result<Vec<Row>, String> {
    let (what, name) = match line.split_once('=') {
        Some((what, name)) => (what, Some(name.trim().to_string())),
        None => (line, None),
    };
    let words: Vec<&str> = what.split_whitespace().collect();
    match words.split_last() {
        Some((quantity, workloads))
            if workloads.len() == 1 || name.is_none() && workloads.len() > 1 =>
        {
            let row = |workload: &&str| Row {
                workload: workload.to_string(),
                quantity: quantity.to_string(),
                name: name.clone(),
            };
            Ok(workloads.iter().map(row).collect())
        }
        _ => Err(format!("not a workload and a quantity: {line}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_cut_at_its_markers() {
        let text = "before\n<!-- table a.json: x, y:1|y:2\nload get rate\nget@2 max = longest\n-->\nold\n<!-- end -->\nafter";
        let parts = parts(text).unwrap();
        let [Part::Text("before\n"), Part::Marked { head, marker }, Part::Text("\nafter")] =
            parts.as_slice()
        else {
            panic!("{parts:?}");
        };
        assert!(head.starts_with("<!-- table") && head.ends_with("-->"));
        assert_eq!((&marker.kind, marker.results.as_str()), (&Kind::Table, "a.json"));
        assert_eq!(marker.columns, [vec!["x"], vec!["y:1", "y:2"]]);
        let row = |workload: &str, quantity: &str, name: Option<&str>| Row {
            workload: workload.to_string(),
            quantity: quantity.to_string(),
            name: name.map(ToString::to_string),
        };
        let rows = [
            row("load", "rate", None),
            row("get", "rate", None),
            row("get@2", "max", Some("longest")),
        ];
        assert_eq!(marker.rows, rows);
    }

    #[test]
    fn a_choice_is_a_table_of_its_own_kind() {
        let parts = parts("<!-- choice a.json: x, y\nload rate\n-->\n<!-- end -->").unwrap();
        assert!(
            matches!(&parts[1], Part::Marked { marker, .. } if marker.kind == Kind::Choice),
            "{parts:?}"
        );
    }

    #[test]
    fn a_marker_that_makes_no_sense_is_an_error() {
        for text in [
            "<!-- table a.json: x\nload rate\n-->\nno end",
            "<!-- table a.json: x\nload rate\n",
            "<!-- table a.json x\nload rate\n--><!-- end -->",
            "<!-- table a.json: x\nload\n--><!-- end -->",
            "<!-- table a.json: x\nload get rate = both\n--><!-- end -->",
            "<!-- picture a.json: x\nload rate\n--><!-- end -->",
            "<!-- table a.json: x\nload rate\n--><!-- table a.json: x\nload rate\n--><!-- end -->",
        ] {
            assert!(parts(text).is_err(), "{text}");
        }
        assert_eq!(parts("plain").unwrap(), [Part::Text("plain")]);
    }
}
