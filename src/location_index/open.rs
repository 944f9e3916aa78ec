//! Creating an index, and opening one after any crash.
//!
//! Words of block 0, each checked: 0 the mark of an index, 1 the format version, 2 the identity of the index, 3 the
//! first leaf, 4 the root, which is only for readers while the index is open. The mark is written last. Words 8 to 15
//! are *notes* of whoever owns the index, each checked.
//!
//! Opening walks through the leaves. It removes the second of two equal slots, which a crash leaves while slots are
//! shifted, checks everything, finds out which blocks are free, and builds the inner nodes.

use std::sync::Arc;

use super::counts::Counts;
use super::free_blocks::FreeBlocks;
use super::location::Location;
use super::node::{BLOCK_WORDS, BlockNumber, Damage, INLINE_KEY_BYTES, SLOTS_START, block_word};
use super::restructure::Records;
use super::word::{seal, unseal};
use super::write::{BlockUse, Nodes, Writing, key_block_count};
use super::{FIRST_WORD, LOCKS, LocationIndex, ROOT_WORD, Version, Writer};
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::base::sync::plain::Ordering;
use crate::base::version_lock::VersionLock;
use crate::pmem::{self, Region};

const MARK_WORD: usize = 0;
const _: () = assert!(FIRST_WORD < pmem::LINE_WORDS);
const FORMAT_WORD: usize = 1;
const IDENTITY_WORD: usize = 2;

const NOTES_START: usize = pmem::LINE_WORDS;
/// How many notes there are.
pub(crate) const NOTES: usize = pmem::LINE_WORDS;

const MARK: u64 = 0x6c6d_6964_7800;
const FORMAT: u64 = 1;
/// The smallest region, in blocks.
const BLOCKS_MIN: usize = 16;

/// Stores a note of at most 48 bits in a region, durably.
pub(crate) fn store_note(region: &dyn Region, note: usize, content: u64) {
    assert!(note < NOTES, "note {note}");
    let word = NOTES_START + note;
    region.store(word, seal(content));
    pmem::persist(region, word..word + 1);
}

/// A note in a region; `None` if there is none, or if it is damaged.
pub(crate) fn load_note(region: &dyn Region, note: usize) -> Option<u64> {
    assert!(note < NOTES, "note {note}");
    unseal(region.words().get(NOTES_START + note)?.load(Ordering::Relaxed))
}

/// What was found when an index was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// Versions that only snapshots needed. None is left.
    pub(crate) superseded: u64,
    /// Keys whose oldest version needs an older one, which is not in the index.
    pub(crate) cut: u64,
    /// Interrupted changes that were undone or completed.
    pub(crate) repeated_slots: u64,
}

impl LocationIndex {
    /// Creates an empty index. What the region holds is lost. `identity` has at most 48 bits.
    ///
    /// # Errors
    /// `InvalidArgument` if the region is too small.
    pub(crate) fn create(region: Arc<dyn Region>, identity: u64) -> Result<LocationIndex> {
        let blocks = region.words().len() / BLOCK_WORDS;
        if blocks < BLOCKS_MIN {
            return Err(Error::invalid(format!(
                "a region of {blocks} blocks of 4 KiB for an index: at least {BLOCKS_MIN} are needed"
            )));
        }
        // From now on, the region holds no index until the new one is complete.
        region.store(MARK_WORD, 0);
        pmem::persist(&*region, MARK_WORD..MARK_WORD + 1);
        let index = LocationIndex::over(region);
        {
            let mut writing = index.write();
            let leaf = writing.write_node(0, &Records::default(), 0)?;
            pmem::fence(&*index.region);
            let region = &*index.region;
            // All are on one line, so the mark is never there without the others.
            region.store(FORMAT_WORD, seal(FORMAT));
            region.store(IDENTITY_WORD, seal(identity));
            region.store(FIRST_WORD, block_word(leaf));
            region.store(MARK_WORD, seal(MARK));
            pmem::flush(region, MARK_WORD..FIRST_WORD + 1);
            writing.set_root(leaf)?;
        }
        Ok(index)
    }

