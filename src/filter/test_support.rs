//! What the filter's tests share: a seeded generator and a file system in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::cache::{Cache, DataFiles};
use crate::vfs::{Access, AlignedBuf, DirEntry, File, IoQueue, IoTicket, Lock, MappedFile, Vfs};

/// A small seeded generator (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// Data files that are nowhere but in memory.
pub(super) fn data_files() -> Arc<DataFiles> {
    let cache = Arc::new(Cache::new(64 << 20));
    Arc::new(DataFiles::new(Arc::new(TestVfs::default()), cache, Path::new("d"), FileId(1)))
}

#[derive(Debug, Default)]
struct TestVfs(Mutex<BTreeMap<PathBuf, Arc<TestFile>>>);

#[derive(Debug)]
struct TestFile {
    path: PathBuf,
    bytes: Mutex<Vec<u8>>,
}

fn missing(path: &Path) -> Error {
    Error::NotFound { what: path.display().to_string() }
}

fn unused<T>() -> Result<T> {
    Err(Error::invalid("the filter's tests do not need this"))
}

impl Vfs for TestVfs {
    fn create(&self, path: &Path, _: Access) -> Result<Arc<dyn File>> {
        let path = path.to_path_buf();
        let file = Arc::new(TestFile { path: path.clone(), bytes: Mutex::default() });
        self.0.lock().insert(path, Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, path: &Path, _: Access, _: bool) -> Result<Arc<dyn File>> {
        match self.0.lock().get(path) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn File>),
            None => Err(missing(path)),
        }
    }

    fn create_mapped(&self, _: &Path, _: u64) -> Result<Arc<dyn MappedFile>> {
        unused()
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        unused()
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.lock().remove(path).map(|_| ()).ok_or_else(|| missing(path))
    }

    fn hard_link(&self, _: &Path, _: &Path) -> Result<()> {
        unused()
    }

    fn create_dir_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn remove_dir(&self, _: &Path) -> Result<()> {
        unused()
    }

    fn read_dir(&self, _: &Path) -> Result<Vec<DirEntry>> {
        unused()
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.0.lock().contains_key(path))
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unused()
    }

    fn io_queue(&self, _: usize) -> Box<dyn IoQueue> {
        Box::new(TestQueue::default())
    }
}

impl File for TestFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.lock();
        match bytes.get(offset as usize..).and_then(|rest| rest.get(..buf.len())) {
            Some(from) => {
                buf.copy_from_slice(from);
                Ok(())
            }
            None => Err(missing(&self.path)),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.lock();
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
        Ok(self.bytes.lock().len() as u64)
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.bytes.lock().resize(len as usize, 0);
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// Does everything at once when submitted.
#[derive(Default)]
struct TestQueue {
    done: BTreeMap<u64, (AlignedBuf, Result<()>)>,
    next: u64,
}

impl TestQueue {
    fn add(&mut self, buf: AlignedBuf, result: Result<()>) -> IoTicket {
        self.next += 1;
        self.done.insert(self.next, (buf, result));
        IoTicket(self.next)
    }
}

impl IoQueue for TestQueue {
    fn submit_read(&mut self, file: &Arc<dyn File>, offset: u64, mut buf: AlignedBuf) -> IoTicket {
        let result = file.read_at(offset, &mut buf);
        self.add(buf, result)
    }

    fn submit_write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket {
        let result = file.write_at(offset, &buf[..len]);
        self.add(buf, result)
    }

    fn wait(&mut self, ticket: IoTicket) -> (AlignedBuf, Result<()>) {
        self.done.remove(&ticket.0).expect("each ticket is waited for once")
    }
}
