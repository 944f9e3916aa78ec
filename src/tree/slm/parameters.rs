//! Sizes and limits of the level.

use crate::table::TableFilter;
use crate::tree::TreeOptions;
use crate::tree::description::{NamedCount, named};
use crate::tree::own_options::{OwnOption, WITHOUT_SEEK_COMPACTION, show_choice};

/// A table of which a smaller part is live is a candidate for compaction (SLM-DB, section 3.3).
pub(super) const LIVE_PERCENT_MIN: OwnOption = OwnOption {
    tag: 9,
    name: "live_percent_min",
    about: "a table of which a smaller part is live is merged with others, in percent; 0: the tree's own choice",
    nearest: |percent| percent.min(100),
    show: show_choice,
};
const LIVE_PERCENT_MIN_DEFAULT: u8 = 70;

/// Whether tables are left as they are that leaves of the index name together with many others (the paper's leaf node
/// scans).
pub(super) const WITHOUT_LEAF_SCANS: OwnOption = OwnOption {
    tag: 10,
    name: "without_leaf_scans",
    about: "1: tables are not merged because neighbouring keys are in many of them",
    nearest: |without| without.min(1),
    show: |without| (without != 0).to_string(),
};

/// How much of a table a list of its keys may take. The index is built from such lists, if it is lost, without reading values.
pub(super) const KEY_LIST_PERCENT_MAX: OwnOption = OwnOption {
    tag: 13,
    name: "key_list_percent_max",
    about: "a table has a list of its keys, for openings without an index, if that adds at most so much, in percent; 0: the tree's own choice",
    nearest: |percent| percent.min(100),
    show: show_choice,
};
/// Where entries are so small that a list takes more, most of the time goes to the keys, however they are read.
const KEY_LIST_PERCENT_MAX_DEFAULT: u8 = 3;

/// The most tables that one compaction merges.
const INPUTS_MAX: usize = 8;

/// What the tree aims at.
#[derive(Debug, Clone)]
pub(in crate::tree) struct Parameters {
    pub(super) live_percent_min: u8,
    pub(super) key_list_percent_max: u8,
    pub(super) inputs_max: usize,
    /// An output of a compaction is cut at this size.
    pub(super) table_bytes: u64,
    /// Leaf scans and range queries name tables that are to be merged.
    pub(super) scans_leaves: bool,
    pub(super) counts_range_reads: bool,
}

impl Parameters {
    pub(super) fn new(options: &TreeOptions) -> Parameters {
        let table_bytes = options.memtable_bytes.clamp(1024, 64 << 20);
        Parameters {
            live_percent_min: match options.own.get(&LIVE_PERCENT_MIN) {
                0 => LIVE_PERCENT_MIN_DEFAULT,
                percent => percent.min(100) as u8,
            },
            key_list_percent_max: match options.own.get(&KEY_LIST_PERCENT_MAX) {
                0 => KEY_LIST_PERCENT_MAX_DEFAULT,
                percent => percent.min(100) as u8,
            },
            inputs_max: INPUTS_MAX,
            table_bytes,
            scans_leaves: options.own.get(&WITHOUT_LEAF_SCANS) == 0,
            counts_range_reads: options.own.get(&WITHOUT_SEEK_COMPACTION) == 0,
        }
    }

    /// What tables have by which keys are found: the index has them.
    pub(super) fn filter(&self) -> TableFilter {
        TableFilter::Listed(self.key_list_percent_max)
    }

    pub(super) fn named(&self) -> Vec<NamedCount> {
        named([
            ("live_percent_min", u64::from(self.live_percent_min)),
            ("key_list_percent_max", u64::from(self.key_list_percent_max)),
            ("inputs_max", self.inputs_max as u64),
            ("table_bytes", self.table_bytes),
            ("scans_leaves", u64::from(self.scans_leaves)),
            ("counts_range_reads", u64::from(self.counts_range_reads)),
        ])
    }
}
