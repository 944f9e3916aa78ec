//! [`SplitVfs`]: a store's directory of which some files are in another directory, on persistent memory.
//!
//! Invariants:
//! 1. Whoever uses the directory sees one directory: the files of both. Errors of the file system name a file where it is;
//!    others name it as if it were in the store's directory.
//! 2. A file that belongs on the persistent memory is created there. One of an earlier time that is in the store's own
//!    directory is read, changed and removed there.
//! 3. What makes names of the directory durable makes those of both durable.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::emulated::EmulatedFile;
use crate::base::error::Result;
use crate::base::planted::{Bug, planted};
use crate::vfs::{
    Access, DirEntry, DiskSpace, File, IoQueue, Lock, MappedFile, MemoryDelay, OpenFiles,
    ReadRequest, Vfs,
};

/// See the module's description.
#[derive(Debug)]
pub(crate) struct SplitVfs {
    below: Arc<dyn Vfs>,
    /// The store's directory.
    dir: PathBuf,
    /// The one on persistent memory.
    memory_dir: PathBuf,
    /// Whether a file of this name belongs on the persistent memory.
    belongs: fn(&str) -> bool,
    /// If the memory is emulated.
    delay: Option<Arc<dyn MemoryDelay>>,
}

impl SplitVfs {
    /// The file system `below`, where files of the directory `dir` whose names belong there are in `memory_dir`.
    pub(crate) fn new(
        below: Arc<dyn Vfs>,
        (dir, memory_dir): (&Path, &Path),
        belongs: fn(&str) -> bool,
        delay: Option<Arc<dyn MemoryDelay>>,
    ) -> SplitVfs {
        let (dir, memory_dir) = (dir.to_path_buf(), memory_dir.to_path_buf());
        SplitVfs { below, dir, memory_dir, belongs, delay }
    }

    /// Where a file of this name is created.
    fn place<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        let name = path.file_name().and_then(|name| name.to_str());
        match name {
            Some(name) if path.parent() == Some(&*self.dir) && (self.belongs)(name) => {
                Cow::Owned(self.memory_dir.join(name))
            }
            _ => Cow::Borrowed(path),
        }
    }

    /// Where a file of this name is; if there is none, where it would be created.
    fn found<'a>(&self, path: &'a Path) -> Result<Cow<'a, Path>> {
        let place = self.place(path);
        if *place != *path && !self.below.exists(&place)? && self.below.exists(path)? {
            return Ok(Cow::Borrowed(path));
        }
        Ok(place)
    }

    /// Adds what is on the persistent memory to what is in the directory.
    fn join<T>(
        &self,
        path: &Path,
        list: impl Fn(&Path) -> Result<Vec<T>>,
        name: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>> {
        let mut entries = list(path)?;
        if path == self.dir {
            let there = list(&self.memory_dir)?.into_iter();
            entries.extend(there.filter(|entry| (self.belongs)(name(entry))));
            // Stable: of two files of one name, the one on the persistent memory is used and comes last.
            entries.sort_by(|a, b| name(a).cmp(name(b)));
            entries.reverse();
            entries.dedup_by(|a, b| name(a) == name(b));
            entries.reverse();
        }
        Ok(entries)
    }
}

