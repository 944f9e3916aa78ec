//! SplinterDB through its public C interface, as commit d2173e0e of github.com/vmware/splinterdb has it.
//!
//! It is in no distribution: whoever wants it builds its shared library and names it in
//! `SPINNEY_SPLINTERDB` (or puts it where libraries are looked for). Its interface passes structures whose
//! fields move from commit to commit, so a library that does not say that it is of this one is refused.
//!
//! What it gives, from its source and its `docs/limitations.md`:
//! - it writes a log, but has no recovery that would read it back. A store whose process died opens as an
//!   empty one. So `reopen` is refused, and no `Buffered` write survives the end of the process;
//! - the log is written page by page as pages fill, without waiting and without a sync, and its space is
//!   never used again while the store is open;
//! - nothing makes a write durable but closing the store, so `sync` is refused.
//!
//! So it comes with its log, which is the work that `Buffered` takes elsewhere, and as `splinterdb:nolog`,
//! which has all that was written in memory or in a tree that only a clean close makes readable. The better
//! one counts, and both promise less than Spinney does.
//!
//! Settings that are not the defaults, for a store that may use M bytes in all, with the reasons:
//! - `disk_size` is fixed when a store is made, and its cache holds four bytes of memory for each page of
//!   it, used or not: so it is so many times the data as loads and overwrites were seen to need, no more;
//! - `memtable_capacity` of M/16, at most the default of 24 MiB, at least 2 MiB (with half a MiB it ends on
//!   an assertion: empty ones are full): a memtable lives in the cache, takes up to twice its capacity there,
//!   and there are four. (With M of 128 MiB and 8 M pairs, loads with 4, 16 and 24
//!   MiB were all slower than with 8.)
//! - `cache_size`: what is left of M after the tables of the cache and the allocator, and M/16 for what
//!   compactions and filters take from the heap; at least 16 MiB, below which it does not work;
//! - `O_DIRECT`: under a memory limit the page cache takes away from the cache, and without it scans were
//!   seen to be half as fast. But each page of the log is then a write by itself, so loads with a log are
//!   faster without: `splinterdb:buffered` is that one;
//! - one thread for memtables (its header: one for ten inserting threads) and as many for compactions as
//!   there are cores, at least two, as for the others here (loads with half and with twice as many were
//!   slower); `queue_scale_percent` 100, which its header calls the default and its code does not set:
//!   foreground threads help when those fall behind (0, always to help, made no difference);
//! - no statistics.
//!
//! Of what is left as it is, a smaller `prefetch_budget` was tried, for short scans: it has no effect, since
//! every branch reads two extents ahead at least.
//!
//! `settle` asks two functions that its library exports for its own tests whether its queues are empty;
//! there is no public call. What is dirty in its cache then is not yet written, as with memtables elsewhere.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::OFlags;

use super::library::functions;
use super::{Durability, Engine, Need, Result, Session, Settings, c_path};

/// How to install it.
pub(super) const REMEDY: &str = "build it (packages libaio-dev, libxxhash-dev, xxd) with \
     `git clone https://github.com/vmware/splinterdb && cd splinterdb && git checkout d2173e0e && \
     CC=gcc LD=gcc make libs`, and set SPINNEY_SPLINTERDB to the path of its \
     build/release/lib/libsplinterdb.so";

/// What it does not support.
pub(super) const LACKS: &[(Need, &str)] = &[
    (Need::Sync, "SplinterDB has no call that makes a write durable (docs/limitations.md there)"),
    (
        Need::Recovery,
        "SplinterDB has no recovery: after the death of its process a store is empty \
         (docs/limitations.md there)",
    ),
];

/// The end of the result of `splinterdb_get_version` at that commit.
const COMMIT: &str = "d2173e0e";

type Pointer = *mut c_void;

/// `slice`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Slice {
    len: u64,
    data: *const c_void,
}

impl Slice {
    const NULL: Slice = Slice { len: 0, data: null() };

    fn of(bytes: &[u8]) -> Slice {
        Slice { len: bytes.len() as u64, data: bytes.as_ptr().cast() }
    }

