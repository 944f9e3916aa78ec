//! Checkpoints: a consistent copy of the store, by hard links where they can be made.
//!
//! Invariants:
//! 1. All trees are captured at one cut: everything up to it, nothing above.
//! 2. What is linked is pinned by the captured versions until the copy is complete.
//! 3. The copy has a manifest, and so is a store, only once all its files are there and durable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::persistent_memory::PersistentMemory;
use super::persistent_memory::left::memory_of;
use super::store::Store;
use crate::base::error::{Error, Result};
use crate::base::key_hash::HashSecret;
use crate::base::planted::{Bug, planted};
use crate::jobs::unpredictable;
use crate::manifest::{
    Edit, KeyspaceChange, KeyspaceEdit, NewStore, SUPERBLOCK_FILE_NAME, create_copy,
};
use crate::tree::{CheckpointFiles, TreeVersion};
use crate::vfs::{Access, Vfs, create_dir_durably, sync_parent};

/// How far a checkpoint is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointProgress {
    /// Data files linked or copied so far.
    pub files: u64,
    /// Data files in all.
    pub files_total: u64,
    /// Bytes copied so far, of files that could not be linked.
    pub bytes_copied: u64,
}

pub(crate) fn checkpoint(
    store: &Store,
    dir: &Path,
    progress: &mut dyn FnMut(CheckpointProgress),
) -> Result<()> {
    store.check_writable()?;
    store.check_whole()?;
    let vfs = &store.vfs;
    let existed = vfs.exists(dir)?;
    if existed && !vfs.read_dir(dir)?.is_empty() {
        return Err(Error::Conflict {
            what: format!("{} is not empty; name a new directory", dir.display()),
        });
    }
    refuse_inside(&**vfs, &store.path, None, dir)?;
    let result = copy(store, dir, progress);
    if result.is_err() {
        discard(&**vfs, dir, existed);
    }
    result
}

/// Refuses to make a store in `dir` if that is the directory of `store` or inside it. The same for its persistent
/// memory, of which the user may have named the directory.
pub(crate) fn refuse_inside(
    vfs: &dyn Vfs,
    store: &Path,
    memory: Option<&PersistentMemory>,
    dir: &Path,
) -> Result<()> {
    let place = vfs.canonical(dir)?;
    let refused = |what: &str| {
        Err(Error::invalid(format!(
            "{} is inside the {what}, which holds its own files alone; name a directory elsewhere",
            dir.display()
        )))
    };
    if place.starts_with(vfs.canonical(store)?) {
        return refused("store itself");
    }
    // What cannot be looked up has nothing in it.
    let memory = memory_of(vfs, store, memory).and_then(|memory| vfs.canonical(&memory).ok());
    match memory {
        Some(memory) if place.starts_with(&memory) => refused("store's persistent memory"),
        _ => Ok(()),
    }
}

/// Removes what there is of a copy that failed: its links would keep the room of files that the store
/// has long removed. What cannot be removed stays; it is no store, since the superblock goes first.
pub(crate) fn discard(vfs: &dyn Vfs, dir: &Path, existed: bool) {
    let superblock = dir.join(SUPERBLOCK_FILE_NAME);
    if vfs.exists(&superblock).unwrap_or(true)
        && vfs.remove(&superblock).and_then(|()| vfs.sync_dir(dir)).is_err()
    {
        return;
    }
    // Whatever is there has been put there by the copy: the directory was empty.
    for entry in vfs.read_dir(dir).unwrap_or_default() {
        let _ = vfs.remove(&dir.join(entry.name));
    }
    if !existed {
        let _ = vfs.remove_dir(dir);
    }
}

/// What a copy is made of: its manifest, and the versions whose files it links.
type Captured = (Edit, Vec<Arc<dyn TreeVersion>>);

fn capture(store: &Store) -> Result<Captured> {
    let _registry = store.registry.lock();
    let mut keyspaces = store.all_keyspaces();
    // In the order of their creation, as the manifest wants it.
    keyspaces.sort_by_key(|keyspace| keyspace.id);
    store.while_incorporating_alone(|| {
        let mut edit = Edit::default();
        let mut versions = Vec::new();
        let cut = store.freeze(&keyspaces, |_| true);
        for keyspace in &keyspaces {
            if !planted(Bug::CheckpointMissesNewest) {
                store.flush_frozen_alone(keyspace, cut)?;
            }
            let changes = keyspace.tree.lock_changes();
            let id = keyspace.id;
            let meta = keyspace.options().meta(&keyspace.name);
            let range_deletes = keyspace.durable_range_deletes();
            edit.keyspaces.push(KeyspaceEdit { id, change: KeyspaceChange::Create(meta) });
            if let Some(snapshot) = changes.shown() {
                let change = KeyspaceChange::TreeSnapshot(snapshot);
                edit.keyspaces.push(KeyspaceEdit { id, change });
            }
            edit.keyspaces.push(KeyspaceEdit { id, change: KeyspaceChange::Flushed(cut) });
            for delete in &range_deletes.list {
                let change = KeyspaceChange::RangeDelete(delete.clone());
                edit.keyspaces.push(KeyspaceEdit { id, change });
            }
            versions.push(keyspace.tree.version());
        }
        edit.journal_floor = Some(cut);
        edit.last_seqno = Some(cut);
        edit.next_file_id = Some(store.files.next_file_id());
        Ok((edit, versions))
    })
}

