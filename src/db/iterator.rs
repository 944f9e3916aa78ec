//! Iterators: one snapshot, both directions, no borrow of anything.
//!
//! The tree is read range by range (each has one set of runs): within a range memtables and runs are merged,
//! at its end the next one is opened. Front and back are two
//! passes that stop when they meet.
//!
//! Between calls an iterator needs nothing but its sequence number and the two keys that its passes have
//! reached. Its cursors, and with them the read state that they pin, may be closed by any thread then
//! (`open_iterators`). The next call goes on from the key in the newest read state, which shows the same at
//! the same number.
//!
//! Invariants:
//! 1. An iterator's number is registered before the first read state is loaded and stays registered: every
//!    later read state holds all that is visible at it.
//! 2. Keys come strictly ascending from the front and strictly descending from the back, and no key
//!    from both.
//! 3. A pass without cursors is done with exactly the keys on its side of its `edge`.
//! 4. Cursors are counted with the memory that they use (`OpenIterators::bytes`).

mod damage;

use std::sync::Arc;

use self::damage::Ahead;
use super::damage::DamagedRange;
use super::range::Bounds;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::slice::Slice;
use crate::base::turn_cell::TurnCell;
use crate::cache::fetch_misses;
use crate::memtable::MemtableCursor;
use crate::merge::{MergeIterator, VisibleIterator};
use crate::store::open_iterators::{ClosesCursors, Place};
use crate::store::read::check_readable;
use crate::store::snapshots::{Reader, SnapshotGuard};
use crate::store::state::{KeyspaceState, ReadState};
use crate::store::store::OpenStore;
use crate::tree::run;
use crate::tree::run::Run;
use crate::tree::{RangeAt, RangeRuns, TreeVersion};

/// A cursor over a run or a memtable.
type RunCursor = run::RunCursor<MemtableCursor>;

/// A range that a pass reads.
struct OpenRange {
    visible: VisibleIterator<RunCursor>,
    lower: Arc<[u8]>,
    upper: Option<Arc<[u8]>>,
    /// Where it was taken from. Held until the cursors are closed, so that readers do not drop the last
    /// reference to a version (see `retired`).
    read: Arc<ReadState>,
}

impl OpenRange {
    /// The key that was handed out last: nothing goes on before it is asked to.
    #[inline]
    fn last(&self) -> Option<&[u8]> {
        self.visible.current().map(|current| current.key)
    }

    fn memory_bytes(&self) -> usize {
        let cursors = self.visible.merge().sources().map(RunCursor::memory_bytes);
        size_of::<OpenRange>() + self.visible.memory_bytes() + cursors.sum::<usize>()
    }

    /// Pages that its cursors have read one by one.
    fn pages_read(&self) -> u64 {
        self.visible.merge().sources().map(RunCursor::pages_read).sum()
    }
}

/// Cursors that an iterator has closed, and what they pin, to be dropped.
pub(super) struct Cursors(#[expect(dead_code, reason = "only dropped")] Box<OpenRange>);

/// One end of an iterator.
struct Pass<E> {
    /// Up to which key it is done. While a range is open: when that was opened.
    edge: E,
    open: Option<Box<OpenRange>>,
    /// A part that cannot be read and that the pass has not come to yet.
    ahead: Option<Box<Ahead>>,
    /// A page read ahead could not be read: its cursors read one page after the other.
    careful: bool,
}

impl<E> Pass<E> {
    fn new(edge: E) -> Pass<E> {
        Pass { edge, open: None, ahead: None, careful: false }
    }
}

/// An iterator over (key, value) pairs in key order, from both ends.
///
/// It may outlive every handle but keeps the space of its snapshot from being reclaimed until it is
/// dropped. It shows one moment, that at which it was made, from its first key to its last. After an error
/// it is at its end, unless that is about a range of keys that cannot be read ([`Iter::damaged_range`]).
///
/// # Memory
/// Between two calls an iterator keeps pages and memtables only as long as the newest state has them too and
/// all iterators together fit their share of the memory budget (a sixteenth). Beyond that it keeps less than
/// 1 KiB, and its next call has to find its place anew: about the cost of a new iterator.
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
    inner: Option<Arc<TurnCell<Inner>>>,
    birthplace: Birthplace,
    /// What `new` could not say.
    error: Option<Error>,
    damaged: Option<Box<DamagedRange>>,
}

