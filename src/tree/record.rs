//! How a change of a tree becomes durable.

use super::TreeContext;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::manifest::{Edit, KeyspaceChange, KeyspaceEdit};

/// Commits a tree edit to the manifest, with the number up to which the tree holds everything from
/// then on. The caller holds the tree's change lock; the files that the edit names are durable but for
/// their names.
pub(super) fn commit_edit(context: &TreeContext, payload: Vec<u8>, flushed: Seqno) -> Result<()> {
    let observer = context.observer.upgrade();
    if observer.is_some_and(|observer| observer.is_dropped()) {
        // The manifest knows it no more, or soon will not.
        let what = format!("keyspace {} (it was dropped)", context.keyspace);
        return Err(Error::Closed { what });
    }
    // Names before the record that relies on them.
    if !planted(Bug::DataNamesNotSynced) {
        context.files.vfs.sync_dir(context.files.dir())?;
    }
    let id = context.keyspace;
    let edit = Edit {
        next_file_id: Some(context.files.next_file_id()),
        keyspaces: vec![
            KeyspaceEdit { id, change: KeyspaceChange::TreeEdit(payload) },
            KeyspaceEdit { id, change: KeyspaceChange::Flushed(flushed) },
        ],
        ..Edit::default()
    };
    if let Err(error) = context.manifest.commit(&edit) {
        // The record may or may not be on the disk: no file may go until the next open has seen.
        if !matches!(error, Error::Full { .. }) && !planted(Bug::FilesGoInDoubt) {
            context.files.retain_all();
        }
        return Err(error);
    }
    Ok(())
}
