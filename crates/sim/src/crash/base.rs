//! The store that work begins on, and the judgement of a crash of that work.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use super::{Crash, Then, panic_text};
use crate::action::Action;
use crate::disk::{Disk, Op, Policy};
use crate::model::Checkpoint;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::session::Inherited;
use crate::sizes::Sizes;
use crate::verify::{Found, Judge, Sweep};
use crate::workload::{self, Generation};

/// What a disk says it has done and has not, so that the regime can be seen to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Lie {
    /// It syncs no files.
    Sync,
    /// It syncs no directories.
    SyncDir,
}

impl Lie {
    fn tell(self, op: &mut Op) {
        match (self, &*op) {
            // No file has that number, and no directory that name.
            (Lie::Sync, Op::Sync { .. }) => *op = Op::Sync { file: 0 },
            (Lie::SyncDir, Op::SyncDir { .. }) => *op = Op::SyncDir { dir: PathBuf::from("-") },
            _ => {}
        }
    }
}

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
    /// Whether all is settled, and files are counted, when the work is done.
    pub settles: bool,
    /// Whether the disk lies.
    pub lie: Option<Lie>,
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
    pub fn empty(sizes: Sizes, lie: Option<Lie>) -> Base {
        let disk = Disk::with_a_directory();
        let (inherited, checkpoints) = (None, Vec::new());
        Base { sizes, number: 0, disk, inherited, checkpoints, settles: true, lie }
    }

    /// Does the work.
    ///
    /// # Errors
    /// Whatever the store fails with.
    pub fn work(&self, actions: Vec<Action>) -> Result<Generation, String> {
        let Base { sizes, number, disk, inherited, checkpoints, settles, lie } = self;
        let (inherited, checkpoints) = (inherited.clone(), checkpoints.clone());
        let mut made =
            workload::run(*sizes, *number, disk, inherited, checkpoints, actions, *settles)?;
        if let Some(lie) = lie {
            made.log.iter_mut().for_each(|op| lie.tell(op));
        }
        Ok(made)
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
        let keyspaces = found.keyspaces.iter().zip(found.options).map(|(&place, options)| {
            let keyspace = &made.history.keyspaces[place];
            let pairs = keyspace.pairs(found.commits);
            Inherited { number: keyspace.number, options, pairs }
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
            settles: self.settles,
            lie: self.lie,
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
