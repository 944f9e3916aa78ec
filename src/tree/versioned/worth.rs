//! What is worth a merge that drops what has been deleted.

use crate::tree::live::Dead;

/// What is worth a merge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::tree) struct Worth {
    /// The fewest sampled keys that tell it.
    keys_min: usize,
    /// The least share of the entries that are deletes or hidden by deletes.
    deleted_share_min: f64,
    /// The least share of the bytes that it drops.
    bytes_share_min: f64,
    /// Whether what is mostly deletes is brought down to what it may delete, however little that is.
    pub(in crate::tree) brings_down: bool,
}

/// While the tree is being written. Two thirds of the keys have been deleted then.
pub(super) const BUSY: Worth =
    Worth { keys_min: 16, deleted_share_min: 0.8, bytes_share_min: 0.25, brings_down: false };
/// When it is settled.
pub(super) const SETTLED: Worth =
    Worth { keys_min: 4, deleted_share_min: 0.33, bytes_share_min: 0.05, brings_down: true };

/// A merge that drops deletes and what they hide.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::tree) struct Deleted {
    /// Bytes that it drops for those that it writes, in thousandths.
    pub(in crate::tree) score: u64,
    /// It takes in more than the node.
    pub(in crate::tree) by_path: bool,
}

impl Worth {
    /// Whether enough of what has been sampled has been deleted.
    pub(in crate::tree) fn is_deleted(&self, dead: Dead) -> bool {
        dead.keys >= self.keys_min && dead.deleted_share >= self.deleted_share_min
    }

    /// A merge that drops so much of what it reads; `None` if it is not worth it.
    pub(in crate::tree) fn of(&self, dropped: u64, merged: u64, by_path: bool) -> Option<Deleted> {
        let is_worth = dropped as f64 >= merged as f64 * self.bytes_share_min;
        let score = dropped.saturating_mul(1000) / merged.max(1);
        (dropped > 0 && is_worth).then_some(Deleted { score, by_path })
    }
}
