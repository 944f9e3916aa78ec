//! How a commit locks the keyspaces that it writes to or depends on, and takes keys that transactions have locked.

use std::sync::Arc;
use std::time::Duration;

use super::condition::{Preconditions, lock_hash};
use super::operation::Operation;
use super::state::KeyspaceState;
use super::store::Store;
use super::transaction_locks::{Asked, LockedKey, NotLocked, Owner, TransactionLocks, Wait};
use crate::base::entry::EntryKind;
use crate::base::planted::{Bug, planted};
use crate::base::sync::{RwLockReadGuard, RwLockWriteGuard};

/// How long a write waits for a key that a transaction has locked.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps a keyspace locked.
pub(super) enum KeyspaceLocked<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// Keeps keyspaces locked.
pub(super) enum Locked<'a> {
    One { _guard: KeyspaceLocked<'a> },
    Several { _guards: Vec<KeyspaceLocked<'a>> },
}

/// Locks the keyspaces of a commit, in the order of their numbers: those with a watch of its own, or in which it deletes a
/// range, alone.
pub(super) fn lock_keyspaces<'a, I>(
    operations: &impl Fn() -> I,
    wanted: &Preconditions<'a>,
) -> Locked<'a>
where
    I: Iterator<Item = Operation<'a>>,
{
    let deletes_range = |keyspace: &KeyspaceState| {
        let mut deletes = operations().filter(|it| it.kind == EntryKind::RangeDelete);
        deletes.any(|operation| operation.keyspace.id == keyspace.id)
    };
    let lock = |keyspace: &'a Arc<KeyspaceState>| match wanted.watch_of(keyspace) {
        Some(_) if !planted(Bug::WatchedKeyspaceShared) => {
            KeyspaceLocked::Alone { _guard: keyspace.watches.exclude() }
        }
        _ if deletes_range(keyspace) => {
            KeyspaceLocked::Alone { _guard: keyspace.watches.exclude() }
        }
        _ => KeyspaceLocked::Shared { _guard: keyspace.watches.share() },
    };
    let mut written = operations().map(|operation| operation.keyspace);
    // A batch has an operation, and most have one keyspace.
    let first = written.next();
    let mut others = written.chain(wanted.keyspaces());
    let is_other = |other: &&'a Arc<KeyspaceState>| first.is_none_or(|first| first.id != other.id);
    let second = others.find(is_other);
    match (first, second) {
        (Some(first), None) => Locked::One { _guard: lock(first) },
        _ => {
            let mut all: Vec<_> = first.into_iter().chain(second).chain(others).collect();
            all.sort_unstable_by_key(|keyspace| keyspace.id);
            all.dedup_by_key(|keyspace| keyspace.id);
            Locked::Several { _guards: all.into_iter().map(lock).collect() }
        }
    }
}

/// Keys that a commit has taken for itself, passed on when this is dropped.
pub(crate) struct Taken {
    locks: Arc<TransactionLocks>,
    pub(super) owner: Owner,
    keys: Vec<LockedKey>,
    /// When it stops waiting for keys.
    until_nanos: u64,
}

impl Taken {
    pub(super) fn release(&mut self) {
        self.locks.release(self.keys.iter());
        self.keys.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.release();
    }
}

