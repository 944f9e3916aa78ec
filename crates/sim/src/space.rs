//! Whether a store's directory holds what the store needs, and nothing else.
//!
//! Invariants:
//! 1. Only what the format's pages say of names is used: `SPINNEY`, `LOCK`, `manifest-…` and
//!    `journal-…` are the store's own; all other files hold data.

use std::path::Path;

use spinney::vfs::Vfs;
use spinney::{CheckLevel, Database, Error};

/// Moves everything into the trees, waits until nothing is left to do, and looks whether the directory
/// then holds more than the trees name. Nobody may hold a snapshot or an iterator.
///
/// # Errors
/// What there is too much of; or what fails.
pub fn check_settled(vfs: &dyn Vfs, dir: &str, db: &Database) -> Result<(), String> {
    settle(db).map_err(|error| format!("settling: {error}"))?;
    let failed = |error: Error| format!("counting files: {error}");
    let (mut files, mut bytes, mut manifests) = (0, 0, 0);
    let mut names = Vec::new();
    for entry in vfs.read_dir(Path::new(dir)).map_err(failed)? {
        if entry.name.starts_with("manifest-") {
            manifests += 1;
        } else if !is_own(&entry.name) {
            files += 1;
            bytes += entry.len;
            names.push(entry.name);
        }
    }
    let known_bytes: u64 = db.stats().keyspaces.iter().map(|keyspace| keyspace.disk_bytes).sum();
    // A file that two keyspaces share counts twice there, so these are upper bounds.
    let known_files = db.check(CheckLevel::Structure).map_err(failed)?.files;
    if files > known_files || bytes > known_bytes {
        return Err(format!(
            "when all is settled the directory has {files} data files of {bytes} bytes, and the store \
             knows {known_files} of {known_bytes}: {}",
            names.join(", ")
        ));
    }
    match manifests {
        1 => Ok(()),
        _ => Err(format!("when all is settled there are {manifests} manifests")),
    }
}

fn settle(db: &Database) -> spinney::Result<()> {
    db.wait_idle()?;
    for name in db.keyspaces() {
        db.existing_keyspace(&name)?.flush()?;
    }
    db.wait_idle()
}

fn is_own(name: &str) -> bool {
    name == "SPINNEY" || name == "LOCK" || name.starts_with("journal-")
}
