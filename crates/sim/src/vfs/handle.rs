//! Open files, mapped files and locks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use spinney::vfs::{File, Lock, MappedFile};
use spinney::{Error, Result};

use super::{CrashVfs, State, named};
use crate::disk::{FileNumber, Op};
use crate::fault::{Class, Fault};

/// How far a misplaced block lies from its place.
const BLOCK_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Held {
    pub(super) vfs: CrashVfs,
    pub(super) key: PathBuf,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.vfs.state();
        match state.locked.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                state.locked.remove(&self.key);
            }
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) vfs: CrashVfs,
    pub(super) file: FileNumber,
    pub(super) path: PathBuf,
    pub(super) writable: bool,
}

impl Handle {
    fn check_writable(&self, op: &'static str) -> Result<()> {
        match self.writable {
            true => Ok(()),
            false => named(op, &self.path, Err(io::ErrorKind::PermissionDenied.into())),
        }
    }

    fn write(&self, class: Class, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.vfs.state();
        let at = state.log.len();
        let mapped = class == Class::Store;
        let Some(fault) = state.faults.meet(class, "write", &self.path, at) else {
            state.check_room(&self.path, self.file, offset + bytes.len() as u64)?;
            state.write(self.file, offset, bytes, mapped);
            return Ok(());
        };
        if fault.lies() {
            write_wrongly(&mut state, fault, self.file, offset, bytes, mapped);
            return Ok(());
        }
        if matches!(fault, Fault::ShortWrite | Fault::ShortFull) {
            state.write(self.file, offset, &bytes[..bytes.len() / 2], mapped);
        }
        Err(fault.error("write", &self.path, Some(offset), bytes.len() as u64))
    }
}

/// Does something else than writing the bytes in their place.
fn write_wrongly(
    state: &mut State,
    fault: Fault,
    file: FileNumber,
    offset: u64,
    bytes: &[u8],
    mapped: bool,
) {
    let len = state.content(file).len();
    let end = offset + bytes.len() as u64;
    let number = state.log.len();
    if fault == Fault::LostWrite || bytes.is_empty() {
        return;
    }
    if end > len {
        state.set_len(file, end);
    }
    match fault {
        Fault::FlippedWrite => {
            let mut flipped = bytes.to_vec();
            flipped[number % bytes.len()] ^= 1 << (number % 8);
            state.write(file, offset, &flipped, mapped);
        }
        Fault::MisplacedWrite => {
            let elsewhere = match offset >= BLOCK_BYTES {
                true => offset - BLOCK_BYTES,
                false => offset + BLOCK_BYTES,
            };
            write_within(state, file, elsewhere, bytes, mapped);
        }
        Fault::StrayWrite => {
            let others = state.names.files().filter(|other| *other != file);
            let others: Vec<FileNumber> = others.collect();
            if let Some(&other) = others.get(number % others.len().max(1)) {
                write_within(state, other, offset, bytes, false);
            }
        }
        _ => {}
    }
}

/// Writes what of the bytes falls into the file as it is: a block that has gone astray makes no
/// file longer.
fn write_within(state: &mut State, file: FileNumber, offset: u64, bytes: &[u8], mapped: bool) {
    let room = state.content(file).len().saturating_sub(offset);
    let n = room.min(bytes.len() as u64) as usize;
    if n > 0 {
        state.write(file, offset, &bytes[..n], mapped);
    }
}

impl File for Handle {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut state = self.vfs.state();
        let at = state.log.len();
        let fault = state.faults.meet(Class::Read, "read", &self.path, at);
        if let Some(fault @ (Fault::Eio | Fault::ShortRead)) = fault {
            let half = buf.len() / 2;
            if fault == Fault::ShortRead && !state.content(self.file).read(offset, &mut buf[..half])
            {
                buf.fill(0);
            }
            return Err(fault.error("read", &self.path, Some(offset), 0));
        }
        if !(state.content(self.file).read(offset, buf) || buf.is_empty()) {
            let e = io::ErrorKind::UnexpectedEof.into();
            return Err(Error::io("read", &self.path, Some(offset), e));
        }
        match fault {
            Some(Fault::FlippedRead) if !buf.is_empty() => {
                // Anywhere in the buffer, the same at each run.
                let place = (at * 7919 + offset as usize) % buf.len();
                buf[place] ^= 1 << (at % 8);
            }
            Some(Fault::MisplacedRead) => {
                let len = state.content(self.file).len();
                let elsewhere = match offset >= BLOCK_BYTES {
                    true => offset - BLOCK_BYTES,
                    false => offset + BLOCK_BYTES,
                };
                let n = len.saturating_sub(elsewhere).min(buf.len() as u64) as usize;
                state.content(self.file).read(elsewhere, &mut buf[..n]);
            }
            Some(Fault::StaleRead) => {
                let stale = state.stale.get(&self.file).cloned().unwrap_or_default();
                let n = stale.len().saturating_sub(offset).min(buf.len() as u64) as usize;
                buf.fill(0);
                stale.read(offset, &mut buf[..n]);
            }
            _ => {}
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable("write")?;
        self.write(Class::Write, offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.vfs.state();
        let at = state.log.len();
        let file = self.file;
        let Some(fault) = state.faults.meet(Class::Sync, "sync", &self.path, at) else {
            state.log.push(Op::Sync { file });
            if state.faults.planned(Fault::SyncDrops) {
                let content = state.content(file).clone();
                state.synced.insert(file, content);
            }
            return Ok(());
        };
        match fault {
            // Now and then some of it has arrived before the disk failed.
            Fault::SyncForgets => {
                let seed = if at.is_multiple_of(3) { at as u64 } else { 0 };
                state.log.push(Op::SyncForgot { file, seed });
            }
            Fault::SyncDrops => state.drop_unsynced(file),
            _ => {}
        }
        Err(fault.error("sync", &self.path, None, 0))
    }

    fn len(&self) -> Result<u64> {
        Ok(self.vfs.state().content(self.file).len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.check_writable("truncate")?;
        let mut state = self.vfs.state();
        let at = state.log.len();
        let shrinks = len <= state.content(self.file).len();
        match state.faults.meet(Class::Write, "truncate", &self.path, at) {
            Some(fault) if fault.is_full() && shrinks => {
                state.set_len(self.file, len);
                Ok(())
            }
            None => {
                state.check_room(&self.path, self.file, len)?;
                state.set_len(self.file, len);
                Ok(())
            }
            Some(fault) if fault.lies() => Ok(()),
            Some(fault) => Err(fault.error("truncate", &self.path, None, len)),
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A preallocated file.
#[derive(Debug)]
pub(super) struct Mapped {
    handle: Handle,
    len: u64,
    /// What a write has met.
    failed: Mutex<Option<Error>>,
    sealed: AtomicBool,
}

impl Mapped {
    pub(super) fn new(handle: Handle, len: u64) -> Mapped {
        Mapped { handle, len, failed: Mutex::new(None), sealed: AtomicBool::new(false) }
    }
}

impl MappedFile for Mapped {
    fn write(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len), "a write past the end of a mapped file");
        assert!(!self.sealed.load(Ordering::SeqCst), "a write to a mapped file that was sealed");
        if let Err(error) = self.handle.write(Class::Store, offset, bytes) {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn check(&self) -> Result<()> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn sync(&self) -> Result<()> {
        self.check()?;
        self.handle.sync()
    }

    fn seal(&self) -> Result<()> {
        self.sealed.store(true, Ordering::SeqCst);
        self.check()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.handle.path
    }
}
