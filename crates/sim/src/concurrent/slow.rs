//! Files that are slow now and then: what takes long on a busy machine is under way for long enough that
//! others meet it half done.
//!
//! Invariants:
//! 1. Nothing but time differs from the files beneath.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use spinney::Result;
use spinney::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, ReadRequest, Vfs};

use crate::random;

/// Of so many writes to mapped files one is slow.
const ONE_IN: u64 = 24;
/// How slow, at most.
const DELAY_MICROS_MAX: u64 = 400;

/// A file system whose mapped files are slow now and then.
#[derive(Debug, Clone)]
pub(super) struct SlowVfs {
    vfs: Arc<dyn Vfs>,
    pace: Arc<Pace>,
}

/// When they are.
#[derive(Debug)]
struct Pace {
    seed: u64,
    turn: AtomicU64,
}

impl Pace {
    fn dawdle(&self) {
        let draw = random::mix(self.seed ^ self.turn.fetch_add(1, Ordering::Relaxed));
        if draw.is_multiple_of(ONE_IN) {
            std::thread::sleep(Duration::from_micros((draw >> 32) % DELAY_MICROS_MAX));
        }
    }
}

impl SlowVfs {
    /// Those beneath are `vfs`.
    pub(super) fn new(vfs: Arc<dyn Vfs>, seed: u64) -> SlowVfs {
        SlowVfs { vfs, pace: Arc::new(Pace { seed, turn: AtomicU64::new(0) }) }
    }
}

impl Vfs for SlowVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        self.vfs.create(path, access)
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        self.vfs.open(path, access, writable)
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        let file = self.vfs.create_mapped(path, len)?;
        Ok(Arc::new(SlowFile { file, pace: Arc::clone(&self.pace) }))
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

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.vfs.read_batch(requests);
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.vfs.io_queue(depth)
    }
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn MappedFile>,
    pace: Arc<Pace>,
}

impl MappedFile for SlowFile {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.pace.dawdle();
        self.file.write(offset, bytes);
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()
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
