//! Background work as small steps: on threads in production, one step at a time in tests.
//!
//! Work is pulled: whoever has a free hand asks the [`WorkSource`] for the most urgent [`Job`] and
//! carries it out step by step. A step is short (some milliseconds), so that a stepped executor can
//! interleave jobs finely and a shutdown never waits long.
//!
//! Invariants:
//! 1. Threads, clocks and sleeping exist here (and in `vfs`) only.
//! 2. A stepped executor does nothing unless `step` or `wait` is called, and then what it does
//!    depends on its seed and on nothing else.
//! 3. After `stop` has returned no step is running and none will run.
//! 4. A panic ends neither a thread nor anybody's wait: it is caught, the source is told, and the thread goes on.

mod clock;
mod courier;
mod executor;
mod parallel;
mod random;

pub(crate) use clock::Clock;
pub(crate) use courier::Courier;
pub(crate) use executor::{Executor, Mode};
pub(crate) use parallel::for_each_at_once;
pub(crate) use random::unpredictable;

use crate::base::error::{Error, Result};

/// What a step says of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// The job is done.
    Done,
    /// Nothing is done: another job has to end first.
    Postponed,
}

/// A piece of background work.
pub(crate) trait Job: Send {
    /// Does a little of it. After an error the job is dropped.
    fn step(&mut self) -> Result<Step>;
}

/// What a job can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// For a thread that is free.
    Normal,
    /// For the end of a step: writers will soon have to wait for it. It is done between two steps of a job
    /// that is less urgent.
    Pressing,
    /// For nothing: it is short, and writers would have to do it themselves. One thread does nothing else.
    Immediate,
}

/// Where the work comes from.
pub(crate) trait WorkSource: Send + Sync {
    /// The most urgent job that nobody does yet, if it is at least so urgent.
    fn next_job(&self, least: Urgency) -> Option<Box<dyn Job>>;
    /// A job has failed.
    fn job_failed(&self, error: &Error);
    /// A job, or the search for one, has panicked: what it worked on may be half done.
    fn job_panicked(&self, what: &str);
}