fn copy(store: &Store, dir: &Path, progress: &mut dyn FnMut(CheckpointProgress)) -> Result<()> {
    let vfs = &store.vfs;
    create_dir_durably(&**vfs, dir)?;
    // From here on no lock is held: to copy may take long, and `progress` may call the store.
    let (edit, versions) = capture(store)?;
    // A blob file may serve several keyspaces.
    let files: BTreeSet<PathBuf> = versions.iter().flat_map(|version| version.files()).collect();
    let done = CheckpointProgress { files_total: files.len() as u64, ..Default::default() };
    progress(done);
    let mut copy = Copy { vfs: &**vfs, dir, added: BTreeSet::new(), done, progress };
    versions.iter().try_for_each(|version| version.write_down(&mut copy))?;
    vfs.sync_dir(dir)?;
    let store_id = match store.executor.is_stepped() {
        true => 1,
        false => unpredictable::<1>()?[0] | 1,
    };
    // The filters in the files that both share are made with the secret.
    let hash_secret = match planted(Bug::CheckpointOtherSecret) {
        true => HashSecret::default(),
        false => store.files.hasher.secret(),
    };
    create_copy(&**vfs, dir, NewStore { store_id, hash_secret }, edit)?;
    sync_parent(&**vfs, dir)
}

/// A copy that is being made.
struct Copy<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    added: BTreeSet<PathBuf>,
    done: CheckpointProgress,
    progress: &'a mut dyn FnMut(CheckpointProgress),
}

impl Copy<'_> {
    /// Adds a file by `f`, which is told its new path and reports the bytes that it copies, unless that has been done.
    fn add(
        &mut self,
        file: &Path,
        f: impl FnOnce(&dyn Vfs, &Path, &mut dyn FnMut(u64)) -> Result<()>,
    ) -> Result<()> {
        let Some(name) = file.file_name() else { return Ok(()) };
        let skipped = planted(Bug::CheckpointMissesBlobs)
            && file.extension().is_some_and(|extension| extension == "blob");
        if skipped || !self.added.insert(file.to_path_buf()) {
            return Ok(());
        }
        f(self.vfs, &self.dir.join(name), &mut |bytes| {
            self.done.bytes_copied += bytes;
            (self.progress)(self.done);
        })?;
        self.done.files += 1;
        (self.progress)(self.done);
        Ok(())
    }
}

impl CheckpointFiles for Copy<'_> {
    fn link(&mut self, file: &Path) -> Result<()> {
        self.add(file, |vfs, to, copied| link_or_copy(vfs, file, to, copied))
    }

    fn write(&mut self, file: &Path, contents: &[u8]) -> Result<()> {
        self.add(file, |vfs, to, copied| {
            let target = vfs.create(to, Access::Buffered)?;
            target.write_at(0, contents)?;
            copied(contents.len() as u64);
            target.sync()
        })
    }
}

/// What a copy reads and writes at a time.
const COPIED_BYTES: usize = 1 << 20;

/// Gives the file a second name, or copies it, durably, where the file system cannot: to another one, or one
/// without hard links. `copied` hears of each part that has been copied.
fn link_or_copy(vfs: &dyn Vfs, from: &Path, to: &Path, copied: &mut dyn FnMut(u64)) -> Result<()> {
    use std::io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    match vfs.hard_link(from, to) {
        Err(Error::Io { source, .. })
            if matches!(
                source.kind(),
                CrossesDevices | PermissionDenied | TooManyLinks | Unsupported
            ) => {}
        result => return result,
    }
    let source = vfs.open(from, Access::Buffered, false)?;
    let target = vfs.create(to, Access::Buffered)?;
    let bytes = source.len()?;
    let mut buffer = vec![0; COPIED_BYTES.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let part = buffer.len().min((bytes - offset) as usize);
        let part = &mut buffer[..part];
        source.read_at(offset, part)?;
        target.write_at(offset, part)?;
        offset += part.len() as u64;
        copied(part.len() as u64);
    }
    target.sync()
}
