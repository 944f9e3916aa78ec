//! From many sorted runs of versions to one: what a reader sees at a snapshot, and what a
//! compaction must keep.
//!
//! Invariants:
//! 1. Entries come out in entry order (key ascending, sequence number descending), every one once.
//! 2. A snapshot sees of each key the newest version at or below its number, with merge operands
//!    folded over the newest put or delete beneath them.
//! 3. No compaction changes what any live snapshot, or a reader of the newest state, sees.
//! 4. An entry costs no allocation and no dynamic dispatch; folding merge operands may.

mod compaction;
mod contained;
mod iterator;
mod loser_tree;
mod operands;
mod operator;
mod versions;
mod visible;

#[cfg(test)]
mod test_support;

pub(crate) use compaction::{Bottom, CompactionIterator, CompactionOptions};
pub(crate) use contained::Contained;
pub(crate) use iterator::{MergeIterator, MergeSource};
pub(crate) use operands::{Base, BlobReader, MergeContext, Operands};
pub use operator::{Append, MergeOperator, U64Add};
pub(crate) use versions::FoldLimits;
pub(crate) use visible::{Stopped, VisibleIterator};
