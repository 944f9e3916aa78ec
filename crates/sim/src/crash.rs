//! The crash regime: generations of work, each on the result of a crash of the one before, and many
//! judged crashes in each generation.
//!
//! Invariants:
//! 1. A state is identified by the run's seed, the generation and its number in it. It does not
//!    depend on which other states are judged.
//! 2. The actions of a generation and the [`Crash`] determine a state completely.

use std::collections::BTreeMap;

use std::time::Duration;

use clap::ValueEnum;

use crate::action::Action;
use crate::disk::{Disk, Op, Policy};
use crate::kinds::Kinds;
use crate::outcome::{Outcome, Violation, panic_text};
use crate::random::Random;
use crate::sizes::Sizes;
use crate::workload::{self, Generation};

pub mod base;
pub mod exhaustive;
pub mod story;

pub use base::{Base, Judged, Lie};

use story::Story;

/// How much a run does.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// How often the store crashes and goes on.
    pub generations: usize,
    /// Actions in each.
    pub steps: usize,
    /// Crashes judged in each.
    pub states: usize,
    /// Crashes in each whose recovery crashes at each of its operations.
    pub sweeps: usize,
    /// How long a violation's work may be cut down. If no time at all, the first ends the run.
    pub shrink: Duration,
    /// Whether the disk lies.
    pub lie: Option<Lie>,
}

impl Default for Extent {
    fn default() -> Extent {
        let shrink = Duration::from_secs(60);
        Extent { generations: 3, steps: 200, states: 40, sweeps: 0, shrink, lie: None }
    }
}

impl Extent {
    /// Crashes inside recovery.
    pub fn recovery() -> Extent {
        Extent { steps: 100, states: 0, sweeps: 2, ..Extent::default() }
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

/// What a crash is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Recovery, and so many crashes inside it, one inside the other.
    Recovery(usize),
    /// Recovery, which crashes at each of its operations.
    Sweep,
}

/// Where and how a crash happens, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crash {
    /// Before this operation.
    pub at: usize,
    /// What it takes.
    pub policy: Policy,
    /// Whatever is left to chance is drawn from it.
    pub draw: u64,
    /// What follows.
    pub then: Then,
}

/// A crash that a run judges.
struct Planned {
    number: usize,
    crash: Crash,
    /// Whether all that [`Policy::PowerSubset`] may leave is judged, where it can be counted.
    every_subset: bool,
}

/// The run of a seed.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The trees.
    pub kinds: Kinds,
    /// How much.
    pub extent: Extent,
}

/// Judges the states of the run `seed`, or only one of them.
pub fn run(seed: u64, kinds: Kinds, extent: Extent, only: Option<StateName>) -> Outcome {
    let mut outcome = Outcome::default();
    let run = Run { seed, kinds, extent };
    let done = base::caught(|| {
        run.each(|base, made| run.judge_generation(base, made, only, &mut outcome)).map(|_| ())
    });
    if let Err(what) = done {
        // The store failed without any crash, or its simulation did.
        outcome.violations.push(Violation { what, command: run.command() });
    }
    outcome
}

impl Run {
    /// The command that does it again.
    fn command(&self) -> String {
        let Run { seed, kinds, extent } = self;
        let mut command = format!("spinney-sim crash --kind {kinds} --seed {seed} --runs 1");
        let default = match extent.sweeps {
            0 => Extent::default(),
            _ => {
                command += " --recovery";
                Extent::recovery()
            }
        };
        if let Some(lie) = extent.lie.and_then(|lie| lie.to_possible_value()) {
            command += &format!(" --lie {}", lie.get_name());
        }
        if extent.steps != default.steps {
            command += &format!(" --steps {}", extent.steps);
        }
        command
    }

    /// Does the work of each generation and gives it to `judge`, which says where the next one
    /// begins, if at all. Returns what the last one began on.
    fn each(
        &self,
        mut judge: impl FnMut(&Base, &Generation) -> Result<Option<Base>, String>,
    ) -> Result<Base, String> {
        let mut base = Base::empty(Sizes::new(self.seed, self.kinds), self.extent.lie);
        loop {
            let made = base.work(self.actions(base.number))?;
            match judge(&base, &made)? {
                Some(next) => base = next,
                None => return Ok(base),
            }
        }
    }

    fn actions(&self, generation: usize) -> Vec<Action> {
        workload::actions(self.seed, generation, self.extent.steps)
    }

    /// What the generation of that number begins on, and what is done in it.
    fn generation(&self, number: usize) -> Result<(Base, Vec<Action>), String> {
        let base = self.each(|base, made| match base.number < number {
            true => self.next(base, made, &made.replay(self.from(base, made).crash.at)).map(Some),
            false => Ok(None),
        })?;
        let actions = self.actions(base.number);
        Ok((base, actions))
    }

    /// The crash after which the next generation begins; it is judged like the others.
    fn from(&self, base: &Base, made: &Generation) -> Planned {
        let first = base.first(made).max(made.history.opened);
        self.plan(made, first, &[self.seed, 4, base.number as u64], self.extent.states)
    }

    fn next(&self, base: &Base, made: &Generation, before: &Disk) -> Result<Base, String> {
        let Planned { crash, .. } = self.from(base, made);
        let judged = base.judge(made, before, &crash)?;
        Ok(base.next(made, &crash, judged))
    }

