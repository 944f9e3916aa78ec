//! The memory limits of memtables and caches, and the freezes when all memtables together exceed their share.
//!
//! A full memtable is frozen. With many keyspaces none may ever be full. So a writer that finds all memtables together
//! too large freezes the largest of any keyspace: these make the largest tables.
//!
//! Invariants:
//! 1. A writer waits only while memtables are on their way into trees, and never for those of keyspaces whose flushes
//!    fail: such a failure is returned to the writers of its own keyspace. (It may also wait for readers: `kept`.)
//! 2. One thread at a time chooses what is frozen, so that one excess of memory causes one freeze.

use std::cmp::Reverse;
use std::sync::Arc;

use super::operation::Operation;
use super::state::KeyspaceState;
use super::store::{Store, WAIT_MAX};
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::tree::MappedIndex;

/// Samples of keys should not use more than this part of the budget and these bytes.
const SAMPLES_PART: u64 = 32;
/// When trees have got smaller by this part of the budget, pages get that. Each time the cache is locked, and evicts pages
/// if something else has grown meanwhile.
const SMALLER_PART: u64 = 32;
const SAMPLES_BYTES_MIN: u64 = 1 << 20;
/// When an index has grown by this part of the budget, memory is divided anew.
const INDEX_GROWTH_PART: u64 = 32;

impl Store {
    /// Returns true if all memtables together exceed their share, or will exceed what is left of it with a batch that needs
    /// so much.
    #[inline]
    pub(super) fn is_pressed(&self, held: u64) -> bool {
        let used = self.pool.bytes_in_use() as u64;
        self.pool.bytes_active() as u64 > self.sizes.active_bytes_max
            || used > self.memtables_limit()
            || self.rest.is_exceeded(used + held)
    }

