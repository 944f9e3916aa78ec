//! Point reads of a table's filter.
//!
//! Invariants:
//! 1. A key of the table is never excluded. Without a filter, or with a filter of an unknown kind,
//!    no key is excluded.

use std::ops::Range;
use std::sync::Arc;

use super::footer::Footer;
use super::reader::Table;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::cache::{ReadContext, read_pages};
use crate::filter::{BlockFilter, FILTER_KIND_BLOCKS};
use crate::perfect_hash::{FILTER_KIND_PIECE, Found, Keep, PieceIndex};

/// Counters of filter probes and of false positives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FilterUse {
    /// The number of filters probed.
    pub(crate) probes: u64,
    /// The number of tables that were read after a probe and did not hold the key.
    pub(crate) false_positives: u64,
}

/// The filter that a footer names, if this build can read it and it was made with the hash of this
/// id. A probe with another hash would exclude keys that exist.
pub(super) fn filter_of(footer: &Footer, hash_id: u32) -> Option<BlockFilter> {
    let section = footer.filter;
    let is_known = section.kind == FILTER_KIND_BLOCKS && section.pages > 0;
    let is_known = is_known && section.hash_id == hash_id;
    is_known.then(|| BlockFilter::new(section.first_unit, section.pages))
}

/// The units of the local index that a footer names, under the same conditions.
pub(super) fn piece_units_of(footer: &Footer, hash_id: u32) -> Option<Range<u32>> {
    let section = footer.filter;
    let is_known = section.kind == FILTER_KIND_PIECE && section.hash_id == hash_id;
    is_known.then(|| section.first_unit..section.first_unit + section.units)
}

impl Table {
    /// The local index, if the table is a piece of a TPH. Who asks first reads two pages or more.
    ///
    /// # Errors
    /// `Corruption` if they are damaged, `NotResident` as [`Table::may_contain`].
    #[inline]
    pub(crate) fn piece(&self, context: &ReadContext) -> Result<Option<&PieceIndex>> {
        match (self.piece.get(), &self.piece_units) {
            (Some(piece), _) => Ok(Some(piece)),
            (None, Some(units)) => {
                let piece = PieceIndex::load(&self.file, units.clone(), context)?;
                Ok(Some(self.piece.get_or_init(|| piece)))
            }
            (None, None) => Ok(None),
        }
    }

    /// The number of keys of each table, as its local index tells; of its entries if it has none, or none that can be
    /// read, which those are told who ask it. Reads one page of each table, many at once.
    ///
    /// # Errors
    /// Those of reading, but for damage.
    pub(crate) fn piece_keys(tables: &[Arc<Table>]) -> Result<Vec<u64>> {
        let read = |tables: &[Arc<Table>]| -> Result<Vec<u64>> {
            let front =
                |table: &'_ Arc<Table>| Some(PieceIndex::front_of(table.piece_units.as_ref()?));
            let fronts: Vec<_> =
                tables.iter().filter_map(|it| Some((&*it.file, front(it)?))).collect();
            let mut pages = read_pages(&fronts)?.into_iter();
            let keys = |table: &Arc<Table>| match &table.piece_units {
                Some(units) => {
                    let page = pages.next().unwrap_or_default();
                    PieceIndex::keys_in_front(&table.file, units, &page)
                }
                None => Ok(table.properties().entries()),
            };
            tables.iter().map(keys).collect()
        };
        let alone = |table: &Arc<Table>| match read(std::slice::from_ref(table)) {
            Err(error) if error.is_corruption() => Ok(table.properties().entries()),
            keys => Ok(keys?.into_iter().sum()),
        };
        match read(tables) {
            Err(error) if error.is_corruption() => tables.iter().map(alone).collect(),
            keys => keys,
        }
    }

    /// Tells, from the local index alone, whether the table may have a key with a hash in a range: in its leaves, of which
    /// those at both ends may be shared. `None` if all of the table lies in the range, or there is no local index.
    ///
    /// # Errors
    /// `Corruption` if a page of an index is damaged; I/O errors.
    pub(crate) fn keep_in_range(
        self: &Arc<Self>,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> Result<Option<Keep>> {
        let is_inside =
            *self.first_key() >= *lower && upper.is_none_or(|upper| *self.last_key() < *upper);
        if is_inside || self.piece(&ReadContext::blocking())?.is_none() {
            return Ok(None);
        }
        let leaf_of = |key: &[u8]| {
            let leaf = self.find_leaf(key, Seqno::MAX.0, &ReadContext::blocking(), |_| {});
            leaf.map(|leaf| leaf.unit)
        };
        let first = leaf_of(lower)? + u32::from(planted(Bug::HeadRangeShort));
        let last = upper.map_or(Ok(self.footer.leaf_units), leaf_of)?;
        let (table, context) = (Arc::clone(self), ReadContext::blocking());
        Ok(Some(Box::new(move |hash| {
            let Some(piece) = table.piece(&context)? else { return Ok(true) };
            Ok(match piece.find(&table.file, hash, table.footer.leaf_units, &context)? {
                Found::Leaf { pointer, .. } => (first..=last).contains(&pointer.unit),
                Found::Unknown | Found::Absent => true,
            })
        })))
    }

    /// Memory that the local index uses once it has been asked, about.
    pub(crate) fn piece_memory_bytes(&self) -> u64 {
        self.piece_units.as_ref().map_or(0, |units| u64::from(units.end - units.start) * 8)
    }

    /// Returns true if the table may have an entry of the key with this hash
    /// ([`KeyHasher`](crate::base::key_hash::KeyHasher)). Reads one page through the cache.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged. `NotResident` if it is not cached and `context`
    /// collects misses: other tables can be probed in the meantime, so that all their pages are
    /// fetched together.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64, context: &ReadContext) -> Result<bool> {
        match self.filter {
            Some(filter) => filter.may_contain(&self.file, hash, context),
            None => Ok(true),
        }
    }

    /// The first of two prefetch steps before [`Table::may_contain`], for lookups that probe
    /// several tables: their memory accesses then overlap.
    #[inline]
    pub(crate) fn prefetch_filter_place(&self, hash: u64) {
        if let Some(filter) = self.filter {
            filter.prefetch_place(&self.file, hash);
        }
    }

    /// The second prefetch step, after the first has completed.
    #[inline]
    pub(crate) fn prefetch_filter_bytes(&self, hash: u64) {
        if let Some(filter) = self.filter {
            filter.prefetch_bytes(&self.file, hash);
        }
    }

    /// Returns true if there is a usable filter.
    #[inline]
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// The size of the filter in the file, in bytes; 0 without a filter.
    #[cfg(test)]
    pub(crate) fn filter_bytes(&self) -> u64 {
        u64::from(self.footer.filter.units) * crate::base::limits::UNIT_BYTES as u64
    }
}
