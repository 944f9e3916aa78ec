//! The open blob files of a store, and reads of their values through the cache.
//!
//! A value that fills at least one unit is cached as a whole. The key in the cache is the unit in which
//! it begins: no other such value begins there. A smaller value is read through cached pages, or past
//! the cache by long scans: several values share a page, so that a scan would seem to use it often.
//!
//! Invariants:
//! 1. There is at most one open handle per blob file. Tables that refer to the file hold the handle,
//!    and the file is deleted with the last of them. The caller of a read holds one of them.
//! 2. A value enters the cache verified. A file never changes and its number is never reused, so a
//!    cached value is correct for as long as it is cached. It leaves the cache with its file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::blob::{BlobFile, PIECE_BYTES};
use super::blob_pointer::BlobPointer;
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::slice::Slice;
use crate::base::sync::Mutex;
use crate::cache::{DataFiles, PageKey, ReadContext, UnitRun, fetch_misses, read_unit_runs};

/// Handles are looked up under one of this many locks.
const SHARDS: usize = 16;
/// Units between two values that are read with them, to save a request.
const GAP_UNITS: u32 = 4;
/// The longest run of units that is read with one request for several values.
const RUN_UNITS_MAX: u32 = 256;
/// A value of more units is read by itself: its own reads are long already.
const LONG_UNITS: u32 = RUN_UNITS_MAX / 4;

/// The use of the cache by a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// Values that had to be read are cached.
    Caches,
    /// Values that are cached as a whole are used, and none is added. Smaller values are read past the
    /// cache. For long scans.
    Looks,
    /// The cache is not asked. For what reads each value once.
    Bypasses,
}

type Handles = BTreeMap<FileId, Weak<BlobFile>>;

/// See the module's description.
pub(crate) struct BlobFiles {
    files: Arc<DataFiles>,
    /// True if damaged files are opened too.
    torn: bool,
    open: [Mutex<Handles>; SHARDS],
}

impl BlobFiles {
    /// The store's data files.
    pub(crate) fn files(&self) -> &Arc<DataFiles> {
        &self.files
    }

    /// An empty set of open files.
    pub(crate) fn new(files: &Arc<DataFiles>) -> Arc<BlobFiles> {
        BlobFiles::with(files, false)
    }

    /// As [`BlobFiles::new`], for repair: damaged files are opened too, and return their readable
    /// values.
    pub(crate) fn of_damaged_store(files: &Arc<DataFiles>) -> Arc<BlobFiles> {
        BlobFiles::with(files, true)
    }

    fn with(files: &Arc<DataFiles>, torn: bool) -> Arc<BlobFiles> {
        Arc::new(BlobFiles { files: Arc::clone(files), torn, open: Default::default() })
    }

    fn shard(&self, id: FileId) -> &Mutex<Handles> {
        &self.open[id.0 as usize % SHARDS]
    }

