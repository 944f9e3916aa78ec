//! What a repair takes of persistent memory: that of a store that may be damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::epochs::{epochs_in, first_in_both};
use super::{
    FILE_NAME, Mate, PersistentMemory, Progress, belongs, is_current, is_store, without_links,
};
use crate::base::error::{Error, Result};
use crate::journal::Journal;
use crate::manifest::LOCK_FILE_NAME;
use crate::pmem::SplitVfs;
use crate::vfs::{Lock, Vfs};

/// What is left of a store's persistent memory.
pub(crate) struct Left {
    /// The file system with the memory, as far as that is there, for reading.
    pub(crate) vfs: Arc<dyn Vfs>,
    /// The shared lock of the memory.
    pub(crate) lock: Option<Box<dyn Lock>>,
    /// What is wrong with it.
    pub(crate) problem: Option<Error>,
}

/// The directory of a store's persistent memory: the one that the user names, or else the one that its file names, if
/// that can be read.
pub(crate) fn memory_of(
    vfs: &dyn Vfs,
    dir: &Path,
    chosen: Option<&PersistentMemory>,
) -> Option<PathBuf> {
    match chosen {
        Some(memory) => Some(memory.path.clone()),
        None => Mate::read(vfs, dir).ok().flatten().map(|known| known.path),
    }
}

/// The persistent memory of a store that may be damaged, and whose lock is held. `store_id`: its number, if that is
/// known. If nobody names the memory, what keeps it from being read is its problem, and what is in the store's own
/// directory is left.
///
/// # Errors
/// `InvalidArgument` if the user names a directory that is not there, that of another store, or a store's own; `Locked`
/// and `Io` if the user names it; `UnsupportedVersion`; `TooManyFiles`.
pub(crate) fn attach_what_is_left(
    vfs: Arc<dyn Vfs>,
    dir: &Path,
    chosen: Option<&PersistentMemory>,
    store_id: Option<u64>,
) -> Result<Left> {
    let (known, damage) = match Mate::read(&*vfs, dir) {
        Ok(Some(known)) if store_id.is_some_and(|id| id != known.store_id) => {
            let (file, what) = (dir.join(FILE_NAME), "store id of persistent memory");
            let id = store_id.unwrap_or_default();
            (None, Some(Error::corruption(&file, 16, what, id, known.store_id)))
        }
        Ok(known) => (known, None),
        Err(error) if is_newer(&error) => return Err(error),
        Err(error) => (None, Some(error)),
    };
    let store_id = store_id.or(known.as_ref().map(|known| known.store_id));
    let place = match chosen {
        Some(memory) => Some(vfs.canonical(&memory.path)?),
        None => known.as_ref().map(|known| without_links(&*vfs, &known.path)),
    };
    let Some(place) = place else { return Ok(Left { vfs, lock: None, problem: damage }) };
    let remains = Remains {
        vfs: &*vfs,
        dir,
        place: &place,
        is_named: chosen.is_some(),
        store_id,
        known: known.as_ref(),
    };
    match remains.look() {
        Ok((lock, problem)) => {
            let problem = match problem.or(damage) {
                None if known.is_none() => Some(remains.problem(&remains.unknown()?)),
                problem => problem,
            };
            let vfs = Arc::new(SplitVfs::new(Arc::clone(&vfs), (dir, &place), belongs, None));
            Ok(Left { vfs, lock: Some(lock), problem })
        }
        Err(error) if chosen.is_some() || error.is_refusal() || is_newer(&error) => Err(error),
        Err(error) => Ok(Left { vfs, lock: None, problem: Some(error) }),
    }
}

/// What is found of a memory that fits as far as it can be told.
const UNKNOWN: &str = "one that no file of the store names";

/// Whether a file is of a newer version of its format. That is no damage: a newer program reads it.
fn is_newer(error: &Error) -> bool {
    matches!(error, Error::UnsupportedVersion { .. })
}

/// A store that may be damaged, and what may be its persistent memory.
struct Remains<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    /// The directory on persistent memory, without links.
    place: &'a Path,
    /// The user names it.
    is_named: bool,
    store_id: Option<u64>,
    /// What the store's file says.
    known: Option<&'a Mate>,
}

