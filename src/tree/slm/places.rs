//! Where the keys of a tree are: the location index, and the tables that its locations name by number.
//!
//! Invariants:
//! 1. A location names a table that has the key's versions, or had them when it was read: a table keeps its number
//!    from before the first location names it until after the last one does.
//! 2. The index has every key of the tables up to [`Places::applied`], unless it is [partial](Places::is_partial).
//!    Only a reader of a version that ends there may conclude from it that a key is absent.
//! 3. A key's versions are those that some reader may need: the newest, those below operands, and those that
//!    snapshots needed when they were superseded. If there are too many, the oldest are missing: who needs one looks
//!    into the tables.
//! 4. The live count of a table is the number of versions that name it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Mutex, RwLock};
use crate::cache::PagePointer;
use crate::location_index::{
    IndexVersion, LeafAt, LeafPlace, Location, LocationIndex, TABLE_MAX, Writing, versions_max,
};
use crate::pmem::HeapRegion;
use crate::table::{Table, TableScan};
use crate::tree::placed::{PlacedKey, PlacedPart, PlacedRun};
use crate::tree::range::Key;
use crate::tree::run::Run;
use crate::tree::{RangeAt, RangeRuns};

/// The words of the region: as many addresses as it may ever need. If the system has not so many, fewer.
const REGION_WORDS_MAX: usize = 1 << 33;
const REGION_WORDS_MIN: usize = 1 << 13;
/// Bytes that are read at once of a table that is put into the index.
const CHUNK_BYTES: usize = 64 << 10;
/// Keys that are put into the index before others may change it.
const KEYS_AT_ONCE: usize = 64;
/// While an index changes, what it has applied is none of the numbers of versions.
const CHANGING: u64 = u64::MAX;

/// A table with a number.
struct Numbered {
    table: Arc<Table>,
    live: u64,
    /// All of its keys that are live are in the index.
    is_ready: bool,
}

/// The tables by number.
#[derive(Default)]
struct Registry {
    tables: BTreeMap<u32, Numbered>,
    numbers: BTreeMap<FileId, u32>,
    /// Numbers are given in turn: one that has become free is used again only after all others.
    last: u32,
}

/// See the module's description.
pub(in crate::tree) struct Places {
    index: LocationIndex,
    registry: RwLock<Registry>,
    /// The number up to which the index has everything, or [`CHANGING`].
    applied: AtomicU64,
    is_partial: AtomicBool,
    /// The keys with more than one version.
    stacked: Mutex<BTreeSet<Vec<u8>>>,
}

/// The versions of one key in one table.
#[derive(Debug)]
struct Group {
    key: Vec<u8>,
    leaf: LeafPlace,
    newest: (Seqno, EntryKind),
    /// The oldest version that is no operand.
    base: Option<Seqno>,
    entries: u64,
}

impl Group {
    /// The next key of a scan that is before it. Moves the scan to the key after it.
    fn next(scan: &mut TableScan) -> Result<Option<Group>> {
        let Some(entry) = scan.entry() else { return Ok(None) };
        let (page, is_split) = scan.leaf();
        let leaf = LeafPlace { unit: page.unit, units: page.units, is_split };
        let newest = (entry.seqno, entry.kind);
        let mut group = Group { key: entry.key.to_vec(), leaf, newest, base: None, entries: 0 };
        while let Some(entry) = scan.entry().filter(|entry| entry.key == group.key) {
            group.entries += 1;
            if !matches!(entry.kind, EntryKind::Merge | EntryKind::MergeBlob) {
                group.base = Some(entry.seqno);
            }
            scan.next()?;
        }
        Ok(Some(group))
    }

    fn is_deleted(&self) -> bool {
        self.newest.1 == EntryKind::Delete
    }

