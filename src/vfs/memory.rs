//! [`MemoryVfs`]: a file system in memory, for tests and in-memory stores.
//!
//! Invariants:
//! 1. Names behave as on a POSIX file system, including the kinds of errors: a rename replaces its
//!    target, an open file outlives its last name, and hard links share their bytes.
//! 2. No call reaches the operating system, so code that uses it runs anywhere and under Miri.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::blocking_queue::BlockingQueue;
use super::memory_file::{Inode, MemoryFile, MemoryMapped, Space};
use super::{Access, DirEntry, DiskSpace, File, IoQueue, Lock, MappedFile, Vfs, io_error};
use crate::base::error::{Error, Result};
use crate::base::sync::plain::{AtomicBool, AtomicU64, Ordering};
use crate::base::sync::{Mutex, MutexGuard};

/// Files in memory. Clones share them; they are gone with the last clone and the last open handle.
///
/// Paths are taken from the root, whether they begin with `/` or not.
///
/// ```
/// use std::path::Path;
/// use spinney::vfs::{Access, MemoryVfs, Vfs};
///
/// # fn main() -> spinney::Result<()> {
/// let vfs = MemoryVfs::new();
/// vfs.create_dir_all(Path::new("/store"))?;
/// let file = vfs.create(Path::new("/store/greeting"), Access::Buffered)?;
/// file.write_at(0, b"hello")?;
/// assert_eq!(vfs.read_dir(Path::new("/store"))?[0].name, "greeting");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MemoryVfs {
    /// By path from the root; the root itself is not in it.
    nodes: Arc<Mutex<Nodes>>,
    locks: Arc<Mutex<Locks>>,
    space: Arc<Space>,
}

/// The locked paths: shared by so many, or exclusive.
type Locks = BTreeMap<PathBuf, Held>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Alone,
    Shared(usize),
}

type Nodes = BTreeMap<PathBuf, Node>;

#[derive(Debug, Clone)]
enum Node {
    Dir,
    File(Arc<Inode>),
}

impl Default for MemoryVfs {
    fn default() -> MemoryVfs {
        MemoryVfs::new()
    }
}

impl MemoryVfs {
    /// An empty file system, limited only by the machine's memory.
    pub fn new() -> MemoryVfs {
        MemoryVfs::with_capacity(u64::MAX)
    }

    /// As [`MemoryVfs::new`], and writes fail with [`Error::Full`] once the files' lengths would
    /// sum to more than `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: u64) -> MemoryVfs {
        MemoryVfs {
            nodes: Arc::default(),
            locks: Arc::default(),
            space: Arc::new(Space { capacity: capacity_bytes, used: AtomicU64::new(0) }),
        }
    }

    /// The total length of all files that have a name or an open handle.
    pub fn used_bytes(&self) -> u64 {
        self.space.used.load(Ordering::SeqCst)
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    /// Adds a file that must not exist yet.
    fn add_file(&self, path: &Path) -> io::Result<Arc<Inode>> {
        let key = key(path);
        let mut nodes = self.nodes();
        check_free(&nodes, &key)?;
        let inode = Inode::new(&self.space);
        nodes.insert(key, Node::File(Arc::clone(&inode)));
        Ok(inode)
    }

    fn find_file(&self, path: &Path) -> io::Result<Arc<Inode>> {
        let key = key(path);
        let nodes = self.nodes();
        check_parent(&nodes, &key)?;
        file_at(&nodes, &key)
    }
}

/// The normalised path from the root.
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

