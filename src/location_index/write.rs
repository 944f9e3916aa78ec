//! Changes of one key: [`Writing`].
//!
//! The order of stores within a leaf (section 3.2; FAST):
//!
//! - *A new version in place of the only one*: one store of the location.
//! - *A new key*: the record is written and persistent before a slot names it. Slots are shifted from the last one on,
//!   a word of four slots at a time. Each store leaves the slots complete, with two neighbours equal. A line of slots
//!   is persistent before the line before it changes, since that change drops the slot which the line has received.
//! - *A removed key*: slots are shifted from the removed one on. The first store removes the key. A line is persistent
//!   before the line after it changes. If more than one line changes, all earlier changes are persistent first: else a
//!   line could be that of now and the next one that of a while ago.
//! - *Everything else* replaces the leaf (`restructure`).
//!
//! A change is visible to readers at once and durable after the next fence. What a removed key needed is given back
//! after that fence.

use std::ops::Range;

use super::free_blocks::FREE_MIN;
use super::location::Location;
use super::node::{
    BLOCK_WORDS, BlockNumber, HEAP_START, HEAP_WORDS, INLINE_KEY_BYTES, KEY_BLOCK_BYTES, Node,
    Read, SLOTS_MAX, SLOTS_PER_WORD, SLOTS_START, key_block_words, push_record, record_words,
    slot_of,
};
use super::{LocationIndex, ROOT_WORD, Side, Version, Writer, descend, versions_in};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::base::sync::MutexGuard;
use crate::pmem::{self, LINE_WORDS};

/// The right to change the index. Changes are durable after [`Writing::fence`].
pub(crate) struct Writing<'a> {
    pub(super) index: &'a LocationIndex,
    pub(super) writer: MutexGuard<'a, Writer>,
    /// From the root to the parent of the leaf that was located last: the node, and the slot of the next one.
    pub(super) path: Vec<(BlockNumber, usize)>,
    /// The leaf that the path leads to, and the key that it was located for. `None` once a leaf has been replaced.
    located: Option<BlockNumber>,
    located_key: Vec<u8>,
    /// The slot and the versions of that key, if they have been read, and nothing has changed since then.
    found: Option<(usize, Vec<Version>)>,
    /// Blocks that are free once the changes up to now are durable.
    pub(super) freed: Vec<BlockNumber>,
}

/// A leaf that has been packed has no more than this, and not much less.
pub(super) const PACKED_WORDS: usize = HEAP_WORDS * 9 / 10;
pub(super) const PACKED_SLOTS: usize = SLOTS_MAX * 9 / 10;

/// At most so many ranges are given back at once: other changes wait.
const SHRINK_RANGES_MAX: u32 = 64;

/// The words of blocks.
fn words_of(blocks: &Range<BlockNumber>) -> Range<usize> {
    blocks.start as usize * BLOCK_WORDS..blocks.end as usize * BLOCK_WORDS
}

impl LocationIndex {
    /// Gives what is free beyond need back to the system.
    pub(crate) fn shrink(&self) {
        self.write().shrink(false);
    }

    /// Gives all of it back, a part at a time, and leaves less than otherwise.
    pub(crate) fn shrink_all(&self) {
        let mut is_begun = true;
        while is_begun {
            is_begun = self.write().shrink(true);
        }
    }

    /// Waits until no other thread changes the index.
    pub(crate) fn write(&self) -> Writing<'_> {
        let writer = self.writer.lock();
        Writing {
            index: self,
            writer,
            path: Vec::new(),
            located: None,
            located_key: Vec::new(),
            found: None,
            freed: Vec::new(),
        }
    }
}

/// Packs the keys of a range into few leaves. `write` waits for the right to change the index, for a leaf at a time.
///
/// # Errors
/// Those of `write`. `Full` if the region has no room for two leaves; a part is packed then. `Corruption` if it is damaged.
pub(crate) fn pack<'a>(
    lower: &[u8],
    upper: Option<&[u8]>,
    mut write: impl FnMut() -> Result<Writing<'a>>,
) -> Result<()> {
    let mut at = Some(lower.to_vec());
    while let Some(key) = at.filter(|key| upper.is_none_or(|upper| **key < *upper)) {
        at = write()?.pack_at(&key)?;
    }
    Ok(())
}

