//! Changes of the index: putting a table into it, the output of a compaction in the place of its input, and removing
//! what only snapshots needed that have gone.
//!
//! Invariants:
//! 1. A table is durable, and part of the tree, before the index names it.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::places::{Counts, Pending, Places, is_cut};
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::location_index::{IndexVersion, LeafPlace, Location};
use crate::table::{KeyList, ListedKey, Table, TableScan};

/// Bytes that are read at once of a table whose keys are to be listed.
const CHUNK_BYTES: usize = 64 << 10;
/// Keys that are changed before others may change the index.
const KEYS_AT_ONCE: usize = 64;

/// Where a listed key's versions are in the table of a number. `has_older`: older ones are needed and in the index.
fn location(listed: &ListedKey<'_>, number: u32, has_older: bool) -> Location {
    let (page, is_split) = listed.leaf;
    let leaf = LeafPlace { unit: page.unit, units: page.units, is_split };
    Location::new(number, leaf, listed.oldest.1.is_operand() && has_older)
}

/// The versions of a key once a table has younger ones, for the snapshots that there are.
fn over(
    listed: &ListedKey<'_>,
    number: u32,
    before: &[IndexVersion],
    snapshots: &[Seqno],
) -> Vec<IndexVersion> {
    let mut versions = Vec::with_capacity(before.len() + 1);
    let location = location(listed, number, !before.is_empty());
    let (newest, kind) = listed.newest;
    if kind != EntryKind::Delete {
        versions.push(IndexVersion { location, superseded: None });
    } else if listed.versions > 1 {
        versions.push(IndexVersion { location, superseded: Some(newest) });
    }
    let supersede = |version: &IndexVersion| IndexVersion {
        superseded: version.superseded.or(listed.base),
        ..*version
    };
    versions.extend(before.iter().map(supersede));
    retain_needed(&mut versions, snapshots);
    versions
}

/// Removes the superseded versions that none of the snapshots sees. Those that one number has superseded are seen from
/// the next lower such number on, or from below that if they begin with operands that need older versions.
fn retain_needed(versions: &mut Vec<IndexVersion>, snapshots: &[Seqno]) {
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

/// The list of a table's keys.
pub(super) fn keys_of(table: &Arc<Table>) -> Result<KeyList> {
    if let Some(keys) = table.take_keys() {
        return Ok(keys);
    }
    let mut scan = table.scan(None, None, CHUNK_BYTES)?;
    let mut keys = KeyList::default();
    while next_key(&mut scan, &mut keys)? {}
    Ok(keys)
}

/// Adds the next key of a scan to a list.
fn next_key(scan: &mut TableScan, keys: &mut KeyList) -> Result<bool> {
    let Some(entry) = scan.entry() else { return Ok(false) };
    let key = entry.key.to_vec();
    keys.push(&key, scan.leaf(), entry.seqno, entry.kind);
    loop {
        scan.next()?;
        match scan.entry().filter(|entry| entry.key == key) {
            Some(entry) => keys.add_version(entry.seqno, entry.kind),
            None => return Ok(true),
        }
    }
}

/// A table that is read key by key: the least key first, of one key the oldest versions first, and of equally old
/// ones the older table.
struct Next {
    /// It has one key.
    keys: KeyList,
    scan: TableScan,
    number: u32,
    creation: u64,
}

impl Next {
    /// Goes to the next key. Returns false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.keys = KeyList::default();
        next_key(&mut self.scan, &mut self.keys)
    }

    fn order(&self) -> (&[u8], Seqno, u64) {
        let listed = self.keys.get(0);
        let (key, newest) = listed.map_or((&[][..], Seqno(0)), |it| (it.key, it.newest.0));
        (key, newest, self.creation)
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Next) -> std::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Next) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Next) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Next {}

