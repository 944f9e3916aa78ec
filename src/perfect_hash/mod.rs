//! Perfect hash functions: they map each hash of a known set to a slot of its own.
//!
//! A [`Function`] is a sequence of bytes that is read in place (`docs/format/perfect-hash.md`). A hash first
//! selects a *segment* (section 4.1.3 of the CompassDB paper), and the segment maps it to one of its slots.
//! Segments are independent: they are built in parallel and can be stored and read page by page.
//!
//! There are two constructions. [`displacement`] is the paper's CPHash: buckets, most of whose keys are in a
//! few dense ones, with a pair of parameters each, shared through a dictionary. [`pilots`] has one byte per
//! bucket and moves buckets that are in the way, as cuckoo hashing moves keys.
//!
//! A hash index ([`index`]) says where keys are. Each of its pages has the segment of its own hashes. The two tiers of a
//! TPH are a [`head`] and, in each table, a [`piece`].
//!
//! Invariants:
//! 1. A function maps distinct hashes of its set to distinct slots, each below the segment's number of slots.
//!    A hash that is not of the set gets any of these slots.
//! 2. A segment's bytes depend only on its set of hashes, its seed and its construction, not on the order of
//!    the hashes, the processor or the number of threads.
//! 3. A build ends: the number of attempts is bounded, and so are the slots. Hashes that could not be placed
//!    have explicit slots (the *side list*). Equal hashes are an error of the caller.
//! 4. No byte of a function causes a panic or an index out of bounds.

mod buckets;
mod displacement;
#[cfg(any(test, feature = "hashes"))]
mod function;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod hash_list;
mod head;
#[cfg(test)]
mod head_tests;
mod index;
mod index_page;
#[cfg(test)]
mod index_tests;
mod piece;
mod pilots;
mod reduce;
mod segment;
#[cfg(test)]
mod tests;

#[cfg(feature = "hashes")]
pub(crate) use function::SEGMENT_HASHES;
#[cfg(any(test, feature = "hashes"))]
pub(crate) use function::{Function, FunctionBuilder};
pub(crate) use head::{Head, HeadBuilder, HeadMerge, Keep};
#[cfg(any(test, feature = "hashes"))]
pub(crate) use index::BuiltIndex;
pub(crate) use index::{PageSink, index_hash};
#[cfg(any(test, feature = "hashes"))]
pub(crate) use index_page::Shape;
pub(crate) use piece::{FILTER_KIND_PIECE, Found, PieceBuilder, PieceIndex};
pub(crate) use segment::Construction;
