//! The one checksum of all formats, and the one hash of keys. Both are XXH3-64.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Checksum of `bytes`. `seed` names the place they belong to (file and offset, say), so that bytes
/// that are whole but in the wrong place do not pass.
#[inline]
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// The hash of a key that filters are built from. It is persisted (as fingerprints): never change it.
#[inline]
pub(crate) fn hash_key(key: &[u8]) -> u64 {
    xxh3_64(key)
}
