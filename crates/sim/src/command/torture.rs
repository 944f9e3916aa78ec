//! `spinney-sim torture`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Common, finish};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::torture::child;
use crate::torture::evidence::judge_again;
use crate::torture::life::{Lives, Worst};
use crate::torture::script::Script;

/// Kills processes that work on stores of gigabytes, and judges data, memory, space, descriptors,
/// stalls, checks and opening times.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim torture --size-mib 1200 --kills 300 --kind mixed
  spinney-sim torture --size-mib 300 --seconds 150 --kind mixed --seed 7
  spinney-sim torture --judge spinney-torture-mixed-7")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Approximate size of each store in MiB.
    #[arg(long, default_value_t = 1200)]
    size_mib: u64,
    /// Stop after this many kills of each kind; the same as --states.
    #[arg(long)]
    kills: Option<u64>,
    /// Number of lives of one store, before the next seed's store.
    #[arg(long, default_value_t = 40)]
    lives: u64,
    /// Judge only the data of the stores. Excess memory, space or time is reported and counted, but
    /// is not a violation.
    #[arg(long)]
    data: bool,
    /// The directory for the stores [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Judge the store kept by an earlier run.
    #[arg(long)]
    judge: Option<PathBuf>,
}

/// The arguments of the process to be killed.
#[derive(Debug, clap::Args)]
pub struct ChildArguments {
    dir: PathBuf,
}

/// Figures that are reported besides the judgement.
#[derive(Default)]
struct Figures {
    worst: Worst,
    live_bytes: u64,
    no_cgroup: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let mut common = arguments.common.clone();
    if let Some(kept) = &arguments.judge {
        let mut outcome = Outcome::default();
        outcome.count("judged again");
        if let Err(what) = judge_again(kept) {
            eprintln!("{what}");
            let command = format!("spinney-sim torture --judge {}", kept.display());
            outcome.violations.push(Violation { what, command });
        }
        return finish("torture", common.seed, started, &outcome, json!({}));
    }
    common.states = arguments.kills.or(common.states);
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let mut figures = Figures::default();
    let ends = common.seconds.map(|seconds| started + Duration::from_secs_f64(seconds));
    let kills = common.states.unwrap_or(u64::MAX).min(arguments.lives);
    let total = common.repeat(|seed, kinds| {
        let script = Script::new(seed, kinds, arguments.size_mib << 20);
        one(script, &parent, (kills, common.keep_going, arguments.data), ends, &mut figures)
    });
    let worst = figures.worst;
    let more = json!({
        "counts": total.counts,
        "live_bytes_max": figures.live_bytes,
        "cgroup": figures.no_cgroup.is_none(),
        "no_cgroup": figures.no_cgroup,
        "worst": {
            "memory": rounded(worst.memory),
            "space": rounded(worst.space),
            "space_idle": rounded(worst.space_idle),
            "live_error": rounded(worst.live_error),
            "descriptors": worst.descriptors,
            "stall_seconds": rounded(worst.stall.as_secs_f64()),
            "stall_seconds_net": rounded(worst.stall_net.as_secs_f64()),
            "opening": rounded(worst.opening),
        },
    });
    finish("torture", common.seed, started, &total, more)
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// Runs the lives of one store.
fn one(
    script: Script,
    parent: &Path,
    (kills, keep_going, data_alone): (u64, bool, bool),
    ends: Option<Instant>,
    figures: &mut Figures,
) -> Outcome {
    let (seed, kinds, bytes) = (script.seed, script.kinds, script.bytes);
    let dir = parent.join(format!("spinney-torture-{}-{kinds}-{seed}", std::process::id()));
    let failed = |what: String| Outcome {
        violations: vec![violation(&dir, seed, kinds, what)],
        ..Outcome::default()
    };
    let mut lives = match Lives::new(&dir, script) {
        Ok(lives) => lives,
        Err(what) => return failed(what),
    };
    lives.keep_going = keep_going || data_alone;
    let mut told = Instant::now();
    let (mut full_lives, mut excesses) = (0, Vec::new());
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let is_over = || ends.is_some_and(|ends| Instant::now() >= ends);
        // Filling is not counted: it takes as many lives as it takes.
        while full_lives + 1 < kills && !is_over() {
            lives.live(false)?;
            lives.excesses.drain(..).for_each(|what| excess(&what, &mut excesses));
            full_lives += u64::from(lives.is_full());
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!(
                    "{kinds}, seed {seed}: {} lives, {} MiB live, {} steps; memory {:.2}, space {:.2} and \
                     {:.2} idle, stall {:.0?} ({:.0?} net)",
                    lives.outcome.state_count(),
                    lives.live_bytes() >> 20,
                    lives.outcome.operations,
                    lives.worst.memory,
                    lives.worst.space,
                    lives.worst.space_idle,
                    lives.worst.stall,
                    lives.worst.stall_net,
                );
            }
        }
        lives.live(true)
    }));
    figures.add(&lives);
    lives.excesses.drain(..).for_each(|what| excess(&what, &mut excesses));
    let mut outcome = std::mem::take(&mut lives.outcome);
    let command = format!(
        "spinney-sim torture --kind {kinds} --seed {seed} --size-mib {} --runs 1",
        bytes >> 20
    );
    if data_alone {
        excesses.iter().for_each(|_| outcome.count("above what is promised"));
    } else {
        outcome.violations.extend(excesses.into_iter().map(|what| Violation {
            what: format!("seed {seed}, {kinds}, {what}"),
            command: command.clone(),
        }));
    }
    match lived.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
        Ok(()) => drop(std::fs::remove_dir_all(&dir)),
        Err(what) => {
            let what = format!("seed {seed}, {kinds}, {what}");
            outcome.violations.push(violation(&dir, seed, kinds, what));
        }
    }
    outcome
}

/// Reports something that does not end the store's lives.
fn excess(what: &str, excesses: &mut Vec<String>) {
    eprintln!("{what}");
    excesses.push(what.to_string());
}

impl Figures {
    fn add(&mut self, lives: &Lives) {
        let (worst, new) = (&mut self.worst, lives.worst);
        worst.memory = worst.memory.max(new.memory);
        worst.space = worst.space.max(new.space);
        worst.space_idle = worst.space_idle.max(new.space_idle);
        worst.live_error = worst.live_error.max(new.live_error);
        worst.descriptors = worst.descriptors.max(new.descriptors);
        worst.stall = worst.stall.max(new.stall);
        worst.stall_net = worst.stall_net.max(new.stall_net);
        worst.opening = worst.opening.max(new.opening);
        self.live_bytes = self.live_bytes.max(lives.live_bytes());
        self.no_cgroup = self.no_cgroup.take().or_else(|| lives.no_cgroup.clone());
    }
}

/// Creates a violation for the store in `dir`, and keeps the store for reproduction.
fn violation(dir: &Path, seed: u64, kinds: Kinds, what: String) -> Violation {
    for more in ["store", "copies", "fresh"] {
        let _ = std::fs::remove_dir_all(dir.join(more));
    }
    let _ = std::fs::write(dir.join("violation.txt"), &what);
    let kept = dir.with_file_name(format!("spinney-torture-{kinds}-{seed}"));
    let _ = std::fs::remove_dir_all(&kept);
    let kept = match std::fs::rename(dir, &kept) {
        Ok(()) => kept,
        Err(_) => dir.to_path_buf(),
    };
    Violation { what, command: format!("spinney-sim torture --judge {}", kept.display()) }
}

/// Works until the process is killed.
pub fn run_child(arguments: &ChildArguments) -> ExitCode {
    child::run(&arguments.dir);
    ExitCode::SUCCESS
}
