//! Cursors over entries in order, in both directions, concurrent with inserts.
//!
//! Invariants:
//! 1. A view is a consistent copy of one leaf's ids at one moment. Moving beyond it takes a view of
//!    the neighbouring leaf at that later moment.
//! 2. A split leaf keeps the lower part of its range. So the leaf that was `next` when a view was
//!    taken starts where the view ends, and the leaf whose `next` is the viewed leaf ends where the
//!    view starts. So a walk yields every entry that existed when it was positioned exactly once.

use std::ptr;
use std::sync::Arc;

use super::Memtable;
use super::arena::EntryId;
use super::index::Index;
use super::node::{LEAF_SLOTS, Leaf, Target, lower_bound, prefetch_node, slot_id};
use crate::base::entry::{Cursor, EntryRef};
use crate::base::error::Result;
use crate::base::sync::plain::Ordering;

/// The number of entries prefetched ahead of the position.
const PREFETCH_ENTRIES: usize = 8;

/// A position in a copy of a leaf.
pub(super) struct LeafView {
    ids: [EntryId; LEAF_SLOTS],
    count: usize,
    /// `count` or more (including a wrap below zero): no position.
    at: usize,
    leaf: *const Leaf,
    next: *const Leaf,
    prev: *const Leaf,
}

// SAFETY: the pointers lead to leaves of the index that every method is given, which threads share
// anyway.
unsafe impl Send for LeafView {}
// SAFETY: as above. A shared view is read-only.
unsafe impl Sync for LeafView {}

impl LeafView {
    pub(super) fn new() -> LeafView {
        LeafView {
            ids: [0; LEAF_SLOTS],
            count: 0,
            at: 0,
            leaf: ptr::null(),
            next: ptr::null(),
            prev: ptr::null(),
        }
    }

    /// The entry at the position.
    #[inline]
    pub(super) fn id(&self) -> Option<EntryId> {
        self.ids[..self.count].get(self.at).copied()
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
        self.at = 0;
    }

    /// Copies the leaf if it still has this version.
    fn copy(&mut self, leaf: &Leaf, version: u64) -> bool {
        let count = leaf.header.meta().count;
        for (to, from) in self.ids.iter_mut().zip(&leaf.slots[..count]) {
            *to = slot_id(from.load(Ordering::Acquire));
        }
        self.count = count;
        self.leaf = leaf;
        self.next = leaf.next.load(Ordering::Acquire);
        self.prev = leaf.prev.load(Ordering::Acquire);
        leaf.header.is_still(version)
    }

    fn load(&mut self, leaf: &Leaf) {
        loop {
            let version = leaf.header.read_version();
            if self.copy(leaf, version) {
                return;
            }
        }
    }

    /// Moves to the first entry at or after the target.
    pub(super) fn seek(&mut self, index: &Index, target: Target<'_>) {
        if self.split_at(index, target) && self.at == self.count {
            self.load_next();
        }
        self.prefetch_after(index);
    }

    /// Moves to the last entry before the target.
    pub(super) fn seek_before(&mut self, index: &Index, target: Target<'_>) {
        if self.split_at(index, target) {
            self.backward(index);
        }
    }

    /// Moves to the first entry.
    pub(super) fn seek_first(&mut self, index: &Index) {
        self.clear();
        if let Some(leaf) = index.first_leaf() {
            self.load(leaf);
            self.at = 0;
            self.prefetch_after(index);
        }
    }

    /// Moves to the last entry.
    pub(super) fn seek_last(&mut self, index: &Index) {
        self.clear();
        if let Some(leaf) = index.late_leaf() {
            self.load(leaf);
            // SAFETY: siblings are null or leaves of the index, which lives as long as its arena.
            while let Some(next) = unsafe { self.next.as_ref() } {
                self.load(next);
            }
            self.at = self.count.wrapping_sub(1);
        }
    }

    /// Views the target's leaf. The position is the leaf's first entry at or after the target, if
    /// any. Returns false if there is no leaf.
    fn split_at(&mut self, index: &Index, target: Target<'_>) -> bool {
        loop {
            let Some((leaf, version)) = index.leaf_for(target) else {
                self.clear();
                return false;
            };
            self.at = lower_bound(&index.arena, &leaf.slots, leaf.header.meta(), target);
            if self.copy(leaf, version) {
                return true;
            }
        }
    }

    /// Moves forward by one entry.
    #[inline]
    pub(super) fn forward(&mut self, index: &Index) {
        self.at += 1;
        if let Some(&id) = self.ids[..self.count].get(self.at + PREFETCH_ENTRIES) {
            index.arena.prefetch(id);
        }
        if self.at >= self.count {
            self.load_next();
            self.prefetch_after(index);
        }
    }

    /// Moves back by one entry.
    #[inline]
    pub(super) fn backward(&mut self, index: &Index) {
        if self.at > 0 {
            self.at -= 1;
            if let Some(ahead) = self.at.checked_sub(PREFETCH_ENTRIES) {
                index.arena.prefetch(self.ids[ahead]);
            }
        } else {
            self.load_prev();
            for &id in self.ids[..self.count].iter().rev().take(PREFETCH_ENTRIES) {
                index.arena.prefetch(id);
            }
        }
    }

    fn prefetch_after(&self, index: &Index) {
        for &id in self.ids[..self.count].iter().skip(self.at).take(PREFETCH_ENTRIES) {
            index.arena.prefetch(id);
        }
    }

    fn load_next(&mut self) {
        // SAFETY: siblings are null or leaves of the index, which lives as long as its arena.
        match unsafe { self.next.as_ref() } {
            Some(next) => {
                self.load(next);
                self.at = 0;
                prefetch_node(self.next.cast());
            }
            None => self.clear(),
        }
    }

    fn load_prev(&mut self) {
        let right = self.leaf;
        let mut at = self.prev;
        // SAFETY: siblings are null or leaves of the index, which lives as long as its arena.
        while let Some(leaf) = unsafe { at.as_ref() } {
            self.load(leaf);
            if self.next == right {
                self.at = self.count.wrapping_sub(1);
                return;
            }
            at = self.next;
        }
        self.clear();
    }
}

/// A cursor over a memtable, which it keeps alive. Every entry inserted before the cursor was
/// positioned is yielded exactly once and in order; later ones may or may not be.
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    view: LeafView,
}

impl MemtableCursor {
    pub(super) fn new(memtable: Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { memtable, view: LeafView::new() }
    }
}

impl Cursor for MemtableCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.view.seek_first(&self.memtable.index);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.view.seek_last(&self.memtable.index);
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.view.seek(&self.memtable.index, Target::newest(key));
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.view.seek_before(&self.memtable.index, Target::newest(key));
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        debug_assert!(self.view.id().is_some(), "next needs a position");
        self.view.forward(&self.memtable.index);
        Ok(())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        debug_assert!(self.view.id().is_some(), "prev needs a position");
        self.view.backward(&self.memtable.index);
        Ok(())
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.view.id().map(|id| self.memtable.index.arena.entry(id))
    }
}
