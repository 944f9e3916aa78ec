//! The limits of the figures that torture judges besides data.

use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Data files at any moment under uniform overwrites, and after ten idle seconds, as multiples of
/// those of the same live pairs freshly loaded and compacted.
pub const SPACE_BUSY: f64 = 1.6;
/// See [`SPACE_BUSY`].
pub const SPACE_IDLE: f64 = 1.4;
/// How far the live bytes that a store shows may be from the truth.
pub const LIVE_ERROR: f64 = 0.1;
/// How long a store is idle before its space is judged.
pub const IDLE: Duration = Duration::from_secs(10);
/// No write takes longer, what its process waited for cores left out.
pub const STALL_MAX: Duration = Duration::from_secs(1);
/// The most descriptors: 1,024 of data files that can be opened again, and those of the journal,
/// the manifest, files that are being written, the directory, the lock and the process itself.
pub const DESCRIPTORS_MAX: u64 = 1024 + 128;

/// Resident memory of a store with that budget.
pub fn memory(budget: u64) -> u64 {
    budget + budget / 10 + 32 * MIB
}

/// What data files may take beyond a multiple of what is live: two memtables of each keyspace, as
/// far as all memtables together may grow.
pub fn space_allowance(budget: u64, keyspaces: u64) -> u64 {
    let memtable = (budget / 16).clamp(256 << 10, 64 * MIB);
    let all = (budget / 4).max(4 * memtable);
    2 * (keyspaces * memtable).min(all)
}

/// Processor time to open a store: a second, as much for each thousand keyspaces, and 20 ms for
/// each megabyte of the journal. (A fourth of the rate that is wanted, 200 MB a second: what the
/// processor's caches lose to other work counts here too.)
pub fn opening(journal_bytes: u64, keyspaces: u64) -> Duration {
    Duration::from_secs(1)
        + Duration::from_millis(keyspaces)
        + Duration::from_nanos(journal_bytes * 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_as_stated() {
        assert_eq!(memory(100 * MIB), 142 * MIB);
        assert_eq!(space_allowance(64 * MIB, 1), 8 * MIB);
        assert_eq!(space_allowance(64 * MIB, 200), 32 * MIB);
        assert_eq!(opening(200_000_000, 1000), Duration::from_secs(6));
    }
}
