//! The score of the regimes: they must find bugs planted into the engine, one at a time.
//!
//! A *search* looks for one bug from one first seed. It has its own process ([`child`]), because a
//! bug may panic, abort or hang. A round runs each regime once with the round's seed. Rounds are
//! repeated until a regime reports a violation. The round and regime that found the bug last go
//! first, then that regime alone for as many rounds, and only if it finds nothing all regimes. The
//! round and regime that found a bug run again without it and must find nothing, and so must a few
//! rounds of all regimes. This shows that the regimes found the bugs, and not faults of their own.
//!
//! Invariants:
//! 1. A search is repeatable, except for regimes with threads.
//! 2. A bug counts as found only if each of its searches has found it.
//! 3. The limit of a search is a number of rounds, which are the same work on any machine. Time is
//!    a last resort.

mod child;
mod queue;
mod regimes;
mod report;
mod search;
mod system;

use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use spinney::planted::Bug;

use crate::command::planted::Arguments;
use queue::Queue;
use report::Score;
use search::{Ended, Search};

pub use child::child;

/// Carries out all searches.
pub fn run(arguments: &Arguments) -> ExitCode {
    let bugs = match chosen(&arguments.bug) {
        Ok(bugs) => bugs,
        Err(name) => {
            eprintln!("no bug {name:?}: `spinney-sim planted --list` names them");
            return ExitCode::FAILURE;
        }
    };
    if arguments.list {
        for bug in bugs {
            println!("{:30} {:10} {}", bug.name(), bug.module(), bug.what());
        }
        return ExitCode::SUCCESS;
    }
    if regimes::chosen(&arguments.regime).is_empty() {
        eprintln!("no regime of a round is called {}", arguments.regime.join(" or "));
        return ExitCode::FAILURE;
    }
    if let Some(line) = regimes::stale_finder() {
        eprintln!("crates/sim/src/planted/finders.txt: no such bug or regime: {line:?}");
        return ExitCode::FAILURE;
    }
    let started = Instant::now();
    let mut searches = Vec::new();
    for seed in (0..arguments.seeds).map(|n| first_seed(arguments.seed, n)) {
        let limit = Duration::from_secs_f64(arguments.seconds);
        let search =
            |bug| Search::new(bug, seed, arguments.rounds, limit).within(&arguments.regime);
        searches.extend(bugs.iter().map(|&bug| search(Some(bug))));
    }
    let mut score = Score::new(bugs, arguments.verbose);
    for (search, ended) in carry_out(searches, arguments) {
        match search.bug {
            Some(_) => score.add(&search, ended),
            None => score.add_clean(&search, ended),
        }
    }
    if let Some(path) = &arguments.finders
        && let Err(error) = std::fs::write(path, score.finders())
    {
        eprintln!("{}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    score.print(arguments.seed, started.elapsed())
}

/// Seeds of different searches are far apart.
fn first_seed(seed: u64, number: u64) -> u64 {
    seed.wrapping_add(number * 1_000_000)
}

fn chosen(names: &[String]) -> Result<Vec<Bug>, &String> {
    let by_name = |name| Bug::ALL.iter().copied().find(|bug| bug.name() == name);
    let chosen: Result<Vec<Bug>, &String> =
        names.iter().map(|name| by_name(name.as_str()).ok_or(name)).collect();
    chosen.map(|chosen| if chosen.is_empty() { Bug::ALL.to_vec() } else { chosen })
}

/// Carries out searches, several at a time, and the one without a bug; tells how far it is.
fn carry_out(searches: Vec<Search>, arguments: &Arguments) -> Vec<(Search, Ended)> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let count = searches.len();
    let queue = Queue::new(searches, &arguments.regime);
    let told = Mutex::new((0, Instant::now()));
    let results = Mutex::new(Vec::with_capacity(count));
    let work = || {
        while let Some(search) = queue.next() {
            let ended = search.carry_out();
            queue.has_ended(&search, &ended);
            if let (Some(bug), None) = (search.bug, &ended.found) {
                let (name, rounds) = (bug.name(), ended.rounds);
                let why = if ended.is_undecided { ", given up: too slow" } else { "" };
                eprintln!("{name} not found from seed {} in {rounds} rounds{why}", search.seed);
            }
            if let (Some(_), Ok(mut told)) = (search.bug, told.lock()) {
                told.0 += 1;
                if told.1.elapsed() > Duration::from_secs(5) {
                    told.1 = Instant::now();
                    eprintln!("{} of {count} searches have ended", told.0);
                }
            }
            if let Ok(mut results) = results.lock() {
                results.push((search, ended));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..arguments.jobs.unwrap_or(cores).max(1) {
            scope.spawn(work);
        }
    });
    results.into_inner().unwrap_or_default()
}
