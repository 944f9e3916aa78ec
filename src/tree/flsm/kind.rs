//! What the table of kinds says of `flsm`, and the options that it has alone.

#[cfg(feature = "fuzz")]
use super::fuzz::TARGETS;
use super::parameters::{TABLES_PER_GUARD_MAX, WITHOUT_FILTERS};
use super::{Flsm, FlsmTree};
use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::{FANOUT_MAX, WITHOUT_SEEK_COMPACTION};
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "flsm",
    own_options: &[&FANOUT_MAX, &TABLES_PER_GUARD_MAX, &WITHOUT_FILTERS, &WITHOUT_SEEK_COMPACTION],
    space_amplification_max_percent: 130,
    blob_bytes_min: 4096,
    open: |context, edits, flushed| Ok(FlsmTree::open(context, edits, flushed)?),
    has_heads: false,
    operation_sources: None,
    repair_ranges: repair_ranges::<Flsm>,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &TARGETS,
};

impl KeyspaceOptions {
    /// A keyspace held by a fragmented log-structured merge tree: for steady writes of keys in no
    /// order, with the fewest bytes written.
    pub fn flsm() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Flsm)
    }

    /// The number of tables that may overlap in a guard of an `flsm` keyspace before it is
    /// compacted: more make writes cheaper, fewer reads (0, the default: the tree's own choice). An option of
    /// the kind `flsm`.
    pub fn tables_per_guard_max(self, tables: u32) -> KeyspaceOptions {
        self.own(&TABLES_PER_GUARD_MAX, tables)
    }

    /// Whether the tables of an `flsm` keyspace have filters (the default). Without them a little less is
    /// written, and a lookup reads a page of every table that overlaps its key: this is for measuring
    /// what they are worth. An option of the kind `flsm`.
    pub fn filters(self, filters: bool) -> KeyspaceOptions {
        self.own(&WITHOUT_FILTERS, u32::from(!filters))
    }
}
