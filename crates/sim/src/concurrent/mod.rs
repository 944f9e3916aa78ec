//! Real threads on one store: their operations and results are recorded and judged.
//!
//! 1. [`history`] has the operations, results and times. `value` makes values identify their
//!    writers.
//! 2. `workload` runs threads on a store. `worker` is one of them; `upkeep` is the thread that
//!    flushes, compacts, copies, creates and drops.
//! 3. [`check`] decides whether one order of commits explains a history.
//!
//! Real threads are not repeatable: a seed determines the operations of each thread and the store's
//! sizes, but not the schedule. So a violation is kept as its history, which can be judged again.

pub mod check;
pub mod history;
mod slow;
mod upkeep;
mod value;
mod worker;
mod workload;

use std::path::PathBuf;

use check::{Verdict, judge};
use history::{Action, History};

use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation};

/// How much a run does.
#[derive(Debug, Clone)]
pub struct Extent {
    /// Threads that write and read; 0: two to eight, drawn from the seed.
    pub threads: usize,
    /// What each of them does from one opening of the store to the next.
    pub operations: usize,
    /// How often the store is opened to be worked on.
    pub sessions: usize,
    /// Where stores are made on the file system; in memory if nowhere.
    pub dir: Option<PathBuf>,
    /// Where the history of a violation is written.
    pub out: Option<PathBuf>,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { threads: 0, operations: 400, sessions: 2, dir: None, out: None }
    }
}

/// Lets threads loose on a store of a seed's sizes and judges what they saw.
///
/// States are histories, by what became of them: `holds`, `broken`, `undecided`. The last is told
/// as a violation too: nothing shall be passed over.
pub fn run(seed: u64, kinds: Kinds, extent: &Extent) -> Outcome {
    let history = workload::record(seed, kinds, extent);
    let threads = extent.threads;
    let again = format!(
        "spinney-sim threads --kind {kinds} --seed {seed} --runs 1 --threads {threads} \
         --session-operations {} --sessions {}",
        extent.operations, extent.sessions
    );
    let mut outcome = outcome(&history, &again);
    if let (Some(out), false) = (&extent.out, outcome.violations.is_empty()) {
        match std::fs::write(out, format!("# {again}\n{history}")) {
            Ok(()) => outcome.violations.iter_mut().for_each(|violation| {
                violation.command = format!("spinney-sim threads --judge {}", out.display());
            }),
            Err(error) => eprintln!("{}: {error}", out.display()),
        }
    }
    outcome
}

/// The most violations of one history that are told.
const TOLD_MAX: usize = 3;

/// What is to be said of a history.
pub fn outcome(history: &History, again: &str) -> Outcome {
    let mut outcome = Outcome { operations: operation_count(history), ..Outcome::default() };
    let told = match judge(history) {
        Verdict::Holds(_) => {
            outcome.count("holds");
            Vec::new()
        }
        Verdict::Broken(violations) => {
            outcome.count("broken");
            violations.iter().take(TOLD_MAX).map(|violation| violation.tell(history)).collect()
        }
        Verdict::Undecided(why) => {
            outcome.count("undecided");
            vec![format!("undecided: {why}")]
        }
    };
    outcome.violations =
        told.into_iter().map(|what| Violation { what, command: again.to_string() }).collect();
    outcome
}

/// How many things a history says were done to a store.
fn operation_count(history: &History) -> u64 {
    let notes = |action: &Action| matches!(action, Action::Note(_) | Action::Odd(_));
    history.operations.iter().filter(|operation| !notes(&operation.action)).count() as u64
}
