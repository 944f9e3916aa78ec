//! The versions of a key in the index: what a table adds to them, and which of them snapshots need.
//!
//! Invariants:
//! 1. Versions are ordered from the newest on. One with operands that needs older ones says so.

use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::location_index::{IndexVersion, LeafPlace, Location};
use crate::table::ListedVersions;

/// Whether there are more versions than these.
pub(super) fn is_cut(versions: &[IndexVersion]) -> bool {
    versions.last().is_some_and(|oldest| oldest.location.is_operand)
}

/// Where a key's versions are in the table of a number. `has_older`: older ones are needed and in the index.
pub(super) fn location(listed: &ListedVersions, number: u32, has_older: bool) -> Location {
    let (page, is_split) = listed.leaf;
    let leaf = LeafPlace { unit: page.unit, units: page.units, is_split };
    Location::new(number, leaf, listed.oldest.1.is_operand() && has_older)
}

/// The versions of a key once a table has younger ones, for the snapshots that there are.
pub(super) fn over(
    listed: &ListedVersions,
    number: u32,
    before: &[IndexVersion],
    snapshots: &[Seqno],
) -> Vec<IndexVersion> {
    let mut versions = Vec::with_capacity(before.len() + 1);
    let location = location(listed, number, !before.is_empty());
    let (newest, kind) = listed.newest;
    if kind != EntryKind::Delete {
        versions.push(IndexVersion { location, superseded: None });
    } else if listed.count > 1 {
        versions.push(IndexVersion { location, superseded: Some(newest) });
    }
    let below = versions.len();
    versions.extend_from_slice(before);
    supersede(&mut versions, below, listed.base, snapshots);
    versions
}

/// Notes what supersedes the versions from a place on, and removes those that none of the snapshots needs then.
pub(super) fn supersede(
    versions: &mut Vec<IndexVersion>,
    from: usize,
    by: Option<Seqno>,
    snapshots: &[Seqno],
) {
    versions[from..].iter_mut().for_each(|version| version.superseded = version.superseded.or(by));
    let snapshots = if planted(Bug::SlmSnapshotsForgotten) { &[Seqno::MAX] } else { snapshots };
    retain_needed(versions, snapshots);
}

/// Removes the superseded versions that none of the snapshots sees. Those that one number has superseded are seen from
/// the next lower such number on, or from below that if they begin with operands that need older versions.
pub(super) fn retain_needed(versions: &mut Vec<IndexVersion>, snapshots: &[Seqno]) {
    if versions.last().is_none_or(|oldest| oldest.superseded.is_none()) {
        return;
    }
    let was_cut = is_cut(versions);
    let mut kept = Vec::with_capacity(versions.len());
    let (mut below, mut mark, mut is_seen) = (Seqno(0), None, true);
    for version in versions.iter().rev() {
        if version.superseded != mark {
            if !version.location.is_operand {
                below = mark.unwrap_or(below);
            }
            mark = version.superseded;
            is_seen = mark.is_none_or(|mark| {
                let first = snapshots.partition_point(|snapshot| *snapshot < below);
                // Who has come since the snapshots were listed sees what has been superseded since.
                snapshots.get(first).is_none_or(|snapshot| *snapshot < mark)
            });
        }
        if is_seen {
            kept.push(*version);
        }
    }
    // What needed something that nobody sees is seen by nobody who would need it.
    if !was_cut && let Some(oldest) = kept.first_mut() {
        oldest.location.is_operand = false;
    }
    kept.reverse();
    *versions = kept;
}

