//! Sizes of the trunk, derived from the memtable's.

use super::branch_index::IndexForm;
use crate::perfect_hash::Construction;
use crate::tree::TreeOptions;
use crate::tree::description::{NamedCount, named};
use crate::tree::own_options::{DISPLACEMENT, FANOUT_MAX, PIECES_MAX};

/// What the trunk aims at.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) struct Parameters {
    /// An index node with more pivots is split.
    pub(super) fanout_max: usize,
    /// An index node that holds more flushes its fullest pivots (the paper's F × m).
    pub(super) node_bytes_max: u64,
    /// A leaf with more unique bytes is split.
    pub(super) leaf_bytes_max: u64,
    /// A branch with at least this much in a node's range gains nothing by being merged there.
    pub(super) branch_bytes_adopt: u64,
    /// A leaf with more branches is compacted into one.
    pub(super) leaf_branches_max: usize,
    /// So many small branches, or bundles in a leaf, are worth a compaction.
    pub(super) bundles_max: usize,
    /// Pending compaction bytes at which writers have to wait.
    pub(super) pending_bytes_max: u64,
    pub(super) space_amplification_max_percent: u64,
    /// What a memtable holds.
    pub(super) memtable_bytes: u64,
    pub(super) index_form: IndexForm,
    pub(super) kind_name: &'static str,
}

impl Parameters {
    pub(super) fn new(options: &TreeOptions, has_operator: bool) -> Parameters {
        let memtable = options.memtable_bytes.max(1024);
        let own = |option| options.own.get(option);
        let construction = match own(&DISPLACEMENT) {
            0 => Construction::Pilots,
            _ => Construction::Displacement,
        };
        let has_heads = options.kind.has_heads();
        let branches = match (has_heads, own(&PIECES_MAX)) {
            (false, _) => 12,
            // CompassDB's default (section 3.5 of its paper).
            (true, 0) => 16,
            (true, pieces) => pieces as usize,
        };
        Parameters {
            fanout_max: match options.own.get(&FANOUT_MAX) {
                0 => 48,
                // Nodes of one child would make the trunk high.
                fanout => fanout.max(3) as usize,
            },
            node_bytes_max: memtable * 6,
            leaf_bytes_max: (memtable * 4).min((128 << 20).max(memtable)),
            branch_bytes_adopt: memtable / 4,
            leaf_branches_max: branches,
            bundles_max: 4,
            pending_bytes_max: memtable * 10,
            space_amplification_max_percent: options.space_amplification_max_percent,
            memtable_bytes: memtable,
            index_form: match has_heads {
                // Operands are in several pieces: those without the key should not be read for them.
                true => IndexForm::Head(construction, u8::from(has_operator)),
                false => IndexForm::Maplet,
            },
            kind_name: options.kind.name(),
        }
    }

    /// The same for a tree of so many live bytes: leaves of a small one are smaller, so that merging some of
    /// them does not need much space.
    pub(super) fn sized(self, live_bytes: u64) -> Parameters {
        let least = (self.memtable_bytes * 2).min(self.leaf_bytes_max);
        let leaf_bytes_max = (live_bytes / 4).clamp(least, self.leaf_bytes_max);
        Parameters { leaf_bytes_max, ..self }
    }

    pub(super) fn named(&self) -> Vec<NamedCount> {
        named([
            ("fanout_max", self.fanout_max as u64),
            ("node_bytes_max", self.node_bytes_max),
            ("leaf_bytes_max", self.leaf_bytes_max),
            ("branch_bytes_adopt", self.branch_bytes_adopt),
            ("leaf_branches_max", self.leaf_branches_max as u64),
            ("bundles_max", self.bundles_max as u64),
            ("pending_bytes_max", self.pending_bytes_max),
            ("space_amplification_max_percent", self.space_amplification_max_percent),
        ])
    }
}