impl Places {
    /// Puts the keys of tables into the empty index. There are no snapshots.
    pub(super) fn build(&self, tables: &[Arc<Table>], flushed: Seqno) -> Result<()> {
        let mut counts = Counts::default();
        let mut next = BinaryHeap::with_capacity(tables.len());
        for table in tables {
            let scan = table.scan(None, None, CHUNK_BYTES)?;
            let (keys, number) = (KeyList::default(), self.number(table)?);
            let creation = table.properties().creation;
            let mut of_table = Next { keys, scan, number, creation };
            if of_table.advance()? {
                next.push(of_table);
            }
        }
        let (mut key, mut versions, mut newest) = (Vec::new(), Vec::new(), Seqno(0));
        while let Some(mut of_table) = next.pop() {
            if let Some(listed) = of_table.keys.get(0) {
                if *listed.key != *key {
                    self.set_alone(&mut counts, &key, &versions)?;
                    versions.clear();
                    key.clear();
                    key.extend_from_slice(listed.key);
                }
                // A compaction has taken these in, whose table has stayed.
                if !versions.is_empty() && listed.oldest.0 <= newest {
                    versions.clear();
                }
                newest = listed.newest.0;
                versions = over(&listed, of_table.number, &versions, &[Seqno::MAX]);
            }
            if of_table.advance()? {
                next.push(of_table);
            }
        }
        self.set_alone(&mut counts, &key, &versions)?;
        self.count(&mut counts);
        self.numbers(tables)?.iter().for_each(|number| self.set_ready(*number));
        self.built(flushed, tables.is_empty());
        Ok(())
    }

    fn set_alone(&self, counts: &mut Counts, key: &[u8], versions: &[IndexVersion]) -> Result<()> {
        match versions.is_empty() {
            true => Ok(()),
            false => self.set(&mut self.write(), counts, key, &[], versions),
        }
    }

    /// Puts a table into the index that is part of the tree, and younger than all that the index has.
    pub(super) fn receive(&self, pending: &Pending, snapshots: &[Seqno]) -> Result<()> {
        self.receiving(pending.flushed, snapshots);
        let mut at = 0;
        while at < pending.keys.len() {
            let end = pending.keys.len().min(at + KEYS_AT_ONCE);
            let mut counts = Counts::default();
            let mut writing = self.write();
            for listed in (at..end).filter_map(|at| pending.keys.get(at)) {
                let before = self.versions_now(&mut writing, listed.key)?;
                let after = over(&listed, pending.number, &before, snapshots);
                self.set(&mut writing, &mut counts, listed.key, &before, &after)?;
            }
            self.count(&mut counts);
            at = end;
        }
        if self.superseded() > 0 {
            let mut needed = self.needed.lock();
            needed.extend(snapshots.split_last().map_or(&[][..], |(_, held)| held));
            needed.sort_unstable();
            needed.dedup();
        }
        // A compaction takes what is settled of tables that are ready.
        self.received(pending.flushed);
        self.set_ready(pending.number);
        Ok(())
    }

    /// Lets the index name an output of a compaction instead of what it was made of: `inputs`, or, of the keys in
    /// `stacks`, the tables there. Of a key that none of these has any more, younger versions have come. Nothing is
    /// left of the keys that have `ended`.
    pub(super) fn replace(
        &self,
        output: Option<(u32, &KeyList)>,
        inputs: &[u32],
        stacks: &BTreeMap<Vec<u8>, Vec<u32>>,
        ended: &[Vec<u8>],
        snapshots: &[Seqno],
    ) -> Result<()> {
        self.dropping(snapshots);
        let made_of = |key: &[u8]| stacks.get(key).map_or(inputs, |stack| stack);
        for keys in ended.chunks(KEYS_AT_ONCE) {
            let mut counts = Counts::default();
            let mut writing = self.write();
            for key in keys {
                let before = self.versions_now(&mut writing, key)?;
                let first = first_of(&before, made_of(key));
                let after = without_end(&before, first);
                self.set(&mut writing, &mut counts, key, &before, &after)?;
            }
            self.count(&mut counts);
        }
        let Some((number, keys)) = output else { return Ok(()) };
        let mut at = 0;
        while at < keys.len() {
            let end = keys.len().min(at + KEYS_AT_ONCE);
            let mut counts = Counts::default();
            let mut writing = self.write();
            for listed in (at..end).filter_map(|at| keys.get(at)) {
                let before = self.versions_now(&mut writing, listed.key)?;
                let first = first_of(&before, made_of(listed.key));
                let Some(version) = before.get(first) else { continue };
                let location = location(&listed, number, is_cut(&before));
                let (newest, kind) = listed.newest;
                let after = if kind == EntryKind::Delete && listed.versions == 1 {
                    without_end(&before, first)
                } else {
                    let deleted = (kind == EntryKind::Delete).then_some(newest);
                    let superseded = version.superseded.or(deleted);
                    let output = IndexVersion { location, superseded };
                    before[..first].iter().copied().chain([output]).collect()
                };
                self.set(&mut writing, &mut counts, listed.key, &before, &after)?;
            }
            self.count(&mut counts);
            at = end;
        }
        self.set_ready(number);
        Ok(())
    }

