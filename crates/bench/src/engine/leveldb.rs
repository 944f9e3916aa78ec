//! LevelDB, and PebblesDB, which is made from it, through the C interface of both.
//!
//! Settings that are not the defaults, for a store that may use M bytes in all: a write buffer of M/8 (a
//! second one may be on its way to the disk), a block cache of M/2 (the rest is for the index and filter
//! blocks of open tables, which it keeps outside the cache), bloom filters of 10 bits a key, no
//! compression unless asked.
//!
//! It has one background thread and no direct I/O. It maps its tables (up to a thousand) and cannot be told
//! not to, nor to do without the kernel's reading ahead: where the data is larger than the memory, each
//! miss reads as far as the device's `read_ahead_kb` says, which can be all of a table.
//!
//! PebblesDB gets the same settings, but a block cache of M/8: with M/2 a load of 20 M pairs in 64 MiB needed more than
//! the limit, since the indexes and filters of a thousand tables are outside the cache. (With M/8 it was run with up to 5 M.)
//! `pebblesdb:smallcache` has the small cache and the memtable of CompassDB's paper (one more may be on its way).
//! PebblesDB is in no distribution: whoever wants it builds its shared library and names it in `SPINNEY_PEBBLESDB`. Its parallel seeks are off in its source (`SEEK_PARALLEL`), its filters of
//! whole tables are on and outside the cache. Its interface exports LevelDB's names, so a process has one of both.

