//! Sizes of the trunk, derived from the memtable's.

use super::branch_index::IndexForm;
use crate::perfect_hash::Construction;
use crate::tree::TreeOptions;
use crate::tree::description::{NamedCount, named};
use crate::tree::own_options::{DISPLACEMENT, FANOUT_MAX, ONE_LEVEL, PIECES_MAX};

/// Memtables that a leaf holds before it is split.
const LEAF_MEMTABLES: u64 = 4;
/// Most memtables that an index node holds.
const NODE_MEMTABLES: u64 = 6;
/// The same of a tree with one level, if it is large.
const ONE_LEVEL_MEMTABLES: u64 = 32;

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
    /// Most memtables that an index node holds. What it holds besides follows the live data.
    node_memtables_max: u64,
    /// A large tree has at least so many leaves.
    leaves_min: u64,
    /// Whether an index node merges branches of which its children have taken most. If not, it has at most
    /// `node_bundles_max` bundles.
    pub(super) merges_remains: bool,
    /// A piece of which younger ones have more than this share of the keys, in percent, is merged.
    pub(super) dead_percent_max: u64,
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
        let one_level = own(&ONE_LEVEL) != 0;
        let branches = match (has_heads, own(&PIECES_MAX)) {
            (false, _) => 12,
            (true, 0) if one_level => 64,
            // CompassDB's default (section 3.5 of its paper).
            (true, 0) => 16,
            (true, pieces) => pieces as usize,
        };
        // With one level, a leaf has a piece of what collects in the root before it is flushed. Larger leaves, of smaller
        // pieces, are copied less often when they are split.
        let (leaf_memtables, adopt_part, node_memtables_max) = match one_level {
            false => (LEAF_MEMTABLES, 4, NODE_MEMTABLES),
            true => (16, 16, ONE_LEVEL_MEMTABLES),
        };
        Parameters {
            fanout_max: match options.own.get(&FANOUT_MAX) {
                0 if one_level => usize::from(u16::MAX),
                0 => 48,
                // Nodes of one child would make the trunk high.
                fanout => fanout.max(3) as usize,
            },
            node_bytes_max: memtable * NODE_MEMTABLES,
            leaf_bytes_max: (memtable * leaf_memtables).min((128 << 20).max(memtable)),
            branch_bytes_adopt: memtable / adopt_part,
            leaf_branches_max: branches,
            bundles_max: 4,
            pending_bytes_max: memtable * 10,
            space_amplification_max_percent: options.space_amplification_max_percent,
            memtable_bytes: memtable,
            node_memtables_max,
            leaves_min: if one_level { 16 } else { 4 },
            merges_remains: !one_level,
            dead_percent_max: if one_level { 80 } else { 50 },
            index_form: match has_heads {
                // Operands are in several pieces: those without the key should not be read for them.
                true => IndexForm::Head(construction, u8::from(has_operator)),
                false => IndexForm::Maplet,
            },
            kind_name: options.kind.name(),
        }
    }

    /// The same for a tree of so many live bytes: leaves of a small one are smaller, so that merging some of
    /// them does not need much space, and index nodes hold less, since much of that may be dead.
    pub(super) fn sized(self, live_bytes: u64, live_keys: u64) -> Parameters {
        let least = (self.memtable_bytes * 2).min(self.leaf_bytes_max);
        // A merge keeps eight bytes of each key that it writes in memory.
        let of_keys = (self.memtable_bytes / 8).saturating_mul(live_bytes / live_keys.max(1));
        let usual = self.memtable_bytes * LEAF_MEMTABLES;
        let most = self.leaf_bytes_max.min(of_keys.max(usual)).max(least);
        let leaf_bytes_max = (live_bytes / self.leaves_min).clamp(least, most);
        let memtables_max = self.memtable_bytes * self.node_memtables_max;
        // With one level, all leaves have to merge what the root hands them before its tables go.
        let least = match self.merges_remains {
            true => self.node_bytes_max,
            false => self.node_bytes_max.min(self.memtable_bytes * 2),
        };
        let node_bytes_max = (live_bytes / 8).clamp(least, memtables_max);
        Parameters { leaf_bytes_max, node_bytes_max, ..self }
    }

    /// An index node with more bundles flushes the pivots that have the oldest, if it does not merge what they leave.
    pub(super) fn node_bundles_max(&self) -> usize {
        match self.merges_remains {
            true => usize::MAX,
            false => (self.node_bytes_max / self.memtable_bytes) as usize * 2 + 8,
        }
    }

    /// With one level, all leaves share what the root has handed them. Above, nodes share little (`pending_bytes_max`).
    pub(super) fn shared_memtables(&self) -> u64 {
        match self.merges_remains {
            true => 0,
            false => self.leaf_bytes_max / self.memtable_bytes.max(1),
        }
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