    /// The versions of the key once the group is its newest part, for the snapshots that there are.
    /// Returns false beside them if there are too many.
    fn over(
        &self,
        table: u32,
        before: &[IndexVersion],
        snapshots: &[Seqno],
    ) -> (Vec<IndexVersion>, bool) {
        let oldest_snapshot = snapshots.first().copied().unwrap_or(Seqno::MAX);
        let mut versions = Vec::new();
        let location = Location::new(table, self.leaf, self.base.is_none());
        if !self.is_deleted() {
            versions.push(IndexVersion { location, superseded: None });
        } else if self.entries > 1 && oldest_snapshot < self.newest.0 {
            versions.push(IndexVersion { location, superseded: Some(self.newest.0) });
        }
        match self.base {
            // What is below operands is needed as before.
            None => versions.extend(before),
            Some(base) if oldest_snapshot < base => {
                versions.extend(before.iter().map(|version| IndexVersion {
                    superseded: version.superseded.or(Some(base)),
                    ..*version
                }));
            }
            Some(_) => {}
        }
        let count = versions.len();
        versions.truncate(versions_max(self.key.len()).max(1));
        let is_whole = versions.len() == count;
        (versions, is_whole)
    }
}

impl Places {
    /// Places of no keys.
    ///
    /// # Errors
    /// `InvalidArgument` if the system has no addresses left.
    pub(super) fn new(name: &Path) -> Result<Places> {
        let mut words = REGION_WORDS_MAX;
        let region = loop {
            match HeapRegion::reserve(words, name) {
                Some(region) => break region,
                None if words > REGION_WORDS_MIN => words /= 4,
                None => return Err(Error::invalid("no addresses are left for an index")),
            }
        };
        Ok(Places {
            index: LocationIndex::create(Arc::new(region), 0)?,
            registry: RwLock::default(),
            applied: AtomicU64::new(0),
            is_partial: AtomicBool::new(false),
            stacked: Mutex::default(),
        })
    }

    /// Puts the keys of tables into the empty index. There are no snapshots.
    pub(super) fn build(&self, tables: &[Arc<Table>], flushed: Seqno) -> Result<()> {
        let numbers =
            tables.iter().map(|table| self.number(table)).collect::<Result<Vec<u32>>>()?;
        let mut scans = Vec::with_capacity(tables.len());
        let mut next = std::collections::BinaryHeap::new();
        for (position, table) in tables.iter().enumerate() {
            let mut scan = table.scan(None, None, CHUNK_BYTES)?;
            if let Some(group) = Group::next(&mut scan)? {
                next.push(Next { group, position });
            }
            scans.push(scan);
        }
        let mut groups: Vec<(Group, u32)> = Vec::new();
        while let Some(Next { group, position }) = next.pop() {
            if groups.first().is_some_and(|(first, _)| first.key != group.key) {
                self.put_groups(&mut groups)?;
            }
            groups.push((group, numbers[position]));
            if let Some(group) = Group::next(&mut scans[position])? {
                next.push(Next { group, position });
            }
        }
        self.put_groups(&mut groups)?;
        tables.iter().for_each(|table| self.set_ready(table));
        self.applied.store(flushed.0, Ordering::SeqCst);
        Ok(())
    }

    /// Puts all groups of one key into the index.
    fn put_groups(&self, groups: &mut Vec<(Group, u32)>) -> Result<()> {
        groups.sort_by_key(|(group, _)| group.newest.0);
        let mut versions = Vec::new();
        for (group, table) in groups.iter() {
            versions = self.over(group, *table, &versions, &[Seqno::MAX]);
        }
        if let Some((group, _)) = groups.first() {
            let mut writing = self.index.write();
            self.set(&mut writing, &group.key, &versions)?;
        }
        groups.clear();
        Ok(())
    }

    /// The versions of a group's key once the group is its newest part. If there are too many, the index is partial.
    fn over(
        &self,
        group: &Group,
        table: u32,
        before: &[IndexVersion],
        snapshots: &[Seqno],
    ) -> Vec<IndexVersion> {
        let (versions, is_whole) = group.over(table, before, snapshots);
        if !is_whole {
            self.is_partial.store(true, Ordering::SeqCst);
        }
        versions
    }

