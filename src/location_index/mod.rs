//! The location index of SLM-DB: a persistent B+-tree from keys to the places where tables have them (section 3.2).
//!
//! The index lives in a [`Region`] of persistent memory. Each change of a key becomes durable by one atomic store of 8
//! bytes, without a log. The design follows the paper's description of FAST and FAIR (its reference 22): records of a
//! node are sorted, entries are shifted by stores in an order that keeps every intermediate state readable, and no
//! lock is persistent. It differs where keys are byte strings of any length and where readers need no repair:
//! a node is split by writing its successors elsewhere and replacing it by one store of 8 bytes.
//!
//! Parts: [`LocationIndex`] (this file: reading), `write` (changes of one key), `restructure` (replacing nodes), `open`
//! (creating, opening, recovery), `load` (filling), `node` (the layout), `free_blocks`, `location`, `word`.
//!
//! Invariants:
//! 1. The leaves are a list in the order of their keys, from the region's header on. Everything that a crash must not
//!    lose is in this list. Inner nodes and the set of free blocks are derived from it when the index is opened.
//! 2. In every state that a crash can leave, the list has each key whose change was durable, in its old or its new
//!    state if a change was not yet durable. See `write` and `restructure` for the order of stores.
//! 3. A change is durable when [`Writing::fence`] has returned.
//! 4. One writer changes the index at a time. Readers take no lock: they check versions of blocks, which are not
//!    persistent. A block's version grows before the block is used for something else.
//! 5. All versions of a key are in one leaf, newest first.

mod counts;
#[cfg(test)]
mod format_tests;
mod free_blocks;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod load;
mod location;
mod node;
mod open;
mod restructure;
#[cfg(test)]
mod shrink_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
mod tests;
mod word;
mod write;

pub(crate) use self::Version as IndexVersion;
pub(crate) use load::Load;
pub(crate) use location::TABLE_MAX;
pub(crate) use location::{LeafPlace, Location};
#[cfg(test)]
pub(crate) use open::Found;
pub(crate) use open::{load_note, store_note};
pub(crate) use write::{Writing, is_in_place, pack, versions_max};

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::base::version_lock::VersionLock;
use crate::pmem::{Region, WORD_BYTES};

use counts::Counts;
use free_blocks::{FreeBlocks, KEPT_PART};
use node::{BLOCK_WORDS, BlockNumber, Blocks, Damage, Node, Read, Record};
use write::{BlockUse, Nodes};

/// A version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) location: Location,
    /// Of a version that only snapshots need: the sequence number of the newer version or of the deletion.
    pub(crate) superseded: Option<Seqno>,
}

/// A key and its versions, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) key: Vec<u8>,
    pub(crate) versions: Vec<Version>,
}

/// The index. See the module's description.
pub(crate) struct LocationIndex {
    region: Arc<dyn Region>,
    /// Of blocks, which share them: see [`LocationIndex::lock_of`]. The one of block 0 is of the root's number.
    locks: Box<[VersionLock]>,
    writer: Mutex<Writer>,
    counts: Counts,
}

/// What only the writer uses.
struct Writer {
    free: FreeBlocks,
    /// Of each block that is a node, up to the last one.
    uses: Vec<BlockUse>,
    nodes: Nodes,
    root: BlockNumber,
    /// The number of levels.
    height: usize,
    keys: u64,
    /// There is, or was, a key with key blocks.
    has_long_keys: bool,
}

/// Entries of one leaf, and where to go on.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) entries: Vec<IndexEntry>,
    /// The bound at which the other entries begin: at or above it in ascending order, below it in descending order.
    /// `None` if there are no more.
    pub(crate) rest: Option<Vec<u8>>,
}

