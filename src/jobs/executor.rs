//! The executor: threads that pull jobs, or a stepper that tests turn by hand.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Job, Step, Urgency, WorkSource};
use crate::base::error::{Error, Result};
use crate::base::panics::{caught, overheard};
use crate::base::planted::{Bug, planted};
use crate::base::random::SplitMix;
use crate::base::sync::thread::{self, JoinHandle, ThreadId};
use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// How jobs are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By this many threads, and one more for what is immediate.
    Threads(usize),
    /// By the callers of `step` and `wait`, in an order drawn from the seed.
    Stepped(u64),
}

#[derive(Default)]
struct State {
    stopping: bool,
    /// Raised by `notify`, so that a notice between looking for work and going to sleep is not lost.
    notices: u64,
    /// Jobs that have ended. Those who `wait` wait for the next.
    ended: u64,
    /// Threads that carry out a job, or look for one.
    busy: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    progress: Condvar,
    source: Mutex<Weak<dyn WorkSource>>,
    stepper: Option<Mutex<Stepper>>,
    /// The thread that is in a step of the stepper's.
    stepping: Mutex<Option<ThreadId>>,
}

struct Stepper {
    random: SplitMix,
    jobs: Vec<Box<dyn Job>>,
}

/// Carries out background jobs.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    mode: Mode,
}

/// A stepped executor holds at most this many begun jobs.
const STEPPED_JOBS_MAX: usize = 3;

struct NoWork;

impl WorkSource for NoWork {
    fn next_job(&self, _least: Urgency) -> Option<Box<dyn Job>> {
        None
    }

    fn job_failed(&self, _error: &Error) {}

    fn job_panicked(&self, _what: &str) {}
}

impl Executor {
    /// An executor that has no work yet.
    pub(crate) fn new(mode: Mode) -> Executor {
        let stepper = match mode {
            Mode::Threads(_) => None,
            Mode::Stepped(seed) => {
                Some(Mutex::new(Stepper { random: SplitMix::new(seed), jobs: Vec::new() }))
            }
        };
        let source: Weak<dyn WorkSource> = Weak::<NoWork>::new();
        Executor {
            shared: Arc::new(Shared {
                state: Mutex::new(State::default()),
                work: Condvar::new(),
                progress: Condvar::new(),
                source: Mutex::new(source),
                stepper,
                stepping: Mutex::new(None),
            }),
            threads: Mutex::new(Vec::new()),
            mode,
        }
    }

    /// Starts pulling work from `source`.
    ///
    /// # Errors
    /// `Io` if a thread cannot be started.
    pub(crate) fn start(&self, source: Weak<dyn WorkSource>) -> Result<()> {
        *self.shared.source.lock() = source;
        if let Mode::Threads(count) = self.mode {
            let mut threads = self.threads.lock();
            for number in 0..=count {
                let shared = Arc::clone(&self.shared);
                let least = if number == 0 { Urgency::Immediate } else { Urgency::Normal };
                let thread = thread::Builder::new()
                    .name(format!("spinney-{number}"))
                    .spawn(move || work(&shared, least))
                    .map_err(|e| Error::io("thread start", std::path::Path::new(""), None, e))?;
                threads.push(thread);
            }
        }
        Ok(())
    }

    /// Says that there may be work.
    pub(crate) fn notify(&self) {
        if self.shared.stepper.is_some() {
            return;
        }
        let mut state = self.shared.state.lock();
        state.notices += 1;
        self.shared.work.notify_all();
    }

