//! The file system interface. All file operations of the store go through a [`Vfs`], so that a test
//! can observe, fail or replay each call.
//!
//! Invariants:
//! 1. Nothing above this module uses `std::fs` or system calls on files.
//! 2. A created, renamed or removed name is durable once `sync_dir` of its directory has returned.
//!    Written bytes are durable once `sync` of their file has returned. Nothing else is promised.
//! 3. Files opened with [`Access::Direct`] are read and written in whole units of 4 KiB, at offsets
//!    and from buffers aligned to 4 KiB ([`AlignedBuf`]).
//! 4. A short read is an error (`UnexpectedEof`), never fewer bytes.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::limits::UNIT_BYTES;

mod aligned;
mod blocking_queue;
mod cache_lines;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
mod descriptors;
mod memory;
mod memory_file;
mod posix;
mod posix_file;
mod posix_mapped;
#[cfg(all(test, target_os = "linux", not(miri)))]
mod posix_tests;
mod read_only;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod ring_batch;
#[cfg(target_os = "linux")]
mod ring_queue;
mod shared_map;

pub use aligned::AlignedBuf;
pub use blocking_queue::BlockingQueue;
pub use memory::MemoryVfs;
pub use posix::{PosixOptions, PosixVfs};
pub(crate) use read_only::ReadOnlyVfs;
pub(crate) use shared_map::{SharedMap, Sharing};

/// As [`Error::io`], with the bytes that were wanted should the disk be full.
fn io_error(
    op: &'static str,
    path: &Path,
    offset: Option<u64>,
    needed: u64,
    source: io::Error,
) -> Error {
    match Error::io(op, path, offset, source) {
        Error::Full { path, .. } => Error::Full { path, needed },
        error => error,
    }
}

/// Invariant 3, held in debug builds also where the access turned out buffered, so that tests find
/// a caller that breaks it.
fn check_alignment(access: Access, offset: u64, bytes: &[u8]) {
    debug_assert!(
        access == Access::Buffered
            || (offset.is_multiple_of(UNIT_BYTES as u64)
                && bytes.len().is_multiple_of(UNIT_BYTES)
                && bytes.as_ptr().addr().is_multiple_of(UNIT_BYTES)),
        "a direct file takes whole aligned units, not {} bytes from {:?} at {offset}",
        bytes.len(),
        bytes.as_ptr(),
    );
}

/// How many data files a file system keeps open, for all stores that share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenFiles {
    /// Data files that are open now.
    pub open: u64,
    /// Above so many, those that have not been read for longest are closed; 0: there is no bound.
    pub max: u64,
    /// How often a file was opened again.
    pub reopened: u64,
}

/// How a file's bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the operating system's page cache; any offset and length.
    Buffered,
    /// Past it where the file system allows (found out by probing), in aligned units; buffered
    /// otherwise, with the same results.
    Direct,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name without its directory.
    pub name: String,
    /// Length in bytes; 0 for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// One read of a batch: `buf.len()` bytes of `file` at `offset`. `result` is set by
/// [`Vfs::read_batch`].
pub struct ReadRequest<'a> {
    /// The file to read.
    pub file: &'a dyn File,
    /// The first byte.
    pub offset: u64,
    /// Where the bytes go; aligned if the file is direct.
    pub buf: &'a mut [u8],
    /// How it went; `Ok` until told otherwise.
    pub result: Result<()>,
}

/// How much room a file system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that may still be taken.
    pub available_bytes: u64,
    /// Bytes of the file system as a whole.
    pub total_bytes: u64,
}

/// A file system.
pub trait Vfs: Send + Sync + Debug {
    /// Creates a file that must not exist yet, readable and writable.
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>>;

    /// Opens a file that exists, for reading, and for writing too if `writable`.
    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>>;

    /// Creates a file of exactly `len` zero bytes whose room on the disk is reserved before this
    /// returns (so that no later write can meet a full disk), for the journal's appends.
    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>>;

    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Exchanges two names, files or directories, in one step.
    ///
    /// # Errors
    /// `Io` of the kind `Unsupported` where the file system cannot; nothing has changed then.
    fn exchange(&self, a: &Path, _b: &Path) -> Result<()> {
        Err(Error::io("exchange", a, None, io::ErrorKind::Unsupported.into()))
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;

    /// Creates a directory and its missing parents; one that exists is fine.
    fn create_dir_all(&self, path: &Path) -> Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Result<()>;

    /// The names in a directory, sorted by name.
    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>>;

    /// As [`Vfs::read_dir`], the names alone.
    fn read_names(&self, path: &Path) -> Result<Vec<String>> {
        Ok(self.read_dir(path)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Whether the name exists.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// The path from the root, without symbolic links as far as it exists: two paths of one place
    /// are the same.
    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        let mut plain = PathBuf::new();
        for part in path.components() {
            match part {
                Component::ParentDir => drop(plain.pop()),
                Component::CurDir => {}
                part => plain.push(part),
            }
        }
        Ok(plain)
    }

    /// How much room there is for files in the directory `path`, where that is known.
    ///
    /// # Errors
    /// `Io` if the file system does not say.
    fn space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        let _ = path;
        Ok(None)
    }

    /// The same for files of the journal in the directory `path`.
    ///
    /// # Errors
    /// `Io` if the file system does not say.
    #[doc(hidden)]
    fn journal_space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        self.space(path)
    }

    /// Makes created, renamed and removed names in `path` durable.
    fn sync_dir(&self, path: &Path) -> Result<()>;

