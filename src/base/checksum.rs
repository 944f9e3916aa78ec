//! The checksum of all formats: XXH3-64.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Checksum of `bytes`. `seed` names the place they belong to (file and offset, say), so that bytes
/// that are whole but in the wrong place do not pass.
#[inline]
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// [`checksum`] of bytes that come in parts.
pub(crate) struct Checksummer(Box<Xxh3>);

impl Checksummer {
    /// No bytes yet.
    pub(crate) fn new(seed: u64) -> Checksummer {
        Checksummer(Box::new(Xxh3::with_seed(seed)))
    }

    /// Adds a part.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all parts.
    pub(crate) fn finish(&self) -> u64 {
        self.0.digest()
    }
}
