//! A violation told shortly: as few actions as still show one, and the command that does.
//!
//! Invariants:
//! 1. A story shows its violation whenever it is told.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{Base, Crash, Judged, Policy, Then};
use crate::action::Action;
use crate::disk::Disk;
use crate::workload::Generation;

/// What was done, and the crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// In which generation of its run.
    pub generation: usize,
    /// The numbers of the actions that are done.
    pub keep: Vec<usize>,
    /// The crash.
    pub crash: Crash,
}

/// Operations before the end at which short lists of actions are crashed.
const LAST_OPS: usize = 48;
/// Draws that are tried of each policy.
const DRAWS: u64 = 6;

/// The numbers of all actions.
pub fn all(actions: &[Action]) -> Vec<usize> {
    (0..actions.len()).collect()
}

impl Story {
    fn actions(&self, actions: &[Action]) -> Vec<Action> {
        self.keep.iter().filter_map(|number| actions.get(*number).cloned()).collect()
    }

    /// Judges it.
    ///
    /// # Errors
    /// What was promised and is not so, and what was done.
    pub fn judge(&self, base: &Base, actions: &[Action]) -> Result<Judged, String> {
        let actions = self.actions(actions);
        let made = base.work(actions)?;
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
    let until = Instant::now() + time;
    let mut best = None;
    let mut story = story.clone();
    story.judge(base, actions).err()?;
    let mut fails = |keep: &[usize], crash: &Crash| {
        let tried = Story { keep: keep.to_vec(), crash: *crash, generation: base.number };
        let found = tried.somewhere(base, actions, until)?;
        best = Some(found.clone());
        Some(found.0)
    };
    // What had not begun when the crash came has no part in it.
    let made = base.work(story.actions(actions)).ok()?;
    let begun = made.history.trace.partition_point(|(at, _)| *at < story.crash.at);
    let last = made.history.trace[..begun].last().map_or(0, |(_, number)| number + 1);
    story.keep.truncate(last);
    if let Some(found) = fails(&story.keep.clone(), &story.crash) {
        story = found;
    }
    let mut size = story.keep.len().div_ceil(2);
    while size > 0 && Instant::now() < until {
        let before = story.keep.len();
        let mut end = story.keep.len();
        while end > 0 && Instant::now() < until {
            let start = end.saturating_sub(size);
            let rest = [&story.keep[..start], &story.keep[end..]].concat();
            if let Some(found) = fails(&rest, &story.crash) {
                story = found;
            }
            end = start.min(story.keep.len());
        }
        size = match (size, story.keep.len() < before) {
            (1, true) => 1,
            _ => size / 2,
        };
    }
    best
}

impl Story {
    /// The same actions, with the crash that shows a violation, if there is one: as it is first, then
    /// at each of the last operations by the same policy, and if the list is short by all of them.
    fn somewhere(
        &self,
        base: &Base,
        actions: &[Action],
        until: Instant,
    ) -> Option<(Story, String)> {
        let made = base.work(self.actions(actions)).ok()?;
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
        let short = self.keep.len() <= 24;
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
        let keep = Numbers(self.keep.clone());
        write!(
            f,
            "--generation {} --keep {keep} --at {at} --policy {policy} --draw {draw}",
            self.generation
        )?;
        match then {
            Then::Recovery(0) => Ok(()),
            Then::Recovery(nested) => write!(f, " --nested {nested}"),
            Then::Sweep => f.write_str(" --sweep"),
        }
    }
}

/// Numbers in ascending order, as `1-3,7`; none as `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        let runs = self.0.chunk_by(|a, b| a + 1 == *b);
        for (number, run) in runs.enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match run {
                [one] => write!(f, "{one}")?,
                [first, .., last] => write!(f, "{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Numbers, String> {
        let number =
            |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is not a number"));
        let mut numbers = Vec::new();
        for part in text.split(',').filter(|part| *part != "-") {
            match part.split_once('-') {
                Some((first, last)) => numbers.extend(number(first)?..=number(last)?),
                None => numbers.push(number(part)?),
            }
        }
        Ok(Numbers(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (numbers, text) in
            [(vec![], "-"), (vec![3], "3"), (vec![0, 1, 2, 7, 9, 10], "0-2,7,9-10")]
        {
            assert_eq!(Numbers(numbers.clone()).to_string(), text);
            assert_eq!(text.parse(), Ok(Numbers(numbers)));
        }
        assert!("1-x".parse::<Numbers>().is_err());
    }
}
