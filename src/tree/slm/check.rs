//! Verifies a version: the level's shape, every file, and that the index agrees with the tables.

use std::path::Path;
use std::sync::Arc;

use super::level::Level;
use crate::base::error::Error;
use crate::tree::versioned::check_shape;
use crate::tree::{CheckCounts, files};

pub(super) fn check(
    root: &Arc<Level>,
    manifest: &Path,
    full: bool,
    problem: &mut dyn FnMut(Error),
) -> CheckCounts {
    check_shape(root, manifest, problem);
    let tables: Vec<_> = root.tables.iter().collect();
    files::check(&tables, full, problem)
}
