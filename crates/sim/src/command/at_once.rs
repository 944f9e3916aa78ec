//! Several runs at the same time.
//!
//! Invariants:
//! 1. The number of runs depends on the limits. The work of a run depends on its seed alone.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Common;
use crate::kinds::Kinds;
use crate::outcome::Outcome;

/// The progress of the runs of one choice of kinds.
struct Progress {
    next: u64,
    states: u64,
    told: Instant,
    total: Outcome,
}

impl Common {
    /// As [`Common::repeat`], with up to `jobs` runs at the same time.
    pub fn repeat_at_once(
        &self,
        jobs: usize,
        run: impl Fn(u64, Kinds) -> Outcome + Sync,
    ) -> Outcome {
        let mut total = Outcome::default();
        let choices = self.kind.runs();
        for &kinds in &choices {
            let part = self.part_of(kinds, &choices);
            let started = Instant::now();
            let progress = Mutex::new(Progress {
                next: 0,
                states: 0,
                told: Instant::now(),
                total: Outcome::default(),
            });
            let work = || {
                while let Some(number) = part.next_run(&progress, started) {
                    let outcome = run(self.seed.wrapping_add(number), kinds);
                    let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                    progress.take(outcome, kinds, started);
                }
            };
            std::thread::scope(|scope| {
                (1..jobs).for_each(|_| drop(scope.spawn(work)));
                work();
            });
            let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
            total.add(progress.total);
            if !total.violations.is_empty() && !self.keep_going {
                break;
            }
        }
        total
    }

    /// The number of the next run, if the limits allow one.
    fn next_run(&self, progress: &Mutex<Progress>, started: Instant) -> Option<u64> {
        let seconds = self.seconds.unwrap_or(f64::INFINITY);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = progress.next < self.runs.unwrap_or(u64::MAX)
            && progress.states < self.states.unwrap_or(u64::MAX)
            && started.elapsed().as_secs_f64() < seconds
            && (progress.total.violations.is_empty() || self.keep_going);
        goes_on.then(|| {
            progress.next += 1;
            progress.next - 1
        })
    }
}

impl Progress {
    fn take(&mut self, outcome: Outcome, kinds: Kinds, started: Instant) {
        outcome.violations.iter().for_each(|violation| {
            eprintln!("{}\n  again: {}", violation.what, violation.command);
        });
        self.states += outcome.state_count();
        self.total.add(outcome);
        if self.told.elapsed() > Duration::from_secs(5) {
            self.told = Instant::now();
            let (runs, states) = (self.next, self.states);
            eprintln!("{kinds}: {runs} runs, {states} states in {:.0?}", started.elapsed());
        }
    }
}
