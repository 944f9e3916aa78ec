//! The disk space that a tree may use, and the excess over it.
//!
//! Invariants:
//! 1. Space is reclaimed above `space_amplification_max` times what is live and half a memtable, and writers
//!    all but stop at [`STOP_SHARE`] and a memtable above the former. What frozen memtables, running compactions and, in
//!    a small tree, due compactions will add counts for writers as if it were there.
//! 2. Until the tree is settled, data that replaces nothing may use `load_share` more. What is dead then are parts
//!    of tables that other nodes have yet to merge. Due compactions give it back, merges for space would write more.
//! 3. Near the space at which writers stop, one compaction runs at a time, or several that take little. Far above it, as
//!    after a long snapshot, none has to wait: what they give back is more.

use crate::base::limits::UNIT_BYTES;

/// The size of small entries in tables, with index pages and the like, over their own bytes.
const USUAL_OVERHEAD: f64 = 1.06;

/// The bytes of an entry in its page beside its key and value, about.
const ENTRY_OVERHEAD_BYTES: f64 = 10.0;
/// The bytes of a memtable's table beside its leaves: an index, a filter, properties, a footer.
const TABLE_OVERHEAD_BYTES: f64 = 5.0 * UNIT_BYTES as f64;
/// The most that entries take in pages, over their own bytes: a leaf grows rather than waste more.
const PAGE_WASTE_MAX: f64 = 1.34;

/// Disk space above the allowed, in shares of the live bytes, at which reclaiming goes before all else.
pub(super) const PRESSING_SHARE: f64 = 0.04;
/// The same at which writers begin to be slowed.
const SLOW_SHARE: f64 = 0.0;
/// The same at which writers all but stop.
const STOP_SHARE: f64 = 0.15;
/// The same at which compactions need not wait for each other any more.
const FAR_SHARE: f64 = 0.5;
/// Outputs of compactions that run at once, in shares of the live bytes and beside half a memtable.
const OUTPUTS_SHARE: f64 = 0.25;
/// The same that are no reason to wait.
const SMALL_OUTPUTS_SHARE: f64 = 1.0 / 16.0;
/// What is written before tables go that nodes share, in shares of the live bytes, that is no reason to slow writers.
const SMALL_SHARED_SHARE: f64 = 1.0 / 8.0;
/// The same of a tree of fewer than [`FIRST_MERGE_MEMTABLES`]: its first merge rewrites all of it.
const FIRST_MERGE_SHARE: f64 = 1.0 / 2.0;
const FIRST_MERGE_MEMTABLES: u64 = 25;

/// The disk space that a tree uses, and the part of it that is known to be live.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub(super) disk_bytes: u64,
    /// Of these, the tables', without their lists of keys.
    pub(super) table_bytes: u64,
    /// The lists of keys in tables.
    pub(super) list_bytes: u64,
    /// How many tables.
    pub(super) tables: u64,
    /// Keys and values in tables, dead ones too.
    pub(super) entry_bytes: u64,
    /// Those of them that are live.
    pub(super) live_entry_bytes: u64,
    /// Live values in blob files.
    pub(super) live_blob_bytes: u64,
    /// Of the disk bytes, those of filters that are files of their own.
    pub(super) filter_bytes: u64,
    /// Entries in tables, dead ones too.
    pub(super) entries: u64,
    /// Keys that have a value.
    pub(super) live_keys: u64,
    /// Bytes of a full memtable.
    pub(super) memtable_bytes: u64,
    /// How many of them a table of a compacted tree has, about.
    pub(super) merged_memtables: u64,
    pub(super) amplification_max_percent: u64,
    /// Bytes of indexes that each live key needs beside what is usual.
    pub(super) index_entry_bytes: u64,
    /// Disk space beyond that, in shares of the live bytes, that the tree may use while it is written.
    pub(super) load_share: f64,
    /// The most memtables whose tables many nodes share.
    pub(super) shared_memtables: u64,
}

