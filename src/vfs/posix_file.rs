//! An open file of the operating system.
//!
//! Invariants:
//! 1. A file asked for as direct is direct for as long as the kernel takes it: `O_DIRECT` is set with
//!    `fcntl` after opening (an open that fails on it can leave a created file behind), and the first
//!    aligned operation that the kernel refuses as invalid makes the file buffered for good. Each call judges a
//!    refusal by what it had seen before it asked: other calls may turn the file meanwhile.
//! 2. `direct` is false only after `O_DIRECT` has been taken away.
//! 3. No call returns with part of its bytes moved and no error.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Access, File, check_alignment, io_error};
use crate::base::error::{Error, Result};
use crate::base::limits::UNIT_BYTES;
#[cfg(any(test, planted))]
use crate::base::planted::quirks;
use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::{AtomicBool, Ordering};

/// A file opened by [`PosixVfs`](super::PosixVfs).
#[derive(Debug)]
pub(super) struct PosixFile {
    file: fs::File,
    path: PathBuf,
    access: Access,
    /// Whether `O_DIRECT` is set.
    direct: AtomicBool,
    /// As some file systems do: takes `O_DIRECT` and refuses the reads and writes.
    #[cfg(any(test, planted))]
    pub(super) refuses_direct: bool,
}

impl PosixFile {
    /// Wraps an open file; `direct_allowed` is whether `O_DIRECT` may be used at all.
    pub(super) fn new(
        file: fs::File,
        path: &Path,
        access: Access,
        direct_allowed: bool,
    ) -> PosixFile {
        let direct = access == Access::Direct && direct_allowed && set_direct(&file, true).is_ok();
        PosixFile {
            file,
            path: path.to_path_buf(),
            access,
            direct: AtomicBool::new(direct),
            #[cfg(any(test, planted))]
            refuses_direct: quirks::refuses_direct(),
        }
    }

    /// Whether reads and writes go past the page cache at present.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }

    /// Whether `error` was the kernel's refusal of direct I/O, asked for by a call that had found the file
    /// `direct`. If so the file is buffered from now on, and the call is to be made again.
    fn turned_buffered(&self, error: &io::Error, direct: bool, offset: u64, bytes: &[u8]) -> bool {
        let direct = if planted(Bug::RefusalByFlag) { self.is_direct() } else { direct };
        let refused = error.kind() == io::ErrorKind::InvalidInput
            && is_aligned(offset, bytes)
            && direct
            && i64::try_from(offset).is_ok();
        // Also if another call has done so meanwhile.
        if refused && set_direct(&self.file, false).is_ok() {
            self.direct.store(false, Ordering::Release);
            return true;
        }
        false
    }

    fn read_once(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        #[cfg(any(test, planted))]
        self.refuse()?;
        self.file.read_at(buf, at)
    }

    fn write_once(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(any(test, planted))]
        self.refuse()?;
        self.file.write_at(bytes, at)
    }

    /// Does what a kernel does that `refuses_direct`.
    #[cfg(any(test, planted))]
    fn refuse(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.refuses_direct
            && rustix::fs::fcntl_getfl(&self.file)?.contains(rustix::fs::OFlags::DIRECT)
        {
            // A call that is under way when another is refused.
            crate::base::sync::yield_now();
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }
}

/// Whether direct I/O takes this range.
fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    offset.is_multiple_of(UNIT_BYTES as u64)
        && bytes.len().is_multiple_of(UNIT_BYTES)
        && bytes.as_ptr().addr().is_multiple_of(UNIT_BYTES)
}

/// Switches `O_DIRECT` on or off; fails where the file system does not have it.
fn set_direct(file: &fs::File, on: bool) -> io::Result<()> {
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

impl File for PosixFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_alignment(self.access, offset, buf);
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let direct = self.is_direct();
            match self.read_once(at, &mut buf[done..]) {
                Ok(n) => {
                    let mut reached = done + n;
                    if reached < buf.len() && direct {
                        // A direct read can go on only from a whole unit; less than a unit more
                        // means that the file ends here.
                        reached -= reached % UNIT_BYTES;
                    }
                    if reached == done {
                        let eof = io::Error::from(io::ErrorKind::UnexpectedEof);
                        return Err(Error::io("read", &self.path, Some(offset), eof));
                    }
                    done = reached;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if self.turned_buffered(&e, direct, offset, buf) => {}
                Err(e) => return Err(Error::io("read", &self.path, Some(offset), e)),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_alignment(self.access, offset, bytes);
        let needed = bytes.len() as u64;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            let direct = self.is_direct();
            let failure = match self.write_once(at, &bytes[done..]) {
                Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
                Ok(n) => {
                    done += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if self.turned_buffered(&e, direct, offset, bytes) => continue,
                Err(e) => e,
            };
            return Err(io_error("write", &self.path, Some(offset), needed, failure));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io("sync", &self.path, None, e))
    }

    fn len(&self) -> Result<u64> {
        let metadata =
            self.file.metadata().map_err(|e| Error::io("read length", &self.path, None, e))?;
        Ok(metadata.len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| io_error("truncate", &self.path, None, len, e))
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn raw_fd(&self) -> Option<i32> {
        Some(self.file.as_raw_fd())
    }
}
