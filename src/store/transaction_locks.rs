//! Keys that transactions have locked for themselves, and who waits for them.
//!
//! A transaction may lock keys before it commits ([`Transaction::lock`](crate::Transaction::lock)). Then nobody else
//! commits a write to them: whoever wants to waits, as a transaction of that one commit. These locks are apart from
//! `key_locks`, which are held for the moment of a commit.
//!
//! Invariants:
//! 1. A free key is given to an owner while it is locked in `key_locks`, so no commit to it is under way. A key that is
//!    passed on has not been free in between.
//! 2. Owners get a key in the order in which they came for it.
//! 3. An owner waits for one key at a time, and never in a circle. If one would arise, a commit in it that is no transaction
//!    lets the others by; without one, the transaction that would close the circle is told of it.
//! 4. Nobody waits here with a lock of any other kind, or with a batch in flight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::base::sync::{Condvar, Mutex};
use crate::jobs::Clock;

/// Those who wait look so often whether the store goes on.
const LOOK: Duration = Duration::from_millis(100);

/// A transaction, or a commit that waits like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) number: u64,
    pub(crate) is_transaction: bool,
}

/// A key of some keyspace.
pub(crate) type LockedKey = (KeyspaceId, Vec<u8>);

struct Lock {
    owner: Owner,
    waiting: VecDeque<Owner>,
}

/// Who waits, for which key, and who has that.
type Step = (Owner, LockedKey, Owner);

#[derive(Default)]
struct Table {
    locks: BTreeMap<LockedKey, Lock>,
    /// What each owner that waits waits for.
    waits: BTreeMap<Owner, LockedKey>,
    /// Owners that have waited, and are to pass on what they have.
    sent_back: BTreeSet<Owner>,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct TransactionLocks {
    owners: AtomicU64,
    /// How many keys are locked.
    held: AtomicU64,
    table: Mutex<Table>,
    released: Condvar,
}

/// What asking for a key has led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The owner has it now.
    New,
    /// The owner had it before.
    Had,
    /// Another one has it.
    Busy,
}

/// How long an owner waits.
pub(super) struct Wait<'a> {
    /// All in all, for the error.
    pub(super) timeout: Duration,
    /// From now on.
    pub(super) left: Duration,
    pub(super) clock: &'a Clock,
}

/// Why a key has not been locked.
#[derive(Debug)]
pub(crate) struct NotLocked {
    /// A `Conflict`, or what the store cannot go on for.
    pub(crate) error: Error,
    /// The owner would have waited for itself at this key. Otherwise its time was up.
    pub(crate) circle_at: Option<Box<LockedKey>>,
}

impl Table {
    /// The circle that `owner` would close by waiting, beginning with its own step.
    fn circle(&self, owner: Owner) -> Option<Vec<Step>> {
        let mut circle = Vec::new();
        let mut waiting = owner;
        loop {
            let key = self.waits.get(&waiting)?;
            let holder = self.locks.get(key)?.owner;
            circle.push((waiting, key.clone(), holder));
            if holder == owner {
                return Some(circle);
            }
            waiting = holder;
        }
    }

    fn give_up(&mut self, owner: Owner, key: &LockedKey) {
        self.waits.remove(&owner);
        if let Some(lock) = self.locks.get_mut(key) {
            lock.waiting.retain(|waiting| *waiting != owner);
        }
    }
}

impl TransactionLocks {
    /// A new owner.
    pub(crate) fn owner(&self, is_transaction: bool) -> Owner {
        Owner { number: self.owners.fetch_add(1, Ordering::Relaxed) + 1, is_transaction }
    }

