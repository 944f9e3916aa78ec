//! The record: the cost of operations when it was last written, as a page with tables.
//!
//! Invariants:
//! 1. The page is the only copy: it is read by people and by the command. What is written is read as
//!    it was; a page in which something cannot be read is an error that names the line.

use std::fmt::Write as _;

use super::workload::{BACKGROUND, BACKGROUND_OPERATION, WORKLOADS};
use spinney_quantity::grouped;

const INTRODUCTION: &str = "\
# Instructions per operation

What a change is held against. Written by `spinney-bench instructions --record`, which overwrites it whole;
[performance.md](performance.md#instruction-counts) says how it is counted, how far to trust it, and what to do
when a count has risen.
";

/// The environment of the counts, besides the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The compiler and its version.
    pub compiler: String,
    /// The counter: its name, a comma, its version.
    pub counter: String,
    /// The C library: memory is taken and copied by it.
    pub library: String,
    /// The kind of processor; code is selected by its features.
    pub processor: String,
}

impl Made {
    fn fields(&self) -> [(&'static str, &String); 4] {
        [
            ("compiler", &self.compiler),
            ("counter", &self.counter),
            ("C library", &self.library),
            ("processor", &self.processor),
        ]
    }

    /// The counter without its version.
    pub fn counter_name(&self) -> &str {
        self.counter.split(',').next().unwrap_or_default()
    }

    /// The differences from `other`: name, here, there.
    pub fn differences<'a>(&'a self, other: &'a Made) -> Vec<(&'static str, &'a str, &'a str)> {
        let both = self.fields().into_iter().zip(other.fields());
        let different = both.filter(|((_, here), (_, there))| here != there);
        different.map(|((name, here), (_, there))| (name, here.as_str(), there.as_str())).collect()
    }
}

/// Instructions of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The tree's kind.
    pub kind: String,
    /// The workload.
    pub workload: String,
    /// How many.
    pub instructions: u64,
}

/// All that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The environment in which it was made.
    pub made: Made,
    /// The counts, workload by workload.
    pub counts: Vec<Count>,
}

/// A description of an operation of that workload.
fn operation(name: &str) -> &'static str {
    if name == BACKGROUND.0 {
        return BACKGROUND_OPERATION;
    }
    let known = WORKLOADS.iter().find(|workload| workload.name == name);
    known.map_or("", |workload| workload.operation)
}

/// The cells of a row, or `None` where the line is none.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    names.for_each(|name| {
        if !found.contains(&name) {
            found.push(name);
        }
    });
    found
}

impl Record {
    /// The cost of an operation.
    pub fn of(&self, kind: &str, workload: &str) -> Option<u64> {
        let mut counts = self.counts.iter();
        let found = counts.find(|count| count.kind == kind && count.workload == workload);
        found.map(|count| count.instructions)
    }

    /// The page.
    pub fn page(&self) -> String {
        let mut out = format!("{INTRODUCTION}\n| made with | |\n|---|---|\n");
        for (name, value) in self.made.fields() {
            let _ = writeln!(out, "| {name} | {} |", value.replace('|', "/"));
        }
        let kinds = distinct(self.counts.iter().map(|count| count.kind.as_str()));
        let _ = writeln!(out, "\n| workload | {} | an operation |", kinds.join(" | "));
        let _ = writeln!(out, "|---|{}---|", "---:|".repeat(kinds.len()));
        for workload in distinct(self.counts.iter().map(|count| count.workload.as_str())) {
            let _ = write!(out, "| {workload} |");
            for kind in &kinds {
                let count = self.of(kind, workload).map_or("–".to_string(), grouped);
                let _ = write!(out, " {count} |");
            }
            let _ = writeln!(out, " {} |", operation(workload));
        }
        out
    }