impl Store {
    /// Tells watches of the keys that are about to be written to.
    #[cold]
    pub(super) fn tell_watches<'a>(
        &self,
        operations: impl Iterator<Item = Operation<'a>>,
        wanted: &Preconditions<'a>,
    ) {
        for operation in operations {
            let Operation { keyspace, key, .. } = operation;
            let own = wanted.watch_of(keyspace).map(|published| &published.watch);
            match operation.range() {
                Some(range) => keyspace.watches.tell_range(range, own),
                None => keyspace.watches.tell(key, own),
            }
        }
    }

    /// Whether somebody else than `owner` has locked a key that is written to.
    #[cold]
    pub(super) fn is_blocked<'a>(
        &self,
        mut operations: impl Iterator<Item = Operation<'a>>,
        owner: Option<Owner>,
    ) -> bool {
        !planted(Bug::LockedKeyWritten)
            && operations.any(|operation| {
                let Operation { keyspace, key, .. } = operation;
                let locks = &self.transaction_locks;
                match operation.range() {
                    Some(range) => locks.held_by_other_in(keyspace.id, range, owner).is_some(),
                    None => locks.is_held_by_other(&(keyspace.id, key.to_vec()), owner),
                }
            })
    }

    /// Nothing yet, for the transaction of a commit, or for a commit that waits like one.
    pub(super) fn takes_keys(&self, transaction: Option<Owner>) -> Taken {
        let owner = transaction.unwrap_or_else(|| self.transaction_locks.owner(false));
        let until_nanos = self.clock.nanos().saturating_add(LOCK_TIMEOUT.as_nanos() as u64);
        let locks = Arc::clone(&self.transaction_locks);
        Taken { locks, owner, keys: Vec::new(), until_nanos }
    }

    /// Takes the keys among those written to that others have locked. Fails as [`Store::lock_for`].
    pub(super) fn take_locked<'a>(
        &self,
        operations: impl Iterator<Item = Operation<'a>>,
        taken: &mut Taken,
    ) -> Result<(), NotLocked> {
        for operation in operations {
            let Operation { keyspace, key, .. } = operation;
            if let Some(range) = operation.range() {
                self.take_locked_range(keyspace, range, taken)?;
                continue;
            }
            let locked = (keyspace.id, key.to_vec());
            let left = taken.until_nanos.saturating_sub(self.clock.nanos());
            if self.transaction_locks.is_held_by_other(&locked, Some(taken.owner))
                && self.lock_for(taken.owner, keyspace, key, Duration::from_nanos(left))?
            {
                taken.keys.push(locked);
            }
        }
        Ok(())
    }

    /// Takes the keys of a range that others have locked, one after the other.
    fn take_locked_range(
        &self,
        keyspace: &KeyspaceState,
        range: (&[u8], Option<&[u8]>),
        taken: &mut Taken,
    ) -> Result<(), NotLocked> {
        let owner = Some(taken.owner);
        while let Some(locked) = self.transaction_locks.held_by_other_in(keyspace.id, range, owner)
        {
            let left = taken.until_nanos.saturating_sub(self.clock.nanos());
            if self.lock_for(taken.owner, keyspace, &locked.1, Duration::from_nanos(left))? {
                taken.keys.push(locked);
            }
        }
        Ok(())
    }

    /// Locks a key of a guarded keyspace for `owner`. Returns false if it had done so before. Fails if another owner has it
    /// for longer than `timeout`, or waits for this one.
    pub(crate) fn lock_for(
        &self,
        owner: Owner,
        keyspace: &KeyspaceState,
        key: &[u8],
        timeout: Duration,
    ) -> Result<bool, NotLocked> {
        let locked = (keyspace.id, key.to_vec());
        let until_nanos = self.clock.nanos().saturating_add(timeout.as_nanos() as u64);
        loop {
            let asked = {
                // A range delete locks no keys, but has the keyspace for itself.
                let _shared = keyspace.watches.share();
                let _alone = (!planted(Bug::LockTakenBesideCommit))
                    .then(|| self.key_locks.lock(std::iter::once(lock_hash(keyspace, key))));
                self.transaction_locks.ask(owner, &locked)
            };
            match asked {
                Asked::New => return Ok(true),
                Asked::Had => return Ok(false),
                Asked::Busy => {}
            }
            let left = until_nanos.saturating_sub(self.clock.nanos());
            let wait = Wait { timeout, left: Duration::from_nanos(left), clock: &self.clock };
            let goes_on = || self.check_writable();
            if self.transaction_locks.wait(owner, &locked, &keyspace.name, &wait, goes_on)? {
                return Ok(true);
            }
        }
    }
}
