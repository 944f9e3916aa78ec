//! Filling an empty index with keys in their order: leaf after leaf, without a search and a fence for each key.
//!
//! Nobody reads the index meanwhile, and nobody trusts what is in the region before its owner says so. So the order of the
//! stores means nothing; all are durable once [`Writing::end_load`] and the next fence are done.
//!
//! Invariants:
//! 1. Room for a key is there before anything of it is written: what has been loaded can be finished at any time.

use super::node::{BlockNumber, NEXT_WORD, block_word, record_words};
use super::open::Level;
use super::restructure::Records;
use super::write::{Writing, versions_max};
use super::{FIRST_WORD, Version};
use crate::base::error::Result;
use crate::base::limits::KEY_BYTES_MAX;
use crate::pmem;

/// How often the room for a change of one key is left, if there are long keys: each level needs the blocks of a bound when a
/// leaf is written that fills all levels, when the last leaf is, and at the end.
const LONG_KEY_ROOM_TIMES: usize = 3;

/// How far an index has been filled.
#[derive(Default)]
pub(crate) struct Load {
    /// Of the leaf that is not full.
    records: Records,
    first: Option<BlockNumber>,
    last: Option<BlockNumber>,
    leaves: u64,
    levels: Vec<Level>,
    keys: u64,
}

impl Writing<'_> {
    /// Adds a key, which is greater than all before, with its versions, newest first, which are at most [`versions_max`].
    /// Readers do not see it before [`Writing::end_load`].
    ///
    /// # Errors
    /// `Full` if the region has no room; what has been loaded before can be finished. `Corruption` if it is damaged.
    pub(crate) fn load(&mut self, load: &mut Load, key: &[u8], versions: &[Version]) -> Result<()> {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        assert!(versions.len() <= versions_max(key.len()).max(1), "too many versions of a key");
        let has_long_keys = self.has_long_keys_with(key);
        // What is left after this key is enough for the leaf, and for what each level above has not written.
        let times = if has_long_keys { LONG_KEY_ROOM_TIMES } else { 1 };
        self.require_blocks(times * self.room_for(key.len(), has_long_keys))?;
        self.writer.has_long_keys = has_long_keys;
        let words = |version: &Version| record_words(key.len(), version.superseded.is_some());
        let words: usize = versions.iter().map(words).sum();
        if load.records.would_overfill(words, versions.len()) {
            self.end_leaf(load)?;
        }
        let mut key_block = None;
        for (position, version) in versions.iter().enumerate() {
            self.push_version(&mut load.records, key, *version, &mut key_block, position > 0);
        }
        load.keys += 1;
        Ok(())
    }

    /// Writes the leaf that is being filled.
    fn end_leaf(&mut self, load: &mut Load) -> Result<()> {
        let block = self.write_node(0, &std::mem::take(&mut load.records), 0)?;
        let bound = match load.last.replace(block) {
            None => Vec::new(),
            Some(before) => {
                self.store(before, NEXT_WORD, &[block_word(block)]);
                self.bound_between(before, block)?
            }
        };
        load.first.get_or_insert(block);
        load.leaves += 1;
        self.append_child(&mut load.levels, 0, &bound, block)?;
        // As much room is left as the inner nodes need that are not written yet.
        self.writer.height = load.levels.len() + 1;
        Ok(())
    }

    /// Shows readers what has been loaded.
    ///
    /// # Errors
    /// `Corruption` if the region is damaged.
    pub(crate) fn end_load(&mut self, mut load: Load) -> Result<()> {
        if !load.records.is_empty() {
            self.end_leaf(&mut load)?;
        }
        let Some(first) = load.first else { return Ok(()) };
        let before = self.sound(|this| this.index.memory().header_block(FIRST_WORD))?;
        match load.leaves {
            1 => self.set_root(first)?,
            _ => self.finish_levels(load.levels)?,
        }
        let region = &*self.index.region;
        region.store(FIRST_WORD, block_word(first));
        pmem::flush(region, FIRST_WORD..FIRST_WORD + 1);
        self.forget_located();
        self.give_back_node(before);
        self.writer.keys += load.keys;
        Ok(())
    }
}
