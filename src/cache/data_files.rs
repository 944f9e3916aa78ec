//! The data files of a store: their directory, their names and numbers, and their deletion.
//!
//! Invariants:
//! 1. A file number is never used twice, not even after a crash: the manifest records an upper
//!    bound.
//! 2. A data file is immutable once finished.
//! 3. A file is deleted when its last [`PageFile`](super::PageFile) handle is dropped, unless the
//!    store is closing or poisoned (`retain_all`). Then the next open decides from the manifest.
//!    `retain_all` cannot be undone.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::page_cache::Cache;
use super::read_ahead::ReadAhead;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::key_hash::KeyHasher;
use crate::base::planted::kept_number;
use crate::base::process::Birthplace;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::vfs::Vfs;

/// Buffers of readers that look ahead, unless told otherwise.
const READ_AHEAD_BYTES_MAX: usize = 4 << 20;

/// The kinds of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileType {
    /// A sorted run.
    Table,
    /// A filter over the branches of a pivot.
    Maplet,
    /// Large values.
    Blob,
}

impl FileType {
    /// The file name's ending.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            FileType::Table => "table",
            FileType::Maplet => "maplet",
            FileType::Blob => "blob",
        }
    }

    fn from_extension(extension: &str) -> Option<FileType> {
        [FileType::Table, FileType::Maplet, FileType::Blob]
            .into_iter()
            .find(|t| t.extension() == extension)
    }
}

/// Compactions that make room later leave this part of the reserve to deletes.
const DELETES_PART: u64 = 2;
/// Deletes leave this part of the reserve to compactions.
const COMPACTIONS_PART: u64 = 4;

/// What of the disk may be taken, by whom. The further down, the sooner it makes room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// By whoever can wait: what is free beyond the reserve, which is for what makes room.
    BeyondReserve,
    /// By compactions that make room once others have ended: the reserve too, but for what
    /// memtables need to get into trees, and what deletes may take.
    ButForDeletes,
    /// By the journal, for deletes: the reserve too, but for what memtables and compactions need.
    /// Only those give room back. Were the journal to fill the disk first, nothing could.
    ButForCompactions,
    /// By a compaction that makes room at once: the reserve too, but for what memtables need.
    ButForMemtables,
    /// The same where memtables could not get into trees anyway: all that is free.
    All,
}

/// The store's data files.
pub(crate) struct DataFiles {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) cache: Arc<Cache>,
    /// How the store's keys are hashed: filters in data files are made so.
    pub(crate) hasher: Arc<KeyHasher>,
    /// Buffers of readers that look ahead.
    pub(crate) read_ahead: Arc<ReadAhead>,
    dir: PathBuf,
    next_file_id: AtomicU64,
    /// Until the store has been opened, with all of its keyspaces.
    retain_for_now: AtomicBool,
    retain_all: AtomicBool,
    birthplace: Birthplace,
    /// What of the disk is to be left free by whoever can wait: the reserve, and what memtables
    /// need.
    kept_free: OnceLock<(u64, Box<dyn Fn() -> u64 + Send + Sync>)>,
    /// Somebody has a [`ReserveTurn`].
    is_reserve_taken: AtomicBool,
}

/// Whoever holds it may take of the reserve: one at a time, or several would each take what another
/// needs to end.
pub(crate) struct ReserveTurn {
    files: Arc<DataFiles>,
}

impl Drop for ReserveTurn {
    fn drop(&mut self) {
        self.files.is_reserve_taken.store(false, Ordering::Release);
    }
}

