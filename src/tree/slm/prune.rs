//! The search for what only snapshots needed that have gone: what is marked in a range of keys, leaf by leaf of the index.
//!
//! Invariants:
//! 1. What has not been searched when the search ends is marked as before. What is still needed is marked for the
//!    snapshots that need it.

use std::sync::Arc;

use super::marked::{Layer, is_gone};
use super::places::{Counts, Places};
use super::versions::{is_cut, retain_needed};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::location_index::{IndexVersion, LeafAt};
use crate::tree::versioned::Place;

/// A search ends after so many leaves, so that merges of the same keys come in between.
const LEAVES_MAX: usize = 1024;

/// A search that is under way.
pub(super) struct Pruning {
    places: Arc<Places>,
    /// What is still to be searched.
    left: Layer,
    /// The key behind the last one of the range.
    upper: Vec<u8>,
    /// The snapshots that there are.
    snapshots: Vec<Seqno>,
    /// Those of them that something was kept for.
    held: Vec<Seqno>,
    leaves: usize,
}

impl Pruning {
    /// Begins the search of a place, which nobody else changes, for these snapshots.
    pub(super) fn begin(places: &Arc<Places>, place: &Place, snapshots: &[Seqno]) -> Pruning {
        places.dropping(snapshots);
        let upper = place.upper.as_deref().unwrap_or_default().to_vec();
        let left = places.marked.lock().take(snapshots, (&place.lower, &upper));
        let held = left.snapshots.iter().filter(|snapshot| !is_gone(**snapshot, snapshots));
        let held = held.copied().collect();
        let (places, snapshots) = (Arc::clone(places), snapshots.to_vec());
        Pruning { places, left, upper, snapshots, held, leaves: 0 }
    }

    /// Searches a leaf. Returns false at the end.
    pub(super) fn prune_leaf(&mut self) -> Result<bool> {
        let Some(from) = self.left.first().filter(|_| self.leaves < LEAVES_MAX) else {
            return Ok(false);
        };
        #[cfg(test)]
        crate::base::visits::note();
        self.leaves += 1;
        let leaf = self.places.leaf(LeafAt::Key(from))?;
        let here = leaf.entries.iter().take_while(|(key, _)| **key < *self.upper);
        let mut marked = here.filter(|(_, versions)| {
            versions.iter().any(|version| version.superseded.is_some()) || is_cut(versions)
        });
        if let Some(first) = marked.next() {
            self.prune_keys(std::iter::once(first).chain(marked).map(|(key, _)| key))?;
        }
        self.left.forget_before(leaf.upper.as_deref());
        Ok(true)
    }

    /// Removes what none of the snapshots needs of some keys.
    fn prune_keys<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let places = &self.places;
        let mut counts = Counts::default();
        let mut writing = places.write()?;
        let is_wrong = planted(Bug::SlmPrunesTooMuch);
        let snapshots = if is_wrong { &[Seqno::MAX][..] } else { &self.snapshots };
        let set = keys.try_for_each(|key| {
            let before = places.versions_now(&mut writing, key)?;
            let mut after: Vec<IndexVersion> = before.clone();
            retain_needed(&mut after, snapshots);
            if after != before {
                places.set(&mut writing, &mut counts, key, &before, &after)?;
            }
            if self.left.has(key) {
                places.mark(key, &after, Seqno(0), &self.held);
            }
            Ok(())
        });
        places.count(&mut counts);
        set
    }
}

impl Drop for Pruning {
    fn drop(&mut self) {
        self.places.marked.lock().put_back(&self.left);
    }
}
