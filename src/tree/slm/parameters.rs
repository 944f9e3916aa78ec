//! Sizes and limits of the level.

use crate::tree::TreeOptions;
use crate::tree::description::{NamedCount, named};

/// A table of which a smaller part is live is a candidate for compaction (SLM-DB, section 3.3).
const LIVE_PERCENT_MIN: u64 = 70;
/// Of an index in a file, as many memtables count as memory of the store at most: a quarter of the budget, by default.
/// The system drops pages of the file if it needs the memory.
const INDEX_MEMTABLES_MAX: u64 = 4;
/// The most tables that one compaction merges.
const INPUTS_MAX: usize = 8;

/// What the tree aims at.
#[derive(Debug, Clone)]
pub(in crate::tree) struct Parameters {
    pub(super) live_percent_min: u64,
    pub(super) inputs_max: usize,
    /// An output of a compaction is cut at this size.
    pub(super) table_bytes: u64,
    /// The most memory that an index in a file counts as, and keeps mapped for long.
    pub(super) index_memory_bytes_max: u64,
}

impl Parameters {
    pub(super) fn new(options: &TreeOptions) -> Parameters {
        let table_bytes = options.memtable_bytes.clamp(1024, 64 << 20);
        Parameters {
            live_percent_min: LIVE_PERCENT_MIN,
            inputs_max: INPUTS_MAX,
            table_bytes,
            index_memory_bytes_max: INDEX_MEMTABLES_MAX * options.memtable_bytes.max(1024),
        }
    }

    pub(super) fn named(&self) -> Vec<NamedCount> {
        named([
            ("live_percent_min", self.live_percent_min),
            ("inputs_max", self.inputs_max as u64),
            ("table_bytes", self.table_bytes),
            ("index_memory_bytes_max", self.index_memory_bytes_max),
        ])
    }
}
