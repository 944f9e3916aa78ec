//! An open file of the operating system.
//!
//! Invariants:
//! 1. A file opened as direct stays direct as long as the kernel accepts it. `O_DIRECT` is set with
//!    `fcntl` after opening, because an open that fails on it can leave a created file behind. The
//!    first aligned operation that the kernel refuses as invalid makes the file buffered
//!    permanently. Each call judges a refusal by the state that it saw before it asked, because
//!    other calls may change the file in the meantime.
//! 2. `direct` is false only after `O_DIRECT` has been cleared.
//! 3. No call returns without an error if only part of its bytes were moved.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::descriptors::{Descriptor, Descriptors};
use super::{Access, File, check_alignment, io_error};
use crate::base::error::{Error, Result};
use crate::base::held;
use crate::base::limits::UNIT_BYTES;
#[cfg(any(test, planted))]
use crate::base::planted::quirks;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::Ordering;

/// A file opened by [`PosixVfs`](super::PosixVfs).
#[derive(Debug)]
pub(super) struct PosixFile {
    descriptor: Arc<Descriptor>,
    access: Access,
    /// Beyond this length, the process receives a fatal signal (`SIGXFSZ`).
    bytes_max: u64,
    /// Imitates file systems that accept `O_DIRECT` and then refuse the reads and writes.
    #[cfg(any(test, planted))]
    pub(super) refuses_direct: bool,
}

/// The longest file that the process may write (`RLIMIT_FSIZE`). A write beyond it is an error if
/// the signal for it is ignored, and otherwise kills the process. So no such write is attempted.
pub(super) fn file_bytes_max() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

impl PosixFile {
    /// Wraps an open file that stays open. `direct_allowed` is whether `O_DIRECT` may be used at
    /// all.
    pub(super) fn new(
        file: fs::File,
        path: &Path,
        access: Access,
        direct_allowed: bool,
    ) -> PosixFile {
        PosixFile::of(Descriptor::kept(file, path), access, direct_allowed)
    }

    /// Wraps an open file that is closed when others need its descriptor, and reopened by name.
    pub(super) fn shared(
        descriptors: &Arc<Descriptors>,
        file: fs::File,
        path: &Path,
        (access, writable): (Access, bool),
        direct_allowed: bool,
    ) -> PosixFile {
        let descriptor = Descriptor::shared(descriptors, file, path, writable);
        PosixFile::of(descriptor, access, direct_allowed)
    }

    fn of(descriptor: Arc<Descriptor>, access: Access, direct_allowed: bool) -> PosixFile {
        let direct = access == Access::Direct
            && direct_allowed
            && descriptor.get().is_ok_and(|file| set_direct(&file, true).is_ok());
        descriptor.direct.store(direct, Ordering::Release);
        PosixFile {
            descriptor,
            access,
            bytes_max: file_bytes_max(),
            #[cfg(any(test, planted))]
            refuses_direct: quirks::refuses_direct(),
        }
    }

    fn open(&self, op: &'static str, offset: Option<u64>) -> Result<Arc<fs::File>> {
        self.descriptor.get().map_err(|e| Error::io(op, self.path(), offset, e))
    }

    /// Whether reads and writes bypass the page cache now.
    pub(super) fn is_direct(&self) -> bool {
        self.descriptor.direct.load(Ordering::Acquire)
    }

    /// Whether `error` was the kernel's refusal of direct I/O, in a call that had found the file
    /// `direct`. If so, the file is buffered from now on, and the call must be repeated.
    fn turned_buffered(
        &self,
        file: &fs::File,
        error: &io::Error,
        direct: bool,
        (offset, bytes): (u64, &[u8]),
    ) -> bool {
        // A file that was reopened while another call changed it may still be direct.
        let direct = match planted(Bug::RefusalByFlag) {
            true => self.is_direct(),
            false => direct || is_set_direct(file),
        };
        let refused = error.kind() == io::ErrorKind::InvalidInput
            && is_aligned(offset, bytes)
            && direct
            && i64::try_from(offset).is_ok();
        // Also if another call has done so in the meantime.
        if refused && set_direct(file, false).is_ok() {
            self.descriptor.direct.store(false, Ordering::Release);
            return true;
        }
        false
    }

