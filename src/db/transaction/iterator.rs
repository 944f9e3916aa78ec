//! [`TransactionIter`], a double-ended iterator over what a transaction sees.
//!
//! Invariants:
//! 1. All keys below `lower`, and all from `upper` on, have been passed.
//! 2. Of the pairs of the snapshot, those at `front` and `back` have been fetched and not passed; no other has.

use std::sync::Arc;

use super::reads::RangeNumber;
use super::{Inner, Shared};
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::slice::Slice;
use crate::db::iterator::Iter;
use crate::db::range::Bounds;

type Pair = (Slice, Slice);

/// A double-ended iterator over the pairs that a transaction sees: those of its snapshot, under its own writes. It does
/// not borrow the transaction, which can write meanwhile: a write is seen where the iterator has yet to come. It ends with
/// the transaction.
///
/// What it has passed counts as read by a serializable transaction: its keys, and that there were no others between them.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// # let db = spinney::Database::builder_in_memory().open()?;
/// # let items = db.keyspace("items", spinney::KeyspaceOptions::stb())?;
/// for key in ["a", "b", "c"] {
///     items.put(key, "old")?;
/// }
/// let mut transaction = db.begin(spinney::Isolation::Serializable);
/// for pair in transaction.range(&items, "b"..) {
///     transaction.delete(&items, &*pair?.0)?;
/// }
/// assert_eq!(transaction.iter(&items).count(), 1);
/// transaction.commit()?;
/// assert_eq!(items.iter().count(), 1);
/// # Ok(()) }
/// ```
pub struct TransactionIter {
    /// `None` once it has ended.
    transaction: Option<Shared>,
    birthplace: Birthplace,
    error: Option<Error>,
    place: usize,
    snapshot: Iter,
    front: Option<Pair>,
    back: Option<Pair>,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    /// The snapshot has failed in this call.
    is_damaged: bool,
    /// Its part of what the transaction has read.
    range: Option<RangeNumber>,
}

impl TransactionIter {
    pub(super) fn new(
        transaction: &Shared,
        birthplace: Birthplace,
        place: usize,
        snapshot: Iter,
        (lower, upper): Bounds,
        range: Option<RangeNumber>,
    ) -> TransactionIter {
        TransactionIter {
            transaction: Some(Arc::clone(transaction)),
            birthplace,
            error: None,
            place,
            snapshot,
            front: None,
            back: None,
            lower: lower.unwrap_or_default(),
            upper,
            is_damaged: false,
            range,
        }
    }

    /// An iterator that yields `error` and ends.
    pub(super) fn failed(error: Error) -> TransactionIter {
        TransactionIter {
            transaction: None,
            birthplace: Birthplace::here(),
            error: Some(error.clone()),
            place: 0,
            snapshot: Iter::failed(error),
            front: None,
            back: None,
            lower: Vec::new(),
            upper: None,
            is_damaged: false,
            range: None,
        }
    }

    /// The next pair of the snapshot from the front.
    fn fetch_front(&mut self) -> Result<()> {
        if self.front.is_none() {
            self.front =
                self.snapshot.next().transpose().inspect_err(|_| self.is_damaged = true)?;
            if self.front.is_none() {
                // What the back has fetched is the last one.
                self.front = self.back.take();
            }
        }
        Ok(())
    }

    fn fetch_back(&mut self) -> Result<()> {
        if self.back.is_none() {
            let pair = self.snapshot.next_back().transpose();
            self.back = pair.inspect_err(|_| self.is_damaged = true)?;
            if self.back.is_none() {
                self.back = self.front.take();
            }
        }
        Ok(())
    }

    fn step(&mut self, is_front: bool) -> Option<Result<Pair>> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        let transaction = Arc::clone(self.transaction.as_ref()?);
        if !self.birthplace.is_here() {
            self.transaction = None;
            let result = self.snapshot.next();
            // A lock may be held by a thread that does not exist.
            std::mem::forget(transaction);
            return result;
        }
        let mut inner = transaction.lock();
        inner.conflict = None;
        self.is_damaged = false;
        let result = match inner.check() {
            Ok(()) if is_front => self.next_of(&mut inner),
            Ok(()) => self.last_of(&mut inner),
            Err(error) => Err(error),
        };
        match result {
            Ok(Some(pair)) => return Some(Ok(pair)),
            // It can go on after a range that cannot be read.
            Err(error) if self.is_damaged && self.snapshot.damaged_range().is_some() => {
                return Some(Err(error));
            }
            _ => {}
        }
        if let Some(range) = self.range {
            if matches!(result, Ok(None)) {
                inner.reads.finish(range);
            }
            inner.reads.close(range);
        }
        drop(inner);
        self.transaction = None;
        result.transpose()
    }

    fn next_of(&mut self, inner: &mut Inner) -> Result<Option<Pair>> {
        loop {
            self.fetch_front()?;
            let own = inner.writes.next(self.place, &self.lower, self.upper.as_deref());
            let key = match (self.front.as_ref().map(|(key, _)| &**key), own) {
                (None, None) => return Ok(None),
                (Some(key), None) | (None, Some(key)) => key,
                (Some(stored), Some(own)) => stored.min(own),
            };
            let key = Slice::from(key);
            let stored = self.front.take_if(|(stored, _)| *stored == key);
            self.lower.clear();
            self.lower.extend_from_slice(&key);
            self.lower.push(0);
            if let Some(range) = self.range {
                let bytes = inner.reads.extend_front(range, &key);
                inner.charge(bytes)?;
            }
            if let Some(pair) = self.seen(inner, key, stored)? {
                return Ok(Some(pair));
            }
        }
    }

    fn last_of(&mut self, inner: &mut Inner) -> Result<Option<Pair>> {
        loop {
            self.fetch_back()?;
            let own = inner.writes.last(self.place, &self.lower, self.upper.as_deref());
            let key = match (self.back.as_ref().map(|(key, _)| &**key), own) {
                (None, None) => return Ok(None),
                (Some(key), None) | (None, Some(key)) => key,
                (Some(stored), Some(own)) => stored.max(own),
            };
            let key = Slice::from(key);
            let stored = self.back.take_if(|(stored, _)| *stored == key);
            let upper = self.upper.get_or_insert_default();
            upper.clear();
            upper.extend_from_slice(&key);
            if let Some(range) = self.range {
                let bytes = inner.reads.extend_back(range, &key);
                inner.charge(bytes)?;
            }
            if let Some(pair) = self.seen(inner, key, stored)? {
                return Ok(Some(pair));
            }
        }
    }

    /// What the transaction sees of a key, of which the snapshot has `stored`.
    fn seen(&self, inner: &Inner, key: Slice, stored: Option<Pair>) -> Result<Option<Pair>> {
        let Some(own) = inner.writes.own(self.place, &key) else { return Ok(stored) };
        let below = stored.as_ref().map(|(_, value)| &**value);
        let value = own.value(&inner.keyspaces[self.place], &key, below)?;
        match value {
            None if planted(Bug::TransactionOwnDeletesUnseen) => Ok(stored),
            value => Ok(value.map(|value| (key, value))),
        }
    }
}

impl Iterator for TransactionIter {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl DoubleEndedIterator for TransactionIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl std::iter::FusedIterator for TransactionIter {}

impl Drop for TransactionIter {
    fn drop(&mut self) {
        let Some(transaction) = self.transaction.take() else { return };
        if !self.birthplace.is_here() {
            std::mem::forget(transaction);
            return;
        }
        if let Some(range) = self.range {
            transaction.lock().reads.close(range);
        }
    }
}
