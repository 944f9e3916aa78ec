//! Estimates from the index alone: the amount of data in a key range, and keys that split it.

use super::index::{Child, PLAIN_SEPARATOR, child, child_at_byte};
use super::reader::Table;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::cache::ReadContext;

/// The size of the data in a range of keys, to within one leaf at each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RangeStatistics {
    /// Entries of the table before the range.
    pub(crate) first: u64,
    /// The number of entries in the range.
    pub(crate) tuples: u64,
    /// The size of their keys and values in bytes.
    pub(crate) bytes: u64,
}

impl Table {
    /// Estimates the entries with keys from `lower` (inclusive) to `upper` (exclusive).
    ///
    /// # Errors
    /// `Corruption` if an index page is damaged. `NotResident` if one is not cached and `context`
    /// collects misses: then the pages at both ends are collected.
    pub(crate) fn range_statistics(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        context: &ReadContext,
    ) -> Result<RangeStatistics> {
        let before = |key| self.before(key, context);
        let from = lower.map_or(Ok(RangeStatistics::default()), before);
        let (to, from) = (upper.map_or(Ok(self.totals()), before)?, from?);
        Ok(RangeStatistics {
            first: from.tuples,
            tuples: to.tuples.saturating_sub(from.tuples),
            bytes: to.bytes.saturating_sub(from.bytes),
        })
    }

    fn totals(&self) -> RangeStatistics {
        let properties = self.properties();
        RangeStatistics { first: 0, tuples: properties.entries(), bytes: properties.entry_bytes() }
    }

    /// The size of the data before `key`. Half of its leaf is counted, unless the leaf begins with
    /// it.
    fn before(&self, key: &[u8], context: &ReadContext) -> Result<RangeStatistics> {
        let totals = self.totals();
        if key <= self.first_key() {
            return Ok(RangeStatistics::default());
        }
        if key > self.last_key() {
            return Ok(totals);
        }
        let mut found = (totals.tuples / 2, totals.bytes / 2);
        let mut page = self.footer.root;
        for level in (1..=self.footer.height).rev() {
            let (Child { pointer, tuples, bytes }, is_start) =
                self.with_index(page, level, context, |node| {
                    let i = node.search(key, Seqno::MAX.0)?.saturating_sub(1);
                    let is_start = node.key_is(i, key)? && node.meta(i) == PLAIN_SEPARATOR;
                    Ok((child(node, i)?, is_start))
                })?;
            page = pointer;
            found = match is_start {
                true => (tuples.0, bytes.0),
                false => (tuples.0.midpoint(tuples.1), bytes.0.midpoint(bytes.1)),
            };
        }
        Ok(RangeStatistics { first: 0, tuples: found.0, bytes: found.1 })
    }

    /// Returns up to `parts - 1` keys, ascending and strictly between the bounds, that divide the
    /// entries from `lower` to `upper` into parts of about equal size. Returns fewer if there are
    /// not enough leaves.
    pub(crate) fn approximate_split_keys(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        parts: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let RangeStatistics { bytes: from, .. } = match lower {
            Some(key) => self.before(key, &ReadContext::blocking())?,
            None => RangeStatistics::default(),
        };
        let RangeStatistics { bytes: to, .. } = match upper {
            Some(key) => self.before(key, &ReadContext::blocking())?,
            None => self.totals(),
        };
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for part in 1..parts {
            let share = u128::from(to.saturating_sub(from)) * part as u128 / parts as u128;
            let Some(key) = self.separator_at_byte(from + share as u64)? else { break };
            let above = match keys.last() {
                Some(last) => key > *last,
                None => key.as_slice() > lower.unwrap_or_default().max(self.first_key()),
            };
            if above && upper.is_none_or(|upper| key.as_slice() < upper) {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// The separator before or after the leaf with byte number `bytes`, whichever is nearer.
    fn separator_at_byte(&self, bytes: u64) -> Result<Option<Vec<u8>>> {
        let context = ReadContext::blocking();
        let mut page = self.footer.root;
        let mut separator = None;
        for level in (1..=self.footer.height).rev() {
            let (pointer, key) = self.with_index(page, level, &context, |node| {
                let mut i = child_at_byte(node, bytes)?;
                let found = child(node, i)?;
                if level == 1 {
                    let middle = found.bytes.0.midpoint(found.bytes.1);
                    i += usize::from(bytes > middle && i + 1 < node.shape.entries);
                    return Ok((found.pointer, Some(node.key(i)?)));
                }
                Ok((found.pointer, None))
            })?;
            page = pointer;
            separator = key;
        }
        Ok(separator)
    }
}
