//! Iterators: one snapshot, both directions, no borrow of anything.
//!
//! The tree is read region by region (a region is a stretch of keys with one set of tables): within a
//! region memtables and tables are merged, at its end the next one is opened. Front and back are two
//! passes that stop when they meet.
//!
//! Invariants:
//! 1. An iterator reads one `ReadState` at one number: nothing that happens meanwhile shows.
//! 2. Keys come strictly ascending from the front and strictly descending from the back, and no key
//!    from both.

use std::ops::Bound;
use std::sync::Arc;

use super::read::check_readable;
use super::snapshots::SnapshotGuard;
use super::state::{Blobs, KeyspaceState, ReadState};
use super::store::OpenStore;
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::cache::{ReadContext, fetch_misses};
use crate::memtable::MemtableCursor;
use crate::merge::{MergeIterator, MergeSource, VisibleIterator};
use crate::table::{CacheUse, Table, TableCursor};
use crate::tree::{Region, RegionAt};

/// A cursor over either kind of run.
enum RunCursor {
    Memtable(Box<MemtableCursor>),
    Table(Box<TableCursor>),
}

macro_rules! either {
    ($self:ident, $cursor:ident => $call:expr) => {
        match $self {
            RunCursor::Memtable($cursor) => $call,
            RunCursor::Table($cursor) => $call,
        }
    };
}

impl Cursor for RunCursor {
    fn seek_first(&mut self) -> Result<()> {
        either!(self, cursor => cursor.seek_first())
    }

    fn seek_last(&mut self) -> Result<()> {
        either!(self, cursor => cursor.seek_last())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        either!(self, cursor => cursor.seek(key))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        either!(self, cursor => cursor.seek_before(key))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        either!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        either!(self, cursor => cursor.prev())
    }

    #[inline]
    fn entry(&self) -> Option<EntryRef<'_>> {
        either!(self, cursor => cursor.entry())
    }
}

impl MergeSource for RunCursor {
    fn lower_bound(&self, from: Option<&[u8]>) -> Option<&[u8]> {
        match self {
            RunCursor::Memtable(_) => None,
            RunCursor::Table(cursor) => {
                let first = cursor.table().first_key();
                // Only a bound ahead of the sought key puts anything off.
                (from.is_none_or(|from| first > from)).then_some(first)
            }
        }
    }
}

/// One end of an iterator.
#[derive(Default)]
struct Pass {
    visible: Option<VisibleIterator<RunCursor>>,
    /// The region that is open.
    lower: Option<Arc<[u8]>>,
    upper: Option<Arc<[u8]>>,
    started: bool,
    ended: bool,
    /// The last key that was handed out.
    last: Option<Vec<u8>>,
}

/// An iterator over (key, value) pairs in key order, from both ends.
///
/// It owns what it reads: it may outlive every handle but keeps the space of its snapshot from being
/// reclaimed until it is dropped. After an error it is at its end.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder_in_memory().open()?;
/// let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// items.put("a", "1")?;
/// items.put("b", "2")?;
/// let mut iter = items.iter();
/// items.put("c", "3")?; // not seen by `iter`
/// let (key, value) = iter.next_back().unwrap()?;
/// assert_eq!((&*key, &*value), (&b"b"[..], &b"2"[..]));
/// assert_eq!(iter.count(), 1);
/// # Ok(()) }
/// ```
pub struct Iter {
    inner: Option<Inner>,
    /// What `new` could not say.
    error: Option<Error>,
}

struct Inner {
    store: Arc<OpenStore>,
    keyspace: Arc<KeyspaceState>,
    read: Arc<ReadState>,
    snapshot: Seqno,
    _guard: Option<Arc<SnapshotGuard>>,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    front: Pass,
    back: Pass,
}

/// An inclusive lower and an exclusive upper bound.
pub(crate) type Bounds = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The bounds that a range stands for.
pub(crate) fn bounds_of<K: AsRef<[u8]>>(lower: Bound<&K>, upper: Bound<&K>) -> Bounds {
    // The first key after `key` is `key` with a zero byte.
    let after = |key: &K| [key.as_ref(), &[0]].concat();
    let lower = match lower {
        Bound::Included(key) => Some(key.as_ref().to_vec()),
        Bound::Excluded(key) => Some(after(key)),
        Bound::Unbounded => None,
    };
    let upper = match upper {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) if planted(Bug::RangeEndInclusive) => Some(after(key)),
        Bound::Excluded(key) => Some(key.as_ref().to_vec()),
        Bound::Unbounded => None,
    };
    (lower, upper)
}

/// The bounds of the keys that start with `prefix`.
pub(crate) fn bounds_of_prefix(prefix: &[u8]) -> Bounds {
    let mut upper = prefix.to_vec();
    while let Some(last) = upper.pop() {
        if last < 0xff {
            upper.push(last + 1);
            return (Some(prefix.to_vec()), Some(upper));
        }
    }
    (Some(prefix.to_vec()), None)
}

