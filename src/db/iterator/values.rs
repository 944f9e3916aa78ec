//! Values of an iterator that are in blob files. They are read ahead in growing steps, as table pages
//! are: the values that the cursors' leaves name next are read together.
//!
//! Invariants:
//! 1. A value read ahead is used only for the pointer that it was read for. Which values are read
//!    ahead decides nothing but cost.
//! 2. Values read ahead are leased from the read-ahead budget. Without a lease, values are read one
//!    by one.
//! 3. An error of a value that was read ahead is reported only when its own key is reached.

use std::collections::VecDeque;

use super::{End, Inner, Pair};
use crate::base::error::Result;
use crate::base::slice::Slice;
use crate::cache::Lease;
use crate::db::damage::DamagedRange;
use crate::table::{BlobPointer, Caching};

/// The largest number of values that are read together.
const AHEAD_VALUES_MAX: usize = 64;
/// Bytes of values that are read together: enough for the bandwidth of a drive.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// A longer value is not read ahead: reading it alone is as fast.
const LONG_BYTES: u32 = 256 << 10;
/// About this many values are cached as they are read. Later ones bypass the cache, so that a long
/// scan does not evict what point reads need.
const CACHED_VALUES: usize = 64;

/// See the module's description.
#[derive(Default)]
pub(super) struct Values {
    /// In the order of the pass.
    ahead: VecDeque<(BlobPointer, Slice)>,
    lease: Option<Lease>,
    /// The number of values in the last step.
    step: usize,
    /// The number of values read so far.
    read: usize,
}

impl Values {
    /// Drops what has been read ahead.
    pub(super) fn close(&mut self) {
        self.ahead.clear();
        self.lease = None;
    }

    /// Takes the value out of what has been read ahead, with all before it.
    fn take(&mut self, pointer: &BlobPointer) -> Option<Slice> {
        let at = self.ahead.iter().position(|(of, _)| of == pointer)?;
        self.ahead.drain(..at);
        let (_, value) = self.ahead.pop_front()?;
        if self.ahead.is_empty() {
            self.lease = None;
        }
        Some(value)
    }
}

impl Inner {
    /// A pair with its value in a blob file. If the value cannot be read, only this key is lost.
    #[cold]
    pub(super) fn blob_pair(&mut self, end: End, key: Slice, pointer: &[u8]) -> Result<Pair> {
        let value = BlobPointer::of_entry(pointer).and_then(|of| self.blob_value(end, &of));
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

    fn blob_value(&mut self, end: End, pointer: &BlobPointer) -> Result<Slice> {
        let values = self.values.get_or_insert_default();
        if let Some(value) = values.take(pointer) {
            return Ok(value);
        }
        let is_cached = values.read < CACHED_VALUES;
        values.read = values.read.saturating_add(1);
        let caching = if is_cached { Caching::Caches } else { Caching::Bypasses };
        values.step = (values.step * 2).clamp(1, AHEAD_VALUES_MAX);
        let step = values.step;
        if step > 1
            && values.ahead.is_empty()
            && pointer.length <= LONG_BYTES
            && let Some(value) = self.read_ahead(end, pointer, step, caching)
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
        pointer: &BlobPointer,
        step: usize,
        caching: Caching,
    ) -> Option<Slice> {
        let mut pointers = vec![*pointer];
        pointers.extend(self.pointers_ahead(end, pointer, step - 1));
        let mut bytes: usize = pointers.iter().map(|pointer| pointer.length as usize).sum();
        let least = pointer.length as usize + 1;
        let budget = &self.store.files.read_ahead;
        let lease = budget.lease(bytes.clamp(least, AHEAD_BYTES_MAX), least)?;
        while bytes > lease.bytes() {
            bytes -= pointers.pop()?.length as usize;
        }
        if pointers.len() < 2 {
            return None;
        }
        let mut values = self.store.blobs.values(&pointers, caching).ok()?.into_iter();
        let first = values.next()?;
        let into = self.values.get_or_insert_default();
        into.read = into.read.saturating_add(values.len());
        into.ahead.extend(pointers.into_iter().skip(1).zip(values));
        into.lease = Some(lease);
        Some(first)
    }

    /// Pointers that the leaves under the cursors of a pass name after `pointer`, in the order of
    /// the pass.
    fn pointers_ahead(&self, end: End, pointer: &BlobPointer, count: usize) -> Vec<BlobPointer> {
        let (open, forward) = match end {
            End::Front => (&self.front.open, true),
            End::Back => (&self.back.open, false),
        };
        let mut found: Vec<(Vec<u8>, BlobPointer)> = Vec::new();
        for cursor in open.iter().flat_map(|open| open.visible.merge().sources()) {
            cursor.blobs_ahead(forward, count + 1, &mut |key, of| {
                let is_within = match forward {
                    true => self.back.edge.as_ref().is_none_or(|edge| key < *edge),
                    false => key >= self.front.edge,
                };
                if is_within && of != *pointer && of.length <= LONG_BYTES {
                    found.push((key, of));
                }
            });
        }
        found.sort_by(|(a, _), (b, _)| if forward { a.cmp(b) } else { b.cmp(a) });
        found.into_iter().take(count).map(|(_, of)| of).collect()
    }
}
