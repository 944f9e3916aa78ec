//! What a commit depends on: keys to which nobody has written since they were read.
//!
//! A keyspace is *guarded* from its first conditional write or transaction on, until it is closed. Commits to it lock their
//! keys (`key_locks`). A conditional write reads its keys at some number, locks them, and looks whether one has a newer version.
//! All versions that are newer than a tree's `flushed` number are in memtables, so that look reads no page.
//!
//! Invariants:
//! 1. While keys of a guarded keyspace are locked, nobody else writes to them, and every commit to them that has got a
//!    number is visible: the locks are kept until a commit is visible, and behind the barrier of [`Store::guard`] no
//!    commit is under way that has none.
//! 2. A condition holds if no version of the key is above the number at which it was read. What has left the memtables
//!    since then may be one: the key is read again.
//! 3. A keyspace of a condition exists when the commit gets its number: it is looked at once more if one has been dropped
//!    since the conditions were found to hold.

use std::sync::Arc;

use super::state::KeyspaceState;
use super::store::Store;
use super::transaction_locks::Owner;
use super::watch::Published;
use crate::base::error::Result;
use crate::base::ids::{KeyspaceId, Seqno};
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;

/// That nobody has written to a key since it was read.
pub(crate) struct Condition<'a> {
    pub(crate) keyspace: &'a Arc<KeyspaceState>,
    pub(crate) key: &'a [u8],
    /// The number at which it was read.
    pub(crate) since: Seqno,
}

/// What must hold when a commit gets its number. All keyspaces in it are guarded.
#[derive(Clone, Copy)]
pub(crate) struct Preconditions<'a> {
    pub(crate) conditions: &'a [Condition<'a>],
    /// Watches that nobody has hit.
    pub(crate) watches: &'a [WatchOf<'a>],
    /// Who has locked keys for it.
    pub(crate) owner: Option<Owner>,
}

/// A watch, and its keyspace.
pub(crate) struct WatchOf<'a> {
    pub(crate) keyspace: &'a Arc<KeyspaceState>,
    pub(crate) published: Published<'a>,
}

impl<'a> Preconditions<'a> {
    /// Those of a commit that depends on nothing.
    pub(crate) const NONE: Preconditions<'static> =
        Preconditions { conditions: &[], watches: &[], owner: None };

    pub(crate) fn of(conditions: &'a [Condition<'a>]) -> Preconditions<'a> {
        Preconditions { conditions, ..Preconditions::NONE }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.conditions.is_empty() && self.watches.is_empty()
    }

    /// Its keyspaces, some of them several times.
    pub(super) fn keyspaces(&self) -> impl Iterator<Item = &'a Arc<KeyspaceState>> + use<'a> {
        let of_conditions = self.conditions.iter().map(|condition| condition.keyspace);
        of_conditions.chain(self.watches.iter().map(|watch| watch.keyspace))
    }

    /// Its watch of a keyspace.
    pub(super) fn watch_of(&self, keyspace: &KeyspaceState) -> Option<&'a Published<'a>> {
        let mut watches = self.watches.iter();
        watches.find(|watch| watch.keyspace.id == keyspace.id).map(|watch| &watch.published)
    }
}

impl Condition<'_> {
    /// Returns true if the condition holds. Before the key is locked, the answer may be outdated at once.
    pub(crate) fn holds(&self) -> bool {
        if planted(Bug::ConditionNotVerified) {
            return true;
        }
        let read = self.keyspace.read.load();
        if read.version.flushed() > self.since && !planted(Bug::ConditionIgnoresFlush) {
            return false;
        }
        let looked_at = if planted(Bug::ConditionSeesActiveOnly) { 1 } else { usize::MAX };
        read.memtables().take(looked_at).all(|memtable| {
            let newest = memtable.memtable.get(self.key, Seqno::MAX);
            newest.is_none_or(|newest| newest.seqno <= self.since)
                && !(memtable.range_deletes.are_there()
                    && memtable.range_deletes.newest(self.key, Seqno::MAX) > Some(self.since))
        })
    }

    /// For [`KeyLocks`](super::key_locks::KeyLocks).
    pub(super) fn hash(&self) -> u64 {
        lock_hash(self.keyspace, self.key)
    }
}

/// The hash by which a key is locked.
pub(super) fn lock_hash(keyspace: &KeyspaceState, key: &[u8]) -> u64 {
    let KeyspaceId(id) = keyspace.id;
    keyspace.hasher.hash(key).wrapping_add(u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 16
}

impl Store {
    /// Whether all conditions hold, and no watch has been hit. If not, the keys of conditions are to be read again.
    ///
    /// # Errors
    /// `Closed` if a keyspace has been dropped. `Poisoned`: a commit that has panicked may have left a version that never
    /// becomes visible, and no condition on its key would ever hold.
    pub(super) fn all_hold(&self, preconditions: &Preconditions<'_>) -> Result<bool> {
        let check_exist = || preconditions.keyspaces().try_for_each(|it| it.check_exists());
        check_exist()?;
        let is_hit = |watch: &WatchOf<'_>| watch.published.watch.hit().is_some();
        let all_hold = preconditions.conditions.iter().all(Condition::holds)
            && !preconditions.watches.iter().any(is_hit);
        match all_hold {
            // What a keyspace had is gone once it has been dropped.
            true => check_exist()?,
            false => self.check_writable()?,
        }
        Ok(all_hold)
    }

    /// Makes all later commits to the keyspace lock their keys. Returns when no commit without locks is running.
    pub(crate) fn guard(&self, keyspace: &KeyspaceState) -> Result<()> {
        if keyspace.is_guarded_throughout.load(Ordering::Acquire) {
            return Ok(());
        }
        self.check_writable()?;
        keyspace.is_guarded.store(true, Ordering::SeqCst);
        // A commit that has not seen it finds this changed once it has its shard.
        self.keyspace_changes.fetch_add(1, Ordering::SeqCst);
        if planted(Bug::GuardWithoutBarrier) {
            return Ok(());
        }
        self.committer.barrier(|_| ());
        keyspace.is_guarded_throughout.store(true, Ordering::Release);
        Ok(())
    }
}
