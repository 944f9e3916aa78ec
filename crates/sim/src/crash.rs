//! Runs of the crash regime: generations of work, each on what a crash of the last one has left, and
//! in each many crashes that are judged.
//!
//! Invariants:
//! 1. A state is named by the run's seed, the generation and its number there; it does not depend on
//!    which others are judged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::action::Action;
use crate::disk::{Disk, Node, Op, Policy};
use crate::kinds::Kinds;
use crate::model::Checkpoint;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;
use crate::session::Inherited;
use crate::sizes::Sizes;
use crate::verify::{Found, Judge};
use crate::workload::{self, Generation};

/// How much a run does.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// How often the store crashes and goes on.
    pub generations: usize,
    /// Steps of work in each.
    pub steps: usize,
    /// Crashes judged in each.
    pub states: usize,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { generations: 3, steps: 200, states: 40 }
    }
}

/// One state among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateName {
    /// The generation.
    pub generation: usize,
    /// The number in it.
    pub number: usize,
}

/// The command that shows a state again; none if the store failed before any crash.
fn command(seed: u64, kinds: Kinds, extent: Extent, state: Option<StateName>) -> String {
    let mut command = format!("spinney-sim crash --kind {kinds} --seed {seed} --runs 1");
    let default = Extent::default();
    if extent.steps != default.steps {
        command += &format!(" --steps {}", extent.steps);
    }
    if let Some(StateName { generation, number }) = state {
        command += &format!(" --only {generation}.{number}");
    }
    command
}

/// Where and how a state's crash happens.
struct Crash {
    number: usize,
    at: usize,
    policy: Policy,
    random: Random,
}

/// Judges the states of the run `seed`, or only one of them.
pub fn run(seed: u64, kinds: Kinds, extent: Extent, only: Option<StateName>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut last = None;
    let done = catch_unwind(AssertUnwindSafe(|| {
        run_generations(seed, kinds, extent, only, &mut outcome, &mut last)
    }));
    let what = match done {
        Ok(Ok(())) => return outcome,
        Ok(Err(what)) => what,
        Err(panic) => panic_text(&*panic),
    };
    outcome.violations.push(Violation { what, command: command(seed, kinds, extent, last) });
    outcome
}

fn run_generations(
    seed: u64,
    kinds: Kinds,
    extent: Extent,
    only: Option<StateName>,
    outcome: &mut Outcome,
    last: &mut Option<StateName>,
) -> Result<(), String> {
    let sizes = Sizes::new(seed, kinds);
    let mut disk = Disk::default();
    disk.apply(&Op::Names { changes: vec![(PathBuf::from("data"), Some(Node::Dir))] });
    disk.apply(&Op::SyncDir { dir: PathBuf::new() });
    let mut inherited: Option<Vec<Inherited>> = None;
    let mut checkpoints: Vec<Checkpoint> = Vec::new();
    for number in 0..extent.generations {
        *last = None;
        let actions = workload::actions(seed, number, extent.steps);
        outcome.operations += actions.iter().map(Action::operations).sum::<u64>();
        let made = workload::run(sizes, number, &disk, inherited, checkpoints, actions)?;
        let first = if number == 0 { 0 } else { made.history.opened };
        let mut crashes: Vec<Crash> = (0..extent.states)
            .map(|state| plan(&made, first, &[seed, 3, number as u64], state))
            .collect();
        // One more, judged like the others, is where the next generation begins.
        let from =
            plan(&made, first.max(made.history.opened), &[seed, 4, number as u64], extent.states);
        let (from_number, goes_further) = (from.number, number + 1 < extent.generations);
        crashes.push(from);
        crashes.sort_by_key(|crash| crash.at);
        let mut replayed = (made.disk.clone(), 0);
        let mut next = None;
        for mut crash in crashes {
            let name = StateName { generation: number, number: crash.number };
            let goes_on = crash.number == from_number;
            let judged = only.is_none_or(|only| only == name);
            if !(judged || goes_on && goes_further) {
                continue;
            }
            *last = Some(name);
            made.log[replayed.1..crash.at].iter().for_each(|op| replayed.0.apply(op));
            replayed.1 = crash.at;
            let left = replayed.0.crash(crash.policy, made.log.get(crash.at), &mut crash.random);
            let found = judge(sizes, &made, number, &mut crash, &left);
            if judged {
                let crashes = found.as_ref().map_or(1, |found| found.crashes);
                *outcome.states.entry(format!("{:?}", crash.policy)).or_default() += crashes;
            }
            match found {
                Ok(found) if goes_on => next = Some((left, found, crash.at)),
                Ok(_) => {}
                Err(what) if judged => {
                    let (at, ops, policy) = (crash.at, made.log.len(), crash.policy);
                    let trace = made.history.trace_before(&made.actions, at);
                    let what = format!("crash at op {at} of {ops}, {policy:?}: {what}\n{trace}");
                    let command = command(seed, kinds, extent, Some(name));
                    outcome.violations.push(Violation { what, command });
                }
                Err(_) => {}
            }
        }
        let Some((left, found, at)) = next else { return Ok(()) };
        disk = left;
        inherited = Some(inherit(&made, &found));
        let finished = made.history.checkpoints.iter().filter(|copy| copy.span.returned <= at);
        checkpoints =
            finished.map(|copy| Checkpoint { span: Default::default(), ..copy.clone() }).collect();
    }
    Ok(())
}

fn plan(made: &Generation, first: usize, seeds: &[u64], number: usize) -> Crash {
    let mut random = Random::new(&[seeds, &[number as u64]].concat());
    let ops = made.log.len();
    let mut at = first + random.below(ops + 1 - first);
    if random.one_in(2) {
        // Next to something rarer than bytes written.
        let rare = made.log[at..].iter().position(|op| !matches!(op, Op::Write { .. }));
        at += rare.map_or(0, |ahead| ahead + random.below(2));
    }
    let policy = Policy::random(&mut random);
    Crash { number, at, policy, random }
}

fn judge(
    sizes: Sizes,
    made: &Generation,
    generation: usize,
    crash: &mut Crash,
    left: &Disk,
) -> Result<Found, String> {
    let history = &made.history;
    let may_be_missing = generation == 0 && crash.at < history.opened;
    let judge = Judge { sizes, history, may_be_missing, at: crash.at };
    let nested = [0, 1, 1, 2][crash.random.below(4)];
    let judged = catch_unwind(AssertUnwindSafe(|| {
        judge.judge(left, crash.policy.keeps_unsynced(), &mut crash.random, nested)
    }));
    judged.unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

fn inherit(made: &Generation, found: &Found) -> Vec<Inherited> {
    let keyspaces = found.keyspaces.iter().map(|&place| {
        let keyspace = &made.history.keyspaces[place];
        let pairs = keyspace.pairs(found.commits);
        Inherited { number: keyspace.number, options: keyspace.options, pairs }
    });
    keyspaces.collect()
}
