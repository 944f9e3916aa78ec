//! Merging many sorted runs of versions: the view of a reader at a snapshot, and the entries that a
//! compaction keeps.
//!
//! Invariants:
//! 1. Entries are returned in entry order (key ascending, sequence number descending), each once.
//! 2. A snapshot sees, of each key, the newest version at or below its number. Merge operands are
//!    folded over the newest put or delete below them.
//! 3. No compaction changes the view of a live snapshot or of a reader of the newest state.
//! 4. Range deletes hide and drop what is older and in their range, by the same rules ([`range_deletes`]).
//! 5. An entry costs no allocation and no dynamic dispatch. Folding merge operands may cost both.

mod compaction;
mod contained;
mod iterator;
mod loser_tree;
mod operands;
mod operator;
mod range_deletes;
mod versions;
mod visible;

#[cfg(test)]
mod test_support;

pub(crate) use compaction::{Bottom, CompactionIterator, CompactionOptions};
pub(crate) use contained::Contained;
pub(crate) use iterator::{MergeIterator, MergeSource};
pub(crate) use loser_tree::{Keys as SourceKeys, LoserTree};
pub(crate) use operands::{Base, BlobReader, MergeContext, Operands, refuse_range_delete};
pub use operator::{Append, MergeOperator, U64Add};
pub(crate) use range_deletes::{Cover, DurableRangeDeletes, Fragment, RangeDeletes};
pub(crate) use versions::FoldLimits;
pub(crate) use visible::{Stopped, VisibleIterator};
