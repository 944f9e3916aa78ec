//! LMDB through its C interface.
//!
//! Settings that are not the defaults:
//! - `MDB_NOSYNC`: a buffered commit need not reach the disk (unlike ours, its order on the disk is then
//!   the kernel's, and power loss may cost the store); a `Sync` commit is followed by `mdb_env_sync`;
//! - `MDB_WRITEMAP`: commits change the map in place, which its documentation gives as the faster way;
//! - `MDB_NORDAHEAD`: its advice for data larger than memory with random reads;
//! - `MDB_NOTLS`, so that a session may keep its read transaction;
//! - a map of 1 TiB, of which only the used part exists.
//!
//! It has no memory setting: the kernel's page cache is its cache, bounded by the run's limit.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::library::functions;
use super::{Durability, Engine, Result, Session, Settings, c_path};

type Pointer = *mut c_void;

/// `MDB_val`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    len: usize,
    data: *const c_void,
}

impl Value {
    fn of(bytes: &[u8]) -> Value {
        Value { len: bytes.len(), data: bytes.as_ptr().cast() }
    }

    const EMPTY: Value = Value { len: 0, data: std::ptr::null() };

    /// # Safety
    /// It was filled in by LMDB and the transaction it came from lives on.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len) }
    }
}

functions! {
    /// `lmdb.h`, as far as it is used.
    Functions from ["liblmdb.so", "liblmdb.so.0"] {
        fn mdb_strerror(c_int) -> *const c_char;
        fn mdb_env_create(*mut Pointer) -> c_int;
        fn mdb_env_set_mapsize(Pointer, usize) -> c_int;
        fn mdb_env_set_maxreaders(Pointer, c_uint) -> c_int;
        fn mdb_env_open(Pointer, *const c_char, c_uint, c_uint) -> c_int;
        fn mdb_env_sync(Pointer, c_int) -> c_int;
        fn mdb_env_close(Pointer);
        fn mdb_txn_begin(Pointer, Pointer, c_uint, *mut Pointer) -> c_int;
        fn mdb_txn_commit(Pointer) -> c_int;
        fn mdb_txn_abort(Pointer);
        fn mdb_txn_reset(Pointer);
        fn mdb_txn_renew(Pointer) -> c_int;
        fn mdb_dbi_open(Pointer, *const c_char, c_uint, *mut c_uint) -> c_int;
        fn mdb_get(Pointer, c_uint, *mut Value, *mut Value) -> c_int;
        fn mdb_put(Pointer, c_uint, *mut Value, *mut Value, c_uint) -> c_int;
        fn mdb_del(Pointer, c_uint, *mut Value, *mut Value) -> c_int;
        fn mdb_cursor_open(Pointer, c_uint, *mut Pointer) -> c_int;
        fn mdb_cursor_renew(Pointer, Pointer) -> c_int;
        fn mdb_cursor_close(Pointer);
        fn mdb_cursor_get(Pointer, *mut Value, *mut Value, c_uint) -> c_int;
    }
}

const NOSYNC: c_uint = 0x1_0000;
const RDONLY: c_uint = 0x2_0000;
const WRITEMAP: c_uint = 0x8_0000;
const NOTLS: c_uint = 0x20_0000;
const NORDAHEAD: c_uint = 0x80_0000;
const NOTFOUND: c_int = -30798;
const FIRST: c_uint = 0;
const NEXT: c_uint = 8;
const SET_RANGE: c_uint = 17;
/// Workloads may have more threads than the settings say (`sync@16`).
const READERS_MAX: c_uint = 256;
const MAP_BYTES: usize = 1 << 40;

struct Lmdb {
    functions: Functions,
    env: Pointer,
    dbi: c_uint,
}

// SAFETY: an LMDB environment may be used from any thread ("Caveats" in its documentation); write
// transactions exclude each other.
unsafe impl Send for Lmdb {}
// SAFETY: as above.
unsafe impl Sync for Lmdb {}

impl Functions {
    fn check(&self, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the text is static.
        Err(unsafe { CStr::from_ptr((self.mdb_strerror)(code)) }.to_string_lossy().into_owned())
    }
}

pub(super) fn available() -> Result<()> {
    Functions::load().map(|_| ())
}

pub(super) fn open(settings: &Settings, _configuration: &str) -> Result<Box<dyn Engine>> {
    let f = Functions::load()?;
    let path = c_path(&settings.dir)?;
    let (mut env, mut transaction, mut dbi) = (null_mut(), null_mut(), 0);
    let flags = NOSYNC | WRITEMAP | NORDAHEAD | NOTLS;
    // SAFETY: each function is called as its header says, with objects that the ones before have made.
    unsafe {
        f.check((f.mdb_env_create)(&mut env))?;
        f.check((f.mdb_env_set_mapsize)(env, MAP_BYTES))?;
        f.check((f.mdb_env_set_maxreaders)(env, READERS_MAX.max(settings.threads as c_uint + 8)))?;
        f.check((f.mdb_env_open)(env, path.as_ptr(), flags, 0o644))?;
        f.check((f.mdb_txn_begin)(env, null_mut(), 0, &mut transaction))?;
        f.check((f.mdb_dbi_open)(transaction, std::ptr::null(), 0, &mut dbi))?;
        f.check((f.mdb_txn_commit)(transaction))?;
    }
    Ok(Box::new(Lmdb { functions: f, env, dbi }))
}