/// The number that an iterator reads at, kept readable.
enum Number {
    Own(SnapshotGuard),
    Snapshot(Arc<SnapshotGuard>),
}

pub(super) struct Inner {
    store: Arc<OpenStore>,
    keyspace: Arc<KeyspaceState>,
    number: Number,
    /// Its edge: keys below are done.
    front: Pass<Vec<u8>>,
    /// Its edge: keys from there on are done.
    back: Pass<Option<Vec<u8>>>,
    /// Among the iterators that have cursors open.
    place: Option<Place>,
    /// What its cursors were last counted with.
    counted_bytes: usize,
    /// Calls since the cursors were counted, and after how many they are counted anew.
    calls: u32,
    calls_counted: u32,
    /// Its cursors have been closed before.
    resumed: bool,
    /// Bytes handed out that the store's counter does not have yet.
    bytes_read: u64,
    /// What the error is about that is being handed out.
    damaged: Option<Box<DamagedRange>>,
}

/// After so many calls an iterator's cursors are counted anew: they may have grown.
const CALLS_COUNTED: u32 = 64;

/// Bytes handed out are counted this many at a time, and when an iterator is dropped.
const COUNTED_BYTES: u64 = 64 << 10;

impl Iter {
    pub(crate) fn new(
        store: &Arc<OpenStore>,
        keyspace: &Arc<KeyspaceState>,
        snapshot: Option<&Arc<SnapshotGuard>>,
        (lower, upper): Bounds,
    ) -> Iter {
        if let Err(error) = check_readable(store, keyspace).and_then(|()| keyspace.begin_iterator())
        {
            return Iter::failed(error);
        }
        store.counters.iterators.add(1);
        if store.open_iterators.begin() {
            store.share_memory();
        }
        let number = match snapshot {
            Some(guard) => Number::Snapshot(Arc::clone(guard)),
            None => {
                let visible = || store.committer.visible();
                Number::Own(store.snapshots.register(Reader::Iterator, visible))
            }
        };
        let inner = Inner {
            store: Arc::clone(store),
            keyspace: Arc::clone(keyspace),
            number,
            front: Pass::new(lower.unwrap_or_default()),
            back: Pass::new(upper),
            place: None,
            counted_bytes: 0,
            calls: 0,
            calls_counted: store.switches.iterator_calls_max.unwrap_or(CALLS_COUNTED),
            resumed: false,
            bytes_read: 0,
            damaged: None,
        };
        let birthplace = store.birthplace;
        Iter { inner: Some(Arc::new(TurnCell::new(inner))), birthplace, error: None, damaged: None }
    }

    /// An iterator that yields an error and ends.
    pub(crate) fn failed(error: Error) -> Iter {
        Iter { inner: None, birthplace: Birthplace::here(), error: Some(error), damaged: None }
    }

    #[inline]
    fn step(&mut self, f: impl FnOnce(&mut Inner) -> Result<Option<Pair>>) -> Option<Result<Pair>> {
        let result = match &self.inner {
            Some(iterator) if !self.birthplace.is_here() => {
                // In a forked child nobody may be left to end another's turn.
                let path = iterator.try_enter().map(|inner| inner.store.path.clone());
                Err(Error::Forked { path: path.unwrap_or_default() })
            }
            Some(iterator) => {
                let mut inner = iterator.enter();
                let result = f(&mut inner);
                inner.calls += 1;
                if inner.place.is_none() || inner.calls >= inner.calls_counted {
                    inner.count_memory(iterator);
                }
                result
            }
            None => return self.error.take().map(Err),
        };
        match result {
            Ok(Some(pair)) => Some(Ok(pair)),
            other => self.end(other.err()),
        }
    }