    fn plan(&self, made: &Generation, first: usize, seeds: &[u64], number: usize) -> Planned {
        let mut random = Random::new(&[seeds, &[number as u64]].concat());
        let ops = made.log.len();
        let mut at = first + random.below(ops + 1 - first);
        if random.one_in(2) {
            // Next to something rarer than bytes written.
            let rare = made.log[at..].iter().position(|op| !matches!(op, Op::Write { .. }));
            at += rare.map_or(0, |ahead| ahead + random.below(2));
        }
        if random.one_in(4) {
            at = near_a_name(made, first, &mut random).unwrap_or(at);
        }
        let policy = Policy::random(&mut random);
        let every_subset = policy == Policy::PowerSubset && random.one_in(4);
        // Half of them small: then they name a subset, where there are few.
        let draw = random.draw() >> (random.below(2) * 56);
        let then = Then::Recovery([0, 0, 1, 1, 1, 1, 2, 3][random.below(8)]);
        Planned { number, crash: Crash { at, policy, draw, then }, every_subset }
    }

    fn judge_generation(
        &self,
        base: &Base,
        made: &Generation,
        only: Option<StateName>,
        outcome: &mut Outcome,
    ) -> Result<Option<Base>, String> {
        outcome.operations += made.actions.iter().map(Action::operations).sum::<u64>();
        let Extent { generations, states, sweeps, .. } = self.extent;
        let (number, first) = (base.number, base.first(made));
        let seeds = [self.seed, 3, number as u64];
        let mut all: Vec<Planned> =
            (0..states).map(|state| self.plan(made, first, &seeds, state)).collect();
        all.push(self.from(base, made));
        all.extend((states + 1..=states + sweeps).map(|number| {
            let mut planned = self.plan(made, first, &seeds, number);
            planned.crash.then = Then::Sweep;
            Planned { every_subset: false, ..planned }
        }));
        all.sort_by_key(|planned| planned.crash.at);
        let mut replayed = (made.disk.clone(), 0);
        let mut next = None;
        for Planned { number: state, crash, every_subset } in all {
            let name = StateName { generation: number, number: state };
            let goes_on = state == states && number + 1 < generations;
            let judged = only.is_none_or(|only| only == name);
            if !judged && !goes_on {
                continue;
            }
            made.log[replayed.1..crash.at].iter().for_each(|op| replayed.0.apply(op));
            replayed.1 = crash.at;
            let draws = match (every_subset, replayed.0.subsets()) {
                (true, Some(subsets)) => 0..subsets,
                _ => crash.draw..crash.draw.saturating_add(1),
            };
            if goes_on {
                next = self.next(base, made, &replayed.0).ok();
            }
            for draw in if judged { draws } else { 0..0 } {
                let crash = Crash { draw, ..crash };
                match base.judge(made, &replayed.0, &crash) {
                    Ok(judged) => judged.count(&crash, outcome),
                    Err(what) => {
                        outcome.count(crash.policy.to_string());
                        // One story is enough to begin with, and they take long.
                        let shrinks = outcome.violations.is_empty();
                        let found = self.violation(base, made, name, &crash, &what, shrinks);
                        outcome.violations.push(found);
                        if self.extent.shrink.is_zero() {
                            return Ok(None);
                        }
                        break;
                    }
                }
            }
        }
        Ok(next)
    }

    fn violation(
        &self,
        base: &Base,
        made: &Generation,
        name: StateName,
        crash: &Crash,
        what: &str,
        shrinks: bool,
    ) -> Violation {
        let StateName { generation, number } = name;
        let command = format!("{} --only {generation}.{number}", self.command());
        let trace = made.history.trace_before(&made.actions, crash.at);
        let what = format!("{}: {what}\n{trace}", crash.told(made));
        let story = Story { generation, keep: story::all(&made.actions), crash: *crash };
        let time = if shrinks { self.extent.shrink } else { Duration::ZERO };
        match story::shortest(base, &made.actions, &story, time) {
            None => Violation { what, command },
            Some((story, told)) => Violation {
                what: format!("{what}\n  in short:\n{told}"),
                command: format!("{} {story}", self.command()),
            },
        }
    }

    /// Judges what a story tells.
    ///
    /// # Errors
    /// What was promised and is not so, with the story.
    pub fn tell(&self, story: &Story) -> Result<Judged, String> {
        let (base, actions) = self.generation(story.generation)?;
        story.judge(&base, &actions)
    }
}

/// A place next to a change of a name. Sorts of names (what is left of them without digits) have
/// equal shares, however seldom they change.
fn near_a_name(made: &Generation, first: usize, random: &mut Random) -> Option<usize> {
    let mut sorts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, op) in made.log.iter().enumerate().skip(first) {
        if let Op::Names { changes } = op
            && let Some((path, _)) = changes.last()
        {
            let sort = path.to_string_lossy().replace(|c: char| c.is_ascii_digit(), "");
            sorts.entry(sort).or_default().push(at);
        }
    }
    let places = sorts.values().nth(random.below(sorts.len().max(1)))?;
    Some((places[random.below(places.len())] + random.below(4)).min(made.log.len()))
}

impl Crash {
    fn told(&self, made: &Generation) -> String {
        let Crash { at, policy, draw, .. } = self;
        format!("crash at op {at} of {}, {policy} draw {draw}", made.log.len())
    }
}
