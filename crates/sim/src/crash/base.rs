//! What work begins on, and how what a crash of it has left is judged.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Crash, Then, disk_with_a_directory, panic_text};
use crate::action::Action;
use crate::disk::{Disk, Policy};
use crate::model::Checkpoint;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::session::Inherited;
use crate::sizes::Sizes;
use crate::verify::{Found, Judge, Sweep};
use crate::workload::{self, Generation};

/// A disk with a store, or none yet, and what it holds.
#[derive(Debug, Clone)]
pub struct Base {
    /// The store's sizes.
    pub sizes: Sizes,
    /// How often the store has crashed.
    pub number: usize,
    /// The disk.
    pub disk: Disk,
    /// The store's keyspaces; none if there is no store yet.
    pub inherited: Option<Vec<Inherited>>,
    /// Its copies.
    pub checkpoints: Vec<Checkpoint>,
}

/// What a crash has left, found to be as promised.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The disk.
    pub left: Disk,
    /// What it was found to hold, unless recovery was swept.
    pub found: Option<Found>,
    /// What recovery's crashes have left, if it was.
    pub sweep: Sweep,
}

impl Base {
    /// A disk without a store.
    pub fn empty(sizes: Sizes) -> Base {
        let disk = disk_with_a_directory();
        Base { sizes, number: 0, disk, inherited: None, checkpoints: Vec::new() }
    }

    /// Does the work.
    ///
    /// # Errors
    /// Whatever the store fails with.
    pub fn work(&self, actions: Vec<Action>) -> Result<Generation, String> {
        let Base { sizes, number, disk, inherited, checkpoints } = self;
        let (inherited, checkpoints) = (inherited.clone(), checkpoints.clone());
        workload::run(*sizes, *number, disk, inherited, checkpoints, actions)
    }

    /// The first operation at which a crash has anything to do with what is promised here.
    pub fn first(&self, made: &Generation) -> usize {
        if self.inherited.is_none() { 0 } else { made.history.opened }
    }

    /// Judges what a crash leaves, when the disk was `before` it.
    ///
    /// # Errors
    /// What was promised and is not so.
    pub fn judge(&self, made: &Generation, before: &Disk, crash: &Crash) -> Result<Judged, String> {
        let Crash { at, policy, draw, then } = *crash;
        let left = before.crash(policy, draw, made.log.get(at));
        let judge = self.judge_at(made, at);
        let survives = policy.keeps_unsynced();
        let mut random = Random::new(&[draw, at as u64]);
        let mut sweep = Sweep::default();
        let found = caught(|| match then {
            Then::Recovery(nested) => judge.judge(&left, survives, &mut random, nested).map(Some),
            Then::Sweep => {
                sweep = judge.sweep(&left, survives, &mut random)?;
                Ok(None)
            }
        })?;
        Ok(Judged { left, found, sweep })
    }

    /// A judge of crashes at a moment.
    pub fn judge_at<'a>(&self, made: &'a Generation, at: usize) -> Judge<'a> {
        let history = &made.history;
        let may_be_missing = self.inherited.is_none() && at < history.opened;
        Judge { sizes: self.sizes, history, may_be_missing, at }
    }

    /// What the next generation begins on.
    pub(super) fn next(&self, made: &Generation, crash: &Crash, judged: Judged) -> Base {
        let at = crash.at;
        let found = judged.found.unwrap_or_default();
        let keyspaces = found.keyspaces.iter().map(|&place| {
            let keyspace = &made.history.keyspaces[place];
            let pairs = keyspace.pairs(found.commits);
            Inherited { number: keyspace.number, options: keyspace.options, pairs }
        });
        let finished = made.history.checkpoints.iter().filter(|copy| copy.span.returned <= at);
        let checkpoints =
            finished.map(|copy| Checkpoint { span: Default::default(), ..copy.clone() });
        Base {
            sizes: self.sizes,
            number: self.number + 1,
            disk: judged.left,
            inherited: Some(keyspaces.collect()),
            checkpoints: checkpoints.collect(),
        }
    }
}

impl Judged {
    /// Adds it to what has been judged.
    pub(super) fn count(&self, crash: &Crash, outcome: &mut Outcome) {
        let mut states: BTreeMap<Policy, u64> = self.sweep.states.clone();
        if let Some(found) = &self.found {
            *states.entry(crash.policy).or_default() += found.crashes;
        }
        for (policy, count) in states {
            *outcome.states.entry(policy.to_string()).or_default() += count;
        }
        if self.sweep.same > 0 {
            *outcome.counts.entry("states_same".to_string()).or_default() += self.sweep.same;
        }
    }
}

impl Generation {
    /// The disk before the operation `at`.
    pub fn replay(&self, at: usize) -> Disk {
        let mut disk = self.disk.clone();
        self.log[..at].iter().for_each(|op| disk.apply(op));
        disk
    }
}

/// A panic is an error like others.
pub fn caught<T>(judge: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let judged = catch_unwind(AssertUnwindSafe(judge));
    judged.unwrap_or_else(|panic| Err(panic_text(&*panic)))
}
