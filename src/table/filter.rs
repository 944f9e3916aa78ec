//! Point reads of a table's filter.
//!
//! Invariants:
//! 1. A key of the table is never excluded. Without a filter, or with a filter of an unknown kind,
//!    no key is excluded.

use super::footer::Footer;
use super::reader::Table;
use crate::base::error::Result;
use crate::cache::ReadContext;
use crate::filter::{BlockFilter, FILTER_KIND_BLOCKS};

/// What filters have been asked, and how often in vain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FilterUse {
    /// Filters asked.
    pub(crate) probes: u64,
    /// Tables that were then looked into and had nothing of the key.
    pub(crate) false_positives: u64,
}

/// The filter that a footer names, if this build can read it and it was made with the hash of this
/// name: asked with another, it would rule out keys that are there.
pub(super) fn filter_of(footer: &Footer, hash_id: u32) -> Option<BlockFilter> {
    let section = footer.filter;
    let is_known = section.kind == FILTER_KIND_BLOCKS && section.pages > 0;
    let is_known = is_known && section.hash_id == hash_id;
    is_known.then(|| BlockFilter::new(section.first_unit, section.pages))
}

impl Table {
    /// Whether the table may have an entry of the key with this hash
    /// ([`KeyHasher`](crate::base::key_hash::KeyHasher)). Reads one page, which goes through the
    /// cache.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged. `NotResident` if it is not cached and `context` notes
    /// what is missing: other tables can be asked meanwhile, so that all their pages are fetched at
    /// once.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64, context: &ReadContext) -> Result<bool> {
        match self.filter {
            Some(filter) => filter.may_contain(&self.file, hash, context),
            None => Ok(true),
        }
    }

    /// First of two hints before [`Table::may_contain`], for lookups that ask several tables: their
    /// waits for memory then overlap.
    #[inline]
    pub(crate) fn prefetch_filter_place(&self, hash: u64) {
        if let Some(filter) = self.filter {
            filter.prefetch_place(&self.file, hash);
        }
    }

    /// The second, once the first has had its effect.
    #[inline]
    pub(crate) fn prefetch_filter_bytes(&self, hash: u64) {
        if let Some(filter) = self.filter {
            filter.prefetch_bytes(&self.file, hash);
        }
    }

    /// Whether there is a filter that can be asked.
    #[inline]
    pub(crate) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Bytes of the file that are the filter's; 0 without one.
    #[cfg(test)]
    pub(crate) fn filter_bytes(&self) -> u64 {
        u64::from(self.footer.filter.units) * crate::base::limits::UNIT_BYTES as u64
    }
}
