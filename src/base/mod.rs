//! The foundation of all other modules: errors, ids, the entry model, codecs, checksums and limits.

pub(crate) mod checksum;
pub(crate) mod codec;
pub(crate) mod counter;
#[cfg(test)]
pub(crate) mod documented;
pub(crate) mod durability;
pub(crate) mod entry;
pub(crate) mod error;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
pub(crate) mod group_commit;
pub(crate) mod held;
pub(crate) mod ids;
pub(crate) mod key_hash;
pub(crate) mod limits;
pub(crate) mod mapping;
pub(crate) mod pages;
pub(crate) mod panics;
pub(crate) mod planted;
pub(crate) mod poison;
pub(crate) mod prefetch;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod range_delete;
pub(crate) mod slice;
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub(crate) mod sync;
pub(crate) mod turn_cell;
pub(crate) mod version_lock;
#[cfg(test)]
pub(crate) mod visits;