impl Remains<'_> {
    fn problem(&self, found: &str) -> Error {
        let expected = format_args!("the persistent memory of {}", self.dir.display());
        Error::corruption(&self.place.join(FILE_NAME), 0, "persistent memory", expected, found)
    }

    /// The error of a directory of which nothing can be taken.
    fn unusable(&self, found: &str) -> Error {
        match self.is_named {
            true => Error::invalid(format!(
                "expected the persistent memory of {} in {}, found {found}; name the directory that has it",
                self.dir.display(),
                self.place.display()
            )),
            false => self.problem(found),
        }
    }

    /// The store's number. If its files do not say it, the segments in its own directory do, if there are any.
    fn own_id(&self) -> Result<Option<u64>> {
        match self.store_id {
            Some(id) => Ok(Some(id)),
            None => Journal::find_store_id(self.vfs, self.dir),
        }
    }

    /// What is wrong with a memory that says `found`, if the store's files do not say the store's number.
    fn check_owner(&self, found: &Mate) -> Result<Option<Error>> {
        match self.own_id()? {
            Some(id) if id != found.store_id => Err(self.unusable("that of another store")),
            Some(_) => Ok(None),
            None if without_links(self.vfs, &found.path) == without_links(self.vfs, self.dir) => {
                Ok(None)
            }
            None => {
                let path = found.path.display();
                let what = format!("that of {path}; nothing in the store says which store it is");
                Ok(Some(self.problem(&what)))
            }
        }
    }

    /// The shared lock of the memory, and what is wrong with that. An error if it is not to be read.
    fn look(&self) -> Result<(Box<dyn Lock>, Option<Error>)> {
        let (vfs, place) = (self.vfs, self.place);
        if !vfs.exists(place)? {
            return Err(self.unusable("no directory"));
        }
        // The superblock of a damaged store may be lost.
        let is_own = place == without_links(vfs, self.dir);
        if is_own || is_store(vfs, place)? {
            return Err(self.unusable("a store's own directory"));
        }
        // Later, the error would be one of the store's directory.
        vfs.read_names(place)?;
        // Who has a copy of the store may have it open.
        let lock = vfs.lock_shared(&place.join(LOCK_FILE_NAME));
        let said = Mate::read(vfs, place);
        let says_whose = matches!(&said, Ok(Some(_)));
        let problem = match said {
            Err(error) if is_newer(&error) => return Err(error),
            Err(error) => Some(error),
            Ok(None) => Some(self.problem("no file that says so")),
            Ok(Some(found)) if self.store_id.is_some_and(|id| id != found.store_id) => {
                return Err(self.unusable("that of another store"));
            }
            Ok(Some(found)) if found.progress == Progress::ClaimedAnew => {
                Some(self.problem("that of a salvage that has not come to its end"))
            }
            Ok(Some(found)) if !is_current(self.known, &found) => match self.is_named {
                true => Some(self.problem("that of another moment")),
                // A store that this one is a copy of may go on with it.
                false => {
                    let found = "that of another moment, which a repair reads only if it is named";
                    return Err(self.problem(found));
                }
            },
            Ok(Some(found)) => self.check_owner(&found)?,
        };
        let lock = lock?;
        // A single segment of another store beside the file is damage, which is reported when it is read.
        if !says_whose
            && let (Some(id), Some(owner)) = (self.own_id()?, Journal::find_store_id(vfs, place)?)
            && id != owner
        {
            return Err(self.unusable("a journal of another store"));
        }
        Ok((lock, problem.map_or_else(|| self.check_moment(), |problem| Ok(Some(problem)))?))
    }

    /// What is wrong with a memory that says nothing wrong: of an epoch with segments in both directories, those in the
    /// store's are not read.
    fn check_moment(&self) -> Result<Option<Error>> {
        if let Some(epoch) = first_in_both(self.vfs, self.dir, self.place)? {
            let dir = self.dir.display();
            let what = format!(
                "one with segments of epoch {epoch} of the journal, which {dir} has too: those there are left out"
            );
            return Ok(Some(self.problem(&what)));
        }
        Ok(None)
    }

    /// What is found of a memory that fits as far as it can be told, although no file of the store names it. It may be of
    /// another moment: then the store has gone on without it.
    fn unknown(&self) -> Result<String> {
        let [here, in_store] = [self.place, self.dir].map(|dir| epochs_in(self.vfs, dir));
        let (here, in_store) = (here?, in_store?);
        let (Some(here), Some(in_store)) = (here.last(), in_store.last()) else {
            return Ok(UNKNOWN.to_string());
        };
        Ok(format!(
            "{UNKNOWN}, with segments of the journal up to epoch {here}, where {} has those up to epoch {in_store}; of what \
             both have, the older epochs are left out",
            self.dir.display()
        ))
    }
}