    /// The blob file's handle, opened if necessary.
    pub(crate) fn open(&self, id: FileId) -> Result<Arc<BlobFile>> {
        let mut open = self.shard(id).lock();
        if let Some(file) = open.get(&id).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = match self.torn {
            true => Arc::new(BlobFile::open_torn(&self.files, id)?),
            false => Arc::new(BlobFile::open(&self.files, id)?),
        };
        open.retain(|_, file| file.strong_count() > 0);
        open.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    pub(super) fn register(&self, file: &Arc<BlobFile>) {
        let mut open = self.shard(file.id()).lock();
        open.retain(|_, file| file.strong_count() > 0);
        open.insert(file.id(), Arc::downgrade(file));
    }

    /// Returns a value, from the cache if possible.
    ///
    /// # Errors
    /// As [`BlobFile::read`], and errors of opening the file.
    pub(crate) fn value(&self, pointer: &BlobPointer, caching: Caching) -> Result<Slice> {
        let key = cache_key(pointer);
        if key.is_none() && caching == Caching::Caches {
            return self.open(pointer.file)?.read_in_pages(pointer, &ReadContext::blocking());
        }
        if let Some(value) = self.cached(pointer, key, caching) {
            return Ok(value);
        }
        let value = self.open(pointer.file)?.read_slice(pointer)?;
        self.offer(key, &value, caching);
        Ok(value)
    }

    /// Returns values in the order of their pointers. Those that are not cached are read together.
    ///
    /// # Errors
    /// The first error, as [`BlobFiles::value`].
    pub(crate) fn values(&self, pointers: &[BlobPointer], caching: Caching) -> Result<Vec<Slice>> {
        let mut values = vec![Slice::default(); pointers.len()];
        let (mut missing, mut small) = (Vec::new(), Vec::new());
        for (index, (pointer, value)) in pointers.iter().zip(&mut values).enumerate() {
            let key = cache_key(pointer);
            if key.is_none() && caching == Caching::Caches {
                small.push((pointer, value));
            } else if pointer.length == 0 || is_long(pointer) {
                *value = self.value(pointer, caching)?;
            } else if let Some(cached) = self.cached(pointer, key, caching) {
                *value = cached;
            } else {
                let file = self.open(pointer.file)?;
                file.check_bounds(pointer)?;
                missing.push((file, pointer, key, index));
            }
        }
        // First the pages that are missing.
        let context = ReadContext::collecting();
        for (pointer, _) in &small {
            match self.open(pointer.file)?.read_in_pages(pointer, &context) {
                Ok(_) | Err(Error::NotResident) => {}
                Err(error) => return Err(error),
            }
        }
        fetch_misses(context.misses.map(RefCell::into_inner).unwrap_or_default())?;
        for (pointer, value) in small {
            *value = self.value(pointer, caching)?;
        }
        missing.sort_by_key(|(_, pointer, _, _)| (pointer.file, pointer.offset));
        // No longer than what can be leased for it.
        let units_most = self.files.read_ahead.bytes_max() / 4 / UNIT_BYTES;
        let units_most = (units_most as u32).clamp(1, RUN_UNITS_MAX);
        let mut runs: Vec<UnitRun> = Vec::new();
        let mut members: Vec<usize> = Vec::with_capacity(missing.len());
        for (file, pointer, _, _) in &missing {
            let units = file.units_of(pointer);
            match runs.last_mut() {
                Some(run)
                    if run.file.id() == pointer.file
                        && units.start <= run.units.end.saturating_add(GAP_UNITS)
                        && units.end - run.units.start <= units_most =>
                {
                    run.units.end = run.units.end.max(units.end);
                }
                _ => runs.push(UnitRun { file: Arc::clone(file.file()), units }),
            }
            members.push(runs.len() - 1);
        }
        let mut next = 0;
        let mut run_number = 0;
        read_unit_runs(&runs, |run, bytes| {
            while members.get(next) == Some(&run_number) {
                let Some((file, pointer, key, index)) = missing.get(next) else { break };
                let value = file.read_from_run(pointer, &run.units, bytes)?;
                self.offer(*key, &value, caching);
                let index = if planted(Bug::BlobBatchMixedUp) { next } else { *index };
                if let Some(to) = values.get_mut(index) {
                    *to = value;
                }
                next += 1;
            }
            run_number += 1;
            Ok(())
        })?;
        Ok(values)
    }

    fn cached(
        &self,
        pointer: &BlobPointer,
        key: Option<PageKey>,
        caching: Caching,
    ) -> Option<Slice> {
        let value = self.files.cache.value(key.filter(|_| caching != Caching::Bypasses)?)?;
        // A pointer with another length is wrong: reading its value reports the error.
        (value.len() == pointer.length as usize).then_some(value)
    }

    fn offer(&self, key: Option<PageKey>, value: &Slice, caching: Caching) {
        if let Some(key) = key.filter(|_| caching == Caching::Caches) {
            self.files.cache.insert_value(key, value);
        }
    }
}

/// The key under which a value is cached as a whole; `None` if it is read through pages.
fn cache_key(pointer: &BlobPointer) -> Option<PageKey> {
    let is_whole = pointer.length as usize >= PIECE_BYTES;
    let unit = u32::try_from(pointer.offset / PIECE_BYTES as u64).ok().filter(|_| is_whole)?;
    PageKey::of_value(pointer.file, unit)
}

fn is_long(pointer: &BlobPointer) -> bool {
    u64::from(pointer.length) > u64::from(LONG_UNITS) * PIECE_BYTES as u64
}
