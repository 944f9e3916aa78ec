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

use std::sync::Arc;

use super::range::Bounds;
use super::read::check_readable;
use super::snapshots::SnapshotGuard;
use super::state::{Blobs, KeyspaceState, ReadState};
use super::store::OpenStore;
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::cache::fetch_misses;
use crate::memtable::MemtableCursor;
use crate::merge::{MergeIterator, MergeSource, VisibleIterator};
use crate::table::{CacheUse, TableCursor};
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
}

impl Pass {
    /// The key that was handed out last: nothing goes on before it is asked to.
    #[inline]
    fn last(&self) -> Option<&[u8]> {
        self.visible.as_ref()?.current().map(|current| current.key)
    }
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
    inner: Option<Box<Inner>>,
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
    /// Bytes handed out that the store's counter does not have yet.
    bytes_read: u64,
}

/// Bytes handed out are counted this many at a time, and when an iterator is dropped.
const COUNTED_BYTES: u64 = 64 << 10;

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
        let newest = || read.seqno_at_most(store.committer.visible());
        let mut number = snapshot.map_or_else(newest, |guard| guard.seqno());
        if planted(Bug::IteratorReadsNewest) && snapshot.is_none() {
            number = Seqno::MAX;
        }
        Iter {
            inner: Some(Box::new(Inner {
                store: Arc::clone(store),
                keyspace: Arc::clone(keyspace),
                read,
                snapshot: number,
                _guard: snapshot.cloned(),
                lower,
                upper,
                front: Pass::default(),
                back: Pass::default(),
                bytes_read: 0,
            })),
            error: None,
        }
    }

    /// An iterator that yields an error and ends.
    pub(crate) fn failed(error: Error) -> Iter {
        Iter { inner: None, error: Some(error) }
    }

    #[inline]
    fn step(&mut self, f: impl FnOnce(&mut Inner) -> Result<Option<Pair>>) -> Option<Result<Pair>> {
        match self.inner.as_mut().map(|inner| f(inner)) {
            Some(Ok(Some(pair))) => Some(Ok(pair)),
            Some(other) => self.end(other.err()),
            None => self.error.take().map(Err),
        }
    }

    /// At the end or failed: lets go of what is pinned.
    #[cold]
    fn end(&mut self, error: Option<Error>) -> Option<Result<Pair>> {
        self.inner = None;
        error.map(Err)
    }
}

type Pair = (Slice, Slice);

impl Drop for Inner {
    fn drop(&mut self) {
        self.close_front();
        self.close_back();
        self.store.counters.user_bytes_read.add(self.bytes_read);
    }
}

impl Iterator for Iter {
    type Item = Result<(Slice, Slice)>;

    #[inline]
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
            if self.back.last().is_some_and(overlaps) {
                self.front.ended = true;
                self.back.ended = true;
                return Ok(None);
            }
            let pair = self.pair(current.key, current.kind, current.value)?;
            self.note_bytes_read(&pair);
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
            if self.front.last().is_some_and(|front| current.key <= front) {
                self.front.ended = true;
                self.back.ended = true;
                return Ok(None);
            }
            let pair = self.pair(current.key, current.kind, current.value)?;
            self.note_bytes_read(&pair);
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

    #[inline]
    fn pair(&self, key: &[u8], kind: EntryKind, value: &[u8]) -> Result<Pair> {
        if kind == EntryKind::PutBlob {
            let value = Blobs(Arc::clone(&self.store.blobs)).read(value)?;
            return Ok((Slice::from(key), Slice::from(value)));
        }
        Ok(Slice::pair(key, value))
    }

    #[inline]
    fn note_bytes_read(&mut self, (key, value): &Pair) {
        self.bytes_read += (key.len() + value.len()) as u64;
        if self.bytes_read >= COUNTED_BYTES {
            self.store.counters.user_bytes_read.add(std::mem::take(&mut self.bytes_read));
        }
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
        let mut visible = self.merge(&region, self.cursors(&region, Some(&seek_from), true));
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
        let mut visible = self.merge(&region, self.cursors(&region, before.as_deref(), false));
        visible.seek_last()?;
        self.back.lower = Some(region.lower);
        self.back.upper = region.upper;
        self.back.visible = Some(visible);
        Ok(())
    }

    /// Cursors over all that may hold something of a region, newest first, with what they will read
    /// first in the cache: the pages of all tables that hold keys around `key` are read at once, level by
    /// level, and forward also what is probably needed after it. Tables that begin only behind the sought
    /// key are opened when the merge gets there. What cannot be read is reported by the cursor that needs
    /// it, if any does.
    fn cursors(&self, region: &Region, key: Option<&[u8]>, forward: bool) -> Vec<RunCursor> {
        let slots = std::iter::once(&self.read.active).chain(&self.read.frozen);
        let mut cursors: Vec<RunCursor> = slots
            .filter(|slot| !slot.memtable.is_empty())
            .map(|slot| RunCursor::Memtable(Box::new(slot.memtable.cursor())))
            .collect();
        let tables = region.tables.iter().map(|table| Box::new(table.cursor(CacheUse::Fill)));
        cursors.extend(tables.map(RunCursor::Table));
        let Some(key) = key else { return cursors };
        let due: Vec<&mut TableCursor> = cursors
            .iter_mut()
            .filter_map(|cursor| match cursor {
                RunCursor::Table(cursor) => Some(&mut **cursor),
                RunCursor::Memtable(_) => None,
            })
            .filter(|cursor| cursor.table().first_key() <= key && cursor.table().last_key() >= key)
            .collect();
        if let [only] = &due[..]
            && !(forward && only.expects_more())
        {
            return cursors;
        }
        let upper = self.upper_within(region);
        match self.store.switches.parallel_seeks {
            true => self.foresee(due, key, upper, forward),
            false => due.into_iter().for_each(|one| self.foresee(vec![one], key, upper, forward)),
        }
        cursors
    }

    /// Reads what cursors at `key` will read first into the cache.
    fn foresee(
        &self,
        mut due: Vec<&mut TableCursor>,
        key: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
    ) {
        // As many rounds as an index has levels, and one for the leaves.
        for _ in 0..8 {
            let mut misses = Vec::new();
            due.retain_mut(|cursor| {
                matches!(cursor.foresee(key, upper, forward, &mut misses), Ok(false))
            });
            if misses.is_empty() {
                break;
            }
            let Ok(pages) = fetch_misses(misses) else { break };
            self.store.counters.pages_read.add(u64::from(pages));
        }
    }

    /// Where the region or the iterator ends.
    fn upper_within<'a>(&'a self, region: &'a Region) -> Option<&'a [u8]> {
        match (&self.upper, &region.upper) {
            (Some(own), Some(region)) => Some((&**own).min(region)),
            (own, region) => own.as_deref().or(region.as_deref()),
        }
    }

    /// The pairs of a region, within the iterator's own bounds.
    fn merge(&self, region: &Region, cursors: Vec<RunCursor>) -> VisibleIterator<RunCursor> {
        let lower = match &self.lower {
            Some(lower) if **lower > *region.lower => lower,
            _ => &*region.lower,
        };
        VisibleIterator::new(
            MergeIterator::new(cursors),
            self.snapshot,
            Some(lower),
            self.upper_within(region),
            self.keyspace.merge.clone(),
        )
    }
}