/// The first versions of a key, of which the others are gone.
pub(super) fn without_end(versions: &[IndexVersion], count: usize) -> Vec<IndexVersion> {
    let mut first = versions[..count].to_vec();
    if count < versions.len() && !is_cut(versions) {
        first.iter_mut().next_back().into_iter().for_each(|it| it.location.is_operand = false);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PagePointer;
    use crate::table::TableKey;

    /// A version in table `table`; `needs_older`: it begins with operands.
    fn version(table: u32, superseded: Option<u64>, needs_older: bool) -> IndexVersion {
        let leaf = LeafPlace { unit: 0, units: 1, is_split: false };
        let location = Location::new(table, leaf, needs_older);
        IndexVersion { location, superseded: superseded.map(Seqno) }
    }

    /// The tables of what is kept for these snapshots.
    fn kept(versions: &[IndexVersion], snapshots: &[u64]) -> Vec<u32> {
        let mut versions = versions.to_vec();
        let snapshots: Vec<Seqno> = snapshots.iter().copied().map(Seqno).collect();
        retain_needed(&mut versions, &snapshots);
        versions.iter().map(|version| version.location.table).collect()
    }

    #[test]
    fn only_what_a_snapshot_sees_is_kept_below_what_supersedes_it() {
        let versions =
            [version(3, None, false), version(2, Some(30), false), version(1, Some(20), false)];
        assert_eq!(kept(&versions, &[40]), [3]);
        assert_eq!(kept(&versions, &[25, 40]), [3, 2]);
        assert_eq!(kept(&versions, &[20, 40]), [3, 2], "at the number that supersedes the oldest");
        assert_eq!(kept(&versions, &[19, 40]), [3, 1]);
        assert_eq!(kept(&versions, &[5, 29, 40]), [3, 2, 1]);
    }

    /// A snapshot that has come since the list was made may need what was superseded since. A search for what can go
    /// removed it: it began with a list, and another thread put a memtable into the index before it was done.
    #[test]
    fn what_was_superseded_after_the_snapshots_were_listed_is_kept() {
        let versions =
            [version(3, None, false), version(2, Some(40), false), version(1, Some(30), false)];
        assert_eq!(kept(&versions, &[25]), [3, 2, 1]);
    }

    /// A table with a put over operands needs, for a snapshot between them, what is below the operands, and is itself
    /// needed by it: it is seen from below the number that supersedes the older one.
    #[test]
    fn operands_below_a_put_of_the_same_table_keep_the_value_that_they_need() {
        let versions = [version(2, Some(30), true), version(1, Some(13), false)];
        assert_eq!(kept(&versions, &[8, 40]), [2, 1]);
    }

    #[test]
    fn what_is_left_of_a_key_does_not_need_what_is_gone() {
        let mut versions = vec![version(2, None, true), version(1, Some(13), false)];
        retain_needed(&mut versions, &[Seqno(40)]);
        assert_eq!(versions, [version(2, None, false)]);
        let cut = without_end(&[version(2, None, true), version(1, None, false)], 1);
        assert_eq!(cut, [version(2, None, false)]);
    }

    fn listed(versions: &[(u64, EntryKind)]) -> ListedVersions {
        let (mut key, leaf) = (TableKey::none(), PagePointer { unit: 0, units: 1 });
        for (at, (seqno, kind)) in versions.iter().enumerate() {
            match at {
                0 => key.begin(b"k", (leaf, false), Seqno(*seqno), *kind),
                _ => key.add(Seqno(*seqno), *kind),
            }
        }
        key.versions
    }

    /// Of a memtable with several versions, the oldest that is no operand supersedes what is older. That the newest did
    /// showed a deleted value to a snapshot between them.
    #[test]
    fn the_oldest_put_or_delete_of_a_memtable_supersedes_what_is_older() {
        let listed = listed(&[(52, EntryKind::Put), (46, EntryKind::Delete)]);
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(20), Seqno(60)]);
        assert_eq!(after, [version(2, None, false), version(1, Some(46), false)]);
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(47), Seqno(60)]);
        assert_eq!(after, [version(2, None, false)]);
    }

    #[test]
    fn a_tombstone_has_no_place_and_operands_have_one_above_what_they_need() {
        let deleted = listed(&[(52, EntryKind::Delete)]);
        assert_eq!(over(&deleted, 2, &[version(1, None, false)], &[Seqno(60)]), []);
        let after = over(&deleted, 2, &[version(1, None, false)], &[Seqno(20), Seqno(60)]);
        assert_eq!(after, [version(1, Some(52), false)]);
        let operand = listed(&[(52, EntryKind::Merge)]);
        let after = over(&operand, 2, &[version(1, None, false)], &[Seqno(60)]);
        assert_eq!(after, [version(2, None, true), version(1, None, false)]);
        assert_eq!(
            over(&operand, 2, &[], &[Seqno(60)]),
            [version(2, None, false)],
            "nothing below"
        );
    }
}