impl Iter {
    pub(crate) fn new(
        store: &Arc<OpenStore>,
        keyspace: &Arc<KeyspaceState>,
        snapshot: Option<&Arc<SnapshotGuard>>,
        (lower, upper): Bounds,
    ) -> Iter {
        if let Err(error) = check_readable(store, keyspace) {
            return Iter::failed(error);
        }
        store.counters.iterators.add(1);
        // First the state, then the number, as for point reads.
        let read = keyspace.read.load_full();
        let mut number = snapshot.map_or_else(|| store.committer.visible(), |guard| guard.seqno());
        if planted(Bug::IteratorReadsNewest) && snapshot.is_none() {
            number = Seqno::MAX;
        }
        Iter {
            inner: Some(Inner {
                store: Arc::clone(store),
                keyspace: Arc::clone(keyspace),
                read,
                snapshot: number,
                _guard: snapshot.cloned(),
                lower,
                upper,
                front: Pass::default(),
                back: Pass::default(),
            }),
            error: None,
        }
    }

    /// An iterator that yields an error and ends.
    pub(crate) fn failed(error: Error) -> Iter {
        Iter { inner: None, error: Some(error) }
    }

    fn step(&mut self, f: impl FnOnce(&mut Inner) -> Result<Option<Pair>>) -> Option<Result<Pair>> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        let result = match self.inner.as_mut() {
            Some(inner) => f(inner).transpose(),
            None => None,
        };
        if !matches!(result, Some(Ok(_))) {
            // At the end or failed: let go of what is pinned.
            self.inner = None;
        }
        result
    }
}

type Pair = (Slice, Slice);

impl Drop for Inner {
    fn drop(&mut self) {
        self.close_front();
        self.close_back();
    }
}

impl Iterator for Iter {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(Inner::next_front)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Inner::next_back)
    }
}

impl std::iter::FusedIterator for Iter {}

impl Inner {
    fn next_front(&mut self) -> Result<Option<Pair>> {
        loop {
            if self.front.ended {
                return Ok(None);
            }
            match &mut self.front.visible {
                Some(visible) => visible.next()?,
                None => self.open_front()?,
            }
            let Some(visible) = &self.front.visible else { continue };
            let Some(current) = visible.current() else {
                self.close_front();
                if self.front.upper.is_none() {
                    self.front.ended = true;
                }
                continue;
            };
            let overlaps = |back: &[u8]| match planted(Bug::IteratorEndsOverlap) {
                true => current.key > back,
                false => current.key >= back,
            };
            if self.back.last.as_deref().is_some_and(overlaps) {
                self.front.ended = true;
                self.back.ended = true;
                return Ok(None);
            }
            let pair = self.pair(current.key, current.kind, current.value)?;
            let last = self.front.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(&pair.0);
            return Ok(Some(pair));
        }
    }

    fn next_back(&mut self) -> Result<Option<Pair>> {
        loop {
            if self.back.ended {
                return Ok(None);
            }
            match &mut self.back.visible {
                Some(visible) => visible.prev()?,
                None => self.open_back()?,
            }
            let Some(visible) = &self.back.visible else { continue };
            let Some(current) = visible.current() else {
                self.close_back();
                if self.back.lower.as_ref().is_none_or(|lower| lower.is_empty()) {
                    self.back.ended = true;
                }
                continue;
            };
            if self.front.last.as_deref().is_some_and(|front| current.key <= front) {
                self.front.ended = true;
                self.back.ended = true;
                return Ok(None);
            }
            let pair = self.pair(current.key, current.kind, current.value)?;
            let last = self.back.last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(&pair.0);
            return Ok(Some(pair));
        }
    }

    fn close_front(&mut self) {
        let closed = self.front.visible.take();
        self.count_pages(closed);
    }

    fn close_back(&mut self) {
        let closed = self.back.visible.take();
        self.count_pages(closed);
    }

    /// Counts what a region's cursors have read.
    fn count_pages(&self, closed: Option<VisibleIterator<RunCursor>>) {
        let Some(closed) = closed else { return };
        let pages: u64 = closed
            .merge()
            .sources()
            .map(|cursor| match cursor {
                RunCursor::Memtable(_) => 0,
                RunCursor::Table(cursor) => u64::from(cursor.pages_read()),
            })
            .sum();
        self.store.counters.pages_read.add(pages);
    }

    fn pair(&self, key: &[u8], kind: EntryKind, value: &[u8]) -> Result<Pair> {
        let value = if kind == EntryKind::PutBlob {
            Slice::from(Blobs(Arc::clone(&self.store.blobs)).read(value)?)
        } else {
            Slice::from(value)
        };
        self.store.counters.user_bytes_read.add((key.len() + value.len()) as u64);
        Ok((Slice::from(key), value))
    }

