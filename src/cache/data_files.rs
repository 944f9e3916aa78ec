//! The data files of a store: their directory, their names and numbers, and their deletion.
//!
//! Invariants:
//! 1. A file number is never used twice, not even after a crash: the manifest records an upper
//!    bound.
//! 2. A data file is immutable once finished, unless its tree kind writes it down for checkpoints
//!    (`TreeVersion::write_down`).
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
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::kept_number;
use crate::base::process::Birthplace;
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::vfs::{Access, File, Vfs};

/// The default size of the read-ahead budget.
const READ_AHEAD_BYTES_MAX: usize = 4 << 20;

/// The kinds of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileType {
    /// A sorted run.
    Table,
    /// A filter over the branches of a pivot.
    Maplet,
    /// A global index over the pieces of a TPH.
    Head,
    /// Large values.
    Blob,
    /// The index of the keys of a tree, which changes in place.
    LocationIndex,
    /// The tree of a kind that exists for tests.
    #[cfg(feature = "example")]
    Pool,
    /// The operations that such a tree keeps itself.
    #[cfg(feature = "example")]
    OperationLog,
}

impl FileType {
    /// The file name's ending.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            FileType::Table => "table",
            FileType::Maplet => "maplet",
            FileType::Head => "head",
            FileType::Blob => "blob",
            FileType::LocationIndex => "index",
            #[cfg(feature = "example")]
            FileType::Pool => "pool",
            #[cfg(feature = "example")]
            FileType::OperationLog => "operations",
        }
    }

    fn from_extension(extension: &str) -> Option<FileType> {
        let all = [
            FileType::Table,
            FileType::Maplet,
            FileType::Head,
            FileType::Blob,
            FileType::LocationIndex,
            #[cfg(feature = "example")]
            FileType::Pool,
            #[cfg(feature = "example")]
            FileType::OperationLog,
        ];
        all.into_iter().find(|file_type| file_type.extension() == extension)
    }
}

/// The part of the reserve that compactions leave to deletes if they free space only later.
const DELETES_PART: u64 = 2;
/// The part of the reserve that deletes leave to compactions.
const COMPACTIONS_PART: u64 = 4;

/// The part of the reserve that indexes leave to compactions.
const INDEXES_PART: u64 = 8;

/// Who may use which part of the disk. Later variants free space sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// For writers that can wait: the free space beyond the reserve and what is claimed.
    BeyondReserve,
    /// For compactions that free space only after other compactions: the reserve too, except what
    /// memtables and deletes may need. What is claimed is left too.
    ButForDeletes,
    /// For the journal, to log deletes: the reserve too, except what memtables and compactions
    /// need. Only these free space. If the journal filled the disk first, nothing could.
    ButForCompactions,
    /// For indexes, which need it for what is in memtables: the reserve too, except what memtables and compactions may need, of
    /// which it leaves half of the reserve at most.
    ForIndexes,
    /// For a compaction that frees space immediately: the reserve too, except what memtables need.
    ButForMemtables,
    /// The same where memtables cannot be added to trees anyway: all free space.
    All,
}

/// The store's data files.
pub(crate) struct DataFiles {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) cache: Arc<Cache>,
    /// The store's key hasher: filters in data files use it.
    pub(crate) hasher: Arc<KeyHasher>,
    /// The budget of read-ahead buffers.
    pub(crate) read_ahead: Arc<ReadAhead>,
    /// Memory of the lists of keys that running compactions keep until they have written an index.
    list_bytes: AtomicU64,
    dir: PathBuf,
    next_file_id: AtomicU64,
    /// The size of all open files, in units.
    units: AtomicU64,
    /// True until the store and all of its keyspaces have been opened.
    retain_for_now: AtomicBool,
    retain_all: AtomicBool,
    birthplace: Birthplace,
    /// The free space that writers leave if they can wait: the reserve, and the needs of memtables.
    kept_free: OnceLock<(u64, Box<dyn Fn() -> u64 + Send + Sync>)>,
    /// Whether a [`ReserveTurn`] exists.
    is_reserve_taken: AtomicBool,
    /// What else writers and compactions leave if they can wait.
    claimed_bytes: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// The right to use the reserve. One holder at a time: several would each use what another needs to
/// complete.
pub(crate) struct ReserveTurn {
    files: Arc<DataFiles>,
}

impl Drop for ReserveTurn {
    fn drop(&mut self) {
        self.files.is_reserve_taken.store(false, Ordering::Release);
    }
}

