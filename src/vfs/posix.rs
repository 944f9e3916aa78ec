//! [`PosixVfs`]: the files of the operating system.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Weak};

use super::blocking_queue::BlockingQueue;
use super::descriptors::Descriptors;
use super::posix_file::PosixFile;
use super::posix_mapped::PosixMapped;
use super::{
    Access, DirEntry, DiskSpace, File, IoQueue, Lock, MappedFile, OpenFiles, ReadRequest, Vfs,
};
#[cfg(target_os = "linux")]
use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::held;
use crate::base::process::Birthplace;
use crate::base::sync::Mutex;

/// The features that a [`PosixVfs`] may use. A feature that is allowed but unavailable is not used,
/// with the same results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PosixOptions {
    /// Whether files opened with [`Access::Direct`] bypass the page cache.
    pub direct: bool,
    /// Whether batches and queues use io_uring.
    pub io_uring: bool,
    /// How many data files are kept open; 0 (the default): a quarter of the process's limit on open
    /// files, 1,024 at most, for all stores of the process together. Others are opened when they
    /// are read.
    pub open_files_max: u64,
}

impl Default for PosixOptions {
    fn default() -> PosixOptions {
        PosixOptions { direct: true, io_uring: true, open_files_max: 0 }
    }
}

/// The operating system's files. Clones share their idle resources.
///
/// ```
/// use spinney::vfs::{Access, PosixVfs, Vfs};
///
/// # fn main() -> spinney::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let vfs = PosixVfs::new();
/// let file = vfs.create(&dir.path().join("greeting"), Access::Buffered)?;
/// file.write_at(0, b"hello")?;
/// file.sync()?;
/// vfs.sync_dir(dir.path())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PosixVfs {
    options: PosixOptions,
    descriptors: Arc<Descriptors>,
    /// Locked directories, by name: syncing their names must not need another descriptor.
    dirs: Arc<Mutex<BTreeMap<PathBuf, Weak<fs::File>>>>,
    #[cfg(target_os = "linux")]
    rings: Arc<super::ring_queue::RingPool>,
}

impl Default for PosixVfs {
    fn default() -> PosixVfs {
        PosixVfs::with(PosixOptions::default())
    }
}

/// Many systems have a soft limit of 1024, of which a program may need most itself.
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            // If this is refused, the limit stays. If it is too low, an open reports it.
            let _ = setrlimit(
                Resource::Nofile,
                Rlimit { current: limit.maximum, maximum: limit.maximum },
            );
        }
    });
}

impl PosixVfs {
    /// With all features of the machine. Raises the process's soft limit on open files to its hard
    /// limit, once.
    pub fn new() -> PosixVfs {
        raise_open_files_limit();
        PosixVfs::default()
    }

    /// With no more than `options` allow, for tests and comparison.
    pub fn with(options: PosixOptions) -> PosixVfs {
        let descriptors = match options.open_files_max {
            0 => Descriptors::of_process(),
            max => Descriptors::new(max),
        };
        PosixVfs {
            options,
            #[cfg(target_os = "linux")]
            rings: super::ring_queue::RingPool::new(&descriptors),
            descriptors,
            dirs: Arc::default(),
        }
    }

    /// Direct files are data files. Other files stay open, because the manifest must not fail.
    fn file(&self, file: fs::File, path: &Path, access: Access, writable: bool) -> Arc<dyn File> {
        Arc::new(match access {
            Access::Buffered => PosixFile::new(file, path, access, self.options.direct),
            Access::Direct => {
                let how = (access, writable);
                PosixFile::shared(&self.descriptors, file, path, how, self.options.direct)
            }
        })
    }

    /// The directory, if it is open.
    fn open_dir(&self, path: &Path) -> Option<Arc<fs::File>> {
        self.dirs.lock().get(path).and_then(Weak::upgrade)
    }
}

impl fmt::Debug for PosixVfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PosixVfs").field(&self.options).finish()
    }
}

/// Adds the path to the error of an operation on a name.
fn named<T>(op: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(op, path, None, e))
}

