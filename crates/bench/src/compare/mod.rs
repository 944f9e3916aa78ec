//! `spinney-bench compare`: engines side by side.
//!
//! Invariants:
//! 1. Every engine works in a process of its own, in a memory cgroup of its own with the same limit,
//!    and while one works the others are idle.
//! 2. Engines take turns at each workload, in an order that is turned from round to round, so that the
//!    machine's drift hits all alike.
//! 3. A wrong or missing answer makes the command fail, however fast it was.

pub mod child;
pub mod options;
pub mod report;
mod rounds;
pub mod table;

use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::workload::overhead::Overhead;
use options::{CompareOptions, Run};
use spinney_quantity::{bytes, grouped};

/// Runs the comparison.
///
/// # Errors
/// An invalid request, or a failure of the comparison.
pub fn run(options: &CompareOptions) -> Result<(), Failure> {
    let runs = options.resolve().map_err(Failure::Usage)?;
    for engine in runs.iter().flat_map(|run| &run.engines) {
        engine.check().map_err(Failure::Usage)?;
    }
    let to_output = options.json.as_deref() == Some(Path::new("-"));
    let (mut documents, mut measurements) = (Vec::new(), Vec::new());
    for run in &runs {
        if runs.len() > 1 {
            eprintln!("{} with {}:", grouped(run.plan.records), bytes(run.plan.memory_bytes));
        }
        let found = rounds::run(run).map_err(Failure::Other)?;
        documents.push(report::document(run, &found));
        measurements.extend(found.measurements);
        // What there is so far is kept, whatever comes.
        if let Some(path) = options.json.as_deref().filter(|_| !to_output) {
            write(path, &report::together(&documents)).map_err(Failure::Other)?;
        }
    }
    let document = report::together(&documents);
    if let Some(dir) = &options.plot {
        let figures = crate::plot::write(&document, dir).map_err(Failure::Other)?;
        eprintln!("{figures} figures and report.html in {}", dir.display());
    }
    let text = if to_output { format!("{document:#}\n") } else { table::tables(&document) };
    std::io::stdout().write_all(text.as_bytes()).map_err(|e| Failure::Other(e.to_string()))?;
    let bad: u64 = measurements.iter().map(|found| found.missing + found.wrong).sum();
    if bad > 0 {
        return Err(Failure::Other(format!("{bad} reads gave a wrong or no answer")));
    }
    let died = measurements.iter().filter(|found| found.failed.is_some()).count();
    if died > 0 {
        return Err(Failure::Other(format!("{died} runs did not end; the results say why")));
    }
    Ok(())
}

/// Why the command failed.
#[derive(Debug)]
pub enum Failure {
    /// The request makes no sense.
    Usage(String),
    /// Everything else.
    Other(String),
}

fn write(path: &Path, document: &Value) -> Result<(), String> {
    fs::write(path, format!("{document:#}\n"))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// The results of all rounds.
#[derive(Debug, Default)]
pub struct Found {
    /// One for each engine, workload and round.
    pub measurements: Vec<crate::measure::measurement::Measurement>,
    /// One for each round.
    pub device: Vec<crate::measure::device::DeviceRates>,
    /// The memory limit all engines ran under, or why there was none.
    pub limit: Option<Result<u64, String>>,
    /// The benchmark's own cost.
    pub overhead: Option<Overhead>,
}

impl Run {
    /// The workloads' names, in order.
    pub fn workload_names(&self) -> Vec<&str> {
        self.workloads.iter().map(|workload| workload.name()).collect()
    }
}