    /// Whether the index has exactly the keys of a version.
    fn is_exact(&self, flushed: Seqno) -> bool {
        self.applied.load(Ordering::SeqCst) == flushed.0 && !self.is_partial.load(Ordering::SeqCst)
    }

    /// The versions of a key, and whether a key without any is absent from the version that ends at `flushed`.
    pub(super) fn find(&self, key: &[u8], flushed: Seqno) -> Result<(Vec<IndexVersion>, bool)> {
        let before = self.is_exact(flushed);
        let versions = self.index.versions(key)?;
        Ok((versions, before && self.is_exact(flushed)))
    }

    /// The keys of a leaf of the index, with their places; `None` if the index is not exactly that of the version which
    /// ends at `flushed`.
    pub(super) fn runs_at(&self, at: RangeAt<'_>, flushed: Seqno) -> Result<Option<RangeRuns>> {
        if !self.is_exact(flushed) {
            return Ok(None);
        }
        let leaf = self.index.leaf(match at {
            RangeAt::Key(key) => LeafAt::Key(key),
            RangeAt::Before(Some(key)) => LeafAt::Below(key),
            RangeAt::Before(None) => LeafAt::Last,
        })?;
        let mut keys = Vec::with_capacity(leaf.entries.len());
        for entry in leaf.entries {
            let deleted = entry.versions.first().and_then(|newest| newest.superseded);
            let mut parts = Vec::with_capacity(entry.versions.len());
            for version in entry.versions {
                let Some(table) = self.table(version.location.table) else { return Ok(None) };
                parts.push(PlacedPart { table, leaf: version.location.leaf.map(page_of) });
            }
            keys.push(PlacedKey { key: entry.key, parts, deleted });
        }
        if !self.is_exact(flushed) {
            return Ok(None);
        }
        let runs = PlacedRun::new(keys).map(|run| Run::Placed(Arc::new(run)));
        let lower = Key::from(leaf.lower.unwrap_or_default());
        let upper = leaf.upper.map(Key::from);
        Ok(Some(RangeRuns { lower, upper, runs: runs.into_iter().collect() }))
    }

    /// The table of a number.
    pub(super) fn table(&self, number: u32) -> Option<Arc<Table>> {
        self.registry.read().tables.get(&number).map(|numbered| Arc::clone(&numbered.table))
    }

    /// The number of a table, which it gets if it has none.
    fn number(&self, table: &Arc<Table>) -> Result<u32> {
        let mut registry = self.registry.write();
        let registry = &mut *registry;
        if let Some(number) = registry.numbers.get(&table.id()) {
            return Ok(*number);
        }
        if registry.tables.len() > TABLE_MAX as usize {
            return Err(Error::invalid("a keyspace of this kind has at most four million tables"));
        }
        loop {
            registry.last = if registry.last == TABLE_MAX { 0 } else { registry.last + 1 };
            if !registry.tables.contains_key(&registry.last) {
                break;
            }
        }
        let numbered = Numbered { table: Arc::clone(table), live: 0, is_ready: false };
        registry.tables.insert(registry.last, numbered);
        registry.numbers.insert(table.id(), registry.last);
        Ok(registry.last)
    }

    fn set_ready(&self, table: &Table) {
        let mut registry = self.registry.write();
        let Registry { tables, numbers, .. } = &mut *registry;
        if let Some(numbered) = numbers.get(&table.id()).and_then(|number| tables.get_mut(number)) {
            numbered.is_ready = true;
        }
    }

    /// Forgets tables that no version has any more.
    pub(super) fn forget(&self, tables: &[Arc<Table>]) {
        let mut registry = self.registry.write();
        for table in tables {
            if let Some(number) = registry.numbers.remove(&table.id()) {
                registry.tables.remove(&number);
            }
        }
    }

