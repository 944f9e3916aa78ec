//! Ranges of keys, and how much lies in them.

use std::sync::Arc;

use crate::base::error::Result;
use crate::cache::ReadContext;
use crate::table::Table;

/// A key, shared by the copies of a node.
pub(super) type Key = Arc<[u8]>;

/// How much lies somewhere, as estimated from table indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Stored extents are below this: as many as a tree has can be added up.
pub(super) const EXTENT_LIMIT: u64 = 1 << 48;

impl Extent {
    pub(super) fn add(&mut self, other: Extent) {
        self.bytes += other.bytes;
        self.entries += other.entries;
    }
}

/// A stretch of a table's entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Entries of the table before it.
    pub(super) first: u64,
    pub(super) extent: Extent,
}

impl Stretch {
    /// The numbers of its entries.
    pub(super) fn entries(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.extent.entries
    }
}

/// Whether two key ranges have a key in common. Upper bounds are exclusive; `None` is no bound.
pub(super) fn ranges_meet(a: (&[u8], Option<&[u8]>), b: (&[u8], Option<&[u8]>)) -> bool {
    a.1.is_none_or(|upper| b.0 < upper) && b.1.is_none_or(|upper| a.0 < upper)
}

/// Whether a table reaches into a key range.
#[inline]
pub(super) fn table_meets(table: &Table, lower: &[u8], upper: Option<&[u8]>) -> bool {
    *table.last_key() >= *lower && upper.is_none_or(|upper| *table.first_key() < *upper)
}

/// Whether a table lies in a key range as a whole.
pub(super) fn table_is_inside(table: &Table, lower: &[u8], upper: Option<&[u8]>) -> bool {
    *table.first_key() >= *lower && upper.is_none_or(|upper| *table.last_key() < *upper)
}

/// The position of that of neighbouring stretches of keys, each of which begins at `lower`, that holds the keys
/// just below `key`; the last one's for no bound.
pub(super) fn position_before<T>(
    stretches: &[T],
    lower: impl Fn(&T) -> &Key,
    key: Option<&[u8]>,
) -> usize {
    let below = match key {
        Some(key) => stretches.partition_point(|stretch| **lower(stretch) < *key),
        None => stretches.len(),
    };
    below.saturating_sub(1)
}

/// What of `table` lies in a key range.
pub(super) fn table_extent(
    table: &Arc<Table>,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<Extent> {
    table_stretch(table, lower, upper).map(|stretch| stretch.extent)
}

/// Which of the entries of `table` lie in a key range.
pub(super) fn table_stretch(
    table: &Arc<Table>,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<Stretch> {
    if !table_meets(table, lower, upper) {
        return Ok(Stretch::default());
    }
    let statistics = table.range_statistics(Some(lower), upper, &ReadContext::blocking())?;
    let extent = Extent { bytes: statistics.bytes, entries: statistics.tuples };
    Ok(Stretch { first: statistics.first, extent })
}