/// Which leaf is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeafAt<'a> {
    /// The one that is responsible for a key.
    Key(&'a [u8]),
    /// The one that is responsible for the keys just below a key.
    Below(&'a [u8]),
    Last,
}

/// What a leaf has of the keys from `lower` on, below `upper`.
#[derive(Debug, Default)]
pub(crate) struct LeafEntries {
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
    pub(crate) entries: Entries,
}

/// Keys and their versions, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    keys: Vec<u8>,
    versions: Vec<Version>,
    /// Where each key, and each key's versions, end.
    ends: Vec<(usize, usize)>,
}

impl Entries {
    fn with_capacity(entries: usize) -> Entries {
        let keys = Vec::with_capacity(entries * KEY_BYTES_GUESS);
        let versions = Vec::with_capacity(entries);
        Entries { keys, versions, ends: Vec::with_capacity(entries) }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of all keys.
    pub(crate) fn key_bytes(&self) -> usize {
        self.keys.len()
    }

    /// The keys, each with its versions, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[Version])> {
        let mut start = (0, 0);
        self.ends.iter().map(move |end| {
            let from = std::mem::replace(&mut start, *end);
            (&self.keys[from.0..end.0], &self.versions[from.1..end.1])
        })
    }

    fn to_owned(&self) -> Vec<IndexEntry> {
        let owned = |(key, versions): (&[u8], &[Version])| IndexEntry {
            key: key.to_vec(),
            versions: versions.to_vec(),
        };
        self.iter().map(owned).collect()
    }
}

/// The leaf that somebody has met last who looks ascending keys up.
#[derive(Debug, Default)]
pub(crate) struct NearLeaf(Option<MetLeaf>);

#[derive(Debug)]
struct MetLeaf {
    block: BlockNumber,
    version: u64,
    /// It is responsible for the keys from this one on, below `upper`, as long as it has this version.
    from: Vec<u8>,
    upper: Option<Vec<u8>>,
}

/// The keys that a leaf is responsible for: from `lower` on, below `upper`. `None`: all.
#[derive(Debug, Default)]
struct Bounds {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

/// Which leaf is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The one that is responsible for the key.
    At,
    /// The one that is responsible for the keys just below the key.
    Below,
    /// The last one, whatever the key.
    Last,
}

/// The word of the first leaf's number in block 0.
const FIRST_WORD: usize = 3;
/// The word of the root's number in block 0.
const ROOT_WORD: usize = 4;
/// Room that is made for a key at first.
const KEY_BYTES_GUESS: usize = 24;
/// The number of locks. A reader that finds the lock of another block changed reads again.
const LOCKS: usize = 1024;

impl LocationIndex {
    /// The newest version of a key. It may be superseded, if snapshots need it.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    #[cfg(test)]
    pub(crate) fn newest(&self, key: &[u8]) -> Result<Option<Version>> {
        self.read(key, Side::At, None, |leaf| {
            let (slot, is_equal) = leaf.lower_bound(key, false)?;
            if !is_equal {
                return Ok(None);
            }
            let record = leaf.record(slot)?;
            let location = leaf.location(&record)?;
            Ok(Some(Version { location, superseded: record.superseded }))
        })
    }

