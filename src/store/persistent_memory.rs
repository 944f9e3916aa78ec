//! Persistent memory: a directory beside the store's own, where its journal is and the indexes of its `slm` keyspaces are
//! (`docs/format/persistent-memory.md`).
//!
//! Invariants:
//! 1. Of two directories that belong together, each says the store's number, how often the store has got another
//!    directory, and the path of the other. The memory's says so durably before the store's does, and both before a file
//!    of the store is created there.
//! 2. A store that has such a directory is not opened without it, nor with an older one or that of another store: its
//!    newest commits may be there. Only who salvages the journal may do without, and only if it is not there.
//! 3. Who opens the store has the lock of both directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::options::Builder;
use crate::base::checksum::checksum;
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::cache::{DataFiles, FileType};
use crate::jobs::Clock;
use crate::journal::SegmentId;
use crate::manifest::{LOCK_FILE_NAME, SUPERBLOCK_FILE_NAME};
use crate::pmem::{Delay, EmulatedMemory, SplitVfs};
use crate::vfs::{Access, Lock, MemoryDelay, Vfs, create_dir_durably, sync_parent};

/// The name of the file that says which two directories belong together, in both.
pub(crate) const FILE_NAME: &str = "MEMORY";
/// Its name until it is complete.
const NEW_FILE_NAME: &str = "MEMORY.new";
const MAGIC: [u8; 8] = *b"SPINMEMO";
const VERSION: u32 = 1;
/// Longer paths are refused.
const PATH_BYTES_MAX: usize = 4096;
const FIXED_BYTES: usize = 40;

/// A directory on persistent memory, for [`Builder::persistent_memory`].
///
/// ```
/// use spinney::{EmulatedMemory, PersistentMemory};
/// let memory = PersistentMemory::at("/mnt/pmem0/my.store");
/// let as_in_the_paper = memory.emulated(EmulatedMemory { fence_nanos: 500, ..Default::default() });
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentMemory {
    path: PathBuf,
    emulated: Option<EmulatedMemory>,
}

impl PersistentMemory {
    /// The directory `path`, which is created if need be. It is for one store alone.
    pub fn at(path: impl AsRef<Path>) -> PersistentMemory {
        PersistentMemory { path: path.as_ref().to_path_buf(), emulated: None }
    }

