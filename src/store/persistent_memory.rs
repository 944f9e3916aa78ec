//! Persistent memory: a directory beside the store's own, where its journal is and the indexes of its `slm` keyspaces are
//! (`docs/format/persistent-memory.md`).
//!
//! Invariants:
//! 1. Of two directories that belong together, each has the store's number, the path of the other, and the same tag, which
//!    is new at each opening for writing. So a copy of either from before the last opening is not taken for it.
//! 2. A tag is durable first in the memory's file, as *claimed*, and then in the store's. No file of the store is created on
//!    the memory before. The memory's is *settled* once the manifest has begun the epoch of that opening. A claimed tag that
//!    the store's file does not have is accepted if the tag before is the store's: a crash came in between.
//! 3. A store whose file says that it has persistent memory is not opened without it: its newest commits may be there.
//!    Only who salvages the journal may do without, and names a directory. Until that opening is about to raise the
//!    journal's floor, or to begin its epoch, it counts for nothing: the next one has to salvage too, or finds the one
//!    that was lost. (Its replay may have made tables before, to make room: of a prefix of the commits, of which the
//!    lost memory has the rest.) From then on that one is refused, and until the opening has settled, the next one has
//!    to salvage too.
//! 4. Who opens the store has the lock of both directories.
//! 5. If the store's file is lost or damaged, no tag says of which moment the memory is. Its file has the epoch of the
//!    manifest that it goes with: with any other manifest it is refused, before anything is written. Epochs of stores
//!    that have persistent memory grow by random steps, so that a copy of the store has come to others.
//! 6. An opening makes all segments of its epoch in one directory, and a store that has persistent memory makes none in
//!    its own. A store that has newer ones there has gone on without the memory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::planted::{Bug, planted};
use crate::cache::{DataFiles, FileType};
use crate::jobs::{Clock, unpredictable};
use crate::journal::{Journal, SegmentId};
use crate::manifest::{LOCK_FILE_NAME, SUPERBLOCK_FILE_NAME};
use crate::pmem::{Delay, EmulatedMemory, SplitVfs};
use crate::vfs::{Lock, MemoryDelay, Vfs, create_dir_durably, sync_parent};

use self::epochs::{epochs_in, first_in_both};
use self::mate::{FILE_NAME, Mate, Progress};

mod epochs;
pub(crate) mod left;
mod mate;

/// A directory on persistent memory, for [`Builder::persistent_memory`](crate::Builder::persistent_memory).
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
    /// not be opened after one without [`Builder::salvage_journal`](crate::Builder::salvage_journal).
    pub fn emulated(mut self, memory: EmulatedMemory) -> PersistentMemory {
        self.emulated = Some(memory);
        self
    }
}

/// Whether a file of this name belongs on the persistent memory.
fn belongs(name: &str) -> bool {
    let of_tree = DataFiles::parse_name(name);
    of_tree.is_some_and(|(_, file_type)| file_type == FileType::LocationIndex)
        || SegmentId::parse(name).is_some()
}

/// The most by which an epoch is above the one before.
const EPOCH_STEP_MAX: u64 = 1024;
/// Steps become smaller, so that a store can always be opened for writing so often again, until as few epochs are left.
const EPOCHS_LEFT_MIN: u64 = 4 << 20;

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
    /// To be settled.
    pub(super) claim: Option<Claim>,
}

/// A tag that has been claimed.
pub(super) struct Claim {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    memory_dir: PathBuf,
    /// The contents of the store's file, and of the memory's.
    mates: [Mate; 2],
}

impl Claim {
    /// By how much the epoch of this opening is above the one before: by a random number, from the tag. So a copy of the
    /// store that was opened elsewhere as often has come to another epoch (invariant 5).
    pub(super) fn epoch_step(&self) -> u64 {
        let [_, of_memory] = &self.mates;
        epoch_step(of_memory)
    }

    /// The manifest is about to skip the commits that are lost with the memory: it must not come back.
    pub(super) fn give_up_lost(&self) -> Result<()> {
        let [of_store, _] = &self.mates;
        match of_store.progress {
            Progress::ClaimedAnew => {
                let settled = Mate { progress: Progress::Settled, ..of_store.clone() };
                settled.write(&*self.vfs, &self.dir)
            }
            _ => Ok(()),
        }
    }

