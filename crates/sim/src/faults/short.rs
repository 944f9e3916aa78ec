//! A shortened violation: as few steps as possible that still show it, and the affected operation.
//!
//! Invariants:
//! 1. The result shows its violation whenever its steps are replayed with the fault in its
//!    operation.

use std::time::Instant;

use super::Case;
use crate::fault::Plan;
use crate::keep::Keep;
use crate::shrink::sublist;

/// Lists of up to so many steps are struck at each of their operations.
const SHORT_STEPS: usize = 12;
/// Longer ones so far from where the strike is likely to have moved.
const NEAR_OPERATIONS: u64 = 12;

/// A short violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Short {
    /// The steps that are done.
    pub(super) keep: Keep,
    pub(super) case: Case,
    pub(super) what: String,
    /// How many operations there are, without a fault, that it could have struck.
    operations: u64,
}

/// The fewest steps, of `count`, found until then that still fail. For some of the steps `begin`
/// gives how many operations the fault can strike, and what striking tells if it fails.
pub(super) fn shortest<J: Fn(Case) -> Option<String>>(
    count: usize,
    case: Case,
    until: Instant,
    begin: impl Fn(&Keep) -> Option<(u64, J)>,
) -> Option<Short> {
    let all = Keep::new((0..count).collect());
    let (operations, judge) = begin(&all)?;
    let mut best = Short { keep: all, case, what: judge(case)?, operations };
    sublist(count, until, |numbers| {
        let keep = Keep::new(numbers.to_vec());
        let Some((operations, judge)) = begin(&keep) else { return false };
        for case in places(&best, operations, numbers.len()) {
            if Instant::now() >= until {
                return false;
            }
            if let Some(what) = judge(case) {
                best = Short { keep, case, what, operations };
                return true;
            }
        }
        false
    });
    Some(best)
}

/// What to try on fewer steps, the most promising first.
fn places(before: &Short, operations: u64, steps: usize) -> Vec<Case> {
    let plan = match before.case {
        Case::SmallDisk(bytes) => {
            return (1..=8).rev().map(|eighths| Case::SmallDisk(bytes * eighths / 8)).collect();
        }
        Case::Struck(plan) => plan,
    };
    // Steps have gone from before the strike, with their operations, or from behind it.
    let moved = (plan.first + operations).saturating_sub(before.operations);
    let near = |place: u64| place.saturating_sub(NEAR_OPERATIONS)..=place + NEAR_OPERATIONS;
    let mut places: Vec<u64> = vec![plan.first, moved];
    match steps <= SHORT_STEPS {
        true => places.extend(1..=operations),
        false => places.extend(near(moved).chain(near(plan.first))),
    }
    let mut seen = std::collections::BTreeSet::new();
    places.retain(|&place| (1..=operations).contains(&place) && seen.insert(place));
    places.into_iter().map(|first| Case::Struck(Plan { first, ..plan })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use std::time::Duration;

    /// Steps of five operations each; one fails if the third operation of step 31 is struck after
    /// step 7 has been done.
    #[test]
    fn the_strike_is_found_again_among_fewer_steps() {
        let begin = |keep: &Keep| {
            let steps = keep.numbers().to_vec();
            let count = 5 * steps.len() as u64;
            Some((count, move |case| {
                let Case::Struck(plan) = case else { return None };
                let struck = steps.iter().position(|step| *step == 31)? as u64 * 5 + 3;
                (steps.contains(&7) && plan.first == struck).then(|| "fails".to_string())
            }))
        };
        let plan = Plan { fault: Fault::Eio, first: 31 * 5 + 3, times: 1 };
        let until = Instant::now() + Duration::from_secs(60);
        let found = shortest(60, Case::Struck(plan), until, begin).expect("it fails");
        assert_eq!(found.keep.numbers(), [7, 31]);
        assert_eq!(found.case, Case::Struck(Plan { first: 8, ..plan }));
        let elsewhere = Case::Struck(Plan { first: 1, ..plan });
        assert_eq!(shortest(60, elsewhere, until, begin), None);
    }

    #[test]
    fn a_small_disk_may_become_smaller() {
        let begin = |keep: &Keep| {
            let steps = keep.numbers().len() as u64;
            Some((0, move |case| (case == Case::SmallDisk(steps * 100)).then(String::new)))
        };
        let until = Instant::now() + Duration::from_secs(60);
        let found = shortest(8, Case::SmallDisk(800), until, begin).expect("it fails");
        assert!(found.keep.numbers().len() < 8, "{found:?}");
    }
}
