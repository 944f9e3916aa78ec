//! [`SharedMap`]: a file as memory that grows.
//!
//! What is stored survives the death of the process. After a power loss, each page of the file has one of the states
//! that it has had since the last [`SharedMap::sync`].
//!
//! Invariants:
//! 1. Disk space is allocated before it is mapped, also that of holes, which a copy of the file may have, and before
//!    anything is stored where it was given back. On file
//!    systems that allocate again at each rewrite (copy on write), a file is mapped only if that is disabled for it. So a
//!    store never encounters a full disk, which would be a signal instead of an error.
//! 2. The addresses are reserved once. Growing maps more of the file behind what is mapped, so no byte moves.
//! 3. A private map never changes the file. It grows in memory.
//! 4. A file is mapped as persistent memory in all its parts, or in none: where its file system has it there. Then what has
//!    been written back line by line is durable, and where it is on the memory, before it can be stored to (`MAP_SYNC`).
//! 5. No descriptor is kept: the file is opened whenever it grows or is synced.
//!
//! A page that the system cannot read from the disk is a signal, as in every program that maps files. So whoever maps
//! a file reads it once through the file first, which returns an error.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};

use super::cache_lines;
use super::posix_file::file_bytes_max;
use super::posix_mapped::{is_rewritten_in_place, persistent_flags, reserve, rewrites_in_place};
use super::{Access, Vfs, io_error};
use crate::base::error::{Error, Result};
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicUsize, Ordering};

/// Maps begin and grow by whole multiples of this, which is a multiple of every page size.
pub(crate) const MAP_STEP_BYTES: usize = 64 << 10;
/// As many addresses are reserved; if the system has not so many, fewer.
const ADDRESS_BYTES_MAX: usize = 1 << 36;
const ADDRESS_BYTES_MIN: usize = 1 << 24;

