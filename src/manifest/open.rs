//! Opening: checks that a directory has a store, chooses the manifest that counts, and reads it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::durable::DurableEnd;
use super::edit::{Edit, KeyspaceChange, KeyspaceEdit};
use super::log::{Manifest, manifest_path, new_manifest, parse_manifest_name, write_manifest};
use super::record::{HEADER_BYTES, Identity, RECORD_HEAD_BYTES, RecordKind};
use super::state::{RecoveredState, State, Trees};
use super::superblock::{self, Superblock};
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::KeyspaceId;
use crate::base::key_hash::HashSecret;
use crate::base::planted::{Bug, planted};
use crate::vfs::{Access, File, Vfs, create_dir_durably, sync_parent};

/// The name of the store's lock file, which may exist before the store does.
pub(crate) const LOCK_FILE_NAME: &str = "LOCK";

/// The number of the first manifest.
const FIRST_NUMBER: u64 = 1;

/// Options of an open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenOptions {
    /// Creates a store if the directory is missing or empty.
    pub(crate) create: bool,
    /// The identity of a new store.
    pub(crate) new_store: NewStore,
}

/// The identity of a new store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewStore {
    /// The store's number: random, never used before.
    pub(crate) store_id: u64,
    /// The secret for hashing its keys.
    pub(crate) hash_secret: HashSecret,
}

/// The content of a manifest file.
pub(super) struct Loaded {
    identity: Identity,
    state: State,
    trees: Trees,
    snapshot_bytes: u64,
    /// The end of the valid records, and of the file.
    end: u64,
    file_bytes: u64,
    /// The valid part.
    bytes: Vec<u8>,
}

impl Loaded {
    /// Checks that no durable record is missing from the end. Returns true if the store has
    /// recorded a durable end. (The store may have continued after that, and in this manifest,
    /// because only closing syncs the recorded end.)
    ///
    /// # Errors
    /// `Corruption` if a durable record is missing.
    pub(super) fn check_end(&self, vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
        let Some(durable) = DurableEnd::read(vfs, dir, self.identity.store_id)? else {
            return Ok(false);
        };
        durable.check(dir, self.identity, self.end, self.file_bytes)?;
        Ok(true)
    }

    /// The file, and the end of its valid records.
    pub(super) fn end(&self, dir: &Path) -> (PathBuf, u64) {
        (manifest_path(dir, self.identity.number), self.end)
    }

    /// The state that it describes.
    pub(super) fn into_recovered(self) -> RecoveredState {
        let store_id = self.identity.store_id;
        let torn_bytes = self.file_bytes - self.end;
        RecoveredState { store_id, torn_bytes, ..self.trees.join(&self.state) }
    }

    /// Separates the results of the open from the state that the manifest continues with.
    fn recovered(self, superblock: Superblock, created: bool) -> (State, RecoveredState) {
        let recovered = RecoveredState {
            store_id: superblock.store_id,
            hash_secret: superblock.hash_secret,
            format_version: superblock.version,
            created_by: superblock.created_by,
            created,
            manifest_number: self.identity.number,
            torn_bytes: self.file_bytes - self.end,
            ..self.trees.join(&self.state)
        };
        (self.state, recovered)
    }
}

impl Manifest {
    /// Opens the store in `dir`, which the caller has locked, or creates one.
    ///
    /// # Errors
    /// `NotAStore` if the directory has other files or is empty; `Corruption` if the store's
    /// manifest is missing or damaged; `UnsupportedVersion` if a newer version of Spinney wrote it.
    pub(crate) fn open(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        options: OpenOptions,
    ) -> Result<(Manifest, RecoveredState)> {
        let created = !vfs.exists(&Superblock::path(dir))?;
        if created {
            prepare_creation(&**vfs, dir, options.create)?;
            create(&**vfs, dir, options.new_store)?;
        }
        let superblock = Superblock::read(&**vfs, dir)?;
        let numbers = manifest_numbers(&**vfs, dir)?;
        let loaded = load_newest(&**vfs, dir, superblock.store_id, &numbers)?;
        loaded.check_end(&**vfs, dir)?;
        let number = loaded.identity.number;
        let path = manifest_path(dir, number);
        let file = vfs.open(&path, Access::Buffered, true)?;
        if !planted(Bug::ManifestReadNotSynced) {
            make_durable(&**vfs, dir, &*file, &loaded.bytes)?;
        }
        // No commit may follow before the other manifests are durably removed (invariant 3 of the
        // module).
        let mut stale = numbers.iter().filter(|other| **other != number).peekable();
        if stale.peek().is_some() {
            for other in stale {
                vfs.remove(&manifest_path(dir, *other))?;
            }
            vfs.sync_dir(dir)?;
        }
        let (identity, ends) = (loaded.identity, (loaded.snapshot_bytes, loaded.end));
        let (state, recovered) = loaded.recovered(superblock, created);
        let torn = recovered.torn_bytes > 0;
        let manifest = Manifest::new(Arc::clone(vfs), dir, identity, file, ends, torn, state);
        Ok((manifest, recovered))
    }

