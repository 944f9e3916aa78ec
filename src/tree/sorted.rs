//! A sorted set of entries in memory, and the ways to read it: a [`Run`](super::run::Run) that is no table.
//!
//! Invariants:
//! 1. Entries are in entry order: by key ascending, then by sequence number descending.
//! 2. A set does not change once it is shared.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::base::entry::{Cursor, EntryKind, EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::Seqno;

/// An entry with its own memory.
struct Entry {
    key: Box<[u8]>,
    seqno: Seqno,
    kind: EntryKind,
    value: Box<[u8]>,
}

/// A sorted set of entries.
#[derive(Default)]
pub(crate) struct Sorted(Vec<Entry>);

impl Sorted {
    /// Appends an entry. Returns false, and does nothing, if it is not behind the last one in entry order.
    pub(crate) fn push(&mut self, entry: EntryRef<'_>) -> bool {
        let EntryRef { key, seqno, kind, value } = entry;
        let is_behind = |last: &Entry| match (*last.key).cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => last.seqno > seqno,
            Ordering::Greater => false,
        };
        let in_order = self.0.last().is_none_or(is_behind);
        if in_order {
            self.0.push(Entry { key: key.into(), seqno, kind, value: value.into() });
        }
        in_order
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry at a place, counted from 0.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<EntryRef<'_>> {
        let Entry { key, seqno, kind, value } = self.0.get(at)?;
        Some(EntryRef { key, seqno: *seqno, kind: *kind, value })
    }

    /// All entries, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// The place of the first entry whose key is `key` or above.
    fn place_of(&self, key: &[u8]) -> usize {
        self.0.partition_point(|entry| *entry.key < *key)
    }

    /// The versions of a key that are numbered at most `snapshot`, newest first.
    pub(crate) fn versions<'a>(
        &'a self,
        key: &'a [u8],
        snapshot: Seqno,
    ) -> impl Iterator<Item = EntryRef<'a>> {
        (self.place_of(key)..self.len())
            .filter_map(|at| self.get(at))
            .take_while(move |entry| entry.key == key)
            .filter(move |entry| entry.seqno <= snapshot)
    }

    /// The first key; no bytes for an empty set.
    pub(crate) fn first_key(&self) -> &[u8] {
        self.0.first().map_or(&[], |entry| &entry.key)
    }

    /// The last key; no bytes for an empty set.
    pub(crate) fn last_key(&self) -> &[u8] {
        self.0.last().map_or(&[], |entry| &entry.key)
    }
}

/// A position in a set. As a source of a merge, it stands before the first entry until `next` is called.
pub(crate) struct SortedCursor {
    set: Arc<Sorted>,
    at: Option<usize>,
}

impl SortedCursor {
    pub(crate) fn new(set: &Arc<Sorted>) -> SortedCursor {
        SortedCursor { set: Arc::clone(set), at: None }
    }
}

impl Cursor for SortedCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.at = Some(0);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.at = self.set.len().checked_sub(1);
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.at = Some(self.set.place_of(key));
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.at = self.set.place_of(key).checked_sub(1);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.at = self.at.map(|at| at + 1);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.at = self.at.and_then(|at| at.checked_sub(1));
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.set.get(self.at?)
    }
}

/// A set as the input of a merge.
pub(crate) struct SortedSource {
    set: Arc<Sorted>,
    /// How many entries have been passed, the current one included.
    passed: usize,
}

impl SortedSource {
    pub(crate) fn new(set: &Arc<Sorted>) -> SortedSource {
        SortedSource { set: Arc::clone(set), passed: 0 }
    }
}

impl EntrySource for SortedSource {
    fn next(&mut self) -> Result<()> {
        self.passed += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.set.get(self.passed.checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &[u8], seqno: u64) -> EntryRef<'_> {
        EntryRef { key, seqno: Seqno(seqno), kind: EntryKind::Put, value: b"value" }
    }

    fn set() -> Arc<Sorted> {
        let mut set = Sorted::default();
        for (key, seqno) in [(b"b", 7), (b"b", 3), (b"d", 5)] {
            assert!(set.push(entry(key, seqno)));
        }
        Arc::new(set)
    }

    #[test]
    fn entries_are_taken_in_order_only() {
        let mut set = Sorted::default();
        assert!(set.push(entry(b"b", 7)));
        assert!(
            !set.push(entry(b"b", 7)) && !set.push(entry(b"b", 8)) && !set.push(entry(b"a", 1))
        );
        assert!(set.push(entry(b"b", 6)) && set.push(entry(b"c", 9)));
        assert_eq!((set.len(), set.first_key(), set.last_key()), (3, &b"b"[..], &b"c"[..]));
    }

    #[test]
    fn versions_are_seen_at_a_snapshot() {
        let seen = |key: &[u8], snapshot| -> Vec<u64> {
            set().versions(key, Seqno(snapshot)).map(|entry| entry.seqno.0).collect()
        };
        assert_eq!((seen(b"b", 9), seen(b"b", 6), seen(b"b", 2)), (vec![7, 3], vec![3], vec![]));
        assert_eq!((seen(b"c", 9), seen(b"d", 9), seen(b"e", 9)), (vec![], vec![5], vec![]));
    }

    #[test]
    fn a_cursor_goes_both_ways_and_a_source_goes_once() {
        let mut cursor = SortedCursor::new(&set());
        let mut at = |go: &dyn Fn(&mut SortedCursor) -> Result<()>| {
            go(&mut cursor).unwrap();
            cursor.entry().map(|entry| (entry.key[0], entry.seqno.0))
        };
        assert_eq!(at(&|it| it.seek(b"c")), Some((b'd', 5)));
        assert_eq!(at(&|it| it.prev()), Some((b'b', 3)));
        assert_eq!(at(&|it| it.seek_before(b"b")), None);
        assert_eq!(at(&|it| it.seek_before(b"z")), Some((b'd', 5)));
        assert_eq!(at(&|it| it.next()), None);
        assert_eq!(at(&|it| it.seek_first()), Some((b'b', 7)));
        assert_eq!(at(&|it| it.prev()), None);
        assert_eq!(at(&|it| it.seek_last()), Some((b'd', 5)));
        let mut source = SortedSource::new(&set());
        let mut found = Vec::new();
        loop {
            source.next().unwrap();
            let Some(entry) = source.entry() else { break };
            found.push(entry.seqno.0);
        }
        assert_eq!(found, [7, 3, 5]);
    }
}
