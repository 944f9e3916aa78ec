//! The epochs of the journal that have segments in a directory.

use std::collections::BTreeSet;
use std::path::Path;

use crate::base::error::Result;
use crate::journal::SegmentId;
use crate::vfs::Vfs;

/// The epochs of the segments in `dir`, which may not exist.
pub(super) fn epochs_in(vfs: &dyn Vfs, dir: &Path) -> Result<BTreeSet<u32>> {
    if !vfs.exists(dir)? {
        return Ok(BTreeSet::new());
    }
    let names = vfs.read_names(dir)?;
    Ok(names.iter().filter_map(|name| SegmentId::parse(name)).map(|id| id.epoch).collect())
}

/// The first epoch that has segments in both directories.
pub(super) fn first_in_both(vfs: &dyn Vfs, a: &Path, b: &Path) -> Result<Option<u32>> {
    let (of_a, of_b) = (epochs_in(vfs, a)?, epochs_in(vfs, b)?);
    Ok(of_a.intersection(&of_b).next().copied())
}