impl DataFiles {
    /// The data files in `dir`; numbers handed out start at `next_file_id`.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        cache: Arc<Cache>,
        dir: &Path,
        next_file_id: FileId,
        hasher: Arc<KeyHasher>,
    ) -> DataFiles {
        DataFiles {
            vfs,
            cache,
            hasher,
            read_ahead: ReadAhead::new(READ_AHEAD_BYTES_MAX),
            dir: dir.to_path_buf(),
            next_file_id: AtomicU64::new(next_file_id.0),
            retain_for_now: AtomicBool::new(false),
            retain_all: AtomicBool::new(false),
            birthplace: Birthplace::here(),
            kept_free: OnceLock::new(),
            is_reserve_taken: AtomicBool::new(false),
        }
    }

    /// From now on [`DataFiles::check_room`] leaves something free: `reserve_bytes`, or of that
    /// what memtables need, each at most a tenth of the disk.
    pub(crate) fn keep_free(
        &self,
        reserve_bytes: u64,
        memtables_bytes: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        // The first to say so.
        let _ = self.kept_free.set((reserve_bytes, Box::new(memtables_bytes)));
    }

    /// The turn to take of the reserve, unless somebody has it.
    pub(crate) fn take_reserve_turn(self: &Arc<Self>) -> Option<ReserveTurn> {
        let was_taken = self.is_reserve_taken.swap(true, Ordering::Acquire);
        (!was_taken).then(|| ReserveTurn { files: Arc::clone(self) })
    }

    /// Fails with `Full` unless so many bytes can be written and what is to be left free is left;
    /// returns how many could be. For whoever can wait: those who make room need it first.
    pub(crate) fn check_room(&self, room: Room, bytes: u64) -> Result<u64> {
        let Some((reserve_bytes, memtables_bytes)) = self.kept_free.get() else {
            return Ok(u64::MAX);
        };
        // A file system that does not say will say when it is full.
        let Ok(Some(space)) = self.vfs.space(&self.dir) else { return Ok(u64::MAX) };
        let reserve = (*reserve_bytes).min(space.total_bytes / 10);
        let kept = match room {
            Room::BeyondReserve => reserve,
            Room::ButForDeletes => memtables_bytes() + reserve / DELETES_PART,
            // Whatever memtables have, some deletes are taken before it is in the trees.
            Room::ButForCompactions => {
                let part = reserve / COMPACTIONS_PART;
                (memtables_bytes() + part).min(reserve - part)
            }
            Room::ButForMemtables => memtables_bytes(),
            Room::All => 0,
        };
        let left = space.available_bytes.saturating_sub(kept.min(reserve));
        match left >= bytes {
            true => Ok(left),
            false => Err(Error::Full { path: self.dir.clone(), needed: bytes }),
        }
    }

    /// A number no file has had.
    pub(crate) fn allocate(&self) -> FileId {
        let next = || self.next_file_id.fetch_add(1, Ordering::Relaxed);
        FileId(kept_number().unwrap_or_else(next))
    }

    /// The number the next file will get.
    pub(crate) fn next_file_id(&self) -> FileId {
        FileId(self.next_file_id.load(Ordering::Relaxed))
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file's name with its directory.
    pub(crate) fn path(&self, id: FileId, file_type: FileType) -> PathBuf {
        self.dir.join(format!("{:08}.{}", id.0, file_type.extension()))
    }

    /// The number and type that a file name says, if it is a data file's.
    pub(crate) fn parse_name(name: &str) -> Option<(FileId, FileType)> {
        let (number, extension) = name.split_once('.')?;
        Some((FileId(number.parse().ok()?), FileType::from_extension(extension)?))
    }

    /// From now on no file is deleted when its last handle goes.
    pub(crate) fn retain_all(&self) {
        self.retain_all.store(true, Ordering::SeqCst);
    }

    /// No file is deleted until [`DataFiles::retain_no_longer`]: what is needed is not known yet.
    pub(crate) fn retain_for_now(&self) {
        self.retain_for_now.store(true, Ordering::SeqCst);
    }

    /// Takes `retain_for_now` back, and never `retain_all`.
    pub(crate) fn retain_no_longer(&self) {
        self.retain_for_now.store(false, Ordering::SeqCst);
    }

    /// Sees to it that numbers handed out from now on are at least `id`.
    pub(crate) fn reserve(&self, id: FileId) {
        self.next_file_id.fetch_max(id.0, Ordering::Relaxed);
    }

    /// Whether files outlive their handles. They do in a forked child: they are its parent's.
    pub(crate) fn retains(&self) -> bool {
        self.retain_for_now.load(Ordering::SeqCst)
            || self.retain_all.load(Ordering::SeqCst)
            || !self.birthplace.is_here()
    }
}
