//! Which search a core takes next.
//!
//! Invariants:
//! 1. What has found a bug, a regime in a round, is carried out again without it.
//! 2. A core waits only while a search runs that can still find something.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::search::{Ended, Search};
use crate::kinds::Kinds;

/// How long such a search may take: what it may find is a fault of a regime, and no time excuses it.
const CLEAN_TIME_MAX: Duration = Duration::from_secs(4 * 3600);

/// The searches that wait.
pub(super) struct Queue {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    waiting: VecDeque<Search>,
    /// Searches for a bug that run.
    running: usize,
}

impl Queue {
    /// These searches, and rounds without a bug from each of their first seeds.
    pub(super) fn new(searches: Vec<Search>, regimes: &[String]) -> Queue {
        let mut seeds: Vec<u64> = searches.iter().map(|search| search.seed).collect();
        seeds.dedup();
        let mut waiting = VecDeque::from(searches);
        for seed in seeds {
            // A round for each choice of kinds.
            for first in 0..Kinds::All.runs().len() as u64 {
                let clean = Search::new(None, seed, 1, CLEAN_TIME_MAX);
                waiting.push_back(clean.beginning_with(first).within(regimes));
            }
        }
        Queue { state: Mutex::new(State { waiting, running: 0 }), ended: Condvar::new() }
    }

    /// The next search; waits for it if need be. None if all is done or under way.
    pub(super) fn next(&self) -> Option<Search> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(search) = state.waiting.pop_front() {
                state.running += usize::from(search.bug.is_some());
                return Some(search);
            }
            if state.running == 0 {
                return None;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes how a search has ended.
    pub(super) fn has_ended(&self, search: &Search, ended: &Ended) {
        let Some(bug) = search.bug else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        if let Some((regime, _)) = &ended.found {
            let round = search.first_round() + ended.rounds.saturating_sub(1);
            let again = Search::new(None, search.seed, 1, CLEAN_TIME_MAX).as_for(bug);
            let again = again.beginning_with(round).within(std::slice::from_ref(regime));
            state.waiting.push_back(again);
        }
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinney::planted::Bug;

    #[test]
    fn what_has_found_a_bug_is_done_again_without_it() {
        let bug = |n: usize| Search::new(Bug::ALL.get(n).copied(), 1, 100, Duration::ZERO);
        let queue = Queue::new(vec![bug(0), bug(1)], &[]);
        let (first, second) = (queue.next().expect("the first"), queue.next().expect("the second"));
        // A core that has nothing else to do begins without a bug.
        let clean = queue.next().expect("rounds without a bug");
        assert_eq!((clean.bug, clean.first_round()), (None, 0));
        let found = Some(("crash".to_string(), String::new()));
        queue.has_ended(&first, &Ended { found, rounds: 9, ..Ended::default() });
        queue.has_ended(&second, &Ended::default());
        let rest: Vec<u64> = std::iter::from_fn(|| queue.next()).map(|s| s.first_round()).collect();
        let expected: Vec<u64> = (1..Kinds::All.runs().len() as u64).chain([8]).collect();
        assert_eq!(rest, expected);
    }
}
