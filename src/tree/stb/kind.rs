//! What the table of kinds says of `stb`.

#[cfg(feature = "fuzz")]
use super::fuzz::TARGETS;
use super::{Stb, StbTree};
use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::own_options::{FANOUT_MAX, WITHOUT_SEEK_COMPACTION};
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "stb",
    own_options: &[&FANOUT_MAX, &WITHOUT_SEEK_COMPACTION],
    space_amplification_max_percent: 127,
    open: |context, edits, flushed| Ok(StbTree::open(context, edits, flushed)?),
    operation_sources: None,
    repair_ranges: repair_ranges::<Stb>,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &TARGETS,
};

impl KeyspaceOptions {
    /// A keyspace held by an STBε-tree.
    pub fn stb() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Stb)
    }
}
