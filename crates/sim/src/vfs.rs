//! [`CrashVfs`]: files in memory, a record of every operation that changed them, and a disk that
//! can fail, lie and be full.
//!
//! Invariants:
//! 1. The record has what happened to the disk, in order: for a failed operation, the part that was
//!    done; for an operation about which the disk lied, its real effect.
//! 2. Paths are relative to the root and normalized; the root is not among the names.
//! 3. A failed write to a mapped file shows in its `check`, `sync` and `seal` from then on. A
//!    failed sync does not: a repeated call may succeed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spinney::vfs::{Access, BlockingQueue, DirEntry, File, IoQueue, Lock, MappedFile, Vfs};
use spinney::{Error, Result};

use crate::content::Content;
use crate::disk::{self, Disk, FileNumber, NameChange, Names, Node, Op};
use crate::fault::{Class, Fault, Faults, Plan, Strike};

mod handle;
mod watched;

use handle::{Handle, Held, Mapped};
pub use watched::{WatchedVfs, Watcher};

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
    /// Who holds which path locked: so many share it, or one has it alone (0).
    locked: BTreeMap<PathBuf, usize>,
    faults: Faults,
    /// How many bytes the files that have a name may have together.
    capacity: Option<u64>,
    /// The most bytes that files with a name have had together.
    peak: u64,
    /// What files held when they were synced last; kept while a sync that drops is planned.
    synced: BTreeMap<FileNumber, Content>,
    /// What files held before they were written last; kept while a stale read is planned.
    stale: BTreeMap<FileNumber, Content>,
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
        if self.faults.planned(Fault::StaleRead) {
            let before = self.content(file).clone();
            self.stale.insert(file, before);
        }
        let len = self.content(file).len();
        self.content(file).write(offset, bytes);
        if self.content(file).len() > len {
            self.peak = self.peak.max(self.used());
        }
        self.log.push(Op::Write { file, offset, bytes: Arc::from(bytes), mapped });
    }

    fn set_len(&mut self, file: FileNumber, len: u64) {
        self.content(file).set_len(len);
        self.peak = self.peak.max(self.used());
        self.log.push(Op::SetLen { file, len });
    }

    /// Bytes of the files that have a name.
    fn used(&self) -> u64 {
        let files: BTreeSet<FileNumber> = self.names.files().collect();
        files.iter().filter_map(|file| self.files.get(file)).map(Content::len).sum()
    }

    /// Fails if the file cannot grow to `len` bytes.
    fn check_room(&mut self, path: &Path, file: FileNumber, len: u64) -> Result<()> {
        let Some(capacity) = self.capacity else { return Ok(()) };
        let more = len.saturating_sub(self.content(file).len());
        match more == 0 || self.used() + more <= capacity {
            true => Ok(()),
            false => Err(Error::Full { path: path.to_path_buf(), needed: more }),
        }
    }

    /// The file has no bytes but those that were synced.
    fn drop_unsynced(&mut self, file: FileNumber) {
        const PIECE_BYTES: usize = 512;
        let synced = self.synced.get(&file).cloned().unwrap_or_default();
        let now = self.content(file).clone();
        if now.len() != synced.len() {
            self.set_len(file, synced.len());
        }
        let (mut old, mut new) = ([0; PIECE_BYTES], [0; PIECE_BYTES]);
        for offset in (0..synced.len()).step_by(PIECE_BYTES) {
            let n = (synced.len() - offset).min(PIECE_BYTES as u64) as usize;
            let there = now.read(offset, &mut new[..n]);
            if synced.read(offset, &mut old[..n]) && !(there && old[..n] == new[..n]) {
                self.write(file, offset, &old[..n], false);
            }
        }
    }

    fn children<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a Path, Node)> {
        self.names.below(dir).filter(move |(path, _)| path.parent() == Some(dir))
    }
}

impl CrashVfs {
    /// The files of `disk`.
    pub fn new(disk: &Disk) -> CrashVfs {
        let (names, files) = disk.view();
        CrashVfs::with(names, files, disk.last_file() + 1)
    }

    fn with(names: Names, files: BTreeMap<FileNumber, Content>, next_file: FileNumber) -> CrashVfs {
        let state = State {
            log: Vec::new(),
            names,
            files,
            next_file,
            locked: BTreeMap::new(),
            faults: Faults::default(),
            capacity: None,
            peak: 0,
            synced: BTreeMap::new(),
            stale: BTreeMap::new(),
        };
        CrashVfs { state: Arc::new(Mutex::new(state)) }
    }

    /// From now on the operations of the plan are struck; none if there is no plan.
    pub fn plan(&self, plan: Option<Plan>) {
        let mut state = self.state();
        state.faults.plan(plan);
        state.synced = match state.faults.planned(Fault::SyncDrops) {
            true => state.files.clone(),
            false => BTreeMap::new(),
        };
    }

    /// How many operations there have been that the fault can strike.
    pub fn count(&self, fault: Fault) -> u64 {
        self.state().faults.count(fault.classes())
    }

    /// The operations that have been struck.
    pub fn strikes(&self) -> Vec<Strike> {
        self.state().faults.strikes().to_vec()
    }

    /// After so many more operations the store counts as hanging: the next one panics.
    pub fn set_patience(&self, operations: Option<u64>) {
        self.state().faults.patience = operations;
    }

