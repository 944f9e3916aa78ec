//! Group commit: one thread at a time, the leader, works for all waiting threads.
//!
//! The journal and the manifest use it. A thread records its request under the lock and calls
//! [`GroupCommit::wait`]. The first thread that finds no leader leads a round: it takes the
//! recorded requests, works without the lock, and wakes the others.
//!
//! Invariants:
//! 1. A round serves all requests recorded before it began. Later requests wait for the next round.
//! 2. The leader works without the lock. A panic in its work is a failure of the round, so that no
//!    thread waits for a leader that is gone.
//! 3. A failed round sets the latch, and no other round begins.

use crate::base::error::{Error, Result};
use crate::base::held;
use crate::base::panics::caught;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::poison::Poison;
use crate::base::sync::plain::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// The work of the rounds of a group commit.
pub(crate) trait Rounds {
    /// The state shared by the waiting threads.
    type State;
    /// The work of a round.
    type Round;
    /// The result of a round.
    type Done;

    /// The name of the work, for errors.
    const WHAT: &'static str;

    /// Takes the recorded requests.
    fn begin(&self, state: &mut Self::State) -> Self::Round;

    /// Performs the round's work, without the lock.
    fn work(&self, round: &Self::Round) -> Result<Self::Done>;

    /// Records the result of a round. If it returns an error, the round has failed.
    fn end(
        &self,
        state: &mut Self::State,
        round: Self::Round,
        done: Result<Self::Done>,
    ) -> Result<()>;
}

/// A group commit. See the module's description.
#[derive(Default)]
pub(crate) struct GroupCommit<S> {
    state: Mutex<S>,
    /// True while a thread leads. Used with the lock held.
    has_leader: AtomicBool,
    /// Signalled when a leader has finished.
    finished: Condvar,
}

impl<S> GroupCommit<S> {
    pub(crate) fn new(state: S) -> GroupCommit<S> {
        let has_leader = AtomicBool::new(false);
        GroupCommit { state: Mutex::new(state), has_leader, finished: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Waits until `is_done`. Leads rounds while no other thread does.
    ///
    /// # Errors
    /// `Poisoned` if the latch is set; the leader gets the error of its failed round.
    pub(crate) fn wait<R: Rounds<State = S>>(
        &self,
        state: &mut MutexGuard<'_, S>,
        rounds: &R,
        poison: &Poison,
        is_done: impl Fn(&S) -> bool,
    ) -> Result<()> {
        while !is_done(state) {
            held::refuse(R::WHAT);
            poison.check()?;
            if self.has_leader.swap(true, Ordering::Relaxed) {
                self.finished.wait(state);
                continue;
            }
            let round = rounds.begin(state);
            let done = MutexGuard::unlocked(state, || caught(|| rounds.work(&round)));
            let done = done.unwrap_or_else(|message| {
                Err(Error::Poisoned { reason: format!("{} panicked: {message}", R::WHAT) })
            });
            let ended = rounds.end(state, round, done);
            if planted(Bug::JournalLeaderLost) && ended.is_err() {
                MutexGuard::unlocked(state, || hold_open(Bug::JournalLeaderLost, 1));
                return ended.inspect_err(|error| poison.set(error));
            }
            self.has_leader.store(false, Ordering::Relaxed);
            let ended = ended.inspect_err(|error| poison.set(error));
            self.finished.notify_all();
            ended?;
        }
        Ok(())
    }
}
