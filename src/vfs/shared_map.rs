//! [`SharedMap`]: a file as memory that grows.
//!
//! What is stored survives the death of the process. After a power loss, each page of the file has one of the states
//! that it has had since the last [`SharedMap::sync`].
//!
//! Invariants:
//! 1. Disk space is allocated before it is mapped. On file systems that allocate again at each rewrite (copy on
//!    write), a file is mapped only if that could be disabled. So a store never encounters a full disk, which would
//!    be a signal instead of an error.
//! 2. The addresses are reserved once. Growing maps more of the file behind what is mapped, so no byte moves.
//! 3. A private map never changes the file, and does not grow.
//!
//! A page that the system cannot read from the disk is a signal, as in every program that maps files. So whoever maps
//! a file reads it once through the file first, which returns an error.

use std::fs;
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

use super::posix_file::file_bytes_max;
use super::posix_mapped::{reserve, rewrites_in_place};
use super::{File, io_error};
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicUsize, Ordering};

/// Maps begin and grow by whole multiples of this, which is a multiple of every page size.
pub(crate) const MAP_STEP_BYTES: usize = 64 << 10;
/// As many addresses are reserved; if the system has not so many, fewer.
const ADDRESS_BYTES_MAX: usize = 1 << 36;
const ADDRESS_BYTES_MIN: usize = 1 << 24;

/// Whose the changes of a map are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The file's.
    Shared,
    /// The map's alone.
    Private,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct SharedMap {
    file: Arc<dyn File>,
    system_file: Arc<fs::File>,
    base: NonNull<u8>,
    address_bytes: usize,
    mapped_bytes: AtomicUsize,
    sharing: Sharing,
    /// Held while the map grows.
    growing: Mutex<()>,
}