impl Engine for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let f = &self.functions;
        let (mut reader, mut cursor) = (null_mut(), null_mut());
        // SAFETY: the environment is open; the cursor belongs to the transaction, and both to this
        // session, which closes them.
        unsafe {
            f.check((f.mdb_txn_begin)(self.env, null_mut(), RDONLY, &mut reader))?;
            f.check((f.mdb_cursor_open)(reader, self.dbi, &mut cursor))?;
            (f.mdb_txn_reset)(reader);
        }
        Ok(Box::new(LmdbSession { lmdb: self, reader, cursor }))
    }

    /// It does nothing in the background.
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: no session lives on, since they borrow the engine.
        let synced = unsafe { (self.functions.mdb_env_sync)(self.env, 1) };
        // SAFETY: as above.
        unsafe { (self.functions.mdb_env_close)(self.env) };
        self.functions.check(synced)
    }
}

struct LmdbSession<'a> {
    lmdb: &'a Lmdb,
    /// A read transaction, reset between uses.
    reader: Pointer,
    cursor: Pointer,
}

impl Drop for LmdbSession<'_> {
    fn drop(&mut self) {
        let f = &self.lmdb.functions;
        // SAFETY: they are this session's and not used again.
        unsafe {
            (f.mdb_cursor_close)(self.cursor);
            (f.mdb_txn_abort)(self.reader);
        }
    }
}

impl LmdbSession<'_> {
    fn change(&self, change: impl FnOnce(&Functions, Pointer) -> c_int) -> Result<()> {
        let f = &self.lmdb.functions;
        let mut transaction = null_mut();
        // SAFETY: the environment is open; the transaction ends here.
        unsafe {
            f.check((f.mdb_txn_begin)(self.lmdb.env, null_mut(), 0, &mut transaction))?;
            match change(f, transaction) {
                0 | NOTFOUND => f.check((f.mdb_txn_commit)(transaction)),
                code => {
                    (f.mdb_txn_abort)(transaction);
                    f.check(code)
                }
            }
        }
    }

    /// Reads in a snapshot of its own.
    fn read<T>(&self, read: impl FnOnce(&Functions) -> Result<T>) -> Result<T> {
        let f = &self.lmdb.functions;
        // SAFETY: the transaction was reset.
        f.check(unsafe { (f.mdb_txn_renew)(self.reader) })?;
        let result = read(f);
        // SAFETY: what was read has been handed out and is gone.
        unsafe { (f.mdb_txn_reset)(self.reader) };
        result
    }

    fn look_up(
        &self,
        f: &Functions,
        key: &[u8],
        give: &mut dyn FnMut(Option<&[u8]>),
    ) -> Result<()> {
        let (mut key, mut value) = (Value::of(key), Value::EMPTY);
        // SAFETY: the read transaction is under way.
        match unsafe { (f.mdb_get)(self.reader, self.lmdb.dbi, &mut key, &mut value) } {
            NOTFOUND => give(None),
            code => {
                f.check(code)?;
                // SAFETY: the value is the map's until the transaction is reset.
                give(Some(unsafe { value.bytes() }));
            }
        }
        Ok(())
    }
}

impl Session for LmdbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let (mut key, mut value) = (Value::of(key), Value::of(value));
        let dbi = self.lmdb.dbi;
        // SAFETY: both slices live through the call; LMDB copies them.
        self.change(|f, txn| unsafe { (f.mdb_put)(txn, dbi, &mut key, &mut value, 0) })?;
        if durability == Durability::Sync {
            let f = &self.lmdb.functions;
            // SAFETY: the environment is open.
            f.check(unsafe { (f.mdb_env_sync)(self.lmdb.env, 1) })?;
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        let (mut key, dbi) = (Value::of(key), self.lmdb.dbi);
        // SAFETY: the slice lives through the call.
        self.change(|f, txn| unsafe { (f.mdb_del)(txn, dbi, &mut key, null_mut()) })
    }

    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(Option<&[u8]>)) -> Result<()> {
        self.read(|f| self.look_up(f, key, found))
    }

    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        each: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.read(|f| {
            let mut places = keys.iter().enumerate();
            places.try_for_each(|(place, key)| self.look_up(f, key, &mut |v| each(place, v)))
        })
    }

    fn scan(&mut self, from: &[u8], count: u64, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64> {
        self.read(|f| {
            let (mut key, mut value) = (Value::of(from), Value::EMPTY);
            // SAFETY: the cursor belongs to the read transaction, which is under way.
            f.check(unsafe { (f.mdb_cursor_renew)(self.reader, self.cursor) })?;
            // It takes no empty key.
            let (mut seen, mut step) = (0, if from.is_empty() { FIRST } else { SET_RANGE });
            while seen < count {
                // SAFETY: as above.
                match unsafe { (f.mdb_cursor_get)(self.cursor, &mut key, &mut value, step) } {
                    NOTFOUND => break,
                    code => f.check(code)?,
                }
                // SAFETY: both are the map's until the transaction is reset.
                unsafe { each(key.bytes(), value.bytes()) };
                seen += 1;
                step = NEXT;
            }
            Ok(seen)
        })
    }
}
