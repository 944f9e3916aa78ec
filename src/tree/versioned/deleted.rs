//! Parts of a tree that deletes have emptied: they are merged when nothing else is to be done, whether space is short or
//! not.
//!
//! Space is reclaimed only above the target for the whole tree. A range that deletes have emptied may be less than that,
//! and it costs each scan: so its tombstones, and what they hide, are merged until they are gone.
//!
//! While a tree is being written, this is done where nearly everything has been deleted. Once the store rests, or
//! somebody waits for background work, it is *settled*: then a third is enough. With less from the start, the front of a
//! queue would be merged again and again while it is emptied.
//!
//! Invariants:
//! 1. Nothing is merged for deletes while a reader is older than the tree: what it needs would only be copied.
//! 2. While a tree is being written, a merge drops most of the entries that it reads, and a quarter of the bytes: by the
//!    estimate, it writes at most three times the bytes that it drops. (`flsm` by path: three times for each level, since
//!    only the top guard's bytes are counted.)
//! 3. A search that finds nothing is repeated only after more deletes than there are tables, by a factor, or when the tree
//!    is settled: its cost follows the deletes.

use std::sync::Arc;

use super::VersionedTree;
use super::choose::{Choose, Intent};
use super::node::walk;
use super::version::Version;
use super::worth::{BUSY, Deleted, SETTLED};
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;

/// So many new deletes for each table, and nodes are searched again.
const DELETES_PER_TABLE: u64 = 4;

/// [`VersionedTree::deletes_settled_at`] of a tree that is not.
pub(super) const UNSETTLED: u64 = u64::MAX;

impl<K: Choose> VersionedTree<K> {
    /// The merge that drops most of what it reads, if most of that has been deleted.
    pub(super) fn choose_deleted(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        let deletes = version.files.deletes;
        let left = self.deletes_left.fetch_min(deletes, Ordering::Relaxed).min(deletes);
        let is_settled = self.deletes_settled_at.load(Ordering::Relaxed) == version.flushed.0;
        let is_due = deletes - left >= version.files.tables * DELETES_PER_TABLE;
        if deletes == 0 || !(is_due || is_settled) {
            return Ok(None);
        }
        let worth = if is_settled { SETTLED } else { BUSY };
        let now = self.context.snapshots();
        if now.first().is_some_and(|oldest| *oldest < version.flushed) {
            return Ok(None);
        }
        let mut best: Option<(Deleted, &Arc<K::Node>)> = None;
        let mut is_refused = false;
        walk(&version.root, &mut |node| {
            if let Some(deleted) = K::deleted(self, version, node, (worth, &now))
                && best.is_none_or(|(most, _)| most.score < deleted.score)
            {
                // A path whose leaf there was no room for would be tried again and again.
                match K::is_free(self, node, deleted.by_path) && K::is_free(self, node, false) {
                    true => best = Some((deleted, node)),
                    false => is_refused = true,
                }
            }
        });
        match best {
            Some((deleted, node)) => K::choose_full(self, node, deleted.by_path, intent),
            None if is_refused => Ok(None),
            None => {
                self.deletes_left.store(deletes, Ordering::Relaxed);
                let settled = version.flushed.0;
                let (done, order) = (UNSETTLED, Ordering::Relaxed);
                let _ = self.deletes_settled_at.compare_exchange(settled, done, order, order);
                Ok(None)
            }
        }
    }

    /// Merges more of what has been deleted, until something is written again.
    pub(super) fn settle_deleted(&self) {
        let version = self.version.load();
        if version.files.deletes > 0 && !planted(Bug::DeletedLeftBehind) {
            self.deletes_settled_at.store(version.flushed.0, Ordering::Relaxed);
        }
    }
}
