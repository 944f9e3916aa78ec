//! Histories of versions, the sources that hold them, and what a reader must see of them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::iterator::MergeSource;
use super::operands::{BlobReader, MergeContext};
use super::operator::Append;
use crate::base::entry::{Cursor, EntryKind, EntryRef, EntrySource};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::range_delete::{Bound, RangeDelete};
use std::sync::Arc;

/// An owned entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) seqno: u64,
    pub(super) kind: EntryKind,
    pub(super) value: Vec<u8>,
}

impl Entry {
    pub(super) fn new(key: &[u8], seqno: u64, kind: EntryKind, value: &[u8]) -> Entry {
        Entry { key: key.to_vec(), seqno, kind, value: value.to_vec() }
    }

    pub(super) fn order(&self) -> (&[u8], u64) {
        (&self.key, !self.seqno)
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }

    fn borrow(&self) -> EntryRef<'_> {
        EntryRef { key: &self.key, seqno: Seqno(self.seqno), kind: self.kind, value: &self.value }
    }
}

impl From<EntryRef<'_>> for Entry {
    fn from(entry: EntryRef<'_>) -> Entry {
        Entry::new(entry.key, entry.seqno.0, entry.kind, entry.value)
    }
}

/// Versions in the order in which they were committed: few keys, some of which share long prefixes,
/// all kinds, numbers dense with gaps, and values that say where they came from.
pub(super) fn arb_history(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Entry>> {
    let version = (0u8..8, 0u8..9, 1u64..3);
    prop::collection::vec(version, count).prop_map(|versions| {
        let mut seqno = 0;
        let mut history = Vec::new();
        for (key, kind, gap) in versions {
            seqno += gap;
            let key = match key {
                0 => Vec::new(),
                1..4 => vec![0; usize::from(key)],
                _ => [b"a long prefix, of more than two columns"[..].to_vec(), vec![key]].concat(),
            };
            let (kind, value) = match kind {
                0..3 => (EntryKind::Put, format!("p{seqno}.")),
                3 | 4 => (EntryKind::Delete, String::new()),
                5 | 6 => (EntryKind::Merge, format!("m{seqno}.")),
                7 => (EntryKind::MergeBlob, format!("o{seqno}.")),
                _ => (EntryKind::PutBlob, format!("b{seqno}.")),
            };
            history.push(Entry { key, seqno, kind, value: value.into_bytes() });
        }
        history
    })
}

/// Deals a history out to sorted sources.
pub(super) fn split(history: &[Entry], sources: usize) -> Vec<Vec<Entry>> {
    let mut lists = vec![Vec::new(); sources];
    for (i, entry) in history.iter().enumerate() {
        // Neither round robin nor runs only.
        lists[(i / 3 + entry.key.len()) % sources].push(entry.clone());
    }
    for list in &mut lists {
        list.sort_by(|a, b| a.order().cmp(&b.order()));
    }
    lists
}

/// What a reader at `snapshot` sees, by applying the versions oldest first: the value of each key,
/// with blobs resolved.
pub(super) fn visible(entries: &[Entry], snapshot: Seqno) -> BTreeMap<Vec<u8>, Vec<u8>> {
    visible_beside(entries, &[], snapshot)
}

/// The same with range deletes.
pub(super) fn visible_beside(
    entries: &[Entry],
    deletes: &[RangeDelete],
    snapshot: Seqno,
) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut versions: Vec<&Entry> = entries.iter().filter(|e| e.seqno <= snapshot.0).collect();
    versions.sort_by_key(|e| e.seqno);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut deletes: Vec<_> = deletes.iter().filter(|delete| delete.seqno <= snapshot).collect();
    deletes.sort_by_key(|delete| delete.seqno);
    let mut deletes = deletes.into_iter().peekable();
    let has = |delete: &RangeDelete, key: &[u8]| {
        *delete.lower <= *key && delete.upper.as_ref().is_none_or(|upper| *key < **upper)
    };
    for version in versions {
        while let Some(delete) = deletes.next_if(|delete| delete.seqno.0 <= version.seqno) {
            model.retain(|key, _| !has(delete, key));
        }
        match version.kind {
            EntryKind::Put => {
                model.insert(version.key.clone(), version.value.clone());
            }
            EntryKind::PutBlob => {
                model.insert(version.key.clone(), blob(&version.value));
            }
            EntryKind::Delete => {
                model.remove(&version.key);
            }
            EntryKind::Merge => {
                model.entry(version.key.clone()).or_default().extend_from_slice(&version.value);
            }
            EntryKind::MergeBlob => {
                model.entry(version.key.clone()).or_default().extend(blob(&version.value));
            }
            EntryKind::RangeDelete => unreachable!("no history has one"),
        }
    }
    deletes.for_each(|delete| model.retain(|key, _| !has(delete, key)));
    model
}

