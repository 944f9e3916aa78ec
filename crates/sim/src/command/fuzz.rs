//! `spinney-sim fuzz`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use spinney::fuzz::Target;

use super::finish;
use crate::fuzz::{self, Extent};
use crate::outcome::{Outcome, Violation};

/// A case that runs longer than this counts as endless.
const HANG: Duration = Duration::from_secs(60);

/// Feeds decoders and whole stores with nearly valid bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim fuzz --list
  spinney-sim fuzz --seconds 20
  spinney-sim fuzz --target store --seed 7 --seconds 600
  spinney-sim fuzz --target manifest --seed 7 --only 12345
  spinney-sim fuzz --target manifest-edit --input 0105
  spinney-sim fuzz --target all --write fuzz/corpus --seconds 0")]
pub struct Arguments {
    /// A target's name, or `all`.
    #[arg(long, default_value = "all")]
    target: String,
    /// List the targets.
    #[arg(long)]
    list: bool,
    /// The seed of the cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop each target after this many seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Stop each target after this many cases.
    #[arg(long)]
    cases: Option<u64>,
    /// Number of targets that run in parallel.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run only the case with this number.
    #[arg(long, conflicts_with = "input")]
    only: Option<u64>,
    /// Run only these bytes, given in hexadecimal.
    #[arg(long, value_parser = parse_hex)]
    input: Option<Bytes>,
    /// Write the seeds of the targets to this directory, one subdirectory per target, in
    /// libFuzzer's form.
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Bytes(Vec<u8>);

fn parse_hex(text: &str) -> Result<Bytes, String> {
    fuzz::from_hex(text).map(Bytes)
}

/// The current case of each thread: target, number, and start time.
type Watch = Mutex<Option<(&'static str, u64, Instant)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let all = fuzz::targets();
    if arguments.list {
        all.iter().for_each(|target| println!("{}", target.name));
        return ExitCode::SUCCESS;
    }
    let wanted = |target: &Target| arguments.target == "all" || arguments.target == target.name;
    let targets: VecDeque<Target> = all.into_iter().filter(wanted).collect();
    if targets.is_empty() {
        eprintln!("no target {:?}: see spinney-sim fuzz --list", arguments.target);
        return ExitCode::FAILURE;
    }
    if let Some(dir) = &arguments.write
        && let Err(error) = write_seeds(&targets, dir)
    {
        eprintln!("{}: {error}", dir.display());
        return ExitCode::FAILURE;
    }
    fuzz::keep_panics();
    let names = targets.len();
    let total = match &arguments.input {
        Some(Bytes(input)) => try_one(&targets[0], input),
        None => try_all(arguments, targets),
    };
    for violation in &total.violations {
        eprintln!("{}\n  again: {}", violation.what, violation.command);
    }
    finish("fuzz", arguments.seed, started, &total, json!({ "targets": names }))
}

fn try_one(target: &Target, input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.count(target.name);
    if let Err(what) = fuzz::try_case(target, input) {
        let hex = fuzz::to_hex(input);
        let command = format!("spinney-sim fuzz --target {} --input {hex}", target.name);
        outcome.violations.push(Violation { what, command });
    }
    outcome
}

fn try_all(arguments: &Arguments, targets: VecDeque<Target>) -> Outcome {
    let (queue, total) = (Mutex::new(targets), Mutex::new(Outcome::default()));
    let watches: Vec<Watch> = (0..arguments.jobs.max(1)).map(|_| Mutex::new(None)).collect();
    let done = Mutex::new(0);
    std::thread::scope(|scope| {
        for watch in &watches {
            let (queue, total, done) = (&queue, &total, &done);
            scope.spawn(move || {
                loop {
                    let Some(target) = lock(queue).pop_front() else { break };
                    let outcome = try_target(arguments, &target, watch);
                    lock(total).add(outcome);
                }
                *lock(watch) = None;
                *lock(done) += 1;
            });
        }
        let mut told = Instant::now();
        while *lock(&done) < watches.len() {
            std::thread::sleep(Duration::from_millis(50));
            let tell = told.elapsed() > Duration::from_secs(5);
            for (target, number, since) in watches.iter().filter_map(|watch| *lock(watch)) {
                let seed = arguments.seed;
                let again = format!("--target {target} --seed {seed} --only {number}");
                if since.elapsed() > HANG {
                    eprintln!("does not end\n  again: spinney-sim fuzz {again}");
                    std::process::exit(1);
                }
                if tell {
                    told = Instant::now();
                    eprintln!("{target}: case {number}");
                }
            }
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn try_target(arguments: &Arguments, target: &Target, watch: &Watch) -> Outcome {
    let seed = arguments.seed;
    let extent = match arguments.only {
        Some(first) => Extent { seed, first, cases: 1 },
        None => Extent { seed, first: 0, cases: arguments.cases.unwrap_or(u64::MAX) },
    };
    // Made before the clock starts: the stores take a moment.
    drop((target.seeds)());
    let started = Instant::now();
    fuzz::run(target, extent, |number| {
        *lock(watch) = Some((target.name, number, Instant::now()));
        arguments.only.is_some() || started.elapsed().as_secs_f64() < arguments.seconds
    })
}

fn write_seeds(targets: &VecDeque<Target>, dir: &std::path::Path) -> std::io::Result<()> {
    for target in targets {
        let dir = dir.join(target.name);
        std::fs::create_dir_all(&dir)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{number:03}")), seed)?;
        }
    }
    Ok(())
}