    /// The manifest has begun `epoch`.
    pub(super) fn settle(self, epoch: u32) -> Result<()> {
        let [_, of_memory] = self.mates;
        let settled = Mate { progress: Progress::Settled, epoch, ..of_memory };
        settled.write(&*self.vfs, &self.memory_dir)
    }
}

/// See [`Claim::epoch_step`]. `of_memory` has the epoch before.
fn epoch_step(of_memory: &Mate) -> u64 {
    let left = u64::from(u32::MAX - of_memory.epoch);
    // A tag is odd.
    1 + (of_memory.tag >> 1) % EPOCH_STEP_MAX.min(left / EPOCHS_LEFT_MIN).max(1)
}

/// Whether the newest commits of a store whose file says `known` may be in a directory that says `found`.
fn is_current(known: Option<&Mate>, found: &Mate) -> bool {
    // Nothing has been committed there.
    if found.progress == Progress::ClaimedAnew {
        return false;
    }
    let Some(known) = known else { return true };
    let was_lost = known.progress == Progress::ClaimedAnew;
    match found.progress {
        Progress::Claimed if found.tag_before == known.tag => true,
        // What was lost has been found, before anything else took its place.
        Progress::Claimed if was_lost && found.tag_before == known.tag_before => true,
        _ => found.tag == known.tag || was_lost && found.tag == known.tag_before,
    }
}

/// An opening of a store.
pub(super) struct Opening<'a> {
    /// The store's directory.
    pub(super) dir: &'a Path,
    /// What the user names.
    pub(super) memory: Option<&'a PersistentMemory>,
    /// The epoch of the journal that the manifest has.
    pub(super) epoch: u32,
    /// The user takes what is left of the journal.
    pub(super) salvage: bool,
    pub(super) read_only: bool,
    /// Everything follows from the calls alone.
    pub(super) is_stepped: bool,
}

/// The store's file system with its persistent memory, and the lock of both. Without persistent memory, what was given.
///
/// # Errors
/// `InvalidArgument` if the persistent memory is missing, or is inside the store; `Conflict` if the directory is of another
/// store, or of another time; `Corruption`; `Locked`; `Io`; `Full`.
pub(super) fn attach(
    opening: &Opening<'_>,
    vfs: Arc<dyn Vfs>,
    lock: Box<dyn Lock>,
    store_id: u64,
) -> Result<Attached> {
    let Opening { dir, memory, epoch, salvage, read_only, is_stepped } = *opening;
    let (known, fault) = match Mate::read(&*vfs, dir) {
        Ok(Some(other)) if other.store_id != store_id => {
            let what = format!(
                "{} is of another store, whose persistent memory is in {}; if this store never had any, move the file \
                 to where it belongs",
                dir.join(FILE_NAME).display(),
                other.path.display()
            );
            (None, Some(Error::Conflict { what }))
        }
        Ok(known) => (known, None),
        Err(error) if error.is_corruption() => (None, Some(error)),
        Err(error) => return Err(error),
    };
    let chosen = match memory {
        Some(memory) => Some(vfs.canonical(&memory.path)?),
        None => None,
    };
    if let Some(fault) = fault.clone().filter(|_| chosen.is_none()) {
        let advice =
            "name the directory of the store's persistent memory (Builder::persistent_memory)";
        return Err(advised(fault, advice));
    }
    let named = chosen.is_some();
    let known_dir = known.as_ref().map(|known| without_links(&*vfs, &known.path));
    let Some(memory_dir) = chosen.or_else(|| known_dir.clone()) else {
        return Ok(Attached { vfs, lock, lost: None, claim: None });
    };
    let place = vfs.canonical(dir)?;
    if memory_dir.starts_with(&place) {
        return Err(Error::invalid(format!(
            "{} is inside the store itself; name a directory elsewhere for its persistent memory",
            memory_dir.display()
        )));
    }
    // A directory that nobody names would be made where the lost one is to be mounted.
    let salvage = salvage && !read_only && named;
    let pair = Pair {
        vfs: &*vfs,
        dir,
        place: &place,
        memory_dir: &memory_dir,
        store_id,
        epoch,
        known: known.as_ref(),
        fault: fault.as_ref(),
        known_dir: known_dir.as_deref(),
        salvage,
    };
    let (found, _) = pair.look()?;
    if found.is_none() && read_only {
        // It gets its persistent memory from the next opening for writing.
        return Ok(Attached { vfs, lock, lost: None, claim: None });
    }
    let lock_path = memory_dir.join(LOCK_FILE_NAME);
    let memory_lock = match read_only {
        true => vfs.lock_shared(&lock_path)?,
        false => {
            if found.is_none() {
                create_dir_durably(&*vfs, &memory_dir)?;
            }
            vfs.lock(&lock_path)?
        }
    };
    // Somebody else may have had it until now.
    let (found, lost) = pair.look()?;
    let claim = match read_only {
        true => None,
        false => {
            pair.check_apart()?;
            let mates = pair.claim(found.as_ref(), is_stepped)?;
            let (dir, memory_dir) = (dir.to_path_buf(), memory_dir.clone());
            Some(Claim { vfs: Arc::clone(&vfs), dir, memory_dir, mates })
        }
    };
    let delay = memory.and_then(|memory| memory.emulated);
    let delay = delay.map(|memory| {
        let clock = if is_stepped { Clock::simulated() } else { Clock::real() };
        Arc::new(Delay::new(memory, Arc::new(clock))) as Arc<dyn MemoryDelay>
    });
    let split = SplitVfs::new(vfs, (dir, &memory_dir), belongs, delay);
    let lock = Box::new(Locks { _memory: memory_lock, _store: lock });
    Ok(Attached { vfs: Arc::new(split), lock, lost, claim })
}

