//! What the table of kinds says of this kind: it has no options of its own.

use std::path::Path;

use super::ExampleTree;
use crate::base::error::{Error, Result};
use crate::manifest::TreeEdit;
use crate::tree::RepairRange;
use crate::tree::kinds::Kind;

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "example",
    own_options: &[],
    space_amplification_max_percent: 130,
    open: |context, edits, flushed| Ok(ExampleTree::open(context, edits, flushed)?),
    repair_ranges,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &[],
};

/// A repair merges tables, and this kind has none.
fn repair_ranges(_edits: &[TreeEdit], _manifest: &Path) -> Result<Vec<RepairRange>> {
    Err(Error::invalid("a keyspace of the kind \"example\" has no tables and cannot be repaired"))
}
