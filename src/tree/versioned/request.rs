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

use super::{Choose, Compact, CompactionJob, CompactionPlan, Place, VersionedTree};
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
    range: Range,
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
        let (left, failure) = (vec![range.clone()], None);
        let state = State { left, running: 0, one_at_a_time: false, failure, is_over: false };
        Request { height, range, state: Mutex::new(state) }
    }

    /// Whether running jobs are to end.
    fn is_given_up(&self) -> bool {
        let state = self.state.lock();
        state.failure.is_some() || state.is_over
    }

    /// A job, or the search for one, has failed. The output of others took room, unless it was `alone`.
    fn fail(&self, error: Error, alone: bool) {
        let mut state = self.state.lock();
        match error {
            Error::Full { .. } if !alone => state.one_at_a_time = true,
            error => drop(state.failure.get_or_insert(error)),
        }
    }

    /// The next plan in a part of the range.
    fn next_in<K: Choose>(
        &self,
        tree: &VersionedTree<K>,
        part: (&[u8], Option<&[u8]>),
    ) -> Result<Option<K::Plan>> {
        let (lower, upper) = &self.range;
        K::next_uncompacted(tree, self.height, part, (lower, upper.as_deref()))
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
            let next = self.next_in(tree, (&from, to.as_deref()))?;
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
                return Ok(Some(self.begun(&mut state, job, range)));
            }
            // If a job has ended meanwhile, the plan may be an old one; else another job works there.
            if tree.jobs_ended() == ended_before {
                state.left.splice(at..=at, [range].into_iter().chain(behind));
                at += 1;
            }
        }
        Ok(None)
    }

    /// Begins the job of the node in a place, if that is left to do.
    fn take_at<K: Choose + Compact>(
        self: &Arc<Self>,
        tree: &Arc<VersionedTree<K>>,
        place: &Place,
    ) -> Result<Option<RequestedJob<K>>> {
        let mut state = self.state.lock();
        let overlaps =
            |(lower, upper): &Range| place.overlaps(self.height, (lower, upper.as_deref()));
        let found = state.left.iter().position(overlaps).filter(|_| state.takes_jobs());
        let Some(at) = found else { return Ok(None) };
        let (first, to) = state.left[at].clone();
        let from = first.clone().max(place.lower.clone());
        let ended_before = tree.jobs_ended();
        let next = self.next_in(tree, (&from, to.as_deref()))?;
        let Some(plan) = next.filter(|plan| place.overlaps(self.height, plan.place().range()))
        else {
            return Ok(None);
        };
        let end = plan.place().upper.clone();
        let end = end.filter(|end| to.as_ref().is_none_or(|to| end < to));
        let Some(job) = tree.claim(plan, ended_before) else { return Ok(None) };
        let before = (first < from).then(|| (first, Some(from.clone())));
        let behind = end.clone().map(|end| (end, to.clone()));
        state.left.splice(at..=at, before.into_iter().chain(behind));
        Ok(Some(self.begun(&mut state, job, (from, end.or(to)))))
    }

    fn begun<K: Compact>(
        self: &Arc<Self>,
        state: &mut State,
        job: CompactionJob<K>,
        range: Range,
    ) -> RequestedJob<K> {
        state.running += 1;
        let part =
            Part { request: Arc::clone(self), range: Some(range), is_alone: state.one_at_a_time };
        RequestedJob { job, part, is_helpers: false, has_failed: false }
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
    /// No other job of the request runs.
    is_alone: bool,
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
/// same: for others the job is postponed. Only damage is theirs too: it is quarantined, and `wait_idle` tells of it.
pub(super) struct RequestedJob<K: Compact> {
    /// Declared first: the claim ends before the part is given back.
    job: CompactionJob<K>,
    part: Part,
    /// A background thread carries it out, not the caller.
    is_helpers: bool,
    has_failed: bool,
}

impl<K: Compact> Job for RequestedJob<K> {
    fn step(&mut self) -> Result<Step> {
        if self.has_failed || self.part.request.is_given_up() {
            return Ok(Step::Postponed);
        }
        match self.job.step() {
            Ok(Step::Done) => {
                if !self.job.plan.is_preparation() {
                    self.part.range = None;
                }
                Ok(Step::Done)
            }
            // Somebody else has the reserve: others are in the way.
            Ok(Step::Postponed) => {
                self.part.request.state.lock().one_at_a_time = true;
                Ok(Step::Postponed)
            }
            Err(error) => {
                self.has_failed = true;
                self.part.request.fail(error.clone(), self.part.is_alone);
                if self.is_helpers && error.is_corruption() {
                    return Err(error);
                }
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
            request.fail(error, true);
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

/// Begins a job of the requests that there are, for a background thread.
pub(super) fn next_requested<K: Choose + Compact>(
    tree: &Arc<VersionedTree<K>>,
) -> Option<RequestedJob<K>> {
    begin_requested(tree, |request| request.take(tree))
}

/// The same; a job for the node in a place.
pub(super) fn requested_at<K: Choose + Compact>(
    tree: &Arc<VersionedTree<K>>,
    place: &Place,
) -> Option<RequestedJob<K>> {
    begin_requested(tree, |request| request.take_at(tree, place))
}

fn begin_requested<K: Choose + Compact>(
    tree: &VersionedTree<K>,
    take: impl Fn(&Arc<Request>) -> Result<Option<RequestedJob<K>>>,
) -> Option<RequestedJob<K>> {
    let requests = tree.jobs.lock().requests.clone();
    let job = requests.iter().find_map(|request| {
        take(request).unwrap_or_else(|error| {
            request.fail(error, true);
            None
        })
    });
    job.map(|job| RequestedJob { is_helpers: true, ..job })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn key(text: &str) -> Key {
        Key::from(text.as_bytes())
    }

    fn begun(request: &Arc<Request>, lower: &str, upper: &str) -> Part {
        let mut state = request.state.lock();
        state.running += 1;
        let range = Some((key(lower), Some(key(upper))));
        Part { request: Arc::clone(request), range, is_alone: state.one_at_a_time }
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
        request.fail(full(), second.is_alone);
        drop(second);
        assert!(request.outcome().is_none() && !request.is_given_up());
        assert!(!request.state.lock().takes_jobs(), "the first job is still running");
        // The first found no room either: it was not alone when it asked, although it is when it tells.
        request.fail(full(), first.is_alone);
        assert!(!request.is_given_up());
        drop(first);
        assert!(request.state.lock().takes_jobs());
        let left = request.state.lock().left.clone();
        assert_eq!(left, [(key("a"), Some(key("b"))), (key("c"), Some(key("d")))]);
        let alone = begun(&request, "a", "b");
        request.fail(full(), alone.is_alone);
        assert!(request.is_given_up() && request.outcome().is_none(), "it is still running");
        drop(alone);
        assert!(matches!(request.outcome(), Some(Err(Error::Full { .. }))));
    }

    /// The caller is told of the first failure, whoever's it was, once all jobs have ended.
    #[test]
    fn after_a_failure_nothing_is_begun_and_everything_that_runs_is_waited_for() {
        let request = Arc::new(Request::new(0, (key(""), None)));
        let running = begun(&request, "a", "b");
        request.fail(Error::invalid("first"), false);
        request.fail(Error::invalid("second"), false);
        assert!(request.is_given_up() && !request.state.lock().takes_jobs());
        assert!(request.outcome().is_none());
        drop(running);
        let outcome = request.outcome();
        assert!(matches!(outcome, Some(Err(error)) if error.to_string().contains("first")));
    }
}