    /// Opens the index of a region. Calls `visit` with the location of each version
    /// that is not superseded. Returns `None` if the region holds
    /// no index with this identity, as after a crash while one was created.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged, `UnsupportedVersion` if a newer version of Spinney wrote it.
    pub(crate) fn open(
        region: Arc<dyn Region>,
        identity: u64,
        visit: &mut dyn FnMut(Location),
    ) -> Result<Option<(LocationIndex, Found)>> {
        let header = |word: usize| unseal(region.words()[word].load(Ordering::Relaxed));
        let is_large = region.words().len() >= BLOCKS_MIN * BLOCK_WORDS;
        if !is_large || header(MARK_WORD) != Some(MARK) {
            return Ok(None);
        }
        match header(FORMAT_WORD) {
            Some(FORMAT) => {}
            Some(format) => {
                return Err(Error::UnsupportedVersion {
                    file: region.path().to_path_buf(),
                    found: format as u32,
                    supported: FORMAT as u32,
                });
            }
            None => {
                let what = "the format version of an index";
                let found = region.words()[FORMAT_WORD].load(Ordering::Relaxed);
                let damage = Damage { block: 0, word: FORMAT_WORD, what, found };
                return Err(LocationIndex::over(region).corruption(&damage));
            }
        }
        if header(IDENTITY_WORD) != Some(identity) {
            return Ok(None);
        }
        let index = LocationIndex::over(region);
        let found = index.write().recover(visit)?;
        if found.superseded > 0 {
            index.drop_superseded()?;
        }
        Ok(Some((index, found)))
    }

    /// An index over a region, with nothing but free blocks.
    fn over(region: Arc<dyn Region>) -> LocationIndex {
        let blocks = region.words().len() / BLOCK_WORDS;
        let writer = Writer {
            free: FreeBlocks::all(blocks as BlockNumber),
            uses: Vec::new(),
            nodes: Nodes::default(),
            root: 0,
            height: 1,
            keys: 0,
            has_long_keys: false,
        };
        let locks = (0..LOCKS).map(|_| VersionLock::new()).collect();
        LocationIndex { region, locks, writer: Mutex::new(writer), counts: Counts::default() }
    }

    /// There are no snapshots when an index is opened.
    fn drop_superseded(&self) -> Result<()> {
        let mut start = Some(Vec::new());
        while let Some(key) = start {
            let part = self.ascending(&key, false)?;
            let mut writing = self.write();
            for entry in &part.entries {
                if entry.versions.iter().any(|version| version.superseded.is_some()) {
                    let current = |version: &&Version| version.superseded.is_none();
                    let mut current: Vec<Version> =
                        entry.versions.iter().filter(current).copied().collect();
                    // What it needed of those that go was needed by snapshots alone.
                    let was_cut = entry.versions.last().is_some_and(|it| it.location.is_operand);
                    if let Some(oldest) = current.last_mut().filter(|_| !was_cut) {
                        oldest.location.is_operand = false;
                    }
                    writing.set(&entry.key, &current)?;
                }
            }
            start = part.rest;
        }
        Ok(())
    }
}

/// Builds the inner nodes of one level from left to right.
#[derive(Default)]
pub(super) struct Level {
    records: Records,
    children: usize,
    first_key: Vec<u8>,
}