    /// For measurements: takes any directory for persistent memory, best one in memory such as `/dev/shm`, and makes it as
    /// slow as the paper's evaluation does (SLM-DB, section 6.1).
    ///
    /// **A commit with [`Durability::Sync`](crate::Durability::Sync) does not survive a power loss then**, and the store may
    /// not be opened after one without [`Builder::salvage_journal`].
    pub fn emulated(mut self, memory: EmulatedMemory) -> PersistentMemory {
        self.emulated = Some(memory);
        self
    }
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mate {
    store_id: u64,
    /// The same in both: it rises when the store gets another directory.
    generation: u64,
    /// The other directory.
    path: PathBuf,
}

impl Mate {
    fn encode(&self) -> Result<Vec<u8>> {
        let path = self.path.to_str().filter(|path| path.len() <= PATH_BYTES_MAX);
        let path = path.ok_or_else(|| {
            let shown = self.path.display();
            let most = PATH_BYTES_MAX;
            Error::invalid(format!("{shown} is no path of UTF-8 with at most {most} bytes"))
        })?;
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(path.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.store_id.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(path.as_bytes());
        let sum = checksum(0, &out);
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    fn decode(bytes: &[u8], file: &Path) -> Result<Mate> {
        let mut from = Decoder::new(bytes, file, 0);
        from.magic(&MAGIC, "persistent memory magic")?;
        let body = bytes.len().checked_sub(8).and_then(|end| bytes.split_at_checked(end));
        // Before the version: a changed bit in it is no other version.
        if body.is_none_or(|(body, sum)| checksum(0, body).to_le_bytes() != sum) {
            let what = "persistent memory";
            return Err(Error::corruption(file, 0, what, "its checksum", "another"));
        }
        from.version(VERSION, "persistent memory version")?;
        let path_bytes = from.u32("length of a path")? as usize;
        let store_id = from.u64("store id")?;
        let generation = from.u64("generation")?;
        let path = String::from_utf8_lossy(from.take(path_bytes, "path")?).into_owned();
        Ok(Mate { store_id, generation, path: PathBuf::from(path) })
    }

    /// Reads the file in `dir`, if there is one.
    fn read(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Mate>> {
        let path = dir.join(FILE_NAME);
        if !vfs.exists(&path)? {
            return Ok(None);
        }
        let file = vfs.open(&path, Access::Buffered, false)?;
        let bytes = file.len()?;
        if bytes > (FIXED_BYTES + PATH_BYTES_MAX) as u64 {
            let most = format_args!("at most {} bytes", FIXED_BYTES + PATH_BYTES_MAX);
            return Err(Error::corruption(&path, 0, "persistent memory", most, bytes));
        }
        let mut contents = vec![0; bytes as usize];
        file.read_at(0, &mut contents)?;
        Mate::decode(&contents, &path).map(Some)
    }

    /// Writes the file in `dir` durably.
    fn write(&self, vfs: &dyn Vfs, dir: &Path) -> Result<()> {
        let (path, new_path) = (dir.join(FILE_NAME), dir.join(NEW_FILE_NAME));
        let contents = self.encode()?;
        if vfs.exists(&new_path)? {
            vfs.remove(&new_path)?;
        }
        let file = vfs.create(&new_path, Access::Buffered)?;
        file.write_at(0, &contents)?;
        if !planted(Bug::MemoryFileNotSynced) {
            file.sync()?;
        }
        vfs.rename(&new_path, &path)?;
        vfs.sync_dir(dir)
    }
}

/// Whether a file of this name belongs on the persistent memory.
fn belongs(name: &str) -> bool {
    let of_tree = DataFiles::parse_name(name);
    of_tree.is_some_and(|(_, file_type)| file_type == FileType::LocationIndex)
        || SegmentId::parse(name).is_some()
}

/// The lock of the store, and that of its persistent memory. Who waits for the store's finds the other free.
#[derive(Debug)]
struct Locks {
    _memory: Box<dyn Lock>,
    _store: Box<dyn Lock>,
}

impl Lock for Locks {}

/// A store with its persistent memory, if it has any.
pub(super) struct Attached {
    pub(super) vfs: Arc<dyn Vfs>,
    pub(super) lock: Box<dyn Lock>,
    /// The persistent memory is lost, and the user does without.
    pub(super) lost: Option<Error>,
}

/// The store's file system with its persistent memory, and the lock of both. Without persistent memory, what was given.
///
/// # Errors
/// `InvalidArgument` if the persistent memory is missing, or is inside the store; `Conflict` if the directory is of another
/// store, or one that the store has had earlier; `Corruption`; `Locked`; `Io`; `Full`.
pub(super) fn attach(
    builder: &Builder,
    vfs: Arc<dyn Vfs>,
    lock: Box<dyn Lock>,
    store_id: u64,
    read_only: bool,
) -> Result<Attached> {
    let dir = &builder.path;
    // What was copied into this directory from another store's says nothing of this one.
    let known = Mate::read(&*vfs, dir)?.filter(|known| known.store_id == store_id);
    let chosen = match &builder.persistent_memory {
        Some(memory) => Some(vfs.canonical(&memory.path)?),
        None => None,
    };
    let memory_dir = chosen.or_else(|| known.as_ref().map(|known| known.path.clone()));
    let Some(memory_dir) = memory_dir else {
        return Ok(Attached { vfs, lock, lost: None });
    };
    let place = vfs.canonical(dir)?;
    if memory_dir.starts_with(&place) {
        return Err(Error::invalid(format!(
            "{} is inside the store itself; name a directory elsewhere for its persistent memory",
            memory_dir.display()
        )));
    }
    let salvage = builder.salvage && !read_only;
    let (place, at) = (&*place, &*memory_dir);
    let shared = Shared { vfs: &*vfs, dir, place, memory_dir: at, store_id, salvage };
    let found = shared.find(known.as_ref())?;
    let mut lost = None;
    if found.is_none()
        && let Some(known) = &known
    {
        let missing = shared.missing(known, read_only);
        if !salvage {
            return Err(missing);
        }
        lost = Some(missing);
    }
    if found.is_none() && read_only {
        // It gets its persistent memory from the next opening for writing.
        return Ok(Attached { vfs, lock, lost });
    }
    let lock_path = memory_dir.join(LOCK_FILE_NAME);
    let memory_lock = match read_only {
        true => vfs.lock_shared(&lock_path)?,
        false => {
            create_dir_durably(&*vfs, &memory_dir)?;
            vfs.lock(&lock_path)?
        }
    };
    // Somebody else may have had it until now.
    let found = shared.find(known.as_ref())?;
    if !read_only {
        shared.claim(known.as_ref(), found)?;
    }
    let delay = builder.persistent_memory.as_ref().and_then(|memory| memory.emulated);
    let delay = delay.map(|memory| {
        let clock = if builder.is_stepped() { Clock::simulated() } else { Clock::real() };
        Arc::new(Delay::new(memory, Arc::new(clock))) as Arc<dyn MemoryDelay>
    });
    let split = SplitVfs::new(vfs, (dir, &memory_dir), belongs, delay);
    let lock = Box::new(Locks { _memory: memory_lock, _store: lock });
    Ok(Attached { vfs: Arc::new(split), lock, lost })
}

/// A store and the directory that is to be its persistent memory.
struct Shared<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    /// The same, without links.
    place: &'a Path,
    memory_dir: &'a Path,
    store_id: u64,
    /// The user takes what is left.
    salvage: bool,
}

impl Shared<'_> {
    fn conflict<T>(&self, what: std::fmt::Arguments<'_>) -> Result<T> {
        let memory_dir = self.memory_dir.display();
        Err(Error::Conflict { what: format!("{memory_dir} {what}") })
    }

    /// What the directory says, if it is the store's persistent memory; `None` if it may become that.
    fn find(&self, known: Option<&Mate>) -> Result<Option<Mate>> {
        let (vfs, memory_dir) = (self.vfs, self.memory_dir);
        let found = match vfs.exists(memory_dir)? {
            true => Mate::read(vfs, memory_dir)?,
            false => None,
        };
        if let Some(known) = known.filter(|known| known.path != *memory_dir)
            && vfs.exists(&known.path)?
            && Mate::read(vfs, &known.path)?.is_some_and(|at| at.store_id == self.store_id)
        {
            return self.conflict(format_args!(
                "is named as persistent memory, but that of {} is in {}; leave the name out, or close the store and move \
                 the directory first",
                self.dir.display(),
                known.path.display()
            ));
        }
        let Some(found) = found else {
            if self.salvage && known.is_some_and(|known| known.path == *memory_dir) {
                return Ok(None);
            }
            let names = match vfs.exists(memory_dir)? {
                true => vfs.read_names(memory_dir)?,
                false => Vec::new(),
            };
            return match names.iter().find(|name| *name == SUPERBLOCK_FILE_NAME || belongs(name)) {
                None => Ok(None),
                Some(name) => self.conflict(format_args!(
                    "has {name}, which is not of this store; name another directory"
                )),
            };
        };
        if found.store_id != self.store_id {
            return self.conflict(format_args!(
                "is the persistent memory of another store, {} (a store that was repaired counts as another); name another \
                 directory",
                found.path.display()
            ));
        }
        // The store that the directory names may be this one, under an earlier name, or one that this one is a copy of.
        if found.path != *self.place
            && Mate::read(vfs, &found.path)
                .is_ok_and(|it| it.is_some_and(|it| it.store_id == self.store_id))
        {
            return self.conflict(format_args!(
                "is the persistent memory of {}, of which {} is a copy; take a checkpoint instead",
                found.path.display(),
                self.dir.display()
            ));
        }
        match known {
            // The next generation: the store was about to be told.
            Some(known) if !(known.generation..=known.generation + 1).contains(&found.generation) => {
                self.conflict(format_args!(
                    "is a persistent memory that {} has had earlier; it has another now, or a copy of this one",
                    self.dir.display()
                ))
            }
            _ => Ok(Some(found)),
        }
    }

    fn missing(&self, known: &Mate, read_only: bool) -> Error {
        let advice = match read_only {
            true => "",
            false => "; if it is lost, opening with salvage_journal does without it",
        };
        Error::invalid(format!(
            "the journal of {} is on persistent memory in {}, and {} has none of it: make it available there, or name \
             where it is now (Builder::persistent_memory){advice}",
            self.dir.display(),
            known.path.display(),
            self.memory_dir.display()
        ))
    }

    /// Makes both directories say that they belong together. What an earlier process has left need not be durable.
    fn claim(&self, known: Option<&Mate>, found: Option<Mate>) -> Result<()> {
        let Shared { vfs, dir, place, memory_dir, store_id, .. } = *self;
        let is_settled = |known: &Mate, found: &Mate| {
            known.path == *memory_dir
                && found.path == *place
                && known.generation == found.generation
        };
        if let (Some(known), Some(found)) = (known, &found)
            && is_settled(known, found)
        {
            return Ok(());
        }
        let generation = known.map_or(0, |known| known.generation) + 1;
        if !planted(Bug::MemoryNotClaimed) {
            Mate { store_id, generation, path: place.to_path_buf() }.write(vfs, memory_dir)?;
        }
        sync_parent(vfs, memory_dir)?;
        Mate { store_id, generation, path: memory_dir.to_path_buf() }.write(vfs, dir)
    }
}

/// The file system with the persistent memory of a store that may be damaged, as far as that is there, for reading; and what
/// is missing of it.
///
/// # Errors
/// `InvalidArgument` if the user names a directory that is not the store's.
pub(crate) fn attach_what_is_left(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    chosen: Option<&PersistentMemory>,
) -> Result<(Arc<dyn Vfs>, Option<Error>)> {
    let known = match Mate::read(&*vfs, dir) {
        Ok(known) => known,
        Err(error) if chosen.is_none() => return Ok((vfs, Some(error))),
        // The user says that they belong together.
        Err(_) => None,
    };
    let place = match chosen {
        Some(memory) => Some(vfs.canonical(&memory.path)?),
        None => known.as_ref().map(|known| known.path.clone()),
    };
    let Some(place) = place else { return Ok((vfs, None)) };
    let found = Mate::read(&*vfs, &place);
    let is_mate =
        |found: &Mate| known.as_ref().is_none_or(|known| known.store_id == found.store_id);
    match found {
        Ok(Some(found)) if is_mate(&found) => {
            Ok((Arc::new(SplitVfs::new(vfs, (dir, &place), belongs, None)), None))
        }
        _ if chosen.is_some() => Err(Error::invalid(format!(
            "{} has no persistent memory of {}",
            place.display(),
            dir.display()
        ))),
        Err(error) => Ok((vfs, Some(error))),
        Ok(_) => {
            let expected = format_args!("the persistent memory of {}", dir.display());
            let file = place.join(FILE_NAME);
            let error = Error::corruption(&file, 0, "persistent memory", expected, "none of it");
            Ok((vfs, Some(error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::documented::hex_block;
    use crate::vfs::MemoryVfs;

    #[test]
    fn the_worked_example_of_the_format_page_is_what_is_written() {
        let example = hex_block(include_str!("../../docs/format/persistent-memory.md"), 0);
        let path = PathBuf::from("/mnt/pmem0/a");
        let mate = Mate { store_id: 0x0123_4567_89ab_cdef, generation: 1, path };
        assert_eq!(mate.encode().unwrap(), example);
        let file = Path::new("/store/MEMORY");
        assert_eq!(Mate::decode(&example, file).unwrap(), mate);
        for at in 0..example.len() {
            assert!(Mate::decode(&example[..at], file).unwrap_err().is_corruption(), "cut to {at}");
            let mut flipped = example.clone();
            flipped[at] ^= 1;
            assert!(Mate::decode(&flipped, file).unwrap_err().is_corruption(), "byte {at} flipped");
        }
        let mut newer = example[..example.len() - 8].to_vec();
        newer[8] = 2;
        newer.extend_from_slice(&checksum(0, &newer).to_le_bytes());
        let newer = Mate::decode(&newer, file);
        assert!(matches!(newer, Err(Error::UnsupportedVersion { found: 2, .. })), "{newer:?}");
    }

    #[test]
    fn a_file_that_was_not_finished_is_written_anew() {
        let vfs = MemoryVfs::new();
        let dir = Path::new("/store");
        vfs.create_dir_all(dir).unwrap();
        vfs.create(&dir.join(NEW_FILE_NAME), Access::Buffered).unwrap();
        assert_eq!(Mate::read(&vfs, dir).unwrap(), None);
        let mate = Mate { store_id: 7, generation: 3, path: PathBuf::from("/memory") };
        mate.write(&vfs, dir).unwrap();
        assert_eq!(Mate::read(&vfs, dir).unwrap(), Some(mate));
        assert_eq!(vfs.read_names(dir).unwrap(), [FILE_NAME]);
    }

    #[test]
    fn paths_that_cannot_be_written_down_are_refused() {
        let path = PathBuf::from("x".repeat(PATH_BYTES_MAX + 1));
        let long = Mate { store_id: 1, generation: 1, path };
        assert!(matches!(long.encode(), Err(Error::InvalidArgument { .. })));
    }
}