    /// Removes the versions that none of the snapshots needs, of a leaf of the index and from a key on. Returns the key
    /// to go on from.
    pub(super) fn prune(&self, from: &[u8], snapshots: &[Seqno]) -> Result<Option<Vec<u8>>> {
        let (entries, rest) = self.entries_from(from)?;
        let mut counts = Counts::default();
        let mut writing = self.write();
        for (key, versions) in &entries {
            if versions.iter().all(|version| version.superseded.is_none()) && !is_cut(versions) {
                continue;
            }
            let before = self.versions_now(&mut writing, key)?;
            let mut after = before.clone();
            retain_needed(&mut after, snapshots);
            self.set(&mut writing, &mut counts, key, &before, &after)?;
        }
        self.count(&mut counts);
        Ok(rest)
    }
}

/// The first versions of a key, of which the others are gone.
fn without_end(versions: &[IndexVersion], count: usize) -> Vec<IndexVersion> {
    let mut first = versions[..count].to_vec();
    if count < versions.len() && !is_cut(versions) {
        first.iter_mut().next_back().into_iter().for_each(|it| it.location.is_operand = false);
    }
    first
}

/// The place of the first version that is in one of these tables; the number of versions if there is none.
fn first_of(versions: &[IndexVersion], tables: &[u32]) -> usize {
    let is_in = |version: &IndexVersion| tables.contains(&version.location.table);
    versions.iter().position(is_in).unwrap_or(versions.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PagePointer;

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

    fn list(versions: &[(u64, EntryKind)]) -> KeyList {
        let mut keys = KeyList::default();
        for (at, (seqno, kind)) in versions.iter().enumerate() {
            match at {
                0 => keys.push(
                    b"k",
                    (PagePointer { unit: 0, units: 1 }, false),
                    Seqno(*seqno),
                    *kind,
                ),
                _ => keys.add_version(Seqno(*seqno), *kind),
            }
        }
        keys
    }

    /// Of a memtable with several versions, the oldest that is no operand supersedes what is older. That the newest did
    /// showed a deleted value to a snapshot between them.
    #[test]
    fn the_oldest_put_or_delete_of_a_memtable_supersedes_what_is_older() {
        let keys = list(&[(52, EntryKind::Put), (46, EntryKind::Delete)]);
        let listed = keys.get(0).unwrap();
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(20), Seqno(60)]);
        assert_eq!(after, [version(2, None, false), version(1, Some(46), false)]);
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(47), Seqno(60)]);
        assert_eq!(after, [version(2, None, false)]);
    }

    #[test]
    fn a_tombstone_has_no_place_and_operands_have_one_above_what_they_need() {
        let keys = list(&[(52, EntryKind::Delete)]);
        let listed = keys.get(0).unwrap();
        assert_eq!(over(&listed, 2, &[version(1, None, false)], &[Seqno(60)]), []);
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(20), Seqno(60)]);
        assert_eq!(after, [version(1, Some(52), false)]);
        let keys = list(&[(52, EntryKind::Merge)]);
        let listed = keys.get(0).unwrap();
        let after = over(&listed, 2, &[version(1, None, false)], &[Seqno(60)]);
        assert_eq!(after, [version(2, None, true), version(1, None, false)]);
        assert_eq!(over(&listed, 2, &[], &[Seqno(60)]), [version(2, None, false)], "nothing below");
    }
}