/// Range deletes over the keys of histories.
pub(super) fn arb_range_deletes() -> impl Strategy<Value = Vec<RangeDelete>> {
    let bound = || prop::collection::vec(prop_oneof![0u8..12, any::<u8>()], 0..3);
    let one = (0u64..100, bound(), bound(), 0u8..8).prop_map(|(seqno, one, other, open)| {
        let (lower, upper) = (Bound::from(one.clone().min(other.clone())), one.max(other));
        let upper = (open > 0).then(|| Bound::from([upper, vec![1]].concat()));
        RangeDelete { seqno: Seqno(seqno), lower, upper }
    });
    prop_oneof![Just(Vec::new()), prop::collection::vec(one, 1..6)]
}

/// The value behind a pointer.
pub(super) fn blob(pointer: &[u8]) -> Vec<u8> {
    [b"blob of ", pointer].concat()
}

struct Blobs;

impl BlobReader for Blobs {
    fn read_blob(&self, pointer: &[u8], out: &mut Vec<u8>) -> Result<()> {
        *out = blob(pointer);
        Ok(())
    }

    fn blob_bytes(&self, pointer: &[u8]) -> Option<u64> {
        Some(blob(pointer).len() as u64)
    }
}

/// The context that `visible` models.
pub(super) fn context() -> MergeContext {
    MergeContext {
        operator: Some(Arc::new(Append)),
        blobs: Some(Arc::new(Blobs)),
        ..MergeContext::default()
    }
}

/// A sorted list as an `EntrySource`.
pub(super) struct ListSource {
    list: Vec<Entry>,
    next: usize,
}

impl ListSource {
    pub(super) fn new(list: Vec<Entry>) -> ListSource {
        ListSource { list, next: 0 }
    }
}

impl EntrySource for ListSource {
    fn next(&mut self) -> Result<()> {
        self.next += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.list.get(self.next.checked_sub(1)?).map(Entry::borrow)
    }
}

/// A sorted list as a `Cursor`. It counts its seeks, and with `lazy` it tells a lower bound.
pub(super) struct ListCursor {
    list: Vec<Entry>,
    at: Option<usize>,
    lazy: bool,
    pub(super) seeks: usize,
}

impl ListCursor {
    pub(super) fn new(list: Vec<Entry>, lazy: bool) -> ListCursor {
        ListCursor { list, at: None, lazy, seeks: 0 }
    }

    fn go(&mut self, at: Option<usize>) -> Result<()> {
        self.at = at.filter(|&at| at < self.list.len());
        Ok(())
    }
}

impl MergeSource for ListCursor {
    fn lower_bound(&self, from: Option<&[u8]>) -> Option<&[u8]> {
        // Alternately exact and short of the first key, as separators are.
        let at = from.map_or(0, |from| self.list.partition_point(|e| *e.key < *from));
        let key = &self.list.get(at)?.key;
        let exact = at.is_multiple_of(2);
        self.lazy.then(|| &key[..if exact { key.len() } else { key.len().saturating_sub(1) }])
    }
}

impl Cursor for ListCursor {
    fn seek_first(&mut self) -> Result<()> {
        self.seeks += 1;
        self.go(Some(0))
    }

    fn seek_last(&mut self) -> Result<()> {
        self.seeks += 1;
        self.go(self.list.len().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.seeks += 1;
        self.go(Some(self.list.partition_point(|e| *e.key < *key)))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.seeks += 1;
        self.go(self.list.partition_point(|e| *e.key < *key).checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        assert!(self.at.is_some(), "next needs a position");
        self.go(self.at.map(|at| at + 1))
    }

    fn prev(&mut self) -> Result<()> {
        assert!(self.at.is_some(), "prev needs a position");
        self.go(self.at.and_then(|at| at.checked_sub(1)))
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        self.list.get(self.at?).map(Entry::borrow)
    }
}
