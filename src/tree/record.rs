//! How a change of a tree becomes durable, and how changes are kept from being made.

use super::{ChangeLock, TreeContext};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::planted::{Bug, planted};
use crate::base::sync::MutexGuard;
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
        if !error.is_refusal() && !planted(Bug::FilesGoInDoubt) {
            context.files.retain_all();
        }
        return Err(error);
    }
    Ok(())
}

/// Holds a tree's change lock, whatever it guards.
pub(super) struct Still<'a, C, F> {
    _guard: MutexGuard<'a, C>,
    snapshot: F,
}

impl<'a, C, F: Fn() -> Option<Vec<u8>>> Still<'a, C, F> {
    /// `snapshot` writes the tree as it is from now on.
    pub(super) fn new(guard: MutexGuard<'a, C>, snapshot: F) -> Still<'a, C, F> {
        Still { _guard: guard, snapshot }
    }
}

impl<C, F: Fn() -> Option<Vec<u8>>> ChangeLock for Still<'_, C, F> {
    fn snapshot(&self) -> Option<Vec<u8>> {
        (self.snapshot)()
    }
}
