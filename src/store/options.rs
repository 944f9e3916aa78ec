//! What a user may choose. Path and memory budget are the only things they have to think about;
//! every other default derives from those and from the machine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::events::EventListener;
use super::persistent_memory::PersistentMemory;
use crate::merge::MergeOperator;
use crate::vfs::{MemoryVfs, PosixVfs, Vfs};

/// One mebibyte, for [`Builder::memory_budget`].
pub const MIB: u64 = 1 << 20;
/// One gibibyte, for [`Builder::memory_budget`].
pub const GIB: u64 = 1 << 30;

/// How much [`Database::check`](crate::Database::check) reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckLevel {
    /// The manifest, the trees' structure, and each file's existence, size and footer.
    Structure,
    /// Everything: each page of each file, its checksum, its order, its counts, its filter.
    Full,
}

/// How background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackgroundMode {
    /// On this many threads (0: chosen from the machine).
    Threads(usize),
    /// Step by step, in an order drawn from the seed, when the test asks or a writer must wait.
    Stepped(u64),
}

/// What can be switched off while a store is open, to measure what it is worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switches {
    pub(crate) parallel_seeks: bool,
    pub(crate) seek_compaction: bool,
    /// After so many calls an iterator closes its cursors.
    pub(crate) iterator_calls_max: Option<u32>,
    /// Dead entries in succession from which on an iterator remembers where they are.
    pub(crate) gap_entries_min: Option<u32>,
    /// After so long without a commit the store rests.
    pub(crate) rest_nanos: Option<u64>,
}

/// Opens a [`Database`](crate::Database).
///
/// ```no_run
/// # fn main() -> spinney::Result<()> {
/// let db = spinney::Database::builder("my.store").memory_budget(2 * spinney::GIB).open()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Builder {
    pub(crate) path: PathBuf,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) persistent_memory: Option<PersistentMemory>,
    pub(crate) memory_budget: u64,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) create: bool,
    pub(crate) salvage: bool,
    pub(crate) background: BackgroundMode,
    pub(crate) journal_shards: usize,
    pub(crate) cache_stripes: usize,
    pub(crate) switches: Switches,
    pub(crate) merge_operators: BTreeMap<String, Arc<dyn MergeOperator>>,
    pub(crate) listener: Option<Arc<dyn EventListener>>,
}

/// The directory of a store in memory, on a file system of its own.
const IN_MEMORY_DIR: &str = "/memory";

impl Builder {
    pub(crate) fn new(path: &Path, vfs: Arc<dyn Vfs>) -> Builder {
        let mut builder = Builder {
            path: path.to_path_buf(),
            vfs,
            persistent_memory: None,
            memory_budget: 256 * MIB,
            memtable_bytes: None,
            cache_bytes: None,
            create: true,
            salvage: false,
            background: BackgroundMode::Threads(0),
            journal_shards: 0,
            cache_stripes: 0,
            switches: Switches {
                parallel_seeks: true,
                seek_compaction: true,
                iterator_calls_max: None,
                gap_entries_min: None,
                rest_nanos: None,
            },
            merge_operators: BTreeMap::new(),
            listener: None,
        };
        for operator in builtin_operators() {
            builder = builder.register(operator);
        }
        builder
    }

    pub(crate) fn posix(path: &Path) -> Builder {
        Builder::new(path, Arc::new(PosixVfs::new()))
    }

    pub(crate) fn in_memory() -> Builder {
        Builder::new(Path::new(IN_MEMORY_DIR), Arc::new(MemoryVfs::new()))
    }