    /// Does one step; false if there was nothing to do. Stepped executors only.
    pub(crate) fn step(&self) -> Result<bool> {
        // From inside a step nothing else can be done.
        let Some(mut stepper) = self.shared.lock_stepper() else { return Ok(false) };
        if self.shared.state.lock().stopping {
            return Ok(false);
        }
        let Some(source) = self.shared.source.lock().upgrade() else { return Ok(false) };
        if stepper.jobs.len() < STEPPED_JOBS_MAX
            && (stepper.jobs.is_empty() || stepper.random.below(4) == 0)
            && let Some(job) = source.next_job(Urgency::Normal)
        {
            stepper.jobs.push(job);
        }
        if stepper.jobs.is_empty() {
            return Ok(false);
        }
        let count = stepper.jobs.len() as u64;
        let chosen = stepper.random.below(count) as usize;
        *self.shared.stepping.lock() = Some(thread::current().id());
        let stepped = overheard(
            || stepper.jobs[chosen].step(),
            |what| {
                *self.shared.stepping.lock() = None;
                source.job_panicked(what);
            },
        );
        *self.shared.stepping.lock() = None;
        match stepped {
            Ok(Step::Again) => Ok(true),
            Ok(Step::Done | Step::Postponed) => {
                drop(stepper.jobs.swap_remove(chosen));
                self.shared.state.lock().ended += 1;
                Ok(true)
            }
            Err(error) => {
                drop(stepper.jobs.swap_remove(chosen));
                self.shared.state.lock().ended += 1;
                source.job_failed(&error);
                Err(error)
            }
        }
    }

    /// How many jobs have ended. A caller of [`Executor::wait`] asks before it looks at what it waits for.
    pub(crate) fn ended(&self) -> u64 {
        self.shared.state.lock().ended
    }

    /// Lets background work make progress for a caller that waits for it: sleeps until more than `ended` jobs have
    /// ended or `at_most` has passed, or does a step itself. False if there is nothing that could make
    /// progress (stepped executors only).
    pub(crate) fn wait(&self, ended: u64, at_most: Duration) -> bool {
        if self.shared.stepper.is_some() {
            // A step's failure reaches the waiter through the state it waits for.
            return self.step().unwrap_or(true);
        }
        let mut state = self.shared.state.lock();
        if state.ended == ended && !state.stopping {
            self.shared.progress.wait_for(&mut state, at_most);
        }
        true
    }

    /// Whether jobs are stepped by hand.
    pub(crate) fn is_stepped(&self) -> bool {
        self.shared.stepper.is_some()
    }

    /// If no job is being carried out or looked for: how many have ended. Whoever looks for work that nobody has
    /// claimed asks before and after. Only if both answers are the same number did no job claim work, or leave new
    /// work, between the looks.
    pub(crate) fn quiet(&self) -> Option<u64> {
        // Held until the number has been read: no step is under way.
        let stepper = self.shared.lock_stepper();
        let state = self.shared.state.lock();
        let is_quiet = match &self.shared.stepper {
            Some(_) => stepper.is_some_and(|stepper| stepper.jobs.is_empty()),
            None => state.busy == 0,
        };
        is_quiet.then_some(state.ended)
    }