impl Vfs for PosixVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = self.descriptors.open(|| options.open(path));
        Ok(self.file(named("create", path, file)?, path, access, true))
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(writable);
        let file = self.descriptors.open(|| options.open(path));
        Ok(self.file(named("open", path, file)?, path, access, writable))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        Ok(Arc::new(PosixMapped::create(&self.descriptors, path, len)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        named("rename", from, fs::rename(from, to))
    }

    #[cfg(target_os = "linux")]
    fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        let result = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
        let result = result.map_err(|errno| match errno {
            // A file system that does not know the flag, or a kernel that does not know the call.
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => io::ErrorKind::Unsupported.into(),
            errno => io::Error::from(errno),
        });
        named("exchange", a, result)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        named("remove", path, fs::remove_file(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        named("link", to, fs::hard_link(from, to))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        named("create directory", path, fs::create_dir_all(path))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        named("remove directory", path, fs::remove_dir(path))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in named("list", path, self.descriptors.open(|| fs::read_dir(path)))? {
            let entry = named("list", path, entry)?;
            // Follows a symbolic link, as `open` does. A dangling link is listed as it is.
            let metadata = fs::metadata(entry.path()).or_else(|_| entry.metadata());
            let metadata = match metadata {
                Ok(metadata) => metadata,
                // It was removed after it was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(Error::io("list", &entry.path(), None, e)),
            };
            let is_dir = metadata.is_dir();
            let len = if is_dir { 0 } else { metadata.len() };
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push(DirEntry { name, len, is_dir });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn read_names(&self, path: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in named("list", path, self.descriptors.open(|| fs::read_dir(path)))? {
            let entry = named("list", path, entry)?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        named("look up", path, path.try_exists())
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        let path = named("look up", path, std::path::absolute(path))?;
        let mut found = PathBuf::new();
        for part in path.components() {
            match part {
                Component::ParentDir => drop(found.pop()),
                Component::CurDir => {}
                part => found.push(part),
            }
            match fs::canonicalize(&found) {
                Ok(real) => found = real,
                // A name that does not exist is not a link either.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("look up", &found, None, error)),
            }
        }
        Ok(found)
    }

    fn space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        let found = named("ask for room in", path, rustix::fs::statvfs(path).map_err(Into::into))?;
        Ok(Some(DiskSpace {
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
        }))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        held::refuse("the sync of a directory");
        let dir = match self.open_dir(path) {
            Some(dir) => dir,
            None => {
                let dir = self.descriptors.open(|| fs::File::open(path));
                Arc::new(named("open directory", path, dir)?)
            }
        };
        named("sync directory", path, dir.sync_all())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = named("lock", path, file)?;
        match file.try_lock() {
            Ok(()) => {
                let made = lock_dir(path).and_then(|dir| {
                    let written = named("lock", path, write_holder(&mut file));
                    written.inspect_err(|_| drop(dir.unlock()))?;
                    Ok(dir)
                });
                let dir = match made {
                    Ok(dir) => Arc::new(dir),
                    Err(error) => {
                        let _ = file.unlock();
                        return Err(error);
                    }
                };
                let name = path.parent().unwrap_or(path).to_path_buf();
                let mut dirs = self.dirs.lock();
                dirs.retain(|_, dir| dir.strong_count() > 0);
                dirs.insert(name, Arc::downgrade(&dir));
                Ok(Box::new(PosixLock { file, dir, birthplace: Birthplace::here() }))
            }
            // Holders of a shared lock do not write their number.
            Err(fs::TryLockError::WouldBlock) if file.try_lock_shared().is_ok() => {
                let _ = file.unlock();
                Err(locked(path, Some(READERS.to_string())))
            }
            Err(fs::TryLockError::WouldBlock) => {
                let holder = read_holder(&mut file).map(|pid| format!(" by process {pid}"));
                Err(locked(path, holder))
            }
            Err(fs::TryLockError::Error(e)) => Err(Error::io("lock", path, None, e)),
        }
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        // Without the file, or without permission to read it, the directory is locked instead.
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(_) => named("lock", path, fs::File::open(dir_of(path)))?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Box::new(SharedLock { file, birthplace: Birthplace::here() })),
            Err(fs::TryLockError::WouldBlock) => {
                let holder = read_holder(&mut file).map(|pid| format!(" by process {pid}"));
                Err(locked(path, holder))
            }
            // A file system without locks: no process can hold one.
            Err(fs::TryLockError::Error(e)) if is_without_locks(&e) => {
                Ok(Box::new(SharedLock { file, birthplace: Birthplace::here() }))
            }
            Err(fs::TryLockError::Error(e)) => Err(Error::io("lock", path, None, e)),
        }
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        #[cfg(target_os = "linux")]
        if self.options.io_uring {
            return super::ring_batch::read_batch(requests);
        }
        for request in requests {
            request.result = request.file.read_at(request.offset, request.buf);
        }
    }

    #[cfg(target_os = "linux")]
    fn mount_number(&self, dir: &Path) -> Option<u64> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        // `STATX_MNT_ID_UNIQUE`, since Linux 6.8. Other numbers of mounts are used again.
        const UNIQUE: u32 = 0x4000;
        let mask = StatxFlags::from_bits_retain(UNIQUE);
        let status = statx(CWD, dir, AtFlags::empty(), mask).ok()?;
        if status.stx_mask & UNIQUE == 0 {
            return None;
        }
        let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        // A subvolume, and a snapshot of it, are devices of their own under one mount.
        let device = (status.stx_dev_major, status.stx_dev_minor);
        let device = u64::from(device.0) << 32 | u64::from(device.1);
        Some(checksum(checksum(status.stx_mnt_id, &boot), &device.to_le_bytes()))
    }

    fn maps_files(&self) -> bool {
        cfg!(not(miri))
    }

    fn open_files(&self) -> OpenFiles {
        self.descriptors.statistics()
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        #[cfg(target_os = "linux")]
        if self.options.io_uring
            && let Some(queue) = super::ring_queue::RingQueue::new(&self.rings, depth)
        {
            return Box::new(queue);
        }
        let _ = depth;
        Box::new(BlockingQueue::default())
    }
}