#[cfg(target_os = "linux")]
const TMPFS: u64 = 0x0102_1994;

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

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
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    base: NonNull<u8>,
    address_bytes: usize,
    mapped_bytes: AtomicUsize,
    sharing: Sharing,
    is_persistent: bool,
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
    /// file cannot be mapped: there is no system file behind it, its file system does not overwrite in place, the
    /// system has no addresses left, or it is to be private and has no whole step.
    ///
    /// # Errors
    /// `Full` if there is no disk space for the first step, or for holes. `Io` if the file cannot be opened.
    pub(crate) fn of(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        sharing: Sharing,
    ) -> Result<Option<SharedMap>> {
        let file = vfs.open(path, Access::Buffered, sharing == Sharing::Shared)?;
        let Some(system_file) = file.pin(None) else { return Ok(None) };
        let bytes = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let bytes = bytes - bytes % MAP_STEP_BYTES;
        match (sharing, bytes) {
            (Sharing::Shared, 0) if !rewrites_in_place(&system_file) => return Ok(None),
            (Sharing::Private, 0) => return Ok(None),
            (Sharing::Shared, 1..) if !fills_holes(&system_file, path, bytes as u64)? => {
                return Ok(None);
            }
            _ => {}
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
        let is_persistent = sharing == Sharing::Shared && maps_persistently(&system_file);
        let map = SharedMap {
            vfs: Arc::clone(vfs),
            path: path.to_path_buf(),
            base,
            address_bytes,
            mapped_bytes: AtomicUsize::new(0),
            sharing,
            is_persistent,
            growing: Mutex::default(),
        };
        if bytes == 0 {
            map.grow(MAP_STEP_BYTES, u64::MAX)?;
        } else if bytes > address_bytes || map.map(&system_file, 0, bytes).is_err() {
            return Ok(None);
        }
        Ok(Some(map))
    }

    /// The address of the first byte; aligned to 4 KiB.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The most bytes that can be mapped.
    pub(crate) fn address_bytes(&self) -> usize {
        self.address_bytes
    }

    /// The number of mapped bytes. It only grows.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Acquire)
    }

    /// Makes the map at least so large. It may take about `room_bytes` of the disk. New bytes are zero.
    ///
    /// # Errors
    /// `Full` if there is no disk space or no address left, `Io` if the file cannot be opened.
    pub(crate) fn grow(&self, bytes: usize, room_bytes: u64) -> Result<()> {
        let _growing = self.growing.lock();
        let mapped = self.bytes();
        if bytes <= mapped {
            return Ok(());
        }
        let file = match self.sharing {
            Sharing::Private => None,
            Sharing::Shared => {
                let file = self.vfs.open(&self.path, Access::Buffered, true)?;
                let unsupported = || self.refused(bytes, io::ErrorKind::Unsupported.into());
                Some(file.pin(None).ok_or_else(unsupported)?)
            }
        };
        let file = file.as_deref();
        // By an eighth, so that a file grows a few times only. On a disk that is almost full, the rest is for others.
        let more = (mapped / 8).min(usize::try_from(room_bytes / 8).unwrap_or(usize::MAX));
        match self.grow_to(file, bytes.max(mapped + more)) {
            // There may be room, or addresses, for what is needed alone.
            Err(Error::Full { .. }) => self.grow_to(file, bytes),
            grown => grown,
        }
    }

    fn refused(&self, bytes: usize, error: io::Error) -> Error {
        let mapped = self.bytes();
        io_error("reserve", &self.path, Some(mapped as u64), (bytes - mapped) as u64, error)
    }

    /// Makes the map so large, rounded up to whole steps. Without a file, it grows in memory.
    fn grow_to(&self, file: Option<&fs::File>, bytes: usize) -> Result<()> {
        self.map_more(file, bytes).map_err(|error| self.refused(bytes, error))
    }

    fn map_more(&self, file: Option<&fs::File>, bytes: usize) -> io::Result<()> {
        let mapped = self.bytes();
        let file_bytes_max = if file.is_some() { file_bytes_max() } else { u64::MAX };
        let is_possible =
            |bytes: &usize| *bytes <= self.address_bytes && *bytes as u64 <= file_bytes_max;
        let bytes = bytes.checked_next_multiple_of(MAP_STEP_BYTES).filter(is_possible);
        let bytes = bytes.ok_or(io::ErrorKind::StorageFull)?;
        let Some(file) = file else { return self.map_memory(mapped, bytes) };
        reserve(file, mapped as u64..bytes as u64)?;
        self.map(file, mapped, bytes)
    }

    /// Maps the file's bytes from `mapped` to `bytes`.
    fn map(&self, file: &fs::File, mapped: usize, bytes: usize) -> io::Result<()> {
        let flags = match (self.sharing, persistent_flags()) {
            (Sharing::Shared, Some(flags)) if self.is_persistent => flags | MapFlags::FIXED,
            (Sharing::Shared, _) => MapFlags::SHARED | MapFlags::FIXED,
            (Sharing::Private, _) => MapFlags::PRIVATE | MapFlags::FIXED,
        };
        // SAFETY: the range is inside the reserved addresses, and nobody has been told of it yet.
        unsafe {
            let start = self.base.as_ptr().add(mapped).cast();
            rustix::mm::mmap(start, bytes - mapped, ACCESS, flags, file, mapped as u64)?;
            // Otherwise the system reads 128 KiB around each page that is missing. Where it takes no advice, it does.
            #[cfg(target_os = "linux")]
            let _ = rustix::mm::madvise(start, bytes - mapped, rustix::mm::Advice::Random);
        }
        self.mapped_bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Maps memory from `mapped` to `bytes`.
    fn map_memory(&self, mapped: usize, bytes: usize) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as in `map`.
        unsafe {
            let start = self.base.as_ptr().add(mapped).cast();
            rustix::mm::mmap_anonymous(start, bytes - mapped, ACCESS, flags)?;
        }
        self.mapped_bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Whether what is written back and fenced is durable, without a sync.
    pub(crate) fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Begins to write the cache lines of a range back to persistent memory. Elsewhere, nothing.
    pub(crate) fn write_back(&self, range: Range<usize>) {
        if self.is_persistent {
            assert!(range.end <= self.bytes(), "{range:?} of {} bytes", self.bytes());
            // SAFETY: the range is mapped. `start` is not above `end`, or there is nothing to do.
            unsafe { cache_lines::write_back(self.base.add(range.start), range.len()) };
        }
    }

    /// Waits for the lines that this thread has begun to write back.
    pub(crate) fn fence(&self) {
        if self.is_persistent {
            cache_lines::fence();
        }
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
            synced.map_err(|error| Error::io("sync", &self.path, None, error.into()))?;
        }
        // Linux writes a file's pages back at fdatasync, however they were dirtied.
        self.vfs.open(&self.path, Access::Buffered, true)?.sync()
    }

    /// Unmaps whole pages of a range from the process, unless the map is private. They stay in the file, and come back
    /// when they are used.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if self.sharing == Sharing::Shared {
            let range = range.start..range.end.min(self.bytes());
            let advice = rustix::mm::Advice::LinuxDontNeed;
            // SAFETY: the range is this map's. The map is shared, so its pages are the file's and keep their bytes.
            let released = unsafe {
                let start = self.base.as_ptr().add(range.start).cast();
                rustix::mm::madvise(start, range.len(), advice)
            };
            // Where that is not possible, they stay.
            let _ = released;
        }
    }

    /// Begins to read a range from the disk, as far as the system does not have it.
    pub(crate) fn will_read(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        {
            let range = range.start..range.end.min(self.bytes());
            let advice = rustix::mm::Advice::WillNeed;
            // SAFETY: the range is this map's, and the advice changes none of its bytes.
            let begun = unsafe {
                let start = self.base.as_ptr().add(range.start).cast();
                rustix::mm::madvise(start, range.len(), advice)
            };
            // Otherwise it is read when it is used.
            let _ = begun;
        }
        let _ = range;
    }

    /// Gives the disk space of a range back, whose bytes are zeros then. It is to be had again before anything is stored
    /// there. Returns false if that is not possible.
    pub(crate) fn give_back(&self, range: Range<usize>) -> bool {
        #[cfg(target_os = "linux")]
        if self.sharing == Sharing::Shared
            && let Ok(file) = self.vfs.open(&self.path, Access::Buffered, true)
            && let Some(file) = file.pin(None)
        {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            // There, a load of a hole allocates memory.
            if rustix::fs::fstatfs(&*file).is_ok_and(|it| it.f_type as u64 & 0xffff_ffff == TMPFS) {
                return false;
            }
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let len = (range.end - range.start) as u64;
            let given_back = fallocate(&*file, flags, range.start as u64, len);
            // After another failure a part may be gone.
            return !matches!(given_back, Err(Errno::OPNOTSUPP | Errno::NOSYS));
        }
        let _ = range;
        false
    }

    /// Allocates the disk space of a range again that was given back.
    ///
    /// # Errors
    /// `Full` if there is none, `Io` if the file cannot be opened.
    pub(crate) fn have_again(&self, range: Range<usize>) -> Result<()> {
        let len = (range.end - range.start) as u64;
        let (start, end) = (range.start as u64, range.end as u64);
        let failed = |error| io_error("reserve", &self.path, Some(start), len, error);
        let file = self.vfs.open(&self.path, Access::Buffered, true)?;
        let unsupported = || failed(io::ErrorKind::Unsupported.into());
        let file = file.pin(None).ok_or_else(unsupported)?;
        reserve(&file, start..end).map_err(failed)
    }

    /// Whose the changes are.
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The file's name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the addresses are this map's alone, and nobody uses them any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.address_bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Allocates disk space for holes of the first `bytes` bytes. Returns false if the file is not, or may not be, rewritten
/// in place.
fn fills_holes(file: &fs::File, path: &Path, bytes: u64) -> Result<bool> {
    if !is_rewritten_in_place(file) {
        return Ok(false);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        // First what the file shares with a copy of it, where there is such a thing.
        for flags in [FallocateFlags::UNSHARE_RANGE, FallocateFlags::empty()] {
            match fallocate(file, flags, 0, bytes) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if !flags.is_empty() => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
                Err(error) => {
                    return Err(io_error("reserve", path, None, bytes, error.into()));
                }
            }
        }
        Ok(true)
    }
    #[cfg(not(target_os = "linux"))]
    Ok(false)
}

