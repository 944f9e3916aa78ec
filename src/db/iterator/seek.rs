//! Seeking on a living iterator: it goes on from another key, with the cursors that it has.
//!
//! A seek only notes where the iterator is to go on. The next call goes there: it steps forward if the key is near, or else
//! positions the open cursors anew; each looks first into the page that it has loaded. A range of the tree is opened only if
//! the key is outside the one that is open.
//!
//! Invariants:
//! 1. After a seek the iterator is one over the part of its original bounds on one side of the key, and has yielded
//!    nothing of it.
//! 2. `Inner::is_sought` is set only between a seek of the front and its next call; the edge of the pass is the key meanwhile.

use super::{End, Inner, Iter, OpenRange, RunCursor};
use crate::base::error::Result;
use crate::db::damage::after;
use crate::store::read::check_readable;
use crate::store::snapshots::Reader;

/// So many pairs are stepped over before the cursors are positioned anew.
const STEPS_MAX: usize = 4;

impl Iter {
    /// Goes on at `key`: the next pair from the front is the first one at or after it. The iterator is then as one that was
    /// made for the part of its range from `key` on, but at the same moment as before. A key in the same page needs no new
    /// descent.
    ///
    /// An iterator that has been sought can go on after its end. One that reaches its end before its first seek has given back
    /// what it pinned, and stays there, as one that has ended with an error.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// for key in ["a1", "a2", "b1", "b2", "c1"] {
    ///     items.put(key, "")?;
    /// }
    /// // The first key of each letter.
    /// let mut iter = items.iter();
    /// let mut first = Vec::new();
    /// while let Some(pair) = iter.next() {
    ///     let (key, _) = pair?;
    ///     first.push(key[0]);
    ///     iter.seek([key[0] + 1]);
    /// }
    /// assert_eq!(first, *b"abc");
    /// # Ok(()) }
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.with_living(|inner| inner.seek(End::Front, key.as_ref()));
    }

    /// Goes on at `key` backwards: the next pair from the back is the last one at or before it. The iterator is then as one
    /// that was made for the part of its range up to `key`. As [`Iter::seek`].
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// items.put("2026-01-01", "price 7")?;
    /// items.put("2026-03-01", "price 8")?;
    /// let mut prices = items.iter();
    /// prices.seek_for_prev("2026-02-11");
    /// assert_eq!(prices.next_back().unwrap()?.1, b"price 7");
    /// prices.seek_for_prev("2026-03-01");
    /// assert_eq!(prices.next_back().unwrap()?.1, b"price 8");
    /// # Ok(()) }
    /// ```
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) {
        self.with_living(|inner| inner.seek(End::Back, key.as_ref()));
    }

    /// Begins anew over the whole range, with the state of the keyspace as it is now. What it pinned of the state before is
    /// released. Also an iterator of a [`Snapshot`](crate::Snapshot) shows the newest state then. If the keyspace has been
    /// dropped, the next call returns the error.
    ///
    /// ```
    /// # fn main() -> spinney::Result<()> {
    /// # let db = spinney::Database::builder_in_memory().open()?;
    /// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
    /// let mut iter = items.iter();
    /// items.put("a", "1")?;
    /// iter.refresh();
    /// assert_eq!(iter.next().unwrap()?.0, b"a");
    /// items.put("b", "2")?;
    /// assert!(iter.next().is_none());
    /// iter.refresh();
    /// assert_eq!(iter.count(), 2);
    /// # Ok(()) }
    /// ```
    pub fn refresh(&mut self) {
        let mut refused = None;
        self.with_living(|inner| match check_readable(&inner.store, &inner.keyspace) {
            Ok(()) => inner.refresh(),
            Err(error) => refused = Some(error),
        });
        if refused.is_some() {
            self.close();
            self.error = refused;
        }
    }

    /// Calls `f` unless the iterator has ended for good.
    fn with_living(&mut self, f: impl FnOnce(&mut Inner)) {
        if self.inner.is_none() {
            self.inner = self.at_end.take();
        }
        if !self.birthplace.is_here() {
            // The next call says so.
            return;
        }
        if let Some(iterator) = &self.inner {
            self.was_sought = true;
            self.damaged = None;
            f(&mut iterator.enter());
        }
    }
}

impl Inner {
    fn seek(&mut self, end: End, key: &[u8]) {
        let (lower, upper) = match &self.bounds {
            Some(bounds) => (bounds.0.clone().unwrap_or_default(), bounds.1.clone()),
            None => (Vec::new(), None),
        };
        if let Some(values) = &mut self.values {
            values.close();
        }
        // Nothing is known of it any more, nor of unreadable parts.
        self.reset(end.other());
        match end {
            End::Front => {
                if self.front.careful || self.front.ahead.is_some() {
                    self.reset(End::Front);
                }
                self.front.edge = if *key > *lower { key.to_vec() } else { lower };
                self.back.edge = upper;
                self.front.before = None;
            }
            End::Back => {
                let key = after(key);
                self.back.edge = Some(match upper {
                    Some(upper) if upper < key => upper,
                    _ => key,
                });
                self.front.edge = lower;
                // The cursors could go back, but their bounds may be too narrow.
                self.reset(End::Back);
            }
        }
        self.is_sought = end == End::Front && self.front.open.is_some();
        self.leave_if_closed();
    }

