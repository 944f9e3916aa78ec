//! The file `SPINNEY`: it identifies the directory as a store, with its id and format version.
//!
//! Invariants:
//! 1. It is put in place, whole and durable, as the last step of creating a store. If it exists,
//!    there must be a manifest.
//! 2. Its length, magic, version and checksum keep their positions in all versions of the format.

use std::path::{Path, PathBuf};

use super::{FORMAT_VERSION, NewStore};
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::key_hash::HashSecret;
use crate::base::planted::{Bug, planted};
use crate::vfs::{Access, Vfs};

/// The superblock's name.
pub(crate) const FILE_NAME: &str = "SPINNEY";
/// The superblock's name until it is complete.
pub(super) const NEW_FILE_NAME: &str = "SPINNEY.new";

const MAGIC: [u8; 8] = *b"SPINNEY\0";
const BYTES: usize = 80;
const CHECKSUM_OFFSET: usize = 72;
const CREATED_BY_BYTES: usize = 32;
const SECRET_OFFSET: usize = 56;

/// The content of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) version: u32,
    pub(super) store_id: u64,
    /// The name and version of the program that created the store.
    pub(super) created_by: String,
    /// The secret for hashing the store's keys.
    pub(super) hash_secret: HashSecret,
}

impl Superblock {
    pub(super) fn new(new: NewStore) -> Superblock {
        let created_by = concat!("spinney ", env!("CARGO_PKG_VERSION")).to_string();
        let NewStore { store_id, hash_secret } = new;
        Superblock { version: FORMAT_VERSION, store_id, created_by, hash_secret }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.store_id.to_le_bytes());
        let name = self.created_by.as_bytes();
        out.extend_from_slice(&name[..name.len().min(CREATED_BY_BYTES)]);
        out.resize(SECRET_OFFSET, 0);
        out.extend_from_slice(&self.hash_secret.0);
        out.extend_from_slice(&checksum(0, &out).to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8], file: &Path) -> Result<Superblock> {
        let names = ["superblock", "superblock magic", "superblock checksum"];
        let mut decoder = Decoder::of_header(bytes, file, (&MAGIC, CHECKSUM_OFFSET), names)?;
        let version = decoder.version(FORMAT_VERSION, "superblock version")?;
        decoder.u32("superblock reserved bytes")?;
        let store_id = decoder.u64("superblock store id")?;
        let name = decoder.take(CREATED_BY_BYTES, "superblock creator")?;
        let created_by = String::from_utf8_lossy(name).trim_end_matches('\0').to_string();
        let mut hash_secret = HashSecret::default();
        let bytes = decoder.take(hash_secret.0.len(), "superblock hash secret")?;
        hash_secret.0.copy_from_slice(bytes);
        Ok(Superblock { version, store_id, created_by, hash_secret })
    }

    /// The superblock's path in a store.
    pub(super) fn path(dir: &Path) -> PathBuf {
        dir.join(FILE_NAME)
    }

    /// Reads the superblock of the store in `dir`.
    pub(super) fn read(vfs: &dyn Vfs, dir: &Path) -> Result<Superblock> {
        let path = Superblock::path(dir);
        let file = vfs.open(&path, Access::Buffered, false)?;
        let len = file.len()?;
        if len != BYTES as u64 {
            return Err(Error::corruption(&path, 0, "superblock length", BYTES, len));
        }
        let mut bytes = [0; BYTES];
        file.read_at(0, &mut bytes)?;
        Superblock::decode(&bytes, &path)
    }

    /// Writes the superblock durably.
    pub(super) fn write(&self, vfs: &dyn Vfs, dir: &Path) -> Result<()> {
        let new_path = dir.join(NEW_FILE_NAME);
        let file = vfs.create(&new_path, Access::Buffered)?;
        file.write_at(0, &self.encode())?;
        if !planted(Bug::SuperblockNotSynced) {
            file.sync()?;
        }
        vfs.rename(&new_path, &Superblock::path(dir))?;
        vfs.sync_dir(dir)
    }
}
