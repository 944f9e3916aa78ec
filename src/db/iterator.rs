//! [`Iter`], a double-ended iterator over a snapshot of a keyspace. It borrows nothing.
//!
//! The tree is read range by range; each range has one set of runs. Within a range, memtables and runs are
//! merged. At its end, the next range is opened. The front and the back are two passes that stop when they
//! meet.
//!
//! Between calls, an iterator needs only its sequence number and the two keys that its passes have reached.
//! Any thread may then close its cursors, which releases the read state that they pin (`open_iterators`).
//! The next call continues from the key in the newest read state, which has the same content at the same
//! sequence number.
//!
//! Invariants:
//! 1. An iterator's sequence number is registered before the first read state is loaded, and stays
//!    registered: every later read state has all versions visible at it.
//! 2. Keys from the front ascend strictly, keys from the back descend strictly, and no key is yielded twice.
//! 3. A pass without cursors has yielded exactly the keys on its side of its `edge`.
//! 4. The memory of open cursors is counted (`OpenIterators::bytes`).
//! 5. A run of dead entries (`dead`) is known only within a call.

mod damage;
mod dead;
mod keys;
mod opening;
mod seek;
#[cfg(all(test, not(any(loom, shuttle, miri))))]
mod seek_tests;
mod values;

use std::sync::Arc;

use self::damage::Ahead;
use self::dead::DeadRun;
pub use self::keys::Keys;
use self::values::Values;
use super::damage::DamagedRange;
use super::range::Bounds;
use crate::base::entry::EntryKind;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::slice::Slice;
use crate::base::turn_cell::TurnCell;
use crate::memtable::MemtableCursor;
use crate::merge::VisibleIterator;
use crate::store::open_iterators::{ClosesCursors, Place};
use crate::store::read::check_readable;
use crate::store::snapshots::{Reader, SnapshotGuard};
use crate::store::state::{KeyspaceState, ReadState};
use crate::store::store::OpenStore;
use crate::tree::placed_pass::PlacedPass;
use crate::tree::run;
use crate::tree::run::Run;

/// A cursor over a run or a memtable.
type RunCursor = run::RunCursor<MemtableCursor>;

/// A range that a pass reads.
struct OpenRange {
    visible: VisibleIterator<RunCursor>,
    lower: Arc<[u8]>,
    upper: Option<Arc<[u8]>>,
    /// The read state that the cursors belong to. Held until they are closed, so that readers do not drop
    /// the last reference to a version (see `retired`).
    read: Arc<ReadState>,
}

impl OpenRange {
    /// The key yielded last. The cursors advance only on the next call.
    #[inline]
    fn last(&self) -> Option<&[u8]> {
        self.visible.current().map(|current| current.key)
    }

    fn memory_bytes(&self) -> usize {
        let cursors = self.visible.merge().sources().map(RunCursor::memory_bytes);
        size_of::<OpenRange>() + self.visible.memory_bytes() + cursors.sum::<usize>()
    }

    /// The number of pages that the cursors have read one by one.
    fn pages_read(&self) -> u64 {
        self.visible.merge().sources().map(RunCursor::pages_read).sum()
    }
}

