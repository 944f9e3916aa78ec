//! Sizes of guards and fragments, derived from the memtable's.

use std::sync::Arc;

use crate::base::key_hash::KeyHasher;
use crate::tree::TreeOptions;
use crate::tree::description::{NamedCount, named};
use crate::tree::own_options::{FANOUT_MAX, OwnOption, show_choice};

/// What the tree aims at.
#[derive(Debug, Clone)]
pub(in crate::tree) struct Parameters {
    /// What a guard's height is drawn with.
    pub(super) hasher: Arc<KeyHasher>,
    /// A guard with more children is divided.
    pub(super) fanout_max: usize,
    /// A guard with more tables, one over the other, is compacted.
    pub(super) tables_per_guard_max: usize,
    /// Whether tables have filters.
    pub(super) filters: bool,
    /// What a guard of the last level should hold.
    pub(super) guard_bytes: u64,
    /// Fragments that a compaction writes should not be smaller.
    pub(super) fragment_bytes_min: u64,
    /// An output is cut at a child's bound once it is this large.
    pub(super) file_bytes_min: u64,
    /// Fragments of this size gain nothing by being merged before they move down.
    pub(super) pass_bytes_min: u64,
    pub(super) space_amplification_max_percent: u64,
}

pub(super) const TABLES_PER_GUARD_MAX: OwnOption = OwnOption {
    tag: 2,
    name: "tables_per_guard_max",
    about: "most tables that may overlap in a guard; 0: the tree's own choice",
    nearest: |tables| tables,
    show: show_choice,
};

pub(super) const WITHOUT_FILTERS: OwnOption = OwnOption {
    tag: 3,
    name: "without_filters",
    about: "1: tables have no filters",
    nearest: |without| without.min(1),
    show: |without| (without != 0).to_string(),
};

impl Parameters {
    pub(super) fn new(options: &TreeOptions, hasher: &Arc<KeyHasher>) -> Parameters {
        let memtable = options.memtable_bytes.max(1024);
        let own = |option, default| match options.own.get(option) {
            0 => default,
            chosen => chosen as usize,
        };
        Parameters {
            hasher: Arc::clone(hasher),
            fanout_max: own(&FANOUT_MAX, 16).max(2),
            tables_per_guard_max: own(&TABLES_PER_GUARD_MAX, 12),
            filters: options.own.get(&WITHOUT_FILTERS) == 0,
            guard_bytes: (memtable * 2).min((64 << 20).max(memtable)),
            fragment_bytes_min: memtable / 16,
            file_bytes_min: memtable / 4,
            pass_bytes_min: memtable / 4,
            space_amplification_max_percent: options.space_amplification_max_percent,
        }
    }

    /// A guard of the last level with more is divided.
    pub(super) fn guard_bytes_max(&self) -> u64 {
        self.guard_bytes * 2
    }

    pub(super) fn named(&self) -> Vec<NamedCount> {
        named([
            ("fanout_max", self.fanout_max as u64),
            ("tables_per_guard_max", self.tables_per_guard_max as u64),
            ("guard_bytes", self.guard_bytes),
            ("fragment_bytes_min", self.fragment_bytes_min),
            ("file_bytes_min", self.file_bytes_min),
            ("pass_bytes_min", self.pass_bytes_min),
            ("space_amplification_max_percent", self.space_amplification_max_percent),
        ])
    }
}
