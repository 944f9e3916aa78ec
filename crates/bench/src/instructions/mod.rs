//! `spinney-bench instructions`: the cost of operations in instructions, compared with the record.
//!
//! Invariants:
//! 1. Each count is the difference of two processes: one makes a store and does the workload, the other
//!    only makes the store. What both do costs nothing.
//! 2. No process depends on a clock, a thread, the disk or the environment, so a build counts the same
//!    wherever and whenever it runs, but for what the processor and the C library choose.
//! 3. The record is written only with everything counted, by one build.

pub mod comparison;
pub mod counter;
pub mod record;
pub mod store;
pub mod task;
pub mod workload;

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use spinney::TreeKind;

use crate::compare::Failure;
use comparison::Comparison;
use counter::Counter;
use record::{Made, Record};
use workload::{BACKGROUND, RECORDS, WORKLOADS, Workload};

/// Count the instructions of an operation and compare them with the record
///
/// Small fixed workloads on stores in memory, under `valgrind --tool=callgrind` (or `perf stat`, where
/// valgrind is missing and the processor counts): the same build gives the same counts, whatever else the
/// machine does. Ends with 1 if an operation costs more than the record by over the threshold.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  spinney-bench instructions                       after a change, at the root of the repository
  spinney-bench instructions -w get,scan50         only some
  spinney-bench instructions --record              keep what is counted now; commit docs/instructions.md")]
pub struct InstructionsOptions {
    /// Kinds of trees [default: all]
    #[arg(long, short, value_delimiter = ',', value_name = "NAMES", value_parser = parse_kind)]
    pub kinds: Vec<TreeKind>,
    /// Workloads [default: all; the record names them]
    #[arg(long, short, value_delimiter = ',', value_name = "NAMES", value_parser = parse_workload)]
    pub workloads: Vec<String>,
    /// The record
    #[arg(long, default_value = "docs/instructions.md", value_name = "FILE")]
    pub file: PathBuf,
    /// By how much an operation may cost more than the record
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub threshold: f64,
    /// If nothing can count here, or the record was made by another counter, compiler, C library or processor, say
    /// so and end with 0: what cannot be compared is no failure
    #[arg(long, conflicts_with = "record")]
    pub lenient: bool,
    /// Write the record anew
    #[arg(long, conflicts_with_all = ["kinds", "workloads"])]
    pub record: bool,
}

fn parse_kind(text: &str) -> Result<TreeKind, String> {
    let names = || TreeKind::ALL.map(TreeKind::name).join(", ");
    TreeKind::from_name(text).ok_or_else(|| format!("no tree kind {text:?}: {}", names()))
}

fn parse_workload(text: &str) -> Result<String, String> {
    let names = || WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ");
    let known = text == BACKGROUND.0 || Workload::named(text).is_some();
    if known {
        return Ok(text.to_string());
    }
    Err(format!("no workload {text:?}: {}, {}", names(), BACKGROUND.0))
}

