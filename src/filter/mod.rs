//! Filters: which branches may hold a key, asked with the key's hash before any branch is read.
//!
//! A [`Maplet`] is a quotient filter that carries values: the set of pairs (fingerprint, branch) of
//! one pivot, immutable, paged (`docs/format/maplet.md`). It is built in bulk from sorted
//! fingerprints and merged linearly with older maplets; it is never rebuilt from the data.
//!
//! A [`BlockFilter`] lies in a table's own file and says which keys the table does not hold
//! (`docs/format/block-filter.md`).
//!
//! Invariants:
//! 1. No false negatives: a hash that was put in for a branch is reported for that branch until a
//!    merge drops the branch; a hash that was put in for a table is reported for it.
//! 2. A maplet stores exactly the set of its fingerprints, so its false-positive rate is the number
//!    of distinct fingerprints / 2^`fingerprint_bits`, however often it was merged.
//! 3. Ordinals grow from the oldest branch, 0, to the newest. Superseded counts rely on it.
//! 4. No byte of a page makes a reader panic or index out of bounds; bytes that cannot be a
//!    maplet's are `Error::Corruption`.

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
mod test_support;
#[cfg(test)]
mod tests;

pub(crate) use block_filter::{BlockFilter, BlockFilterBuilder, FILTER_KIND_BLOCKS, LoadedFilter};
pub(crate) use bloom::BloomFilter;
pub(crate) use build::{MapletBuilder, MapletMerge};
pub(crate) use fingerprint::SortedFingerprints;
pub(crate) use geometry::FINGERPRINT_BITS_DEFAULT;
pub(crate) use header::BranchCounts;
pub(crate) use maplet::Maplet;