    /// # Safety
    /// SplinterDB filled it in, and what it points to is still there.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len as usize) }
    }
}

/// `data_config`: six functions.
#[repr(C)]
struct DataConfig([*const c_void; 6]);

/// `splinterdb_config`; zero means the default.
#[repr(C)]
struct Config {
    filename: *const c_char,
    cache_size: u64,
    disk_size: u64,
    data_config: *mut DataConfig,
    heap_handle: Pointer,
    heap_id: Pointer,
    shared_memory_size: u64,
    use_shared_memory: bool,
    page_size: u64,
    extent_size: u64,
    io_flags: c_int,
    io_permissions: u32,
    io_async_queue_depth: u64,
    cache_use_stats: bool,
    cache_logfile: *const c_char,
    memtable_threads: u64,
    normal_threads: u64,
    btree_rough_count_height: u64,
    filter_hash_size: u64,
    filter_log_index_size: u64,
    use_log: bool,
    memtable_capacity: u64,
    fanout: u64,
    use_stats: u64,
    reclaim_threshold: u64,
    queue_scale_percent: u64,
    prefetch_budget: u64,
}

/// `splinterdb_lookup_result`: opaque.
#[repr(C, align(8))]
struct LookupResult([u8; 160]);

// What a C compiler says of that commit's header on 64-bit Linux.
const _: () = assert!(
    size_of::<Config>() == 208
        && size_of::<DataConfig>() == 48
        && std::mem::offset_of!(Config, io_flags) == 80
        && std::mem::offset_of!(Config, use_log) == 152
        && std::mem::offset_of!(Config, prefetch_budget) == 200
);

functions! {
    /// `splinterdb.h`, as far as it is used, and the last two from `splinterdb_tests_private.h` and `task.h`.
    Functions from env "SPINNEY_SPLINTERDB", ["libsplinterdb.so"] {
        fn splinterdb_get_version() -> *const c_char;
        fn default_data_config_init(*mut DataConfig);
        fn splinterdb_create(*const Config, *mut Pointer) -> c_int;
        fn splinterdb_open(*const Config, *mut Pointer) -> c_int;
        fn splinterdb_close(*mut Pointer);
        fn splinterdb_insert(Pointer, Slice, Slice, *mut LookupResult) -> c_int;
        fn splinterdb_delete(Pointer, Slice, *mut LookupResult) -> c_int;
        fn splinterdb_lookup_result_init(Pointer, *mut LookupResult, u64, u64, *mut c_char);
        fn splinterdb_lookup_result_deinit(*mut LookupResult);
        fn splinterdb_lookup(Pointer, Slice, *mut LookupResult) -> c_int;
        fn splinterdb_lookup_found(*const LookupResult) -> bool;
        fn splinterdb_lookup_result_value(*const LookupResult, *mut Slice) -> c_int;
        fn splinterdb_iterator_init(Pointer, *mut Pointer, c_uint, Slice) -> c_int;
        fn splinterdb_iterator_valid(Pointer) -> bool;
        fn splinterdb_iterator_next(Pointer);
        fn splinterdb_iterator_get_current(Pointer, *mut Slice, *mut Slice);
        fn splinterdb_iterator_status(Pointer) -> c_int;
        fn splinterdb_iterator_deinit(Pointer);
        fn splinterdb_get_task_system_handle(Pointer) -> Pointer;
        fn task_system_is_quiescent(Pointer) -> i32;
    }
}

const GREATER_THAN_OR_EQUAL: c_uint = 3;
const LOOKUP_VALUE: u64 = 0;
const PAGE_BYTES: u64 = 4096;
const EXTENT_BYTES: u64 = 32 * PAGE_BYTES;

/// It is loaded once and stays: threads that have used it run its code when they end.
fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| {
        let functions = Functions::load()?;
        // SAFETY: it takes nothing and gives a static string, at every commit.
        let version = unsafe { CStr::from_ptr((functions.splinterdb_get_version)()) };
        let version = version.to_string_lossy();
        if !version.ends_with(COMMIT) {
            return Err(format!(
                "the library says that it is {version:?}, and only the structures of commit {COMMIT}, \
                 unchanged, are known here"
            ));
        }
        Ok(functions)
    });
    loaded.as_ref().map_err(Clone::clone)
}