/// Counts, compares, and records if that was asked for.
///
/// # Errors
/// Nothing that can count, a record that cannot be read or compared with; a workload that has become more expensive.
pub fn run(options: &InstructionsOptions) -> Result<(), Failure> {
    if cfg!(debug_assertions) {
        return Err(Failure::Usage("only a build with --release is worth counting".to_string()));
    }
    let counter = match Counter::find() {
        Err(what) if options.lenient => return skipped(&what),
        counter => counter.map_err(Failure::Usage)?,
    };
    let made = made(&counter);
    let before = match read(options) {
        Ok(before) if options.lenient && !made.differences(&before.made).is_empty() => {
            let differs = |(name, now, then)| {
                format!("{name}: the record was made with {then}, this is {now}")
            };
            let differences = made.differences(&before.made).into_iter().map(differs);
            return skipped(&differences.collect::<Vec<_>>().join("; "));
        }
        // A record that is written anew may be missing, or have been made by another counter.
        Err(_) if options.record => None,
        Ok(before) if options.record && before.made.counter_name() != made.counter_name() => None,
        Err(what) => return Err(Failure::Usage(what)),
        Ok(before) if before.made.counter_name() != made.counter_name() => {
            return Err(Failure::Usage(format!(
                "the counts of {} and of {} are not to be compared: install {0}, or make a record of \
                 your own (--record --file FILE)",
                before.made.counter_name(),
                made.counter_name()
            )));
        }
        Ok(before) => Some(before),
    };
    let kinds = if options.kinds.is_empty() { &TreeKind::ALL[..] } else { &options.kinds };
    let tasks = task::tasks(kinds, &options.workloads);
    let counted = task::carry_out(&tasks, |task| task.count(&counter)).map_err(Failure::Other)?;
    let mut counts = task::evaluate(&tasks, &counted).map_err(Failure::Other)?;
    counts.retain(|count| is_wanted(&count.workload, &options.workloads));
    let comparison = Comparison::new(&counts, before.as_ref(), options.threshold);
    let mut said = comparison.table();
    for (name, now, then) in before.iter().flat_map(|before| made.differences(&before.made)) {
        said += &format!("{name}: the record was made with {then}, this is {now}\n");
    }
    if options.record {
        let page = Record { made, counts }.page();
        let failed = |error| format!("cannot write {}: {error}", options.file.display());
        fs::write(&options.file, page).map_err(|error| Failure::Other(failed(error)))?;
        said += &format!("written to {}\n", options.file.display());
    } else if !comparison.cheaper().is_empty() {
        said += &format!(
            "cheaper by more than {}%, which --record would keep: {}\n",
            options.threshold,
            comparison.cheaper().join(", ")
        );
    }
    std::io::stdout()
        .write_all(said.as_bytes())
        .map_err(|error| Failure::Other(error.to_string()))?;
    if options.record { Ok(()) } else { comparison.verdict().map_err(Failure::Other) }
}

/// Says that nothing was compared, where nobody overlooks it.
fn skipped(why: &str) -> Result<(), Failure> {
    println!("SKIPPED: instructions were not compared: {why}");
    Ok(())
}

fn read(options: &InstructionsOptions) -> Result<Record, String> {
    let file = options.file.display();
    let page = fs::read_to_string(&options.file).map_err(|error| {
        format!("{file}: {error}; run it at the root of the repository, or name a --file")
    })?;
    Record::parse(&page).map_err(|what| format!("{file}: {what}"))
}

/// Whether a workload is among those that are asked for; none named means all.
fn is_wanted(name: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)
}

/// This build and machine.
fn made(counter: &Counter) -> Made {
    let can = match () {
        #[cfg(target_arch = "x86_64")]
        () if std::arch::is_x86_feature_detected!("avx2") => " with AVX2",
        () => "",
    };
    Made {
        compiler: env!("SPINNEY_BENCH_RUSTC").to_string(),
        counter: counter.describe(),
        library: library(),
        processor: format!("{}{can}", std::env::consts::ARCH),
    }
}

#[cfg(target_env = "gnu")]
fn library() -> String {
    unsafe extern "C" {
        fn gnu_get_libc_version() -> *const std::ffi::c_char;
    }
    // SAFETY: it takes nothing and returns a string that is never freed.
    let version = unsafe { std::ffi::CStr::from_ptr(gnu_get_libc_version()) };
    format!("glibc {}", version.to_string_lossy())
}

#[cfg(not(target_env = "gnu"))]
fn library() -> String {
    "not glibc".to_string()
}

/// The counted process: makes a store, does the workload to it, says how many operations that was.
///
/// # Errors
/// Unknown names; errors of [`workload::carry_out`].
pub fn counted(kind: &str, stage: &str, workload: Option<&str>) -> Result<(), String> {
    let kind = parse_kind(kind)?;
    let named = |name| Workload::named(name).ok_or_else(|| format!("no workload {name:?}"));
    let workload = workload.map(named).transpose()?;
    let operations = workload::carry_out(kind, stage.parse()?, workload, RECORDS)?;
    println!("{operations}");
    Ok(())
}
