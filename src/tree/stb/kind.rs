//! What the table of kinds says of `stb`.

use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::{FANOUT_MAX, WITHOUT_SEEK_COMPACTION};
#[cfg(feature = "fuzz")]
use crate::tree::trunk::FUZZ_TARGETS;
use crate::tree::trunk::{Trunk, TrunkTree};
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "stb",
    own_options: &[&FANOUT_MAX, &WITHOUT_SEEK_COMPACTION],
    space_amplification_max_percent: 127,
    blob_bytes_min: 4096,
    open: |context, edits, flushed| Ok(TrunkTree::open(context, edits, flushed)?),
    has_heads: false,
    operation_sources: None,
    repair_ranges: repair_ranges::<Trunk>,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &FUZZ_TARGETS,
};

impl KeyspaceOptions {
    /// A keyspace held by an STBε-tree.
    pub fn stb() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Stb)
    }
}