/// A lock on an open file (not on the process). So a second handle in this process is refused too,
/// and the kernel releases the lock when the process dies.
#[derive(Debug)]
struct PosixLock {
    file: fs::File,
    /// Locked too, for readers that have no lock file to share.
    dir: Arc<fs::File>,
    birthplace: Birthplace,
}

/// A shared lock on an open file or directory.
#[derive(Debug)]
struct SharedLock {
    file: fs::File,
    birthplace: Birthplace,
}

impl Lock for SharedLock {}

impl Drop for SharedLock {
    fn drop(&mut self) {
        // As `PosixLock` does.
        if self.birthplace.is_here() {
            let _ = self.file.unlock();
        }
    }
}

/// The holder of a lock that is shared.
const READERS: &str = " for reading";

fn locked(path: &Path, holder: Option<String>) -> Error {
    Error::Locked { path: path.to_path_buf(), holder }
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_without_locks(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(error.raw_os_error(), Some(code) if code == rustix::io::Errno::NOLCK.raw_os_error())
}

/// Locks the directory of a lock file that is already locked. On a file system without such locks
/// (NFS) this is omitted: readers that find the lock file are excluded by that.
fn lock_dir(path: &Path) -> Result<fs::File> {
    let dir = named("lock", path, fs::File::open(dir_of(path)))?;
    match dir.try_lock() {
        Ok(()) => Ok(dir),
        Err(fs::TryLockError::WouldBlock) => Err(locked(path, Some(READERS.to_string()))),
        Err(fs::TryLockError::Error(_)) => Ok(dir),
    }
}

impl Lock for PosixLock {}

impl Drop for PosixLock {
    fn drop(&mut self) {
        // A forked child shares its parent's locks: unlocking one would unlock the parent's.
        if !self.birthplace.is_here() {
            return;
        }
        // The name stays, because removing it would let two processes lock two files of that name.
        // The holder's number is removed if possible, so that no stale number is reported.
        let _ = self.file.set_len(0);
        // Unlocked explicitly: closing would have no effect while a forked child has a copy, if only until it executes
        // another program.
        let _ = self.file.unlock();
        let _ = self.dir.unlock();
    }
}

fn write_holder(file: &mut fs::File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// The process that holds the lock, for a message.
fn read_holder(file: &mut fs::File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