// SAFETY: the map is plain memory that belongs to the process, not to a thread. All access to its bytes goes through
// raw pointers, whose users are responsible for it.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps a file: as much of it as whole steps are. A file without bytes gets its first step. Returns `None` if the
    /// file cannot be mapped: there is no system file behind it, its file system does not overwrite in place, or the
    /// system has no addresses left.
    ///
    /// # Errors
    /// `Full` if the first step cannot be allocated.
    pub(crate) fn of(file: Arc<dyn File>, sharing: Sharing) -> Result<Option<SharedMap>> {
        let Some(system_file) = file.pin(None) else { return Ok(None) };
        let bytes = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let bytes = bytes - bytes % MAP_STEP_BYTES;
        if sharing == Sharing::Shared && bytes == 0 && !rewrites_in_place(&system_file) {
            return Ok(None);
        }
        let mut address_bytes = ADDRESS_BYTES_MAX;
        let base = loop {
            if let Some(base) = reserve_addresses(address_bytes) {
                break base;
            }
            address_bytes /= 4;
            if address_bytes < ADDRESS_BYTES_MIN {
                return Ok(None);
            }
        };
        let map = SharedMap {
            file,
            system_file,
            base,
            address_bytes,
            mapped_bytes: AtomicUsize::new(0),
            sharing,
            growing: Mutex::default(),
        };
        if bytes == 0 && sharing == Sharing::Shared {
            map.grow(MAP_STEP_BYTES)?;
        } else if bytes > address_bytes || map.map(0, bytes).is_err() {
            return Ok(None);
        }
        Ok(Some(map))
    }

    /// The address of the first byte; aligned to 4 KiB.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The number of mapped bytes. It only grows.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Acquire)
    }

    /// Makes the map at least so large. New bytes are zero.
    ///
    /// # Errors
    /// `Full` if there is no disk space or no address left, `ReadOnly` if the map is private.
    pub(crate) fn grow(&self, bytes: usize) -> Result<()> {
        let _growing = self.growing.lock();
        let (mapped, path) = (self.bytes(), self.file.path());
        if bytes <= mapped {
            return Ok(());
        }
        if self.sharing == Sharing::Private {
            return Err(Error::ReadOnly { path: path.to_path_buf() });
        }
        // By an eighth at least, so that a file grows a few times only.
        let bytes = bytes.max(mapped + mapped / 8).checked_next_multiple_of(MAP_STEP_BYTES);
        let needed = bytes.map_or(u64::MAX, |bytes| (bytes - mapped) as u64);
        let failed =
            |error: io::Error| io_error("reserve", path, Some(mapped as u64), needed, error);
        let is_possible =
            |bytes: &usize| *bytes <= self.address_bytes && *bytes as u64 <= file_bytes_max();
        let Some(bytes) = bytes.filter(is_possible) else {
            return Err(failed(io::ErrorKind::StorageFull.into()));
        };
        reserve(&self.system_file, mapped as u64..bytes as u64).map_err(failed)?;
        self.map(mapped, bytes).map_err(failed)
    }

    /// Maps the file's bytes from `mapped` to `bytes`.
    fn map(&self, mapped: usize, bytes: usize) -> io::Result<()> {
        if mapped < bytes {
            let flags = match self.sharing {
                Sharing::Shared => MapFlags::SHARED | MapFlags::FIXED,
                Sharing::Private => MapFlags::PRIVATE | MapFlags::FIXED,
            };
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let file = &*self.system_file;
            // SAFETY: the range is inside the reserved addresses, and nobody has been told of it yet.
            unsafe {
                let start = self.base.as_ptr().add(mapped).cast();
                rustix::mm::mmap(start, bytes - mapped, protection, flags, file, mapped as u64)?;
                // Otherwise the system reads 128 KiB around each page that is missing. Where it takes no advice, it
                // does.
                #[cfg(target_os = "linux")]
                let _ = rustix::mm::madvise(start, bytes - mapped, rustix::mm::Advice::Random);
            }
        }
        self.mapped_bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Makes everything stored so far durable.
    ///
    /// # Errors
    /// `Io`: what has been stored since the last sync may be lost.
    pub(crate) fn sync(&self) -> Result<()> {
        #[cfg(not(target_os = "linux"))]
        {
            let flags = rustix::mm::MsyncFlags::SYNC;
            // SAFETY: the range is this map's.
            let synced =
                unsafe { rustix::mm::msync(self.base.as_ptr().cast(), self.bytes(), flags) };
            synced.map_err(|error| Error::io("sync", self.file.path(), None, error.into()))?;
        }
        // Linux writes a file's pages back at fdatasync, however they were dirtied.
        self.file.sync()
    }

    /// Unmaps the pages from the process, unless the map is private. They stay in the file, and come back when they are
    /// used.
    pub(crate) fn release(&self) {
        #[cfg(target_os = "linux")]
        if self.sharing == Sharing::Shared {
            let (start, advice) = (self.base.as_ptr().cast(), rustix::mm::Advice::LinuxDontNeed);
            // SAFETY: the range is this map's. The map is shared, so its pages are the file's and keep their bytes.
            let released = unsafe { rustix::mm::madvise(start, self.bytes(), advice) };
            // Where that is not possible, they stay.
            let _ = released;
        }
    }

    /// Whose the changes are.
    #[cfg(feature = "slm")]
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the addresses are this map's alone, and nobody uses them any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.address_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Reserves addresses that cannot be accessed.
fn reserve_addresses(bytes: usize) -> Option<NonNull<u8>> {
    let flags = MapFlags::PRIVATE;
    #[cfg(target_os = "linux")]
    let flags = flags | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches no existing memory.
    let base =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
    NonNull::new(base.ok()?.cast())
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::super::{Access, MemoryVfs, PosixVfs, Vfs};
    use super::*;

    fn store(map: &SharedMap, at: usize, byte: u8) {
        assert!(at < map.bytes());
        // SAFETY: the byte is mapped, and this is the only thread.
        unsafe { map.base().as_ptr().add(at).write_volatile(byte) };
    }

    fn load(map: &SharedMap, at: usize) -> u8 {
        assert!(at < map.bytes());
        // SAFETY: as above.
        unsafe { map.base().as_ptr().add(at).read_volatile() }
    }

    #[test]
    fn bytes_survive_and_do_not_move_as_the_map_grows() {
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path) = (PosixVfs::new(), dir.path().join("map"));
        let file = vfs.create(&path, Access::Buffered).unwrap();
        let map = SharedMap::of(file, Sharing::Shared).unwrap().unwrap();
        assert_eq!(map.bytes(), MAP_STEP_BYTES);
        store(&map, 0, 7);
        let base = map.base();
        map.grow(10 * MAP_STEP_BYTES + 1).unwrap();
        assert_eq!((map.base(), map.bytes()), (base, 11 * MAP_STEP_BYTES));
        assert_eq!((load(&map, 0), load(&map, 11 * MAP_STEP_BYTES - 1)), (7, 0));
        store(&map, 11 * MAP_STEP_BYTES - 1, 8);
        assert_eq!(load(&map, 11 * MAP_STEP_BYTES - 1), 8);
        map.sync().unwrap();
        drop(map);
        let file = vfs.open(&path, Access::Buffered, true).unwrap();
        assert_eq!(file.len().unwrap(), 11 * MAP_STEP_BYTES as u64);
        let map = SharedMap::of(file, Sharing::Shared).unwrap().unwrap();
        assert_eq!((load(&map, 0), load(&map, 11 * MAP_STEP_BYTES - 1)), (7, 8));
    }

    #[test]
    fn a_private_map_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path) = (PosixVfs::new(), dir.path().join("map"));
        let file = vfs.create(&path, Access::Buffered).unwrap();
        let map = SharedMap::of(file, Sharing::Shared).unwrap().unwrap();
        store(&map, 5, 1);
        drop(map);
        let open = || vfs.open(&path, Access::Buffered, false).unwrap();
        let map = SharedMap::of(open(), Sharing::Private).unwrap().unwrap();
        store(&map, 5, 2);
        assert!(matches!(map.grow(1 << 20), Err(Error::ReadOnly { .. })));
        assert_eq!(load(&map, 5), 2);
        let other = SharedMap::of(open(), Sharing::Private).unwrap().unwrap();
        assert_eq!(load(&other, 5), 1);
    }

    #[test]
    fn a_file_in_memory_cannot_be_mapped() {
        let file = MemoryVfs::new().create(Path::new("map"), Access::Buffered).unwrap();
        assert!(SharedMap::of(file, Sharing::Shared).unwrap().is_none());
    }

    #[test]
    fn a_map_that_needs_too_many_addresses_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let file = PosixVfs::new().create(&dir.path().join("map"), Access::Buffered).unwrap();
        let map = SharedMap::of(file, Sharing::Shared).unwrap().unwrap();
        assert!(matches!(map.grow(ADDRESS_BYTES_MAX + 1), Err(Error::Full { .. })));
        assert!(matches!(map.grow(usize::MAX), Err(Error::Full { .. })));
        assert_eq!(map.bytes(), MAP_STEP_BYTES);
    }
}