/// The same error of a file, with what to do about it first.
fn advised(mut error: Error, advice: &str) -> Error {
    if let Error::Corruption { found: text, .. } | Error::Conflict { what: text } = &mut error {
        text.push_str(&format!(" ({advice})"));
    }
    error
}

/// Reads the file of a directory, if there are both.
fn read_in(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Mate>> {
    match vfs.exists(dir)? {
        true => Mate::read(vfs, dir),
        false => Ok(None),
    }
}

/// Whether a directory is a store's own. The two files `MEMORY` do not say which of them is the store's: its superblock
/// does, which persistent memory does not have.
fn is_store(vfs: &dyn Vfs, dir: &Path) -> Result<bool> {
    vfs.exists(&dir.join(SUPERBLOCK_FILE_NAME))
}

/// The path without symbolic links: what has been moved may have left one at its old place. As it is, if it cannot be
/// looked up.
fn without_links(vfs: &dyn Vfs, path: &Path) -> PathBuf {
    vfs.canonical(path).unwrap_or_else(|_| path.to_path_buf())
}

/// A store, and the directory that is to be its persistent memory.
struct Pair<'a> {
    vfs: &'a dyn Vfs,
    dir: &'a Path,
    /// The same, without links.
    place: &'a Path,
    memory_dir: &'a Path,
    store_id: u64,
    /// The epoch that the manifest has.
    epoch: u32,
    /// What the store's file says.
    known: Option<&'a Mate>,
    /// Why that cannot be used.
    fault: Option<&'a Error>,
    /// The directory that it names, without links.
    known_dir: Option<&'a Path>,
    /// The user takes what is left.
    salvage: bool,
}

