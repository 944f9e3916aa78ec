//! Perfect hash functions for `spinney-bench hashes`, which compares them with those of others.
//!
//! Compiled with the feature `hashes` alone; not a part of the interface.

use crate::base::error::Result;
use crate::perfect_hash::{
    BuiltIndex, Construction, Function, FunctionBuilder, SEGMENT_HASHES, Shape,
};

/// The constructions, by name.
pub const CONSTRUCTIONS: [&str; 2] = ["displacement", "pilots"];

fn named(construction: &str) -> Construction {
    match construction {
        "displacement" => Construction::Displacement,
        _ => Construction::Pilots,
    }
}

/// The bytes of a hash index of these hashes, whose values have so many bits, with or without signatures.
///
/// # Errors
/// None that a caller can cause.
pub fn index_bytes(
    construction: &str,
    hashes: &[u64],
    value_bits: u8,
    signatures: bool,
) -> Result<usize> {
    let shape = Shape { value_bits, signature_bytes: u8::from(signatures) };
    let entries = hashes.iter().map(|hash| (*hash, 0)).collect();
    let built = BuiltIndex::of(named(construction), shape, entries)?;
    Ok(built.payloads.len() * crate::base::limits::UNIT_BYTES + size_of_val(&*built.bounds))
}

/// A function in memory.
pub struct PerfectHash(Vec<u8>);

impl PerfectHash {
    /// Builds the function of distinct hashes by one of [`CONSTRUCTIONS`], on this thread.
    ///
    /// # Errors
    /// `InvalidArgument` if two hashes are equal.
    pub fn build(construction: &str, hashes: &[u64]) -> Result<PerfectHash> {
        let construction = named(construction);
        let (segment_hashes, threads) = (SEGMENT_HASHES, 1);
        let builder = FunctionBuilder { construction, seed: 1, segment_hashes, threads };
        builder.build(hashes).map(PerfectHash)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// A reader, and the number of slots.
    pub fn open(&self) -> Option<(impl Fn(u64) -> Option<u64> + '_, u64)> {
        let function = Function::open(&self.0).ok()?;
        Some((move |hash| function.slot(hash), function.slots()))
    }
}
