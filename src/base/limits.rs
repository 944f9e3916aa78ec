//! Sizes that the formats and the interface promise.

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: u64 = u32::MAX as u64;
/// The unit of table, maplet and blob files, and the alignment of direct I/O.
pub(crate) const UNIT_BYTES: usize = 4096;
