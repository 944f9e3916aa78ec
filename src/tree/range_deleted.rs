//! What range deletes have deleted of tables: estimates for choosing merges, and what a merge need not read.
//!
//! Invariants:
//! 1. Only range deletes count that every snapshot has. What they delete, nobody reads.
//! 2. A table that a compaction has written counts as free of what was deleted before that
//!    ([`Table::range_deletes_applied`]): so no merge is chosen for it again.

use std::sync::Arc;

use super::TreeContext;
use super::range::{Key, table_is_inside, table_size};
use crate::base::ids::Seqno;
use crate::merge::{DurableRangeDeletes, Fragment};
use crate::table::Table;

/// Where a table meets more fragments that delete something of it, or may, so many are looked at.
const FRAGMENTS_MAX: usize = 1024;

/// The range deletes that every snapshot has.
pub(super) struct RangeDeleted {
    pub(super) known: Arc<DurableRangeDeletes>,
    /// The oldest snapshot.
    oldest: Seqno,
}

/// How much of some tables has been deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeletedPart {
    pub(super) deleted_bytes: u64,
    pub(super) bytes: u64,
}

/// Whether a table may have something older than a number. What cannot be read is for a merge to tell.
fn has_older(table: &Arc<Table>, range: (&[u8], Option<&[u8]>), below: Seqno) -> bool {
    table.has_older_in(range, below).unwrap_or(true)
}

impl RangeDeleted {
    /// Those of now; `None` if there are none.
    pub(super) fn of(context: &TreeContext) -> Option<RangeDeleted> {
        let known = context.range_deletes();
        if known.list.is_empty() {
            return None;
        }
        let oldest = context.snapshots().first().copied().unwrap_or(Seqno::MAX);
        Some(RangeDeleted { known, oldest })
    }

    /// The same of a compaction, with its snapshots.
    pub(super) fn new(known: &Arc<DurableRangeDeletes>, snapshots: &[Seqno]) -> RangeDeleted {
        let oldest = snapshots.first().copied().unwrap_or(Seqno::MAX);
        RangeDeleted { known: Arc::clone(known), oldest }
    }

    /// The newest that every snapshot has.
    pub(super) fn newest(&self) -> Option<Seqno> {
        let list = &self.known.list;
        let count = list.partition_point(|delete| delete.seqno <= self.oldest);
        list[..count].last().map(|delete| delete.seqno)
    }

    /// The number up to which a fragment deletes everything.
    fn deletes_below(&self, fragment: &Fragment) -> Option<Seqno> {
        fragment.seqnos.iter().copied().find(|seqno| *seqno <= self.oldest)
    }

    /// The fragments that may delete something of a table in a range, with the parts of the range that they have.
    fn of_table<'a>(
        &'a self,
        table: &'a Table,
        lower: &'a [u8],
        upper: Option<&'a [u8]>,
    ) -> impl Iterator<Item = ((&'a [u8], Option<&'a [u8]>), Seqno)> {
        let free_upto = table.range_deletes_applied().max(table.properties().seqno_min);
        let fragments = self.known.map.overlapping(lower, upper);
        let deleting = fragments.filter_map(move |fragment| {
            let below = self.deletes_below(fragment).filter(|below| *below > free_upto)?;
            let end = match (fragment.upper.as_deref(), upper) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
            Some((((&*fragment.lower).max(lower), end), below))
        });
        deleting.take(FRAGMENTS_MAX)
    }

    /// Whether a merge of a table would drop something of it for range deletes, or may.
    pub(super) fn is_deleted_from(
        &self,
        table: &Arc<Table>,
        (lower, upper): (&[u8], Option<&[u8]>),
    ) -> bool {
        self.of_table(table, lower, upper).any(|(part, below)| has_older(table, part, below))
    }

    /// About how much of tables has been deleted in a range.
    pub(super) fn part(
        &self,
        tables: &[Arc<Table>],
        (lower, upper): (&[u8], Option<&[u8]>),
    ) -> DeletedPart {
        let mut sum = DeletedPart::default();
        if self.known.map.overlapping(lower, upper).next().is_none() {
            return sum;
        }
        let size = |table: &Arc<Table>, lower: &[u8], upper: Option<&[u8]>| {
            match table_is_inside(table, lower, upper) {
                true => table.properties().entry_bytes(),
                // It is an estimate: who reads the table tells what is wrong with it.
                false => table_size(table, lower, upper).unwrap_or_default().bytes,
            }
        };
        for table in tables {
            sum.bytes += size(table, lower, upper);
            let parts = self.of_table(table, lower, upper);
            // The same as a merge finds that is chosen for it.
            let parts = parts.filter(|(part, below)| has_older(table, *part, *below));
            let bytes = parts.map(|((lower, upper), _)| size(table, lower, upper));
            sum.deleted_bytes += bytes.sum::<u64>();
        }
        sum
    }

    /// The parts of ranges that a merge has to read of a table: but for those in which all of it has been deleted.
    pub(super) fn left_of(
        &self,
        table: &Table,
        ranges: Vec<(Key, Option<Key>)>,
    ) -> Vec<(Key, Option<Key>)> {
        let seqno_max = table.properties().seqno_max;
        let is_deleted = |fragment: &&Fragment| self.deletes_below(fragment) > Some(seqno_max);
        let mut left = Vec::with_capacity(ranges.len());
        for (lower, upper) in ranges {
            let mut from = Some(Key::clone(&lower));
            let fragments = self.known.map.overlapping(&lower, upper.as_deref());
            for fragment in fragments.filter(is_deleted) {
                let Some(lower) = from.take() else { break };
                if lower < fragment.lower {
                    left.push((lower, Some(Key::clone(&fragment.lower))));
                }
                from.clone_from(&fragment.upper);
            }
            if let Some(from) = from
                && upper.as_ref().is_none_or(|upper| from < *upper)
            {
                left.push((from, upper));
            }
        }
        left
    }
}
