//! What the table of kinds says of this kind: it has no options of its own.

use std::path::Path;
use std::sync::Arc;

use super::ExampleTree;
use super::edit::Named;
use super::log::LeftFile;
use crate::base::error::{Error, Result};
use crate::cache::DataFiles;
use crate::manifest::TreeEdit;
use crate::tree::kinds::Kind;
use crate::tree::{OperationSource, RepairRange};

/// The kind's entry.
pub(in crate::tree) const KIND: Kind = Kind {
    name: "example",
    own_options: &[],
    space_amplification_max_percent: 130,
    blob_bytes_min: 4096,
    open: |context, edits, flushed| Ok(ExampleTree::open(context, edits, flushed)?),
    has_heads: false,
    operation_sources: Some(operation_sources),
    repair_ranges,
    #[cfg(feature = "fuzz")]
    fuzz_targets: &[],
};

/// The files that the last edit names.
fn operation_sources(
    files: &DataFiles,
    edits: &[TreeEdit],
    manifest: &Path,
) -> Result<Vec<Arc<dyn OperationSource>>> {
    let Some(edit) = edits.last() else { return Ok(Vec::new()) };
    let left = |log| Arc::new(LeftFile::new(files, log)) as Arc<dyn OperationSource>;
    Ok(Named::decode(edit, manifest)?.logs.into_iter().map(left).collect())
}

/// A repair merges tables, and this kind has none.
fn repair_ranges(_edits: &[TreeEdit], _manifest: &Path) -> Result<Vec<RepairRange>> {
    Err(Error::invalid("a keyspace of the kind \"example\" has no tables and cannot be repaired"))
}
