//! Filters: they name the branches that may hold a key, before any branch is read.
//!
//! A [`Maplet`] is a quotient filter with values: the immutable set of pairs (fingerprint, branch)
//! of one pivot, stored in pages (`docs/format/maplet.md`). It is built in bulk from sorted
//! fingerprints and merged linearly with older maplets. It is never rebuilt from the data.
//!
//! A [`BlockFilter`] is in a table's own file and excludes keys that the table does not hold
//! (`docs/format/block-filter.md`). A [`BloomFilter`] is in memory and excludes keys that the
//! bundle of one memtable does not hold.
//!
//! Invariants:
//! 1. There are no false negatives. A hash that was added for a branch is reported for that branch
//!    until a merge drops the branch; a hash that was added for a table is reported for it.
//! 2. A maplet stores exactly the set of its fingerprints. Its false-positive rate is the number of
//!    distinct fingerprints / 2^`fingerprint_bits`, however often it was merged.
//! 3. Branch ordinals ascend from the oldest branch, 0, to the newest. Superseded counts rely on
//!    this.
//! 4. No byte of a page causes a panic or an index out of bounds. Bytes that cannot be a maplet's
//!    are `Error::Corruption`.

mod bits;
mod block_filter;
mod block_page;
#[cfg(test)]
mod block_tests;
mod bloom;
mod branch_set;
mod build;
mod fingerprint;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod geometry;
mod header;
mod maplet;
mod page;
mod reader;
mod runs;
#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use block_filter::{BlockFilter, BlockFilterBuilder, FILTER_KIND_BLOCKS, LoadedFilter};
pub(crate) use bloom::BloomFilter;
pub(crate) use branch_set::BranchSet;
pub(crate) use build::{MapletBuilder, MapletMerge};
pub(crate) use fingerprint::SortedFingerprints;
pub(crate) use geometry::FINGERPRINT_BITS_DEFAULT;
pub(crate) use header::BranchCounts;
pub(crate) use maplet::Maplet;
pub(crate) use runs::Runs;
