//! Ranges of keys, and how much lies in them.

use std::sync::{Arc, OnceLock};

use crate::base::error::Result;
use crate::cache::ReadContext;
use crate::table::Table;

/// A key, shared by the copies of a node.
pub(super) type Key = Arc<[u8]>;

/// How much lies somewhere, as estimated from table indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RangeSize {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Stored sizes are below this: as many as a tree has can be added up.
pub(super) const SIZE_LIMIT: u64 = 1 << 48;

impl RangeSize {
    pub(super) fn add(&mut self, other: RangeSize) {
        self.bytes += other.bytes;
        self.entries += other.entries;
    }
}

/// A part of a table's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TablePart {
    /// Entries of the table before it.
    pub(super) first: u64,
    pub(super) size: RangeSize,
}

impl TablePart {
    /// The numbers of its entries.
    pub(super) fn entries(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.size.entries
    }
}

/// Whether two key ranges have a key in common. Upper bounds are exclusive; `None` is no bound.
pub(super) fn ranges_overlap(a: (&[u8], Option<&[u8]>), b: (&[u8], Option<&[u8]>)) -> bool {
    a.1.is_none_or(|upper| b.0 < upper) && b.1.is_none_or(|upper| a.0 < upper)
}

/// Whether a table reaches into a key range.
#[inline]
pub(super) fn table_overlaps(table: &Table, lower: &[u8], upper: Option<&[u8]>) -> bool {
    *table.last_key() >= *lower && upper.is_none_or(|upper| *table.first_key() < *upper)
}

/// Whether a table lies in a key range as a whole.
pub(super) fn table_is_inside(table: &Table, lower: &[u8], upper: Option<&[u8]>) -> bool {
    *table.first_key() >= *lower && upper.is_none_or(|upper| *table.last_key() < *upper)
}

/// The position of that of neighbouring parts of keys, each of which begins at `lower`, that holds the keys
/// just below `key`; the last one's for no bound.
pub(super) fn position_before<T>(
    parts: &[T],
    lower: impl Fn(&T) -> &Key,
    key: Option<&[u8]>,
) -> usize {
    let below = match key {
        Some(key) => parts.partition_point(|part| **lower(part) < *key),
        None => parts.len(),
    };
    below.saturating_sub(1)
}

/// What of `table` lies in a key range.
pub(super) fn table_size(
    table: &Arc<Table>,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<RangeSize> {
    table_part(table, lower, upper).map(|part| part.size)
}

/// Which of the entries of `table` lie in a key range.
pub(super) fn table_part(
    table: &Arc<Table>,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<TablePart> {
    if !table_overlaps(table, lower, upper) {
        return Ok(TablePart::default());
    }
    let statistics = table.range_statistics(Some(lower), upper, &ReadContext::blocking())?;
    let size = RangeSize { bytes: statistics.bytes, entries: statistics.tuples };
    Ok(TablePart { first: statistics.first, size })
}

/// A value derived once.
pub(super) struct Derived<T>(OnceLock<T>);

impl<T> Derived<T> {
    pub(super) fn get_or(&self, derive: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(derive)
    }
}

impl<T: Clone> Derived<T> {
    /// For a copy of what it was derived from: with what has been derived.
    pub(super) fn kept(&self) -> Derived<T> {
        Derived(self.0.clone())
    }
}

impl<T> Default for Derived<T> {
    fn default() -> Derived<T> {
        Derived(OnceLock::new())
    }
}

impl<T> Clone for Derived<T> {
    fn clone(&self) -> Derived<T> {
        Derived::default()
    }
}