    /// Opens the store in `dir` for reading: nothing is changed, and commits are refused.
    ///
    /// # Errors
    /// The errors of [`Manifest::open`].
    pub(crate) fn open_read_only(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
    ) -> Result<(Manifest, RecoveredState)> {
        let (superblock, loaded) = read(&**vfs, dir)?;
        let path = manifest_path(dir, loaded.identity.number);
        let file = vfs.open(&path, Access::Buffered, false)?;
        let (identity, ends) = (loaded.identity, (loaded.snapshot_bytes, loaded.end));
        let (state, recovered) = loaded.recovered(superblock, false);
        let torn = recovered.torn_bytes > 0;
        let manifest = Manifest::new(Arc::clone(vfs), dir, identity, file, ends, torn, state);
        Ok((manifest, recovered))
    }

    /// Checks by the file names that `dir` has a store.
    ///
    /// # Errors
    /// `NotAStore`.
    pub(crate) fn find(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
        find(vfs, dir)
    }

    /// Checks, before anything is created there, that the existing directory `dir` has a store, or
    /// may become one if `create` is set. [`Manifest::open`] checks again after the caller has
    /// locked it.
    ///
    /// # Errors
    /// `NotAStore`.
    pub(crate) fn find_or_free(vfs: &dyn Vfs, dir: &Path, create: bool) -> Result<()> {
        let found = find(vfs, dir);
        if !matches!(found, Err(Error::NotAStore { .. })) {
            return found;
        }
        match look(vfs, dir, create) {
            // Another process may just have created the store. Other files appeared after its
            // superblock.
            Err(Error::NotAStore { .. })
                if vfs.exists(&Superblock::path(dir)).unwrap_or_default() =>
            {
                Ok(())
            }
            looked => looked.map(|_| ()),
        }
    }

    /// Reads the state of the store in `dir` without changing anything, for a store that another
    /// process has open or that must not be changed.
    #[cfg(test)]
    pub(crate) fn inspect(vfs: &dyn Vfs, dir: &Path) -> Result<RecoveredState> {
        let (superblock, loaded) = read(vfs, dir)?;
        Ok(loaded.recovered(superblock, false).1)
    }
}

fn find(vfs: &dyn Vfs, dir: &Path) -> Result<()> {
    let not_a_store = |reason| Err(Error::NotAStore { path: dir.to_path_buf(), reason });
    match vfs.read_names(dir) {
        Ok(names) if names.iter().any(|name| name == superblock::FILE_NAME) => Ok(()),
        Ok(_) => not_a_store(format!("it has no file {:?}", superblock::FILE_NAME)),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            not_a_store("there is no such directory".to_string())
        }
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotADirectory => {
            not_a_store("it is a file, not a directory".to_string())
        }
        Err(error) => Err(error),
    }
}

/// The newest intact manifest of the store in `dir`.
fn read(vfs: &dyn Vfs, dir: &Path) -> Result<(Superblock, Loaded)> {
    find(vfs, dir)?;
    let superblock = Superblock::read(vfs, dir)?;
    let numbers = manifest_numbers(vfs, dir)?;
    let loaded = load_newest(vfs, dir, superblock.store_id, &numbers)?;
    loaded.check_end(vfs, dir)?;
    Ok((superblock, loaded))
}