/// Whether versions take the place of others with one store, which needs no room.
pub(crate) fn is_in_place(before: &[Version], versions: &[Version]) -> bool {
    match (before, versions) {
        ([before], [version]) => before.superseded.or(version.superseded).is_none(),
        _ => false,
    }
}

/// How many versions of a key the index can hold at least.
pub(crate) fn versions_max(key_bytes: usize) -> usize {
    (HEAP_WORDS / 2 / record_words(key_bytes, true)).min(SLOTS_MAX / 4)
}

impl Writing<'_> {
    /// Makes `location` the only version of a key. Returns the versions before.
    ///
    /// # Errors
    /// `Full` if the region has no room; nothing has changed then. `Corruption` if it is damaged.
    #[cfg(test)]
    pub(crate) fn put(&mut self, key: &[u8], location: Location) -> Result<Vec<Version>> {
        self.set(key, &[Version { location, superseded: None }])
    }

    /// Removes a key. Returns its versions.
    ///
    /// # Errors
    /// As [`Writing::put`].
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<Vec<Version>> {
        self.set(key, &[])
    }

    /// Replaces the versions of a key. They are ordered from the newest on and are at most [`versions_max`]. Returns
    /// the versions before.
    ///
    /// # Errors
    /// As [`Writing::put`].
    pub(crate) fn set(&mut self, key: &[u8], versions: &[Version]) -> Result<Vec<Version>> {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(versions.len() <= versions_max(key.len()).max(1), "too many versions of a key");
        let leaf = self.locate(key)?;
        // Whoever changes a key has mostly read it just before.
        let (slot, before) = match self.found.take() {
            Some(found) => found,
            None => self.sound(|this| versions_in(&this.node(leaf)?, key))?,
        };
        let is_removal = versions.iter().all(|version| before.contains(version));
        let is_in_place = is_in_place(&before, versions);
        if is_in_place {
            // It needs no block.
        } else if is_removal {
            self.require_room_to_remove()?;
        } else {
            self.require_room(key)?;
        }
        match (before.as_slice(), versions) {
            (before, versions) if before == versions => {}
            (_, [Version { location, .. }]) if is_in_place => {
                let record = self.sound(|this| this.node(leaf)?.record(slot))?;
                self.store_location(leaf, record.offset, *location);
            }
            ([], [version]) if self.has_room_in(leaf, key.len(), version) => {
                self.insert_in_place(leaf, slot, key, *version)?;
            }
            // The last record of a leaf goes with the leaf: there is no empty leaf between others, not even for a
            // moment.
            ([_], []) if self.writer.uses[leaf as usize].slots > 1 => {
                self.remove_in_place(leaf, slot)?;
                self.join_if_small(leaf)?;
            }
            _ => self.replace_versions(leaf, slot, before.len(), key, versions, is_removal)?,
        }
        self.writer.keys += u64::from(before.is_empty() && !versions.is_empty());
        self.writer.keys -= u64::from(!before.is_empty() && versions.is_empty());
        Ok(before)
    }

    /// All versions of a key, newest first.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn versions(&mut self, key: &[u8]) -> Result<Vec<Version>> {
        let leaf = self.locate(key)?;
        let found = match self.found.take() {
            Some(found) => found,
            None => self.sound(|this| versions_in(&this.node(leaf)?, key))?,
        };
        let versions = found.1.clone();
        self.found = Some(found);
        Ok(versions)
    }

    /// Makes all changes up to now durable.
    pub(crate) fn fence(&mut self) {
        pmem::fence(&*self.index.region);
        for block in self.freed.drain(..) {
            self.writer.free.give_back(block);
        }
    }

    /// A node that the writer changes. No other thread does.
    pub(super) fn node(&self, block: BlockNumber) -> Read<Node<'_>> {
        self.index.memory().node(block, (block, 0))
    }

    /// What `read` returns, with damage as an error.
    pub(super) fn sound<T>(&self, read: impl FnOnce(&Self) -> Read<T>) -> Result<T> {
        read(self).map_err(|damage| self.index.corruption(&damage))
    }

    /// The path leads to no leaf any more.
    pub(super) fn forget_located(&mut self) {
        self.located = None;
        self.found = None;
    }

    /// Finds the leaf of a key and remembers the way to it. Keys mostly come in order, and several of them for a leaf.
    pub(super) fn locate(&mut self, key: &[u8]) -> Result<BlockNumber> {
        if let Some(leaf) = self.located {
            if self.located_key == key {
                return Ok(leaf);
            }
            if *self.located_key < *key && self.sound(|this| this.is_before_next_leaf(key))? {
                self.note_located(leaf, key);
                #[cfg(debug_assertions)]
                self.assert_located(leaf, key);
                return Ok(leaf);
            }
        }
        self.forget_located();
        let leaf = self.descend_to(key)?;
        self.note_located(leaf, key);
        Ok(leaf)
    }

    fn note_located(&mut self, leaf: BlockNumber, key: &[u8]) {
        self.located = Some(leaf);
        self.located_key.clear();
        self.located_key.extend_from_slice(key);
        self.found = None;
    }

    /// Whether a key belongs before the leaf that follows the one that the path leads to.
    fn is_before_next_leaf(&self, key: &[u8]) -> Read<bool> {
        for &(block, slot) in self.path.iter().rev() {
            let node = self.node(block)?;
            if slot + 1 < node.count() {
                return Ok(node.compare(&node.record(slot + 1)?, key)?.is_gt());
            }
        }
        Ok(true)
    }

    #[cfg(debug_assertions)]
    fn assert_located(&mut self, leaf: BlockNumber, key: &[u8]) {
        let path = self.path.clone();
        if let Ok(there) = self.descend_to(key) {
            assert!(there == leaf && self.path == path, "the path does not lead to the key");
        }
        self.path = path;
    }

    fn descend_to(&mut self, key: &[u8]) -> Result<BlockNumber> {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let leaf = self.sound(|this| {
            let memory = this.index.memory();
            let mut node = memory.node(this.writer.root, (0, ROOT_WORD))?;
            let mut level = node.level()?;
            while level > 0 {
                let (slot, child) = descend(&node, key, Side::At, None)?;
                path.push((node.block, slot));
                let parent = node;
                node = memory.node(child, (parent.block, 0))?;
                if node.level()? != level - 1 {
                    return Err(node.damage(0, "the level of a node"));
                }
                level -= 1;
            }
            Ok(node.block)
        });
        self.path = path;
        leaf
    }

    /// There are blocks for a change, and then still for a removal: removals make room, so they have to be possible.
    ///
    /// # Errors
    /// `Full` if the region cannot grow.
    pub(crate) fn require_room(&mut self, key: &[u8]) -> Result<()> {
        let has_long_keys = self.has_long_keys_with(key);
        self.require_blocks(self.room_for(key.len(), has_long_keys))?;
        self.writer.has_long_keys = has_long_keys;
        Ok(())
    }

    /// Whether there is room for a change of a key without asking the system for more.
    pub(crate) fn has_room(&self, key: &[u8]) -> bool {
        let needed = self.room_for(key.len(), self.has_long_keys_with(key));
        self.writer.free.left() as usize >= needed
    }

    pub(super) fn has_long_keys_with(&self, key: &[u8]) -> bool {
        self.writer.has_long_keys || key_block_count(key.len()) > 0
    }

    /// The blocks for a change of a key of so many bytes, and for a removal.
    pub(super) fn room_for(&self, key_bytes: usize, has_long_keys: bool) -> usize {
        let height = self.writer.height;
        // Two leaves, two nodes on each level and a root, and the blocks of a long key.
        let mut needed = 2 * (height + 1) + 1 + key_block_count(key_bytes);
        if has_long_keys {
            // An inner node has a bound of each child.
            needed += (height + 1) * KEY_BYTES_MAX.div_ceil(KEY_BLOCK_BYTES);
        }
        needed + height + 1
    }

    /// Whether there are as many free blocks as for any change of a short key.
    pub(super) fn has_room_to_restructure(&self) -> bool {
        self.writer.free.left() as usize >= self.room_for(0, self.writer.has_long_keys)
    }

    /// There are blocks for a removal: a leaf in the place of two, and a node on each level. No node is split for it.
    fn require_room_to_remove(&mut self) -> Result<()> {
        self.require_blocks(self.writer.height + 1)
    }

    /// There are so many free blocks, or there are once the region has grown.
    pub(super) fn require_blocks(&mut self, needed: usize) -> Result<()> {
        let mut left = self.writer.free.left() as usize;
        while left < needed
            && let Some(blocks) = self.writer.free.first_away()
        {
            let short = (needed - left) as BlockNumber;
            let least = blocks.start..blocks.end.min(blocks.start + short);
            let blocks = match self.index.region.have_again(words_of(&blocks)) {
                Ok(()) => blocks,
                // There may be room for what is needed alone.
                Err(_) => self.index.region.have_again(words_of(&least)).map(|()| least)?,
            };
            self.writer.free.have_again(blocks);
            left = self.writer.free.left() as usize;
        }
        if left >= needed {
            return Ok(());
        }
        let count = self.index.memory().count() as usize + needed - left;
        self.index.region.grow(count * BLOCK_WORDS)?;
        self.writer.free.grow(self.index.memory().count());
        Ok(())
    }

    /// Gives what is free beyond need back to the system. Returns true if there may be more of it. `is_begun`: even if that
    /// is little.
    pub(super) fn shrink(&mut self, is_begun: bool) -> bool {
        // What the next change needs stays: an update on a full disk must not fail for want of it.
        let needed = match self.writer.keys {
            0 => 0,
            _ if self.writer.has_long_keys => self.room_for(KEY_BYTES_MAX, true) as u32,
            _ => self.room_for(0, false) as u32,
        };
        for at in 0..SHRINK_RANGES_MAX {
            let is_begun = is_begun || at > 0;
            let Some(blocks) = self.writer.free.surplus(needed + FREE_MIN, is_begun) else {
                return false;
            };
            // Who still reads a block that was replaced reads again.
            blocks.clone().for_each(|block| drop(self.index.lock(block)));
            if !self.index.region.give_back(words_of(&blocks)) {
                return false;
            }
            self.writer.free.send_away(blocks);
        }
        true
    }

    pub(super) fn note_use(&mut self, block: BlockNumber, use_of: BlockUse) {
        let Writer { uses, nodes, .. } = &mut *self.writer;
        if uses.len() <= block as usize {
            uses.resize(block as usize + 1, BlockUse::default());
        }
        let before = std::mem::replace(&mut uses[block as usize], use_of);
        nodes.change(before, use_of);
    }

    /// Gives back the block of a node that has been replaced.
    pub(super) fn give_back_node(&mut self, block: BlockNumber) {
        // Whoever reads the block notices: it may hold something else soon.
        drop(self.index.lock(block));
        self.writer.free.give_back(block);
        self.note_use(block, BlockUse::default());
    }

    fn has_room_in(&self, leaf: BlockNumber, key_bytes: usize, version: &Version) -> bool {
        let words = record_words(key_bytes, version.superseded.is_some());
        let use_of = self.writer.uses[leaf as usize];
        usize::from(use_of.end) + words <= BLOCK_WORDS && usize::from(use_of.slots) < SLOTS_MAX - 1
    }

    fn store_location(&mut self, leaf: BlockNumber, offset: usize, location: Location) {
        let word = leaf as usize * BLOCK_WORDS + offset;
        self.index.region.store(word, location.to_word());
        pmem::flush(&*self.index.region, word..word + 1);
    }

    /// Stores `words` from a word of a block on and begins to write them back.
    #[cfg_attr(test, track_caller)]
    pub(super) fn store(&self, block: BlockNumber, at: usize, words: &[u64]) {
        let start = block as usize * BLOCK_WORDS + at;
        for (word, value) in (start..).zip(words) {
            self.index.region.store(word, *value);
        }
        pmem::flush(&*self.index.region, start..start + words.len());
    }

    /// The records of a version, and the blocks of its key if it is long.
    pub(super) fn record_of(
        &mut self,
        words: &mut Vec<u64>,
        key: &[u8],
        version: Version,
        key_block: &mut Option<BlockNumber>,
    ) {
        if key.len() > INLINE_KEY_BYTES && key_block.is_none() {
            // From the last one on, since each names the next.
            let mut next = 0;
            for part in key[INLINE_KEY_BYTES..].chunks(KEY_BLOCK_BYTES).rev() {
                let block = self.take_block();
                self.store(block, 0, &key_block_words(block, next, part));
                next = block;
            }
            *key_block = Some(next);
        }
        push_record(words, version.location.to_word(), key, version.superseded, *key_block);
    }

    /// A free block. [`Writing::require_room`] has seen that there is one.
    pub(super) fn take_block(&mut self) -> BlockNumber {
        self.writer.free.take_any().unwrap_or_else(|| unreachable!("room was required"))
    }

    fn insert_in_place(
        &mut self,
        leaf: BlockNumber,
        at: usize,
        key: &[u8],
        version: Version,
    ) -> Result<()> {
        let mut words = Vec::new();
        self.record_of(&mut words, key, version, &mut None);
        let offset = usize::from(self.writer.uses[leaf as usize].end);
        self.store(leaf, offset, &words);
        // The record, and all earlier changes of the slots.
        pmem::fence(&*self.index.region);
        let slot = slot_of(offset, words[1]);
        let count = self.sound(|this| Ok(this.node(leaf)?.count()))?;
        let region = &*self.index.region;
        let start = leaf as usize * BLOCK_WORDS + SLOTS_START;
        let old: Vec<u64> = self.sound(|this| {
            let node = this.node(leaf)?;
            Ok((0..=count / SLOTS_PER_WORD).map(|word| node.word(SLOTS_START + word)).collect())
        })?;
        let first = at / SLOTS_PER_WORD;
        let guard = self.index.lock(leaf);
        for word in (first..old.len()).rev() {
            let shifted = if word > first {
                old[word] << 16 | old[word - 1] >> 48
            } else {
                let kept = (1u64 << (at % SLOTS_PER_WORD * 16)) - 1;
                let slot = u64::from(slot) << (at % SLOTS_PER_WORD * 16);
                old[word] & kept | slot | (old[word] & !kept) << 16
            };
            region.store(start + word, shifted);
            if word > first && word % LINE_WORDS == 0 {
                pmem::persist(region, start + word..start + word + 1);
            }
        }
        pmem::flush(region, start + first..start + first + 1);
        drop(guard);
        let BlockUse { end, live, slots } = self.writer.uses[leaf as usize];
        let words = words.len() as u16;
        self.note_use(leaf, BlockUse { end: end + words, live: live + words, slots: slots + 1 });
        Ok(())
    }

    fn remove_in_place(&mut self, leaf: BlockNumber, at: usize) -> Result<()> {
        let (record, key_blocks) = self.sound(|this| {
            let node = this.node(leaf)?;
            let record = node.record(at)?;
            Ok((record, node.key_blocks(&record)?))
        })?;
        self.shift_left(leaf, at)?;
        self.freed.extend(key_blocks);
        let BlockUse { end, live, slots } = self.writer.uses[leaf as usize];
        let live = live - record.words as u16;
        self.note_use(leaf, BlockUse { end, live, slots: slots - 1 });
        Ok(())
    }

    /// Removes the slot `at`.
    pub(super) fn shift_left(&mut self, leaf: BlockNumber, at: usize) -> Result<()> {
        let (count, old): (usize, Vec<u64>) = self.sound(|this| {
            let node = this.node(leaf)?;
            let words = node.count().div_ceil(SLOTS_PER_WORD);
            Ok((node.count(), (0..words).map(|word| node.word(SLOTS_START + word)).collect()))
        })?;
        let region = &*self.index.region;
        let start = leaf as usize * BLOCK_WORDS + SLOTS_START;
        let first = at / SLOTS_PER_WORD;
        let last = old.len() - 1;
        // The line behind the last slot counts: an earlier removal may just have emptied it.
        if first / LINE_WORDS != count / SLOTS_PER_WORD / LINE_WORDS {
            pmem::fence(region);
        }
        let guard = self.index.lock(leaf);
        for word in first..=last {
            let next = old.get(word + 1).map_or(0, |next| next << 48);
            let shifted = if word > first {
                old[word] >> 16 | next
            } else {
                let kept = (1u64 << (at % SLOTS_PER_WORD * 16)) - 1;
                old[word] & kept | (old[word] >> 16 | next) & !kept
            };
            region.store(start + word, shifted);
            if word % LINE_WORDS == LINE_WORDS - 1 && word < last {
                pmem::persist(region, start + word..start + word + 1);
            }
        }
        pmem::flush(region, start + last..start + last + 1);
        drop(guard);
        Ok(())
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.fence();
        self.index.counts.note(&self.writer, self.index.memory().count());
    }
}