impl Space {
    /// The size of the data files if they held live data alone, in tables of a few memtables each.
    pub(super) fn live_bytes(&self) -> u64 {
        let share = |of: u64, whole: u64| (of as f64 / whole.max(1) as f64).min(1.0);
        let in_pages = |bytes: u64, entries: u64| bytes + entries * ENTRY_OVERHEAD_BYTES as u64;
        let bytes = self.table_bytes as f64;
        let entries = (self.entry_bytes as f64).min(bytes);
        let beside = bytes - in_pages(self.entry_bytes, self.entries) as f64;
        // Small tables have less beside their leaves.
        let overhead = (beside / self.tables.max(1) as f64).clamp(0.0, TABLE_OVERHEAD_BYTES);
        let leaves = (bytes - self.tables as f64 * overhead).max(entries)
            * share(
                in_pages(self.live_entry_bytes, self.live_keys),
                in_pages(self.entry_bytes, self.entries),
            );
        let table = (self.memtable_bytes * self.merged_memtables) as f64;
        let tables = leaves + (leaves / table).ceil() * overhead.min(leaves);
        // Pieces that are merged whole need no heads.
        let stay = if self.index_entry_bytes > 0 { 0 } else { self.filter_bytes };
        let filters = stay as f64 * share(self.live_keys, self.entries);
        (tables + filters + self.live_list_bytes()) as u64 + self.live_blob_bytes
    }

    /// How many times their own bytes entries take in their pages, where that is more than usual: three
    /// entries of 1,050 bytes fill a page of 4 KiB, with 900 to spare. No compaction gets that back. What tables that
    /// are smaller than a memtable's waste beyond that is had back when they are merged.
    fn page_waste(&self) -> f64 {
        let own = self.entry_bytes.max(1) as f64 * USUAL_OVERHEAD;
        let entry = self.entry_bytes as f64 / self.entries.max(1) as f64;
        let page = UNIT_BYTES as f64;
        let in_page = (page / (entry + ENTRY_OVERHEAD_BYTES)).floor().max(1.0);
        let by_size = (page / (in_page * entry.max(1.0))).min(PAGE_WASTE_MAX) / USUAL_OVERHEAD;
        let table = self.memtable_bytes.max(1) as f64;
        let most = by_size * (1.0 + TABLE_OVERHEAD_BYTES / table);
        let indexes = self.entries.saturating_mul(self.index_entry_bytes);
        let bytes = self.table_bytes.saturating_sub(indexes);
        (bytes as f64 / own).min(most).max(1.0)
    }

    /// What the lists of keys take for those that are live.
    fn live_list_bytes(&self) -> f64 {
        let live = self.live_keys as f64 / self.entries.max(1) as f64;
        self.list_bytes as f64 * live.min(1.0)
    }

    /// What the live bytes take at least.
    fn known_live_bytes(&self) -> f64 {
        let in_pages = self.live_entry_bytes as f64 * self.page_waste();
        let indexes = (self.live_keys * self.index_entry_bytes) as f64;
        (in_pages + indexes + self.live_list_bytes() + self.live_blob_bytes as f64).max(1.0)
    }

    /// How far so many bytes are above what is allowed, in shares of the live bytes.
    fn above(&self, bytes: f64) -> f64 {
        let live = self.known_live_bytes();
        let allowed = self.amplification_max_percent as f64 / 100.0 + self.load_share;
        bytes / live - allowed
    }

    /// How far the tree is above what it may take before space is reclaimed. Half a memtable is not worth it.
    pub(super) fn excess(&self) -> f64 {
        self.above(self.disk_bytes as f64 - self.memtable_bytes as f64 / 2.0)
    }

    /// The same in bytes.
    pub(super) fn excess_bytes(&self) -> u64 {
        (self.excess().max(0.0) * self.known_live_bytes()) as u64
    }

    /// How far the tree is above what is allowed with `coming` bytes that will be there soon, less a memtable.
    fn excess_with(&self, coming: u64) -> f64 {
        self.above((self.disk_bytes + coming) as f64 - self.memtable_bytes as f64)
    }

