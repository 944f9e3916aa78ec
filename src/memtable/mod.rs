//! The memtable: a concurrent ordered index of entries in memory.
//!
//! Any number of threads insert and read at the same time. Entries and index nodes are stored in
//! chunks from a [`ChunkPool`], whose bytes in use count towards the memory budget. The parts, from
//! the top: [`Memtable`] and [`MemtableCursor`], the `index` (a B+-tree with optimistic lock
//! coupling), its `node`s, the `arena`, the `pool`. `docs/decisions/0001-memtable.md` gives the
//! reasons.
//!
//! Invariants:
//! 1. Entries are ordered by key, ascending, bytewise, then by sequence number, descending. No two
//!    entries have the same key and sequence number: the commit order guarantees that.
//! 2. An inserted entry stays at the same address until the memtable is dropped.
//! 3. An entry is visible to every read that starts after its `insert` has returned. A read
//!    concurrent with an insert may or may not see it: readers use a snapshot that the commit
//!    module has declared complete.

use std::mem;
use std::sync::Arc;

use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

mod arena;
mod cursor;
mod index;
mod node;
mod pool;
mod span;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
#[cfg(test)]
mod tests;

pub(crate) use cursor::MemtableCursor;
pub(crate) use pool::ChunkPool;

use arena::{Arena, ENTRY_CHUNKS_MAX, SHARED_BYTES_MAX};
use cursor::LeafView;
use index::Index;
use node::Target;

/// Larger entries get their own chunk.
pub(crate) const OWN_CHUNK_BYTES_MIN: u64 = SHARED_BYTES_MAX as u64;
/// The number of bytes that a memtable can hold whatever the sizes of its entries. The worst
/// entries barely need a chunk of their own. Writers keep a memtable below this size.
pub(crate) const BYTES_MAX: u64 = ENTRY_CHUNKS_MAX as u64 * OWN_CHUNK_BYTES_MIN;

/// A concurrent ordered index of entries in memory.
pub(crate) struct Memtable {
    index: Index,
}

impl Memtable {
    /// Creates an empty memtable. It takes its first chunk with the first entry.
    pub(crate) fn new(pool: Arc<ChunkPool>) -> Memtable {
        Memtable { index: Index::new(Arena::new(pool)) }
    }

    /// Adds an entry. Any number of threads may insert at the same time.
    #[inline]
    pub(crate) fn insert(&self, key: &[u8], seqno: Seqno, kind: EntryKind, value: &[u8]) {
        assert!(key.len() <= KEY_BYTES_MAX && value.len() as u64 <= VALUE_BYTES_MAX);
        assert!(seqno <= Seqno::MAX);
        let (id, trailer) = self.index.arena.write(key, seqno, kind, value);
        self.index.insert(Target { key, trailer }, id);
    }

    /// Returns the newest version of the key that the snapshot sees.
    #[inline(always)]
    pub(crate) fn get(&self, key: &[u8], snapshot: Seqno) -> Option<EntryRef<'_>> {
        let id = self.index.first_from(Target::visible(key, snapshot))?;
        let entry = self.index.arena.entry(id);
        (entry.key == key).then_some(entry)
    }

    /// Returns all versions of the key that the snapshot sees, newest first.
    pub(crate) fn versions<'m, 'k>(&'m self, key: &'k [u8], snapshot: Seqno) -> Versions<'m, 'k> {
        Versions { memtable: self, key, below: Some(snapshot), first: true, walk: None }
    }

    /// Returns a cursor over all entries, without a position. It keeps the memtable alive.
    pub(crate) fn cursor(self: &Arc<Self>) -> MemtableCursor {
        MemtableCursor::new(self.clone())
    }

    /// Returns the memory used, in whole chunks: entries, index and unused space.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.index.arena.bytes()
    }

    /// The pool of its chunks.
    pub(crate) fn pool(&self) -> Arc<ChunkPool> {
        self.index.arena.pool()
    }

    /// Ends inserts: the memory no longer counts as active.
    pub(crate) fn freeze(&self) {
        self.index.arena.freeze();
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.index.arena.totals().entries
    }

    /// Returns true if there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries, and the total size of all keys and values in bytes.
    pub(crate) fn totals(&self) -> (usize, usize) {
        let totals = self.index.arena.totals();
        (totals.entries, totals.data_bytes)
    }

    /// Returns the total size of all keys and values in bytes.
    #[cfg(test)]
    pub(crate) fn data_bytes(&self) -> usize {
        self.index.arena.totals().data_bytes
    }

    /// Returns the smallest and the largest sequence number, if there are entries.
    pub(crate) fn seqno_bounds(&self) -> Option<(Seqno, Seqno)> {
        let totals = self.index.arena.totals();
        (totals.entries > 0).then_some((Seqno(totals.seqno_min), Seqno(totals.seqno_max)))
    }
}

/// The versions of one key, newest first.
pub(crate) struct Versions<'m, 'k> {
    memtable: &'m Memtable,
    key: &'k [u8],
    /// The largest sequence number of the next version; `None` if there is none.
    below: Option<Seqno>,
    /// True until the first version is read. It is found as `get` does, because most keys have no
    /// second version.
    first: bool,
    /// From the second version on, positioned at the version yielded last.
    walk: Option<LeafView>,
}

impl<'m> Iterator for Versions<'m, '_> {
    type Item = EntryRef<'m>;

    fn next(&mut self) -> Option<EntryRef<'m>> {
        let index = &self.memtable.index;
        let target = Target::visible(self.key, self.below.take()?);
        let id = match &mut self.walk {
            Some(view) => {
                view.forward(index);
                view.id()
            }
            None if mem::take(&mut self.first) => index.first_from(target),
            None => {
                let view = self.walk.insert(LeafView::new());
                view.seek(index, target);
                view.id()
            }
        };
        let entry = index.arena.entry(id?);
        if entry.key != self.key {
            return None;
        }
        self.below = entry.seqno.0.checked_sub(1).map(Seqno);
        Some(entry)
    }
}