    /// The number of keys of a table that are live; `None` while a job is at work on that.
    pub(super) fn live(&self, table: &Table) -> Option<u64> {
        let registry = self.registry.read();
        let number = registry.numbers.get(&table.id())?;
        registry.tables.get(number).filter(|numbered| numbered.is_ready).map(|it| it.live)
    }

    /// Puts a table into the index whose entries are younger than all that it has. `flushed` is the number that the
    /// version with the table ends at.
    pub(super) fn receive(
        &self,
        table: &Arc<Table>,
        snapshots: &[Seqno],
        flushed: Seqno,
    ) -> Result<()> {
        self.applied.store(CHANGING, Ordering::SeqCst);
        let number = self.number(table)?;
        let mut scan = table.scan(None, None, CHUNK_BYTES)?;
        let mut is_end = false;
        while !is_end {
            let mut groups = Vec::with_capacity(KEYS_AT_ONCE);
            while groups.len() < KEYS_AT_ONCE && !is_end {
                match Group::next(&mut scan)? {
                    Some(group) => groups.push(group),
                    None => is_end = true,
                }
            }
            let mut writing = self.index.write();
            for group in groups {
                let before = writing.versions(&group.key)?;
                let versions = self.over(&group, number, &before, snapshots);
                self.set(&mut writing, &group.key, &versions)?;
            }
        }
        self.set_ready(table);
        self.applied.store(flushed.0, Ordering::SeqCst);
        Ok(())
    }

    /// The next key of a range that has versions in one of the inputs of a compaction and in other tables as well.
    pub(super) fn next_stacked(
        &self,
        from: Bound<&[u8]>,
        upper: Option<&[u8]>,
        inputs: &[u32],
    ) -> Result<Option<(Vec<u8>, Vec<IndexVersion>)>> {
        let mut from = from.map(<[u8]>::to_vec);
        loop {
            let next = {
                let stacked = self.stacked.lock();
                let bounds = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
                stacked.range::<[u8], _>(bounds).next().cloned()
            };
            let Some(key) = next.filter(|key| upper.is_none_or(|upper| **key < *upper)) else {
                return Ok(None);
            };
            let versions = self.index.versions(&key)?;
            let is_input = |version: &IndexVersion| inputs.contains(&version.location.table);
            if versions.iter().any(is_input) && !versions.iter().all(is_input) {
                return Ok(Some((key, versions)));
            }
            from = Bound::Excluded(key);
        }
    }

    /// The numbers of tables.
    pub(super) fn numbers(&self, tables: &[Arc<Table>]) -> Result<Vec<u32>> {
        tables.iter().map(|table| self.number(table)).collect()
    }

    /// Lets the index name `outputs` instead of `inputs`, of which they are what is live in a range. Of the keys in
    /// `stacks` the outputs have all versions from the one in that table on, which was the newest. Versions of the
    /// range that name an input and are in no output are removed: nobody needs them.
    pub(super) fn replace(
        &self,
        inputs: &[Arc<Table>],
        outputs: &[Arc<Table>],
        stacks: &BTreeMap<Vec<u8>, u32>,
        (lower, upper): (&[u8], Option<&[u8]>),
    ) -> Result<()> {
        let input_numbers = self.numbers(inputs)?;
        let is_input = |version: &IndexVersion| input_numbers.contains(&version.location.table);
        for output in outputs {
            let number = self.number(output)?;
            let mut scan = output.scan(None, None, CHUNK_BYTES)?;
            while let Some(group) = Group::next(&mut scan)? {
                let mut writing = self.index.write();
                let before = writing.versions(&group.key)?;
                // Others may have taken in all versions of the key meanwhile.
                let Some(mut first) = before.iter().position(is_input) else { continue };
                let mut after: Vec<IndexVersion> =
                    before.iter().copied().filter(|version| !is_input(version)).collect();
                if let Some(newest) = stacks.get(&group.key) {
                    let is_newest = |version: &IndexVersion| version.location.table == *newest;
                    let Some(at) = before.iter().position(is_newest) else { continue };
                    first = at;
                    after = before[..at].to_vec();
                }
                let location = Location::new(number, group.leaf, group.base.is_none());
                let superseded = before[first].superseded;
                if !group.is_deleted() || superseded.is_some() {
                    after.insert(first, IndexVersion { location, superseded });
                }
                self.set(&mut writing, &group.key, &after)?;
            }
            self.set_ready(output);
        }
        self.remove_rest(&input_numbers, (lower, upper))
    }