/// Closed cursors and the read state that they pin, to be dropped.
pub(super) struct Cursors(#[expect(dead_code, reason = "only dropped")] Box<OpenRange>);

/// One end of an iterator.
struct Pass<E> {
    /// The key up to which the pass has yielded all pairs. While a range is open, its value when the range
    /// was opened.
    edge: E,
    open: Option<Box<OpenRange>>,
    /// An unreadable part that the pass has not reached yet.
    ahead: Option<Box<Ahead>>,
    /// True after a page of the read-ahead failed: the cursors then read one page at a time.
    careful: bool,
    /// What was read in the ranges before, as a cursor says it ([`RunCursor::take_pass`]).
    before: Option<Box<PlacedPass>>,
}

impl<E> Pass<E> {
    fn new(edge: E) -> Pass<E> {
        Pass { edge, open: None, ahead: None, careful: false, before: None }
    }
}

/// A double-ended iterator over (key, value) pairs in key order.
///
/// It shows the state of the keyspace at the moment of its creation. It may outlive every other handle. Until
/// it is dropped or has reached its end, the disk space of the versions that it sees is not reclaimed. (One that has been
/// sought may be led back from its end, so it keeps them; see [`Iter::seek`].) It ends after an error,
/// except if a range of keys cannot be read: then it can continue after that range
/// ([`Iter::damaged_range`]).
///
/// # Memory
/// Between two calls, an iterator pins pages and memtables only while the newest state has them too and all
/// iterators together fit into a quarter of the memory budget. Otherwise it uses less than 1 KiB, and its next call
/// has to seek again, at about the cost of a new iterator.
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
    /// The same once an iterator that is sought has reached its end: a seek may lead back.
    at_end: Option<Arc<TurnCell<Inner>>>,
    /// It has been sought. If not, it gives back what it pins as soon as it has reached its end.
    was_sought: bool,
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
    /// The range that it was made for; `None` if that is all keys.
    bounds: Option<Box<Bounds>>,
    /// The front is to go on at its edge, though its cursors are elsewhere (`seek`).
    is_sought: bool,
    /// Its edge: keys below are done.
    front: Pass<Vec<u8>>,
    /// Its edge: keys from there on are done.
    back: Pass<Option<Vec<u8>>>,
    /// Among the iterators that have cursors open.
    place: Option<Place>,
    /// What its cursors were last counted with.
    counted_bytes: usize,
    /// Calls since the cursors' memory was counted, and the number of calls between two counts.
    calls: u32,
    calls_counted: u32,
    /// True once its cursors have been closed and opened again.
    resumed: bool,
    /// Bytes yielded that are not yet in the store's counter.
    bytes_read: u64,
    /// True if no values are asked for.
    keys_only: bool,
    /// Made when the first value in a blob file is read.
    values: Option<Box<Values>>,
    /// The range of the error that is being returned.
    damaged: Option<Box<DamagedRange>>,
    /// The dead entries that the current call has passed since the last pair, if they are many.
    run: Option<Box<DeadRun>>,
}

/// Number of calls after which the memory of an iterator's cursors is counted again: it may have grown.
const CALLS_COUNTED: u32 = 64;

