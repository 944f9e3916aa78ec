//! Size limits of the disk formats and the public API.

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: u64 = u32::MAX as u64;
/// The longest value in a table page, a memtable or a journal record, in bytes. Longer values are
/// stored in blob files, whatever the keyspace's `blob_bytes_min`. Far below the capacity of a
/// page, so that no reader or writer of pages needs a large buffer.
pub(crate) const INLINE_BYTES_MAX: u32 = 1 << 20;
/// The largest batch, in bytes: keys, values that are not large, and `BATCH_OPERATION_BYTES` per
/// operation. A batch goes into one memtable, which has room for several batches of this size.
pub const BATCH_BYTES_MAX: u64 = 512 << 20;
/// The overhead of each operation in a batch, in addition to its key and value.
pub const BATCH_OPERATION_BYTES: u64 = 32;
/// The unit of table, maplet and blob files in bytes, and the alignment of direct I/O.
pub(crate) const UNIT_BYTES: usize = 4096;
