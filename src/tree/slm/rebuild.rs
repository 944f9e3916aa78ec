//! Building the index anew while the store is open, after there was no room for a key, or a table could not be read.
//!
//! While the index is partial, nobody asks it, and nothing is compacted: the tables are asked. A rebuild goes through
//! the keys of all tables and makes the index say of each what the tables do, key by key in their order. What the index
//! has besides is removed. Then it receives the tables that have come meanwhile.
//!
//! A rebuild that finds no room for a key fails, but only after it has gone through all keys: what it removes behind that
//! key is room for the next rebuild. That one is not begun before there is room, or something else to remove.
//!
//! Invariants:
//! 1. No compaction runs beside a rebuild: it has the range of all keys.
//! 2. The index is asked again only once it has all keys of all tables, and each memtable that is becoming a part of the
//!    tree is known as pending.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::level::Level;
use super::merged_keys::{MergedKeys, keys_of};
use super::places::{Counts, KeyVersions, Pending, Places};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::atomic::AtomicBool;

/// Keys that are compared before others may change the index.
const KEYS_AT_ONCE: usize = 64;

/// A rebuild that is under way.
pub(super) struct Rebuild {
    expected: MergedKeys,
    has_expected: bool,
    /// The key from which on the index is still to be compared; `None` at the end.
    rest: Option<Vec<u8>>,
    /// Entries of the index that are still to be compared, the next one last.
    found: Vec<KeyVersions>,
    /// The tables whose keys are in the index, once all of `expected` is.
    received: BTreeSet<FileId>,
}

impl Rebuild {
    /// Begins with the tables that a level has, for these snapshots.
    ///
    /// # Errors
    /// `Full` if there was no room for the same keys before, and there still is none.
    pub(super) fn begin(
        places: &Places,
        level: &Level,
        flushed: Seqno,
        snapshots: Vec<Seqno>,
    ) -> Result<Rebuild> {
        let held = snapshots.split_last().map_or(&[][..], |(_, held)| held);
        places.require_outlook((flushed, held))?;
        places.begin_rebuild(flushed, &snapshots);
        let mut expected = MergedKeys::new(level, snapshots)?;
        let has_expected = expected.next()?;
        let received = level.tables().map(|table| table.id()).collect();
        Ok(Rebuild { expected, has_expected, rest: Some(Vec::new()), found: Vec::new(), received })
    }

    /// Compares some keys. Returns false once the index has all of them.
    ///
    /// # Errors
    /// `Full` at the end, if there was no room for a key.
    pub(super) fn compare_some(&mut self, places: &Places, keys_max: usize) -> Result<bool> {
        for _ in 0..keys_max.div_ceil(KEYS_AT_ONCE) {
            let mut counts = Counts::default();
            let result = self.compare(places, &mut counts);
            places.count(&mut counts);
            if !result? {
                return places.require_room().map(|()| false);
            }
        }
        Ok(true)
    }

    fn compare(&mut self, places: &Places, counts: &mut Counts) -> Result<bool> {
        for _ in 0..KEYS_AT_ONCE {
            while self.found.is_empty()
                && let Some(from) = self.rest.take()
            {
                let (mut entries, rest) = places.entries_from(&from)?;
                entries.reverse();
                (self.found, self.rest) = (entries, rest);
            }
            let next = self.found.last().map(|(key, _)| &**key);
            let expected = self.has_expected.then(|| self.expected.key());
            let is_expected = match (expected, next) {
                (None, None) => return Ok(false),
                (Some(expected), Some(next)) => expected <= next,
                (expected, _) => expected.is_some(),
            };
            if is_expected {
                let (key, versions) = (self.expected.key(), self.expected.versions());
                let mut writing = places.write()?;
                // The disk is not asked again for each of the other keys: the rebuild has failed.
                if !places.has_lacked_room() || writing.has_room(key) {
                    // What was there has not been counted.
                    places.set(&mut writing, counts, key, &[], versions)?;
                }
                drop(writing);
                if next.is_some_and(|next| *next == *self.expected.key()) {
                    self.found.pop();
                }
                self.has_expected = self.expected.next()?;
            } else if let Some((key, _)) = self.found.pop() {
                places.set(&mut places.write()?, counts, &key, &[], &[])?;
            }
        }
        Ok(true)
    }

    /// Puts tables into the index that have come since. Returns false once all are in it, and it is asked again.
    pub(super) fn receive_newer(
        &mut self,
        places: &Places,
        newest: &dyn Fn() -> (Arc<Level>, Seqno),
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> Result<bool> {
        let mut missing = Vec::new();
        places.require_room()?;
        let is_done = places.end_rebuild(&self.received, || {
            let (level, flushed) = newest();
            let tables = level.tables.iter();
            let tables = tables.filter(|it| !self.received.contains(&it.table.id()));
            missing = tables.map(|it| (Arc::clone(&it.table), it.number)).collect();
            missing.is_empty().then_some((level, flushed))
        });
        missing.sort_by_key(|(table, _)| table.properties().seqno_min);
        for (table, number) in missing {
            let (keys, flushed) = (keys_of(&table)?, table.properties().seqno_max);
            self.received.insert(table.id());
            let is_part = AtomicBool::new(true);
            let pending = Arc::new(Pending { table, number, keys, flushed, is_part });
            places.receive_whole(pending, snapshots())?;
            places.require_room()?;
        }
        Ok(!is_done)
    }
}

impl Places {
    /// # Errors
    /// `Full` if the index has had no room since a rebuild began.
    fn require_room(&self) -> Result<()> {
        match self.has_lacked_room() {
            false => Ok(()),
            true => {
                let path = self.file_path().unwrap_or_default();
                Err(Error::Full { path, needed: 4096 })
            }
        }
    }

    /// # Errors
    /// `Full` if a rebuild of the same has found no room, and there is none for any key.
    fn require_outlook(&self, of: (Seqno, &[Seqno])) -> Result<()> {
        let mut rebuilt = self.rebuilt.lock();
        let is_again = rebuilt.as_ref().is_some_and(|(flushed, held)| (*flushed, &**held) == of);
        if is_again && self.has_lacked_room() {
            self.write()?.require_room(&[])?;
        }
        *rebuilt = Some((of.0, of.1.to_vec()));
        Ok(())
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
