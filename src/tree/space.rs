//! How much space a tree may take, and how much it takes beyond that.

/// What small entries take in tables, index pages and the like included, over their own bytes.
const USUAL_OVERHEAD: f64 = 1.06;

/// Disk space above the allowed, in shares of the live bytes, at which writers all but stand still.
pub(super) const SPACE_EXCESS_MAX: f64 = 0.15;

/// What a tree takes, and what of it is known to be live.
#[derive(Debug, Clone, Copy)]
pub(super) struct Space {
    pub(super) disk_bytes: u64,
    /// Of these, the tables'.
    pub(super) table_bytes: u64,
    /// Keys and values in tables, dead ones too.
    pub(super) entry_bytes: u64,
    /// Those of them that are live.
    pub(super) live_entry_bytes: u64,
    /// Live values in blob files.
    pub(super) live_blob_bytes: u64,
}

impl Space {
    /// How many times their own bytes entries take in their pages, where that is more than usual: three
    /// entries of 1,050 bytes fill a page of 4 KiB, with 900 to spare. No compaction gets that back.
    fn page_waste(&self) -> f64 {
        let own = self.entry_bytes.max(1) as f64 * USUAL_OVERHEAD;
        (self.table_bytes as f64 / own).max(1.0)
    }

    /// How far the tree is above what it is allowed, in shares of the live bytes. `free_bytes` do not count.
    pub(super) fn excess(&self, free_bytes: u64, amplification_max_percent: u64) -> f64 {
        let in_pages = self.live_entry_bytes as f64 * self.page_waste();
        let live = (in_pages + self.live_blob_bytes as f64).max(1.0);
        let disk = self.disk_bytes as f64 - free_bytes as f64;
        disk / live - amplification_max_percent as f64 / 100.0
    }
}

/// How far behind a tree is that takes too much space: writers are slowed from a little above the allowed
/// on, ever more up to the limit. Not if there is nothing to be had back: waiting would not help.
pub(super) fn backlog(excess: f64, nothing_to_reclaim: bool) -> f64 {
    match nothing_to_reclaim {
        false => (excess / SPACE_EXCESS_MAX + 0.4).clamp(0.0, 0.98),
        true => 0.0,
    }
}
