//! Which search a core takes next.
//!
//! Invariants:
//! 1. The search without a bug has its rounds in the order of their numbers, a few at a time, and ends with at least
//!    as many as the longest search for a bug took.
//! 2. A core waits only while a search runs that can still need more rounds without a bug.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::search::{Ended, Search};

/// Rounds of a part of the search without a bug.
const CLEAN_ROUNDS: u64 = 4;
/// How long such a part may take: what it may find is a fault of a regime, and no time excuses it.
const CLEAN_TIME_MAX: Duration = Duration::from_secs(4 * 3600);

/// The searches that wait, and how many rounds without a bug are due.
pub(super) struct Queue {
    state: Mutex<State>,
    ended: Condvar,
    regimes: Vec<String>,
}

struct State {
    waiting: std::vec::IntoIter<Search>,
    /// Searches for a bug that run.
    running: usize,
    /// By first seed.
    clean: BTreeMap<u64, Clean>,
}

#[derive(Clone, Copy)]
struct Clean {
    /// Rounds that are done or under way.
    begun: u64,
    /// The most that finding a bug took; at least one.
    due: u64,
}

impl Queue {
    pub(super) fn new(searches: Vec<Search>, regimes: &[String]) -> Queue {
        let clean = searches.iter().map(|search| (search.seed, Clean { begun: 0, due: 1 }));
        let clean = clean.collect();
        let state = State { waiting: searches.into_iter(), running: 0, clean };
        Queue { state: Mutex::new(state), ended: Condvar::new(), regimes: regimes.to_vec() }
    }

    /// The next search; waits for it if need be. None if all is done or under way.
    pub(super) fn next(&self) -> Option<Search> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(search) = state.waiting.next() {
                state.running += 1;
                return Some(search);
            }
            let due = state.clean.iter_mut().find(|(_, clean)| clean.begun < clean.due);
            if let Some((&seed, clean)) = due {
                let first = clean.begun;
                clean.begun += CLEAN_ROUNDS;
                let search = Search::new(None, seed, CLEAN_ROUNDS, CLEAN_TIME_MAX);
                return Some(search.beginning_with(first).within(&self.regimes));
            }
            if state.running == 0 {
                return None;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes what a search took.
    pub(super) fn has_ended(&self, search: &Search, ended: &Ended) {
        if search.bug.is_none() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        if let (Some(clean), Some(_)) = (state.clean.get_mut(&search.seed), &ended.found) {
            clean.due = clean.due.max(ended.rounds);
        }
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinney::planted::Bug;

    fn found(rounds: u64) -> Ended {
        Ended { found: Some((String::new(), String::new())), rounds, ..Ended::default() }
    }

    #[test]
    fn the_search_without_a_bug_has_as_many_rounds_as_the_longest() {
        let bug = |n: usize| Search::new(Bug::ALL.get(n).copied(), 1, 100, Duration::ZERO);
        let queue = Queue::new(vec![bug(0), bug(1)], &[]);
        let (first, second) = (queue.next().expect("the first"), queue.next().expect("the second"));
        // A core that has nothing else to do begins without a bug.
        let clean = queue.next().expect("rounds without a bug");
        assert_eq!((clean.bug, clean.first_round()), (None, 0));
        queue.has_ended(&first, &found(1));
        queue.has_ended(&second, &found(9));
        let rest: Vec<u64> = std::iter::from_fn(|| queue.next()).map(|s| s.first_round()).collect();
        assert_eq!(rest, [4, 8]);
    }
}
