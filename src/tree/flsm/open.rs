//! Opening a tree from its edits: the ends of all tables are read together, not one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::edit::Recovered;
use super::guard::Guard;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::manifest::TreeEdit;
use crate::table::Table;
use crate::tree::{Stretch, TreeContext};

/// The tree that the edits say, with the highest number that they give to a guard.
pub(super) fn recover(context: &TreeContext, edits: &[TreeEdit]) -> Result<(Arc<Guard>, u64)> {
    if edits.is_empty() {
        return Ok((Arc::new(Guard::empty_root()), 0));
    }
    let file = context.manifest.path();
    let mut recovered = Recovered::default();
    for edit in edits {
        recovered.apply(&edit.bytes, &file, edit.offset)?;
    }
    let ids: Vec<FileId> = recovered.tables_in_use().into_iter().collect();
    let opened = Table::open_all(&context.files, &context.blobs, &ids)?;
    let tables: BTreeMap<FileId, Arc<Table>> = ids.into_iter().zip(opened).collect();
    let root = recovered.build(&file, &mut |id| match tables.get(&id) {
        Some(table) => Ok(Arc::clone(table)),
        None => Err(Error::corruption(&file, 0, "flsm table number", "an open table", id)),
    })?;
    Ok((root, recovered.last_number()))
}

/// The stretches of the tree that the edits say; no file is opened.
pub(in crate::tree) fn stretches(edits: &[TreeEdit], file: &Path) -> Result<Vec<Stretch>> {
    let mut recovered = Recovered::default();
    edits.iter().try_for_each(|edit| recovered.apply(&edit.bytes, file, edit.offset))?;
    recovered.stretches(file)
}
