//! The current cost of operations, compared with the record.

use std::fmt::Write as _;

use super::record::{Count, Record};
use spinney_quantity::grouped;

/// Rows as they were and are.
#[derive(Debug)]
pub struct Comparison {
    rows: Vec<Row>,
    threshold_percent: f64,
}

#[derive(Debug)]
struct Row {
    now: Count,
    before: Option<u64>,
}

impl Row {
    fn name(&self) -> String {
        format!("{} {}", self.now.kind, self.now.workload)
    }

    fn change_percent(&self) -> Option<f64> {
        let before = self.before?.max(1) as f64;
        Some((self.now.instructions as f64 - before) / before * 100.0)
    }
}

impl Comparison {
    /// Compares `now` with the record, and reports changes above the threshold.
    pub fn new(now: &[Count], record: Option<&Record>, threshold_percent: f64) -> Comparison {
        let row = |now: &Count| Row {
            before: record.and_then(|record| record.of(&now.kind, &now.workload)),
            now: now.clone(),
        };
        Comparison { rows: now.iter().map(row).collect(), threshold_percent }
    }

    /// The rows whose change fits, with their changes.
    fn changed(&self, fits: impl Fn(f64) -> bool) -> Vec<String> {
        let changes = self.rows.iter().filter_map(|row| Some((row, row.change_percent()?)));
        let fitting = changes.filter(|(_, change)| fits(*change));
        fitting.map(|(row, change)| format!("{} ({change:+.1}%)", row.name())).collect()
    }

    /// The rows that are more expensive by more than the threshold.
    pub fn more_expensive(&self) -> Vec<String> {
        self.changed(|change| change > self.threshold_percent)
    }

    /// The rows that are cheaper by more than the threshold.
    pub fn cheaper(&self) -> Vec<String> {
        self.changed(|change| change < -self.threshold_percent)
    }

    /// Entries that the record does not have.
    pub fn unknown(&self) -> Vec<String> {
        self.rows.iter().filter(|row| row.before.is_none()).map(Row::name).collect()
    }

    /// The rows as a table for people.
    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.name().len()).max().unwrap_or(0).max(8);
        let mut out =
            format!("{:<width$} {:>12} {:>12} {:>9}\n", "workload", "record", "now", "change");
        for row in &self.rows {
            let before = row.before.map_or("–".to_string(), grouped);
            let change = row.change_percent().map_or("new".to_string(), |c| format!("{c:+.1}%"));
            let now = grouped(row.now.instructions);
            let _ = writeln!(out, "{:<width$} {before:>12} {now:>12} {change:>9}", row.name());
        }
        out
    }

    /// What to do about it, if anything.
    ///
    /// # Errors
    /// Names the rows that are more expensive by more than the threshold, and those that the record does not have.
    pub fn verdict(&self) -> Result<(), String> {
        let mut faults = Vec::new();
        let more_expensive = self.more_expensive();
        if !more_expensive.is_empty() {
            faults.push(format!(
                "more expensive than the record by more than {}%: {}",
                self.threshold_percent,
                more_expensive.join(", ")
            ));
        }
        let unknown = self.unknown();
        if !unknown.is_empty() {
            faults.push(format!("not in the record (--record adds it): {}", unknown.join(", ")));
        }
        if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    fn compare(now: &[(&str, &str, u64)], threshold_percent: f64) -> Comparison {
        let before = record(&[("stb", "get", 1000), ("stb", "put", 2000), ("elm", "get", 500)]);
        Comparison::new(&record(now).counts, Some(&before), threshold_percent)
    }

    #[test]
    fn a_regression_is_reported_and_fails() {
        let comparison = compare(&[("stb", "get", 1051), ("stb", "put", 2000)], 5.0);
        let why = comparison.verdict().unwrap_err();
        assert_eq!(why, "more expensive than the record by more than 5%: stb get (+5.1%)");
        assert!(comparison.table().contains("+5.1%"), "{}", comparison.table());
        // Of one kind alone, whatever the others cost.
        let comparison = compare(&[("stb", "get", 500), ("elm", "get", 600)], 5.0);
        assert_eq!(comparison.more_expensive(), ["elm get (+20.0%)"]);
        assert!(compare(&[("stb", "get", 1051)], 1.0).verdict().is_err());
    }

    #[test]
    fn what_stays_within_the_threshold_or_gets_cheaper_passes() {
        let comparison = compare(&[("stb", "get", 1050), ("stb", "put", 1500)], 5.0);
        assert_eq!(comparison.verdict(), Ok(()));
        assert_eq!(comparison.cheaper(), ["stb put (-25.0%)"]);
        assert!(compare(&[("stb", "get", 1051)], 10.0).verdict().is_ok());
    }

    #[test]
    fn what_nobody_recorded_is_told() {
        let comparison = compare(&[("stb", "get", 1000), ("stb", "scan50", 1)], 5.0);
        let why = comparison.verdict().unwrap_err();
        assert!(why.contains("not in the record") && why.ends_with("stb scan50"), "{why}");
        assert!(comparison.table().contains("new"));
        let first = Comparison::new(&record(&[("stb", "get", 9)]).counts, None, 5.0);
        assert_eq!(first.unknown(), ["stb get"]);
    }
}
