//! A disk in memory that forgets unsynced data, and fails on demand.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::base::sync::Mutex;

use crate::base::error::{Error, Result};
use crate::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, Vfs};

/// What survives a crash of the unsynced data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    /// Everything: only the process died.
    Process,
    /// Nothing: neither bytes nor names.
    Power,
    /// Of names, only removals; of bytes, nothing.
    Removals,
    /// Names, and half of the bytes that each file had grown by.
    Torn,
}

#[derive(Debug, Clone, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    dirs: Vec<PathBuf>,
    /// The number of changes so far, and the number after which everything fails.
    changes: u64,
    changes_max: Option<u64>,
    /// Everything fails because the disk is full.
    is_full: bool,
    syncs: u64,
}

/// The disk.
#[derive(Debug, Default)]
pub(super) struct TestVfs {
    disk: Arc<Mutex<Disk>>,
}

fn failed(op: &'static str, path: &Path, kind: io::ErrorKind) -> Error {
    Error::io(op, path, None, io::Error::from(kind))
}

impl Disk {
    fn change(&mut self, op: &'static str, path: &Path) -> Result<()> {
        if self.changes_max.is_some_and(|most| self.changes >= most) {
            let kind = if self.is_full { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
            return Err(failed(op, path, kind));
        }
        self.changes += 1;
        Ok(())
    }
}

impl TestVfs {
    pub(super) fn changes(&self) -> u64 {
        self.disk.lock().changes
    }

    pub(super) fn syncs(&self) -> u64 {
        self.disk.lock().syncs
    }

    /// From the `count`th change on, every change fails.
    pub(super) fn fail_after(&self, count: Option<u64>) {
        self.disk.lock().changes_max = count;
    }

    /// Sets whether there is no room for any change.
    pub(super) fn set_full(&self, is_full: bool) {
        let mut disk = self.disk.lock();
        (disk.is_full, disk.changes_max) = (is_full, is_full.then_some(0));
    }

    /// The disk as the next process finds it.
    pub(super) fn crash(&self, crash: Crash) -> TestVfs {
        let disk = self.disk.lock();
        let mut inodes = disk.inodes.clone();
        for inode in &mut inodes {
            let durable = inode.durable.len();
            match crash {
                Crash::Process => {}
                Crash::Power | Crash::Removals => inode.now.clone_from(&inode.durable),
                Crash::Torn if inode.now.len() > durable => {
                    inode.now.truncate(durable + (inode.now.len() - durable) / 2);
                }
                Crash::Torn => {}
            }
            inode.durable.clone_from(&inode.now);
        }
        let mut names =
            if crash == Crash::Power { &disk.durable_names } else { &disk.names }.clone();
        if crash == Crash::Removals {
            names.retain(|name, inode| disk.durable_names.get(name) == Some(inode));
        }
        let after = Disk {
            inodes,
            durable_names: names.clone(),
            names,
            dirs: disk.dirs.clone(),
            ..Disk::default()
        };
        TestVfs { disk: Arc::new(Mutex::new(after)) }
    }

    pub(super) fn contents(&self, path: &Path) -> Vec<u8> {
        let disk = self.disk.lock();
        disk.inodes[disk.names[path]].now.clone()
    }

    pub(super) fn put(&self, path: &Path, bytes: &[u8]) {
        let mut disk = self.disk.lock();
        let inode = disk.inodes.len();
        disk.inodes.push(Inode { now: bytes.to_vec(), durable: bytes.to_vec() });
        disk.names.insert(path.to_path_buf(), inode);
        disk.durable_names.insert(path.to_path_buf(), inode);
    }

    pub(super) fn names(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        self.disk.lock().names.keys().map(name).collect()
    }
}

impl Vfs for TestVfs {
    fn create(&self, path: &Path, _access: Access) -> Result<Arc<dyn File>> {
        let mut disk = self.disk.lock();
        disk.change("create", path)?;
        if disk.names.contains_key(path) {
            return Err(failed("create", path, io::ErrorKind::AlreadyExists));
        }
        let inode = disk.inodes.len();
        disk.inodes.push(Inode::default());
        disk.names.insert(path.to_path_buf(), inode);
        let disk = Arc::downgrade(&self.disk);
        Ok(Arc::new(TestFile { disk, inode, path: path.to_path_buf() }))
    }

