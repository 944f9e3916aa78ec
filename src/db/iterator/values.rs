//! Values of an iterator that are in blob files. They are read ahead in growing steps, as table pages
//! are: the values that the cursors' leaves name next are read together.
//!
//! Invariants:
//! 1. A value read ahead is used only for the key and the pointer that it was read for. Which values
//!    are read ahead decides nothing but cost.
//! 2. An end drops every value that it has passed. So an end that has dropped or used all of them can
//!    read ahead again.
//! 3. Values read ahead are leased from the read-ahead budget, and counted with the cursors. Without a
//!    lease, values are read one by one.
//! 4. An error of a value that was read ahead is reported only when its own key is reached.

use std::collections::VecDeque;

use super::{End, Inner, Pair};
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::slice::Slice;
use crate::cache::Lease;
use crate::db::damage::DamagedRange;
use crate::table::{BlobPointer, Caching};

/// The largest number of values that are read together.
const AHEAD_VALUES_MAX: usize = 64;
/// Bytes of values that are read together, at most: enough for the bandwidth of a drive.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// The part of the read-ahead budget that one end may have between two calls, if that is more than
/// [`AHEAD_BYTES_MIN`].
const BUDGET_SHARE: usize = 16;
/// With less than this, values of several files are hardly read together.
const AHEAD_BYTES_MIN: usize = 128 << 10;
/// A longer value is not read ahead: reading it alone is as fast.
const LONG_BYTES: u32 = 256 << 10;
/// About this many values are cached as they are read. Later ones are not, so that a long scan does
/// not evict what point reads need.
const CACHED_VALUES: usize = 64;
/// After a step that failed, this many values are read one by one.
const VALUES_AFTER_FAILURE: usize = 64;

/// A value that will probably be needed.
struct Name {
    key: Vec<u8>,
    pointer: BlobPointer,
}

/// What one end has read ahead.
#[derive(Default)]
struct Ahead {
    /// In the order of the pass.
    values: VecDeque<(Name, Slice)>,
    lease: Option<Lease>,
    /// The number of values in the last step.
    step: usize,
    /// The number of values that are still to be read one by one.
    alone: usize,
}

impl Ahead {
    /// Takes the key's value out, and drops the values that the end has passed.
    fn take(&mut self, end: End, key: &[u8], pointer: &BlobPointer) -> Option<Slice> {
        let mut found = None;
        while let Some((name, value)) = self.values.pop_front_if(|(name, _)| match end {
            End::Front => *name.key <= *key,
            End::Back => *name.key >= *key,
        }) {
            if *name.key == *key && name.pointer == *pointer {
                found = Some(value);
            }
        }
        if self.values.is_empty() {
            self.lease = None;
        }
        found
    }

    /// The size of the next step.
    fn next_step(&mut self) -> usize {
        if self.alone > 0 {
            self.alone -= 1;
            return 1;
        }
        self.step = (self.step * 2).clamp(1, AHEAD_VALUES_MAX);
        self.step
    }
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Values {
    front: Ahead,
    back: Ahead,
    /// The number of values read so far.
    read: usize,
}

impl Values {
    /// Drops what has been read ahead.
    pub(super) fn close(&mut self) {
        for ahead in [&mut self.front, &mut self.back] {
            ahead.values.clear();
            ahead.lease = None;
        }
    }

    /// Memory used.
    pub(super) fn memory_bytes(&self) -> usize {
        let of = |ahead: &Ahead| ahead.lease.as_ref().map_or(0, Lease::bytes);
        size_of::<Values>() + of(&self.front) + of(&self.back)
    }

    fn of(&mut self, end: End) -> &mut Ahead {
        match end {
            End::Front => &mut self.front,
            End::Back => &mut self.back,
        }
    }
}

impl Inner {
    /// A pair with its value in a blob file. If the value cannot be read, only this key is lost.
    #[cold]
    pub(super) fn blob_pair(&mut self, end: End, key: Slice, pointer: &[u8]) -> Result<Pair> {
        let value = BlobPointer::of_entry(pointer).and_then(|of| self.blob_value(end, &key, &of));
        match value {
            Ok(value) => Ok((key, value)),
            Err(error) => {
                if error.is_unreadable() {
                    self.damaged = Some(Box::new(DamagedRange::of_key(&key)));
                }
                Err(error)
            }
        }
    }

