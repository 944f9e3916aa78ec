//! The live snapshots: which sequence numbers compactions must keep readable.
//!
//! Invariant: a snapshot is registered at the number that is visible at that moment, under the lock
//! under which `list` reads; so whoever lists first drops only what a later snapshot cannot see.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::sync::Mutex;

/// All live snapshots.
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<Seqno, usize>>,
    birthplace: Birthplace,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots { live: Mutex::default(), birthplace: Birthplace::here() }
    }
}

/// Keeps a number readable until dropped.
pub(crate) struct SnapshotGuard {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
}

impl Snapshots {
    /// Registers a snapshot at the number that `visible` returns.
    pub(crate) fn register(self: &Arc<Self>, visible: impl FnOnce() -> Seqno) -> SnapshotGuard {
        let mut live = self.live.lock();
        let seqno = visible();
        match live.entry(seqno).or_default() {
            count @ 1.. if planted(Bug::SnapshotReleasedEarly) => *count = 1,
            count => *count += 1,
        }
        SnapshotGuard { snapshots: Arc::clone(self), seqno }
    }

    /// The live snapshots' numbers, ascending, and `visible` after them.
    pub(crate) fn list(&self, visible: impl FnOnce() -> Seqno) -> Vec<Seqno> {
        let live = self.live.lock();
        let skipped = usize::from(planted(Bug::SnapshotOldestForgotten));
        let mut list: Vec<Seqno> = live.keys().copied().skip(skipped).collect();
        let visible = visible();
        if list.last().is_none_or(|last| *last < visible) {
            list.push(visible);
        }
        list
    }

    /// How many are live.
    pub(crate) fn count(&self) -> u64 {
        self.live.lock().values().map(|count| *count as u64).sum()
    }
}

impl SnapshotGuard {
    /// The number.
    pub(crate) fn seqno(&self) -> Seqno {
        self.seqno
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        // In a forked child nobody is left who may hold the lock, or who asks.
        if !self.snapshots.birthplace.is_here() {
            return;
        }
        let mut live = self.snapshots.live.lock();
        if let Some(count) = live.get_mut(&self.seqno) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.seqno);
            }
        }
    }
}