    /// The memory the store may use, in bytes, for everything: memtables, cache, filters, indexes.
    /// Default 256 MiB; at least 1 MiB.
    ///
    /// Resident memory stays below this × 1.1 + 32 MiB, whatever is held and however many keyspaces, threads and
    /// iterators there are, with these exceptions:
    ///
    /// - A batch or value of more than a quarter of the budget adds up to twice its bytes: once as the caller holds
    ///   it, once as a memtable or a buffer.
    /// - An iterator keeps 768 bytes and the keys that it has reached, taken from the cache. The cache keeps at least
    ///   an eighth of the budget; iterators beyond that (more than one for each 2 KiB of the budget) add theirs.
    ///
    /// [`Statistics`](crate::Statistics) shows where memory is.
    pub fn memory_budget(mut self, bytes: u64) -> Builder {
        self.memory_budget = bytes.max(MIB);
        self
    }

    /// The size at which a memtable is frozen. Derived from the memory budget unless set; for tests
    /// that want many small tables, and for experiments. From 1 KiB to 1 GiB.
    pub fn memtable_bytes(mut self, bytes: u64) -> Builder {
        self.memtable_bytes = Some(bytes.clamp(1024, GIB));
        self
    }

    /// What the page cache may take, in bytes, its tables included. Derived from the memory budget
    /// unless set; for tests that want a cache of a few pages.
    pub fn cache_bytes(mut self, bytes: u64) -> Builder {
        self.cache_bytes = Some(bytes);
        self
    }

    /// Whether a missing store is created (the default) or an error.
    pub fn create_if_missing(mut self, create: bool) -> Builder {
        self.create = create;
        self
    }

    /// Opens a damaged journal as far as it can be read: what lies behind the damage is dropped
    /// and reported by [`Database::recovery`](crate::Database::recovery). Without this, such damage refuses to open.
    pub fn salvage_journal(mut self, salvage: bool) -> Builder {
        self.salvage = salvage;
        self
    }

    /// The number of background threads, at most 1,024. Default: one for each core, at least two, as far as a quarter of
    /// the memory budget has 4 MiB for each. A number that is set here is reduced only where there are not
    /// even 64 KiB for each. There is one more thread, mostly asleep, that has the journal's next segments ready.
    pub fn background_threads(mut self, threads: usize) -> Builder {
        self.background = BackgroundMode::Threads(threads.max(1));
        self
    }

    /// Runs background work on the calling threads, one small step at a time, in an order drawn
    /// from `seed`: the same calls with the same seed do the same I/O. For tests; see
    /// [`Database::step`](crate::Database::step).
    pub fn deterministic(mut self, seed: u64) -> Builder {
        self.background = BackgroundMode::Stepped(seed);
        self
    }

    /// The number of journal shards, at most 1,024. Default (0): twice the root of the number of cores (2 for two, 5 for
    /// eight, 16 for 64), as far as a sixteenth of the memory budget has a segment of 1 MiB for each. A number that is set here is reduced only
    /// where there are not even 8 KiB for each.
    pub fn journal_shards(mut self, shards: usize) -> Builder {
        self.journal_shards = shards;
        self
    }

    /// The number of parts of the page cache, each with a lock of its own, rounded up to a power of two; at most 1,024.
    /// Default (0): two for each core, if each has 8 MiB of an eighth of the memory budget; one in [`Builder::deterministic`] mode. For tests.
    pub fn cache_stripes(mut self, stripes: usize) -> Builder {
        self.cache_stripes = stripes;
        self
    }

    /// Whether an iterator reads the first pages of all tables that it merges at once (the default) or one
    /// table after another. Not kept in the store; for measuring what it is worth.
    pub fn parallel_seeks(mut self, parallel: bool) -> Builder {
        self.switches.parallel_seeks = parallel;
        self
    }

    /// Whether ranges of keys that iterators have read from many tables are merged in the background (the
    /// default). Not kept in the store; for measuring what it is worth, and for stores that are to write
    /// nothing while they are only read.
    pub fn seek_compaction(mut self, compaction: bool) -> Builder {
        self.switches.seek_compaction = compaction;
        self
    }

