//! [`ReadOnlyVfs`]: a wrapper that makes a file system read-only.
//!
//! Invariants:
//! 1. Every call that would change a name or a byte fails with `ReadOnly` and reaches nothing
//!    below.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    Access, DirEntry, DiskSpace, File, IoQueue, Lock, MappedFile, MemoryDelay, OpenFiles,
    ReadRequest, Vfs,
};
use crate::base::error::{Error, Result};

/// Another file system, read-only.
#[derive(Debug)]
pub(crate) struct ReadOnlyVfs(pub(crate) Arc<dyn Vfs>);

fn refused<T>(path: &Path) -> Result<T> {
    Err(Error::ReadOnly { path: path.to_path_buf() })
}

impl Vfs for ReadOnlyVfs {
    fn create(&self, path: &Path, _: Access) -> Result<Arc<dyn File>> {
        refused(path)
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        match writable {
            true => refused(path),
            false => self.0.open(path, access, false),
        }
    }

    fn create_mapped(&self, path: &Path, _: u64) -> Result<Arc<dyn MappedFile>> {
        refused(path)
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<()> {
        refused(from)
    }

    fn exchange(&self, a: &Path, _: &Path) -> Result<()> {
        refused(a)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        refused(path)
    }

    fn hard_link(&self, _: &Path, to: &Path) -> Result<()> {
        refused(to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        refused(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        refused(path)
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.0.read_dir(path)
    }

    fn read_names(&self, path: &Path) -> Result<Vec<String>> {
        self.0.read_names(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path)
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        self.0.canonical(path)
    }

    fn space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        self.0.space(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        refused(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        refused(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.0.lock_shared(path)
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.0.read_batch(requests);
    }

    fn mount_number(&self, dir: &Path) -> Option<u64> {
        self.0.mount_number(dir)
    }

    fn maps_files(&self) -> bool {
        self.0.maps_files()
    }

    fn memory_delay(&self) -> Option<Arc<dyn MemoryDelay>> {
        self.0.memory_delay()
    }

    fn open_files(&self) -> OpenFiles {
        self.0.open_files()
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.0.io_queue(depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemoryVfs;

    #[test]
    fn what_reads_goes_through_and_what_writes_is_refused() {
        let below: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        let dir = Path::new("/dir");
        let file = dir.join("file");
        below.create_dir_all(dir).unwrap();
        below.create(&file, Access::Buffered).unwrap().write_at(0, b"bytes").unwrap();
        let vfs = ReadOnlyVfs(Arc::clone(&below));
        let is_refused = |result: Result<()>| {
            assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
        };
        let other = dir.join("other");
        is_refused(vfs.create(&other, Access::Direct).map(drop));
        is_refused(vfs.open(&file, Access::Buffered, true).map(drop));
        is_refused(vfs.create_mapped(&other, 4096).map(drop));
        is_refused(vfs.rename(&file, &other));
        is_refused(vfs.remove(&file));
        is_refused(vfs.hard_link(&file, &other));
        is_refused(vfs.create_dir_all(&other));
        is_refused(vfs.remove_dir(dir));
        is_refused(vfs.sync_dir(dir));
        is_refused(vfs.lock(&other).map(drop));
        drop(vfs.lock_shared(&other).unwrap());
        let mut bytes = [0; 5];
        vfs.open(&file, Access::Buffered, false).unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        assert_eq!(vfs.read_names(dir).unwrap(), ["file"]);
        assert!(vfs.exists(&file).unwrap() && !vfs.exists(&other).unwrap());
        assert!(below.open(&file, Access::Buffered, false).unwrap().write_at(0, b"x").is_err());
    }
}
