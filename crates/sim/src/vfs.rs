//! [`CrashVfs`]: files in memory, and a record of every operation that changed them.
//!
//! Invariants:
//! 1. Only what succeeded is recorded, in the order in which it happened.
//! 2. Paths are relative to the root, without detours; the root is not among the names.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spinney::vfs::{Access, AlignedBuf, DirEntry, File, IoQueue, IoTicket, Lock, MappedFile, Vfs};
use spinney::{Error, Result};

use crate::content::Content;
use crate::disk::{self, Disk, FileNumber, NameChange, Names, Node, Op};

/// A file system in memory that records what is done to it. Clones share it.
#[derive(Debug, Clone)]
pub struct CrashVfs {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    log: Vec<Op>,
    names: Names,
    files: BTreeMap<FileNumber, Content>,
    next_file: FileNumber,
    locked: BTreeSet<FileNumber>,
}

type IoResult<T> = io::Result<T>;

impl State {
    fn check_dir(&self, key: &Path) -> IoResult<()> {
        match self.names.get(key) {
            _ if is_root(key) => Ok(()),
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn check_parent(&self, key: &Path) -> IoResult<()> {
        key.parent().map_or(Ok(()), |parent| self.check_dir(parent))
    }

    fn file(&self, key: &Path) -> IoResult<FileNumber> {
        self.check_parent(key)?;
        match self.names.get(key) {
            Some(Node::File(number)) => Ok(number),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn check_free(&self, key: &Path) -> IoResult<()> {
        self.check_parent(key)?;
        match is_root(key) || self.names.contains(key) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => Ok(()),
        }
    }

    fn change_names(&mut self, changes: Vec<NameChange>) {
        self.names.change(&changes);
        self.log.push(Op::Names { changes });
    }

    fn add_file(&mut self, key: PathBuf) -> IoResult<FileNumber> {
        self.check_free(&key)?;
        let number = self.next_file;
        self.next_file += 1;
        self.files.insert(number, Content::default());
        self.change_names(vec![(key, Some(Node::File(number)))]);
        Ok(number)
    }

    fn content(&mut self, file: FileNumber) -> &mut Content {
        self.files.entry(file).or_default()
    }

    fn write(&mut self, file: FileNumber, offset: u64, bytes: &[u8], mapped: bool) {
        self.content(file).write(offset, bytes);
        self.log.push(Op::Write { file, offset, bytes: Arc::from(bytes), mapped });
    }

    fn set_len(&mut self, file: FileNumber, len: u64) {
        self.content(file).set_len(len);
        self.log.push(Op::SetLen { file, len });
    }

    fn children<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a Path, Node)> {
        self.names.below(dir).filter(move |(path, _)| path.parent() == Some(dir))
    }
}

impl CrashVfs {
    /// The files of `disk`.
    pub fn new(disk: &Disk) -> CrashVfs {
        let (names, files) = disk.view();
        let next_file = disk.last_file() + 1;
        let (log, locked) = (Vec::new(), BTreeSet::new());
        CrashVfs { state: Arc::new(Mutex::new(State { log, names, files, next_file, locked })) }
    }

    /// Files with these names and bytes.
    pub fn of_files(names: Names, files: BTreeMap<FileNumber, Content>) -> CrashVfs {
        let next_file = files.keys().next_back().map_or(1, |last| last + 1);
        let (log, locked) = (Vec::new(), BTreeSet::new());
        CrashVfs { state: Arc::new(Mutex::new(State { log, names, files, next_file, locked })) }
    }

    /// What a process sees now: names and bytes.
    pub fn view(&self) -> (Names, BTreeMap<FileNumber, Content>) {
        let state = self.state();
        (state.names.clone(), state.files.clone())
    }

    /// What all names, and all bytes of all files, come to.
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        disk::fingerprint_of(&state.names, &state.files)
    }

    /// How many operations have been recorded.
    pub fn ops(&self) -> usize {
        self.state().log.len()
    }

    /// Takes what has been recorded.
    pub fn take_log(&self) -> Vec<Op> {
        std::mem::take(&mut self.state().log)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, file: FileNumber, path: &Path, writable: bool) -> Handle {
        Handle { vfs: self.clone(), file, path: path.to_path_buf(), writable }
    }
}

/// The path from the root.
fn key(path: &Path) -> PathBuf {
    let mut key = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => key.push(name),
            Component::ParentDir => {
                key.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    key
}

fn is_root(key: &Path) -> bool {
    key.as_os_str().is_empty()
}

fn named<T>(op: &'static str, path: &Path, result: IoResult<T>) -> Result<T> {
    result.map_err(|e| Error::io(op, path, None, e))
}

impl Vfs for CrashVfs {
    fn create(&self, path: &Path, _access: Access) -> Result<Arc<dyn File>> {
        let file = named("create", path, self.state().add_file(key(path)))?;
        Ok(Arc::new(self.handle(file, path, true)))
    }

    fn open(&self, path: &Path, _access: Access, writable: bool) -> Result<Arc<dyn File>> {
        let file = named("open", path, self.state().file(&key(path)))?;
        Ok(Arc::new(self.handle(file, path, writable)))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        if len == 0 {
            let what = format!("{} is to be mapped and has no bytes", path.display());
            return Err(Error::InvalidArgument { what });
        }
        let mut state = self.state();
        let file = named("create", path, state.add_file(key(path)))?;
        state.set_len(file, len);
        let sealed = AtomicBool::new(false);
        Ok(Arc::new(Mapped { handle: self.handle(file, path, true), len, sealed }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from_key, to_key) = (key(from), key(to));
        let mut state = self.state();
        named("rename", from, state.check_parent(&from_key))?;
        let Some(moved) = state.names.get(&from_key) else {
            return named("rename", from, Err(io::ErrorKind::NotFound.into()));
        };
        named("rename", to, state.check_parent(&to_key))?;
        let refused = match (moved, state.names.get(&to_key)) {
            // Two names of one file: nothing happens.
            (moved, Some(there)) if moved == there && moved != Node::Dir => return Ok(()),
            (_, Some(Node::Dir)) => io::ErrorKind::IsADirectory,
            (Node::Dir, Some(_)) => io::ErrorKind::NotADirectory,
            (Node::Dir, None) if to_key.starts_with(&from_key) => io::ErrorKind::InvalidInput,
            (_, _) => {
                let mut changes = Vec::new();
                for (path, node) in state.names.below(&from_key) {
                    if let Ok(rest) = path.strip_prefix(&from_key) {
                        changes.push((path.to_path_buf(), None));
                        changes.push((to_key.join(rest), Some(node)));
                    }
                }
                changes.extend([(from_key, None), (to_key, Some(moved))]);
                state.change_names(changes);
                return Ok(());
            }
        };
        named("rename", to, Err(refused.into()))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut state = self.state();
        named("remove", path, state.file(&key))?;
        state.change_names(vec![(key, None)]);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let to_key = key(to);
        let mut state = self.state();
        let file = named("link", from, state.file(&key(from)))?;
        named("link", to, state.check_free(&to_key))?;
        state.change_names(vec![(to_key, Some(Node::File(file)))]);
        Ok(())
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut state = self.state();
        let dirs: Vec<&Path> = key.ancestors().filter(|dir| !is_root(dir)).collect();
        for dir in dirs.into_iter().rev() {
            match state.names.get(dir) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => {
                    let kind = match dir == key {
                        true => io::ErrorKind::AlreadyExists,
                        false => io::ErrorKind::NotADirectory,
                    };
                    return named("create directory", path, Err(kind.into()));
                }
                None => state.change_names(vec![(dir.to_path_buf(), Some(Node::Dir))]),
            }
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut state = self.state();
        named("remove directory", path, state.check_dir(&key))?;
        if state.children(&key).next().is_some() {
            return named("remove directory", path, Err(io::ErrorKind::DirectoryNotEmpty.into()));
        }
        state.change_names(vec![(key, None)]);
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let key = key(path);
        let state = self.state();
        named("list", path, state.check_dir(&key))?;
        let mut entries: Vec<DirEntry> = state
            .children(&key)
            .filter_map(|(child, node)| {
                let name = child.file_name()?.to_string_lossy().into_owned();
                Some(match node {
                    Node::Dir => DirEntry { name, len: 0, is_dir: true },
                    Node::File(file) => {
                        let len = state.files.get(&file).map_or(0, Content::len);
                        DirEntry { name, len, is_dir: false }
                    }
                })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let key = key(path);
        Ok(is_root(&key) || self.state().names.contains(&key))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let dir = key(path);
        let mut state = self.state();
        named("sync directory", path, state.check_dir(&dir))?;
        state.log.push(Op::SyncDir { dir });
        Ok(())
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let key = key(path);
        let mut state = self.state();
        let file = match state.file(&key) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => state.add_file(key),
            found => found,
        };
        let file = named("lock", path, file)?;
        if !state.locked.insert(file) {
            let holder = Some(format!(" by process {}", std::process::id()));
            return Err(Error::Locked { path: path.to_path_buf(), holder });
        }
        Ok(Box::new(Held { vfs: self.clone(), file }))
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(Queue::default())
    }
}

#[derive(Debug)]
struct Held {
    vfs: CrashVfs,
    file: FileNumber,
}

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        self.vfs.state().locked.remove(&self.file);
    }
}

/// An open file.
#[derive(Debug)]
struct Handle {
    vfs: CrashVfs,
    file: FileNumber,
    path: PathBuf,
    writable: bool,
}

impl Handle {
    fn check_writable(&self, op: &'static str) -> Result<()> {
        match self.writable {
            true => Ok(()),
            false => named(op, &self.path, Err(io::ErrorKind::PermissionDenied.into())),
        }
    }
}

impl File for Handle {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match self.vfs.state().content(self.file).read(offset, buf) || buf.is_empty() {
            true => Ok(()),
            false => {
                let e = io::ErrorKind::UnexpectedEof.into();
                Err(Error::io("read", &self.path, Some(offset), e))
            }
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable("write")?;
        self.vfs.state().write(self.file, offset, bytes, false);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.vfs.state().log.push(Op::Sync { file: self.file });
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.vfs.state().content(self.file).len())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.check_writable("truncate")?;
        self.vfs.state().set_len(self.file, len);
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A preallocated file.
#[derive(Debug)]
struct Mapped {
    handle: Handle,
    len: u64,
    sealed: AtomicBool,
}

impl MappedFile for Mapped {
    fn write(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len), "a write past the end of a mapped file");
        assert!(!self.sealed.load(Ordering::SeqCst), "a write to a mapped file that was sealed");
        self.handle.vfs.state().write(self.handle.file, offset, bytes, true);
    }

    fn sync(&self) -> Result<()> {
        self.handle.sync()
    }

    fn seal(&self) -> Result<()> {
        self.sealed.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.handle.path
    }
}

/// Carries operations out as they are submitted.
#[derive(Default)]
struct Queue {
    submitted: u64,
    finished: BTreeMap<u64, (AlignedBuf, Result<()>)>,
}

impl Queue {
    fn finish(&mut self, buf: AlignedBuf, result: Result<()>) -> IoTicket {
        self.submitted += 1;
        self.finished.insert(self.submitted, (buf, result));
        IoTicket(self.submitted)
    }
}

impl IoQueue for Queue {
    fn submit_read(&mut self, file: &Arc<dyn File>, offset: u64, mut buf: AlignedBuf) -> IoTicket {
        let result = file.read_at(offset, &mut buf);
        self.finish(buf, result)
    }

    fn submit_write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
    ) -> IoTicket {
        let result = file.write_at(offset, &buf[..len]);
        self.finish(buf, result)
    }

    fn wait(&mut self, ticket: IoTicket) -> (AlignedBuf, Result<()>) {
        match self.finished.remove(&ticket.0) {
            Some(finished) => finished,
            None => panic!("{ticket:?} was not given by this queue, or was waited for already"),
        }
    }
}