pub(super) fn configurations() -> Vec<&'static str> {
    vec!["default", "buffered", "nolog"]
}

pub(super) fn available() -> Result<()> {
    functions().map(|_| ())
}

/// Its share of the memory, and the size of its disk.
struct Shares {
    disk_bytes: u64,
    cache_bytes: u64,
    memtable_bytes: u64,
}

impl Shares {
    fn of(settings: &Settings, use_log: bool) -> Shares {
        let (memory, data) = (settings.memory_bytes, settings.pairs * settings.pair_bytes);
        // The log takes as much again as all that is ever written.
        let times = if use_log { 14 } else { 8 };
        let disk_bytes = (data * times + (1 << 30)).next_multiple_of(EXTENT_BYTES);
        let tables = disk_bytes / PAGE_BYTES * 4 + disk_bytes / EXTENT_BYTES * 4;
        // A page of the cache takes about 70 bytes more. The cache is made of batches of 64 pages.
        let batch = 64 * PAGE_BYTES;
        let pages = (memory - memory / 16).saturating_sub(tables) / (PAGE_BYTES + 70);
        let cache_bytes = (pages * PAGE_BYTES / batch * batch).max(16 << 20);
        let memtable_bytes = (memory / 16).clamp(2 << 20, 24 << 20);
        Shares { disk_bytes, cache_bytes, memtable_bytes }
    }
}

pub(super) fn open(settings: &Settings, configuration: &str) -> Result<Box<dyn Engine>> {
    let f = functions()?;
    let file = settings.dir.join("splinterdb");
    let path = c_path(&file)?;
    let use_log = configuration != "nolog";
    let shares = Shares::of(settings, use_log);
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    // The store keeps a pointer to it: it lives as long as the process.
    let data_config: *mut DataConfig = Box::leak(Box::new(DataConfig([null(); 6])));
    // SAFETY: it fills in the structure, which is of the size that the version stands for.
    unsafe { (f.default_data_config_init)(data_config) };
    let there = file.exists();
    let direct = match configuration {
        "buffered" => OFlags::empty(),
        _ => OFlags::DIRECT,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | direct;
    let config = Config {
        filename: path.as_ptr(),
        cache_size: shares.cache_bytes,
        // Of a store that is there, it knows it.
        disk_size: if there { 0 } else { shares.disk_bytes },
        data_config,
        heap_handle: null_mut(),
        heap_id: null_mut(),
        shared_memory_size: 0,
        use_shared_memory: false,
        page_size: 0,
        extent_size: 0,
        io_flags: flags.bits() as c_int,
        io_permissions: 0,
        io_async_queue_depth: 0,
        cache_use_stats: false,
        cache_logfile: null(),
        memtable_threads: 1,
        normal_threads: cores as u64,
        btree_rough_count_height: 0,
        filter_hash_size: 0,
        filter_log_index_size: 0,
        use_log,
        memtable_capacity: shares.memtable_bytes,
        fanout: 0,
        use_stats: 0,
        reclaim_threshold: 0,
        queue_scale_percent: 100,
        prefetch_budget: 0,
    };
    let mut db = null_mut();
    // SAFETY: the configuration and the path are only read, during the call; what it keeps lives on.
    let code = unsafe {
        match there {
            true => (f.splinterdb_open)(&config, &mut db),
            false => (f.splinterdb_create)(&config, &mut db),
        }
    };
    checked(code, "opening")?;
    Ok(Box::new(Splinter { functions: f, db }))
}

/// Its codes are those of the system.
fn checked(code: c_int, doing: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(format!("{doing}: {}", std::io::Error::from_raw_os_error(code))),
    }
}

struct Splinter {
    functions: &'static Functions,
    db: Pointer,
}

// SAFETY: a SplinterDB store may be used from any thread; it registers each by itself (its header).
unsafe impl Send for Splinter {}
// SAFETY: as above.
unsafe impl Sync for Splinter {}

