//! The sequence numbers that compactions must keep readable: those of snapshots and of iterators.
//!
//! Registering a number costs one uncontended lock, whatever the number of snapshots and iterators. The numbers
//! are counted in shards, one of them for each few threads. Equal numbers take no more memory than one.
//!
//! Invariants:
//! 1. A number is read from the visible state under the lock of the shard that it is registered in.
//! 2. `list` reads the visible number first and the shards then, one after another. So a number that it misses
//!    was read later and is at least as high as the last of the list: what a compaction that respects the list
//!    drops cannot be seen at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::base::sync::{CachePadded, Mutex, thread_number};

const SHARDS: usize = 16;

/// All registered numbers, each with how often it is registered.
pub(crate) struct Snapshots {
    shards: [CachePadded<Mutex<BTreeMap<Seqno, usize>>>; SHARDS],
    snapshots: AtomicU64,
    birthplace: Birthplace,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        Snapshots {
            shards: std::array::from_fn(|_| CachePadded::default()),
            snapshots: AtomicU64::new(0),
            birthplace: Birthplace::here(),
        }
    }
}

/// What a number is registered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Snapshot,
    Iterator,
}

/// Keeps a number readable until dropped.
pub(crate) struct SnapshotGuard {
    snapshots: Arc<Snapshots>,
    seqno: Seqno,
    shard: u8,
    reader: Reader,
}

impl Snapshots {
    /// Registers the number that `visible` returns. In a forked child it is not registered: the lock may be held by a
    /// thread that is not there. Whoever reads at it is refused.
    pub(crate) fn register(
        self: &Arc<Self>,
        reader: Reader,
        visible: impl FnOnce() -> Seqno,
    ) -> SnapshotGuard {
        let shard = thread_number() % SHARDS;
        if !self.birthplace.is_here() {
            let snapshots = Arc::clone(self);
            return SnapshotGuard { snapshots, seqno: visible(), shard: shard as u8, reader };
        }
        self.snapshots.fetch_add(u64::from(reader == Reader::Snapshot), Ordering::Relaxed);
        let mut live = self.shards[shard].lock();
        let seqno = visible();
        match live.entry(seqno).or_default() {
            count @ 1.. if planted(Bug::SnapshotReleasedEarly) => *count = 1,
            count => *count += 1,
        }
        if planted(Bug::IteratorNotRegistered) && reader == Reader::Iterator {
            live.remove(&seqno);
        }
        SnapshotGuard { snapshots: Arc::clone(self), seqno, shard: shard as u8, reader }
    }

    /// The registered numbers up to the one that `visible` returns, ascending, and that one last.
    pub(crate) fn list(&self, visible: impl FnOnce() -> Seqno) -> Vec<Seqno> {
        let visible = visible();
        let mut list = Vec::new();
        for shard in &self.shards {
            list.extend(shard.lock().range(..visible).map(|(seqno, _)| *seqno));
        }
        list.sort_unstable();
        list.dedup();
        if planted(Bug::SnapshotOldestForgotten) && !list.is_empty() {
            list.remove(0);
        }
        list.push(visible);
        list
    }

    /// How many snapshots are held.
    pub(crate) fn snapshots(&self) -> u64 {
        self.snapshots.load(Ordering::Relaxed)
    }
}

impl SnapshotGuard {
    /// The number.
    #[inline]
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
        let is_snapshot = u64::from(self.reader == Reader::Snapshot);
        self.snapshots.snapshots.fetch_sub(is_snapshot, Ordering::Relaxed);
        let mut live = self.snapshots.shards[usize::from(self.shard)].lock();
        if let Some(count) = live.get_mut(&self.seqno) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.seqno);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Database::snapshot` in a forked child waited for a lock that a thread of its parent held.
    #[test]
    fn nothing_is_registered_in_a_forked_child() {
        let forked = Snapshots { birthplace: Birthplace::elsewhere(), ..Snapshots::default() };
        let snapshots = Arc::new(forked);
        let held: Vec<_> = snapshots.shards.iter().map(|shard| shard.lock()).collect();
        let (tell, told) = std::sync::mpsc::channel();
        {
            let snapshots = Arc::clone(&snapshots);
            std::thread::spawn(move || {
                let guard = snapshots.register(Reader::Snapshot, || Seqno(7));
                tell.send((guard.seqno(), snapshots.snapshots())).unwrap();
            });
        }
        let registered = told.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(registered.expect("it waits for its parent"), (Seqno(7), 0));
        assert!(held.iter().all(|shard| shard.is_empty()));
    }

    #[test]
    fn numbers_of_all_threads_are_listed_once_and_go_with_their_last_holder() {
        let snapshots = Arc::new(Snapshots::default());
        let register = |number| snapshots.register(Reader::Iterator, || Seqno(number));
        let held = register(7);
        std::thread::scope(|scope| {
            let others: Vec<_> = [3, 7, 12]
                .into_iter()
                .map(|number| scope.spawn(move || register(number)).join().unwrap())
                .collect();
            assert_eq!(snapshots.list(|| Seqno(9)), [Seqno(3), Seqno(7), Seqno(9)]);
            assert_eq!(snapshots.list(|| Seqno(7)), [Seqno(3), Seqno(7)]);
            assert_eq!(snapshots.snapshots(), 0);
            drop(others);
        });
        assert_eq!(snapshots.list(|| Seqno(9)), [Seqno(7), Seqno(9)]);
        drop(held);
        assert_eq!(snapshots.list(|| Seqno(9)), [Seqno(9)]);
        let snapshot = snapshots.register(Reader::Snapshot, || Seqno(9));
        assert_eq!(snapshots.snapshots(), 1);
        drop(snapshot);
        assert_eq!(snapshots.snapshots(), 0);
    }
}