    /// Makes each iterator close its cursors after so many calls and find its place anew, as it does when memory
    /// is short. Not kept in the store; for tests.
    pub fn iterator_calls_max(mut self, calls: u32) -> Builder {
        self.switches.iterator_calls_max = Some(calls.max(1));
        self
    }

    /// Makes iterators remember each range of so many deleted entries in succession, instead of long ones alone. Not
    /// kept in the store; for tests.
    pub fn gap_entries_min(mut self, entries: u32) -> Builder {
        self.switches.gap_entries_min = Some(entries.max(1));
        self
    }

    /// Makes the store rest after so many nanoseconds without a commit: it flushes its memtables and lends their memory to
    /// the page cache. Not kept in the store; for tests.
    pub fn rest_nanos(mut self, nanos: u64) -> Builder {
        self.switches.rest_nanos = Some(nanos);
        self
    }

    /// Puts the store on another file system than the operating system's.
    pub fn vfs(mut self, vfs: Arc<dyn Vfs>) -> Builder {
        self.vfs = vfs;
        self
    }

    /// Puts the journal, and the indexes of `slm` keyspaces, on persistent memory (SLM-DB, sections 3.1 and 3.2): into a
    /// directory of a file system that maps such memory directly (DAX). There, a commit with
    /// [`Durability::Sync`](crate::Durability::Sync) waits for the memory instead of the disk, and an index is trusted after a
    /// power loss. (Values in blob files are on the disk, and so are names: each new segment of the journal waits for it.) In a
    /// directory on another file system both are as they are in the store's own.
    ///
    /// The store's file `MEMORY` says where the directory is: opened without this option, it has its persistent memory all the
    /// same. After the directory has been moved, this option names the new place. A store gets persistent memory with its next
    /// opening for writing, and what its own directory has of journal and indexes stays there until it is not needed any more.
    /// A copy of one of the two directories is no copy of the store: see
    /// [`Database::checkpoint`](crate::Database::checkpoint). A store that was repaired has a new number, and takes a new
    /// directory. If the memory is lost, [`Builder::salvage_journal`] opens the store with the new one that is named here.
    ///
    /// Opening fails with `InvalidArgument` if the directory is missing or has none of the store's persistent memory;
    /// with `Conflict` if it has that of another store, or of this store at another time, or files of a store that does
    /// not name it, or if the directory that the store names may still have the journal. If it is full, writes fail
    /// with `Full`; so does opening for writing, which needs some hundred bytes.
    ///
    /// ```no_run
    /// use spinney::{Database, PersistentMemory};
    /// # fn main() -> spinney::Result<()> {
    /// let memory = PersistentMemory::at("/mnt/pmem0/my.store");
    /// let db = Database::builder("my.store").persistent_memory(memory).open()?;
    /// # Ok(()) }
    /// ```
    pub fn persistent_memory(mut self, memory: PersistentMemory) -> Builder {
        self.persistent_memory = Some(memory);
        self
    }

    /// Whether background work is done step by step.
    pub(crate) fn is_stepped(&self) -> bool {
        matches!(self.background, BackgroundMode::Stepped(_))
    }

    /// Registers a merge operator under its name. `"u64_add"` and `"append"` are always there.
    pub fn merge_operator(self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.register(operator)
    }

    fn register(mut self, operator: Arc<dyn MergeOperator>) -> Builder {
        self.merge_operators.insert(operator.name().to_string(), operator);
        self
    }

    /// Calls `listener` on flushes, compactions, throttling and errors.
    pub fn events(mut self, listener: Arc<dyn EventListener>) -> Builder {
        self.listener = Some(listener);
        self
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("path", &self.path)
            .field("memory_budget", &self.memory_budget)
            .finish_non_exhaustive()
    }
}

/// The operators that are always registered.
fn builtin_operators() -> [Arc<dyn MergeOperator>; 2] {
    [Arc::new(crate::merge::U64Add), Arc::new(crate::merge::Append)]
}
