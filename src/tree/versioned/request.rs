//! A compaction of a key range that a caller has asked for. The caller and the background threads share its nodes.
//!
//! Invariants:
//! 1. Each part of the range is left to do, or has one job, or is done. A job that ends without a result gives its part
//!    back.
//! 2. The caller takes nodes as the background threads do, so it comes to the end without them.
//! 3. After a failure no job is begun, and running ones end at their next step. The caller waits for that.
//! 4. Where the disk has no room for several jobs at once, they are carried out one after the other.
//! 5. Lock order: a request's `state`, then the tree's `jobs`.

use std::sync::Arc;

use super::{Choose, Compact, CompactionJob, CompactionPlan, Place, VersionedKind, VersionedTree};
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::jobs::{Job, Step};
use crate::tree::Helpers;
use crate::tree::range::Key;

/// A key range; `None` is no bound.
type Range = (Key, Option<Key>);

/// A compaction of all nodes of a level in a key range.
pub(in crate::tree) struct Request {
    height: u32,
    state: Mutex<State>,
}

struct State {
    /// Parts of the range, ascending, in which nodes may be left to compact.
    left: Vec<Range>,
    /// Jobs that are running.
    running: usize,
    /// There was no room for several jobs.
    one_at_a_time: bool,
    /// The first failure.
    failure: Option<Error>,
    /// The caller has gone.
    is_over: bool,
}

impl State {
    /// Whether a job may be begun.
    fn takes_jobs(&self) -> bool {
        let is_free = self.running == 0 || !self.one_at_a_time;
        is_free && self.failure.is_none() && !self.is_over
    }
}

impl Request {
    fn new(height: u32, range: Range) -> Request {
        let (left, failure) = (vec![range], None);
        let state = State { left, running: 0, one_at_a_time: false, failure, is_over: false };
        Request { height, state: Mutex::new(state) }
    }

    /// Whether running jobs are to end.
    fn is_given_up(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_some() || state.is_over
    }

    /// A job, or the search for one, has failed.
    fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        // The output of the others takes room until they have ended.
        match error {
            Error::Full { .. } if state.running > 1 => state.one_at_a_time = true,
            error => drop(state.failure.get_or_insert(error)),
        }
    }

    /// Begins the next job; `None` if there is none, or if others are in the way.
    fn take<K: Choose + Compact>(
        self: &Arc<Self>,
        tree: &Arc<VersionedTree<K>>,
    ) -> Result<Option<RequestedJob<K>>> {
        let mut state = self.state.lock();
        let mut at = 0;
        while state.takes_jobs() {
            let Some((from, to)) = state.left.get(at).cloned() else { break };
            let ended_before = tree.jobs_ended();
            let next = K::next_uncompacted(tree, self.height, (&from, to.as_deref()))?;
            let Some(plan) = next else {
                state.left.remove(at);
                continue;
            };
            let end = plan.place().upper.clone();
            let end = end.filter(|end| to.as_ref().is_none_or(|to| end < to));
            let behind = end.clone().map(|end| (end, to.clone()));
            let range = (from, end.or(to));
            if let Some(job) = tree.claim(plan, ended_before) {
                state.left.splice(at..=at, behind);
                state.running += 1;
                let part = Part { request: Arc::clone(self), range: Some(range) };
                return Ok(Some(RequestedJob { job, part }));
            }
            // If a job has ended meanwhile, the plan may be an old one; else another job works there.
            if tree.jobs_ended() == ended_before {
                state.left.splice(at..=at, [range].into_iter().chain(behind));
                at += 1;
            }
        }
        Ok(None)
    }

    /// Whether nothing is left to do, or to wait for; an error after a failure.
    fn outcome(&self) -> Option<Result<()>> {
        let state = self.state.lock();
        match &state.failure {
            _ if state.running > 0 => None,
            Some(error) => Some(Err(error.clone())),
            None => state.left.is_empty().then_some(Ok(())),
        }
    }

    /// Waits for others. A failure of the request counts more than why waiting has failed.
    fn wait(&self, helpers: &dyn Helpers) -> Result<()> {
        helpers.wait().map_err(|error| self.state.lock().failure.clone().unwrap_or(error))
    }
}

/// A part of a request, while a job works on it.
struct Part {
    request: Arc<Request>,
    /// What is given back if the job ends without a result.
    range: Option<Range>,
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.request.state.lock();
        state.running -= 1;
        if let Some(range) = self.range.take() {
            let at = state.left.partition_point(|(lower, _)| *lower < range.0);
            state.left.insert(at, range);
        }
    }
}

/// The compaction of one node of a request. Whoever carries it out need not be the caller, who is told of errors all the
/// same: for others the job is postponed.
pub(super) struct RequestedJob<K: Compact> {
    /// Declared first: the claim ends before the part is given back.
    job: CompactionJob<K>,
    part: Part,
}