use std::ffi::{CStr, OsString, c_char, c_int, c_uchar, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use super::library::functions;
use super::{
    Compression, Durability, Engine, Result, SMALL_CACHE, Session, Settings, SmallCache, c_path,
};

type Pointer = *mut c_void;

functions! {
    /// `leveldb/c.h`, as far as it is used.
    Functions from ["libleveldb.so", "libleveldb.so.1d", "libleveldb.so.1"] {
        fn leveldb_options_create() -> Pointer;
        fn leveldb_options_set_create_if_missing(Pointer, c_uchar);
        fn leveldb_options_set_write_buffer_size(Pointer, usize);
        fn leveldb_options_set_cache(Pointer, Pointer);
        fn leveldb_options_set_filter_policy(Pointer, Pointer);
        fn leveldb_options_set_compression(Pointer, c_int);
        fn leveldb_cache_create_lru(usize) -> Pointer;
        fn leveldb_filterpolicy_create_bloom(c_int) -> Pointer;
        fn leveldb_open(Pointer, *const c_char, *mut *mut c_char) -> Pointer;
        fn leveldb_close(Pointer);
        fn leveldb_free(Pointer);
        fn leveldb_readoptions_create() -> Pointer;
        fn leveldb_writeoptions_create() -> Pointer;
        fn leveldb_writeoptions_set_sync(Pointer, c_uchar);
        fn leveldb_put(Pointer, Pointer, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
        fn leveldb_delete(Pointer, Pointer, *const c_char, usize, *mut *mut c_char);
        fn leveldb_get(Pointer, Pointer, *const c_char, usize, *mut usize, *mut *mut c_char) -> *mut c_char;
        fn leveldb_create_iterator(Pointer, Pointer) -> Pointer;
        fn leveldb_iter_seek(Pointer, *const c_char, usize);
        fn leveldb_iter_valid(Pointer) -> c_uchar;
        fn leveldb_iter_next(Pointer);
        fn leveldb_iter_key(Pointer, *mut usize) -> *const c_char;
        fn leveldb_iter_value(Pointer, *mut usize) -> *const c_char;
        fn leveldb_iter_get_error(Pointer, *mut *mut c_char);
        fn leveldb_iter_destroy(Pointer);
        fn leveldb_property_value(Pointer, *const c_char) -> *mut c_char;
    }
}

/// How to install PebblesDB.
pub(super) const PEBBLESDB_REMEDY: &str = "build it (packages autoconf, libtool, libsnappy-dev, g++) with \
     `git clone https://github.com/utsaslab/pebblesdb && cd pebblesdb/src && git checkout 703bd01b && autoreconf -i && \
     ./configure CXXFLAGS='-O2 -DNDEBUG -std=c++11 -fpermissive -w' && make libpebblesdb.la`, and set \
     SPINNEY_PEBBLESDB to the path of its .libs/libpebblesdb.so";

const NO_COMPRESSION: c_int = 0;
const SNAPPY_COMPRESSION: c_int = 1;

struct Level {
    functions: Functions,
    db: Pointer,
    read: Pointer,
    write: Pointer,
    write_sync: Pointer,
}

// SAFETY: a LevelDB database may be used from any thread ("Concurrency" in its documentation).
unsafe impl Send for Level {}
// SAFETY: as above.
unsafe impl Sync for Level {}

pub(super) fn available() -> Result<()> {
    Functions::load().map(|_| ())
}

/// PebblesDB's library.
fn load_pebblesdb() -> Result<Functions> {
    let named = std::env::var_os("SPINNEY_PEBBLESDB");
    Functions::load_first(&[named.unwrap_or_else(|| OsString::from("libpebblesdb.so"))])
}

pub(super) fn pebblesdb_available() -> Result<()> {
    load_pebblesdb().map(|_| ())
}

pub(super) fn open(settings: &Settings, _configuration: &str) -> Result<Box<dyn Engine>> {
    let memory = settings.memory_bytes;
    open_with(Functions::load()?, settings, (memory / 8, memory / 2))
}

pub(super) fn open_pebblesdb(settings: &Settings, configuration: &str) -> Result<Box<dyn Engine>> {
    let bytes = match configuration {
        SMALL_CACHE => {
            let SmallCache { cache_bytes, memtable_bytes } = SmallCache::of(settings);
            (memtable_bytes as u64, cache_bytes as u64)
        }
        _ => (settings.memory_bytes / 8, settings.memory_bytes / 8),
    };
    open_with(load_pebblesdb()?, settings, bytes)
}

/// Opens a store with a memtable and a block cache of so many bytes.
fn open_with(
    f: Functions,
    settings: &Settings,
    (memtable_bytes, cache_bytes): (u64, u64),
) -> Result<Box<dyn Engine>> {
    let path = c_path(&settings.dir)?;
    // SAFETY: each function is called as its header says, with objects that the ones before have made
    // and that live as long as the process.
    unsafe {
        let options = (f.leveldb_options_create)();
        (f.leveldb_options_set_create_if_missing)(options, 1);
        let memtable = settings.memtable_bytes.unwrap_or(memtable_bytes);
        (f.leveldb_options_set_write_buffer_size)(options, memtable as usize);
        let cache = (f.leveldb_cache_create_lru)(cache_bytes as usize);
        (f.leveldb_options_set_cache)(options, cache);
        (f.leveldb_options_set_filter_policy)(options, (f.leveldb_filterpolicy_create_bloom)(10));
        let compression = match settings.compression {
            Compression::None => NO_COMPRESSION,
            Compression::Lz4 => SNAPPY_COMPRESSION,
        };
        (f.leveldb_options_set_compression)(options, compression);
        let mut error = null_mut();
        let db = (f.leveldb_open)(options, path.as_ptr(), &mut error);
        checked(&f, error)?;
        let read = (f.leveldb_readoptions_create)();
        let write = (f.leveldb_writeoptions_create)();
        let write_sync = (f.leveldb_writeoptions_create)();
        (f.leveldb_writeoptions_set_sync)(write_sync, 1);
        Ok(Box::new(Level { functions: f, db, read, write, write_sync }))
    }
}

/// Takes an error over.
fn checked(functions: &Functions, error: *mut c_char) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: LevelDB's errors are C strings that the caller frees.
    let text = unsafe { CStr::from_ptr(error).to_string_lossy().into_owned() };
    // SAFETY: as above; it is not used again.
    unsafe { (functions.leveldb_free)(error.cast()) };
    Err(text)
}

impl Level {
    /// What its compactions have read and written so far, as it prints it.
    fn statistics(&self) -> String {
        // SAFETY: the database is open and the name a C string.
        let text =
            unsafe { (self.functions.leveldb_property_value)(self.db, c"leveldb.stats".as_ptr()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the answer is a C string that the caller frees.
        let found = unsafe { CStr::from_ptr(text).to_string_lossy().into_owned() };
        // SAFETY: as above; it is not used again.
        unsafe { (self.functions.leveldb_free)(text.cast()) };
        found
    }
}

impl Engine for Level {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LevelSession { level: self }))
    }

    /// It does not say whether it is at work: quiet is when its counters have stood still for a second.
    fn settle(&self) -> Result<()> {
        let (mut last, mut same) = (self.statistics(), 0);
        while same < 10 {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.statistics();
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: no session lives on, since they borrow the engine.
        unsafe { (self.functions.leveldb_close)(self.db) };
        Ok(())
    }
}

struct LevelSession<'a> {
    level: &'a Level,
}