    fn region(&self, at: RegionAt<'_>) -> Result<Region> {
        let region = self.read.version.region(at);
        if region.leads_on(at) {
            return Ok(region);
        }
        let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
        Err(Error::corruption(
            &self.store.manifest.path(),
            0,
            "bounds of a tree's leaves",
            format_args!("a leaf that leads on from {at:?}"),
            format_args!(
                "one from {} to {:?}",
                shown(&region.lower),
                region.upper.as_deref().map(shown)
            ),
        ))
    }

    /// Opens the next region at the front, or ends.
    fn open_front(&mut self) -> Result<()> {
        let from: Arc<[u8]> = if self.front.started {
            match &self.front.upper {
                Some(upper) => Arc::clone(upper),
                None => {
                    self.front.ended = true;
                    return Ok(());
                }
            }
        } else {
            Arc::from(self.lower.as_deref().unwrap_or_default())
        };
        self.front.started = true;
        if self.upper.as_deref().is_some_and(|upper| *from >= *upper) {
            self.front.ended = true;
            return Ok(());
        }
        let region = self.region(RegionAt::Key(&from))?;
        let seek_from = from.max(Arc::clone(&region.lower));
        self.prefetch(&region, Some(&seek_from))?;
        let mut visible = self.merge(&region);
        visible.seek(&seek_from)?;
        self.front.lower = Some(region.lower);
        self.front.upper = region.upper;
        self.front.visible = Some(visible);
        Ok(())
    }

    /// Opens the next region at the back, or ends.
    fn open_back(&mut self) -> Result<()> {
        let before: Option<Arc<[u8]>> = if self.back.started {
            match &self.back.lower {
                Some(lower) if !lower.is_empty() => Some(Arc::clone(lower)),
                _ => {
                    self.back.ended = true;
                    return Ok(());
                }
            }
        } else {
            self.upper.as_deref().map(Arc::from)
        };
        self.back.started = true;
        let empty = match (&before, &self.lower) {
            (Some(before), Some(lower)) => **before <= **lower,
            (Some(before), None) => before.is_empty(),
            (None, _) => false,
        };
        if empty {
            self.back.ended = true;
            return Ok(());
        }
        let region = self.region(RegionAt::Before(before.as_deref()))?;
        self.prefetch(&region, before.as_deref())?;
        let mut visible = self.merge(&region);
        visible.seek_last()?;
        self.back.lower = Some(region.lower);
        self.back.upper = region.upper;
        self.back.visible = Some(visible);
        Ok(())
    }

    /// The pairs of a region, within the iterator's own bounds.
    fn merge(&self, region: &Region) -> VisibleIterator<RunCursor> {
        let slots = std::iter::once(&self.read.active).chain(&self.read.frozen);
        let mut cursors: Vec<RunCursor> = slots
            .filter(|slot| !slot.memtable.is_empty())
            .map(|slot| RunCursor::Memtable(Box::new(slot.memtable.cursor())))
            .collect();
        cursors.extend(
            region
                .tables
                .iter()
                .map(|table| RunCursor::Table(Box::new(table.cursor(CacheUse::Fill)))),
        );
        let lower = match &self.lower {
            Some(lower) if **lower > *region.lower => lower,
            _ => &*region.lower,
        };
        let upper = match (&self.upper, &region.upper) {
            (Some(own), Some(region)) => Some((&**own).min(region)),
            (Some(own), None) => Some(&**own),
            (None, region) => region.as_deref(),
        };
        VisibleIterator::new(
            MergeIterator::new(cursors),
            self.snapshot,
            Some(lower),
            upper,
            self.keyspace.merge.clone(),
        )
    }

    /// Reads what the region's tables need for a first seek, all at once, level by level. Tables that
    /// begin only behind the sought key are opened when the merge gets there.
    fn prefetch(&self, region: &Region, key: Option<&[u8]>) -> Result<()> {
        let Some(key) = key else { return Ok(()) };
        let due = |table: &&Arc<Table>| table.first_key() <= key && table.last_key() >= key;
        let tables: Vec<&Arc<Table>> = region.tables.iter().filter(due).collect();
        if tables.len() < 2 {
            return Ok(());
        }
        // As many rounds as an index has levels, and one for the leaves.
        for _ in 0..8 {
            let mut context = ReadContext::collecting();
            for table in &tables {
                match table.locate(key, &context) {
                    Ok(_) | Err(Error::NotResident) => {}
                    Err(error) => return Err(error),
                }
            }
            let misses = context.misses.take().map(|misses| misses.into_inner());
            match misses {
                Some(misses) if !misses.is_empty() => {
                    let pages = fetch_misses(misses)?;
                    self.store.counters.pages_read.add(u64::from(pages));
                }
                _ => break,
            }
        }
        Ok(())
    }
}