impl<K: Compact> Job for RequestedJob<K> {
    fn step(&mut self) -> Result<Step> {
        if self.part.request.is_given_up() {
            return Ok(Step::Postponed);
        }
        match self.job.step() {
            Ok(Step::Done) => {
                self.part.range = None;
                Ok(Step::Done)
            }
            Err(error) => {
                self.part.request.fail(error);
                Ok(Step::Postponed)
            }
            step => step,
        }
    }
}

/// A request that background threads see.
struct Shown<'a, K: Choose + Compact> {
    tree: &'a Arc<VersionedTree<K>>,
    request: Arc<Request>,
}

impl<K: Choose + Compact> Drop for Shown<'_, K> {
    fn drop(&mut self) {
        self.request.state.lock().is_over = true;
        let is_other = |other: &Arc<Request>| !Arc::ptr_eq(other, &self.request);
        self.tree.jobs.lock().requests.retain(is_other);
    }
}

/// Compacts all nodes of a level in a range, on this thread and on those of `helpers`.
pub(super) fn compact_range<K: Choose + Compact>(
    tree: &Arc<VersionedTree<K>>,
    height: u32,
    (lower, upper): (&[u8], Option<&[u8]>),
    helpers: &dyn Helpers,
) -> Result<()> {
    let request = Arc::new(Request::new(height, (Key::from(lower), upper.map(Key::from))));
    let shown = Shown { tree, request: Arc::clone(&request) };
    tree.jobs.lock().requests.push(request);
    let request = &shown.request;
    loop {
        let job = request.take(tree).unwrap_or_else(|error| {
            request.fail(error);
            None
        });
        let Some(mut job) = job else {
            match request.outcome() {
                Some(outcome) => return outcome,
                None => request.wait(helpers)?,
            }
            continue;
        };
        if !request.state.lock().left.is_empty() {
            helpers.invite();
        }
        let step = loop {
            let step = job.step()?;
            helpers.interleave();
            if step != Step::Again {
                break step;
            }
        };
        drop(job);
        if step == Step::Postponed && !request.is_given_up() {
            request.wait(helpers)?;
        }
    }
}

/// Whether a node in a place is left to do of a request.
pub(super) fn is_requested<K: VersionedKind>(tree: &VersionedTree<K>, place: &Place) -> bool {
    let requests = tree.jobs.lock().requests.clone();
    requests.iter().any(|request| {
        let is_left =
            |(lower, upper): &Range| place.overlaps(request.height, (lower, upper.as_deref()));
        request.state.lock().left.iter().any(is_left)
    })
}

/// Begins the next job of the requests that there are.
pub(super) fn next_requested<K: Choose + Compact>(
    tree: &Arc<VersionedTree<K>>,
) -> Option<RequestedJob<K>> {
    let requests = tree.jobs.lock().requests.clone();
    requests.iter().find_map(|request| {
        request.take(tree).unwrap_or_else(|error| {
            request.fail(error);
            None
        })
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn key(text: &str) -> Key {
        Key::from(text.as_bytes())
    }

    fn begun(request: &Arc<Request>, lower: &str, upper: &str) -> Part {
        request.state.lock().running += 1;
        Part { request: Arc::clone(request), range: Some((key(lower), Some(key(upper)))) }
    }

    fn full() -> Error {
        Error::Full { path: PathBuf::from("/store"), needed: 1 }
    }

    /// One after the other, merges fit on a disk that has no room for the outputs of several. What finds no room beside
    /// others is done when it is alone, and fails only then.
    #[test]
    fn jobs_for_which_there_is_no_room_together_are_done_one_after_the_other() {
        let request = Arc::new(Request::new(0, (key(""), None)));
        request.state.lock().left.clear();
        let (first, second) = (begun(&request, "a", "b"), begun(&request, "c", "d"));
        request.fail(full());
        drop(second);
        assert!(request.outcome().is_none() && !request.is_given_up());
        assert!(!request.state.lock().takes_jobs(), "the first job is still running");
        drop(first);
        assert!(request.state.lock().takes_jobs());
        let left = request.state.lock().left.clone();
        assert_eq!(left, [(key("a"), Some(key("b"))), (key("c"), Some(key("d")))]);
        let alone = begun(&request, "a", "b");
        request.fail(full());
        assert!(request.is_given_up() && request.outcome().is_none(), "it is still running");
        drop(alone);
        assert!(matches!(request.outcome(), Some(Err(Error::Full { .. }))));
    }

    /// The caller is told of the first failure, whoever's it was, once all jobs have ended.
    #[test]
    fn after_a_failure_nothing_is_begun_and_everything_that_runs_is_waited_for() {
        let request = Arc::new(Request::new(0, (key(""), None)));
        let running = begun(&request, "a", "b");
        request.fail(Error::invalid("first"));
        request.fail(Error::invalid("second"));
        assert!(request.is_given_up() && !request.state.lock().takes_jobs());
        assert!(request.outcome().is_none());
        drop(running);
        let outcome = request.outcome();
        assert!(matches!(outcome, Some(Err(error)) if error.to_string().contains("first")));
    }
}