/// The blocks that a key needs beside its record.
pub(super) fn key_block_count(key_bytes: usize) -> usize {
    key_bytes.saturating_sub(INLINE_KEY_BYTES).div_ceil(KEY_BLOCK_BYTES)
}

/// What a block holds, for the writer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockUse {
    /// The first word behind the last record.
    pub(super) end: u16,
    /// Words of records that a slot names.
    pub(super) live: u16,
    pub(super) slots: u16,
}

/// All nodes together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Nodes {
    pub(super) count: u64,
    /// As of a block.
    live: u64,
    slots: u64,
    /// Of each eighth, those of which so much is in use.
    pub(super) filled: [u64; EIGHTHS],
}

/// See [`Nodes::filled`].
pub(super) const EIGHTHS: usize = 8;

impl Nodes {
    fn change(&mut self, before: BlockUse, after: BlockUse) {
        let counts = |use_of: BlockUse| u64::from(use_of.end > 0);
        self.count = self.count + counts(after) - counts(before);
        self.live = self.live + u64::from(after.live) - u64::from(before.live);
        self.slots = self.slots + u64::from(after.slots) - u64::from(before.slots);
        self.filled[after.eighth()] += counts(after);
        self.filled[before.eighth()] -= counts(before);
    }

    /// How many there would be if they had one version of each of so many keys, and were packed; no more than there are.
    pub(super) fn packed_count(&self, keys: u64) -> u64 {
        // Each node but the root has a slot in its parent.
        let versions = self.slots.saturating_sub(self.count.saturating_sub(1)).max(1);
        let newest = |of: u64| {
            (u128::from(of) * u128::from(keys.min(versions)) / u128::from(versions)) as u64
        };
        let words = newest(self.live).div_ceil(PACKED_WORDS as u64);
        let slots = newest(self.slots).div_ceil(PACKED_SLOTS as u64);
        words.max(slots).clamp(1, self.count.max(1))
    }
}

impl BlockUse {
    /// How much of a node is in use: of its space, or its slots.
    fn eighth(self) -> usize {
        let (words, slots) = (usize::from(self.live), usize::from(self.slots));
        (words * EIGHTHS / HEAP_WORDS).max(slots * EIGHTHS / SLOTS_MAX).min(EIGHTHS - 1)
    }

    /// What a block holds.
    pub(super) fn of(node: &Node<'_>) -> Read<BlockUse> {
        let mut use_of = BlockUse { end: HEAP_START as u16, ..BlockUse::default() };
        for slot in 0..node.count() {
            let record = node.record(slot)?;
            use_of.end = use_of.end.max((record.offset + record.words) as u16);
            use_of.live += record.words as u16;
            use_of.slots += 1;
        }
        Ok(use_of)
    }
}