    fn open(&self, path: &Path, _access: Access, _writable: bool) -> Result<Arc<dyn File>> {
        let found = self.disk.lock().names.get(path).copied();
        let inode = found.ok_or_else(|| failed("open", path, io::ErrorKind::NotFound))?;
        let disk = Arc::downgrade(&self.disk);
        Ok(Arc::new(TestFile { disk, inode, path: path.to_path_buf() }))
    }

    fn create_mapped(&self, _path: &Path, _len: u64) -> Result<Arc<dyn MappedFile>> {
        unreachable!("the manifest maps nothing")
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.change("rename", from)?;
        let inode = disk.names.remove(from);
        let inode = inode.ok_or_else(|| failed("rename", from, io::ErrorKind::NotFound))?;
        disk.names.insert(to.to_path_buf(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.change("remove", path)?;
        let removed = disk.names.remove(path);
        removed.map(|_| ()).ok_or_else(|| failed("remove", path, io::ErrorKind::NotFound))
    }

    fn hard_link(&self, _from: &Path, _to: &Path) -> Result<()> {
        unreachable!("the manifest links nothing")
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.change("create", path)?;
        disk.dirs.push(path.to_path_buf());
        Ok(())
    }

    fn remove_dir(&self, _path: &Path) -> Result<()> {
        unreachable!("the manifest removes no directory")
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let disk = self.disk.lock();
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let files = disk.names.iter().filter(|(file, _)| file.parent() == Some(path));
        let files = files.map(|(file, &inode)| DirEntry {
            name: name(file),
            len: disk.inodes[inode].now.len() as u64,
            is_dir: false,
        });
        let dirs = disk.dirs.iter().filter(|dir| dir.parent() == Some(path));
        let dirs = dirs.map(|dir| DirEntry { name: name(dir), len: 0, is_dir: true });
        let mut entries: Vec<DirEntry> = files.chain(dirs).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let disk = self.disk.lock();
        Ok(disk.names.contains_key(path) || disk.dirs.iter().any(|dir| dir == path))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let mut disk = self.disk.lock();
        disk.change("sync", path)?;
        disk.durable_names.retain(|name, _| name.parent() != Some(path));
        let names = disk.names.clone().into_iter().filter(|(name, _)| name.parent() == Some(path));
        disk.durable_names.extend(names);
        Ok(())
    }

    fn lock(&self, _path: &Path) -> Result<Box<dyn Lock>> {
        unreachable!("the manifest locks nothing")
    }

    fn lock_shared(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unreachable!()
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        unreachable!("the manifest queues nothing")
    }
}

#[derive(Debug)]
struct TestFile {
    disk: Weak<Mutex<Disk>>,
    inode: usize,
    path: PathBuf,
}

impl TestFile {
    fn with<R>(&self, f: impl FnOnce(&mut Disk) -> R) -> R {
        f(&mut self.disk.upgrade().unwrap().lock())
    }
}

impl File for TestFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.with(|disk| {
            let bytes = disk.inodes[self.inode].now.get(offset as usize..);
            match bytes.and_then(|bytes| bytes.get(..buf.len())) {
                Some(bytes) => buf.copy_from_slice(bytes),
                None => return Err(failed("read", &self.path, io::ErrorKind::UnexpectedEof)),
            }
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.with(|disk| {
            disk.change("write", &self.path)?;
            let (start, end) = (offset as usize, offset as usize + bytes.len());
            let now = &mut disk.inodes[self.inode].now;
            now.resize(now.len().max(end), 0);
            now[start..end].copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.with(|disk| {
            disk.change("sync", &self.path)?;
            disk.syncs += 1;
            let inode = &mut disk.inodes[self.inode];
            inode.durable.clone_from(&inode.now);
            Ok(())
        })
    }

    fn len(&self) -> Result<u64> {
        self.with(|disk| Ok(disk.inodes[self.inode].now.len() as u64))
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.with(|disk| {
            disk.change("truncate", &self.path)?;
            disk.inodes[self.inode].now.resize(len as usize, 0);
            Ok(())
        })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
