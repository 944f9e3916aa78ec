//! The size limits of the formats and the interface.

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: u64 = u32::MAX as u64;
/// Longest value that a table page, a memtable or a journal record holds, in bytes: longer ones are
/// in blob files, whatever a keyspace's `blob_bytes_min` says. Far below what a page can hold, so
/// that nothing that reads or writes pages needs a buffer of such size.
pub(crate) const INLINE_BYTES_MAX: u32 = 1 << 20;
/// Largest batch, in bytes: keys, values that are not large, and `BATCH_OPERATION_BYTES` for each
/// operation. A memtable takes a batch whole, and has room for several such.
pub const BATCH_BYTES_MAX: u64 = 512 << 20;
/// What an operation of a batch counts beside its key and value.
pub const BATCH_OPERATION_BYTES: u64 = 32;
/// The unit of table, maplet and blob files, and the alignment of direct I/O.
pub(crate) const UNIT_BYTES: usize = 4096;
