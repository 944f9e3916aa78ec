//! [`WatchedVfs`]: a file system with a watcher that is told of writes and syncs, and may delay or
//! refuse them.
//!
//! Invariants:
//! 1. Apart from time and refusals by the watcher, it behaves like the underlying file system.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use spinney::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, ReadRequest, Vfs};
use spinney::{Error, Result};

/// Who is told.
pub trait Watcher: Debug + Send + Sync + 'static {
    /// Whether of files that are not mapped, too. Those of a real disk are better left as they are:
    /// a ring reads a file past its `read_at` only if it knows the file for its own.
    const FILES: bool;

    /// A file is about to be written.
    fn writing(&self, path: &Path);

    /// Whether a write to a file that is not mapped finds the disk full; nothing is written then.
    fn refuses(&self, _path: &Path) -> bool {
        false
    }

    /// A file is about to be read.
    fn reading(&self, _path: &Path, _bytes: usize) {}

    /// A file has been synced.
    fn synced(&self, _path: &Path) {}
}

/// See the module's description. Clones share the watcher.
#[derive(Debug)]
pub struct WatchedVfs<W> {
    vfs: Arc<dyn Vfs>,
    watcher: Arc<W>,
}

impl<W> Clone for WatchedVfs<W> {
    fn clone(&self) -> Self {
        WatchedVfs { vfs: Arc::clone(&self.vfs), watcher: Arc::clone(&self.watcher) }
    }
}

impl<W: Watcher> WatchedVfs<W> {
    /// The files beneath are those of `vfs`.
    pub fn new(vfs: impl Vfs + 'static, watcher: W) -> WatchedVfs<W> {
        WatchedVfs { vfs: Arc::new(vfs), watcher: Arc::new(watcher) }
    }

    /// Who is told.
    pub fn watcher(&self) -> &W {
        &self.watcher
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        if W::FILES { Arc::new(Watched { file, watcher: Arc::clone(&self.watcher) }) } else { file }
    }
}

impl<W: Watcher> Vfs for WatchedVfs<W> {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        self.vfs.create(path, access).map(|file| self.file(file))
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        self.vfs.open(path, access, writable).map(|file| self.file(file))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        let file = self.vfs.create_mapped(path, len)?;
        Ok(Arc::new(Watched { file, watcher: Arc::clone(&self.watcher) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.vfs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.vfs.remove(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.vfs.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.vfs.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.vfs.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.vfs.read_dir(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.vfs.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.vfs.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.vfs.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.vfs.lock_shared(path)
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.vfs.read_batch(requests);
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.vfs.io_queue(depth)
    }
}

#[derive(Debug)]
struct Watched<W, F: ?Sized> {
    watcher: Arc<W>,
    file: Arc<F>,
}

impl<W: Watcher> File for Watched<W, dyn File> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.watcher.reading(self.file.path(), buf.len());
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.watcher.writing(self.file.path());
        if self.watcher.refuses(self.file.path()) {
            let path = self.file.path().to_path_buf();
            return Err(Error::Full { path, needed: bytes.len() as u64 });
        }
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.watcher.synced(self.file.path());
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.truncate(len)
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl<W: Watcher> MappedFile for Watched<W, dyn MappedFile> {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.watcher.writing(self.file.path());
        self.file.write(offset, bytes);
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.watcher.synced(self.file.path());
        Ok(())
    }

    fn seal(&self) -> Result<()> {
        self.file.seal()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}
