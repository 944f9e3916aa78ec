//! The index: a B+-tree of entry ids whose readers take no lock.
//!
//! Readers descend optimistically: they read a node's version, read the node, read the child's
//! version, and check the node's version again. Writers do the same and then lock only the nodes
//! they change. A full inner node is split on the way down, so a split never needs more than a node
//! and its parent.
//!
//! Invariants:
//! 1. Locks are taken parent first and only by `try_lock`, so there is no deadlock. A writer that
//!    fails restarts at the root.
//! 2. Nodes are never removed, merged or freed before the index is dropped, and a split node keeps
//!    the lower part of its range. So a pointer to a leaf leads, by `next`, to everything that was
//!    ever at or to the right of it.
//! 3. Separators and bounds are ids of real entries. So the first entry at or after any target is
//!    either in the leaf that the target leads to, or is that leaf's upper bound.
//!    either in the leaf that the target leads to or is that leaf's upper bound.

use std::ptr;

use super::arena::{Arena, EntryId, NO_ENTRY};
use super::node::{
    Header, INNER_SLOTS, Inner, LEAF_SLOTS, Leaf, Meta, Node, Target, common_prefix, head,
    lower_bound, node, prefetch_node, slot, slot_id,
};
use crate::base::sync::atomic::AtomicPtr;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::base::version_lock::{VersionGuard, pause};

/// The number of consecutive inserts, each directly after the last, after which a leaf splits at
/// the run's end.
const RUN_MIN: u8 = 8;
/// The growth of a prefix that justifies new heads: each new head costs a read of its entry.
const PREFIX_GROWTH_MIN: usize = 2;

pub(super) struct Index {
    pub(super) arena: Arena,
    root: AtomicPtr<Header>,
}

/// A node on the way down, at the version that was read.
#[derive(Clone, Copy)]
struct Step<'a> {
    inner: &'a Inner,
    version: u64,
    /// The child that was descended into.
    at: usize,
}

