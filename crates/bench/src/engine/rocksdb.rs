//! RocksDB through its C interface, which is that of 7.8 (Debian's) and later.
//!
//! Settings that are not the defaults, for a store that may use M bytes in all, with the reasons:
//! - memtables of M/8, at most three of them, and a block cache of M/2; 1/8 is left for index and filters.
//!   (With a cache of 5/8 where index and filters are in it, the limit killed it in a scan of everything);
//! - index and filters as by default, whole and in memory outside the cache, while they fit into that M/8:
//!   so they cost no look-up and are never read twice. Beyond that they are partitioned and in the cache
//!   with high priority, the top level pinned, as its wiki advises. (Whole ones in the cache are the worst
//!   of both: the filter of a large table is larger than a shard of the cache and is read from the disk for
//!   every get; seen here with `universal`.)
//! - the first level as large as four memtables, in tables of a tenth of it (4 MiB at least), as its tuning
//!   guide advises for leveled compaction;
//! - bloom filters of 10 bits a key (its wiki's recommendation), format 5 (the newest in 7.8);
//! - direct reads, and direct I/O for flushes and compactions. Under a memory limit the page cache counts
//!   against the limit just as the block cache does, so buffered I/O keeps every block twice and has the
//!   kernel choose what stays. `rocksdb:buffered` is the same without, for whoever doubts it: the better
//!   one counts;
//! - `rocksdb:smallcache` is leveled with the small cache and the four memtables of CompassDB's paper, index and filters in
//!   that cache;
//! - `rocksdb:rows` is leveled with a third of the cache for single rows, as Spinney's cache has for
//!   records: for workloads in which few keys are read often;
//! - `rocksdb:blobs` keeps values of 4 KiB and more in blob files (BlobDB), as Spinney does, which share the block
//!   cache, with garbage collection;
//! - no compression unless asked;
//! - as many background jobs and subcompactions as there are cores, at least two: background work may
//!   use the whole machine, as Spinney's may;
//! - pipelined writes are off and concurrent memtable writes on, as by default: with one write a batch
//!   and few threads its wiki gives no reason to change them;
//! - scans of more than ten thousand pairs read ahead 2 MiB and leave the block cache alone (its wiki on
//!   iterators); shorter ones have its automatic readahead;
//! - `leveled` has dynamic level sizes (its wiki's advice for bounded space); `universal` is its wiki's
//!   advice for write-heavy loads.
//!
//! `MultiGet` asks for asynchronous reads where the library's C interface has the switch (8.0 and later)
//! and the library was built with io_uring; Debian's 7.8 has neither, so there it reads block by block.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use super::library::functions;
use super::{
    Compression, Durability, Engine, Result, SMALL_CACHE, Session, Settings, SmallCache, c_path,
};

type Pointer = *mut c_void;

