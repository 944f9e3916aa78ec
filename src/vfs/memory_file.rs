//! The bytes of a file in memory, and its handles.
//!
//! Invariants:
//! 1. A file consists of chunks of 64 KiB. A chunk that was never written is not allocated and
//!    reads as zeros. Bytes of a chunk beyond the end of the file are zero.
//! 2. The total length of all files that have a name or a handle never exceeds the capacity.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Access, File, MappedFile, check_alignment, io_error};
use crate::base::error::{Error, Result};
use crate::base::sync::RwLock;
use crate::base::sync::plain::{AtomicBool, AtomicU64, Ordering};

const CHUNK_BYTES: usize = 64 * 1024;

/// The longest file: the list of its chunks must fit into memory.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// The capacity and the current total length of all files.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) capacity: u64,
    pub(super) used: AtomicU64,
}

/// The content that a name refers to. Hard links share it, and open handles keep it.
#[derive(Debug)]
pub(super) struct Inode {
    content: RwLock<Content>,
    /// Whether a [`Lock`](super::Lock) is held on the file.
    space: Arc<Space>,
}

#[derive(Debug, Default)]
struct Content {
    len: u64,
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Inode {
    pub(super) fn new(space: &Arc<Space>) -> Arc<Inode> {
        Arc::new(Inode { content: RwLock::default(), space: Arc::clone(space) })
    }

    pub(super) fn len(&self) -> u64 {
        self.content.read().len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let content = self.content.read();
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > content.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        pieces(offset, buf.len(), |index, at, from, n| {
            let to = &mut buf[from..from + n];
            match &content.chunks[index] {
                Some(chunk) => to.copy_from_slice(&chunk[at..at + n]),
                None => to.fill(0),
            }
        });
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.content.write();
        let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        if end > content.len && !bytes.is_empty() {
            self.resize(&mut content, end)?;
        }
        let Content { chunks, .. } = &mut *content;
        pieces(offset, bytes.len(), |index, at, from, n| {
            let chunk = chunks[index].get_or_insert_with(|| vec![0; CHUNK_BYTES].into());
            chunk[at..at + n].copy_from_slice(&bytes[from..from + n]);
        });
        Ok(())
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content.write();
        self.resize(&mut content, len)
    }

    fn resize(&self, content: &mut Content, len: u64) -> io::Result<()> {
        if len > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let chunks = len.div_ceil(CHUNK_BYTES as u64) as usize;
        let used = &self.space.used;
        if len > content.len {
            let more = len - content.len;
            let taken = used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                used.checked_add(more).filter(|&used| used <= self.space.capacity)
            });
            taken.map_err(|_| io::ErrorKind::StorageFull)?;
        } else {
            used.fetch_sub(content.len - len, Ordering::SeqCst);
        }
        content.chunks.resize_with(chunks, || None);
        let tail = (len % CHUNK_BYTES as u64) as usize;
        if len < content.len
            && tail > 0
            && let Some(Some(last)) = content.chunks.last_mut()
        {
            last[tail..].fill(0);
        }
        content.len = len;
        Ok(())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let len = self.len();
        self.space.used.fetch_sub(len, Ordering::SeqCst);
    }
}

/// Cuts a range of a file along its chunks: chunk, offset in it, offset in the range, bytes.
fn pieces(offset: u64, len: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    let mut done = 0;
    while done < len {
        let from = offset + done as u64;
        let at = (from % CHUNK_BYTES as u64) as usize;
        let n = (CHUNK_BYTES - at).min(len - done);
        f((from / CHUNK_BYTES as u64) as usize, at, done, n);
        done += n;
    }
}

/// An open file in memory.
#[derive(Debug)]
pub(super) struct MemoryFile {
    pub(super) inode: Arc<Inode>,
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) writable: bool,
}

impl MemoryFile {
    fn check_writable(&self, op: &'static str) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        let e = io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading only");
        Err(Error::io(op, &self.path, None, e))
    }
}

impl File for MemoryFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_alignment(self.access, offset, buf);
        if buf.is_empty() {
            return Ok(());
        }
        #[cfg(test)]
        crate::base::held::note(|| format!("read {} at {offset}", self.path.display()));
        let result = self.inode.read(offset, buf);
        result.map_err(|e| Error::io("read", &self.path, Some(offset), e))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_alignment(self.access, offset, bytes);
        self.check_writable("write")?;
        let result = self.inode.write(offset, bytes);
        result.map_err(|e| io_error("write", &self.path, Some(offset), bytes.len() as u64, e))
    }

    fn sync(&self) -> Result<()> {
        crate::base::held::refuse("a sync");
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.inode.len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.check_writable("truncate")?;
        self.inode.set_len(len).map_err(|e| io_error("truncate", &self.path, None, len, e))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A preallocated file in memory.
#[derive(Debug)]
pub(super) struct MemoryMapped {
    pub(super) inode: Arc<Inode>,
    pub(super) path: PathBuf,
    pub(super) len: u64,
    pub(super) sealed: AtomicBool,
}

impl MappedFile for MemoryMapped {
    fn write(&self, offset: u64, bytes: &[u8]) {
        let needed = bytes.len() as u64;
        assert!(
            offset.checked_add(needed).is_some_and(|end| end <= self.len),
            "{needed} bytes at {offset} of {} bytes",
            self.len
        );
        assert!(!self.sealed.load(Ordering::Relaxed), "a write to a sealed file");
        // The space was taken when the file was created. This fails only if the file was truncated
        // since and the space was used.
        let written = self.inode.write(offset, bytes);
        assert!(written.is_ok(), "{}: {written:?}", self.path.display());
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn seal(&self) -> Result<()> {
        self.sealed.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
