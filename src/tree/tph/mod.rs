//! CompassDB's two-tier perfect hash tables (paper: Jiang et al., 2024).
//!
//! A TPH is a bundle of *pieces*, which are tables, under a *head*. The head says in which piece a key is, the piece's
//! *local index* in which of its leaves: a get of a key is two probes in memory, and one read. A compaction writes what
//! is new as a new piece, and a new head; what has not changed stays where it is. Pieces of which much is dead are
//! merged with their neighbours in age. A TPH of one piece has no head: the local index, with signatures, says all.
//!
//! The TPHs of a keyspace are the bundles of a [`trunk`](super::trunk): key ranges are divided as the data grows, packed
//! memtables are handed down by reference, and space is reclaimed as in `stb`. What differs is the index of a bundle
//! (`trunk/branch_index.rs`), the local indexes of tables, and how many pieces there may be.
//!
//! Invariants:
//! 1. Those of `trunk`, `perfect_hash::head` and `perfect_hash::piece`.
//! 2. Every table of the tree is a piece: it has a local index, with the hashes of its keys.

mod kind;
#[cfg(test)]
mod tests;

pub(super) use self::kind::KIND;