functions! {
    /// `rocksdb/c.h`, as far as it is used.
    Functions from ["librocksdb.so", "librocksdb.so.7.8", "librocksdb.so.8.9", "librocksdb.so.8", "librocksdb.so.9.10", "librocksdb.so.9", "librocksdb.so.10"] {
        fn rocksdb_options_create() -> Pointer;
        fn rocksdb_options_set_create_if_missing(Pointer, c_uchar);
        fn rocksdb_options_set_row_cache(Pointer, Pointer);
        fn rocksdb_options_set_enable_blob_files(Pointer, c_uchar);
        fn rocksdb_options_set_min_blob_size(Pointer, u64);
        fn rocksdb_options_set_enable_blob_gc(Pointer, c_uchar);
        fn rocksdb_options_set_blob_cache(Pointer, Pointer);
        fn rocksdb_options_set_write_buffer_size(Pointer, usize);
        fn rocksdb_options_set_max_write_buffer_number(Pointer, c_int);
        fn rocksdb_options_set_compression(Pointer, c_int);
        fn rocksdb_options_set_compaction_style(Pointer, c_int);
        fn rocksdb_options_set_level_compaction_dynamic_level_bytes(Pointer, c_uchar);
        fn rocksdb_options_set_max_background_jobs(Pointer, c_int);
        fn rocksdb_options_set_max_subcompactions(Pointer, u32);
        fn rocksdb_options_set_use_direct_reads(Pointer, c_uchar);
        fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(Pointer, c_uchar);
        fn rocksdb_options_set_max_open_files(Pointer, c_int);
        fn rocksdb_options_set_block_based_table_factory(Pointer, Pointer);
        fn rocksdb_options_set_max_bytes_for_level_base(Pointer, u64);
        fn rocksdb_options_set_target_file_size_base(Pointer, u64);
        fn rocksdb_block_based_options_create() -> Pointer;
        fn rocksdb_block_based_options_set_block_cache(Pointer, Pointer);
        fn rocksdb_block_based_options_set_filter_policy(Pointer, Pointer);
        fn rocksdb_block_based_options_set_format_version(Pointer, c_int);
        fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(Pointer, c_uchar);
        fn rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(Pointer, c_uchar);
        fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(Pointer, c_uchar);
        fn rocksdb_block_based_options_set_index_type(Pointer, c_int);
        fn rocksdb_block_based_options_set_partition_filters(Pointer, c_uchar);
        fn rocksdb_block_based_options_set_metadata_block_size(Pointer, u64);
        fn rocksdb_block_based_options_set_pin_top_level_index_and_filter(Pointer, c_uchar);
        fn rocksdb_cache_create_lru(usize) -> Pointer;
        fn rocksdb_filterpolicy_create_bloom_full(f64) -> Pointer;
        fn rocksdb_open_column_families(Pointer, *const c_char, c_int, *const *const c_char, *const Pointer, *mut Pointer, *mut *mut c_char) -> Pointer;
        fn rocksdb_column_family_handle_destroy(Pointer);
        fn rocksdb_close(Pointer);
        fn rocksdb_free(Pointer);
        fn rocksdb_readoptions_create() -> Pointer;
        fn rocksdb_readoptions_set_readahead_size(Pointer, usize);
        fn rocksdb_readoptions_set_fill_cache(Pointer, c_uchar);
        fn rocksdb_writeoptions_create() -> Pointer;
        fn rocksdb_writeoptions_set_sync(Pointer, c_uchar);
        fn rocksdb_put(Pointer, Pointer, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
        fn rocksdb_delete(Pointer, Pointer, *const c_char, usize, *mut *mut c_char);
        fn rocksdb_delete_range_cf(Pointer, Pointer, Pointer, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
        fn rocksdb_get_pinned(Pointer, Pointer, *const c_char, usize, *mut *mut c_char) -> Pointer;
        fn rocksdb_pinnableslice_value(Pointer, *mut usize) -> *const c_char;
        fn rocksdb_pinnableslice_destroy(Pointer);
        fn rocksdb_batched_multi_get_cf(Pointer, Pointer, Pointer, usize, *const *const c_char, *const usize, *mut Pointer, *mut *mut c_char, bool);
        fn rocksdb_create_iterator(Pointer, Pointer) -> Pointer;
        fn rocksdb_iter_seek(Pointer, *const c_char, usize);
        fn rocksdb_iter_valid(Pointer) -> c_uchar;
        fn rocksdb_iter_next(Pointer);
        fn rocksdb_iter_key(Pointer, *mut usize) -> *const c_char;
        fn rocksdb_iter_value(Pointer, *mut usize) -> *const c_char;
        fn rocksdb_iter_get_error(Pointer, *mut *mut c_char);
        fn rocksdb_iter_destroy(Pointer);
        fn rocksdb_property_value(Pointer, *const c_char) -> *mut c_char;
    }
}

const NO_COMPRESSION: c_int = 0;
const LZ4_COMPRESSION: c_int = 4;
const PARTITIONED_INDEX: c_int = 2;
/// Scans of more pairs than this read ahead by `LONG_SCAN_READAHEAD_BYTES`.
const LONG_SCAN_PAIRS: u64 = 10_000;
const LONG_SCAN_READAHEAD_BYTES: usize = 2 << 20;
const UNIVERSAL_COMPACTION: c_int = 1;
/// `rocksdb:blobs` keeps values from this size on in blob files, as Spinney does.
const BLOB_BYTES_MIN: u64 = 4096;

pub(super) fn configurations() -> Vec<&'static str> {
    vec!["leveled", "universal", "buffered", "rows", "blobs", SMALL_CACHE]
}

pub(super) fn available() -> Result<()> {
    Functions::load().map(|_| ())
}

struct Rocks {
    functions: Functions,
    db: Pointer,
    family: Pointer,
    read: Pointer,
    read_long: Pointer,
    read_batch: Pointer,
    write: Pointer,
    write_sync: Pointer,
}

// SAFETY: a RocksDB database and its options may be used from any thread, which its documentation
// promises ("Concurrency").
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

/// The approximate size of index and filters: 10 bits per pair, and a key and a position per block of 4 KiB.
fn metadata_bytes(settings: &Settings) -> u64 {
    let bytes = settings.pairs * settings.pair_bytes;
    settings.pairs * 10 / 8 + bytes.div_ceil(4096) * 32
}

pub(super) fn open(settings: &Settings, configuration: &str) -> Result<Box<dyn Engine>> {
    let f = Functions::load()?;
    let path = c_path(&settings.dir)?;
    let memory = usize::try_from(settings.memory_bytes).map_err(|e| e.to_string())?;
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    // SAFETY: each function is called as its header says, with objects that the ones before have made
    // and that live as long as the process.
    unsafe {
        let table = (f.rocksdb_block_based_options_create)();
        let records = if configuration == "rows" { memory / 6 } else { 0 };
        let small = (configuration == SMALL_CACHE).then(|| SmallCache::of(settings));
        let cache_bytes = small.as_ref().map_or(memory / 2 - records, |small| small.cache_bytes);
        let cache = (f.rocksdb_cache_create_lru)(cache_bytes);
        (f.rocksdb_block_based_options_set_block_cache)(table, cache);
        let filter = (f.rocksdb_filterpolicy_create_bloom_full)(10.0);
        (f.rocksdb_block_based_options_set_filter_policy)(table, filter);
        (f.rocksdb_block_based_options_set_format_version)(table, 5);
        if small.is_some() {
            (f.rocksdb_block_based_options_set_cache_index_and_filter_blocks)(table, 1);
        } else if metadata_bytes(settings) > settings.memory_bytes / 8 {
            (f.rocksdb_block_based_options_set_cache_index_and_filter_blocks)(table, 1);
            (f.rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority)(
                table, 1,
            );
            (f.rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache)(table, 1);
            (f.rocksdb_block_based_options_set_index_type)(table, PARTITIONED_INDEX);
            (f.rocksdb_block_based_options_set_partition_filters)(table, 1);
            (f.rocksdb_block_based_options_set_metadata_block_size)(table, 4096);
            (f.rocksdb_block_based_options_set_pin_top_level_index_and_filter)(table, 1);
        }
        let options = (f.rocksdb_options_create)();
        (f.rocksdb_options_set_create_if_missing)(options, 1);
        if records > 0 {
            (f.rocksdb_options_set_row_cache)(options, (f.rocksdb_cache_create_lru)(records));
        }
        if configuration == "blobs" {
            (f.rocksdb_options_set_enable_blob_files)(options, 1);
            (f.rocksdb_options_set_min_blob_size)(options, BLOB_BYTES_MIN);
            (f.rocksdb_options_set_enable_blob_gc)(options, 1);
            (f.rocksdb_options_set_blob_cache)(options, cache);
        }
        let memtable = settings.memtable_bytes.map_or(memory / 8, |bytes| bytes as usize);
        let memtable = small.as_ref().map_or(memtable, |small| small.memtable_bytes);
        (f.rocksdb_options_set_write_buffer_size)(options, memtable);
        let memtables = if small.is_some() { 4 } else { 3 };
        (f.rocksdb_options_set_max_write_buffer_number)(options, memtables);
        let set =
            settings.memtable_bytes.or(small.as_ref().map(|small| small.memtable_bytes as u64));
        let level_base = set.map_or(settings.memory_bytes / 2, |memtable| memtable * 10);
        (f.rocksdb_options_set_max_bytes_for_level_base)(options, level_base);
        (f.rocksdb_options_set_target_file_size_base)(options, (level_base / 10).max(4 << 20));
        let compression = match settings.compression {
            Compression::None => NO_COMPRESSION,
            Compression::Lz4 => LZ4_COMPRESSION,
        };
        (f.rocksdb_options_set_compression)(options, compression);
        match configuration {
            "universal" => (f.rocksdb_options_set_compaction_style)(options, UNIVERSAL_COMPACTION),
            _ => (f.rocksdb_options_set_level_compaction_dynamic_level_bytes)(options, 1),
        }
        (f.rocksdb_options_set_max_background_jobs)(options, cores as c_int);
        (f.rocksdb_options_set_max_subcompactions)(options, cores as u32);
        let direct = c_uchar::from(configuration != "buffered");
        (f.rocksdb_options_set_use_direct_reads)(options, direct);
        (f.rocksdb_options_set_use_direct_io_for_flush_and_compaction)(options, direct);
        (f.rocksdb_options_set_max_open_files)(options, -1);
        (f.rocksdb_options_set_block_based_table_factory)(options, table);
        let mut error = null_mut();
        let (names, mut family) = ([c"default".as_ptr()], null_mut());
        let db = (f.rocksdb_open_column_families)(
            options,
            path.as_ptr(),
            1,
            names.as_ptr(),
            &options,
            &mut family,
            &mut error,
        );
        checked(&f, error)?;
        let read = (f.rocksdb_readoptions_create)();
        let read_long = (f.rocksdb_readoptions_create)();
        (f.rocksdb_readoptions_set_readahead_size)(read_long, LONG_SCAN_READAHEAD_BYTES);
        (f.rocksdb_readoptions_set_fill_cache)(read_long, 0);
        let read_batch = (f.rocksdb_readoptions_create)();
        type Set = unsafe extern "C" fn(Pointer, c_uchar);
        if let Ok(set) =
            f._library.get::<Set>(c"rocksdb_readoptions_set_async_io".to_bytes_with_nul())
        {
            set(read_batch, 1);
        }
        let write = (f.rocksdb_writeoptions_create)();
        let write_sync = (f.rocksdb_writeoptions_create)();
        (f.rocksdb_writeoptions_set_sync)(write_sync, 1);
        Ok(Box::new(Rocks {
            functions: f,
            db,
            family,
            read,
            read_long,
            read_batch,
            write,
            write_sync,
        }))
    }
}

/// Takes an error over.
fn checked(functions: &Functions, error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB's errors are C strings that the caller frees.
    let text = unsafe { CStr::from_ptr(error).to_string_lossy().into_owned() };
    // SAFETY: as above; it is not used again.
    unsafe { (functions.rocksdb_free)(error.cast()) };
    Err(text)
}

impl Rocks {
    fn property(&self, name: &CStr) -> Option<String> {
        // SAFETY: the database is open and the name a C string.
        let text = unsafe { (self.functions.rocksdb_property_value)(self.db, name.as_ptr()) };
        if text.is_null() {
            return None;
        }
        // SAFETY: the answer is a C string that the caller frees.
        let found = unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() };
        // SAFETY: as above; it is not used again.
        unsafe { (self.functions.rocksdb_free)(text.cast()) };
        Some(found)
    }
}