/// Opens a file that something on disk names: `Corruption` of `what` if there is none.
pub(crate) fn open_named(
    vfs: &dyn Vfs,
    path: &Path,
    access: Access,
    what: &'static str,
) -> Result<Arc<dyn File>> {
    vfs.open(path, access, false).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::corruption(path, 0, what, "it, as the store names it", "none")
        }
        error => error,
    })
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
            list_bytes: AtomicU64::new(0),
            dir: dir.to_path_buf(),
            next_file_id: AtomicU64::new(next_file_id.0),
            units: AtomicU64::new(0),
            retain_for_now: AtomicBool::new(false),
            retain_all: AtomicBool::new(false),
            birthplace: Birthplace::here(),
            kept_free: OnceLock::new(),
            is_reserve_taken: AtomicBool::new(false),
            claimed_bytes: OnceLock::new(),
        }
    }

    /// Memory of the lists that compactions keep.
    pub(crate) fn list_bytes(&self) -> u64 {
        self.list_bytes.load(Ordering::Relaxed)
    }

    /// A compaction that was counted with `before` keeps lists of `now`.
    pub(crate) fn recount_lists(&self, before: u64, now: u64) {
        self.list_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// From now on [`DataFiles::check_room`] leaves `reserve_bytes` free, or the part of them that
    /// memtables need. Each is at most a tenth of the disk.
    pub(crate) fn keep_free(
        &self,
        reserve_bytes: u64,
        memtables_bytes: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        // The first to say so.
        let _ = self.kept_free.set((reserve_bytes, Box::new(memtables_bytes)));
    }

    /// From now on writers and compactions that can wait leave so much free beside the reserve. `claimed_bytes` must wait for
    /// nobody.
    pub(crate) fn leave_claimed(&self, claimed_bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        // The first to say so.
        let _ = self.claimed_bytes.set(Box::new(claimed_bytes));
    }

    /// How much that is.
    pub(crate) fn claimed_bytes(&self) -> u64 {
        self.claimed_bytes.get().map_or(0, |claimed_bytes| claimed_bytes())
    }

    /// Takes the turn to use the reserve, unless it is taken.
    pub(crate) fn take_reserve_turn(self: &Arc<Self>) -> Option<ReserveTurn> {
        let was_taken = self.is_reserve_taken.swap(true, Ordering::Acquire);
        (!was_taken).then(|| ReserveTurn { files: Arc::clone(self) })
    }

    /// Fails with `Full` unless `bytes` can be written and the required space remains free. Returns
    /// how many bytes could be written. For writers that can wait: those that free space come
    /// first.
    pub(crate) fn check_room(&self, room: Room, bytes: u64) -> Result<u64> {
        let Some((reserve_bytes, memtables_bytes)) = self.kept_free.get() else {
            return Ok(u64::MAX);
        };
        // A file system that does not report its free space will report a full disk.
        let Ok(Some(space)) = self.vfs.space(&self.dir) else { return Ok(u64::MAX) };
        let reserve = (*reserve_bytes).min(space.total_bytes / 10);
        let kept = match room {
            Room::BeyondReserve => reserve,
            Room::ButForDeletes => memtables_bytes() + reserve / DELETES_PART,
            // Less than what deletes leave: these free space only once indexes have them.
            Room::ForIndexes => {
                (memtables_bytes() + reserve / INDEXES_PART).min(reserve / DELETES_PART)
            }
            // Whatever memtables need, some deletes are accepted before memtables are in the trees.
            Room::ButForCompactions => {
                let part = reserve / COMPACTIONS_PART;
                (memtables_bytes() + part).min(reserve - part)
            }
            Room::ButForMemtables => memtables_bytes(),
            Room::All => 0,
        };
        let claimed = match room {
            Room::BeyondReserve | Room::ButForDeletes => self.claimed_bytes(),
            _ => 0,
        };
        let left = space.available_bytes.saturating_sub(kept.min(reserve) + claimed);
        match left >= bytes {
            true => Ok(left),
            false => Err(Error::Full { path: self.dir.clone(), needed: bytes }),
        }
    }

    /// The size of all finished files that are open.
    pub(crate) fn bytes(&self) -> u64 {
        self.units.load(Ordering::Relaxed) * UNIT_BYTES as u64
    }

    /// A file of so many units is open from now on.
    pub(super) fn count(&self, units: u32) {
        self.units.fetch_add(u64::from(units), Ordering::Relaxed);
    }

    /// A file that was counted is closed.
    pub(super) fn count_no_longer(&self, units: u32) {
        self.units.fetch_sub(u64::from(units), Ordering::Relaxed);
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

    /// The number and type in a data file's name; `None` for other names.
    pub(crate) fn parse_name(name: &str) -> Option<(FileId, FileType)> {
        let (number, extension) = name.split_once('.')?;
        Some((FileId(number.parse().ok()?), FileType::from_extension(extension)?))
    }

    /// From now on no file is deleted when its last handle is dropped.
    pub(crate) fn retain_all(&self) {
        self.retain_all.store(true, Ordering::SeqCst);
    }

    /// No file is deleted until [`DataFiles::retain_no_longer`]: it is not yet known which files
    /// are needed.
    pub(crate) fn retain_for_now(&self) {
        self.retain_for_now.store(true, Ordering::SeqCst);
    }

    /// Ends `retain_for_now`, but not `retain_all`.
    pub(crate) fn retain_no_longer(&self) {
        self.retain_for_now.store(false, Ordering::SeqCst);
    }

    /// Ensures that later numbers are at least `id`.
    pub(crate) fn reserve(&self, id: FileId) {
        self.next_file_id.fetch_max(id.0, Ordering::Relaxed);
    }

    /// Whether files outlive their handles. In a forked child they do: they belong to the parent.
    pub(crate) fn retains(&self) -> bool {
        self.retain_for_now.load(Ordering::SeqCst)
            || self.retain_all.load(Ordering::SeqCst)
            || !self.birthplace.is_here()
    }
}