impl Index {
    pub(super) fn new(arena: Arena) -> Index {
        Index { arena, root: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Adds the entry `id`, whose key and trailer are `target`.
    pub(super) fn insert(&self, target: Target<'_>, id: EntryId) {
        let mut tries = 0;
        while self.try_insert(target, id).is_none() {
            tries += 1;
            pause(tries);
        }
    }

    /// Returns the first entry at or after the target.
    #[inline]
    pub(super) fn first_from(&self, target: Target<'_>) -> Option<EntryId> {
        loop {
            let (leaf, version) = self.leaf_for(target)?;
            let meta = leaf.header.meta();
            let at = lower_bound(&self.arena, &leaf.slots, meta, target);
            let id = if at < meta.count {
                slot_id(leaf.slots[at].load(Ordering::Acquire))
            } else {
                leaf.header.high.load(Ordering::Acquire)
            };
            if leaf.header.is_still(version) {
                return (id != NO_ENTRY).then_some(id);
            }
        }
    }

    /// Returns the leaf whose range has the target, with its version; `None` if there is no entry.
    #[inline]
    pub(super) fn leaf_for(&self, target: Target<'_>) -> Option<(&Leaf, u64)> {
        let mut tries = 0;
        loop {
            let root = self.root.load(Ordering::Acquire);
            if root.is_null() {
                return None;
            }
            if let Some(found) = self.try_leaf_for(root, target) {
                return Some(found);
            }
            tries += 1;
            pause(tries);
        }
    }

    #[inline]
    fn try_leaf_for(&self, root: *mut Header, target: Target<'_>) -> Option<(&Leaf, u64)> {
        let (mut header, mut version, mut at_node) = self.enter(root)?;
        loop {
            match at_node {
                Node::Leaf(leaf) => return Some((leaf, version)),
                Node::Inner(inner) => {
                    let at = lower_bound(&self.arena, &inner.slots, header.meta(), target);
                    (header, version, at_node) = self.descend(header, version, inner, at)?;
                }
            }
        }
    }

    /// Reads the root's version. Fails if it is no longer the root.
    #[inline]
    fn enter(&self, root: *mut Header) -> Option<(&Header, u64, Node<'_>)> {
        // SAFETY: a root that is not null was made by `allocate`, loaded with `Acquire`, and lives
        // as long as the arena in `self`.
        let (header, at_node) = unsafe { node(root) };
        let version = header.read_version();
        (self.root.load(Ordering::Acquire) == root).then_some((header, version, at_node))
    }

    /// Reads the version of child `at`. Fails if the parent has changed.
    #[inline]
    fn descend<'a>(
        &'a self,
        parent: &Header,
        parent_version: u64,
        inner: &Inner,
        at: usize,
    ) -> Option<(&'a Header, u64, Node<'a>)> {
        let child = inner.children[at].load(Ordering::Acquire);
        prefetch_node(child);
        // SAFETY: `at` is at most a count that was read from this node, and children up to there
        // were stored before the count and are never freed: even an outdated one is a node of this
        // arena.
        let (header, at_node) = unsafe { node(child) };
        let version = header.read_version();
        parent.is_still(parent_version).then_some((header, version, at_node))
    }

    /// Returns the leftmost leaf.
    pub(super) fn first_leaf(&self) -> Option<&Leaf> {
        // The target before every entry: the empty key's newest version.
        Some(self.leaf_for(Target::newest(&[]))?.0)
    }

    /// Returns a leaf from which `next` leads to the last one in a few steps.
    pub(super) fn late_leaf(&self) -> Option<&Leaf> {
        let mut at = self.root.load(Ordering::Acquire);
        if at.is_null() {
            return None;
        }
        loop {
            // SAFETY: the root as in `enter`; below it as in `descend`.
            match unsafe { node(at) }.1 {
                Node::Leaf(leaf) => return Some(leaf),
                Node::Inner(inner) => {
                    at = inner.children[inner.header.meta().count].load(Ordering::Acquire);
                }
            }
        }
    }

    /// Returns `None` if a node changed on the way or a full inner node was split: try again.
    fn try_insert(&self, target: Target<'_>, id: EntryId) -> Option<()> {
        let (mut header, mut version, mut at_node) = self.enter(self.root_or_new())?;
        let mut parent: Option<Step<'_>> = None;
        loop {
            match at_node {
                Node::Inner(inner) => {
                    let meta = header.meta();
                    if meta.count == INNER_SLOTS {
                        self.split_inner(parent, inner, version);
                        return None;
                    }
                    let at = lower_bound(&self.arena, &inner.slots, meta, target);
                    parent = Some(Step { inner, version, at });
                    (header, version, at_node) = self.descend(header, version, inner, at)?;
                }
                Node::Leaf(leaf) => {
                    let meta = header.meta();
                    let at = lower_bound(&self.arena, &leaf.slots, meta, target);
                    if meta.count == LEAF_SLOTS {
                        return self.split_leaf(parent, leaf, version, at, target.key, id);
                    }
                    let _guard = header.try_lock(version)?;
                    self.insert_slot(header, &leaf.slots, at, target.key, id);
                    return Some(());
                }
            }
        }
    }

    fn root_or_new(&self) -> *mut Header {
        let root = self.root.load(Ordering::Acquire);
        if !root.is_null() {
            return root;
        }
        let leaf = Leaf::allocate(&self.arena, NO_ENTRY, NO_ENTRY).cast::<Header>();
        let raced =
            self.root.compare_exchange(ptr::null_mut(), leaf, Ordering::AcqRel, Ordering::Acquire);
        raced.err().unwrap_or(leaf)
    }

    /// Locks the parent, if there is one.
    fn lock_parent<'a>(parent: Option<Step<'a>>) -> Option<Option<VersionGuard<'a>>> {
        match parent {
            None => Some(None),
            Some(step) => step.inner.header.try_lock(step.version).map(Some),
        }
    }

    /// Splits a full leaf and adds the entry to the half it belongs to.
    fn split_leaf(
        &self,
        parent: Option<Step<'_>>,
        leaf: &Leaf,
        version: u64,
        at: usize,
        key: &[u8],
        id: EntryId,
    ) -> Option<()> {
        let _parent_guard = Index::lock_parent(parent)?;
        let _guard = leaf.header.try_lock(version)?;
        let meta = leaf.header.meta();
        let high = leaf.header.high.load(Ordering::Relaxed);
        let count = meta.count;
        // Ascending inserts leave full leaves: the rest of the run goes to the right.
        let run = meta.run >= RUN_MIN && usize::from(meta.run_end) == at;
        let middle = if run || (at == count && high == NO_ENTRY) { at } else { count / 2 };
        let alone = middle == count;
        let separator =
            if alone { id } else { slot_id(leaf.slots[middle].load(Ordering::Relaxed)) };

        let right_pointer = Leaf::allocate(&self.arena, separator, high);
        // SAFETY: just allocated in an arena that outlives this call.
        let right = unsafe { &*right_pointer };
        move_slots(&leaf.slots[middle..count], &right.slots);
        let next = leaf.next.load(Ordering::Relaxed);
        right.next.store(next, Ordering::Relaxed);
        right.prev.store(ptr::from_ref(leaf).cast_mut(), Ordering::Relaxed);
        self.refit(&right.header, &right.slots, Meta { count: count - middle, ..meta });

        leaf.header.high.store(separator, Ordering::Relaxed);
        self.refit(&leaf.header, &leaf.slots, Meta { count: middle, ..meta });
        if at <= middle && !alone {
            self.insert_slot(&leaf.header, &leaf.slots, at, key, id);
        } else {
            self.insert_slot(&right.header, &right.slots, at - middle, key, id);
        }
        leaf.next.store(right_pointer, Ordering::Release);
        // Stored last, because the right neighbour is not locked: from here on other threads can
        // reach `right`.
        // SAFETY: siblings are null or leaves of this arena.
        if let Some(next) = unsafe { next.as_ref() } {
            next.prev.store(right_pointer, Ordering::Release);
        }
        self.insert_child(
            parent,
            ptr::from_ref(leaf).cast_mut().cast(),
            separator,
            right_pointer.cast(),
        );
        Some(())
    }

    /// Splits a full inner node, unless something has changed.
    fn split_inner(&self, parent: Option<Step<'_>>, inner: &Inner, version: u64) -> Option<()> {
        let _parent_guard = Index::lock_parent(parent)?;
        let _guard = inner.header.try_lock(version)?;
        let meta = inner.header.meta();
        let high = inner.header.high.load(Ordering::Relaxed);
        let count = meta.count;
        let run = meta.run >= RUN_MIN && usize::from(meta.run_end) == count;
        let middle = if run { count - 2 } else { count / 2 };
        let separator = slot_id(inner.slots[middle].load(Ordering::Relaxed));

        let first = inner.children[middle + 1].load(Ordering::Relaxed);
        let right_pointer = Inner::allocate(&self.arena, separator, high, first);
        // SAFETY: just allocated in an arena that outlives this call.
        let right = unsafe { &*right_pointer };
        move_slots(&inner.slots[middle + 1..count], &right.slots);
        for (from, to) in inner.children[middle + 2..=count].iter().zip(&right.children[1..]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.refit(&right.header, &right.slots, Meta { count: count - middle - 1, ..meta });

        inner.header.high.store(separator, Ordering::Relaxed);
        self.refit(&inner.header, &inner.slots, Meta { count: middle, ..meta });
        self.insert_child(
            parent,
            ptr::from_ref(inner).cast_mut().cast(),
            separator,
            right_pointer.cast(),
        );
        Some(())
    }

    /// Adds `right` after `left` to the locked parent, or makes a new root of both.
    fn insert_child(
        &self,
        parent: Option<Step<'_>>,
        left: *mut Header,
        separator: EntryId,
        right: *mut Header,
    ) {
        let (key, _) = self.arena.key(separator);
        match parent {
            Some(Step { inner, at, .. }) => {
                let count = inner.header.meta().count;
                for i in (at + 1..=count).rev() {
                    let child = inner.children[i].load(Ordering::Relaxed);
                    inner.children[i + 1].store(child, Ordering::Release);
                }
                inner.children[at + 1].store(right, Ordering::Release);
                self.insert_slot(&inner.header, &inner.slots, at, key, separator);
            }
            None => {
                let root = Inner::allocate(&self.arena, NO_ENTRY, NO_ENTRY, left);
                // SAFETY: just allocated in an arena that outlives this call.
                let inner = unsafe { &*root };
                inner.children[1].store(right, Ordering::Release);
                self.insert_slot(&inner.header, &inner.slots, 0, key, separator);
                self.root.store(root.cast(), Ordering::Release);
            }
        }
    }

    /// Adds a slot to a locked node that has room.
    fn insert_slot(
        &self,
        header: &Header,
        slots: &[AtomicU64],
        at: usize,
        key: &[u8],
        id: EntryId,
    ) {
        let mut meta = header.meta();
        if meta.edge {
            // Without bounds on both sides, the prefix is what the node's keys share.
            let shared = match meta.count {
                0 => key.len(),
                _ => {
                    let (first, _) = self.arena.key(slot_id(slots[0].load(Ordering::Relaxed)));
                    common_prefix(&first[..meta.prefix], key)
                }
            };
            if shared != meta.prefix {
                self.set_prefix(slots, &mut meta, shared);
            }
        }
        for i in (at..meta.count).rev() {
            slots[i + 1].store(slots[i].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        slots[at].store(slot(head(key, meta.prefix), id), Ordering::Relaxed);
        meta.count += 1;
        meta.run = if usize::from(meta.run_end) == at { meta.run.saturating_add(1) } else { 0 };
        meta.run_end = at as u8 + 1;
        header.set_meta(meta);
    }

    /// Sets a locked node's fields after a split: its bounds are narrower, so its keys may share
    /// more bytes.
    fn refit(&self, header: &Header, slots: &[AtomicU64], mut meta: Meta) {
        let low = header.low.load(Ordering::Relaxed);
        let high = header.high.load(Ordering::Relaxed);
        meta.edge = low == NO_ENTRY || high == NO_ENTRY;
        let ends = if !meta.edge {
            Some((low, high))
        } else if meta.count > 0 {
            let id = |at: usize| slot_id(slots[at].load(Ordering::Relaxed));
            Some((id(0), id(meta.count - 1)))
        } else {
            None
        };
        let shared =
            ends.map_or(0, |(a, b)| common_prefix(self.arena.key(a).0, self.arena.key(b).0));
        // A bound that was missing before may also show that keys share fewer bytes.
        if shared < meta.prefix || shared >= meta.prefix + PREFIX_GROWTH_MIN {
            self.set_prefix(slots, &mut meta, shared);
        }
        (meta.run, meta.run_end) = (0, 0);
        header.set_meta(meta);
    }

    /// Recomputes the heads at another offset.
    fn set_prefix(&self, slots: &[AtomicU64], meta: &mut Meta, prefix: usize) {
        meta.prefix = prefix;
        for at in &slots[..meta.count] {
            let id = slot_id(at.load(Ordering::Relaxed));
            at.store(slot(head(self.arena.key(id).0, prefix), id), Ordering::Relaxed);
        }
    }
}

fn move_slots(from: &[AtomicU64], to: &[AtomicU64]) {
    for (from, to) in from.iter().zip(to) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