impl Engine for Rocks {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(RocksSession { rocks: self, pointers: Vec::new(), lengths: Vec::new() }))
    }

    /// A compaction may stay pending that it never starts, so a second without any at work will do.
    fn settle(&self) -> Result<()> {
        let is_zero = |name: &CStr| self.property(name).is_none_or(|n| n.trim() == "0");
        let working = [
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-flushes",
            c"rocksdb.num-running-compactions",
        ];
        let mut quiet = 0;
        while quiet < 50 {
            std::thread::sleep(Duration::from_millis(20));
            quiet = if working.iter().all(|name| is_zero(name)) { quiet + 1 } else { 0 };
            if quiet >= 5 && is_zero(c"rocksdb.compaction-pending") {
                break;
            }
        }
        Ok(())
    }

    /// Its statistics would say it too, but cost every operation something.
    fn throttled(&self) -> Option<Duration> {
        stalled(&self.property(c"rocksdb.dbstats")?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: no session lives on, since they borrow the engine.
        unsafe {
            (self.functions.rocksdb_column_family_handle_destroy)(self.family);
            (self.functions.rocksdb_close)(self.db);
        }
        Ok(())
    }
}

/// Finds `Cumulative stall: 00:00:1.250 H:M:S` in its statistics.
fn stalled(statistics: &str) -> Option<Duration> {
    let (_, rest) = statistics.split_once("Cumulative stall: ")?;
    let parts: Vec<f64> =
        rest.split_whitespace().next()?.split(':').map_while(|part| part.parse().ok()).collect();
    match parts[..] {
        [hours, minutes, seconds] => {
            Duration::try_from_secs_f64(hours * 3600.0 + minutes * 60.0 + seconds).ok()
        }
        _ => None,
    }
}

