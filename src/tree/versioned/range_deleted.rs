//! Merges of nodes from which range deletes have deleted much: what they have deleted as a whole is dropped without being
//! read.
//!
//! Invariants:
//! 1. Nothing is merged for a range delete that a snapshot does not have.
//! 2. A search that finds nothing is repeated only once every snapshot has more range deletes, or the tree is settled; one
//!    that finds only what jobs are in the way of, once a job has ended.

use std::sync::Arc;

use super::VersionedTree;
use super::choose::{Choose, Intent};
use super::deleted::UNSETTLED;
use super::node::walk;
use super::version::Version;
use super::worth::{BUSY, SETTLED};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::table::Table;
use crate::tree::range_deleted::RangeDeleted;

/// What has been searched.
pub(super) struct RangeDeletesSearched {
    /// The newest range delete that every snapshot had when nothing was found; the same when something was found that a job
    /// was in the way of, and how many jobs had ended then.
    upto: AtomicU64,
    refused: Mutex<(Seqno, u64)>,
    /// The number up to which the tree was flushed when it was settled, while a search of that is due.
    settled_at: AtomicU64,
}

impl Default for RangeDeletesSearched {
    fn default() -> RangeDeletesSearched {
        RangeDeletesSearched {
            upto: AtomicU64::new(0),
            refused: Mutex::new((Seqno(0), u64::MAX)),
            settled_at: AtomicU64::new(UNSETTLED),
        }
    }
}

impl<K: Choose> VersionedTree<K> {
    /// The merge that drops most of what it reads, or would read, for range deletes.
    pub(super) fn choose_range_deleted(
        &self,
        version: &Version<K>,
        intent: Intent,
    ) -> Result<Option<K::Choice>> {
        let searched = &self.range_deletes_searched;
        let settled_at = searched.settled_at.load(Ordering::Relaxed);
        let is_settled = settled_at == version.flushed.0;
        let Some(deleted) = RangeDeleted::of(&self.context) else { return Ok(None) };
        let Some(newest) = deleted.newest() else { return Ok(None) };
        let is_searched = searched.upto.load(Ordering::Relaxed) >= newest.0;
        let ended = self.jobs_ended();
        if (is_searched && !is_settled) || *searched.refused.lock() == (newest, ended) {
            return Ok(None);
        }
        let worth = if is_settled { SETTLED } else { BUSY };
        if !K::MERGES_FOR_RANGE_DELETES {
            return Ok(None);
        }
        let mut best: Option<(u64, &Arc<K::Node>)> = None;
        let mut is_refused = false;
        walk(&version.root, &mut |node| {
            let tables = K::tables_of_full_merge(version, node);
            let part = deleted.part(&tables, node.range());
            let left = part.bytes.saturating_sub(part.deleted_bytes);
            let Some(merge) = worth.of(part.deleted_bytes, left.max(1), true) else { return };
            if best.is_none_or(|(most, _)| most < merge.score) {
                match K::is_free(self, node, true) && K::is_free(self, node, false) {
                    true => best = Some((merge.score, node)),
                    false => is_refused = true,
                }
            }
        });
        match best {
            Some((_, node)) => K::choose_full(self, node, true, intent),
            None if is_refused => {
                *searched.refused.lock() = (newest, ended);
                Ok(None)
            }
            None => {
                // A memtable may be on its way with what they delete.
                if newest <= version.flushed {
                    searched.upto.store(newest.0, Ordering::Relaxed);
                }
                let order = Ordering::Relaxed;
                let _ = searched.settled_at.compare_exchange(settled_at, UNSETTLED, order, order);
                Ok(None)
            }
        }
    }

    /// The first of some tables of which enough has been deleted for a merge of a settled tree; `None` if the tree is not
    /// settled, or there is none: then the search is over.
    pub(in crate::tree) fn first_range_deleted<'a>(
        &self,
        version: &Version<K>,
        mut tables: impl Iterator<Item = &'a Arc<Table>>,
        is_free: impl Fn(&Arc<Table>) -> bool,
    ) -> Option<&'a Arc<Table>> {
        let settled_at = &self.range_deletes_searched.settled_at;
        if settled_at.load(Ordering::Relaxed) != version.flushed.0 {
            return None;
        }
        let deleted = RangeDeleted::of(&self.context)?;
        let mut is_refused = false;
        let found = tables.find(|table| {
            let part = deleted.part(std::slice::from_ref(table), (b"", None));
            let left = part.bytes.saturating_sub(part.deleted_bytes).max(1);
            let is_worth = SETTLED.of(part.deleted_bytes, left, false).is_some();
            is_refused |= is_worth && !is_free(table);
            is_worth && is_free(table)
        });
        if found.is_none() && !is_refused {
            settled_at.store(UNSETTLED, Ordering::Relaxed);
        }
        found
    }

    /// Merges also where less has been deleted, until something is written again.
    pub(super) fn settle_range_deleted(&self) {
        let version = self.version.load();
        if !self.context.range_deletes().list.is_empty() {
            let searched = &self.range_deletes_searched;
            searched.settled_at.store(version.flushed.0, Ordering::Relaxed);
        }
    }
}