    /// Removes the versions of a range that name one of these tables.
    fn remove_rest(&self, numbers: &[u32], (lower, upper): (&[u8], Option<&[u8]>)) -> Result<()> {
        let is_over = |registry: &Registry| {
            let live = |number| registry.tables.get(number).map_or(0, |numbered| numbered.live);
            numbers.iter().all(|number| live(number) == 0)
        };
        let mut from = lower.to_vec();
        loop {
            if is_over(&self.registry.read()) {
                return Ok(());
            }
            let part = self.index.ascending(&from, false)?;
            for entry in part.entries {
                if upper.is_some_and(|upper| *upper <= *entry.key) {
                    return Ok(());
                }
                let is_named = |version: &IndexVersion| numbers.contains(&version.location.table);
                if entry.versions.iter().any(is_named) {
                    let mut writing = self.index.write();
                    let mut versions = writing.versions(&entry.key)?;
                    versions.retain(|version| !is_named(version));
                    self.set(&mut writing, &entry.key, &versions)?;
                }
            }
            match part.rest {
                Some(rest) => from = rest,
                None => return Ok(()),
            }
        }
    }

    /// Sets the versions of a key and counts what is live. If there is no room, the index is partial from now on.
    fn set(&self, writing: &mut Writing<'_>, key: &[u8], versions: &[IndexVersion]) -> Result<()> {
        let (before, after) = match writing.set(key, versions) {
            Ok(before) => (before, versions),
            Err(Error::Full { .. }) => {
                self.is_partial.store(true, Ordering::SeqCst);
                // There is always room for a removal.
                (writing.remove(key)?, &[][..])
            }
            Err(error) => return Err(error),
        };
        if before.len() > 1 || after.len() > 1 {
            let mut stacked = self.stacked.lock();
            if after.len() > 1 {
                stacked.insert(key.to_vec());
            } else {
                stacked.remove(key);
            }
        }
        let mut registry = self.registry.write();
        for version in before {
            if let Some(numbered) = registry.tables.get_mut(&version.location.table) {
                numbered.live -= 1;
            }
        }
        for version in after {
            if let Some(numbered) = registry.tables.get_mut(&version.location.table) {
                numbered.live += 1;
            }
        }
        Ok(())
    }

    /// Whether a table has versions of a key that somebody may need.
    pub(super) fn names(&self, key: &[u8], table: &Table) -> Result<bool> {
        if self.is_partial.load(Ordering::SeqCst) {
            return Ok(true);
        }
        let Some(number) = self.registry.read().numbers.get(&table.id()).copied() else {
            return Ok(true);
        };
        let versions = self.index.versions(key)?;
        Ok(versions.iter().any(|version| version.location.table == number))
    }

    /// Memory of the index.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.index.blocks().0 * 4096
    }
}

/// Where a leaf is in its table, and whether the entry that it is known for goes on in the next leaf.
pub(super) fn page_of(leaf: LeafPlace) -> (PagePointer, bool) {
    (PagePointer { unit: leaf.unit, units: leaf.units }, leaf.is_split)
}

/// A group of a table, the least key first.
struct Next {
    group: Group,
    position: usize,
}

impl Ord for Next {
    fn cmp(&self, other: &Next) -> std::cmp::Ordering {
        (&other.group.key, other.position).cmp(&(&self.group.key, self.position))
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
