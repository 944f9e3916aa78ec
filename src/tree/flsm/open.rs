//! Opening the files of a tree: the ends of all tables are read together, not one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::edit::{Body, build};
use super::guard::Guard;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::table::Table;
use crate::tree::TreeContext;
use crate::tree::versioned::Recovered;

/// Builds the guards that edits have defined.
pub(super) fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Guard>> {
    let file = context.manifest.path();
    let guards = recovered.reachable();
    let ids: BTreeSet<FileId> = guards.iter().flat_map(|guard| guard.body.table_ids()).collect();
    let ids: Vec<FileId> = ids.into_iter().collect();
    let opened = Table::open_all(&context.files, &context.blobs, &ids)?;
    let tables: BTreeMap<FileId, Arc<Table>> = ids.into_iter().zip(opened).collect();
    build(recovered, &file, &mut |id| match tables.get(&id) {
        Some(table) => Ok(Arc::clone(table)),
        None => Err(Error::corruption(&file, 0, "flsm table number", "an open table", id)),
    })
}