    /// How far behind reclaiming is: writers are slowed from a little above the allowed on, ever more up to the
    /// limit.
    pub(super) fn backlog(&self, coming: u64) -> f64 {
        let part = (self.excess_with(coming) - SLOW_SHARE) / (STOP_SHARE - SLOW_SHARE);
        (0.5 + part / 2.0).clamp(0.0, 0.99)
    }

    /// Whether several compactions may run at once whose outputs will take so much: until they are done, that is
    /// beside their inputs, and longer where others need those too. (Invariant 3.)
    pub(super) fn has_room(&self, outputs: u64) -> bool {
        let live = (self.live_entry_bytes + self.live_blob_bytes) as f64;
        if outputs as f64 > live * OUTPUTS_SHARE + self.memtable_bytes as f64 / 2.0 {
            return false;
        }
        outputs as f64 <= live * SMALL_OUTPUTS_SHARE
            || self.excess_with(outputs) <= STOP_SHARE
            || self.excess_with(0) > FAR_SHARE
    }

    /// Of what due compactions will write, what may be there before any of their inputs goes: nodes share tables of a few
    /// memtables, and these stay until the last node has merged its part. In a large tree that is little.
    pub(super) fn shared(&self, due: u64) -> u64 {
        let live = self.known_live_bytes();
        let share = match live < (self.memtable_bytes * FIRST_MERGE_MEMTABLES) as f64 {
            true => FIRST_MERGE_SHARE,
            false => SMALL_SHARED_SHARE,
        };
        due.min(self.memtable_bytes * self.shared_memtables).saturating_sub((live * share) as u64)
    }

    /// The bytes that a merge of so many bytes of tables leaves, about.
    pub(super) fn left_of(&self, bytes: u64) -> u64 {
        let share = self.live_entry_bytes as f64 / self.entry_bytes.max(1) as f64;
        (bytes as f64 * share.min(1.0)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(live_memtables: u64) -> Space {
        let memtable_bytes = 1 << 20;
        let bytes = live_memtables * memtable_bytes;
        Space {
            disk_bytes: bytes * 13 / 10,
            table_bytes: bytes * 13 / 10,
            tables: live_memtables,
            entry_bytes: bytes * 12 / 10,
            live_entry_bytes: bytes,
            live_blob_bytes: 0,
            filter_bytes: 0,
            list_bytes: 0,
            entries: bytes / 100,
            live_keys: bytes / 120,
            memtable_bytes,
            merged_memtables: 3,
            amplification_max_percent: 130,
            index_entry_bytes: 0,
            load_share: 0.0,
            shared_memtables: 12,
        }
    }

    /// Lists of keys counted as something to be reclaimed: writers of a tree without anything dead were slowed.
    #[test]
    fn lists_of_live_keys_are_live() {
        let without = Space { live_keys: space(20).entries, ..space(20) };
        let list_bytes = without.table_bytes / 2;
        let with = Space { list_bytes, disk_bytes: without.disk_bytes + list_bytes, ..without };
        let above = |space: &Space| space.above(space.disk_bytes as f64);
        assert!(above(&with) <= above(&without), "{} and {}", above(&with), above(&without));
        assert_eq!(with.live_bytes(), without.live_bytes() + list_bytes);
    }

    /// Writers of a tree of some thirty memtables went on while its first merges had yet to write a third of it.
    #[test]
    fn tables_that_nodes_share_count_in_trees_of_some_thirty_memtables() {
        let shared = |live: u64, due: u64| space(live).shared(due << 20) >> 20;
        assert!((7..9).contains(&shared(28, 30)), "{}", shared(28, 30));
        assert_eq!(shared(28, 3), 0, "little is no reason to wait");
        assert_eq!(shared(128, 100), 0, "of a large tree it is little");
        assert_eq!(shared(20, 9), 0, "a smaller one may take twice its data");
        let unshared = Space { shared_memtables: 0, ..space(28) };
        assert_eq!(unshared.shared(30 << 20), 0);
    }
}
