//! Reads the readable part of a store whose superblock or manifest may be damaged, for repair.
//!
//! Invariants:
//! 1. Nothing is changed.
//! 2. A state reported as complete is the state that an open would use.

use std::path::{Path, PathBuf};

use super::edit::Edit;
use super::log::{Manifest, manifest_path};
use super::open::{load_newest, manifest_numbers};
use super::record::{HEADER_BYTES, Identity, RECORD_HEAD_BYTES, RecordKind};
use super::state::{RecoveredState, State, Trees};
use super::superblock::Superblock;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::vfs::{Access, Vfs};

/// The readable part of superblock and manifest.
#[derive(Debug, Default)]
pub(crate) struct SalvagedManifest {
    /// The store's number, if the superblock or a manifest has it.
    pub(crate) store_id: Option<u64>,
    /// The manifest's state up to the first damage. Empty without a manifest.
    pub(crate) state: RecoveredState,
    /// The manifest that was read.
    pub(crate) path: PathBuf,
    /// True if the state is complete, as far as superblock and manifest tell.
    pub(crate) whole: bool,
    /// True if the file `DURABLE` has an end, of this manifest or of an earlier one, and this
    /// manifest has not lost it.
    pub(crate) noted: bool,
    /// The manifest that counts and the end of its valid records, if it can be read so far.
    pub(crate) end: Option<(PathBuf, u64)>,
    /// The problems found.
    pub(crate) problems: Vec<Error>,
}

impl Manifest {
    /// Reads the readable parts of the superblock and the manifests in `dir`.
    ///
    /// # Errors
    /// `UnsupportedVersion`; `Io` for failures other than damage.
    pub(crate) fn salvage(vfs: &dyn Vfs, dir: &Path) -> Result<SalvagedManifest> {
        let mut found = SalvagedManifest::default();
        match Superblock::read(vfs, dir) {
            Ok(superblock) => found.store_id = Some(superblock.store_id),
            Err(error) => found.problems.push(unless_newer(error)?),
        }
        let numbers = manifest_numbers(vfs, dir)?;
        if found.store_id.is_none() {
            found.store_id = numbers.iter().find_map(|&number| store_id_of(vfs, dir, number));
        }
        if let Some(store_id) = found.store_id {
            match load_newest(vfs, dir, store_id, &numbers) {
                Ok(loaded) => {
                    match loaded.check_end(vfs, dir) {
                        Ok(noted) => (found.whole, found.noted) = (true, noted),
                        Err(error) => found.problems.push(unless_newer(error)?),
                    }
                    let (path, end) = loaded.end(dir);
                    found.path.clone_from(&path);
                    found.end = Some((path, end));
                    found.state = loaded.into_recovered();
                    return Ok(found);
                }
                Err(error) => found.problems.push(unless_newer(error)?),
            }
        }
        for &number in &numbers {
            let path = manifest_path(dir, number);
            match read_prefix(
                vfs,
                &path,
                Identity { store_id: found.store_id.unwrap_or_default(), number },
            ) {
                Ok(state) => {
                    (found.state, found.path) = (state, path);
                    return Ok(found);
                }
                Err(error) => found.problems.push(unless_newer(error)?),
            }
        }
        Ok(found)
    }
}

/// A newer format is not guessed.
fn unless_newer(error: Error) -> Result<Error> {
    match error {
        Error::UnsupportedVersion { .. } => Err(error),
        error => Ok(error),
    }
}

/// The store's number in a manifest's header.
fn store_id_of(vfs: &dyn Vfs, dir: &Path, number: u64) -> Option<u64> {
    let path = manifest_path(dir, number);
    let mut header = [0; HEADER_BYTES];
    vfs.open(&path, Access::Buffered, false).ok()?.read_at(0, &mut header).ok()?;
    Some(Identity::decode_header(&header, &path).ok()?.store_id)
}

/// The state of a manifest before the first record that cannot be read.
fn read_prefix(vfs: &dyn Vfs, path: &Path, identity: Identity) -> Result<RecoveredState> {
    let file = vfs.open(path, Access::Buffered, false)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_at(0, &mut bytes)?;
    let (mut state, mut trees) = (State::default(), Trees::default());
    let mut take = |encoded: &[u8], at: usize| -> Result<()> {
        let decoder = &mut Decoder::new(encoded, path, at as u64);
        let (edit, offsets) = Edit::decode(decoder)?;
        if let Err(what) = state.check(&edit) {
            let expected = "a change of what exists";
            return Err(Error::corruption(path, at as u64, "edit", expected, what));
        }
        state.apply(&edit);
        trees.apply(edit, &offsets);
        Ok(())
    };
    let first = identity.record(&bytes, HEADER_BYTES, path)?;
    if first.kind != RecordKind::Snapshot {
        let offset = HEADER_BYTES as u64;
        return Err(Error::corruption(path, offset, "first record", "a snapshot", "edits"));
    }
    take(first.payload, HEADER_BYTES + RECORD_HEAD_BYTES)?;
    let mut end = first.end;
    'records: while let Ok(record) = identity.record(&bytes, end, path) {
        let mut decoder = Decoder::new(record.payload, path, (end + RECORD_HEAD_BYTES) as u64);
        while !decoder.is_empty() {
            let Ok(encoded) = decoder.byte_string("edit") else { break 'records };
            let offset = decoder.offset() as usize - encoded.len();
            if take(encoded, offset).is_err() {
                break 'records;
            }
        }
        end = record.end;
    }
    Ok(RecoveredState { store_id: identity.store_id, ..trees.join(&state) })
}