/// Whether the file system has the file, which has at least one page or may get it, in persistent memory.
fn maps_persistently(file: &fs::File) -> bool {
    let Some(flags) = persistent_flags() else { return false };
    // SAFETY: the kernel chooses addresses that nothing else uses, and nobody is told of them.
    unsafe {
        let mapped = rustix::mm::mmap(ptr::null_mut(), MAP_STEP_BYTES, ACCESS, flags, file, 0);
        mapped.map(|start| rustix::mm::munmap(start, MAP_STEP_BYTES)).is_ok()
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
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::super::{MemoryVfs, PosixVfs};
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

    /// A file of so many bytes, which are holes, and its map.
    fn mapped(dir: &Path, bytes: u64) -> (Arc<dyn Vfs>, PathBuf, SharedMap) {
        let (vfs, path): (Arc<dyn Vfs>, _) = (Arc::new(PosixVfs::new()), dir.join("map"));
        vfs.create(&path, Access::Buffered).unwrap().truncate(bytes).unwrap();
        let map = SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
        (vfs, path, map)
    }

    #[test]
    fn bytes_survive_and_do_not_move_as_the_map_grows() {
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path, map) = mapped(dir.path(), 0);
        assert_eq!(map.bytes(), MAP_STEP_BYTES);
        store(&map, 0, 7);
        let base = map.base();
        map.grow(10 * MAP_STEP_BYTES + 1, u64::MAX).unwrap();
        assert_eq!((map.base(), map.bytes()), (base, 11 * MAP_STEP_BYTES));
        assert_eq!((load(&map, 0), load(&map, 11 * MAP_STEP_BYTES - 1)), (7, 0));
        store(&map, 11 * MAP_STEP_BYTES - 1, 8);
        map.release(0..map.bytes());
        assert_eq!(load(&map, 11 * MAP_STEP_BYTES - 1), 8);
        map.sync().unwrap();
        drop(map);
        assert_eq!(fs::metadata(&path).unwrap().len(), 11 * MAP_STEP_BYTES as u64);
        let map = SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
        assert_eq!((load(&map, 0), load(&map, 11 * MAP_STEP_BYTES - 1)), (7, 8));
    }

    /// A copy of a store had holes where its index had zeros. Once the disk was full, a store to one of them was a
    /// signal.
    #[test]
    fn holes_are_filled_before_they_are_mapped() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (_vfs, path, _map) = mapped(dir.path(), 5 * MAP_STEP_BYTES as u64);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 5 * MAP_STEP_BYTES as u64);
    }

    #[test]
    fn a_private_map_changes_nothing_and_grows_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (vfs, path, map) = mapped(dir.path(), 0);
        store(&map, 5, 1);
        drop(map);
        let open = || SharedMap::of(&vfs, &path, Sharing::Private).unwrap().unwrap();
        let map = open();
        store(&map, 5, 2);
        map.grow(MAP_STEP_BYTES + 1, u64::MAX).unwrap();
        store(&map, MAP_STEP_BYTES, 3);
        map.release(0..map.bytes());
        assert_eq!((load(&map, 5), load(&map, MAP_STEP_BYTES)), (2, 3));
        assert_eq!((load(&open(), 5), open().bytes()), (1, MAP_STEP_BYTES));
        // One without a whole step has nothing to be mapped.
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(SharedMap::of(&vfs, &path, Sharing::Private).unwrap().is_none());
    }

    #[test]
    fn a_file_in_memory_cannot_be_mapped() {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new());
        vfs.create(Path::new("map"), Access::Buffered).unwrap();
        assert!(SharedMap::of(&vfs, Path::new("map"), Sharing::Shared).unwrap().is_none());
    }

    #[test]
    fn a_map_that_needs_too_many_addresses_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let (_vfs, _path, map) = mapped(dir.path(), 0);
        assert!(matches!(map.grow(ADDRESS_BYTES_MAX + 1, u64::MAX), Err(Error::Full { .. })));
        assert!(matches!(map.grow(usize::MAX, u64::MAX), Err(Error::Full { .. })));
        assert_eq!(map.bytes(), MAP_STEP_BYTES);
    }

    /// A map grew by an eighth or not at all. So an index became partial although there was room for its next key: where
    /// less of the disk was free than an eighth of the index, and from 57 of 64 GiB of addresses on.
    #[test]
    fn a_map_grows_by_what_is_needed_where_there_is_no_room_for_more() {
        let dir = tempfile::tempdir().unwrap();
        let (_vfs, _path, mut map) = mapped(dir.path(), 32 * MAP_STEP_BYTES as u64);
        let address_bytes = std::mem::replace(&mut map.address_bytes, 34 * MAP_STEP_BYTES);
        map.grow(32 * MAP_STEP_BYTES + 1, u64::MAX).unwrap();
        assert_eq!(map.bytes(), 33 * MAP_STEP_BYTES);
        store(&map, map.bytes() - 1, 7);
        map.grow(34 * MAP_STEP_BYTES, u64::MAX).unwrap();
        assert!(matches!(map.grow(34 * MAP_STEP_BYTES + 1, u64::MAX), Err(Error::Full { .. })));
        map.address_bytes = address_bytes;
        // Of what it may take of the disk, at most an eighth is taken beyond need.
        map.grow(34 * MAP_STEP_BYTES + 1, 16 * MAP_STEP_BYTES as u64).unwrap();
        assert_eq!(map.bytes(), 36 * MAP_STEP_BYTES);
    }

    /// A file on tmpfs was given holes, where a load of one allocates memory that may not be there.
    #[test]
    fn no_holes_are_made_on_tmpfs() {
        let file = fs::File::from(memfd_create("map", MemfdFlags::empty()).unwrap());
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let vfs: Arc<dyn Vfs> = Arc::new(PosixVfs::new());
        let map = SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
        store(&map, 5, 7);
        assert!(!map.give_back(0..MAP_STEP_BYTES));
        assert_eq!(load(&map, 5), 7);
    }

    /// A hole that failed half-way counted as not made: what was stored there next had no disk space.
    #[test]
    fn a_hole_that_failed_counts_as_made() {
        let dir = tempfile::tempdir().unwrap();
        let (_vfs, _path, map) = mapped(dir.path(), 0);
        // Otherwise it is a file system without holes.
        if map.give_back(0..4096) {
            // The system refuses an empty hole.
            assert!(map.give_back(4096..4096));
        }
    }
}
