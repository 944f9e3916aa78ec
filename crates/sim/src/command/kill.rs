//! `spinney-sim kill`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;

use super::{Common, finish};
use crate::kill::rounds::{Rounds, judge_again, violation};
use crate::kill::script::Script;
use crate::kill::{child, faults, full};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, panic_text};
use crate::random::Random;

/// Runs real threads on real stores, kills the process and judges the store.
///
/// The moment of a kill is not repeatable. The store of a violation is kept, and the printed
/// command judges it again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  spinney-sim kill --kills 1000
  spinney-sim kill --kind mixed --seed 7 --seconds 60
  spinney-sim kill --strace --seconds 60
  spinney-sim kill --enospc --seconds 30
  spinney-sim kill --judge spinney-kill-stb-7")]
pub struct Arguments {
    #[command(flatten)]
    common: Common,
    /// Stop after this many kills of each kind; the same as --states.
    #[arg(long)]
    kills: Option<u64>,
    /// The directory for the stores [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Use strace to make system calls fail, or to kill the process in them.
    #[arg(long)]
    strace: bool,
    /// Run on a disk of a few MiB until it is full.
    #[arg(long, conflicts_with = "strace")]
    enospc: bool,
    /// Judge the store kept by an earlier run.
    #[arg(long)]
    judge: Option<PathBuf>,
}

/// The arguments of the process to be killed.
#[derive(Debug, clap::Args)]
pub struct ChildArguments {
    dir: PathBuf,
    #[arg(long)]
    faulty: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let mut common = arguments.common.clone();
    common.states = arguments.kills.or(common.states);
    let regime = match (arguments.strace, arguments.enospc) {
        (true, _) => "kill --strace",
        (_, true) => "kill --enospc",
        _ => "kill",
    };
    if let Some(kept) = &arguments.judge {
        let mut outcome = Outcome::default();
        outcome.count("judged again");
        if let Err(what) = judge_again(kept) {
            eprintln!("{what}");
            let command = format!("spinney-sim kill --judge {}", kept.display());
            outcome.violations.push(crate::outcome::Violation { what, command });
        }
        return finish(regime, common.seed, started, &outcome, json!({}));
    }
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let missing = match (arguments.strace, arguments.enospc) {
        (true, _) => faults::missing(),
        (_, true) => full::SmallDisk::missing(&parent.join(unique("try"))),
        _ => None,
    };
    if let Some(why) = missing {
        eprintln!("skipped: {why}");
        return finish(regime, common.seed, started, &Outcome::default(), json!({"skipped": why}));
    }
    let mut notes = BTreeMap::new();
    let total = common.repeat(|seed, kinds| one(arguments, &parent, seed, kinds, &mut notes));
    finish(regime, common.seed, started, &total, json!({"notes": notes}))
}

fn unique(what: &str) -> String {
    format!("spinney-kill-{}-{what}", std::process::id())
}

/// Runs the lives of one store.
fn one(
    arguments: &Arguments,
    parent: &Path,
    seed: u64,
    kinds: Kinds,
    notes: &mut BTreeMap<&'static str, u64>,
) -> Outcome {
    let mut random = Random::new(&[seed, 16]);
    let dir = parent.join(unique(&format!("{kinds}-{seed}")));
    let faulty = arguments.strace || arguments.enospc;
    let mut script = Script::new(seed, kinds);
    (script.fills, script.blocking) = (arguments.enospc, arguments.strace);
    let mut rounds = match Rounds::new(&dir, script) {
        Ok(rounds) => rounds,
        Err(error) => {
            let mut outcome = Outcome::default();
            let what = format!("{}: {error}", dir.display());
            outcome.violations.push(violation(&dir, &script, what));
            return outcome;
        }
    };
    (rounds.faults, rounds.faulty) = (arguments.strace, faulty);
    let count = 2 + random.below(14);
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match arguments.enospc {
        true => full::live(&mut rounds, &dir, 1 + count / 3),
        false => (0..count).try_for_each(|_| rounds.round()).and_then(|()| rounds.judge()),
    }));
    let mut outcome = std::mem::take(&mut rounds.outcome);
    match lived.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
        Ok(()) => drop(std::fs::remove_dir_all(&dir)),
        Err(what) => {
            let what = format!("seed {seed}, {kinds}: {what}");
            outcome.violations.push(violation(&dir, &script, what));
        }
    }
    for (what, count) in rounds.notes {
        *notes.entry(what).or_default() += count;
    }
    outcome
}

/// Works until the process is killed.
pub fn run_child(arguments: &ChildArguments) -> ExitCode {
    child::run(&arguments.dir, arguments.faulty);
    ExitCode::SUCCESS
}