impl Engine for Splinter {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let mut result = Box::new(LookupResult([0; 160]));
        // SAFETY: the result is of the size that the header gives; without a buffer the library makes one.
        unsafe {
            (self.functions.splinterdb_lookup_result_init)(
                self.db,
                &mut *result,
                LOOKUP_VALUE,
                0,
                null_mut(),
            );
        }
        Ok(Box::new(SplinterSession { splinter: self, result }))
    }

    /// A task may add the next one a moment after it has ended, so it must stay quiet for a little.
    fn settle(&self) -> Result<()> {
        let f = self.functions;
        // SAFETY: the store is open and its task system lives as long.
        let tasks = unsafe { (f.splinterdb_get_task_system_handle)(self.db) };
        let mut quiet = 0;
        while quiet < 5 {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: as above; it takes its own locks.
            quiet = if unsafe { (f.task_system_is_quiescent)(tasks) } != 0 { quiet + 1 } else { 0 };
        }
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        // SAFETY: no session lives on, since they borrow the engine.
        unsafe { (self.functions.splinterdb_close)(&mut self.db) };
        Ok(())
    }
}

struct SplinterSession<'a> {
    splinter: &'a Splinter,
    result: Box<LookupResult>,
}

impl Drop for SplinterSession<'_> {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and the store is still open.
        unsafe { (self.splinter.functions.splinterdb_lookup_result_deinit)(&mut *self.result) };
    }
}

impl SplinterSession<'_> {
    fn look_up(&mut self, key: &[u8], give: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        let Splinter { functions: f, db, .. } = *self.splinter;
        let result = &mut *self.result;
        // SAFETY: the key lives through the call, and the result belongs to this store.
        checked(unsafe { (f.splinterdb_lookup)(db, Slice::of(key), result) }, "look-up")?;
        // SAFETY: the result is that of the look-up.
        if !unsafe { (f.splinterdb_lookup_found)(result) } {
            give(None);
            return Ok(());
        }
        let mut value = Slice::NULL;
        // SAFETY: as above.
        checked(unsafe { (f.splinterdb_lookup_result_value)(result, &mut value) }, "value")?;
        // SAFETY: the value is in the result until its next use.
        give(Some(unsafe { value.bytes() }));
        Ok(())
    }
}

impl Session for SplinterSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        if durability == Durability::Sync {
            return Err("it has no call that makes a write durable".to_string());
        }
        let Splinter { functions: f, db, .. } = *self.splinter;
        let (key, value) = (Slice::of(key), Slice::of(value));
        // SAFETY: both slices live through the call, and it copies them.
        checked(unsafe { (f.splinterdb_insert)(db, key, value, null_mut()) }, "insert")
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let Splinter { functions: f, db, .. } = *self.splinter;
        // SAFETY: the slice lives through the call.
        checked(unsafe { (f.splinterdb_delete)(db, Slice::of(key), null_mut()) }, "delete")
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        self.look_up(key, found)
    }

    /// It has no batched reads.
    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut places = keys.iter().enumerate();
        places.try_for_each(|(place, key)| self.look_up(key, &mut |found| each(place, found)))
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let Splinter { functions: f, db, .. } = *self.splinter;
        let from = if from.is_empty() { Slice::NULL } else { Slice::of(from) };
        let (mut iterator, mut seen) = (null_mut(), 0);
        // SAFETY: the iterator lives until it is ended; keys and values until it moves.
        let status = unsafe {
            let code = (f.splinterdb_iterator_init)(db, &mut iterator, GREATER_THAN_OR_EQUAL, from);
            checked(code, "iterator")?;
            while seen < count && (f.splinterdb_iterator_valid)(iterator) {
                let (mut key, mut value) = (Slice::NULL, Slice::NULL);
                (f.splinterdb_iterator_get_current)(iterator, &mut key, &mut value);
                each(key.bytes(), value.bytes());
                seen += 1;
                if seen < count {
                    (f.splinterdb_iterator_next)(iterator);
                }
            }
            let status = (f.splinterdb_iterator_status)(iterator);
            (f.splinterdb_iterator_deinit)(iterator);
            status
        };
        checked(status, "iterator")?;
        Ok(seen)
    }
}