    fn refresh(&mut self) {
        self.reset(End::Front);
        self.reset(End::Back);
        let (lower, upper) = self.bounds.as_deref().cloned().unwrap_or_default();
        self.front.edge = lower.unwrap_or_default();
        self.back.edge = upper;
        self.is_sought = false;
        // After the cursors: they belong to the number before.
        let visible = || self.store.committer.visible();
        let guard = self.store.snapshots.register(Reader::Iterator, visible);
        self.number = super::Number::Own(guard);
        self.values = None;
        self.leave_if_closed();
    }

    /// Gives the place up if no cursors are open.
    fn leave_if_closed(&mut self) {
        if self.front.open.is_none() && self.back.open.is_none() {
            self.store.open_iterators.recount(self.counted_bytes, 0);
            self.counted_bytes = 0;
            self.leave_place();
        }
    }

    /// The iterator is not among those with open cursors any more.
    pub(super) fn leave_place(&mut self) {
        if let Some(place) = self.place.take() {
            self.store.open_iterators.leave(place);
        }
    }

    /// Closes the cursors of an end, and forgets what it has met.
    fn reset(&mut self, end: End) {
        let open = match end {
            End::Front => self.front.open.take(),
            End::Back => self.back.open.take(),
        };
        if let Some(open) = &open {
            self.count_work(open);
            open.visible.merge().sources().for_each(RunCursor::end);
        }
        match end {
            End::Front => {
                (self.front.ahead, self.front.careful, self.front.before) = (None, false, None);
            }
            End::Back => {
                (self.back.ahead, self.back.careful, self.back.before) = (None, false, None);
            }
        }
    }

    /// Moves the front to the first pair from its edge on, with the cursors that it has if they serve; returns false if there
    /// is none.
    #[cold]
    pub(super) fn advance_to_sought(&mut self) -> Result<bool> {
        self.is_sought = false;
        let Some(mut open) = self.front.open.take() else { return self.advance_front() };
        if !self.serves(&open) {
            self.count_work(&open);
            open.visible.merge().sources().for_each(RunCursor::end);
            drop(open);
            return self.advance_front();
        }
        let was_before = open.last().is_some_and(|last| *last < *self.front.edge);
        if step_to(&mut open, &self.front.edge).is_err() {
            // Of a key that is passed over. What is ahead is met again by cursors of its own.
            self.count_work(&open);
            open.visible.merge().sources().for_each(RunCursor::end);
            drop(open);
            return self.advance_front();
        }
        let moved = skip_to(&mut open, &self.front.edge, was_before);
        let key = open.visible.current().map(|current| current.key);
        let back = match &self.back.open {
            Some(back) => back.last(),
            None => self.back.edge.as_deref(),
        };
        let is_past = key.is_some_and(|key| back.is_some_and(|back| key >= back));
        let is_there = key.is_some();
        self.front.open = Some(open);
        moved?;
        match is_there {
            true => Ok(!is_past),
            // The range ends before a pair, or a step has paused.
            false => self.advance_front(),
        }
    }

    /// Whether the cursors of an open range can be positioned at the front's edge.
    fn serves(&self, open: &OpenRange) -> bool {
        let to = match (&self.back.edge, &open.upper) {
            (Some(own), Some(upper)) => Some((&**own).min(upper)),
            (own, upper) => own.as_deref().or(upper.as_deref()),
        };
        let (lower, upper) = open.visible.bounds();
        let edge = &*self.front.edge;
        upper == to
            && lower.is_none_or(|lower| lower <= edge)
            && to.is_none_or(|to| edge < to)
            && *open.lower <= *edge
    }
}

/// Steps towards `key` if that is ahead.
fn step_to(open: &mut OpenRange, key: &[u8]) -> Result<()> {
    let visible = &mut open.visible;
    for _ in 0..STEPS_MAX {
        if visible.current().is_none_or(|current| current.key >= key) {
            break;
        }
        visible.next()?;
    }
    Ok(())
}

/// Positions the cursors of a range at the first pair from `key` on, unless steps have led there.
fn skip_to(open: &mut OpenRange, key: &[u8], was_before: bool) -> Result<()> {
    match open.visible.current() {
        Some(current) if was_before && current.key >= key => Ok(()),
        _ => open.visible.seek(key),
    }
}