impl LevelSession<'_> {
    /// Hands a value out and frees it.
    fn look_up(&self, key: &[u8], give: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        let Level { functions, db, read, .. } = self.level;
        let (mut error, mut len) = (null_mut(), 0);
        let (bytes, key_len) = (key.as_ptr().cast(), key.len());
        // SAFETY: the slice lives through the call.
        let value =
            unsafe { (functions.leveldb_get)(*db, *read, bytes, key_len, &mut len, &mut error) };
        checked(functions, error)?;
        if value.is_null() {
            give(None);
            return Ok(());
        }
        // SAFETY: the value is the caller's, `len` bytes of it.
        give(Some(unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) }));
        // SAFETY: nothing refers to it any more.
        unsafe { (functions.leveldb_free)(value.cast()) };
        Ok(())
    }
}

impl Session for LevelSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let Level { functions, db, write, write_sync, .. } = self.level;
        let options = if durability == Durability::Sync { *write_sync } else { *write };
        let mut error = null_mut();
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: both slices live through the call.
        unsafe { (functions.leveldb_put)(*db, options, k, key.len(), v, value.len(), &mut error) };
        checked(functions, error)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let Level { functions, db, write, .. } = self.level;
        let mut error = null_mut();
        // SAFETY: the slice lives through the call.
        unsafe {
            (functions.leveldb_delete)(*db, *write, key.as_ptr().cast(), key.len(), &mut error)
        };
        checked(functions, error)
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
        let Level { functions: f, db, read, .. } = self.level;
        let (mut error, mut seen) = (null_mut(), 0);
        // SAFETY: the iterator lives until it is destroyed; keys and values until it moves.
        unsafe {
            let iterator = (f.leveldb_create_iterator)(*db, *read);
            (f.leveldb_iter_seek)(iterator, from.as_ptr().cast(), from.len());
            while seen < count && (f.leveldb_iter_valid)(iterator) != 0 {
                let (mut key_len, mut value_len) = (0, 0);
                let key = (f.leveldb_iter_key)(iterator, &mut key_len);
                let value = (f.leveldb_iter_value)(iterator, &mut value_len);
                each(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
                seen += 1;
                (f.leveldb_iter_next)(iterator);
            }
            (f.leveldb_iter_get_error)(iterator, &mut error);
            (f.leveldb_iter_destroy)(iterator);
        }
        checked(f, error)?;
        Ok(seen)
    }

    fn seek_each(
        &mut self,
        next_key: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let Level { functions: f, db, read, .. } = self.level;
        let (mut error, mut sought) = (null_mut(), Vec::new());
        // SAFETY: the iterator lives until it is destroyed; keys and values until it moves.
        unsafe {
            let iterator = (f.leveldb_create_iterator)(*db, *read);
            while next_key(&mut sought) {
                (f.leveldb_iter_seek)(iterator, sought.as_ptr().cast(), sought.len());
                if (f.leveldb_iter_valid)(iterator) == 0 {
                    continue;
                }
                let (mut key_len, mut value_len) = (0, 0);
                let key = (f.leveldb_iter_key)(iterator, &mut key_len);
                let value = (f.leveldb_iter_value)(iterator, &mut value_len);
                each(
                    std::slice::from_raw_parts(key.cast(), key_len),
                    std::slice::from_raw_parts(value.cast(), value_len),
                );
            }
            (f.leveldb_iter_get_error)(iterator, &mut error);
            (f.leveldb_iter_destroy)(iterator);
        }
        checked(f, error)
    }
}