    /// At the end or failed: closes everything, unless it can go on behind what failed.
    #[cold]
    fn end(&mut self, error: Option<Error>) -> Option<Result<Pair>> {
        if let Some(iterator) = self.inner.as_ref().filter(|_| self.birthplace.is_here()) {
            self.damaged = iterator.enter().damaged.take();
        }
        if error.is_none() || self.damaged.is_none() {
            self.close();
        }
        error.map(Err)
    }

    /// The keys that the last error is about, if it was that a part of a file is damaged or that the disk does not
    /// give it. The iterator then goes on behind them when it is asked again. What is left out is all that the range
    /// holds: pairs of it that can be read may be outdated.
    ///
    /// `None`: there was no error, or the iterator is at its end.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// let mut iter = items.iter();
    /// while let Some(pair) = iter.next() {
    ///     match (pair, iter.damaged_range()) {
    ///         (Ok((key, value)), _) => println!("{key:?}: {value:?}"),
    ///         (Err(error), Some(range)) => eprintln!("{range}: {error}"),
    ///         (Err(error), None) => return Err(error),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn damaged_range(&self) -> Option<&DamagedRange> {
        self.damaged.as_deref()
    }

    fn close(&mut self) {
        let Some(iterator) = self.inner.take() else { return };
        if !self.birthplace.is_here() {
            // Nor who holds the locks that closing takes, or who needs what is kept.
            std::mem::forget(iterator);
            return;
        }
        let mut inner = iterator.enter();
        let closed = inner.close_cursors();
        if let Some(place) = inner.place.take() {
            // Before the last reference goes: what the place holds is never the last.
            inner.store.open_iterators.leave(place);
        }
        drop(inner);
        drop(closed);
    }
}

impl Drop for Iter {
    fn drop(&mut self) {
        self.close();
    }
}

type Pair = (Slice, Slice);

impl ClosesCursors for Inner {
    fn is_outdated(&self) -> bool {
        let newest = self.keyspace.read.load();
        let mut open = self.front.open.iter().chain(&self.back.open);
        open.any(|open| !Arc::ptr_eq(&open.read, &newest))
    }