    /// Limits how many bytes the files may have together.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// The most bytes that the files that have a name have had together.
    pub fn peak_bytes(&self) -> u64 {
        self.state().peak
    }

    /// How many names there are below a directory.
    pub fn names_below(&self, dir: &str) -> usize {
        let dir = key(Path::new(dir));
        self.state().names.below(&dir).count()
    }

    /// A copy of what has been recorded.
    pub fn log(&self) -> Vec<Op> {
        self.state().log.clone()
    }

    /// Counts an operation that fails or does not: there is no third way for it to be struck.
    fn meet(&self, class: Class, op: &'static str, path: &Path) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let at = state.log.len();
        match state.faults.meet(class, op, path, at) {
            Some(fault) => Err(fault.error(op, path, None, 0)),
            None => Ok(state),
        }
    }

    /// What all names, and all bytes of all files, come to.
    pub fn fingerprint(&self) -> u64 {
        let state = self.state();
        disk::fingerprint_of(&state.names, &state.files)
    }

    /// Files with these names and bytes.
    pub fn of_files(names: Names, files: BTreeMap<FileNumber, Content>) -> CrashVfs {
        let next_file = files.keys().next_back().map_or(1, |last| last + 1);
        CrashVfs::with(names, files, next_file)
    }

    /// What a process sees now: names and bytes.
    pub fn view(&self) -> (Names, BTreeMap<FileNumber, Content>) {
        let state = self.state();
        (state.names.clone(), state.files.clone())
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
        let mut state = self.meet(Class::Name, "create", path)?;
        let file = named("create", path, state.add_file(key(path)))?;
        Ok(Arc::new(self.handle(file, path, true)))
    }

    fn open(&self, path: &Path, _access: Access, writable: bool) -> Result<Arc<dyn File>> {
        let file = named("open", path, self.meet(Class::Lookup, "open", path)?.file(&key(path)))?;
        Ok(Arc::new(self.handle(file, path, writable)))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        if len == 0 {
            let what = format!("{} is to be mapped and has no bytes", path.display());
            return Err(Error::InvalidArgument { what });
        }
        let mut state = self.meet(Class::Reserve, "reserve", path)?;
        let file = named("create", path, state.add_file(key(path)))?;
        if let Err(full) = state.check_room(path, file, len) {
            state.change_names(vec![(key(path), None)]);
            return Err(full);
        }
        state.set_len(file, len);
        Ok(Arc::new(Mapped::new(self.handle(file, path, true), len)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from_key, to_key) = (key(from), key(to));
        let mut state = self.meet(Class::Name, "rename", from)?;
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
        let mut state = self.meet(Class::Remove, "remove", path)?;
        named("remove", path, state.file(&key))?;
        state.change_names(vec![(key, None)]);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let to_key = key(to);
        let mut state = self.meet(Class::Name, "link", to)?;
        let file = named("link", from, state.file(&key(from)))?;
        named("link", to, state.check_free(&to_key))?;
        state.change_names(vec![(to_key, Some(Node::File(file)))]);
        Ok(())
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut state = self.meet(Class::Name, "create directory", path)?;
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
        let mut state = self.meet(Class::Remove, "remove directory", path)?;
        named("remove directory", path, state.check_dir(&key))?;
        if state.children(&key).next().is_some() {
            return named("remove directory", path, Err(io::ErrorKind::DirectoryNotEmpty.into()));
        }
        state.change_names(vec![(key, None)]);
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let key = key(path);
        let state = self.meet(Class::Lookup, "list", path)?;
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
        let state = self.meet(Class::Lookup, "look up", path)?;
        Ok(is_root(&key) || state.names.contains(&key))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        let dir = key(path);
        let mut state = self.state();
        let at = state.log.len();
        let fault = state.faults.meet(Class::Sync, "sync directory", path, at);
        named("sync directory", path, state.check_dir(&dir))?;
        // No file system takes a directory for synced that was not: it gives up instead.
        if fault.is_none() {
            state.log.push(Op::SyncDir { dir });
        }
        fault.map_or(Ok(()), |fault| Err(fault.error("sync directory", path, None, 0)))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let key = key(path);
        let mut state = self.meet(Class::Lookup, "lock", path)?;
        let file = match state.file(&key) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => state.add_file(key.clone()),
            found => found,
        };
        named("lock", path, file)?;
        if let Some(count) = state.locked.get(&key) {
            return Err(locked(path, *count));
        }
        state.locked.insert(key.clone(), 0);
        Ok(Box::new(Held { vfs: self.clone(), key }))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let key = key(path);
        let mut state = self.meet(Class::Lookup, "lock", path)?;
        named("lock", path, state.check_parent(&key))?;
        match state.locked.get_mut(&key) {
            Some(0) => return Err(locked(path, 0)),
            Some(count) => *count += 1,
            None => {
                state.locked.insert(key.clone(), 1);
            }
        }
        Ok(Box::new(Held { vfs: self.clone(), key }))
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::default())
    }
}

fn locked(path: &Path, readers: usize) -> Error {
    let holder = match readers {
        0 => format!(" by process {}", std::process::id()),
        _ => " for reading".to_string(),
    };
    Error::Locked { path: path.to_path_buf(), holder: Some(holder) }
}
