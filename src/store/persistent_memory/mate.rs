//! The file `MEMORY` (`docs/format/persistent-memory.md`).

use std::path::{Path, PathBuf};

use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::vfs::{Access, Vfs};

/// The name of the file that says which two directories belong together, in both.
pub(crate) const FILE_NAME: &str = "MEMORY";
/// Its name until it is complete.
pub(super) const NEW_FILE_NAME: &str = "MEMORY.new";
const MAGIC: [u8; 8] = *b"SPINMEMO";
const VERSION: u32 = 1;
/// Longer paths are refused.
pub(super) const PATH_BYTES_MAX: usize = 4096;
const FIXED_BYTES: usize = 56;

/// How far an opening for writing has come that has made a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The manifest has begun its epoch.
    Settled = 0,
    Claimed = 1,
    /// As `Claimed`. The memory that the store had is lost, and what was there is to be given up.
    ClaimedAnew = 2,
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mate {
    pub(super) store_id: u64,
    pub(super) tag: u64,
    /// The tag that the store had before.
    pub(super) tag_before: u64,
    pub(super) progress: Progress,
    /// The epoch of the manifest that the file goes with: the one that the opening has begun if it is settled, the one
    /// before if not.
    pub(super) epoch: u32,
    /// The other directory.
    pub(super) path: PathBuf,
}

impl Mate {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let path = self.path.to_str().filter(|path| path.len() <= PATH_BYTES_MAX);
        let path = path.ok_or_else(|| {
            let shown = self.path.display();
            let most = PATH_BYTES_MAX;
            Error::invalid(format!("{shown} is no path of UTF-8 with at most {most} bytes"))
        })?;
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(path.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.store_id.to_le_bytes());
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.tag_before.to_le_bytes());
        out.extend_from_slice(&(self.progress as u32).to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(path.as_bytes());
        let sum = checksum(0, &out);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    pub(super) fn decode(bytes: &[u8], file: &Path) -> Result<Mate> {
        let mut from = Decoder::new(bytes, file, 0);
        from.magic(&MAGIC, "persistent memory magic")?;
        let body = bytes.len().checked_sub(8).and_then(|end| bytes.split_at_checked(end));
        // Before the version: a changed bit in it is no other version.
        if body.is_none_or(|(body, sum)| checksum(0, body).to_le_bytes() != sum) {
            let what = "persistent memory";
            return Err(Error::corruption(file, 0, what, "its checksum", "another"));
        }
        from.version(VERSION, "persistent memory version")?;
        let path_bytes = from.u32("length of a path")? as usize;
        let store_id = from.u64("store id")?;
        let (tag, tag_before) = (from.u64("tag")?, from.u64("tag before")?);
        let progress = match from.u32("progress")? {
            0 => Progress::Settled,
            1 => Progress::Claimed,
            2 => Progress::ClaimedAnew,
            other => {
                let what = "progress of persistent memory";
                return Err(Error::corruption(file, 40, what, "0 to 2", other));
            }
        };
        let epoch = from.u32("epoch")?;
        let path = String::from_utf8_lossy(from.take(path_bytes, "path")?).into_owned();
        Ok(Mate { store_id, tag, tag_before, progress, epoch, path: PathBuf::from(path) })
    }

    /// Reads the file in `dir`, if there is one.
    pub(super) fn read(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Mate>> {
        let path = dir.join(FILE_NAME);
        if !vfs.exists(&path)? {
            return Ok(None);
        }
        let file = vfs.open(&path, Access::Buffered, false)?;
        let bytes = file.len()?;
        if bytes > (FIXED_BYTES + PATH_BYTES_MAX) as u64 {
            let most = format_args!("at most {} bytes", FIXED_BYTES + PATH_BYTES_MAX);
            return Err(Error::corruption(&path, 0, "persistent memory", most, bytes));
        }
        let mut contents = vec![0; bytes as usize];
        file.read_at(0, &mut contents)?;
        Mate::decode(&contents, &path).map(Some)
    }

    /// Writes the file in `dir` durably.
    pub(super) fn write(&self, vfs: &dyn Vfs, dir: &Path) -> Result<()> {
        let (path, new_path) = (dir.join(FILE_NAME), dir.join(NEW_FILE_NAME));
        let contents = self.encode()?;
        if vfs.exists(&new_path)? {
            vfs.remove(&new_path)?;
        }
        let file = vfs.create(&new_path, Access::Buffered)?;
        file.write_at(0, &contents)?;
        if !planted(Bug::MemoryFileNotSynced) {
            file.sync()?;
        }
        vfs.rename(&new_path, &path)?;
        vfs.sync_dir(dir)
    }
}