impl Pair<'_> {
    fn conflict<T>(&self, what: std::fmt::Arguments<'_>) -> Result<T> {
        let memory_dir = self.memory_dir.display();
        Err(Error::Conflict { what: format!("{memory_dir} {what}") })
    }

    /// As [`read_in`]. Who takes what is left takes a file that is damaged, or cannot be read, for none.
    fn read(&self, dir: &Path) -> Result<Option<Mate>> {
        match read_in(self.vfs, dir) {
            Err(Error::Corruption { .. } | Error::Io { .. }) if self.salvage => Ok(None),
            read => read,
        }
    }

    /// As [`Pair::find`], and what has been lost, if the user does without.
    fn look(&self) -> Result<(Option<Mate>, Option<Error>)> {
        let found = self.find()?;
        let lost = match (self.known, &found) {
            (Some(known), None) => Some(self.missing(known)),
            (None, Some(found)) if !is_current(None, found) => Some(self.unfinished()),
            (None, None) => self.fault.map(|fault| self.missing_with_file(fault)),
            _ => None,
        };
        match lost {
            Some(lost) if !self.salvage => Err(lost),
            Some(lost) => self.check_nothing_left().map(|()| (found, Some(lost))),
            None => Ok((found, None)),
        }
    }

    /// The directory that the store's file names, and what that says, if the user names another, and no store is there
    /// now: this one may have been moved there.
    fn elsewhere(&self) -> Result<Option<(&Path, Option<Mate>)>> {
        let Some(known_dir) = self.known_dir.filter(|known_dir| *known_dir != self.memory_dir)
        else {
            return Ok(None);
        };
        let at = match is_store(self.vfs, known_dir) {
            Ok(true) => return Ok(None),
            Ok(false) => read_in(self.vfs, known_dir),
            Err(error) => Err(error),
        };
        // Also who salvages is refused: of a file that cannot be read now, the journal beside it may be whole.
        match at {
            Ok(at) => Ok(Some((known_dir, at))),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotADirectory => Ok(None),
            Err(error) if error.is_refusal() => Err(error),
            Err(error) => self.conflict(format_args!(
                "is named as persistent memory, but that of {} was in {}, which cannot be read ({}); make that \
                 available or move it away, or, to take what is left of it, name it itself and open the store for \
                 writing with salvage_journal",
                self.dir.display(),
                known_dir.display(),
                error.description()
            )),
        }
    }

    /// A directory takes the place of another only if that has no journal any more: if only the file of that is lost,
    /// or a salvage there has died, the journal is whole. Indexes are built anew from tables.
    fn check_nothing_left(&self) -> Result<()> {
        let Some((known_dir, at)) = self.elsewhere()? else { return Ok(()) };
        let says_nothing = at
            .is_none_or(|at| at.store_id == self.store_id && at.progress == Progress::ClaimedAnew);
        let names = match self.vfs.exists(known_dir)? {
            true if says_nothing => self.vfs.read_names(known_dir)?,
            _ => return Ok(()),
        };
        match names.iter().find(|name| SegmentId::parse(name).is_some()) {
            Some(name) if self.owner(known_dir).map_or(true, |owner| self.may_be_mine(owner)) => {
                self.conflict(format_args!(
                    "is named as persistent memory, but {} still has {name}; to take what is left there, name the same \
                     directory again, or else move that away",
                    known_dir.display()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether no tag of the memory is known: the store's file cannot be used, or could not when the salvage began that
    /// has written it since.
    fn tags_are_lost(&self) -> bool {
        self.known
            .is_none_or(|known| known.progress == Progress::ClaimedAnew && known.tag_before == 0)
    }

    /// Whether a directory that says this is the store's persistent memory, with its newest commits.
    fn is_mine(&self, at: &Mate) -> bool {
        at.store_id == self.store_id && is_current(self.known, at)
    }

    /// Whether the directory of a store is one with this store's number. One that cannot be looked up is taken for
    /// none: where this one has been moved from, there may be anything now, such as its own persistent memory.
    fn has_this_store(&self, dir: &Path) -> Result<bool> {
        let at = is_store(self.vfs, dir).and_then(|is_store| match is_store {
            true => self.read(dir),
            false => Ok(None),
        });
        match at {
            Ok(at) => Ok(at.is_some_and(|at| at.store_id == self.store_id)),
            Err(error) if error.is_refusal() => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// The number of the store whose journal is in the directory, if a segment of it says so.
    fn owner(&self, dir: &Path) -> Result<Option<u64>> {
        Journal::find_store_id(self.vfs, dir)
    }

    /// Whether a journal may be this store's, if its segments say that it is of `owner`.
    fn may_be_mine(&self, owner: Option<u64>) -> bool {
        owner.is_none_or(|owner| owner == self.store_id)
    }

    /// What the directory says, if it is the store's persistent memory, or is of a salvage of this store and nothing
    /// says more than that; `None` if it may become the store's.
    fn find(&self) -> Result<Option<Mate>> {
        let memory_dir = self.memory_dir;
        if is_store(self.vfs, memory_dir)? {
            return self.conflict(format_args!(
                "has {SUPERBLOCK_FILE_NAME}, so it is a store's own directory; name another directory"
            ));
        }
        let found = self.read(memory_dir).map_err(|error| {
            advised(
                error,
                "open the store for writing with salvage_journal, and name this directory",
            )
        })?;
        let elsewhere = match self.elsewhere() {
            // What cannot be read there is not missed.
            Err(Error::Conflict { .. }) if found.as_ref().is_some_and(|at| self.is_mine(at)) => {
                None
            }
            elsewhere => elsewhere?,
        };
        if let Some((known_dir, at)) = elsewhere
            && let Some(at) = at.filter(|at| self.is_mine(at))
        {
            if without_links(self.vfs, &at.path) != *self.place {
                return self.conflict(format_args!(
                    "is named as persistent memory, but {0} may be a copy of the store {1}, whose persistent memory \
                     is in {2} and must not go to a copy. To open copies of both directories, move them to {1} and \
                     {2} (if nothing is there), or make a new store of them with `spinney repair \
                     --persistent-memory`. If {0} is the store {1} itself, moved, name {2}",
                    self.dir.display(),
                    at.path.display(),
                    known_dir.display()
                ));
            }
            return self.conflict(format_args!(
                "is named as persistent memory, but that of {} is in {} (or that is the same directory under another \
                 name); leave the name out, or close the store and move the directory first",
                self.dir.display(),
                known_dir.display()
            ));
        }
        let Some(found) = found else { return self.check_free(false).map(|()| None) };
        let is_of_this_place = without_links(self.vfs, &found.path) == *self.place;
        if found.store_id != self.store_id && is_of_this_place {
            return self.conflict(format_args!(
                "is the persistent memory of another store that was in {}, and the directory is not the store that it \
                 was: is its disk mounted? If that store was repaired or replaced, name another directory",
                self.dir.display()
            ));
        }
        if found.store_id != self.store_id {
            return self.conflict(format_args!(
                "is the persistent memory of another store, {} (a store that was repaired counts as another); name another \
                 directory",
                found.path.display()
            ));
        }
        // The store that the directory names may be this one, under an earlier name, or one that this one is a copy of.
        if !is_of_this_place && self.has_this_store(&found.path)? {
            return self.conflict(format_args!(
                "is the persistent memory of {}, and {} is a copy of that (or the same directory under another name: \
                 then open it under the first); take a checkpoint instead",
                found.path.display(),
                self.dir.display()
            ));
        }
        let is_salvage = found.progress == Progress::ClaimedAnew;
        if self.known.is_none() || self.tags_are_lost() && !is_salvage {
            return self.check_moment(&found).map(|()| Some(found));
        }
        if is_current(self.known, &found) {
            return Ok(Some(found));
        }
        if is_salvage {
            return self.check_free(true).map(|()| None);
        }
        self.conflict(format_args!(
            "is not of the same moment as {}: one of the two is a copy, or has been replaced. If the store's \
             persistent memory is lost, move this directory away and open the store with salvage_journal; to keep what \
             is in both, make a new store of them with `spinney repair --persistent-memory`",
            self.dir.display()
        ))
    }

    /// The directory is of the moment of the store, although no tag of the store says so: `found` and the journal's
    /// segments do. A salvage that has died has committed nothing in its directory.
    fn check_moment(&self, found: &Mate) -> Result<()> {
        let (dir, epoch) = (self.dir.display(), self.epoch);
        let is_of_this_place = without_links(self.vfs, &found.path) == *self.place;
        if (self.fault.is_some() || self.known.is_some()) && !is_of_this_place {
            return self.conflict(format_args!(
                "is the persistent memory of {}, and {dir} may be a copy of that: its file {FILE_NAME}, which would \
                 tell, is damaged or of another store. If the store has been moved, move it back there, or make a new \
                 store of both with `spinney repair --persistent-memory`",
                found.path.display()
            ));
        }
        let here = epochs_in(self.vfs, self.memory_dir)?;
        let in_store = epochs_in(self.vfs, self.dir)?;
        let newest_here = here.last().copied().unwrap_or(0);
        if found.epoch.max(newest_here) > epoch {
            return self.conflict(format_args!(
                "is of a later moment of {dir}: it has come to epoch {}, and the store is at epoch {epoch}, so the \
                 store is an older copy. Restore the newer store, or make a new one of both with `spinney \
                 repair --persistent-memory`, whose report says what it leaves out",
                found.epoch.max(newest_here)
            ));
        }
        let is_salvage = found.progress == Progress::ClaimedAnew;
        // The first opening with it died before the store's file was written, and the store went on without.
        let is_blank = found.progress == Progress::Claimed
            && found.tag_before == 0
            && !self.vfs.read_names(self.memory_dir)?.iter().any(|name| belongs(name));
        // The manifest has begun the epoch of the opening that has claimed it, which died before it settled.
        let is_begun = found.progress == Progress::Claimed
            && u64::from(found.epoch) + epoch_step(found) == u64::from(epoch);
        if found.epoch < epoch && !is_salvage && !is_blank && !is_begun {
            return self.conflict(format_args!(
                "is of an earlier moment of {dir}, epoch {}: the store is at epoch {epoch}, and no file {FILE_NAME} \
                 there says that it has had this persistent memory since. Restore the store and its memory of one \
                 moment, or make a new store of both with `spinney repair --persistent-memory`, whose report says what it \
                 leaves out",
                found.epoch
            ));
        }
        let first_here = match found.progress {
            Progress::Settled => {
                Some(here.first().map_or(found.epoch, |first| *first.min(&found.epoch)))
            }
            _ => here.first().copied(),
        };
        match (first_here, in_store.last()) {
            (Some(first_here), Some(newest)) if *newest >= first_here => self.conflict(format_args!(
                "is not of the same moment as {dir}, which has segments of epoch {newest} of the journal in its own \
                 directory: it is a copy, or has been restored, and has gone on without this persistent memory. \
                 Restore the store and its memory of one moment, or name another directory to go on with what the \
                 store has"
            )),
            _ => Ok(()),
        }
    }

    /// No epoch of the journal has segments in both directories: those of the store's would be hidden.
    fn check_apart(&self) -> Result<()> {
        match first_in_both(self.vfs, self.dir, self.memory_dir)? {
            Some(epoch) => self.conflict(format_args!(
                "has segments of epoch {epoch} of the journal, and so has {}, although the segments of an epoch are \
                 all made in one of the two: some are copies. Move those away from where they do not belong",
                self.dir.display()
            )),
            None => Ok(()),
        }
    }

    /// The directory may become persistent memory only if it has no files that would count as the store's.
    /// `of_salvage`: its file is of a salvage of this store that has died.
    fn check_free(&self, of_salvage: bool) -> Result<()> {
        let names = match self.vfs.exists(self.memory_dir)? {
            true => self.vfs.read_names(self.memory_dir)?,
            false => Vec::new(),
        };
        let Some(name) = names.iter().find(|name| belongs(name)) else { return Ok(()) };
        // Without its own file, it is still where the store says, unless another store's has come there.
        let was_here = self.known_dir == Some(self.memory_dir);
        match (self.owner(self.memory_dir)?, self.known) {
            (owner, _) if !self.may_be_mine(owner) => self.conflict(format_args!(
                "has {name}, which is of another store; name another directory"
            )),
            _ if was_here => Ok(()),
            (_, Some(known)) if of_salvage => self.conflict(format_args!(
                "has {name}, and is of a salvage of this store that has not come to its end. If it was {} then, move \
                 it back there; else name another directory",
                known.path.display()
            )),
            (_, Some(known)) => self.conflict(format_args!(
                "has {name}, and no file that says which store it is of. If it is the persistent memory of this one, move \
                 it to {}, and open the store for writing with salvage_journal; else name another directory",
                known.path.display()
            )),
            (Some(_), None) => self.conflict(format_args!(
                "has {name}, which is of this store, but the file {FILE_NAME} is lost both here and in {}; make a new \
                 store of both with `spinney repair --persistent-memory`, or name another directory",
                self.dir.display()
            )),
            (None, None) => self.conflict(format_args!(
                "has {name}, and nothing says which store it is of; name another directory"
            )),
        }
    }

    fn missing(&self, known: &Mate) -> Error {
        let (dir, path) = (self.dir.display(), known.path.display());
        if known.progress == Progress::ClaimedAnew {
            return Error::invalid(format!(
                "the journal of {dir} is on persistent memory, which was lost, and an opening with a new one in {path} has \
                 not come to its end: if the old one is there again, name it (Builder::persistent_memory). If it is lost, \
                 open the store for writing with salvage_journal, and name the same directory again"
            ));
        }
        let is_begun = self.known_dir.and_then(|dir| read_in(self.vfs, dir).ok().flatten());
        // With another tag it is of an earlier salvage, which has given up something else.
        let is_begun = is_begun.is_some_and(|at| {
            let is_same = (at.store_id, at.tag) == (self.store_id, known.tag);
            is_same && at.progress == Progress::ClaimedAnew
        });
        if known.progress == Progress::Settled && is_begun {
            return Error::invalid(format!(
                "the persistent memory of {dir} was lost, and a salvage with a new one in {path} has given it up, but \
                 has not come to its end: repeat it (open the store for writing with salvage_journal), and name the \
                 same directory again"
            ));
        }
        Error::invalid(format!(
            "the journal of {dir} is on persistent memory in {path}, and {} has no file {FILE_NAME} that says so: make \
             it available there, or name where it is now (Builder::persistent_memory). If only that file is lost, open \
             the store for writing with salvage_journal, and name the same directory again; if all is lost, a \
             directory for a new one",
            self.memory_dir.display()
        ))
    }

    /// The error of a directory with nothing of a store whose own file cannot be used.
    fn missing_with_file(&self, fault: &Error) -> Error {
        let advice = format!(
            "{} has no persistent memory of the store: make it available there, or name where it is now \
             (Builder::persistent_memory); if it is lost, open the store for writing with salvage_journal, and name a \
             directory for a new one",
            self.memory_dir.display()
        );
        advised(fault.clone(), &advice)
    }

    /// The error of a directory that is of a salvage that has died, where the store's own file is lost.
    fn unfinished(&self) -> Error {
        Error::invalid(format!(
            "{} is of a salvage of {} that has not come to its end, and the file {FILE_NAME} of the store, which said \
             where the lost persistent memory was, is not there: if that memory is there again, name it \
             (Builder::persistent_memory). If it is lost, open the store for writing with salvage_journal, and name \
             this directory again",
            self.memory_dir.display(),
            self.dir.display()
        ))
    }

    /// Makes both directories say that they belong together. Returns what the store's file says, and the memory's.
    fn claim(&self, found: Option<&Mate>, is_stepped: bool) -> Result<[Mate; 2]> {
        let (vfs, store_id) = (self.vfs, self.store_id);
        let tag_before = match (self.known, found) {
            // Still that of what was lost.
            (Some(known), _) if known.progress == Progress::ClaimedAnew => known.tag_before,
            (Some(known), _) => known.tag,
            // The store's file is lost, or this is a copy from before there was one: the store that has it goes on with the
            // memory until this one has settled.
            (None, Some(found)) if found.progress == Progress::Settled => found.tag,
            (None, Some(found)) => found.tag_before,
            (None, None) => 0,
        };
        let progress = match (self.known, found) {
            (Some(_), None) => Progress::ClaimedAnew,
            (None, None) if self.fault.is_some() => Progress::ClaimedAnew,
            // As the salvage that has died had it.
            (None, Some(found)) if !is_current(None, found) => Progress::ClaimedAnew,
            _ => Progress::Claimed,
        };
        let tag = match is_stepped {
            false => unpredictable::<1>()?[0] | 1,
            // What happens follows from the calls alone.
            true => {
                let tag = |mate: Option<&Mate>| mate.map_or(0, |mate| mate.tag);
                let of_both = [tag(self.known), tag(found), progress as u64];
                let bytes: Vec<u8> = of_both.iter().flat_map(|part| part.to_le_bytes()).collect();
                checksum(store_id, &bytes) | 1
            }
        };
        let mate = |path: &Path| {
            let (path, epoch) = (path.to_path_buf(), self.epoch);
            Mate { store_id, tag, tag_before, progress, epoch, path }
        };
        let (of_store, of_memory) = (mate(self.memory_dir), mate(self.place));
        if !planted(Bug::MemoryNotClaimed) {
            of_memory.write(vfs, self.memory_dir)?;
        }
        // An earlier process may have made it, and died.
        sync_parent(vfs, self.memory_dir)?;
        of_store.write(vfs, self.dir)?;
        Ok([of_store, of_memory])
    }
}

#[cfg(test)]
mod tests;