/// Checks that `dir` may become a store, and removes the remains of an attempt that crashed.
fn prepare_creation(vfs: &dyn Vfs, dir: &Path, allowed: bool) -> Result<()> {
    let not_a_store = |reason| Error::NotAStore { path: dir.to_path_buf(), reason };
    if !vfs.exists(dir)? {
        if !allowed {
            return Err(not_a_store("there is no such directory".to_string()));
        }
        return create_dir_durably(vfs, dir);
    }
    let left = look(vfs, dir, allowed)?;
    left.iter().try_for_each(|path| vfs.remove(path))?;
    // The process that created the directory may have died before its name was durable.
    sync_parent(vfs, dir)
}

/// Checks that `dir`, which has no superblock, may become a store. Returns the remains of an
/// attempt that crashed.
fn look(vfs: &dyn Vfs, dir: &Path, allowed: bool) -> Result<Vec<PathBuf>> {
    let not_a_store = |reason| Error::NotAStore { path: dir.to_path_buf(), reason };
    // Before the superblock is in place, a manifest only has an empty snapshot.
    let empty_bytes =
        new_manifest(Identity { store_id: 0, number: FIRST_NUMBER }, &State::default(), &[])?;
    let mut left = Vec::new();
    let entries = match vfs.read_dir(dir) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotADirectory => {
            return Err(not_a_store("it is a file, and a store is a directory".to_string()));
        }
        entries => entries?,
    };
    for entry in entries {
        let path = dir.join(&entry.name);
        let number = parse_manifest_name(&entry.name);
        match &*entry.name {
            LOCK_FILE_NAME => {}
            superblock::NEW_FILE_NAME => left.push(path),
            _ if number == Some(FIRST_NUMBER) && entry.len <= empty_bytes.len() as u64 => {
                left.push(path);
            }
            "lost+found" if entry.is_dir => {}
            _ if entry.is_dir && vfs.read_dir(&path)?.is_empty() => {}
            name => {
                let missing = superblock::FILE_NAME;
                return Err(not_a_store(format!("it holds {name:?} but no file {missing:?}")));
            }
        }
    }
    if !allowed {
        return Err(not_a_store("the directory is empty".to_string()));
    }
    Ok(left)
}

/// Makes the manifest that has just been read durable.
///
/// The process that wrote it may have been killed before its sync. Nothing may build on the manifest,
/// and above all the manifests that it replaces may not be removed, while a power loss could still
/// undo it. Or its sync failed: then the system counts the bytes as stored although they are not on
/// the disk, and syncs them only after they have been written again.
fn make_durable(vfs: &dyn Vfs, dir: &Path, file: &dyn File, bytes: &[u8]) -> Result<()> {
    file.write_at(0, bytes)?;
    file.sync()?;
    vfs.sync_dir(dir)
}

fn create(vfs: &dyn Vfs, dir: &Path, new: NewStore) -> Result<()> {
    put_in_place(vfs, dir, new, &State::default(), &[])
}

/// Writes the first manifest, then the superblock: if there is a superblock, there must be a
/// manifest.
fn put_in_place(
    vfs: &dyn Vfs,
    dir: &Path,
    new: NewStore,
    state: &State,
    trees: &[(KeyspaceId, Vec<u8>)],
) -> Result<()> {
    let identity = Identity { store_id: new.store_id, number: FIRST_NUMBER };
    let superblock = Superblock::new(new);
    planted(Bug::SuperblockFirst).then(|| superblock.write(vfs, dir)).transpose()?;
    write_manifest(vfs, dir, identity, state, trees)?;
    superblock.write(vfs, dir)
}

/// Turns the files in `dir` into a store with the state that `edit` makes of an empty one, for
/// copies. The superblock is written last, so that an incomplete copy is not a store.
///
/// # Errors
/// `Conflict` if the edit contradicts itself.
pub(crate) fn create_copy(vfs: &dyn Vfs, dir: &Path, new: NewStore, edit: Edit) -> Result<()> {
    let mut state = State::default();
    state.check(&edit).map_err(|what| Error::Conflict { what })?;
    state.apply(&edit);
    let trees: Vec<(KeyspaceId, Vec<u8>)> = edit
        .keyspaces
        .into_iter()
        .filter_map(|KeyspaceEdit { id, change }| match change {
            KeyspaceChange::TreeSnapshot(tree) => Some((id, tree)),
            _ => None,
        })
        .collect();
    put_in_place(vfs, dir, new, &state, &trees)
}

