//! Replacing nodes: what does not fit in place, splits, and joins of neighbours.
//!
//! The successors of a leaf are written to free blocks and made persistent. One store then replaces the leaf in the
//! list of leaves: that of the leaf before it, or of the header. When that store is persistent, readers are led to
//! the successors and the replaced blocks are free.
//!
//! Inner nodes are replaced alike, but are not made persistent: opening an index that was not closed rebuilds them.

use super::location::Location;
use super::node::{
    BLOCK_WORDS, BlockNumber, HEAP_START, HEAP_WORDS, INLINE_KEY_BYTES, NEXT_WORD, Node, Read,
    SLOTS_MAX, SLOTS_PER_WORD, SLOTS_START, block_word, header_word, push_record, record_words,
    slot_of,
};
use super::write::{BlockUse, PACKED_SLOTS, PACKED_WORDS, Writing};
use super::{FIRST_WORD, LocationIndex, Version, key_of};
use crate::base::error::Result;
use crate::base::version_lock::VersionGuard;
use crate::pmem;

/// A leaf that is rewritten is split if it has more words of records than this.
const WORDS_AFTER_REWRITE_MAX: usize = HEAP_WORDS * 3 / 4;
const SLOTS_AFTER_REWRITE_MAX: usize = SLOTS_MAX * 3 / 4;
/// A leaf with fewer words is joined with a neighbour, if they make one that is not split again soon.
const WORDS_MIN: usize = HEAP_WORDS / 2;
const WORDS_AFTER_JOIN_MAX: usize = HEAP_WORDS * 5 / 8;
const SLOTS_AFTER_JOIN_MAX: usize = SLOTS_MAX * 5 / 8;

/// Records in order, to be written to a block.
#[derive(Default)]
pub(super) struct Records {
    words: Vec<u64>,
    /// The end of each record in `words`.
    ends: Vec<usize>,
    /// Records that have the key of the one before.
    same_key: Vec<bool>,
}

impl Records {
    fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn start(&self, record: usize) -> usize {
        if record == 0 { 0 } else { self.ends[record - 1] }
    }

    /// Appends the records of `slots` as they are.
    fn copy(&mut self, node: &Node<'_>, slots: std::ops::Range<usize>) -> Read<()> {
        for slot in slots {
            let record = node.record(slot)?;
            let same_key = match slot.checked_sub(1) {
                Some(before) => node.same_key(&node.record(before)?, &record),
                None => false,
            };
            self.words.extend((record.offset..).take(record.words).map(|word| node.word(word)));
            self.note(same_key);
        }
        Ok(())
    }

    /// Notes that the words of a record have been appended.
    fn note(&mut self, same_key: bool) {
        self.ends.push(self.words.len());
        self.same_key.push(same_key);
    }

    /// Appends a record of an inner node.
    pub(super) fn push_child(
        &mut self,
        key: &[u8],
        child: BlockNumber,
        key_block: Option<BlockNumber>,
    ) {
        push_record(&mut self.words, block_word(child), key, None, key_block);
        self.note(false);
    }

    /// Whether there is room for a record of so many words.
    pub(super) fn has_room(&self, words: usize) -> bool {
        fits(self.words.len() + words, self.len() + 1)
    }

    /// Whether records of so many words more are too much for a leaf that is packed. One key always has room.
    pub(super) fn would_overfill(&self, words: usize, records: usize) -> bool {
        let is_packed =
            self.words.len() + words <= PACKED_WORDS && self.len() + records <= PACKED_SLOTS;
        !self.is_empty() && !is_packed
    }

    /// How many of the records a leaf is packed with.
    fn packed(&self) -> usize {
        let fits = |count: &usize| {
            let words = self.ends[*count - 1];
            words <= PACKED_WORDS && *count <= PACKED_SLOTS
        };
        let may_end = |count: &usize| *count == self.len() || !self.same_key[*count];
        (1..=self.len()).take_while(fits).filter(may_end).last().unwrap_or(0)
    }

    /// Where to split: the first record of the second half. `None`: one block is enough.
    fn split(&self, appended_last: bool) -> Option<usize> {
        if self.words.len() <= WORDS_AFTER_REWRITE_MAX && self.len() <= SLOTS_AFTER_REWRITE_MAX {
            return None;
        }
        let may_split = |at: &usize| !self.same_key[*at];
        // Who appends finds the last leaf full but for this record, and goes on in a new one.
        let last = self.len() - 1;
        if appended_last && may_split(&last) && fits(self.start(last), last) {
            return Some(last);
        }
        let distance = |at: &usize| self.start(*at).abs_diff(self.words.len() / 2);
        (1..self.len()).filter(may_split).min_by_key(distance)
    }
}