fn check_dir(nodes: &Nodes, key: &Path) -> io::Result<()> {
    match nodes.get(key) {
        _ if is_root(key) => Ok(()),
        Some(Node::Dir) => Ok(()),
        Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
        None => {
            check_parent(nodes, key)?;
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

/// Whether the directory of `key` exists and is one.
fn check_parent(nodes: &Nodes, key: &Path) -> io::Result<()> {
    key.parent().map_or(Ok(()), |parent| check_dir(nodes, parent))
}

/// Whether a name can be created.
fn check_free(nodes: &Nodes, key: &Path) -> io::Result<()> {
    check_parent(nodes, key)?;
    if is_root(key) || nodes.contains_key(key) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(())
}

fn file_at(nodes: &Nodes, key: &Path) -> io::Result<Arc<Inode>> {
    match nodes.get(key) {
        Some(Node::File(inode)) => Ok(Arc::clone(inode)),
        Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
        None if is_root(key) => Err(io::ErrorKind::IsADirectory.into()),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The names below a directory, at any depth.
fn below<'a>(nodes: &'a Nodes, dir: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
    // Paths compare by their components, so what is below a directory follows it directly.
    nodes
        .range(dir.to_path_buf()..)
        .skip_while(move |(key, _)| key.as_path() == dir)
        .take_while(move |(key, _)| key.starts_with(dir))
}

fn rename(nodes: &mut Nodes, from: &Path, to: &Path) -> io::Result<()> {
    check_parent(nodes, from)?;
    check_parent(nodes, to)?;
    let moved = nodes.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
    match (&moved, nodes.get(to)) {
        _ if is_root(to) => return Err(io::ErrorKind::ResourceBusy.into()),
        (Node::File(a), Some(Node::File(b))) if Arc::ptr_eq(a, b) => return Ok(()),
        (Node::File(_), Some(Node::Dir)) => return Err(io::ErrorKind::IsADirectory.into()),
        (Node::Dir, Some(Node::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
        (Node::Dir, Some(Node::Dir)) if from == to => return Ok(()),
        (Node::Dir, _) if to.starts_with(from) => return Err(io::ErrorKind::InvalidInput.into()),
        (Node::Dir, Some(Node::Dir)) if below(nodes, to).next().is_some() => {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        _ => {}
    }
    let keys: Vec<PathBuf> = below(nodes, from).map(|(key, _)| key.clone()).collect();
    for key in keys {
        if let Ok(rest) = key.strip_prefix(from)
            && let Some(node) = nodes.remove(&key)
        {
            nodes.insert(to.join(rest), node);
        }
    }
    nodes.remove(from);
    nodes.insert(to.to_path_buf(), moved);
    Ok(())
}

/// Exchanges two existing names, neither inside the other.
fn exchange(nodes: &mut Nodes, a: &Path, b: &Path) -> io::Result<()> {
    if !nodes.contains_key(a) || !nodes.contains_key(b) {
        return Err(io::ErrorKind::NotFound.into());
    }
    if is_root(a) || is_root(b) || (a != b && (a.starts_with(b) || b.starts_with(a))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut moved = Vec::new();
    for (from, to) in [(a, b), (b, a)] {
        let inside = below(nodes, from).map(|(key, _)| key.clone());
        let keys: Vec<PathBuf> = inside.chain([from.to_path_buf()]).collect();
        for key in keys {
            let Ok(rest) = key.strip_prefix(from) else { continue };
            // Joining an empty path would add a slash.
            let name = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
            moved.extend(nodes.remove(&key).map(|node| (name, node)));
        }
    }
    nodes.extend(moved);
    Ok(())
}

/// Adds the path to the error of an operation on a name.
fn named<T>(op: &'static str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::io(op, path, None, e))
}

impl Vfs for MemoryVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        let inode = named("create", path, self.add_file(path))?;
        Ok(Arc::new(MemoryFile { inode, path: path.to_path_buf(), access, writable: true }))
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        let inode = named("open", path, self.find_file(path))?;
        Ok(Arc::new(MemoryFile { inode, path: path.to_path_buf(), access, writable }))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        if len == 0 {
            return Err(Error::invalid("a mapped file of 0 bytes"));
        }
        let inode = named("create", path, self.add_file(path))?;
        if let Err(e) = inode.set_len(len) {
            self.nodes().remove(&key(path));
            return Err(io_error("reserve", path, None, len, e));
        }
        let path = path.to_path_buf();
        Ok(Arc::new(MemoryMapped { inode, path, len, sealed: AtomicBool::new(false) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        named("rename", from, rename(&mut self.nodes(), &key(from), &key(to)))
    }

    fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        named("exchange", a, exchange(&mut self.nodes(), &key(a), &key(b)))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut nodes = self.nodes();
        let found = check_parent(&nodes, &key).and_then(|()| file_at(&nodes, &key));
        named("remove", path, found)?;
        nodes.remove(&key);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        let (from_key, to_key) = (key(from), key(to));
        let mut nodes = self.nodes();
        let found = check_parent(&nodes, &from_key)
            .and_then(|()| file_at(&nodes, &from_key))
            .map_err(|e| match e.kind() {
                io::ErrorKind::IsADirectory => io::ErrorKind::PermissionDenied.into(),
                _ => e,
            })
            .and_then(|inode| check_free(&nodes, &to_key).map(|()| inode));
        let inode = named("link", to, found)?;
        nodes.insert(to_key, Node::File(inode));
        Ok(())
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut nodes = self.nodes();
        for dir in key.ancestors().filter(|dir| !is_root(dir)).collect::<Vec<_>>().iter().rev() {
            match nodes.get(*dir) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => {
                    let last = *dir == key;
                    let kind = if last {
                        io::ErrorKind::AlreadyExists
                    } else {
                        io::ErrorKind::NotADirectory
                    };
                    return named("create directory", path, Err(kind.into()));
                }
                None => {
                    nodes.insert(dir.to_path_buf(), Node::Dir);
                }
            }
        }
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        let key = key(path);
        let mut nodes = self.nodes();
        let removable = check_dir(&nodes, &key).and_then(|()| {
            if is_root(&key) || below(&nodes, &key).next().is_some() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            Ok(())
        });
        named("remove directory", path, removable)?;
        nodes.remove(&key);
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let key = key(path);
        let nodes = self.nodes();
        named("list", path, check_dir(&nodes, &key))?;
        let mut entries: Vec<DirEntry> = below(&nodes, &key)
            .filter(|(child, _)| child.parent() == Some(&key))
            .filter_map(|(child, node)| {
                let name = child.file_name()?.to_string_lossy().into_owned();
                let (len, is_dir) = match node {
                    Node::Dir => (0, true),
                    Node::File(inode) => (inode.len(), false),
                };
                Some(DirEntry { name, len, is_dir })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        let key = key(path);
        Ok(is_root(&key) || self.nodes().contains_key(&key))
    }

    fn space(&self, _: &Path) -> Result<Option<DiskSpace>> {
        let capacity = self.space.capacity;
        let available_bytes = capacity.saturating_sub(self.used_bytes());
        Ok((capacity < u64::MAX).then_some(DiskSpace { available_bytes, total_bytes: capacity }))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        crate::base::held::refuse("the sync of a directory");
        named("sync directory", path, check_dir(&self.nodes(), &key(path)))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let inode = match self.find_file(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Another thread may have created it in the meantime.
                self.add_file(path).or_else(|_| self.find_file(path))
            }
            found => found,
        };
        named("lock", path, inode)?;
        self.hold(path, |held| held.is_none().then_some(Held::Alone))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let parent = check_parent(&self.nodes(), &key(path));
        named("lock", path, parent)?;
        self.hold(path, |held| match held {
            None => Some(Held::Shared(1)),
            Some(Held::Shared(count)) => Some(Held::Shared(count + 1)),
            Some(Held::Alone) => None,
        })
    }

    fn io_queue(&self, _depth: usize) -> Box<dyn IoQueue> {
        Box::new(BlockingQueue::default())
    }
}

impl MemoryVfs {
    /// Takes a lock if `change` allows it.
    fn hold(
        &self,
        path: &Path,
        change: impl FnOnce(Option<Held>) -> Option<Held>,
    ) -> Result<Box<dyn Lock>> {
        let key = key(path);
        let mut locks = self.locks.lock();
        let held = locks.get(&key).copied();
        let Some(now) = change(held) else {
            let holder = match held {
                Some(Held::Shared(_)) => " for reading".to_string(),
                _ => format!(" by process {}", std::process::id()),
            };
            return Err(Error::Locked { path: path.to_path_buf(), holder: Some(holder) });
        };
        locks.insert(key.clone(), now);
        Ok(Box::new(MemoryLock { locks: Arc::clone(&self.locks), key }))
    }
}

#[derive(Debug)]
struct MemoryLock {
    locks: Arc<Mutex<Locks>>,
    key: PathBuf,
}

impl Lock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        match locks.get_mut(&self.key) {
            Some(Held::Shared(count)) if *count > 1 => *count -= 1,
            _ => {
                locks.remove(&self.key);
            }
        }
    }
}
