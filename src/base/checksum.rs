//! The one checksum of all formats: XXH3-64.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Checksum of `bytes`. `seed` names the place they belong to (file and offset, say), so that bytes
/// that are whole but in the wrong place do not pass.
#[inline]
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}