    fn read_once(&self, file: &fs::File, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        #[cfg(any(test, planted))]
        self.refuse(file)?;
        file.read_at(buf, at)
    }

    fn write_once(&self, file: &fs::File, at: u64, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(any(test, planted))]
        self.refuse(file)?;
        file.write_at(bytes, at)
    }

    /// Imitates a kernel that `refuses_direct`.
    #[cfg(any(test, planted))]
    fn refuse(&self, file: &fs::File) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.refuses_direct && is_set_direct(file) {
            // A concurrent call, while another is refused.
            crate::base::sync::yield_now();
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }
}

/// Whether direct I/O accepts this range.
fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    offset.is_multiple_of(UNIT_BYTES as u64)
        && bytes.len().is_multiple_of(UNIT_BYTES)
        && bytes.as_ptr().addr().is_multiple_of(UNIT_BYTES)
}

/// Sets or clears `O_DIRECT`. Fails where the file system does not support it.
pub(super) fn set_direct(file: &fs::File, on: bool) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // F_SETFL changes only the settable flags, and none of the others is ever set.
        let flags = if on { rustix::fs::OFlags::DIRECT } else { rustix::fs::OFlags::empty() };
        Ok(rustix::fs::fcntl_setfl(file, flags)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, on);
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// Whether `O_DIRECT` is on.
fn is_set_direct(file: &fs::File) -> bool {
    #[cfg(target_os = "linux")]
    let is_set =
        rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
    #[cfg(not(target_os = "linux"))]
    let is_set = {
        let _ = file;
        false
    };
    is_set
}

impl File for PosixFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_alignment(self.access, offset, buf);
        let file = self.open("read", Some(offset))?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let direct = self.is_direct();
            match self.read_once(&file, at, &mut buf[done..]) {
                Ok(n) => {
                    let mut reached = done + n;
                    if reached < buf.len() && direct {
                        // A direct read can continue only from a whole unit. An incomplete unit
                        // means that the file ends here.
                        reached -= reached % UNIT_BYTES;
                    }
                    if reached == done {
                        let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
                        return Err(Error::io("read", self.path(), Some(offset), eof));
                    }
                    done = reached;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if self.turned_buffered(&file, &e, direct, (offset, buf)) => {}
                Err(e) => return Err(Error::io("read", self.path(), Some(offset), e)),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_alignment(self.access, offset, bytes);
        let needed = bytes.len() as u64;
        if offset.saturating_add(needed) > self.bytes_max {
            let limited = io::ErrorKind::FileTooLarge.into();
            return Err(io_error("write", self.path(), Some(offset), needed, limited));
        }
        let _writing = self.descriptor.writing();
        let file = self.open("write", Some(offset))?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            let direct = self.is_direct();
            let failure = match self.write_once(&file, at, &bytes[done..]) {
                Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if self.turned_buffered(&file, &e, direct, (offset, bytes)) => continue,
                Err(e) => e,
            };
            return Err(io_error("write", self.path(), Some(offset), needed, failure));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        held::refuse("a sync");
        let file = self.open("sync", None)?;
        let upto = self.descriptor.syncing();
        file.sync_data().map_err(|e| Error::io("sync", self.path(), None, e))?;
        self.descriptor.synced(upto);
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        let metadata = self.open("read length", None)?.metadata();
        Ok(metadata.map_err(|e| Error::io("read length", self.path(), None, e))?.len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        if len > self.bytes_max {
            let limited = io::ErrorKind::FileTooLarge.into();
            return Err(io_error("truncate", self.path(), None, len, limited));
        }
        let _writing = self.descriptor.writing();
        let file = self.open("truncate", None)?;
        file.set_len(len).map_err(|e| io_error("truncate", self.path(), None, len, e))
    }

    fn path(&self) -> &Path {
        self.descriptor.path()
    }

    fn pin(&self, write_end: Option<u64>) -> Option<Arc<fs::File>> {
        if let Some(end) = write_end {
            if end > self.bytes_max {
                return None;
            }
            self.descriptor.writing_unwatched();
        }
        self.descriptor.get().ok()
    }
}