impl Vfs for SplitVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        self.below.create(&self.place(path), access)
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        self.below.open(&self.found(path)?, access, writable)
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        let place = self.place(path);
        let file = self.below.create_mapped(&place, len)?;
        Ok(match &self.delay {
            Some(delay) if *place != *path => Arc::new(EmulatedFile::new(file, Arc::clone(delay))),
            _ => file,
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.below.rename(&self.found(from)?, &self.place(to))
    }

    fn exchange(&self, a: &Path, b: &Path) -> Result<()> {
        self.below.exchange(&self.found(a)?, &self.found(b)?)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let found = self.found(path)?;
        // An older one of the same name must not come back.
        if *found != *path && self.below.exists(path)? {
            self.below.remove(path)?;
        }
        self.below.remove(&found)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.below.hard_link(&self.found(from)?, &self.place(to))
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.below.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.below.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.join(path, |path| self.below.read_dir(path), |entry| &entry.name)
    }

    fn read_names(&self, path: &Path) -> Result<Vec<String>> {
        self.join(path, |path| self.below.read_names(path), |name| name)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.below.exists(&self.found(path)?)
    }

    fn canonical(&self, path: &Path) -> Result<PathBuf> {
        self.below.canonical(path)
    }

    fn space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        self.below.space(path)
    }

    fn journal_space(&self, dir: &Path) -> Result<Option<DiskSpace>> {
        self.below.space(if *dir == *self.dir { &self.memory_dir } else { dir })
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        if path == self.dir && !planted(Bug::MemoryNamesNotSynced) {
            self.below.sync_dir(&self.memory_dir)?;
        }
        self.below.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.below.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.below.lock_shared(path)
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.below.read_batch(requests);
    }

    fn maps_files(&self) -> bool {
        self.below.maps_files()
    }

    fn mount_number(&self, dir: &Path) -> Option<u64> {
        let number = self.below.mount_number(dir)?;
        match dir == self.dir {
            // A file is in either: it has what was stored if neither has changed.
            true => Some(number.rotate_left(7) ^ self.below.mount_number(&self.memory_dir)?),
            false => Some(number),
        }
    }

    fn memory_delay(&self) -> Option<Arc<dyn MemoryDelay>> {
        self.delay.clone()
    }

    fn open_files(&self) -> OpenFiles {
        self.below.open_files()
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.below.io_queue(depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::MemoryVfs;

    fn belongs(name: &str) -> bool {
        name.starts_with("journal-")
    }

    fn split() -> (MemoryVfs, SplitVfs) {
        let below = MemoryVfs::new();
        let dirs = (Path::new("/store"), Path::new("/memory"));
        for dir in [dirs.0, dirs.1] {
            below.create_dir_all(dir).unwrap();
        }
        let vfs = SplitVfs::new(Arc::new(below.clone()), dirs, belongs, None);
        (below, vfs)
    }

    fn put(vfs: &dyn Vfs, path: &str, bytes: &[u8]) {
        vfs.create(Path::new(path), Access::Buffered).unwrap().write_at(0, bytes).unwrap();
    }

    fn byte(vfs: &dyn Vfs, path: &str) -> u8 {
        let mut bytes = [0];
        let file = vfs.open(Path::new(path), Access::Buffered, false).unwrap();
        file.read_at(0, &mut bytes).unwrap();
        bytes[0]
    }

    #[test]
    fn two_directories_are_seen_as_one() {
        let (below, vfs) = split();
        put(&below, "/store/journal-1", b"a");
        put(&below, "/memory/stranger", b"x");
        put(&vfs, "/store/table", b"t");
        put(&vfs, "/store/journal-2", b"b");
        drop(vfs.create_mapped(Path::new("/store/journal-3"), 10).unwrap());
        let names = |path| below.read_names(Path::new(path)).unwrap();
        assert_eq!(names("/store"), ["journal-1", "table"]);
        assert_eq!(names("/memory"), ["journal-2", "journal-3", "stranger"]);
        let store = Path::new("/store");
        let all = ["journal-1", "journal-2", "journal-3", "table"];
        assert_eq!(vfs.read_names(store).unwrap(), all);
        let entries = vfs.read_dir(store).unwrap();
        let entries: Vec<_> = entries.iter().map(|entry| (&*entry.name, entry.len)).collect();
        assert_eq!(entries, [(all[0], 1), (all[1], 1), (all[2], 10), (all[3], 1)]);
        assert_eq!((byte(&vfs, "/store/journal-1"), byte(&vfs, "/store/journal-2")), (b'a', b'b'));
        for name in ["journal-1", "journal-2"] {
            assert!(vfs.exists(&store.join(name)).unwrap());
            vfs.remove(&store.join(name)).unwrap();
            assert!(!vfs.exists(&store.join(name)).unwrap());
        }
        assert_eq!((names("/store"), names("/memory").len()), (vec!["table".to_string()], 2));
        vfs.sync_dir(store).unwrap();
    }

    /// As a directory has it that was copied with the files of its persistent memory.
    #[test]
    fn of_two_files_of_one_name_the_one_on_the_memory_is_used() {
        let (below, vfs) = split();
        put(&below, "/store/journal-1", b"old");
        put(&below, "/memory/journal-1", b"newer");
        let entries = vfs.read_dir(Path::new("/store")).unwrap();
        assert_eq!((entries.len(), entries[0].len), (1, 5));
        assert_eq!(byte(&vfs, "/store/journal-1"), b'n');
        vfs.remove(Path::new("/store/journal-1")).unwrap();
        assert!(!vfs.exists(Path::new("/store/journal-1")).unwrap());
        assert!(vfs.read_names(Path::new("/store")).unwrap().is_empty());
    }
}
