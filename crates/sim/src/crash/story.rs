//! A shortened violation: as few actions as possible that still show it, and its command.
//!
//! Invariants:
//! 1. A story shows its violation on every replay.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Base, Crash, Judged, Policy, Then};
use crate::action::Action;
use crate::disk::Disk;
use crate::keep::Keep;
use crate::shrink::sublist;
use crate::workload::Generation;

/// What was done, and the crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// In which generation of its run.
    pub generation: usize,
    /// The numbers of the actions that are done.
    pub keep: Keep,
    /// The crash.
    pub crash: Crash,
}

/// Operations before the end at which short lists of actions are crashed.
const LAST_OPS: usize = 48;
/// Draws that are tried of each policy.
const DRAWS: u64 = 6;

/// The numbers of all actions.
pub fn all(actions: &[Action]) -> Keep {
    Keep::new((0..actions.len()).collect())
}

impl Story {
    /// Judges it.
    ///
    /// # Errors
    /// What was promised and is not so, and what was done.
    pub fn judge(&self, base: &Base, actions: &[Action]) -> Result<Judged, String> {
        let made = base.work(self.keep.of(actions))?;
        let at = self.crash.at.min(made.log.len());
        let crash = Crash { at, ..self.crash };
        base.judge(&made, &made.replay(at), &crash).map_err(|what| told(&made, &crash, &what))
    }
}

/// What was done and what came of it.
fn told(made: &Generation, crash: &Crash, what: &str) -> String {
    let mut lines = String::new();
    for (number, action) in made.actions.iter().enumerate() {
        let at = made.history.trace.get(number).map_or(0, |(at, _)| *at);
        if at < crash.at || number == 0 {
            lines += &format!("  op {at}: {action}\n");
        }
    }
    format!("{lines}  {}: {what}", crash.told(made))
}

/// The shortest story found in time that shows a violation, and what it tells.
pub fn shortest(
    base: &Base,
    actions: &[Action],
    story: &Story,
    time: Duration,
) -> Option<(Story, String)> {
    if time.is_zero() {
        return None;
    }
    let until = Instant::now() + time;
    story.judge(base, actions).err()?;
    let mut best: Option<(Story, String)> = None;
    let mut fails = |keep: Keep| {
        let crash = best.as_ref().map_or(story.crash, |(best, _)| best.crash);
        let tried = Story { generation: base.number, keep, crash };
        let found = tried.somewhere(base, actions, until);
        let is_found = found.is_some();
        best = found.or(best.take());
        is_found
    };
    // What had not begun when the crash came has no part in it.
    let made = base.work(story.keep.of(actions)).ok()?;
    let begun = made.history.trace.partition_point(|(at, _)| *at < story.crash.at);
    let last = made.history.trace[..begun].last().map_or(0, |(_, number)| number + 1);
    let mut keep = story.keep.numbers().to_vec();
    if fails(Keep::new(keep.iter().take(last).copied().collect())) {
        keep.truncate(last);
    }
    sublist(keep.len(), until, |kept| {
        fails(Keep::new(kept.iter().map(|&number| keep[number]).collect()))
    });
    best
}

impl Story {
    /// The same actions, with the crash that shows a violation, if there is one: as it is first,
    /// then at each of the last operations by the same policy, and if the list is short by all of
    /// them.
    fn somewhere(
        &self,
        base: &Base,
        actions: &[Action],
        until: Instant,
    ) -> Option<(Story, String)> {
        let made = base.work(self.keep.of(actions)).ok()?;
        let first = base.first(&made);
        let end = made.worked.max(first);
        let fails = |crash: Crash, disk: &Disk| {
            let what = base.judge(&made, disk, &crash).err()?;
            Some((Story { crash, ..self.clone() }, told(&made, &crash, &what)))
        };
        let as_it_is = Crash { at: self.crash.at.min(made.log.len()), ..self.crash };
        if let Some(found) = fails(as_it_is, &made.replay(as_it_is.at)) {
            return Some(found);
        }
        let short = self.keep.numbers().len() <= 24;
        let start = if short { first } else { first.max(end.saturating_sub(LAST_OPS)) };
        let policies = match short {
            true => [&[self.crash.policy][..], &Policy::ALL].concat(),
            false => vec![self.crash.policy],
        };
        let mut disk = made.replay(start);
        for at in start..=end {
            for &policy in &policies {
                for draw in draws(&disk, policy, self.crash.draw) {
                    if Instant::now() > until {
                        return None;
                    }
                    let crash = Crash { at, policy, draw, then: self.crash.then };
                    if let Some(found) = fails(crash, &disk) {
                        return Some(found);
                    }
                }
            }
            made.log[at..].iter().take(1).for_each(|op| disk.apply(op));
        }
        None
    }
}

/// The draws of a policy that are worth trying.
fn draws(disk: &Disk, policy: Policy, draw: u64) -> Range<u64> {
    match policy {
        Policy::PowerSubset => 0..disk.subsets().unwrap_or(DRAWS),
        _ if policy.is_drawn() => 0..DRAWS,
        _ => draw..draw.saturating_add(1),
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crash { at, policy, draw, then } = self.crash;
        let Story { generation, keep, .. } = self;
        write!(
            f,
            "--generation {generation} --keep {keep} --at {at} --policy {policy} --draw {draw}"
        )?;
        match then {
            Then::Recovery(0) => Ok(()),
            Then::Recovery(nested) => write!(f, " --nested {nested}"),
            Then::Sweep => f.write_str(" --sweep"),
        }
    }
}