    /// Reads a page.
    ///
    /// # Errors
    /// The invalid line, or what is missing.
    pub fn parse(page: &str) -> Result<Record, String> {
        let mut made = Vec::new();
        let (mut kinds, mut counts): (Vec<&str>, Vec<Count>) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(page.lines()) {
            let Some(cells) = cells(line) else { continue };
            let senseless = || format!("line {number} makes no sense: {line}");
            match cells.as_slice() {
                ["made with", ""] => {}
                [first, ..] if first.starts_with("---") => {}
                ["workload", named @ .., "an operation"] if kinds.is_empty() => {
                    kinds = named.to_vec();
                }
                [name, value] if kinds.is_empty() => made.push((*name, *value)),
                [workload, values @ .., _] if !kinds.is_empty() && values.len() == kinds.len() => {
                    for (kind, value) in kinds.iter().zip(values).filter(|(_, v)| **v != "–") {
                        let instructions =
                            value.replace(',', "").parse().map_err(|_| senseless())?;
                        let (kind, workload) = (kind.to_string(), workload.to_string());
                        counts.push(Count { kind, workload, instructions });
                    }
                }
                _ => return Err(senseless()),
            }
        }
        let field = |name: &str| {
            let found = made.iter().find(|(field, _)| *field == name);
            found.map(|(_, value)| value.to_string()).ok_or_else(|| format!("it has no {name:?}"))
        };
        let made = Made {
            compiler: field("compiler")?,
            counter: field("counter")?,
            library: field("C library")?,
            processor: field("processor")?,
        };
        Ok(Record { made, counts })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn record(counts: &[(&str, &str, u64)]) -> Record {
        let count = |&(kind, workload, instructions): &(&str, &str, u64)| Count {
            kind: kind.to_string(),
            workload: workload.to_string(),
            instructions,
        };
        let made = Made {
            compiler: "rustc 1.95.0 (59807616e 2026-04-14)".to_string(),
            counter: "callgrind, valgrind-3.19.0".to_string(),
            library: "glibc 2.36".to_string(),
            processor: "x86_64 with AVX2".to_string(),
        };
        Record { made, counts: counts.iter().map(count).collect() }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let counts = [("stb", "put", 2669), ("elm", "put", 1_234_567), ("stb", "background", 7)];
        let record = record(&counts);
        let page = record.page();
        assert!(page.contains("| put | 2,669 | 1,234,567 | put of a new key"), "{page}");
        assert_eq!(Record::parse(&page), Ok(record));
    }

    #[test]
    fn a_page_that_makes_no_sense_is_refused_with_the_line() {
        let page = record(&[("stb", "put", 2669)]).page();
        for (from, to) in [("2,669", "2.669"), ("| 2,669 ", ""), ("| workload", "| works")] {
            let why = Record::parse(&page.replace(from, to)).unwrap_err();
            assert!(why.contains("makes no sense"), "{why}");
        }
        let why = Record::parse(&page.replace("| compiler |", "| composer |")).unwrap_err();
        assert!(why.contains("compiler"), "{why}");
        assert!(Record::parse("").is_err());
    }

    #[test]
    fn what_a_record_was_made_with_is_told_apart() {
        let made = record(&[]).made;
        assert_eq!(made.counter_name(), "callgrind");
        let later = Made { compiler: "rustc 1.96.0".to_string(), ..made.clone() };
        let differences = later.differences(&made);
        assert_eq!(differences, [("compiler", "rustc 1.96.0", made.compiler.as_str())]);
        assert!(made.differences(&made.clone()).is_empty());
    }

    #[test]
    fn the_record_of_the_repository_can_be_read_and_has_every_workload() {
        let record = Record::parse(include_str!("../../../../docs/instructions.md")).unwrap();
        let kinds = distinct(record.counts.iter().map(|count| count.kind.as_str()));
        assert!(kinds.contains(&"stb"));
        for name in WORKLOADS.iter().map(|workload| workload.name).chain([BACKGROUND.0]) {
            assert!(kinds.iter().all(|kind| record.of(kind, name).is_some()), "{name}");
        }
    }
}