impl Writing<'_> {
    /// Walks through the leaves and builds the inner nodes.
    fn recover(&mut self, visit: &mut dyn FnMut(Location)) -> Result<Found> {
        let mut found = Found::default();
        let mut levels: Vec<Level> = Vec::new();
        let mut next = Some(self.sound(|this| this.index.memory().header_block(FIRST_WORD))?);
        let mut from = (0, FIRST_WORD);
        let mut last_key: Option<Vec<u8>> = None;
        // First all leaves, so that inner nodes are built in blocks that are free.
        let first = next;
        while let Some(block) = next {
            self.take_found(block, from)?;
            found.repeated_slots += self.remove_repeated_slots(block)?;
            let key_blocks = self.check_leaf(block, &mut last_key, &mut found, visit)?;
            for block_of_key in key_blocks {
                self.take_found(block_of_key, (block, SLOTS_START))?;
            }
            from = (block, super::node::NEXT_WORD);
            next = self.sound(|this| this.node(block)?.next())?;
        }
        next = first;
        let mut only = true;
        let mut before = None;
        while let Some(block) = next {
            next = self.sound(|this| this.node(block)?.next())?;
            if only && next.is_none() {
                return self.set_root(block).map(|()| found);
            }
            only = false;
            let key = match before {
                None => Vec::new(),
                Some(before) => self.bound_between(before, block)?,
            };
            before = Some(block);
            self.append_child(&mut levels, 0, &key, block)?;
        }
        self.finish_levels(levels)?;
        Ok(found)
    }

    /// Marks a block as used.
    fn take_found(&mut self, block: BlockNumber, from: (BlockNumber, usize)) -> Result<()> {
        if self.writer.free.take(block) {
            return Ok(());
        }
        let what = "the number of a block, which is another one's";
        let damage = Damage { block: from.0, word: from.1, what, found: u64::from(block) };
        Err(self.index.corruption(&damage))
    }

    /// Removes the second of two equal slots.
    fn remove_repeated_slots(&mut self, leaf: BlockNumber) -> Result<u64> {
        let mut removed = 0;
        loop {
            let repeated = self.sound(|this| {
                let node = this.node(leaf)?;
                Ok((1..node.count()).find(|&slot| node.slot(slot) == node.slot(slot - 1)))
            })?;
            let Some(slot) = repeated else { break };
            self.shift_left(leaf, slot)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Checks a leaf and returns the blocks of its long keys.
    fn check_leaf(
        &mut self,
        leaf: BlockNumber,
        last_key: &mut Option<Vec<u8>>,
        found: &mut Found,
        visit: &mut dyn FnMut(Location),
    ) -> Result<Vec<BlockNumber>> {
        let mut all_key_blocks = Vec::new();
        let mut keys = 0;
        let use_of = self.sound(|this| {
            let node = this.node(leaf)?;
            if node.level()? != 0 {
                return Err(node.damage(0, "the level of a leaf"));
            }
            node.check_slots_end()?;
            let mut last_of_key = None;
            let mut needs_older = false;
            for slot in 0..node.count() {
                let record = node.record(slot)?;
                let same_key = last_of_key.is_some_and(|last| node.same_key(&last, &record));
                if !same_key {
                    found.cut += u64::from(needs_older);
                    if let Some(last) = &*last_key
                        && node.compare(&record, last)?.is_le()
                    {
                        return Err(node.damage(record.offset, "the order of keys"));
                    }
                    node.read_key(&record, last_key.get_or_insert_default())?;
                    all_key_blocks.extend(node.key_blocks(&record)?);
                    keys += 1;
                }
                last_of_key = Some(record);
                let location = node.location(&record)?;
                needs_older = location.is_operand;
                match record.superseded {
                    Some(_) => found.superseded += 1,
                    None => visit(location),
                }
            }
            found.cut += u64::from(needs_older);
            let is_only = last_key.is_none();
            if node.count() == 0 && (!is_only || node.next()?.is_some()) {
                return Err(node.damage(SLOTS_START, "a leaf without keys"));
            }
            BlockUse::of(&node)
        })?;
        self.note_use(leaf, use_of);
        self.writer.keys += keys;
        self.writer.has_long_keys |= !all_key_blocks.is_empty();
        Ok(all_key_blocks)
    }

    /// Appends a node to the level above it.
    pub(super) fn append_child(
        &mut self,
        levels: &mut Vec<Level>,
        level: usize,
        key: &[u8],
        child: BlockNumber,
    ) -> Result<()> {
        if levels.len() == level {
            levels.push(Level::default());
        }
        let is_full = {
            let words = super::node::record_words(key.len().min(INLINE_KEY_BYTES + 1), false);
            let level = &levels[level];
            level.children >= 2 && !level.records.has_room(words)
        };
        if is_full {
            self.finish_node(levels, level)?;
        }
        self.require_blocks(key_block_count(key.len()))?;
        let key_block = self.key_blocks_of(key);
        let level = &mut levels[level];
        if level.children == 0 {
            level.first_key = key.to_vec();
        }
        level.children += 1;
        level.records.push_child(key, child, key_block);
        Ok(())
    }

    /// Writes the last node of a level and appends it to the level above.
    fn finish_node(&mut self, levels: &mut Vec<Level>, level: usize) -> Result<()> {
        let done = std::mem::take(&mut levels[level]);
        self.require_blocks(1)?;
        let block = self.write_node(level as u8 + 1, &done.records, 0)?;
        self.append_child(levels, level + 1, &done.first_key, block)
    }

    pub(super) fn finish_levels(&mut self, mut levels: Vec<Level>) -> Result<()> {
        let mut level = 0;
        while level + 1 < levels.len() {
            self.finish_node(&mut levels, level)?;
            level += 1;
        }
        let top = std::mem::take(&mut levels[level]);
        self.require_blocks(1)?;
        let root = self.write_node(level as u8 + 1, &top.records, 0)?;
        self.set_root(root)
    }

    /// Shows readers the root.
    pub(super) fn set_root(&mut self, root: BlockNumber) -> Result<()> {
        let height = usize::from(self.sound(|this| this.node(root)?.level())?) + 1;
        let guard = self.index.lock(0);
        self.index.region.store(ROOT_WORD, block_word(root));
        drop(guard);
        self.writer.root = root;
        self.writer.height = height;
        Ok(())
    }
}
