//! What a table asks its own filter: whether it is worth looking for a key at all.
//!
//! Invariants:
//! 1. A key of the table is never ruled out. Without a filter, or with one of a kind that this build does
//!    not know, no key is.

use std::ops::ControlFlow;

use super::footer::Footer;
use super::reader::Table;
use crate::base::entry::EntryRef;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
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

/// The filter that a footer names, if this build can read it.
pub(super) fn filter_of(footer: &Footer) -> Option<BlockFilter> {
    let section = footer.filter;
    let is_known = section.kind == FILTER_KIND_BLOCKS && section.pages > 0;
    is_known.then(|| BlockFilter::new(section.first_unit, section.pages))
}

#[allow(dead_code, reason = "for trees without maplets")]
impl Table {
    /// Whether the table may have an entry of the key with this hash
    /// ([`hash_key`](crate::base::checksum::hash_key)). Reads one page, which goes through the cache.
    ///
    /// # Errors
    /// `Corruption` if the page is damaged. `NotResident` if it is not cached and `context` notes what is
    /// missing: other tables can be asked meanwhile, so that all their pages are fetched at once.
    #[inline]
    pub(crate) fn may_contain(&self, hash: u64, context: &ReadContext) -> Result<bool> {
        match self.filter {
            Some(filter) => filter.may_contain(&self.file, hash, context),
            None => Ok(true),
        }
    }

    /// As [`Table::get`], if the filter does not rule the key out; `hash` is the key's.
    #[inline]
    pub(crate) fn get_filtered(
        &self,
        key: &[u8],
        hash: u64,
        snapshot: Seqno,
        context: &ReadContext,
        filter_use: &mut FilterUse,
        mut f: impl FnMut(EntryRef<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(filter) = self.filter else { return self.get(key, snapshot, context, f) };
        filter_use.probes += 1;
        if !filter.may_contain(&self.file, hash, context)? {
            return Ok(());
        }
        let mut held = false;
        self.get(key, snapshot, context, |entry| {
            held = true;
            f(entry)
        })?;
        filter_use.false_positives += u64::from(!held);
        Ok(())
    }

    /// First of two hints before [`Table::may_contain`], for lookups that ask several tables: their waits
    /// for memory then overlap.
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

    /// Bytes of the file that are the filter's; 0 without one.
    pub(crate) fn filter_bytes(&self) -> u64 {
        u64::from(self.footer.filter.units) * UNIT_BYTES as u64
    }
}