/// Bytes yielded are added to the store's counter in steps of this size, and when the iterator is dropped.
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
        let is_all = lower.is_none() && upper.is_none();
        let inner = Inner {
            store: Arc::clone(store),
            keyspace: Arc::clone(keyspace),
            number,
            bounds: (!is_all).then(|| Box::new((lower.clone(), upper.clone()))),
            is_sought: false,
            front: Pass::new(lower.unwrap_or_default()),
            back: Pass::new(upper),
            place: None,
            counted_bytes: 0,
            calls: 0,
            calls_counted: store.switches.iterator_calls_max.unwrap_or(CALLS_COUNTED),
            resumed: false,
            bytes_read: 0,
            keys_only: false,
            values: None,
            damaged: None,
            run: None,
        };
        let birthplace = store.birthplace;
        let inner = Some(Arc::new(TurnCell::new(inner)));
        Iter { inner, at_end: None, was_sought: false, birthplace, error: None, damaged: None }
    }

    /// Returns an iterator that yields `error` and ends.
    pub(crate) fn failed(error: Error) -> Iter {
        let birthplace = Birthplace::here();
        let error = Some(error);
        Iter { inner: None, at_end: None, was_sought: false, birthplace, error, damaged: None }
    }

    #[inline]
    fn step(&mut self, f: impl FnOnce(&mut Inner) -> Result<Option<Pair>>) -> Option<Result<Pair>> {
        let result = match &self.inner {
            Some(iterator) if !self.birthplace.is_here() => {
                // In a forked child, the thread that holds the turn may not exist: do not wait for it.
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

    /// Handles the end or an error: closes the cursors, unless the iterator can continue after the error.
    #[cold]
    fn end(&mut self, error: Option<Error>) -> Option<Result<Pair>> {
        if let Some(iterator) = self.inner.as_ref().filter(|_| self.birthplace.is_here()) {
            self.damaged = iterator.enter().damaged.take();
        }
        match error {
            None if self.was_sought => self.rest(),
            Some(_) if self.damaged.is_some() => {}
            _ => self.close(),
        }
        error.map(Err)
    }

    /// Closes the cursors at the end.
    fn rest(&mut self) {
        let Some(iterator) = self.inner.take() else { return };
        let mut inner = iterator.enter();
        let closed = inner.close_cursors();
        inner.leave_place();
        let read = std::mem::take(&mut inner.bytes_read);
        inner.store.counters.user_bytes_read.add(read);
        drop(inner);
        drop(closed);
        self.at_end = Some(iterator);
    }

    /// Returns the range of keys that the last error is about, if a part of a file is damaged or cannot be read.
    /// The next call then continues after the range. All pairs of the range are skipped, because readable
    /// versions in it may be outdated.
    ///
    /// Returns `None` if there was no error or the iterator is at its end.
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
        let Some(iterator) = self.inner.take().or_else(|| self.at_end.take()) else { return };
        if !self.birthplace.is_here() {
            // In a forked child, locks may be held by threads that do not exist. Leaks the cursors.
            std::mem::forget(iterator);
            return;
        }
        let mut inner = iterator.enter();
        let closed = inner.close_cursors();
        if let Some(place) = inner.place.take() {
            // Must precede the drop of the iterator: the place never holds the last reference.
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

    fn keeps_memtables(&self) -> bool {
        let newest = self.keyspace.read.load();
        let mut open = self.front.open.iter().chain(&self.back.open);
        open.any(|open| newest.lacks_memtables_of(&open.read))
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
        let advanced = match self.is_sought {
            false => self.advance_front(),
            true => self.advance_to_sought(),
        };
        let is_there = match advanced {
            Ok(is_there) => is_there,
            Err(error) => self.pass_damage(End::Front, error)?,
        };
        if self.run.is_some() {
            self.end_run(End::Front);
        }
        if is_there { self.pair(End::Front) } else { Ok(None) }
    }

    #[inline]
    fn next_back(&mut self) -> Result<Option<Pair>> {
        let is_there = match self.advance_back() {
            Ok(is_there) => is_there,
            Err(error) => self.pass_damage(End::Back, error)?,
        };
        if self.run.is_some() {
            self.end_run(End::Back);
        }
        if is_there { self.pair(End::Back) } else { Ok(None) }
    }

    /// Advances the front to its next pair; returns false if there is none. (Inlined, with its callees in
    /// `visible` and `node`: out of line, each pair of a scan costs a seventh more.)
    #[inline(always)]
    fn advance_front(&mut self) -> Result<bool> {
        loop {
            let is_new = self.front.open.is_none();
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
                if open.visible.is_paused() {
                    self.pass_dead(End::Front, is_new);
                    continue;
                }
                let upper = self.leave_range(End::Front);
                let ahead = self.front.ahead.as_ref().map(|hole| &hole.range.lower);
                // The range may have become smaller than it was when the hole was met.
                if ahead.is_some_and(|lower| upper.as_deref().is_none_or(|upper| upper > lower)) {
                    return self.reach_hole(End::Front);
                }
                let Some(upper) = upper else { return Ok(false) };
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

    /// Advances the back to its next pair; returns false if there is none.
    fn advance_back(&mut self) -> Result<bool> {
        loop {
            let is_new = self.back.open.is_none();
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
                if open.visible.is_paused() {
                    self.pass_dead(End::Back, is_new);
                    continue;
                }
                let lower = self.leave_range(End::Back);
                let ahead = self.back.ahead.as_ref().map(|hole| hole.range.upper.as_deref());
                let is_reached = |upper: &[u8]| lower.as_deref().is_none_or(|lower| lower < upper);
                if ahead.is_some_and(|upper| upper.is_none_or(is_reached)) {
                    return self.reach_hole(End::Back);
                }
                match lower {
                    Some(lower) if !lower.is_empty() => self.back.edge = Some(lower.to_vec()),
                    _ => return Ok(false),
                }
                continue;
            };
            let overlaps = match self.front_range() {
                Some(open) => open.last().is_some_and(|front| current.key <= front),
                None => *current.key < *self.front.edge,
            };
            if overlaps {
                return Ok(false);
            }
            return Ok(true);
        }
    }

    /// Closes a range that has been read to its end. Returns the bound at which the next range begins.
    #[cold]
    fn leave_range(&mut self, end: End) -> Option<Arc<[u8]>> {
        let mut open = match end {
            End::Front => self.front.open.take()?,
            End::Back => self.back.open.take()?,
        };
        self.count_work(&open);
        if let Some(run) = &mut self.run {
            run.leave(&open.visible, end);
        }
        let upper = self.back.edge.as_deref();
        let is_last = match end {
            End::Front => open.upper.as_deref().is_none_or(|to| upper.is_some_and(|end| to >= end)),
            End::Back => *open.lower <= *self.front.edge,
        };
        if is_last {
            open.visible.merge().sources().for_each(RunCursor::end);
        }
        let before = open.visible.merge_mut().sources_mut().find_map(RunCursor::take_pass);
        match end {
            End::Front => {
                self.front.before = before;
                open.upper
            }
            End::Back => {
                self.back.before = before;
                Some(open.lower)
            }
        }
    }

    /// The front's range, if the front is where its cursors are.
    fn front_range(&self) -> Option<&OpenRange> {
        self.front.open.as_deref().filter(|_| !self.is_sought)
    }

    /// Closes all cursors and records their positions. The result may be slow to drop.
    fn close_cursors(&mut self) -> impl Iterator<Item = Cursors> + use<> {
        let (front, back) = (self.front.open.take(), self.back.open.take());
        let is_sought = std::mem::take(&mut self.is_sought);
        if let Some(last) = front.as_ref().and_then(|open| open.last()).filter(|_| !is_sought) {
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
        for open in front.iter().chain(&back) {
            self.count_work(open);
            open.visible.merge().sources().for_each(RunCursor::end);
        }
        self.store.open_iterators.recount(self.counted_bytes, 0);
        self.counted_bytes = 0;
        if let Some(values) = &mut self.values {
            values.close();
        }
        self.resumed = true;
        front.into_iter().chain(back).map(Cursors)
    }

    /// Adds the work of cursors that are being closed to the store's counters.
    fn count_work(&self, open: &OpenRange) {
        self.store.counters.pages_read.add(open.pages_read());
        self.store.counters.dead_entries.add(open.visible.dead());
    }

    /// Counts the memory of the cursors, and closes cursors of other iterators if there is too little room.
    #[cold]
    fn count_memory(&mut self, iterator: &Arc<TurnCell<Inner>>) {
        let is_last = self.calls >= self.calls_counted;
        if is_last {
            self.calls = 0;
        }
        if self.front.open.is_none() && self.back.open.is_none() {
            return;
        }
        if is_last && (self.store.switches.iterator_calls_max.is_some() || self.keeps_too_much()) {
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
        self.recount(self.memory_bytes());
    }

    /// Whether the cursors pin memtables that only readers need, while these keep many. An iterator that is called all the time
    /// is rarely found idle, so it has to look itself.
    fn keeps_too_much(&self) -> bool {
        self.store.is_kept_scarce() && self.keeps_memtables()
    }

    /// Memory of the cursors, and of values that were read ahead.
    fn memory_bytes(&self) -> usize {
        let open = self.front.open.iter().chain(&self.back.open);
        let values = self.values.as_ref().map_or(0, |values| values.memory_bytes());
        values + open.map(|open| open.memory_bytes()).sum::<usize>()
    }

    /// Counts the iterator with so many bytes.
    fn recount(&mut self, bytes: usize) {
        let iterators = &self.store.open_iterators;
        iterators.recount(self.counted_bytes, bytes);
        self.counted_bytes = bytes;
        iterators.make_room();
    }

    /// Returns the current pair of an end.
    #[inline]
    fn pair(&mut self, end: End) -> Result<Option<Pair>> {
        if self.keys_only {
            return Ok(self.key_alone(end));
        }
        let current = match end {
            End::Front => self.front.open.as_ref().and_then(|open| open.visible.current()),
            End::Back => self.back.open.as_ref().and_then(|open| open.visible.current()),
        };
        let Some(current) = current else { return Ok(None) };
        let pair = match current.kind {
            EntryKind::PutBlob => {
                let (key, pointer) = (Slice::from(current.key), Slice::from(current.value));
                self.blob_pair(end, key, &pointer)?
            }
            _ => Slice::pair(current.key, current.value),
        };
        self.count_read(pair.0.len() + pair.1.len());
        Ok(Some(pair))
    }

    #[inline]
    fn count_read(&mut self, bytes: usize) {
        self.bytes_read += bytes as u64;
        if self.bytes_read >= COUNTED_BYTES {
            self.store.counters.user_bytes_read.add(std::mem::take(&mut self.bytes_read));
        }
    }
}

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

impl End {
    fn other(self) -> End {
        match self {
            End::Front => End::Back,
            End::Back => End::Front,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::open_iterators::ITERATOR_BYTES;

    #[test]
    fn an_iterator_without_cursors_is_small() {
        // The rest is the sequence number's place in a map, and allocator headers.
        let bytes = size_of::<TurnCell<Inner>>() + size_of::<Iter>();
        assert!(bytes as u64 + 128 <= ITERATOR_BYTES, "{bytes} bytes");
    }
}
