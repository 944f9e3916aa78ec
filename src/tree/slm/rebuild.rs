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
//! 2. Each memtable that comes during the second half of a rebuild first puts two tables into the index, if so many are
//!    missing: they become fewer.
//! 3. The index is asked again only once it has all keys of all tables, and each memtable that is becoming a part of the
//!    tree is known as pending.

use std::sync::Arc;

use super::level::Level;
use super::level_tables::LevelTable;
use super::merged_keys::{CHUNKS_BYTES_USUAL, MergedKeys, keys_of};
use super::pending::Pending;
use super::places::{CatchUp, Counts, KeyVersions, Places, Rebuilt};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::location_index::is_in_place;

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
        places.require_outlook(flushed, held)?;
        let received = level.tables().map(|table| table.id()).collect();
        // Nobody helps any more with one that has failed.
        *places.catching_up.lock() = CatchUp { received, ..CatchUp::default() };
        places.begin_rebuild(flushed, &snapshots);
        let mut expected = MergedKeys::new(level, snapshots, CHUNKS_BYTES_USUAL)?;
        let has_expected = expected.next()?;
        Ok(Rebuild { expected, has_expected, rest: Some(Vec::new()), found: Vec::new() })
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
                places.lacking.lock().end_pass();
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
                let had_lacked = places.has_lacked_room();
                let has_room = !had_lacked || writing.has_room(key) || {
                    let before = places.versions_now(&mut writing, key)?;
                    before == versions || is_in_place(&before, versions)
                };
                if has_room {
                    // What was there has not been counted.
                    places.set(&mut writing, counts, key, &[], versions)?;
                }
                drop(writing);
                if !has_room || !had_lacked && places.has_lacked_room() {
                    places.note_without_room(key);
                }
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
}

impl Places {
    /// Puts keys into the index of the oldest table that has come since a rebuild began, at most so many, if the rebuild has
    /// compared all keys. Returns false once no table is missing, and the index is asked again.
    pub(super) fn receive_newer(
        &self,
        keys_max: usize,
        newest: &dyn Fn() -> (Arc<Level>, Seqno),
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> Result<bool> {
        let mut catching_up = self.catching_up.lock();
        if let Some(error) = catching_up.failed.take() {
            return Err(error);
        }
        catching_up.is_begun = true;
        self.catch_up(&mut catching_up, keys_max, newest, snapshots)
    }

    /// The same, with all keys of a table, for a memtable that is about to come. Returns false if no rebuild needs that. If
    /// it fails, so does the rebuild.
    pub(super) fn help_rebuild(
        &self,
        newest: &dyn Fn() -> (Arc<Level>, Seqno),
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> bool {
        let mut catching_up = self.catching_up.lock();
        if !catching_up.is_begun || self.has_lacked_room() {
            return false;
        }
        let helped = self.catch_up(&mut catching_up, usize::MAX, newest, snapshots);
        helped.unwrap_or_else(|error| {
            self.distrust();
            catching_up.failed = Some(error);
            false
        })
    }

    /// Nobody goes on after an error: a table may have been received in part.
    fn catch_up(
        &self,
        catching_up: &mut CatchUp,
        keys_max: usize,
        newest: &dyn Fn() -> (Arc<Level>, Seqno),
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> Result<bool> {
        // Otherwise somebody has helped with the last table.
        let goes_on = match self.is_partial() {
            true => self.receive_missing(catching_up, keys_max, newest, snapshots),
            false => Ok(false),
        };
        catching_up.is_begun = matches!(goes_on, Ok(true));
        goes_on
    }

    fn receive_missing(
        &self,
        catching_up: &mut CatchUp,
        keys_max: usize,
        newest: &dyn Fn() -> (Arc<Level>, Seqno),
        snapshots: &dyn Fn() -> Vec<Seqno>,
    ) -> Result<bool> {
        let CatchUp { received, receiving, .. } = catching_up;
        self.require_room()?;
        let mut next = match receiving.take() {
            Some(receiving) => receiving,
            None => {
                let mut missing = None;
                let is_done = self.end_rebuild(received, || {
                    let (level, flushed) = newest();
                    let tables = level.tables.iter();
                    let tables = tables.filter(|it| !received.contains(&it.table.id()));
                    missing = tables.min_by_key(|it| it.table.properties().seqno_min).cloned();
                    missing.is_none().then_some((level, flushed))
                });
                let Some(LevelTable { table, number, .. }) = missing else { return Ok(!is_done) };
                let (keys, flushed) = (keys_of(&table)?, table.properties().seqno_max);
                received.insert(table.id());
                let pending = Pending::new((table, number), keys, flushed, true);
                self.begin_receiving(vec![pending], snapshots())
            }
        };
        if !self.receive_part(&mut next, keys_max)? {
            *receiving = Some(next);
        }
        self.require_room().map(|()| true)
    }

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

    /// The rebuild has found no room for a key.
    fn note_without_room(&self, key: &[u8]) {
        self.lacking.lock().add_unplaced(key);
        if let Some(rebuilt) = &mut *self.rebuilt.lock()
            && rebuilt.without_room.as_ref().is_none_or(|shortest| key.len() < shortest.len())
        {
            rebuilt.without_room = Some(key.to_vec());
        }
    }

    /// # Errors
    /// `Full` if a rebuild of the same, for no fewer snapshots, has found no room, and there is none for the shortest of those
    /// keys.
    fn require_outlook(&self, flushed: Seqno, held: &[Seqno]) -> Result<()> {
        let mut rebuilt = self.rebuilt.lock();
        let again = rebuilt.take().filter(|before| {
            let is_held = |snapshot: &Seqno| held.binary_search(snapshot).is_ok();
            before.flushed == flushed && before.held.iter().all(is_held)
        });
        let without_room = again.and_then(|before| before.without_room);
        let held = held.to_vec();
        let begun = rebuilt.insert(Rebuilt { flushed, held, without_room });
        if let Some(key) = &begun.without_room
            && self.has_lacked_room()
        {
            self.write()?.require_room(key)?;
        }
        begun.without_room = None;
        Ok(())
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