struct RocksSession<'a> {
    rocks: &'a Rocks,
    pointers: Vec<*const c_char>,
    lengths: Vec<usize>,
}

impl RocksSession<'_> {
    /// Hands out a pinned value and lets it go.
    fn take(&self, pinned: Pointer, give: &mut dyn FnMut(Option<&[u8]>)) {
        if pinned.is_null() {
            return give(None);
        }
        let mut len = 0;
        // SAFETY: the slice is pinned until it is destroyed below.
        let value = unsafe {
            let value = (self.rocks.functions.rocksdb_pinnableslice_value)(pinned, &mut len);
            std::slice::from_raw_parts(value.cast::<u8>(), len)
        };
        give(Some(value));
        // SAFETY: nothing refers to it any more.
        unsafe { (self.rocks.functions.rocksdb_pinnableslice_destroy)(pinned) };
    }
}

impl Session for RocksSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let Rocks { functions, db, write, write_sync, .. } = self.rocks;
        let options = if durability == Durability::Sync { *write_sync } else { *write };
        let mut error = null_mut();
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: both slices live through the call.
        unsafe { (functions.rocksdb_put)(*db, options, k, key.len(), v, value.len(), &mut error) };
        checked(functions, error)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let Rocks { functions, db, write, .. } = self.rocks;
        let mut error = null_mut();
        // SAFETY: the slice lives through the call.
        unsafe {
            (functions.rocksdb_delete)(*db, *write, key.as_ptr().cast(), key.len(), &mut error)
        };
        checked(functions, error)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let Rocks { functions, db, family, write, .. } = self.rocks;
        let (mut error, delete) = (null_mut(), functions.rocksdb_delete_range_cf);
        let bounds = (from.as_ptr().cast(), from.len(), to.as_ptr().cast(), to.len());
        // SAFETY: the slices live through the call.
        unsafe { delete(*db, *write, *family, bounds.0, bounds.1, bounds.2, bounds.3, &mut error) };
        checked(functions, error)
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        let Rocks { functions, db, read, .. } = self.rocks;
        let mut error = null_mut();
        // SAFETY: the slice lives through the call.
        let pinned = unsafe {
            (functions.rocksdb_get_pinned)(*db, *read, key.as_ptr().cast(), key.len(), &mut error)
        };
        checked(functions, error)?;
        self.take(pinned, found);
        Ok(())
    }

    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let Rocks { functions, db, family, read_batch, .. } = self.rocks;
        self.pointers.clear();
        self.pointers.extend(keys.iter().map(|key| key.as_ptr().cast::<c_char>()));
        self.lengths.clear();
        self.lengths.extend(keys.iter().map(Vec::len));
        let mut values: Vec<Pointer> = vec![null_mut(); keys.len()];
        let mut errors: Vec<*mut c_char> = vec![null_mut(); keys.len()];
        // SAFETY: all arrays have as many places as there are keys, and live through the call.
        unsafe {
            (functions.rocksdb_batched_multi_get_cf)(
                *db,
                *read_batch,
                *family,
                keys.len(),
                self.pointers.as_ptr(),
                self.lengths.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                false,
            );
        }
        let mut result = Ok(());
        for (place, (pinned, error)) in values.into_iter().zip(errors).enumerate() {
            result = result.and(checked(functions, error));
            self.take(pinned, &mut |found| each(place, found));
        }
        result
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        let Rocks { functions: f, db, read, read_long, .. } = self.rocks;
        let read = if count > LONG_SCAN_PAIRS { read_long } else { read };
        let mut error = null_mut();
        let mut seen = 0;
        // SAFETY: the iterator lives until it is destroyed; keys and values until it moves.
        unsafe {
            let iterator = (f.rocksdb_create_iterator)(*db, *read);
            (f.rocksdb_iter_seek)(iterator, from.as_ptr().cast(), from.len());
            while seen < count && (f.rocksdb_iter_valid)(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = (f.rocksdb_iter_key)(iterator, &mut key_len);
                let value = (f.rocksdb_iter_value)(iterator, &mut value_len);
                each(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
                seen += 1;
                (f.rocksdb_iter_next)(iterator);
            }
            (f.rocksdb_iter_get_error)(iterator, &mut error);
            (f.rocksdb_iter_destroy)(iterator);
        }
        checked(f, error)?;
        Ok(seen)
    }

    fn seek_each(
        &mut self,
        next_key: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let Rocks { functions: f, db, read, .. } = self.rocks;
        let (mut error, mut sought) = (null_mut(), Vec::new());
        // SAFETY: the iterator lives until it is destroyed; keys and values until it moves.
        unsafe {
            let iterator = (f.rocksdb_create_iterator)(*db, *read);
            while next_key(&mut sought) {
                (f.rocksdb_iter_seek)(iterator, sought.as_ptr().cast(), sought.len());
                if (f.rocksdb_iter_valid)(iterator) == 0 {
                    continue;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = (f.rocksdb_iter_key)(iterator, &mut key_len);
                let value = (f.rocksdb_iter_value)(iterator, &mut value_len);
                each(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
            }
            (f.rocksdb_iter_get_error)(iterator, &mut error);
            (f.rocksdb_iter_destroy)(iterator);
        }
        checked(f, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stall_is_found_in_the_statistics() {
        let text = "** DB Stats **\nUptime(secs): 4.0 total\nCumulative stall: 00:01:2.250 H:M:S, 1.0 percent\n";
        assert_eq!(stalled(text), Some(Duration::from_millis(62_250)));
        assert_eq!(stalled("Cumulative stall: none"), None);
    }
}
