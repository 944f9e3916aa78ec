//! The removal of what a range delete has deleted from the index, leaf by leaf. Then its tables are known to be dead: those of
//! which nothing is left are dropped without being read.
//!
//! Invariants:
//! 1. The index has everything up to the range delete, and all snapshots have it.
//! 2. A version is removed only if all of its table is older than the range delete. Others are left to compactions, which
//!    read them.

use std::sync::Arc;

use super::SlmTree;
use super::places::{Counts, Places};
use super::plan::{Action, Plan};
use super::version::Version;
use super::versions::without_end;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::range_delete::RangeDelete;
use crate::location_index::LeafAt;
use crate::tree::range::Key;
use crate::tree::versioned::Place;

/// A removal ends after so many leaves, so that merges of the same keys come in between.
const LEAVES_MAX: usize = 1024;

/// How far the removal has come.
#[derive(Default)]
pub(super) struct Erased {
    /// What range deletes up to this number have deleted has been removed.
    upto: Seqno,
    /// The number of the next one, and the key up to which that is so for it.
    next: Option<(Seqno, Key)>,
}

/// A removal that is under way.
pub(super) struct Erasing {
    places: Arc<Places>,
    seqno: Seqno,
    from: Key,
    upper: Option<Key>,
    leaves: usize,
}

impl SlmTree {
    /// The next range delete of which something may be in the index, if all snapshots have it, and where to begin.
    fn next_erased(&self) -> Option<(RangeDelete, Key)> {
        let known = self.context.range_deletes();
        if known.list.is_empty() {
            return None;
        }
        let erased = self.own.erased.lock();
        let next = known.list.iter().find(|delete| delete.seqno > erased.upto)?;
        let oldest = self.context.snapshots().first().copied().unwrap_or(Seqno::MAX);
        let is_due = next.seqno <= oldest && next.seqno <= self.own.places.state().settled;
        let reached = erased.next.as_ref().filter(|(seqno, _)| *seqno == next.seqno);
        let from = || Key::clone(reached.map_or(&next.lower, |(_, key)| key));
        is_due.then(|| (next.clone(), from()))
    }

    /// The removal of what a range delete has deleted.
    pub(super) fn erase_plan(&self, version: &Version) -> Option<Plan> {
        let (delete, lower) = self.next_erased()?;
        let place = Place { height: 0, lower, upper: delete.upper };
        let is_free = self.is_range_free(place.range());
        is_free.then(|| Plan::new(version, Action::Erase, place, Vec::new()))
    }

    /// The index has been built anew, and names what range deletes have deleted.
    pub(super) fn begin_erasing_anew(&self) {
        *self.own.erased.lock() = Erased::default();
    }

    /// Begins the removal, in a place that nobody else changes.
    pub(super) fn begin_erasing(&self, place: &Place, snapshots: &[Seqno]) -> Option<Erasing> {
        let (delete, from) = self.next_erased()?;
        if (&from, &delete.upper) != (&place.lower, &place.upper) {
            return None;
        }
        let places = Arc::clone(&self.own.places);
        places.dropping(snapshots);
        Some(Erasing { places, seqno: delete.seqno, from, upper: delete.upper, leaves: 0 })
    }

    /// Notes how far the removal has come.
    pub(super) fn end_erasing(&self, erasing: &Erasing, is_done: bool) {
        let mut erased = self.own.erased.lock();
        if self.own.places.is_partial() {
            // A rebuild will name everything once more.
            *erased = Erased::default();
            return;
        }
        match is_done {
            true => *erased = Erased { upto: erasing.seqno, next: None },
            false => erased.next = Some((erasing.seqno, Key::clone(&erasing.from))),
        }
    }
}

impl Erasing {
    /// Whether it has gone on for long.
    pub(super) fn is_long(&self) -> bool {
        self.leaves >= LEAVES_MAX
    }

    /// Removes what is in the next leaf. Returns false at the end.
    pub(super) fn erase_leaf(&mut self) -> Result<bool> {
        self.leaves += 1;
        let leaf = self.places.leaf(LeafAt::Key(&self.from))?;
        let is_before_end = |key: &[u8]| self.upper.as_ref().is_none_or(|upper| *key < **upper);
        let here = leaf.entries.iter().map(|(key, _)| key);
        let keys = here.skip_while(|key| **key < *self.from).take_while(|key| is_before_end(key));
        self.erase_keys(keys)?;
        match leaf.upper.as_deref().filter(|upper| is_before_end(upper)) {
            Some(upper) => self.from = Key::from(upper),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn erase_keys<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let places = &self.places;
        let mut counts = Counts::default();
        let mut writing = places.write()?;
        let set = keys.try_for_each(|key| {
            let before = places.versions_now(&mut writing, key)?;
            // What is older than one that is deleted is deleted too.
            let is_deleted = |number: u32| {
                let table = places.table(number);
                table.is_some_and(|table| table.properties().seqno_max < self.seqno)
            };
            let first = before.iter().position(|version| is_deleted(version.location.table));
            let Some(first) = first else { return Ok(()) };
            let after = without_end(&before, first);
            places.set(&mut writing, &mut counts, key, &before, &after)
        });
        places.count(&mut counts);
        set
    }
}
