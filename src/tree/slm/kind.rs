//! What the table of kinds says of `slm`.

use super::{Slm, SlmTree};
use crate::tree::kinds::{Kind, TreeKind};
use crate::tree::options::KeyspaceOptions;
use crate::tree::versioned::repair_ranges;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "slm",
    own_options: &[],
    space_amplification_max_percent: 150,
    open: |context, edits, flushed| Ok(SlmTree::open(context, edits, flushed)?),
    has_heads: false,
    operation_sources: None,
    repair_ranges: repair_ranges::<Slm>,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &[],
};

impl KeyspaceOptions {
    /// A keyspace held by a single level of tables under a B+-tree of all keys: whether a key exists is known without a
    /// read.
    pub fn slm() -> KeyspaceOptions {
        KeyspaceOptions::new(TreeKind::Slm)
    }
}