    /// All versions of a key, newest first.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn versions(&self, key: &[u8]) -> Result<Vec<Version>> {
        self.read(key, Side::At, None, |leaf| Ok(versions_in(leaf, key)?.1))
    }

    /// As [`LocationIndex::versions`], for somebody who looks ascending keys up: many are in the leaf of the key before.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn versions_near(&self, key: &[u8], near: &mut NearLeaf) -> Result<Vec<Version>> {
        if let Some(versions) = near.0.as_ref().and_then(|met| self.versions_met(key, met)) {
            return Ok(versions);
        }
        near.0 = None;
        let mut bounds = Bounds::default();
        let (block, version, versions) = self.read(key, Side::At, Some(&mut bounds), |leaf| {
            // If this is another version than that of the search, the search is repeated.
            let version = self.lock_of(leaf.block).read();
            Ok((leaf.block, version, versions_in(leaf, key)?.1))
        })?;
        near.0 = Some(MetLeaf { block, version, from: key.to_vec(), upper: bounds.upper });
        Ok(versions)
    }

    /// The versions of a key, if a leaf that has been met is its leaf, and has not changed. A leaf that a writer is
    /// replacing is read until that has been done.
    fn versions_met(&self, key: &[u8], met: &MetLeaf) -> Option<Vec<Version>> {
        let is_there = *key >= *met.from && met.upper.as_ref().is_none_or(|upper| *key < **upper);
        let lock = self.lock_of(met.block);
        if !is_there || lock.read() != met.version {
            return None;
        }
        // Damage is reported by the search from the root: also a block that is another's, or zeros, instead of this leaf's.
        let memory = self.memory();
        let leaf = memory.node(met.block, (0, ROOT_WORD));
        let versions = leaf.and_then(|leaf| match leaf.level()? {
            0 => Ok(versions_in(&leaf, key)?.1),
            _ => Err(leaf.damage(0, "the level of a leaf")),
        });
        memory.has_used(met.block);
        let versions = versions.ok()?;
        lock.is_still(met.version).then_some(versions)
    }

    /// Entries of one leaf in ascending order, whose keys are not less than `key` (with `after`: greater than `key`).
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn ascending(&self, key: &[u8], after: bool) -> Result<Part> {
        let mut bounds = Bounds::default();
        let entries = self.read(key, Side::At, Some(&mut bounds), |leaf| {
            let (slot, _) = leaf.lower_bound(key, after)?;
            entries_in(leaf, slot..leaf.count())
        })?;
        Ok(Part { entries: entries.to_owned(), rest: bounds.upper })
    }

    /// The tables of the versions of one leaf whose keys are not less than `key`, and the first key behind them.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn tables_from(&self, key: &[u8]) -> Result<(Vec<u32>, Option<Vec<u8>>)> {
        let mut bounds = Bounds::default();
        let tables = self.read(key, Side::At, Some(&mut bounds), |leaf| {
            let (first, _) = leaf.lower_bound(key, false)?;
            let table = |slot| Ok(leaf.location(&leaf.record(slot)?)?.table);
            (first..leaf.count()).map(table).collect()
        })?;
        Ok((tables, bounds.upper))
    }

    /// Entries of one leaf in descending order, whose keys are less than `key` (with `or_equal`: not greater than
    /// `key`).
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    #[cfg(test)]
    pub(crate) fn descending(&self, key: &[u8], or_equal: bool) -> Result<Part> {
        let side = if or_equal { Side::At } else { Side::Below };
        let mut bounds = Bounds::default();
        let entries = self.read(key, side, Some(&mut bounds), |leaf| {
            let (slot, _) = leaf.lower_bound(key, or_equal)?;
            entries_in(leaf, 0..slot)
        })?;
        let mut entries = entries.to_owned();
        entries.reverse();
        Ok(Part { entries, rest: bounds.lower })
    }

    /// What a leaf has from a key on, or below a key.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn leaf(&self, at: LeafAt<'_>) -> Result<LeafEntries> {
        let (key, side) = match at {
            LeafAt::Key(key) => (key, Side::At),
            LeafAt::Below(key) => (key, Side::Below),
            LeafAt::Last => (&[][..], Side::Last),
        };
        let mut bounds = Bounds::default();
        let entries = self.read(key, side, Some(&mut bounds), |leaf| {
            let slots = match at {
                LeafAt::Key(key) => leaf.lower_bound(key, false)?.0..leaf.count(),
                LeafAt::Below(key) => 0..leaf.lower_bound(key, false)?.0,
                LeafAt::Last => 0..leaf.count(),
            };
            entries_in(leaf, slots)
        })?;
        let Bounds { mut lower, mut upper } = bounds;
        match at {
            LeafAt::Key(key) => lower = Some(key.to_vec()),
            LeafAt::Below(key) => upper = Some(key.to_vec()),
            LeafAt::Last => {}
        }
        Ok(LeafEntries { lower, upper, entries })
    }

    /// Begins to read the leaves of ascending keys from the disk, if only a part of the index may be in memory. Whoever then
    /// reads or changes them waits for all of them together, not for one after the other.
    pub(crate) fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        if !self.region.is_partly_resident() {
            return;
        }
        let mut last = None;
        for key in keys {
            // Whoever reads that leaf is told of what is damaged on the way to it.
            let Some(leaf) = self.probable_leaf(key) else { return };
            if last.replace(leaf) != Some(leaf) {
                self.memory().will_read(leaf);
            }
        }
    }

    /// The block of a key's leaf, without reading it. A writer may have put another there meanwhile. `None` if the root is
    /// the leaf.
    fn probable_leaf(&self, key: &[u8]) -> Option<BlockNumber> {
        let memory = self.memory();
        let (mut from, mut level_max) = ((0, ROOT_WORD), u8::MAX);
        let mut child = memory.header_block(ROOT_WORD).ok()?;
        loop {
            let node = memory.node(child, from).ok()?;
            let level = node.level().ok().filter(|level| (1..level_max).contains(level))?;
            child = descend(&node, key, Side::At, None).ok()?.1;
            memory.has_used(node.block);
            if level == 1 {
                return Some(child);
            }
            (from, level_max) = ((node.block, 0), level);
        }
    }

    /// Whether only a part of it may be in memory.
    pub(crate) fn is_partly_resident(&self) -> bool {
        self.region.is_partly_resident()
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.counts.keys()
    }

    /// The number of blocks that are in use, of those that take space.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        self.counts.blocks()
    }

    /// The number of blocks that one version of each key would need in an index that has been packed, about: others go with
    /// the next merges, or with the snapshots that need them.
    pub(crate) fn live_blocks(&self) -> u64 {
        self.counts.live_blocks()
    }

    /// What the region may have to grow by for so many new keys, with so many bytes.
    pub(crate) fn room_bytes(&self, keys: u64, key_bytes: u64) -> u64 {
        self.counts.room_bytes(keys, key_bytes)
    }

    /// Memory beside the region.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.counts.memory_bytes()
    }

    /// The number of blocks that an index which uses so many has on the disk, once it has been shrunk.
    pub(crate) fn kept_blocks(used: u64) -> u64 {
        used + used / u64::from(KEPT_PART)
    }

    fn lock_of(&self, block: BlockNumber) -> &VersionLock {
        &self.locks[block as usize % LOCKS]
    }

    fn memory(&self) -> Blocks<'_> {
        Blocks::of(&*self.region)
    }

    fn corruption(&self, damage: &Damage) -> Error {
        let word = damage.block as usize * BLOCK_WORDS + damage.word;
        Error::Corruption {
            file: self.region.path().to_path_buf(),
            offset: (word * WORD_BYTES) as u64,
            what: damage.what,
            expected: "a valid one".to_string(),
            found: format!("{:#018x}", damage.found),
        }
    }

    /// Calls `f` with the leaf of a key until no writer changes the leaf meanwhile.
    fn read<T>(
        &self,
        key: &[u8],
        side: Side,
        mut bounds: Option<&mut Bounds>,
        f: impl Fn(&Node<'_>) -> Read<T>,
    ) -> Result<T> {
        loop {
            let blocks = self.memory().count();
            match self.try_read(key, side, bounds.as_deref_mut(), &f) {
                // It may have met a block that the region has had only since it began.
                Some(Err(_)) if self.memory().count() != blocks => {}
                Some(read) => return read.map_err(|damage| self.corruption(&damage)),
                None => {}
            }
        }
    }

    /// As `read`. Returns `None` if a writer changed what was read.
    fn try_read<T>(
        &self,
        key: &[u8],
        side: Side,
        mut bounds: Option<&mut Bounds>,
        f: &impl Fn(&Node<'_>) -> Read<T>,
    ) -> Option<Read<T>> {
        if let Some(bounds) = bounds.as_deref_mut() {
            *bounds = Bounds::default();
        }
        let memory = self.memory();
        let mut lock = self.lock_of(0);
        let mut version = lock.read();
        let mut from = (0, ROOT_WORD);
        let mut child = memory.header_block(ROOT_WORD);
        let mut level_max = u8::MAX;
        loop {
            let node = child.and_then(|child| memory.node(child, from));
            let node = match node {
                Ok(node) => node,
                Err(damage) => return lock.is_still(version).then_some(Err(damage)),
            };
            let parent = (lock, version);
            lock = self.lock_of(node.block);
            version = lock.read();
            if !parent.0.is_still(parent.1) {
                return None;
            }
            let level = match node.level() {
                // Levels decrease, so the descent ends.
                Ok(level) if level < level_max => level,
                Ok(_) => {
                    return lock
                        .is_still(version)
                        .then(|| Err(node.damage(0, "the level of a node")));
                }
                Err(damage) => return lock.is_still(version).then_some(Err(damage)),
            };
            if level == 0 {
                let read = f(&node);
                memory.has_used(node.block);
                return lock.is_still(version).then_some(read);
            }
            level_max = level;
            child = descend(&node, key, side, bounds.as_deref_mut()).map(|(_, child)| child);
            memory.has_used(node.block);
            from = (node.block, 0);
        }
    }
}

/// The slot of the child that a search goes on with, and the child.
fn descend(
    node: &Node<'_>,
    key: &[u8],
    side: Side,
    bounds: Option<&mut Bounds>,
) -> Read<(usize, BlockNumber)> {
    let count = node.count();
    let after = match side {
        Side::Last => count,
        Side::At | Side::Below => {
            let side = if planted(Bug::SlmBelowIsAt) { Side::At } else { side };
            node.lower_bound(key, side == Side::At)?.0
        }
    };
    // The first child is responsible for all smaller keys.
    let slot = after.saturating_sub(1);
    if slot >= count {
        return Err(node.damage(node::SLOTS_START, "an inner node without children"));
    }
    if let Some(bounds) = bounds {
        if slot > 0 {
            bounds.lower = Some(key_of(node, slot)?);
        }
        if slot + 1 < count {
            bounds.upper = Some(key_of(node, slot + 1)?);
        }
    }
    Ok((slot, node.child(&node.record(slot)?)?))
}

fn key_of(node: &Node<'_>, slot: usize) -> Read<Vec<u8>> {
    let mut key = Vec::new();
    node.read_key(&node.record(slot)?, &mut key)?;
    Ok(key)
}

/// The slot at which a key's versions begin, or would begin, and the versions.
fn versions_in(leaf: &Node<'_>, key: &[u8]) -> Read<(usize, Vec<Version>)> {
    let (first, _) = leaf.lower_bound(key, false)?;
    let mut versions = Vec::new();
    for slot in first..leaf.count() {
        let record = leaf.record(slot)?;
        if leaf.compare(&record, key)?.is_ne() {
            break;
        }
        versions.push(Version { location: leaf.location(&record)?, superseded: record.superseded });
    }
    Ok((first, versions))
}

fn entries_in(leaf: &Node<'_>, slots: std::ops::Range<usize>) -> Read<Entries> {
    // A writer may have changed the number of slots meanwhile.
    let mut entries = Entries::with_capacity(slots.len());
    let mut last: Option<Record> = None;
    for slot in slots {
        let record = leaf.record(slot)?;
        let location = leaf.location(&record)?;
        let is_same = last.is_some_and(|last| leaf.same_key(&last, &record));
        if !is_same {
            leaf.push_key(&record, &mut entries.keys)?;
            entries.ends.push((0, 0));
        }
        entries.versions.push(Version { location, superseded: record.superseded });
        if let Some(end) = entries.ends.last_mut() {
            *end = (entries.keys.len(), entries.versions.len());
        }
        last = Some(record);
    }
    Ok(entries)
}