    /// Takes the exclusive lock on `path` (created if absent); held until dropped or the process
    /// dies.
    ///
    /// # Errors
    /// `Locked` if another process or another handle of this one holds it, or holds
    /// [`lock_shared`](Vfs::lock_shared).
    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>>;

    /// Takes the shared lock on `path`, which any number may hold while nobody holds
    /// [`lock`](Vfs::lock). Creates and changes nothing: `path` need not exist, and no permission
    /// to write is needed.
    ///
    /// # Errors
    /// `Locked` if somebody holds the exclusive lock.
    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>>;

    /// Carries out all the reads, at once where the machine can. Each request has its own result.
    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.result = request.file.read_at(request.offset, request.buf);
        }
    }

    /// Whether files of [`Access::Buffered`] can be mapped as memory ([`File::pin`]).
    #[doc(hidden)]
    fn maps_files(&self) -> bool {
        false
    }

    /// A number that stays the same as long as the system keeps what processes have stored in mapped files of this
    /// directory: until it is started anew, or the file system is mounted anew. A snapshot that the file system has made of
    /// the directory has another. `None` if the system does not say.
    #[doc(hidden)]
    fn mount_number(&self, _dir: &Path) -> Option<u64> {
        None
    }

    /// What a write to mapped files of the directory waits for that emulates persistent memory.
    #[doc(hidden)]
    fn memory_delay(&self) -> Option<Arc<dyn MemoryDelay>> {
        None
    }

    /// How many files are kept open, where there is a bound on them.
    fn open_files(&self) -> OpenFiles {
        OpenFiles::default()
    }

    /// A queue for up to `depth` operations in flight, for one background job.
    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue>;
}

/// Creates a directory and its missing parents, all of them durably.
pub(crate) fn create_dir_durably(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for dir in path.ancestors() {
        if dir.as_os_str().is_empty() || vfs.exists(dir)? {
            break;
        }
        missing.push(dir);
    }
    vfs.create_dir_all(path)?;
    missing.iter().rev().try_for_each(|dir| sync_parent(vfs, dir))
}

/// Makes the name of a file or directory durable.
pub(crate) fn sync_parent(vfs: &dyn Vfs, path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => vfs.sync_dir(Path::new(".")),
        Some(parent) => vfs.sync_dir(parent),
        None => Ok(()),
    }
}

/// An open file. All methods may be called from any thread.
pub trait File: Send + Sync + Debug {
    /// Fills `buf` from `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes all of `bytes` at `offset`, extending the file as needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes the bytes written so far durable (and the length needed to read them).
    fn sync(&self) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or zero-extends the file.
    fn truncate(&self, len: u64) -> Result<()>;

    /// The name it was opened under, for messages.
    fn path(&self) -> &Path;

    /// The operating system's file, where there is one; it stays open while the result lives. For a
    /// write, up to which byte.
    #[doc(hidden)]
    fn pin(&self, _write_end: Option<u64>) -> Option<Arc<std::fs::File>> {
        None
    }
}

/// A preallocated file for appends that cost no system call: what `write` has stored survives the
/// death of the process, and power loss once `sync` has returned. Unsynced sectors may reach the
/// disk in any order or not at all.
pub trait MappedFile: Send + Sync + Debug {
    /// Stores `bytes` at `offset`. The range lies inside the file and no two threads write the same
    /// bytes at once (the journal's shard lock sees to that). Cannot fail.
    fn write(&self, offset: u64, bytes: &[u8]);

    /// Takes now, on this thread, what the system asks for the first store to each page of the
    /// range, where that can be taken early. A hint, for a part of the file that will be written
    /// soon.
    fn warm(&self, _range: Range<u64>) {}

    /// Takes the range's memory from the process; its bytes stay in the file. A hint, for what has
    /// been written and will not be written again.
    fn release(&self, _range: Range<u64>) {}

    /// What an earlier `write` met and could not return. Always `Ok` where the file is memory; on
    /// file systems that cannot map files, a full or broken disk shows here, and again from `sync`
    /// and `seal`. Cheap: to be asked before what was written is acknowledged.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Makes everything stored so far durable.
    fn sync(&self) -> Result<()>;

    /// Releases the memory that holds the file's bytes; later `write`s are not allowed, `sync` is.
    fn seal(&self) -> Result<()>;

    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name it was created under.
    fn path(&self) -> &Path;
}

/// How slow emulated persistent memory is.
#[doc(hidden)]
pub trait MemoryDelay: Send + Sync + Debug {
    /// Waits for so many cache lines to be written.
    fn wait(&self, lines: u64);
}

/// A lock, released on drop.
pub trait Lock: Send + Sync + Debug {}

/// Names an operation in an [`IoQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoTicket(pub u64);

/// Reads and writes that overlap with the work of the job that owns the queue. Buffers travel
/// through the queue by value, so nothing outside it can touch one in flight. Dropping the queue
/// waits for what is in flight.
pub trait IoQueue: Send {
    /// Starts reading `buf.len()` bytes at `offset`. Blocks while `depth` operations are in flight.
    fn submit_read(&mut self, file: &Arc<dyn File>, offset: u64, buf: AlignedBuf) -> IoTicket;

    /// Starts writing the first `len` bytes of `buf` at `offset`.
    fn submit_write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket;

    /// Waits for one operation and gives its buffer back with how it went. Each ticket can be
    /// waited for once.
    fn wait(&mut self, ticket: IoTicket) -> (AlignedBuf, Result<()>);
}
