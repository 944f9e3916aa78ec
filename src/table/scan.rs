//! The compaction input: one forward pass over a key range, with read-ahead, bypassing the cache.

use std::sync::Arc;

use super::leaf_cursor::{LeafCursor, Placed};
use super::node::Damage;
use super::reader::Table;
use crate::base::entry::EntryRef;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::cache::{PagePointer, PageScan, ReadContext};

/// Above every sequence number: the position before a key's newest version.
pub(super) const BEFORE_ALL_VERSIONS: u64 = Seqno::MAX.0 + 1;

/// A pass over a range of a table. A new pass is positioned at the range's first entry.
pub(crate) struct TableScan {
    table: Arc<Table>,
    pages: PageScan,
    leaf: LeafCursor,
    /// The location of the leaf.
    page: PagePointer,
    /// Entries of the leaf before this one are in the range.
    until: usize,
    /// The range ends at this unit.
    end_unit: u32,
    upper: Option<Vec<u8>>,
    /// The current entry is split.
    is_split: bool,
}

impl Table {
    /// Begins a pass over the keys from `lower` (inclusive) to `upper` (exclusive), with a
    /// read-ahead of up to twice `chunk_bytes`.
    pub(crate) fn scan(
        self: &Arc<Self>,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        chunk_bytes: usize,
    ) -> Result<TableScan> {
        let context = ReadContext::blocking();
        let units = self.leaf_units_of(lower, upper, &context)?;
        let chunk_units = u32::try_from(chunk_bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let mut scan = TableScan {
            table: Arc::clone(self),
            pages: self.file.scan(units.clone(), chunk_units),
            leaf: LeafCursor::new(),
            page: PagePointer { unit: 0, units: 1 },
            until: 0,
            end_unit: units.end,
            upper: upper.map(<[u8]>::to_vec),
            is_split: false,
        };
        scan.next_leaf(lower)?;
        Ok(scan)
    }

    /// The units of leaves that may have keys from `lower` (inclusive) to `upper` (exclusive).
    fn leaf_units_of(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        context: &ReadContext,
    ) -> Result<std::ops::Range<u32>> {
        let start = match lower {
            Some(lower) if lower > self.last_key() => return Ok(0..0),
            Some(lower) if lower > self.first_key() => {
                self.find_leaf(lower, Seqno::MAX.0, context, |_| ())?.unit
            }
            _ => 0,
        };
        let end = match upper {
            Some(upper) if upper <= self.first_key() => return Ok(0..0),
            Some(upper) if upper <= self.last_key() => {
                let leaf = self.find_leaf(upper, BEFORE_ALL_VERSIONS, context, |_| ())?;
                leaf.unit + u32::from(leaf.units)
            }
            _ => self.footer.leaf_units,
        };
        Ok(start..end.max(start))
    }
}

impl TableScan {
    /// The leaf in which the current entry begins, and whether it goes on in the next.
    pub(crate) fn leaf(&self) -> (PagePointer, bool) {
        (self.page, self.is_split)
    }

    /// The current entry; `None` after the last.
    #[inline]
    pub(crate) fn entry(&self) -> Option<EntryRef<'_>> {
        self.leaf.entry()
    }

    /// Moves forward by one entry. Needs a current entry.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<()> {
        let next = self.leaf.index() + 1;
        if next < self.until { self.place(next) } else { self.next_leaf(None) }
    }

    #[inline]
    fn place(&mut self, i: usize) -> Result<()> {
        let placed = self.leaf.place(i);
        {
            self.is_split = matches!(placed, Ok(Placed::Split));
        }
        match placed {
            Ok(Placed::Whole) => Ok(()),
            Ok(Placed::Split) => self.join(),
            Err(damage) => Err(self.damaged(damage)),
        }
    }

    /// Completes the split entry that was placed last.
    #[cold]
    fn join(&mut self) -> Result<()> {
        match self.pages.peek_page()? {
            Some((page, next)) => {
                self.leaf.join(next).map_err(|damage| self.table.damaged(page, damage))
            }
            None => Err(self.damaged("end of a split value")),
        }
    }

    #[cold]
    fn damaged(&self, damage: Damage) -> Error {
        self.table.damaged(self.page, damage)
    }

    /// Moves to the first entry at or after `lower` in the next leaf that has one.
    #[cold]
    #[inline(never)]
    fn next_leaf(&mut self, lower: Option<&[u8]>) -> Result<()> {
        loop {
            self.leaf.unplace();
            self.until = 0;
            let Some((page, payload)) = self.pages.next_page()? else { return Ok(()) };
            self.page = page;
            let end = page.unit + u32::from(page.units);
            let damaged = |damage| self.table.damaged(page, damage);
            self.leaf.load(payload).map_err(damaged)?;
            self.until = self.leaf.entries();
            let mut from = self.leaf.first();
            if let Some(lower) = lower {
                let exclusive = planted(Bug::ScanStartExclusive) && !lower.is_empty();
                let threshold = if exclusive { 0 } else { BEFORE_ALL_VERSIONS };
                from = from.max(self.leaf.search(lower, threshold).map_err(damaged)?);
            } else if planted(Bug::ScanSkips) {
                from += 1;
            }
            if let Some(upper) = self.upper.as_ref().filter(|_| end >= self.end_unit) {
                self.until = self.leaf.search(upper, BEFORE_ALL_VERSIONS).map_err(damaged)?;
            }
            if from < self.until {
                return self.place(from);
            }
        }
    }
}