    fn close(&mut self, closed: &mut Vec<Box<dyn Send>>) {
        for cursors in self.close_cursors() {
            closed.push(Box::new(cursors));
        }
        self.place = None;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.store.counters.user_bytes_read.add(self.bytes_read);
        self.store.open_iterators.end();
        self.keyspace.end_iterator();
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
    #[inline]
    fn seqno(&self) -> Seqno {
        match &self.number {
            Number::Own(_) if planted(Bug::IteratorReadsNewest) => Seqno::MAX,
            Number::Own(_) if planted(Bug::IteratorResumesLater) && self.resumed => Seqno::MAX,
            Number::Own(guard) => guard.seqno(),
            Number::Snapshot(guard) => guard.seqno(),
        }
    }

    #[inline]
    fn next_front(&mut self) -> Result<Option<Pair>> {
        let is_there = match self.advance_front() {
            Ok(is_there) => is_there,
            Err(error) => self.pass_damage(End::Front, error)?,
        };
        if is_there { self.pair(End::Front) } else { Ok(None) }
    }

    #[inline]
    fn next_back(&mut self) -> Result<Option<Pair>> {
        let is_there = match self.advance_back() {
            Ok(is_there) => is_there,
            Err(error) => self.pass_damage(End::Back, error)?,
        };
        if is_there { self.pair(End::Back) } else { Ok(None) }
    }

    /// Goes to the front's next pair; false if there is none. (Out of line, with what it calls of `visible` and `node`, a
    /// pair of a scan costs a seventh more.)
    #[inline(always)]
    fn advance_front(&mut self) -> Result<bool> {
        loop {
            match &mut self.front.open {
                Some(open) => open.visible.next()?,
                None => {
                    if !self.open_front()? {
                        return self.reach_hole(End::Front);
                    }
                }
            }
            let Some(open) = &self.front.open else { return Ok(false) };
            let Some(current) = open.visible.current() else {
                if self.front.ahead.is_some() {
                    self.leave_range(End::Front);
                    return self.reach_hole(End::Front);
                }
                let Some(upper) = self.leave_range(End::Front) else { return Ok(false) };
                self.front.edge = upper.to_vec();
                continue;
            };
            let back = match &self.back.open {
                Some(open) => open.last(),
                None => self.back.edge.as_deref(),
            };
            let overlaps = |back: &[u8]| match planted(Bug::IteratorEndsOverlap) {
                true => current.key > back,
                false => current.key >= back,
            };
            if back.is_some_and(overlaps) {
                return Ok(false);
            }
            return Ok(true);
        }
    }

    /// Goes to the back's next pair; false if there is none.
    fn advance_back(&mut self) -> Result<bool> {
        loop {
            match &mut self.back.open {
                Some(open) => open.visible.prev()?,
                None => {
                    if !self.open_back()? {
                        return self.reach_hole(End::Back);
                    }
                }
            }
            let Some(open) = &self.back.open else { return Ok(false) };
            let Some(current) = open.visible.current() else {
                if self.back.ahead.is_some() {
                    self.leave_range(End::Back);
                    return self.reach_hole(End::Back);
                }
                match self.leave_range(End::Back) {
                    Some(lower) if !lower.is_empty() => self.back.edge = Some(lower.to_vec()),
                    _ => return Ok(false),
                }
                continue;
            };
            let overlaps = match &self.front.open {
                Some(open) => open.last().is_some_and(|front| current.key <= front),
                None => *current.key < *self.front.edge,
            };
            if overlaps {
                return Ok(false);
            }
            return Ok(true);
        }
    }

    /// Closes a range that has been read to its end; returns the bound that the next one begins at.
    #[cold]
    fn leave_range(&mut self, end: End) -> Option<Arc<[u8]>> {
        let open = match end {
            End::Front => self.front.open.take()?,
            End::Back => self.back.open.take()?,
        };
        self.store.counters.pages_read.add(open.pages_read());
        match end {
            End::Front => open.upper,
            End::Back => Some(open.lower),
        }
    }

    /// Closes all cursors and remembers where they stood. What is returned may take its time to drop.
    fn close_cursors(&mut self) -> impl Iterator<Item = Cursors> + use<> {
        let (front, back) = (self.front.open.take(), self.back.open.take());
        if let Some(last) = front.as_ref().and_then(|open| open.last()) {
            self.front.edge = last.to_vec();
            if !planted(Bug::IteratorResumesAtKey) {
                // The first key after it.
                self.front.edge.push(0);
            }
        }
        if let Some(last) = back.as_ref().and_then(|open| open.last()) {
            let mut edge = last.to_vec();
            if planted(Bug::IteratorResumesAtKey) {
                edge.push(0);
            }
            self.back.edge = Some(edge);
        }
        let pages = front.iter().chain(&back).map(|open| open.pages_read()).sum();
        self.store.counters.pages_read.add(pages);
        self.store.open_iterators.recount(self.counted_bytes, 0);
        self.counted_bytes = 0;
        self.resumed = true;
        front.into_iter().chain(back).map(Cursors)
    }

    /// Counts what its cursors use, and makes room for it.
    #[cold]
    fn count_memory(&mut self, iterator: &Arc<TurnCell<Inner>>) {
        let is_last = self.calls >= self.calls_counted;
        if is_last {
            self.calls = 0;
        }
        if self.front.open.is_none() && self.back.open.is_none() {
            return;
        }
        if is_last && self.store.switches.iterator_calls_max.is_some() {
            drop(self.close_cursors());
            if let Some(place) = self.place.take() {
                self.store.open_iterators.leave(place);
            }
            return;
        }
        let iterators = &self.store.open_iterators;
        if self.place.is_none() {
            self.place = Some(iterators.enter(Arc::<TurnCell<Inner>>::clone(iterator)));
        }
        let open = self.front.open.iter().chain(&self.back.open);
        let bytes = open.map(|open| open.memory_bytes()).sum();
        iterators.recount(self.counted_bytes, bytes);
        self.counted_bytes = bytes;
        iterators.make_room();
    }

    /// The pair that an end stands at.
    #[inline]
    fn pair(&mut self, end: End) -> Result<Option<Pair>> {
        let current = match end {
            End::Front => self.front.open.as_ref().and_then(|open| open.visible.current()),
            End::Back => self.back.open.as_ref().and_then(|open| open.visible.current()),
        };
        let Some(current) = current else { return Ok(None) };
        let pair = match current.kind {
            EntryKind::PutBlob => {
                let (key, pointer) = (Slice::from(current.key), Slice::from(current.value));
                self.blob_pair(key, &pointer)?
            }
            _ => Slice::pair(current.key, current.value),
        };
        self.bytes_read += (pair.0.len() + pair.1.len()) as u64;
        if self.bytes_read >= COUNTED_BYTES {
            self.store.counters.user_bytes_read.add(std::mem::take(&mut self.bytes_read));
        }
        Ok(Some(pair))
    }

    fn runs_at(&self, version: &dyn TreeVersion, at: RangeAt<'_>) -> Result<RangeRuns> {
        let range = version.runs_at(at);
        if range.advances(at) {
            return Ok(range);
        }
        let shown = |key: &[u8]| format!("\"{}\"", key.escape_ascii());
        Err(Error::corruption(
            &self.store.manifest.path(),
            0,
            "bounds of a tree's leaves",
            format_args!("a leaf that leads on from {at:?}"),
            format_args!(
                "one from {} to {:?}",
                shown(&range.lower),
                range.upper.as_deref().map(shown)
            ),
        ))
    }

    /// Opens the range at the front's edge in the newest read state; false at the end.
    fn open_front(&mut self) -> Result<bool> {
        let from = &*self.front.edge;
        if self.back.edge.as_deref().is_some_and(|upper| from >= upper) {
            return Ok(false);
        }
        let read = self.keyspace.read.load_full();
        let range = self.runs_at(&*read.version, RangeAt::Key(from))?;
        let from = from.max(&*range.lower);
        let cursors = self.cursors(&read, &range, Some(from), true);
        let mut visible = self.merge(&range, cursors, End::Front);
        let sought = visible.seek(from);
        let RangeRuns { lower, upper, .. } = range;
        self.front.open = Some(Box::new(OpenRange { visible, lower, upper, read }));
        sought.map(|()| true)
    }

    /// Opens the range below the back's edge in the newest read state; false at the end.
    fn open_back(&mut self) -> Result<bool> {
        let before = self.back.edge.as_deref();
        if before.is_some_and(|before| before <= &*self.front.edge) {
            return Ok(false);
        }
        let read = self.keyspace.read.load_full();
        let range = self.runs_at(&*read.version, RangeAt::Before(before))?;
        let cursors = self.cursors(&read, &range, before, false);
        let mut visible = self.merge(&range, cursors, End::Back);
        let sought = visible.seek_last();
        let RangeRuns { lower, upper, .. } = range;
        self.back.open = Some(Box::new(OpenRange { visible, lower, upper, read }));
        sought.map(|()| true)
    }

    /// Cursors over all that may hold something of a range, newest first, with what they will read
    /// first in the cache: the pages of all runs that hold keys around `key` are read at once, level by
    /// level, and forward also what is probably needed after it. Runs that begin only behind the sought
    /// key are opened when the merge gets there. What cannot be read is reported by the cursor that needs
    /// it, if any does.
    fn cursors(
        &self,
        read: &ReadState,
        range: &RangeRuns,
        key: Option<&[u8]>,
        forward: bool,
    ) -> Vec<RunCursor> {
        let memtables = std::iter::once(&read.active).chain(&read.frozen);
        let mut cursors: Vec<RunCursor> = memtables
            .filter(|memtable| !memtable.memtable.is_empty())
            .map(|memtable| RunCursor::Memtable(Box::new(memtable.memtable.cursor())))
            .collect();
        let (is_careful, limit) = match forward {
            true => (self.front.careful, self.upper_ahead(range)),
            false => (self.back.careful, Some(self.lower_ahead(range))),
        };
        let is_ahead = |run: &&Run| match forward {
            true => {
                key.is_none_or(|key| run.last_key() >= key)
                    && limit.is_none_or(|limit| run.first_key() < limit)
            }
            false => {
                key.is_none_or(|key| run.first_key() < key)
                    && limit.is_none_or(|limit| run.last_key() >= limit)
            }
        };
        cursors.extend(range.runs.iter().filter(is_ahead).map(Run::cursor));
        if is_careful {
            cursors.iter_mut().for_each(|cursor| cursor.go_carefully(limit));
            return cursors;
        }
        let Some(key) = key else { return cursors };
        let due: Vec<&mut RunCursor> =
            cursors.iter_mut().filter(|cursor| cursor.can_prefetch(key)).collect();
        if let [only] = &due[..]
            && !(forward && only.expects_more())
        {
            return cursors;
        }
        let upper = self.upper_within(range);
        match self.store.switches.parallel_seeks {
            true => self.prefetch(due, key, upper, forward),
            false => due.into_iter().for_each(|one| self.prefetch(vec![one], key, upper, forward)),
        }
        cursors
    }

    /// Reads what cursors at `key` will read first into the cache.
    fn prefetch(
        &self,
        mut due: Vec<&mut RunCursor>,
        key: &[u8],
        upper: Option<&[u8]>,
        forward: bool,
    ) {
        // As many rounds as an index has levels, and one for the leaves.
        for _ in 0..8 {
            let mut misses = Vec::new();
            due.retain_mut(|cursor| {
                matches!(cursor.prefetch(key, upper, forward, &mut misses), Ok(false))
            });
            if misses.is_empty() {
                break;
            }
            let Ok(pages) = fetch_misses(misses) else { break };
            self.store.counters.pages_read.add(u64::from(pages));
        }
    }

    /// Where the range or what is left of the iterator ends.
    fn upper_within<'a>(&'a self, range: &'a RangeRuns) -> Option<&'a [u8]> {
        match (&self.back.edge, &range.upper) {
            (Some(own), Some(upper)) => Some((&**own).min(upper)),
            (own, upper) => own.as_deref().or(upper.as_deref()),
        }
    }

    /// Where the front's pass stops: at a hole, or where the range or what is left ends.
    fn upper_ahead<'a>(&'a self, range: &'a RangeRuns) -> Option<&'a [u8]> {
        let hole = self.front.ahead.as_ref().map(|hole| &*hole.range.lower);
        match (self.upper_within(range), hole) {
            (Some(end), Some(hole)) => Some(end.min(hole)),
            (end, hole) => end.or(hole),
        }
    }

    /// The same of the back's pass.
    fn lower_ahead<'a>(&'a self, range: &'a RangeRuns) -> &'a [u8] {
        let hole = self.back.ahead.as_ref().and_then(|hole| hole.range.upper.as_deref());
        (&*self.front.edge).max(&*range.lower).max(hole.unwrap_or_default())
    }

    /// The pairs of a range that no pass had gone by when it was last opened, up to a hole on the way.
    fn merge(
        &self,
        range: &RangeRuns,
        cursors: Vec<RunCursor>,
        end: End,
    ) -> VisibleIterator<RunCursor> {
        let (lower, upper) = match end {
            End::Front => ((&*self.front.edge).max(&*range.lower), self.upper_ahead(range)),
            End::Back => (self.lower_ahead(range), self.upper_within(range)),
        };
        VisibleIterator::new(
            MergeIterator::new(cursors),
            self.seqno(),
            Some(lower),
            upper,
            self.keyspace.merge.clone(),
        )
    }
}

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::open_iterators::ITERATOR_BYTES;

    #[test]
    fn an_iterator_without_cursors_is_small() {
        // The number's place in a map and the allocations' heads are the rest.
        let bytes = size_of::<TurnCell<Inner>>() + size_of::<Iter>();
        assert!(bytes as u64 + 128 <= ITERATOR_BYTES, "{bytes} bytes");
    }
}
