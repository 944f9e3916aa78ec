//! How the work of a tree is found, claimed and done, whatever the work is.

use std::sync::Arc;

use super::extent::Key;
use crate::base::error::{Error, Result};
use crate::jobs::{Job, Step};

/// The job for the first plan of `choose` that can be claimed. While others get in first, it chooses anew.
pub(super) fn next_job<P, J: Job + 'static>(
    ended: impl Fn() -> u64,
    choose: impl Fn() -> Result<Option<P>>,
    claim: impl Fn(P, u64) -> Option<J>,
) -> Option<Box<dyn Job>> {
    loop {
        let ended_before = ended();
        match choose() {
            Ok(chosen) => {
                if let Some(job) = claim(chosen?, ended_before) {
                    return Some(Box::new(job));
                }
            }
            Err(error) => return Some(Box::new(Failed(error))),
        }
        if ended() == ended_before {
            return None;
        }
    }
}

/// Does, one after the other, what `next` finds to do from a key on (a plan, and the key behind what it is
/// for) up to `upper`. `wait` lets others make progress when they are in the way.
pub(super) fn compact_range<P, J: Job>(
    (lower, upper): (&[u8], Option<&[u8]>),
    wait: &dyn Fn() -> Result<()>,
    ended: impl Fn() -> u64,
    next: impl Fn(&[u8]) -> Result<Option<(P, Option<Key>)>>,
    claim: impl Fn(P, u64) -> Option<J>,
) -> Result<()> {
    let mut cursor: Key = Arc::from(lower);
    loop {
        let ended_before = ended();
        let Some((plan, behind)) = next(&cursor)? else { return Ok(()) };
        let mut job = claim(plan, ended_before);
        let step = loop {
            match job.as_mut().map_or(Ok(Step::Postponed), Job::step)? {
                Step::Again => {}
                step => break step,
            }
        };
        if step == Step::Postponed {
            drop(job);
            wait()?;
            continue;
        }
        match behind {
            Some(behind) if upper.is_none_or(|upper| *behind < *upper) => cursor = behind,
            _ => return Ok(()),
        }
    }
}

/// Reports what went wrong while work was looked for.
struct Failed(Error);

impl Job for Failed {
    fn step(&mut self) -> Result<Step> {
        Err(self.0.clone())
    }
}