    /// Ends after the steps that are running; begun jobs are dropped.
    pub(crate) fn stop(&self) {
        {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            self.shared.work.notify_all();
            self.shared.progress.notify_all();
        }
        if let Some(mut stepper) = self.shared.lock_stepper() {
            stepper.jobs.clear();
        }
        for thread in self.threads.lock().drain(..) {
            // The last handle may be dropped by a background thread, which cannot wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// The stepper, unless there is none or this thread is inside one of its steps.
    fn lock_stepper(&self) -> Option<MutexGuard<'_, Stepper>> {
        let stepper = self.stepper.as_ref()?;
        let is_mine = *self.stepping.lock() == Some(thread::current().id());
        (!is_mine).then(|| stepper.lock())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a thread does that takes jobs of at least this urgency.
fn work(shared: &Shared, least: Urgency) {
    loop {
        let notices = {
            let mut state = shared.state.lock();
            if state.stopping {
                return;
            }
            // Busy before looking: nobody claims work while all are seen idle (`Executor::quiet`).
            state.busy += 1;
            state.notices
        };
        let source = shared.source.lock().upgrade();
        let found = source.as_deref().is_some_and(|source| take_one(shared, source, least));
        let mut state = shared.state.lock();
        state.busy -= 1;
        if found {
            state.ended += 1;
            state.notices += 1;
            shared.work.notify_all();
        }
        shared.progress.notify_all();
        if !found && state.notices == notices && !state.stopping {
            if least == Urgency::Immediate {
                shared.work.wait(&mut state);
            } else {
                // The time limit is for what no notice announces, such as space to reclaim when idle.
                shared.work.wait_for(&mut state, Duration::from_millis(500));
            }
        }
    }
}

/// Looks for a job and does it; false if there is none.
fn take_one(shared: &Shared, source: &dyn WorkSource, least: Urgency) -> bool {
    let taken = caught(|| match source.next_job(least) {
        Some(job) => {
            carry_out(shared, job, source, true);
            true
        }
        None => false,
    });
    taken.unwrap_or_else(|what| {
        if planted(Bug::WorkerDies) {
            panic!("{what}");
        }
        // Should it panic too, there is nobody left to tell.
        let _ = caught(|| source.job_panicked(&what));
        true
    })
}

/// Does a job. Between its steps it does what is pressing, unless it is that itself.
fn carry_out(
    shared: &Shared,
    mut job: Box<dyn Job>,
    source: &dyn WorkSource,
    is_interruptible: bool,
) {
    loop {
        match job.step() {
            Ok(Step::Done | Step::Postponed) => return,
            Ok(Step::Again) => {
                if shared.state.lock().stopping {
                    return;
                }
                if is_interruptible && let Some(pressing) = source.next_job(Urgency::Pressing) {
                    carry_out(shared, pressing, source, false);
                    shared.state.lock().ended += 1;
                    shared.progress.notify_all();
                }
            }
            Err(error) => {
                source.job_failed(&error);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Counting {
        left: AtomicU64,
        done: AtomicU64,
        order: Mutex<Vec<u64>>,
    }

    struct CountJob {
        number: u64,
        steps: u64,
        source: Arc<Counting>,
    }

    impl Job for CountJob {
        fn step(&mut self) -> Result<Step> {
            self.source.order.lock().push(self.number);
            self.steps -= 1;
            if self.steps > 0 {
                return Ok(Step::Again);
            }
            self.source.done.fetch_add(1, Ordering::SeqCst);
            Ok(Step::Done)
        }
    }

    struct Source(Arc<Counting>);

    impl WorkSource for Source {
        fn next_job(&self, least: Urgency) -> Option<Box<dyn Job>> {
            if least > Urgency::Normal {
                return None;
            }
            let number =
                self.0.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            let number = number.ok()?;
            Some(Box::new(CountJob { number, steps: 3, source: Arc::clone(&self.0) }))
        }

        fn job_failed(&self, _error: &Error) {}

        fn job_panicked(&self, _what: &str) {}
    }

    fn counting(jobs: u64) -> (Arc<Counting>, Arc<Source>) {
        let counting = Arc::new(Counting {
            left: AtomicU64::new(jobs),
            done: AtomicU64::new(0),
            order: Mutex::new(Vec::new()),
        });
        (Arc::clone(&counting), Arc::new(Source(counting)))
    }

    fn weak(source: &Arc<Source>) -> Weak<dyn WorkSource> {
        let source: Arc<dyn WorkSource> = Arc::clone(source) as Arc<dyn WorkSource>;
        Arc::downgrade(&source)
    }

    #[test]
    fn threads_do_all_the_work_and_stop() {
        let (counting, source) = counting(100);
        let executor = Executor::new(Mode::Threads(3));
        executor.start(weak(&source)).unwrap();
        while counting.done.load(Ordering::SeqCst) < 100 {
            executor.notify();
            executor.wait(executor.ended(), Duration::from_millis(10));
        }
        executor.stop();
        assert_eq!(executor.quiet(), Some(100));
    }

    /// A thread looked at what it waits for, a job ended, and the thread began to wait: it slept for as long as it
    /// may, because the number of jobs was read only then.
    #[test]
    fn a_job_that_ends_before_the_wait_begins_is_not_waited_for() {
        // Without threads, nobody wakes whoever sleeps.
        let executor = Executor::new(Mode::Threads(1));
        let before = executor.ended();
        executor.shared.state.lock().ended += 1;
        let began = std::time::Instant::now();
        assert!(executor.wait(before, Duration::from_secs(60)));
        assert!(began.elapsed() < Duration::from_secs(30), "it slept");
    }

    /// A job of many steps, during which others become pressing and immediate.
    struct Late {
        left: Mutex<Vec<(Urgency, u64, u64)>>,
        order: Arc<Mutex<Vec<u64>>>,
    }

    struct LateJob {
        number: u64,
        steps: u64,
        order: Arc<Mutex<Vec<u64>>>,
    }

    impl Job for LateJob {
        fn step(&mut self) -> Result<Step> {
            self.order.lock().push(self.number);
            self.steps -= 1;
            Ok(if self.steps == 0 { Step::Done } else { Step::Again })
        }
    }

    impl WorkSource for Late {
        fn next_job(&self, least: Urgency) -> Option<Box<dyn Job>> {
            let mut left = self.left.lock();
            // As the store: what is immediate is only for those who want nothing else.
            let fits = |urgency: Urgency| {
                urgency >= least && (urgency == Urgency::Immediate) == (least == Urgency::Immediate)
            };
            let most = left.iter().map(|(urgency, ..)| *urgency).filter(|u| fits(*u)).max()?;
            let at = left.iter().position(|(urgency, ..)| *urgency == most)?;
            let (_, number, steps) = left.remove(at);
            Some(Box::new(LateJob { number, steps, order: Arc::clone(&self.order) }))
        }

        fn job_failed(&self, _error: &Error) {}

        fn job_panicked(&self, _what: &str) {}
    }

    /// Both threads were in compactions that took a quarter of a second, and writers waited for a memtable to be
    /// packed.
    #[test]
    fn what_is_pressing_is_done_between_steps() {
        let order = Arc::default();
        let left = vec![(Urgency::Normal, 1, 3)];
        let source = Arc::new(Late { left: Mutex::new(left), order: Arc::clone(&order) });
        let shared = Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            progress: Condvar::new(),
            source: Mutex::new(Weak::<NoWork>::new()),
            stepper: None,
            stepping: Mutex::new(None),
        };
        let job = source.next_job(Urgency::Normal).unwrap();
        source.left.lock().extend([
            (Urgency::Normal, 4, 1),
            (Urgency::Pressing, 2, 2),
            (Urgency::Pressing, 3, 2),
        ]);
        carry_out(&shared, job, &*source, true);
        assert_eq!(*order.lock(), [1, 2, 2, 1, 3, 3, 1], "one that is pressing is not interrupted");
        assert_eq!((source.left.lock().len(), shared.state.lock().ended), (1, 2));
    }

    /// One thread is kept for what is immediate: it is done although all others are in a job that does not end.
    #[test]
    fn what_is_immediate_waits_for_nobody() {
        let order: Arc<Mutex<Vec<u64>>> = Arc::default();
        let left = vec![(Urgency::Normal, 1, u64::MAX)];
        let source = Arc::new(Late { left: Mutex::new(left), order: Arc::clone(&order) });
        let executor = Executor::new(Mode::Threads(1));
        let work: Arc<dyn WorkSource> = Arc::clone(&source) as Arc<dyn WorkSource>;
        executor.start(Arc::downgrade(&work)).unwrap();
        while order.lock().is_empty() {
            executor.notify();
            executor.wait(executor.ended(), Duration::from_millis(1));
        }
        source.left.lock().push((Urgency::Immediate, 2, 1));
        while !order.lock().contains(&2) {
            executor.notify();
            executor.wait(executor.ended(), Duration::from_millis(1));
        }
        executor.stop();
    }

    #[test]
    fn the_same_seed_steps_in_the_same_order() {
        let run = |seed| {
            let (counting, source) = counting(20);
            let executor = Executor::new(Mode::Stepped(seed));
            executor.start(weak(&source)).unwrap();
            while executor.step().unwrap() {}
            assert_eq!(counting.done.load(Ordering::SeqCst), 20);
            counting.order.lock().clone()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
