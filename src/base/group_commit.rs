//! Group commit: one thread at a time, the leader, works for all that wait.
//!
//! Journal and manifest stand on it. A thread notes under the lock what it needs, and calls [`GroupCommit::wait`]. The
//! first to find no leader leads a round: it takes what has been noted, works without the lock, and tells the others.
//!
//! Invariants:
//! 1. A round works for all that was noted before it began. Who comes while it runs waits for the next one.
//! 2. The leader works without the lock. A panic of its work is a failure of the round: nobody waits for a leader that
//!    is gone.
//! 3. A round that fails sets the latch, and no other is begun.

use crate::base::error::{Error, Result};
use crate::base::panics::caught;
use crate::base::planted::{Bug, hold_open, planted};
use crate::base::poison::Poison;
use crate::base::sync::plain::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, Mutex, MutexGuard};

/// What the rounds of a group commit do.
pub(crate) trait Rounds {
    /// What those who wait share.
    type State;
    /// What a round has to do.
    type Round;
    /// What it has done.
    type Done;

    /// For errors: what a round does.
    const WHAT: &'static str;

    /// Takes what has been noted.
    fn begin(&self, state: &mut Self::State) -> Self::Round;

    /// Does the round's work, without the lock.
    fn work(&self, round: &Self::Round) -> Result<Self::Done>;

    /// Notes what a round has come to. An error that it returns is the round's failure.
    fn end(
        &self,
        state: &mut Self::State,
        round: Self::Round,
        done: Result<Self::Done>,
    ) -> Result<()>;
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct GroupCommit<S> {
    state: Mutex<S>,
    /// A thread leads. Used with the lock held.
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

    /// Locks the state while nobody leads.
    pub(crate) fn lock_idle(&self) -> MutexGuard<'_, S> {
        let mut state = self.state.lock();
        while self.has_leader.load(Ordering::Relaxed) {
            self.finished.wait(&mut state);
        }
        state
    }

    /// Waits until `is_done`, and leads rounds while nobody else does.
    ///
    /// # Errors
    /// `Poisoned` if the latch is set; the round's failure for the one that led it.
    pub(crate) fn wait<R: Rounds<State = S>>(
        &self,
        state: &mut MutexGuard<'_, S>,
        rounds: &R,
        poison: &Poison,
        is_done: impl Fn(&S) -> bool,
    ) -> Result<()> {
        while !is_done(state) {
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