/// The numbers of the manifests in `dir`, newest first.
pub(super) fn manifest_numbers(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<u64>> {
    let names = vfs.read_names(dir)?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| parse_manifest_name(name)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

/// Loads the newest manifest that was written completely.
pub(super) fn load_newest(
    vfs: &dyn Vfs,
    dir: &Path,
    store_id: u64,
    numbers: &[u64],
) -> Result<Loaded> {
    let mut incomplete = None;
    for &number in numbers {
        match load(vfs, dir, Identity { store_id, number })? {
            Ok(loaded) => return Ok(loaded),
            Err(error) => {
                incomplete.get_or_insert(error);
            }
        }
    }
    let path = manifest_path(dir, FIRST_NUMBER);
    let missing = || {
        Error::corruption(&path, 0, "manifest", "a file named so, or of a higher number", "none")
    };
    Err(incomplete.unwrap_or_else(missing))
}

/// Loads a manifest. The inner error is for a manifest that was not written completely; an older
/// one may then be used. The outer error is final.
fn load(vfs: &dyn Vfs, dir: &Path, identity: Identity) -> Result<Result<Loaded>> {
    let path = manifest_path(dir, identity.number);
    let file = vfs.open(&path, Access::Buffered, false)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(0, &mut bytes)?;
    let found = match Identity::decode_header(&bytes, &path) {
        Ok(found) => found,
        Err(error @ Error::Corruption { .. }) => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    if found != identity {
        let (expected, found) = (format!("{identity:x?}"), format!("{found:x?}"));
        return Err(Error::corruption(&path, 0, "manifest's identity", expected, found));
    }
    let mut state = State::default();
    let mut trees = Trees::default();
    let first = match identity.record(&bytes, HEADER_BYTES, &path) {
        Ok(first) => first,
        Err(error) => return Ok(Err(error)),
    };
    if first.kind != RecordKind::Snapshot {
        let offset = HEADER_BYTES as u64;
        return Err(Error::corruption(&path, offset, "first record", "a snapshot", "edits"));
    }
    apply(first.payload, &path, HEADER_BYTES + RECORD_HEAD_BYTES, &mut state, &mut trees)?;
    let mut end = first.end;
    while end < bytes.len() {
        let record = match identity.record(&bytes, end, &path) {
            Ok(record) => record,
            // Either the last append of a process that died before its sync, or damage.
            Err(error) => {
                if identity.valid_record_after(&bytes, end, &path).is_some()
                    || Identity::is_complete(&bytes, end)
                {
                    return Err(error);
                }
                break;
            }
        };
        if record.kind != RecordKind::Edits {
            return Err(Error::corruption(&path, end as u64, "record", "edits", "a snapshot"));
        }
        let payload_offset = (end + RECORD_HEAD_BYTES) as u64;
        let mut decoder = Decoder::new(record.payload, &path, payload_offset);
        while !decoder.is_empty() {
            let encoded = decoder.byte_string("edit")?;
            let offset = decoder.offset() as usize - encoded.len();
            apply(encoded, &path, offset, &mut state, &mut trees)?;
        }
        end = record.end;
    }
    let (snapshot_bytes, end) = (first.end as u64, end as u64);
    let file_bytes = bytes.len() as u64;
    bytes.truncate(end as usize);
    Ok(Ok(Loaded { identity, state, trees, snapshot_bytes, end, file_bytes, bytes }))
}

fn apply(
    encoded: &[u8],
    file: &Path,
    offset: usize,
    state: &mut State,
    trees: &mut Trees,
) -> Result<()> {
    let decoder = &mut Decoder::new(encoded, file, offset as u64);
    let (edit, offsets) = Edit::decode(decoder)?;
    if let Err(what) = state.check(&edit) {
        let expected = "a change of what exists";
        return Err(Error::corruption(file, offset as u64, "edit", expected, what));
    }
    state.apply(&edit);
    trees.apply(edit, &offsets);
    Ok(())
}
