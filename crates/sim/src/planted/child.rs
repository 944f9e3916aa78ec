//! One search in its own process. It reports each part of a round on a line of standard output.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::json;
use spinney::planted::{Bug, activate};

use super::regimes::parts;
use crate::command::planted::Arguments;
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};

/// A child ends so long after its time is up.
const GRACE_SECONDS: f64 = 30.0;

/// Searches from the arguments' seed until something is found, or for the arguments' rounds.
pub fn child(name: &str, arguments: &Arguments) -> ExitCode {
    let bug = Bug::ALL.iter().copied().find(|bug| bug.name() == name);
    if bug.is_none() && name != "none" {
        eprintln!("no bug {name:?}");
        return ExitCode::FAILURE;
    }
    activate(bug);
    // Should the parent not be there to end it, a bug that hangs must not run on indefinitely.
    let limit = Duration::from_secs_f64(arguments.seconds + GRACE_SECONDS);
    thread::spawn(move || {
        thread::sleep(limit);
        std::process::exit(2);
    });
    // A panic is told as what was found, not on the terminal of many searches at once.
    std::panic::set_hook(Box::new(|_| ()));
    // Trees that keep operations themselves are for tests alone so far.
    let of = bug.map(Bug::name).or(arguments.as_for.as_deref());
    let is_of_logs = of.is_some_and(|name| name.starts_with("operation-log-"));
    let mut kinds = Kinds::All.runs();
    kinds.retain(|kinds| of.is_none() || kinds.is_for_tests() == is_of_logs);
    let rounds = arguments.first_round..arguments.first_round + arguments.rounds;
    for (round, regime) in parts(bug, &arguments.regime, rounds) {
        let seed = arguments.seed.wrapping_add(round);
        let kinds = kinds[(round % kinds.len() as u64) as usize];
        let run = catch_unwind(AssertUnwindSafe(|| (regime.run)(seed, kinds)));
        let outcome = run.unwrap_or_else(|panic| Outcome {
            violations: vec![Violation { what: panic_text(&*panic), command: String::new() }],
            ..Outcome::default()
        });
        let found = outcome.violations.first();
        let line = json!({
            "states": outcome.state_count(),
            "found": found.map(|violation| &violation.what),
            "command": found.map(|violation| &violation.command),
        });
        if writeln!(std::io::stdout(), "{line}").is_err() {
            return ExitCode::FAILURE;
        }
        if found.is_some() {
            // Without tidying up: a bug may be in the way.
            std::process::exit(1);
        }
    }
    ExitCode::SUCCESS
}