    /// Whether any key is locked.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.held.load(Ordering::SeqCst) > 0
    }

    #[cfg(test)]
    pub(crate) fn is_used_at_all(&self) -> bool {
        self.is_used() || !self.table.lock().waits.is_empty()
    }

    /// Whether somebody else than `owner` has the key.
    pub(super) fn is_held_by_other(&self, key: &LockedKey, owner: Option<Owner>) -> bool {
        let table = self.table.lock();
        table.locks.get(key).is_some_and(|lock| Some(lock.owner) != owner)
    }

    /// A key of a range that somebody else than `owner` has.
    pub(super) fn held_by_other_in(
        &self,
        keyspace: KeyspaceId,
        (lower, upper): (&[u8], Option<&[u8]>),
        owner: Option<Owner>,
    ) -> Option<LockedKey> {
        let table = self.table.lock();
        let mut locks = table.locks.range((keyspace, lower.to_vec())..);
        let is_within =
            |key: &LockedKey| key.0 == keyspace && upper.is_none_or(|upper| *key.1 < *upper);
        let found = locks.by_ref().take_while(|(key, _)| is_within(key));
        let mut others = found.filter(|(_, lock)| Some(lock.owner) != owner);
        others.next().map(|(key, _)| key.clone())
    }

    /// Gives the key to `owner` if it is free. The caller has locked it in `key_locks`.
    pub(super) fn ask(&self, owner: Owner, key: &LockedKey) -> Asked {
        let mut table = self.table.lock();
        match table.locks.get(key) {
            Some(lock) if lock.owner == owner => Asked::Had,
            Some(_) => Asked::Busy,
            None => {
                table.locks.insert(key.clone(), Lock { owner, waiting: VecDeque::new() });
                self.held.fetch_add(1, Ordering::SeqCst);
                Asked::New
            }
        }
    }

    /// Waits for a key that was busy, as long as `goes_on` does not fail. Returns false if it has become free, and is to be
    /// asked for again.
    pub(super) fn wait(
        &self,
        owner: Owner,
        key: &LockedKey,
        keyspace: &str,
        Wait { timeout, left, clock }: &Wait<'_>,
        goes_on: impl Fn() -> Result<()>,
    ) -> std::result::Result<bool, NotLocked> {
        let shown = |key: &LockedKey| format!("\"{}\"", key.1.escape_ascii());
        let mut table = self.table.lock();
        let Some(lock) = table.locks.get_mut(key) else { return Ok(false) };
        lock.waiting.push_back(owner);
        table.waits.insert(owner, key.clone());
        while let Some(circle) = table.circle(owner).filter(|_| !planted(Bug::DeadlockNotSeen)) {
            let is_commit = |(waiting, ..): &&Step| !waiting.is_transaction;
            if owner.is_transaction
                && let Some((commit, waits_for, _)) = circle.iter().find(is_commit)
            {
                table.give_up(*commit, waits_for);
                table.sent_back.insert(*commit);
                self.released.notify_all();
                continue;
            }
            let told = |(waiting, key, holder): Step| {
                let (waiting, holder, (keyspace, _)) = (waiting.number, holder.number, &key);
                let key = shown(&key);
                format!(
                    "{waiting} waits for key {key} of keyspace number {keyspace}, which {holder} has locked"
                )
            };
            let steps: Vec<String> = circle.into_iter().map(told).collect();
            let what = format!(
                "a deadlock of transactions: {}; begin this transaction anew (Database::transact does so)",
                steps.join("; ")
            );
            table.give_up(owner, key);
            let circle_at = Some(Box::new(key.clone()));
            return Err(NotLocked { error: Error::Conflict { what }, circle_at });
        }
        let from = clock.nanos();
        // Where no time passes, no other thread will release it.
        let can_wait = clock.is_real() || cfg!(shuttle);
        loop {
            if table.sent_back.remove(&owner) {
                let what = "transactions wait for keys of this commit".to_string();
                let circle_at = Some(Box::new(key.clone()));
                return Err(NotLocked { error: Error::Conflict { what }, circle_at });
            }
            let Some(holder) = table.locks.get(key).map(|lock| lock.owner) else {
                // Not while it waits: its turn would have come.
                table.waits.remove(&owner);
                return Ok(false);
            };
            if holder == owner {
                return Ok(true);
            }
            let waited = Duration::from_nanos(clock.nanos().saturating_sub(from));
            if let Err(error) = goes_on() {
                table.give_up(owner, key);
                return Err(NotLocked { error, circle_at: None });
            }
            if waited >= *left || !can_wait {
                table.give_up(owner, key);
                let what = format!(
                    "transaction {} has locked key {} of keyspace {keyspace:?} for longer than this one waits \
                     ({timeout:?}); try again, or wait longer (Transaction::lock_timeout)",
                    holder.number,
                    shown(key)
                );
                return Err(NotLocked { error: Error::Conflict { what }, circle_at: None });
            }
            self.released.wait_for(&mut table, left.saturating_sub(waited).min(LOOK));
        }
    }

    /// Passes the keys on to those who wait for them.
    pub(crate) fn release<'a>(&self, keys: impl Iterator<Item = &'a LockedKey>) {
        let mut table = self.table.lock();
        for key in keys {
            let Some(lock) = table.locks.get_mut(key) else { continue };
            match lock.waiting.pop_front() {
                Some(next) => {
                    lock.owner = next;
                    table.waits.remove(&next);
                }
                None => {
                    table.locks.remove(key);
                    self.held.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
        drop(table);
        self.released.notify_all();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn wait(timeout: Duration, clock: &Clock) -> Wait<'_> {
        Wait { timeout, left: timeout, clock }
    }

    fn key(key: &str) -> LockedKey {
        (KeyspaceId(1), key.into())
    }

    fn await_waiting(locks: &TransactionLocks, count: usize) {
        while locks.table.lock().waits.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn a_key_is_passed_on_in_the_order_of_arrival() {
        let (locks, clock) = (TransactionLocks::default(), Clock::real());
        let (first, order) = (locks.owner(true), Mutex::new(Vec::new()));
        assert_eq!(locks.ask(first, &key("a")), Asked::New);
        assert_eq!(locks.ask(first, &key("a")), Asked::Had);
        thread::scope(|scope| {
            for number in 0..4 {
                let (locks, clock, order, owner) = (&locks, &clock, &order, locks.owner(true));
                scope.spawn(move || {
                    assert_eq!(locks.ask(owner, &key("a")), Asked::Busy);
                    assert!(
                        locks.wait(owner, &key("a"), "k", &wait(LONG, clock), || Ok(())).unwrap()
                    );
                    assert!(locks.is_held_by_other(&key("a"), Some(first)));
                    order.lock().push(number);
                    locks.release([key("a")].iter());
                });
                await_waiting(locks, number + 1);
            }
            locks.release([key("a")].iter());
        });
        assert_eq!(*order.lock(), [0, 1, 2, 3]);
        assert!(!locks.is_used() && locks.table.lock().locks.is_empty());
    }

    #[test]
    fn whoever_closes_a_circle_is_told_of_all_of_it() {
        let (locks, clock) = (TransactionLocks::default(), Clock::real());
        let owners = [locks.owner(true), locks.owner(true), locks.owner(true)];
        let keys = [key("a"), key("b"), key("c")];
        for (owner, key) in owners.into_iter().zip(&keys) {
            assert_eq!(locks.ask(owner, key), Asked::New);
        }
        thread::scope(|scope| {
            for at in 0..2 {
                let (locks, clock, owner, key) = (&locks, &clock, owners[at], &keys[at + 1]);
                scope.spawn(move || {
                    assert!(locks.wait(owner, key, "k", &wait(LONG, clock), || Ok(())).unwrap())
                });
            }
            await_waiting(&locks, 2);
            let told = locks.wait(owners[2], &keys[0], "k", &wait(LONG, &clock), || Ok(()));
            let Err(NotLocked { error, circle_at: Some(_) }) = told else { panic!("{told:?}") };
            for told in [
                "3 waits for key \"a\" of keyspace number 1, which 1 has locked",
                "1 waits for key \"b\"",
                "2 waits for key \"c\"",
            ] {
                assert!(error.to_string().contains(told), "{error}");
            }
            // It ends, and the others go on one after the other.
            locks.release(keys[2..].iter());
            while !locks.is_held_by_other(&keys[2], Some(owners[2])) {}
            locks.release(keys[1..2].iter());
        });
    }

    /// Transactions that lock keys in one order were told of deadlocks with batches.
    #[test]
    fn a_commit_lets_transactions_by() {
        let (locks, clock) = (TransactionLocks::default(), Clock::real());
        let (transaction, commit) = (locks.owner(true), locks.owner(false));
        let keys = [key("a"), key("b")];
        locks.ask(transaction, &keys[0]);
        locks.ask(commit, &keys[1]);
        thread::scope(|scope| {
            scope.spawn(|| {
                let told = locks.wait(commit, &keys[0], "k", &wait(LONG, &clock), || Ok(()));
                assert!(told.is_err_and(|told| told.circle_at.is_some()));
                locks.release(keys[1..].iter());
            });
            await_waiting(&locks, 1);
            let given = locks.wait(transaction, &keys[1], "k", &wait(LONG, &clock), || Ok(()));
            assert!(given.unwrap());
        });
        locks.release(keys.iter());
        assert!(!locks.is_used_at_all() && locks.table.lock().sent_back.is_empty());
    }

    #[test]
    fn a_wait_ends_after_its_time_and_leaves_no_trace() {
        let (locks, clock) = (TransactionLocks::default(), Clock::real());
        let (first, second) = (locks.owner(true), locks.owner(true));
        locks.ask(first, &key("a"));
        let short = Duration::from_millis(5);
        let told = locks.wait(second, &key("a"), "k", &wait(short, &clock), || Ok(()));
        let Err(NotLocked { error, circle_at: None }) = told else { panic!("{told:?}") };
        assert!(error.to_string().contains("transaction 1 has locked key \"a\""), "{error}");
        locks.release([key("a")].iter());
        assert!(!locks.is_used() && locks.table.lock().waits.is_empty());
        assert!(
            !locks.wait(second, &key("a"), "k", &wait(short, &clock), || Ok(())).unwrap(),
            "it is free"
        );
    }
}
