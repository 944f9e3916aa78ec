//! Opening the files of a tree: the ends of all tables are read together, not one after the other.

use std::sync::Arc;

use super::edit::Body;
use super::level::Level;
use crate::base::error::Result;
use crate::base::ids::NodeId;
use crate::table::Table;
use crate::tree::TreeContext;
use crate::tree::versioned::{NodeRef, Recovered};

/// Builds the level that edits have defined.
pub(super) fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Level>> {
    let file = context.manifest.path();
    recovered.build(&file, &mut |NodeRef { id, .. }, record, _children| {
        let tables = Table::open_all(&context.files, &context.blobs, &record.body.tables)?;
        let mut level = Level::new(tables, record.body.placed.clone(), record.body.index);
        level.id = NodeId(id);
        Ok(level)
    })
}
