//! What a commit depends on: keys to which nobody has written since they were read.
//!
//! A keyspace is *guarded* from its first conditional write on, until it is closed. Commits to it lock their keys
//! (`key_locks`). A conditional write reads its keys at some number, locks them, and looks whether one has a newer version.
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

use super::large::LargeValues;
use super::state::KeyspaceState;
use super::store::Store;
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

/// What earlier tries of a commit have done: one whose conditions do not hold is tried again.
#[derive(Default)]
pub(crate) struct Tries {
    /// Its large values, which have been written.
    pub(super) values: Option<LargeValues>,
    /// It has been delayed, for all of its bytes.
    pub(super) was_delayed: bool,
}

impl Tries {
    /// The next try writes other values.
    pub(crate) fn forget_values(&mut self) {
        self.values = None;
    }
}

impl Condition<'_> {
    /// Returns true if the condition holds. Before the key is locked, the answer may be outdated at once.
    fn holds(&self) -> bool {
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
    /// Whether all conditions hold. If not, their keys are to be read again.
    ///
    /// # Errors
    /// `Closed` if a keyspace has been dropped. `Poisoned`: a commit that has panicked may have left a version that never
    /// becomes visible, and no condition on its key would ever hold.
    pub(super) fn all_hold(&self, conditions: &[Condition<'_>]) -> Result<bool> {
        conditions.iter().try_for_each(|condition| condition.keyspace.check_exists())?;
        let all_hold = conditions.iter().all(Condition::holds);
        match all_hold {
            // What a keyspace had is gone once it has been dropped.
            true => conditions.iter().try_for_each(|it| it.keyspace.check_exists())?,
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
