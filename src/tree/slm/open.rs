//! Opening the files of a tree: the ends of all tables are read together, not one after the other.

use std::sync::Arc;

use super::edit::{self, Body};
use super::level::Level;
use crate::base::error::Result;
use crate::table::Table;
use crate::tree::TreeContext;
use crate::tree::versioned::Recovered;

/// Builds the level that edits have defined.
pub(super) fn open(context: &TreeContext, recovered: &Recovered<Body>) -> Result<Arc<Level>> {
    let file = context.manifest.path();
    edit::build(recovered, &file, &mut |tables| {
        Table::open_all(&context.files, &context.blobs, tables)
    })
}
