//! `spinney-sim soak`: all regimes, each in its own process, with the extent of the gate or of the
//! long form.
//!
//! Invariants:
//! 1. A part that does not end with its line of JSON has failed, whatever its exit code.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The extent of each part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The gate for each change: a few minutes. A part ends when it has tried as much as it has to, or after a time, so
    /// that a slow machine takes no longer.
    Gate,
    /// The long form before a release: about an hour on two cores.
    Long,
}

/// Runs all regimes, some in parallel, and prints a summary.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim soak --form gate
  spinney-sim soak --seed 1000000 --jobs 2
  spinney-sim soak --only crash --only faults")]
pub struct Arguments {
    /// The extent of each part.
    #[arg(long, value_enum, default_value_t = Form::Long)]
    form: Form,
    /// The first seed of each part.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of parts that run in parallel [default: the number of cores]. Beside them runs one that mostly waits
    /// for the disk.
    #[arg(long)]
    jobs: Option<usize>,
    /// Run only the part with this name; can be repeated.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// List the parts and their commands.
    #[arg(long)]
    list: bool,
}

/// A part of the soak: its name and, for each form, the arguments of its command.
struct Part {
    name: &'static str,
    load: Load,
    gate: &'static [&'static str],
    long: &'static [&'static str],
}

/// What a part mostly waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// A core.
    Core,
    /// A disk that has written something durably: a core has time for another part meanwhile.
    Disk,
}

impl Part {
    fn arguments(&self, form: Form) -> &'static [&'static str] {
        match form {
            Form::Gate => self.gate,
            Form::Long => self.long,
        }
    }
}

/// The longest parts first, so that they do not run alone at the end.
const PARTS: &[Part] = &[
    Part {
        name: "exhaustive",
        load: Load::Core,
        gate: &["crash", "--exhaustive", "2", "--seconds", "25", "--jobs", "1"],
        long: &["crash", "--exhaustive", "3", "--jobs", "1"],
    },
    Part {
        name: "fuzz",
        load: Load::Core,
        gate: &["fuzz", "--seconds", "3", "--jobs", "1"],
        long: &["fuzz", "--seconds", "60", "--jobs", "1"],
    },
    Part {
        name: "torture",
        load: Load::Disk,
        gate: &["torture", "--kind", "mixed", "--size-mib", "256", "--seconds", "100"],
        long: &["torture", "--kind", "mixed", "--kills", "300", "--lives", "60"],
    },
    Part {
        name: "crash",
        load: Load::Core,
        gate: &["crash", "--states", "40000", "--seconds", "120", "--jobs", "1"],
        long: &["crash", "--states", "2000000", "--jobs", "1"],
    },
    Part {
        name: "faults",
        load: Load::Core,
        gate: &["faults", "--every", "10", "--runs", "12", "--seconds", "80"],
        long: &["faults", "--every", "1", "--runs", "20"],
    },
    Part {
        name: "recovery",
        load: Load::Core,
        gate: &["crash", "--recovery", "--states", "10000", "--seconds", "60", "--jobs", "1"],
        long: &["crash", "--recovery", "--states", "300000", "--jobs", "1"],
    },
    Part {
        name: "kill",
        load: Load::Disk,
        gate: &["kill", "--kills", "40", "--seconds", "60"],
        long: &["kill", "--kills", "1000"],
    },
    Part {
        name: "threads",
        load: Load::Core,
        gate: &["threads", "--seconds", "60"],
        long: &["threads", "--seconds", "3600"],
    },
    Part {
        name: "views",
        load: Load::Core,
        gate: &["views", "--runs", "40", "--seconds", "40"],
        long: &["views", "--seconds", "600"],
    },
    Part {
        name: "transactions",
        load: Load::Core,
        gate: &["transactions", "--seconds", "40"],
        long: &["transactions", "--seconds", "600"],
    },
    Part {
        name: "bitflip",
        load: Load::Core,
        gate: &["bitflip", "--seconds", "40"],
        long: &["bitflip", "--every", "1", "--all-bits", "--seconds", "900"],
    },
    Part {
        name: "model",
        load: Load::Core,
        gate: &["model", "--operations", "750000", "--seconds", "60"],
        long: &["model", "--operations", "20000000"],
    },
    Part {
        name: "promises",
        load: Load::Core,
        gate: &["promises", "--runs", "10", "--seconds", "60"],
        long: &["promises", "--runs", "1000"],
    },
    Part {
        name: "callbacks",
        load: Load::Core,
        gate: &["callbacks", "--runs", "6", "--seconds", "60"],
        long: &["callbacks", "--seconds", "600"],
    },
    Part {
        name: "strace",
        load: Load::Disk,
        gate: &["kill", "--strace", "--seconds", "15"],
        long: &["kill", "--strace", "--seconds", "200"],
    },
    Part {
        name: "full disk",
        load: Load::Disk,
        gate: &["kill", "--enospc", "--seconds", "15"],
        long: &["kill", "--enospc", "--seconds", "200"],
    },
];

/// The result of a part.
struct Report {
    part: usize,
    line: Option<Value>,
    /// Its last lines of output.
    said: Vec<String>,
    passed: bool,
    seconds: f64,
}

