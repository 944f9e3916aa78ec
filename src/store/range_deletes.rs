//! The life of a range delete: from its memtable to the manifest, and until the tree needs it no more.
//!
//! A range delete is in its memtable until that gets into the tree. Before that the manifest gets it. From then on
//! compactions drop what it deletes. Once nothing is left of that, the manifest forgets it.
//!
//! Invariants:
//! 1. The manifest has a range delete before the tree has an entry of its memtable. What was committed before it is durable
//!    then.
//! 2. It is forgotten only if no table has an entry that it deletes, or if younger ones delete the same keys for
//!    every snapshot that it deletes them for. A table that holds nothing of that kind stays so.
//! 3. A reader finds a range delete in its read state as long as that has an entry which it deletes.

use std::sync::Arc;

use super::memtable_state::MemtableState;
use super::state::KeyspaceState;
use super::store::Store;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::range_delete::RangeDelete;
use crate::base::sync::atomic::Ordering;
use crate::journal::Journal;
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit};
use crate::merge::RangeDeletes;
use crate::table::Table;
use crate::tree::TreeVersion;

/// A memtable with range deletes is flushed after so long: compactions then give their space back.
const FLUSHED_AFTER_NANOS: u64 = 1_000_000_000;
/// So many range deletes are looked at in one round of upkeep.
const LOOKED_AT_ONCE: usize = 256;

impl KeyspaceState {
    /// Gives the manifest the range deletes of a memtable that is about to get into the tree.
    pub(super) fn keep_range_deletes(
        &self,
        memtable: &MemtableState,
        upto: Seqno,
        journal: Option<&Journal>,
        snapshots: &[Seqno],
    ) -> Result<()> {
        if !memtable.range_deletes.are_there() {
            return Ok(());
        }
        if let Some(journal) = journal {
            journal.sync_upto(upto)?;
            self.manifest.require_journal_upto(upto);
        }
        let mut list = memtable.range_deletes.list();
        if let Some(map) = memtable.range_deletes.map() {
            // Whoever reads at a number between two of them has the memtable.
            list.retain(|delete| !is_replaced(delete, &map, snapshots));
        }
        if !planted(Bug::RangeDeleteNotInManifest) {
            self.commit_changes(list.iter().cloned().map(KeyspaceChange::RangeDelete))?;
        }
        self.add_range_deletes(&list, upto);
        Ok(())
    }

    fn commit_changes(&self, changes: impl Iterator<Item = KeyspaceChange>) -> Result<()> {
        let id = self.id;
        let keyspaces = changes.map(|change| KeyspaceEdit { id, change }).collect();
        self.manifest.commit(&Edit { keyspaces, ..Edit::default() })
    }

    fn range_deletes_due(&self, snapshots: impl FnOnce() -> Vec<Seqno>) -> bool {
        if self.is_dropped() || self.read.load().range_deletes.list.is_empty() {
            return false;
        }
        let look = self.range_deletes_look.0.lock();
        if look.held_by.is_some_and(|held| snapshots().first() > Some(&held)) {
            return true;
        }
        look.at.is_some() || look.ended_at != Some(self.versions_shown.load(Ordering::SeqCst))
    }

    /// Looks at some range deletes, and forgets those that are not needed any more.
    fn forget_range_deletes(&self, snapshots: impl FnOnce() -> Vec<Seqno>) -> Result<()> {
        let mut look = self.range_deletes_look.0.lock();
        if look.at.is_none() {
            look.begun_at = Some(self.versions_shown.load(Ordering::SeqCst));
        }
        let known = self.durable_range_deletes();
        let snapshots = snapshots();
        // That of readers, who may have an older one than the tree. Versions only lose what is deleted.
        let version = Arc::clone(&self.read.load().version);
        let from = look.at;
        let behind = known.list.iter().filter(|delete| Some(delete.seqno) > from);
        let some: Vec<&RangeDelete> = behind.take(LOOKED_AT_ONCE).collect();
        let mut gone = Vec::new();
        for delete in &some {
            if is_replaced(delete, &known.map, &snapshots) || !is_needed(delete, &*version)? {
                gone.push(delete.seqno);
            }
        }
        look.at = some.last().filter(|_| some.len() == LOOKED_AT_ONCE).map(|last| last.seqno);
        if look.at.is_none() {
            look.ended_at = look.begun_at;
            let newest = known.list.last().map(|last| last.seqno);
            look.held_by = snapshots.first().copied().filter(|oldest| newest > Some(*oldest));
        }
        drop(look);
        if !gone.is_empty() {
            self.commit_changes(gone.iter().copied().map(KeyspaceChange::RangeDeleteDone))?;
            self.remove_range_deletes(&gone);
        }
        Ok(())
    }
}