    /// Freezes the largest memtables anywhere, and waits until all of them fit their share again.
    #[cold]
    pub(super) fn relieve_pressure<'a, I>(&self, operations: &impl Fn() -> I) -> Result<()>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        self.want_memory_back();
        let mut waited_from = None;
        let mut tried_again = false;
        loop {
            let ended = self.executor.ended();
            self.check_writable()?;
            if self.pool.bytes_active() as u64 > self.sizes.active_bytes_max
                && let Some(_alone) = self.pressure.try_lock()
            {
                self.freeze_largest(operations);
            }
            if self.pool.bytes_in_use() as u64 <= self.memtables_limit() {
                break;
            }
            // Nobody waits here for memory that is not being freed: readers may keep it, or its keyspace was dropped.
            if !self.all_keyspaces().iter().any(|keyspace| keyspace.is_flushing()) {
                self.look_at_kept();
                break;
            }
            let failure = operations().find_map(|operation| operation.keyspace.failure_to_flush());
            if let Some(error) = failure {
                if tried_again || !self.executor.is_stepped() {
                    return Err(error);
                }
                tried_again = true;
                self.clear_backoff();
            }
            let is_failing = |keyspace: &Arc<KeyspaceState>| {
                keyspace.is_flushing() && keyspace.flush_failure.lock().is_none()
            };
            if !self.all_keyspaces().iter().any(is_failing) {
                // Other keyspaces' memtables cannot be flushed. Their writers are refused, this one's continue.
                break;
            }
            waited_from.get_or_insert_with(|| self.clock.nanos());
            self.executor.notify();
            if !self.executor.wait(ended, WAIT_MAX) {
                break;
            }
        }
        if let Some(from) = waited_from {
            self.throttle.record(self.clock.nanos().saturating_sub(from));
        }
        Ok(())
    }

    /// Freezes the largest memtables, together an eighth of the share of active ones: one barrier for several, and the
    /// largest possible tables.
    fn freeze_largest<'a, I>(&self, operations: &impl Fn() -> I)
    where
        I: Iterator<Item = Operation<'a>>,
    {
        let mut largest: Vec<(u64, Arc<KeyspaceState>)> = Vec::new();
        for keyspace in self.all_keyspaces() {
            let read = keyspace.read.load();
            let can_freeze = read.frozen.len() < self.sizes.frozen_max
                && !read.active.memtable.is_empty()
                && keyspace.flush_failure.lock().is_none();
            if planted(Bug::PressureFreezesOwn)
                && !operations().any(|operation| Arc::ptr_eq(operation.keyspace, &keyspace))
            {
                continue;
            }
            let bytes = read.active.bytes();
            drop(read);
            if can_freeze {
                largest.push((bytes, keyspace));
            }
        }
        largest.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut wanted = (self.sizes.active_bytes_max / 8) as i64;
        let chosen: Vec<Arc<KeyspaceState>> = largest
            .into_iter()
            .take_while(|(bytes, _)| {
                let is_wanted = wanted > 0;
                wanted -= *bytes as i64;
                is_wanted
            })
            .map(|(_, keyspace)| keyspace)
            .collect();
        if !chosen.is_empty() {
            self.freeze(&chosen, |_| true);
        }
    }

    /// Notes that a tree uses `bytes` less memory than before. Once enough has been noted, the page cache gets it.
    pub(super) fn note_smaller_tree(&self, bytes: u64) {
        let worth = self.sizes.memory_budget / SMALLER_PART;
        if bytes > 0
            && self.smaller_trees_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= worth
        {
            self.smaller_trees_bytes.store(0, Ordering::Relaxed);
            self.share_memory();
        }
    }

    /// Gives the page cache the memory that memtables and trees do not need. Memtables keep what they have once used, for
    /// the next burst of writes, until the store rests (`rest`).
    pub(crate) fn share_memory(&self) {
        self.divide_memory();
        self.trim_indexes();
    }

    /// The same for a caller that takes nothing out of memory himself, as that takes long: somebody else does so soon.
    pub(crate) fn divide_memory(&self) {
        self.share_memory_while(|| ());
    }

    /// The same; calls `meanwhile` between computing the cache's share and applying it.
    pub(crate) fn share_memory_while(&self, meanwhile: impl FnOnce()) {
        let mut share = self.cache_share.lock();
        let (spare, step) = match self.rest.is_lent() {
            true => (self.lent_step_bytes() * 2, self.lent_step_bytes()),
            false => (self.sizes.memtable_bytes * 2, self.sizes.memtable_bytes.max(1 << 20)),
        };
        let kept = self.kept.provided_bytes();
        let used = (self.pool.bytes_in_use() as u64).saturating_sub(kept);
        let taken = used + self.pool.bytes_retained() as u64 + spare;
        let memtables = taken.min(self.sizes.memtables_bytes_max).next_multiple_of(step);
        let before = self.memtables_share.fetch_max(memtables, Ordering::Relaxed);
        let (jobs, memtables) = (self.jobs_bytes(), memtables.max(before));
        let iterators = self.open_iterators.bytes_to_provide();
        let readers = iterators + self.transaction_memory.bytes_to_provide();
        let trees = self.trees_bytes(jobs + memtables + readers + kept) + readers;
        let trees = trees.next_multiple_of((self.sizes.memory_budget / 64).max(64 << 10)) + kept;
        let bytes = self.sizes.cache_bytes(jobs, memtables, trees);
        let stays = planted(Bug::LentMemoryStays) && bytes < *share;
        if *share != bytes && !stays {
            meanwhile();
            *share = bytes;
            self.cache.set_capacity(bytes as usize);
        }
    }

    /// Notes that the index of a keyspace has so many bytes. If all have grown by much since memory was divided, it is divided
    /// anew.
    pub(super) fn note_index(&self, keyspace: &KeyspaceState, index: MappedIndex) {
        let noted = &keyspace.counters.noted_index_bytes;
        let before = noted.fetch_max(index.bytes, Ordering::Relaxed);
        let grown = index.bytes.saturating_sub(before);
        let worth = self.sizes.memory_budget / INDEX_GROWTH_PART;
        if grown > 0
            && self.grown_indexes_bytes.fetch_add(grown, Ordering::Relaxed) + grown >= worth
        {
            self.share_memory();
        }
    }

    /// Takes what indexes have beyond what they may have out of memory.
    pub(super) fn trim_indexes(&self) {
        self.all_keyspaces().iter().for_each(|keyspace| keyspace.tree.trim_index());
    }

    /// Memory used by trees, while `others` is used beside them and the page cache. If their samples exceed their part, fewer
    /// keys are sampled from now on: an eighth for twice the part. (Tables keep their samples until they are merged.) Also
    /// says how much of each mapped index may be in memory.
    fn trees_bytes(&self, others: u64) -> u64 {
        let keyspaces = self.keyspaces.read();
        let (mut bytes, mut samples, mut indexes) = (0, 0, Vec::new());
        for keyspace in keyspaces.values() {
            let state = keyspace.tree.state();
            bytes += state.memory_bytes - state.mapped_index.memory_bytes();
            bytes += keyspace.gaps.memory_bytes() + keyspace.range_deletes_bytes();
            samples += state.sample_bytes;
            if state.mapped_index.bytes > 0 {
                indexes.push((keyspace, state.mapped_index));
            }
        }
        let sizes: Vec<u64> = indexes.iter().map(|(_, index)| index.bytes).collect();
        let each_max = fair_share(sizes, self.sizes.indexes_bytes_max(others + bytes));
        self.grown_indexes_bytes.store(0, Ordering::Relaxed);
        for (keyspace, mut index) in indexes {
            if let Some(bytes) = changed_limit(index.memory_bytes_max, each_max) {
                index.memory_bytes_max = keyspace.tree.set_index_memory(bytes);
            }
            keyspace.counters.noted_index_bytes.store(index.bytes, Ordering::Relaxed);
            bytes += index.memory_bytes();
        }
        let most = self.sizes.memory_budget / SAMPLES_PART + SAMPLES_BYTES_MIN;
        let share = (most as f64 / samples.max(1) as f64).min(1.0).powi(3);
        let percent = (share * 100.0).max(1.0) as u64;
        for keyspace in keyspaces.values() {
            keyspace.counters.sample_percent.store(percent, Ordering::Relaxed);
        }
        bytes
    }

    /// How much of the memory that active memtables leave is used by frozen ones, if several keyspaces are written to:
    /// writers are delayed before they have to wait.
    pub(super) fn memory_backlog(&self) -> f64 {
        let active = self.pool.bytes_active() as u64;
        let in_use = (self.pool.bytes_in_use() as u64).saturating_sub(self.kept.bytes());
        if active <= 2 * self.sizes.memtable_bytes {
            return 0.0;
        }
        let left = self.sizes.memtables_bytes_max.saturating_sub(active).max(1);
        in_use.saturating_sub(active) as f64 / left as f64
    }
}