fn fits(words: usize, slots: usize) -> bool {
    words <= HEAP_WORDS && slots < SLOTS_MAX
}

impl LocationIndex {
    /// Excludes readers of a block while it changes.
    pub(super) fn lock(&self, block: BlockNumber) -> VersionGuard<'_> {
        let lock = self.lock_of(block);
        loop {
            // Only the writer locks, so this succeeds at once.
            if let Some(guard) = lock.try_lock(lock.read()) {
                return guard;
            }
        }
    }
}

impl Writing<'_> {
    /// Replaces `before` versions of a key, from `slot` on, by `versions`. If these are some of those (`is_removal`),
    /// the records still fit one leaf, and none is split for that.
    pub(super) fn replace_versions(
        &mut self,
        leaf: BlockNumber,
        slot: usize,
        before: usize,
        key: &[u8],
        versions: &[Version],
        is_removal: bool,
    ) -> Result<()> {
        let mut records = Records::default();
        let (count, key_blocks) = self.sound(|this| {
            let node = this.node(leaf)?;
            records.copy(&node, 0..slot)?;
            let key_blocks = match before {
                0 => Vec::new(),
                _ => node.key_blocks(&node.record(slot)?)?,
            };
            Ok((node.count(), key_blocks))
        })?;
        // All versions of a key share the blocks of a long key.
        let mut key_block = key_blocks.first().copied();
        for (position, version) in versions.iter().enumerate() {
            self.push_version(&mut records, key, *version, &mut key_block, position > 0);
        }
        self.sound(|this| records.copy(&this.node(leaf)?, slot + before..count))?;
        if versions.is_empty() {
            self.freed.extend(key_blocks);
        }
        if records.is_empty() && self.is_only_leaf(leaf)? {
            return self.replace_leaves(leaf, leaf, vec![records]);
        }
        let appended =
            slot + before == count && self.sound(|this| this.node(leaf)?.next())?.is_none();
        let split = if is_removal { None } else { records.split(appended) };
        let parts = match split {
            None if records.is_empty() => Vec::new(),
            None => vec![records],
            Some(at) => self.split_records(records, at),
        };
        let is_small = matches!(&parts[..], [part] if part.words.len() < WORDS_MIN);
        self.replace_leaves(leaf, leaf, parts)?;
        if is_small {
            let leaf = self.locate(key)?;
            self.join_if_small(leaf)?;
        }
        Ok(())
    }

    /// Appends a version of a key. `same_key`: the record before is of the same key.
    pub(super) fn push_version(
        &mut self,
        records: &mut Records,
        key: &[u8],
        version: Version,
        key_block: &mut Option<BlockNumber>,
        same_key: bool,
    ) {
        let mut words = std::mem::take(&mut records.words);
        self.record_of(&mut words, key, version, key_block);
        records.words = words;
        records.note(same_key);
    }

    fn split_records(&self, records: Records, at: usize) -> Vec<Records> {
        let middle = records.start(at);
        let (left, right) = records.words.split_at(middle);
        let ends: Vec<usize> = records.ends[at..].iter().map(|end| end - middle).collect();
        let parts = vec![
            Records {
                words: left.to_vec(),
                ends: records.ends[..at].to_vec(),
                same_key: records.same_key[..at].to_vec(),
            },
            Records { words: right.to_vec(), ends, same_key: records.same_key[at..].to_vec() },
        ];
        for part in &parts {
            assert!(fits(part.words.len(), part.len()), "a half of a node does not fit");
        }
        parts
    }

    fn is_only_leaf(&self, leaf: BlockNumber) -> Result<bool> {
        let next = self.sound(|this| this.node(leaf)?.next())?;
        Ok(next.is_none() && self.path.iter().all(|(_, slot)| *slot == 0))
    }

    /// Joins a leaf that is less than half full with a neighbour below the same parent, and removes an empty one.
    pub(super) fn join_if_small(&mut self, leaf: BlockNumber) -> Result<()> {
        let live = usize::from(self.writer.uses[leaf as usize].live);
        if live == 0 {
            if self.is_only_leaf(leaf)? {
                return Ok(());
            }
            return self.replace_leaves(leaf, leaf, Vec::new());
        }
        let Some(&(parent, slot)) = self.path.last() else { return Ok(()) };
        // Where there is no room, it can wait.
        if live >= WORDS_MIN || !self.has_room_to_restructure() {
            return Ok(());
        }
        let neighbours = self.sound(|this| {
            let node = this.node(parent)?;
            let left = slot.checked_sub(1).map(|left| (left, leaf));
            let right = (slot + 1 < node.count()).then_some((slot + 1, leaf));
            let mut found = Vec::new();
            for (neighbour, _) in [right, left].into_iter().flatten() {
                found.push((neighbour, node.child(&node.record(neighbour)?)?));
            }
            Ok(found)
        })?;
        for (neighbour_slot, neighbour) in neighbours {
            let use_of = self.writer.uses[neighbour as usize];
            let own = self.writer.uses[leaf as usize];
            let words = live + usize::from(use_of.live);
            let slots = usize::from(own.slots) + usize::from(use_of.slots);
            if words > WORDS_AFTER_JOIN_MAX || slots > SLOTS_AFTER_JOIN_MAX {
                continue;
            }
            let (first, last) =
                if neighbour_slot < slot { (neighbour, leaf) } else { (leaf, neighbour) };
            let mut records = Records::default();
            self.sound(|this| {
                for block in [first, last] {
                    let node = this.node(block)?;
                    records.copy(&node, 0..node.count())?;
                }
                Ok(())
            })?;
            if let Some((_, slot)) = self.path.last_mut() {
                *slot = neighbour_slot.min(*slot);
            }
            return self.replace_leaves(first, last, vec![records]);
        }
        Ok(())
    }

    /// Moves as much as fits from the next leaf below the same parent into the leaf of a key. Returns a key of the leaf to
    /// go on with; none behind the last leaf.
    ///
    /// # Errors
    /// Those of [`super::write::pack`].
    pub(super) fn pack_at(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let leaf = self.locate(key)?;
        let Some(next) = self.sound(|this| this.node(leaf)?.next())? else { return Ok(None) };
        let behind = self.sound(|this| key_of(&this.node(next)?, 0))?;
        let has_same_parent = match self.path.last() {
            Some(&(parent, slot)) => {
                self.sound(|this| Ok(slot + 1 < this.node(parent)?.count()))?
            }
            None => false,
        };
        if !has_same_parent {
            return Ok(Some(behind));
        }
        let mut records = Records::default();
        let own = self.sound(|this| {
            let (first, second) = (this.node(leaf)?, this.node(next)?);
            records.copy(&first, 0..first.count())?;
            records.copy(&second, 0..second.count())?;
            Ok(first.count())
        })?;
        let at = records.packed();
        if at <= own {
            return Ok(Some(behind));
        }
        self.require_room(&[])?;
        let is_one = at == records.len();
        let go_on = match is_one {
            true => key.to_vec(),
            false => self.sound(|this| key_of(&this.node(next)?, at - own))?,
        };
        let parts = if is_one { vec![records] } else { self.split_records(records, at) };
        self.replace_leaves(leaf, next, parts)?;
        Ok(Some(go_on))
    }

    /// Replaces the leaves from `first` to `last`, which are one or two neighbours, by leaves with these records. The
    /// path leads to the first of them.
    fn replace_leaves(
        &mut self,
        first: BlockNumber,
        last: BlockNumber,
        parts: Vec<Records>,
    ) -> Result<()> {
        self.forget_located();
        let before = self.leaf_before()?;
        let mut next = self.sound(|this| this.node(last)?.next())?.unwrap_or(0);
        let mut children = Vec::new();
        for records in parts.iter().rev() {
            let block = self.write_node(0, records, next)?;
            children.insert(0, block);
            next = block;
        }
        let region = &*self.index.region;
        // The new leaves, and all earlier changes of the old ones.
        pmem::fence(region);
        let word = match before {
            Some(before) => before as usize * BLOCK_WORDS + NEXT_WORD,
            None => FIRST_WORD,
        };
        region.store(word, block_word(next));
        pmem::persist(region, word..word + 1);
        let removed = if first == last { vec![first] } else { vec![first, last] };
        self.replace_children(0, removed.len(), &children)?;
        removed.into_iter().for_each(|block| self.give_back_node(block));
        Ok(())
    }

    /// The leaf before the one that the path leads to.
    fn leaf_before(&self) -> Result<Option<BlockNumber>> {
        let Some(&(inner, slot)) = self.path.iter().rev().find(|(_, slot)| *slot > 0) else {
            return Ok(None);
        };
        self.sound(|this| {
            let mut node = this.node(inner)?;
            let mut slot = slot - 1;
            loop {
                let level = node.level()?;
                let child = this.node(node.child(&node.record(slot)?)?)?;
                if child.level()? + 1 != level {
                    return Err(child.damage(0, "the level of a node"));
                }
                if level == 1 {
                    return Ok(Some(child.block));
                }
                node = child;
                slot = node
                    .count()
                    .checked_sub(1)
                    .ok_or_else(|| node.damage(SLOTS_START, "an inner node without children"))?;
            }
        })
    }

    /// Writes a node to a free block. A leaf is flushed.
    pub(super) fn write_node(
        &mut self,
        level: u8,
        records: &Records,
        next: BlockNumber,
    ) -> Result<BlockNumber> {
        assert!(fits(records.words.len(), records.len()), "the records of a node do not fit");
        let block = self.take_block();
        let mut words = vec![0; HEAP_START];
        words[0] = header_word(block, level);
        words[NEXT_WORD] = block_word(next);
        for record in 0..records.len() {
            let start = records.start(record);
            let slot = u64::from(slot_of(HEAP_START + start, records.words[start + 1]));
            words[SLOTS_START + record / SLOTS_PER_WORD] |= slot << (record % SLOTS_PER_WORD * 16);
        }
        words.extend_from_slice(&records.words);
        let use_of = BlockUse {
            end: words.len() as u16,
            live: records.words.len() as u16,
            slots: records.len() as u16,
        };
        self.note_use(block, use_of);
        if level == 0 {
            self.store(block, 0, &words);
        } else {
            let start = block as usize * BLOCK_WORDS;
            for (word, value) in (start..).zip(words) {
                self.index.region.store(word, value);
            }
        }
        Ok(block)
    }

    /// In the parent that is `up` nodes above the leaf's parent: replaces `removed` children, from the path's slot on,
    /// by `children`.
    fn replace_children(
        &mut self,
        up: usize,
        removed: usize,
        children: &[BlockNumber],
    ) -> Result<()> {
        let Some(depth) = self.path.len().checked_sub(up + 1) else {
            return self.replace_root(up as u8, children);
        };
        let (parent, slot) = self.path[depth];
        let region = &*self.index.region;
        if let ([child], 1) = (children, removed) {
            let record = self.sound(|this| this.node(parent)?.record(slot))?;
            let guard = self.index.lock(parent);
            region.store(parent as usize * BLOCK_WORDS + record.offset, block_word(*child));
            drop(guard);
            return Ok(());
        }
        let mut records = Records::default();
        let mut freed = Vec::new();
        let count = self.sound(|this| {
            let node = this.node(parent)?;
            records.copy(&node, 0..slot)?;
            for slot in slot + usize::from(!children.is_empty())..slot + removed {
                freed.extend(node.key_blocks(&node.record(slot)?)?);
            }
            Ok(node.count())
        })?;
        for (position, child) in children.iter().enumerate() {
            if position == 0 {
                // The bound below it stays.
                self.sound(|this| {
                    let node = this.node(parent)?;
                    records.copy(&node, slot..slot + 1)
                })?;
                let at = records.start(records.len() - 1);
                records.words[at] = block_word(*child);
            } else {
                let key = self.bound_between(children[position - 1], *child)?;
                let key_block = self.key_blocks_of(&key);
                records.push_child(&key, *child, key_block);
            }
        }
        self.sound(|this| records.copy(&this.node(parent)?, slot + removed..count))?;
        let mut joined = None;
        // A node that loses a child is not split: a removal has room for one node on each level.
        let split = if children.len() < removed { None } else { records.split(false) };
        let parts = match split {
            None if records.is_empty() => Vec::new(),
            None => {
                joined = self.join_with_next(depth, &mut records)?;
                vec![records]
            }
            Some(at) => self.split_records(records, at),
        };
        let level = up as u8 + 1;
        let mut replacing = Vec::new();
        for records in &parts {
            replacing.push(self.write_node(level, records, 0)?);
        }
        self.replace_children(up + 1, 1 + usize::from(joined.is_some()), &replacing)?;
        self.give_back_node(parent);
        joined.into_iter().for_each(|next| self.give_back_node(next));
        self.freed.extend(freed);
        Ok(())
    }

    /// Adds the records of the next inner node below the same parent to those of the node at this depth of the path, if
    /// they are few. Returns that next node.
    fn join_with_next(
        &mut self,
        depth: usize,
        records: &mut Records,
    ) -> Result<Option<BlockNumber>> {
        let Some(&(parent, slot)) = depth.checked_sub(1).and_then(|up| self.path.get(up)) else {
            return Ok(None);
        };
        if records.words.len() >= WORDS_MIN {
            return Ok(None);
        }
        let next = self.sound(|this| {
            let node = this.node(parent)?;
            if slot + 1 >= node.count() {
                return Ok(None);
            }
            Ok(Some((node.child(&node.record(slot + 1)?)?, key_of(&node, slot + 1)?)))
        })?;
        let Some((next, bound)) = next else { return Ok(None) };
        if bound.len() > INLINE_KEY_BYTES {
            // The blocks of its old records are free only after the next fence, when others have been taken.
            return Ok(None);
        }
        let use_of = self.writer.uses[next as usize];
        let words =
            records.words.len() + usize::from(use_of.live) + record_words(bound.len(), false);
        let slots = records.len() + usize::from(use_of.slots);
        if words > WORDS_AFTER_JOIN_MAX || slots > SLOTS_AFTER_JOIN_MAX {
            return Ok(None);
        }
        let (child, key_blocks) = self.sound(|this| {
            let node = this.node(next)?;
            let first = node.record(0)?;
            Ok((node.child(&first)?, node.key_blocks(&first)?))
        })?;
        // Its first child is responsible from the bound of the node on, not only from its own.
        records.push_child(&bound, child, None);
        self.sound(|this| {
            let node = this.node(next)?;
            records.copy(&node, 1..node.count())
        })?;
        self.freed.extend(key_blocks);
        Ok(Some(next))
    }

    /// The bound between two neighbouring nodes: of leaves, the shortest one.
    pub(super) fn bound_between(&self, left: BlockNumber, right: BlockNumber) -> Result<Vec<u8>> {
        self.sound(|this| {
            let (left, right) = (this.node(left)?, this.node(right)?);
            let mut bound = key_of(&right, 0)?;
            if let (0, Some(last)) = (right.level()?, left.count().checked_sub(1)) {
                let last = key_of(&left, last)?;
                let common = bound.iter().zip(&last).take_while(|(a, b)| a == b).count();
                bound.truncate(common + 1);
            }
            Ok(bound)
        })
    }

    /// Key blocks of a long key for a record of an inner node.
    pub(super) fn key_blocks_of(&mut self, key: &[u8]) -> Option<BlockNumber> {
        let mut key_block = None;
        if key.len() > INLINE_KEY_BYTES {
            let none = Location { table: 0, leaf: None, is_operand: false };
            let version = Version { location: none, superseded: None };
            self.record_of(&mut Vec::new(), key, version, &mut key_block);
        }
        key_block
    }

    /// `children` replace the root, at `level`.
    fn replace_root(&mut self, level: u8, children: &[BlockNumber]) -> Result<()> {
        let mut root = match children {
            [root] => *root,
            _ => {
                let mut records = Records::default();
                for (position, child) in children.iter().enumerate() {
                    let key = match position.checked_sub(1) {
                        // The first child is responsible for all smaller keys, whatever its bound.
                        None => Vec::new(),
                        Some(before) => self.bound_between(children[before], *child)?,
                    };
                    let key_block = self.key_blocks_of(&key);
                    records.push_child(&key, *child, key_block);
                }
                self.write_node(level + 1, &records, 0)?
            }
        };
        let mut replaced = Vec::new();
        // A root with one child is not needed.
        loop {
            let only = self.sound(|this| {
                let node = this.node(root)?;
                if node.level()? == 0 || node.count() > 1 {
                    return Ok(None);
                }
                let record = node.record(0)?;
                Ok(Some((node.child(&record)?, node.key_blocks(&record)?)))
            })?;
            let Some((child, key_blocks)) = only else { break };
            replaced.push(root);
            self.freed.extend(key_blocks);
            root = child;
        }
        self.set_root(root)?;
        replaced.into_iter().for_each(|block| self.give_back_node(block));
        Ok(())
    }
}