const SAID_LINES_MAX: usize = 60;
/// The number of its last lines that are repeated in the summary, and the length of each.
const SAID_AGAIN_LINES_MAX: usize = 20;
const SAID_AGAIN_CHARS_MAX: usize = 300;

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let parts: Vec<&'static Part> = PARTS
        .iter()
        .filter(|part| arguments.only.is_empty() || arguments.only.iter().any(|n| n == part.name))
        .collect();
    if parts.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        eprintln!("no part of that name: try {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    if arguments.list {
        for part in parts {
            let words = part.arguments(arguments.form).join(" ");
            println!("{:<12} spinney-sim {words} --seed {}", part.name, arguments.seed);
        }
        return ExitCode::SUCCESS;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = arguments.jobs.unwrap_or(cores).max(1);
    let started = Instant::now();
    let reports = run_parts(&parts, arguments, jobs, started);
    sum_up(&parts, &reports, arguments, started)
}

fn run_parts(
    parts: &[&'static Part],
    arguments: &Arguments,
    jobs: usize,
    started: Instant,
) -> Vec<Report> {
    let (sender, receiver) = channel();
    let mut lanes = [(Load::Core, jobs), (Load::Disk, 1)].map(|(load, free)| {
        let waiting: Vec<usize> = (0..parts.len()).filter(|&n| parts[n].load == load).collect();
        (waiting.into_iter(), free)
    });
    let mut reports: Vec<Report> = Vec::new();
    while reports.len() < parts.len() {
        for (waiting, free) in &mut lanes {
            for number in waiting.by_ref().take(*free) {
                begin(number, parts[number], arguments, started, sender.clone());
                *free -= 1;
            }
        }
        let Ok(report) = receiver.recv() else { break };
        let part = parts[report.part];
        lanes[usize::from(part.load == Load::Disk)].1 += 1;
        let ended = if report.passed { "passed" } else { "FAILED" };
        eprintln!("{:>6.0} s  {} {ended}", started.elapsed().as_secs_f64(), part.name);
        if !report.passed {
            report.said.iter().for_each(|line| eprintln!("  {line}"));
        }
        reports.push(report);
    }
    reports.sort_by_key(|report| report.part);
    reports
}

/// Starts a part on a thread that waits for it.
fn begin(
    number: usize,
    part: &'static Part,
    arguments: &Arguments,
    started: Instant,
    done: Sender<Report>,
) {
    let words = part.arguments(arguments.form);
    let seed = arguments.seed.to_string();
    std::thread::spawn(move || {
        let began = Instant::now();
        let mut report =
            Report { part: number, line: None, said: Vec::new(), passed: false, seconds: 0.0 };
        match spawn(words, &seed) {
            Ok(child) => watch(child, part.name, started, &mut report),
            Err(error) => report.said.push(format!("it could not be started: {error}")),
        }
        report.seconds = began.elapsed().as_secs_f64();
        // Nobody waits any more if the command itself is ending.
        let _ = done.send(report);
    });
}

fn spawn(words: &[&str], seed: &str) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(words)
        .args(["--seed", seed])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

fn watch(mut child: Child, name: &str, started: Instant, report: &mut Report) {
    let stdout = child.stdout.take();
    let last_line = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.map(|mut stdout| stdout.read_to_string(&mut text));
        text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())
    });
    let mut told = Instant::now();
    for line in child.stderr.take().into_iter().flat_map(|e| BufReader::new(e).lines()) {
        let Ok(line) = line else { break };
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            eprintln!("{:>6.0} s  {name}: {line}", started.elapsed().as_secs_f64());
        }
        report.said.push(line);
        if report.said.len() > SAID_LINES_MAX {
            report.said.remove(0);
        }
    }
    report.line = last_line.join().ok().flatten();
    let exited = child.wait().is_ok_and(|status| status.success());
    report.passed = exited && report.line.is_some();
}

fn sum_up(
    parts: &[&'static Part],
    reports: &[Report],
    arguments: &Arguments,
    started: Instant,
) -> ExitCode {
    let number = |report: &Report, field: &str| {
        report.line.as_ref().and_then(|line| line[field].as_u64()).unwrap_or(0)
    };
    eprintln!(
        "\n{:<12} {:>12} {:>14} {:>10} {:>8}",
        "part", "states", "operations", "violations", "s"
    );
    for report in reports {
        eprintln!(
            "{:<12} {:>12} {:>14} {:>10} {:>8.0}{}",
            parts[report.part].name,
            number(report, "states"),
            number(report, "operations"),
            number(report, "violations"),
            report.seconds,
            if report.passed { "" } else { "  FAILED" }
        );
    }
    let sum = |field| reports.iter().map(|report| number(report, field)).sum::<u64>();
    let failed: Vec<&str> = reports
        .iter()
        .filter(|report| !report.passed)
        .map(|report| parts[report.part].name)
        .collect();
    let lines: Vec<&Value> = reports.iter().filter_map(|report| report.line.as_ref()).collect();
    println!(
        "{}",
        json!({
            "regime": "soak",
            "form": format!("{:?}", arguments.form).to_lowercase(),
            "seed": arguments.seed,
            "states": sum("states"),
            "operations": sum("operations"),
            "violations": sum("violations"),
            "seconds": started.elapsed().as_secs_f64().round(),
            "failed": failed,
            "parts": lines,
        })
    );
    // Once more, and last: of a long log only the end may be kept.
    for report in reports.iter().filter(|report| !report.passed) {
        eprintln!("\n{} FAILED:", parts[report.part].name);
        let said = &report.said[report.said.len().saturating_sub(SAID_AGAIN_LINES_MAX)..];
        for line in said {
            eprintln!("  {}", line.chars().take(SAID_AGAIN_CHARS_MAX).collect::<String>());
        }
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
