//! What writers leave of the disk: for tables of memtables, and for the indexes that these are put into.
//!
//! Invariants:
//! 1. Nothing here waits: it is asked by commits, with locks held that others need.

use std::sync::Arc;

use super::state::KeyspaceState;
use super::store::Store;
use crate::base::error::Result;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::tree::NewEntries;
use crate::vfs::DiskSpace;

impl Store {
    /// From now on writers, and compactions that can wait, leave what indexes may need.
    pub(super) fn leave_room_for_indexes(self: &Arc<Store>) {
        // Each of those who ask has an answer of its own while keyspaces come or go.
        let claimed = || {
            let (store, last) = (Arc::downgrade(self), AtomicU64::new(0));
            move |record_bytes: u64| {
                let store = store.upgrade();
                let claimed = store.and_then(|store| store.indexes_room_bytes(record_bytes));
                claimed.inspect(|bytes| last.store(*bytes, Ordering::Relaxed));
                claimed.unwrap_or(last.load(Ordering::Relaxed))
            }
        };
        let total_bytes =
            |space: Result<Option<DiskSpace>>| space.ok().flatten().map(|it| it.total_bytes);
        let of_journal = total_bytes(self.vfs.journal_space(&self.path));
        if of_journal == total_bytes(self.vfs.space(&self.path)) {
            let claimed = claimed();
            self.files.leave_claimed(move || claimed(0));
        }
        // Where the journal is, there are the indexes.
        self.journal.leave_claimed(claimed());
    }

    /// Bytes of memtables of which no table has been built; `None` while keyspaces come or go.
    pub(super) fn unbuilt_bytes(&self) -> Option<u64> {
        let keyspaces = self.keyspaces.try_read()?;
        let of_keyspace = |keyspace: &Arc<KeyspaceState>| -> u64 {
            let read = keyspace.read.load();
            let unbuilt = read.memtables().filter(|memtable| memtable.is_unbuilt());
            unbuilt.map(|memtable| memtable.bytes()).sum()
        };
        Some(keyspaces.values().map(of_keyspace).sum())
    }

    /// Disk space that indexes will need for what is in memtables, and for so many bytes of records, of whatever keyspace.
    fn indexes_room_bytes(&self, record_bytes: u64) -> Option<u64> {
        let keyspaces = self.keyspaces.try_read()?;
        let (mut sum, mut most) = (0, 0);
        for keyspace in keyspaces.values() {
            let read = keyspace.read.load();
            let totals = read.memtables().map(|memtable| memtable.memtable.totals());
            let add =
                |sum: (u64, u64), it: (usize, usize)| (sum.0 + it.0 as u64, sum.1 + it.1 as u64);
            let (entries, data_bytes) = totals.fold((0, 0), add);
            let new = NewEntries { entries, data_bytes, record_bytes: 0 };
            let room = keyspace.tree.index_room_bytes(new);
            let with_more = keyspace.tree.index_room_bytes(NewEntries { record_bytes, ..new });
            sum += room;
            most = most.max(with_more.saturating_sub(room));
        }
        Some(sum + most)
    }
}