    fn blob_value(&mut self, end: End, key: &[u8], pointer: &BlobPointer) -> Result<Slice> {
        let values = self.values.get_or_insert_default();
        if let Some(value) = values.of(end).take(end, key, pointer) {
            return Ok(value);
        }
        let is_cached = values.read < CACHED_VALUES;
        values.read = values.read.saturating_add(1);
        let caching = if is_cached { Caching::Caches } else { Caching::Looks };
        let step = values.of(end).next_step();
        if step > 1
            && values.of(end).values.is_empty()
            && pointer.length <= LONG_BYTES
            && let Some(value) = self.read_ahead(end, key, pointer, step, caching)
        {
            return Ok(value);
        }
        self.store.blobs.value(pointer, caching)
    }

    /// Reads the value, and with it up to `step` in all that are probably needed next. `None` if
    /// there are none, if there is no memory for them, or if they cannot all be read.
    fn read_ahead(
        &mut self,
        end: End,
        key: &[u8],
        pointer: &BlobPointer,
        step: usize,
        caching: Caching,
    ) -> Option<Slice> {
        let budget = &self.store.files.read_ahead;
        let most = (budget.bytes_max() / BUDGET_SHARE).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let mut bytes = pointer.length as usize;
        let mut names = self.names_ahead(end, key, step - 1);
        let mut fits = |name: &Name| {
            bytes += name.pointer.length as usize;
            bytes <= most
        };
        let count = names.iter().take_while(|name| fits(name)).count();
        names.truncate(count);
        if names.is_empty() {
            return None;
        }
        let pointers: Vec<BlobPointer> =
            std::iter::once(*pointer).chain(names.iter().map(|name| name.pointer)).collect();
        let bytes = pointers.iter().map(|pointer| pointer.length as usize).sum();
        let lease = budget.lease(bytes, bytes);
        let values = lease.as_ref().map(|_| self.store.blobs.values(&pointers, caching));
        let into = self.values.get_or_insert_default();
        let mut values = match values {
            Some(Ok(values)) => values.into_iter(),
            failed => {
                let ahead = into.of(end);
                ahead.step = 1;
                ahead.alone = if failed.is_some() { VALUES_AFTER_FAILURE } else { 0 };
                return None;
            }
        };
        let first = values.next()?;
        into.read = into.read.saturating_add(values.len());
        let ahead = into.of(end);
        ahead.values.extend(names.into_iter().zip(values));
        ahead.lease = lease;
        Some(first)
    }

    /// Values that the leaves under the cursors of a pass name after `key`, in the order of the pass.
    /// Of a key with several visible entries in these leaves, the newest one counts.
    fn names_ahead(&self, end: End, key: &[u8], count: usize) -> Vec<Name> {
        let (open, other, forward) = match end {
            End::Front => (self.front.open.as_deref(), self.back.open.as_deref(), true),
            End::Back => (self.back.open.as_deref(), self.front_range(), false),
        };
        let other = other.and_then(|open| open.last());
        let limit = match forward {
            true => other.or(self.back.edge.as_deref()),
            false => other.or(Some(&*self.front.edge)),
        };
        let snapshot = self.seqno();
        let mut found: Vec<(Vec<u8>, Seqno, Option<BlobPointer>)> = Vec::new();
        for cursor in open.iter().flat_map(|open| open.visible.merge().sources()) {
            cursor.entries_ahead(forward, count, &mut |at, seqno, pointer| {
                let is_ahead = match forward {
                    true => *at > *key && limit.is_none_or(|limit| *at < *limit),
                    false => *at < *key && limit.is_none_or(|limit| *at >= *limit),
                };
                if is_ahead && seqno <= snapshot {
                    found.push((at, seqno, pointer));
                }
            });
        }
        found.sort_by(|(a, newer, _), (b, older, _)| {
            let by_key = if forward { a.cmp(b) } else { b.cmp(a) };
            by_key.then(older.cmp(newer))
        });
        found.dedup_by(|(a, ..), (b, ..)| a == b);
        let named = found.into_iter().filter_map(|(key, _, of)| Some(Name { key, pointer: of? }));
        named.filter(|name| name.pointer.length <= LONG_BYTES).take(count).collect()
    }
}