/// The limit of an index that should have so much, if it changes. It is a step of a fifth to a quarter, and it is raised only
/// by more than one: what is taken out of memory has to come back.
fn changed_limit(present: u64, wanted: u64) -> Option<u64> {
    let step = 1 << wanted.max(4).ilog2().saturating_sub(2);
    let wanted = wanted / step * step;
    (wanted < present || wanted > present.saturating_add(present / 4)).then_some(wanted)
}

/// How much each may have, so that all together have no more than `room`: those that want less leave the rest to others.
fn fair_share(mut wanted: Vec<u64>, room: u64) -> u64 {
    wanted.sort_unstable();
    let mut left = room;
    for (at, bytes) in wanted.iter().enumerate() {
        let each = left / (wanted.len() - at) as u64;
        if *bytes > each {
            return each;
        }
        left -= bytes;
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_lowered_in_steps_and_raised_by_more_than_one() {
        assert_eq!(changed_limit(0, 1000), Some(896));
        for (wanted, limit) in [(1000, None), (1023, None), (1279, None), (895, Some(768))] {
            assert_eq!(changed_limit(896, wanted), limit, "{wanted}");
        }
        assert_eq!(changed_limit(768, 1000), None);
        assert_eq!(changed_limit(768, 1024), Some(1024));
        assert_eq!(changed_limit(5, 0), Some(0));
        assert_eq!(changed_limit(u64::MAX, 100), Some(96));
        assert_eq!(changed_limit(0, u64::MAX), Some(7 << 61));
    }

    #[test]
    fn small_ones_have_what_they_want_and_large_ones_share_the_rest() {
        assert_eq!(fair_share(vec![], 100), 100);
        assert_eq!(fair_share(vec![30], 100), 100);
        assert_eq!(fair_share(vec![300], 100), 100);
        assert_eq!(fair_share(vec![300, 10], 100), 90);
        assert_eq!(fair_share(vec![300, 10, 200, 20], 100), 35);
        assert_eq!(fair_share(vec![50, 50], 100), 100);
        assert_eq!(fair_share(vec![u64::MAX / 2; 2], 100), 50);
    }
}