/// Whether younger range deletes delete all keys of one, for every snapshot.
fn is_replaced(delete: &RangeDelete, map: &RangeDeletes, snapshots: &[Seqno]) -> bool {
    let stripe = |seqno: Seqno| snapshots.partition_point(|snapshot| *snapshot < seqno);
    let mut fragments = map.overlapping(&delete.lower, delete.upper.as_deref());
    fragments.all(|fragment| {
        let mut oldest_first = fragment.seqnos.iter().rev();
        let younger = oldest_first.find(|seqno| **seqno > delete.seqno);
        younger.is_some_and(|younger| stripe(*younger) == stripe(delete.seqno))
    })
}

/// Whether the tree may have an entry that a range delete deletes.
fn is_needed(delete: &RangeDelete, version: &dyn TreeVersion) -> Result<bool> {
    if version.flushed() < delete.seqno {
        return Ok(true);
    }
    if planted(Bug::RangeDeleteForgottenEarly) {
        return Ok(false);
    }
    let has_older = |table: &Arc<Table>| {
        table.properties().seqno_min < delete.seqno && table.range_deletes_applied() < delete.seqno
    };
    let mut lower = Arc::clone(&delete.lower);
    loop {
        let Some(range) = version.tables_at(&lower) else { return Ok(true) };
        let upper = match (&range.upper, &delete.upper) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.as_ref().or(other.as_ref()),
        };
        for table in range.tables.iter().filter(|table| has_older(table)) {
            match table.has_older_in((&lower, upper.map(|upper| &**upper)), delete.seqno) {
                Ok(false) => {}
                Err(error) if !error.is_unreadable() => return Err(error),
                // Damage is for those to tell who need what is there.
                _ => return Ok(true),
            }
        }
        let is_within = |upper: &&Arc<[u8]>| delete.upper.as_ref().is_none_or(|end| *upper < end);
        match range.upper.as_ref().filter(is_within) {
            Some(upper) => lower = Arc::clone(upper),
            None => return Ok(false),
        }
    }
}

impl Store {
    /// Whether range deletes wait for something.
    pub(super) fn range_deletes_are_due(&self) -> bool {
        self.all_keyspaces().iter().any(|keyspace| {
            keyspace.range_deletes_due(|| self.live_snapshots()) || self.wait_for_a_flush(keyspace)
        })
    }

    /// Whether range deletes have been in the active memtable for long.
    fn wait_for_a_flush(&self, keyspace: &KeyspaceState) -> bool {
        let read = keyspace.read.load();
        let since = read.active.range_deletes.since_nanos();
        since.is_some_and(|since| {
            self.clock.nanos().saturating_sub(since) >= FLUSHED_AFTER_NANOS
                && read.frozen.is_empty()
                && keyspace.flush_failure.lock().is_none()
        })
    }

    /// Brings range deletes on their way.
    pub(super) fn move_range_deletes(&self) -> Result<()> {
        let keyspaces = self.all_keyspaces();
        let waiting = keyspaces.iter().filter(|keyspace| self.wait_for_a_flush(keyspace));
        let waiting: Vec<Arc<KeyspaceState>> = waiting.cloned().collect();
        if !waiting.is_empty() {
            self.freeze(&waiting, |keyspace| self.wait_for_a_flush(keyspace));
        }
        let due =
            |keyspace: &&Arc<KeyspaceState>| keyspace.range_deletes_due(|| self.live_snapshots());
        for keyspace in keyspaces.iter().filter(due) {
            let forgotten = keyspace.forget_range_deletes(|| self.live_snapshots());
            match forgotten {
                // They are looked for again after the next compaction.
                Err(error) if error.is_refusal() || keyspace.is_dropped() => {}
                forgotten => forgotten?,
            }
        }
        Ok(())
    }
}
