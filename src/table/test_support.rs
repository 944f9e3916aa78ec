//! Files in memory and a seeded generator for this module's tests.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::sync::{Mutex, RwLock};

use super::{BlobFiles, BlobPointer, Table};
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::key_hash::test_hasher;
use crate::cache::{Cache, DataFiles, PageClass, PagePointer, ReadContext};
use crate::vfs::{Access, BlockingQueue, DirEntry, File, IoQueue, Lock, MappedFile, Vfs};

#[derive(Debug, Default)]
pub(super) struct TestVfs {
    files: Mutex<BTreeMap<PathBuf, Arc<TestFile>>>,
    /// The number of bytes read from files so far.
    pub(super) bytes_read: Arc<AtomicU64>,
    /// The number of read calls so far.
    pub(super) reads: Arc<AtomicU64>,
}

#[derive(Debug)]
struct TestFile {
    path: PathBuf,
    bytes: RwLock<Vec<u8>>,
    bytes_read: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
}

impl TestVfs {
    pub(super) fn names(&self) -> Vec<PathBuf> {
        self.files.lock().keys().cloned().collect()
    }

    /// Changes a file's bytes without the store's knowledge.
    pub(super) fn edit(&self, path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
        f(&mut self.files.lock()[path].bytes.write());
    }

    fn refused<T>(&self, op: &'static str, path: &Path, kind: io::ErrorKind) -> Result<T> {
        Err(Error::io(op, path, None, kind.into()))
    }
}

impl Vfs for TestVfs {
    fn create(&self, path: &Path, _access: Access) -> Result<Arc<dyn File>> {
        let file = Arc::new(TestFile {
            path: path.to_path_buf(),
            bytes: RwLock::default(),
            bytes_read: Arc::clone(&self.bytes_read),
            reads: Arc::clone(&self.reads),
        });
        match self.files.lock().insert(path.to_path_buf(), Arc::clone(&file)) {
            Some(_) => self.refused("create", path, io::ErrorKind::AlreadyExists),
            None => Ok(file),
        }
    }

    fn open(&self, path: &Path, _access: Access, _writable: bool) -> Result<Arc<dyn File>> {
        match self.files.lock().get(path) {
            Some(file) => Ok(Arc::<TestFile>::clone(file)),
            None => self.refused("open", path, io::ErrorKind::NotFound),
        }
    }

    fn create_mapped(&self, path: &Path, _len: u64) -> Result<Arc<dyn MappedFile>> {
        self.refused("map", path, io::ErrorKind::Unsupported)
    }

    fn rename(&self, from: &Path, _to: &Path) -> Result<()> {
        self.refused("rename", from, io::ErrorKind::Unsupported)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        match self.files.lock().remove(path) {
            Some(_) => Ok(()),
            None => self.refused("remove", path, io::ErrorKind::NotFound),
        }
    }

    fn hard_link(&self, from: &Path, _to: &Path) -> Result<()> {
        self.refused("link", from, io::ErrorKind::Unsupported)
    }

    fn create_dir_all(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn remove_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn read_dir(&self, _path: &Path) -> Result<Vec<DirEntry>> {
        Ok(Vec::new())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.files.lock().contains_key(path))
    }

    fn sync_dir(&self, _path: &Path) -> Result<()> {
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.refused("lock", path, io::ErrorKind::Unsupported)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.lock(path)
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::default())
    }
}

impl File for TestFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.bytes_read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.read();
        let from = offset as usize;
        match bytes.get(from..from + buf.len()) {
            Some(found) => {
                buf.copy_from_slice(found);
                Ok(())
            }
            None => {
                let kind = io::ErrorKind::UnexpectedEof;
                Err(Error::io("read", &self.path, Some(offset), kind.into()))
            }
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.write();
        let end = offset as usize + from.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.bytes.write().resize(len as usize, 0);
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A store's data files in memory, with a cache of `cache_bytes`.
pub(super) struct TestFiles {
    pub(super) vfs: Arc<TestVfs>,
    pub(super) files: Arc<DataFiles>,
    pub(super) blobs: Arc<BlobFiles>,
}

impl TestFiles {
    pub(super) fn new() -> TestFiles {
        TestFiles::with_cache(64 << 20)
    }

    pub(super) fn with_cache(cache_bytes: usize) -> TestFiles {
        TestFiles::over(Arc::new(TestVfs::default()), cache_bytes)
    }

    /// The same files with an empty cache.
    pub(super) fn over(vfs: Arc<TestVfs>, cache_bytes: usize) -> TestFiles {
        let cache = Arc::new(Cache::new(cache_bytes));
        let dyn_vfs: Arc<dyn Vfs> = Arc::<TestVfs>::clone(&vfs);
        let files =
            Arc::new(DataFiles::new(dyn_vfs, cache, Path::new("t"), FileId(1), test_hasher()));
        let blobs = BlobFiles::new(&files);
        TestFiles { vfs, files, blobs }
    }
}

impl Table {
    /// The value that a [`EntryKind::PutBlob`] or [`EntryKind::MergeBlob`] entry of this table
    /// stands for; `pointer` is the entry's value.
    pub(crate) fn read_blob(&self, pointer: &[u8]) -> Result<Vec<u8>> {
        let found = BlobPointer::decode(pointer);
        let found = found.and_then(|pointer| {
            let file = self.blobs().binary_search_by_key(&pointer.file, |blob| blob.id()).ok()?;
            Some((pointer, self.blobs().get(file)?))
        });
        match found {
            Some((pointer, file)) => file.read(&pointer),
            None => Err(Error::corruption(
                &self.file.path(),
                0,
                "blob pointer",
                "a pointer into a blob file of this table",
                pointer.escape_ascii(),
            )),
        }
    }

    /// A bound that no key of the table that is `>= key` is below, without any read: the first key,
    /// or else `key` itself; `None` if there is no such key.
    pub(crate) fn lower_bound_hint<'a>(&'a self, key: &'a [u8]) -> Option<&'a [u8]> {
        if key <= self.first_key() {
            Some(self.first_key())
        } else if key <= self.last_key() {
            Some(key)
        } else {
            None
        }
    }

    /// Reads the leaf that a cursor placed at `key` reads first.
    pub(crate) fn locate(&self, key: &[u8], context: &ReadContext) -> Result<PagePointer> {
        let leaf = self.find_leaf(key, Seqno::MAX.0, context, |_| ())?;
        self.file.with_page(leaf, PageClass::Leaf, context, |_| ())?;
        Ok(leaf)
    }
}
