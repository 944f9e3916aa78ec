//! The checksum of all formats: XXH3-64.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// The checksum of `bytes`. `seed` identifies their location (for example file and offset), so that
/// intact bytes in the wrong place are detected.
#[inline]
pub(crate) fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// The [`checksum`] of bytes that arrive in parts.
pub(crate) struct Checksummer(Box<Xxh3>);

impl Checksummer {
    /// The checksum of no bytes.
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
