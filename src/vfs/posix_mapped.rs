//! A preallocated file that is written through a memory mapping.
//!
//! Invariants:
//! 1. The file's disk space is allocated before it is mapped. On file systems that allocate again
//!    at each rewrite (copy on write), it is mapped only if that could be disabled. So a store to
//!    the mapping never encounters a full disk, which would be a signal instead of an error.
//! 2. The mapped addresses belong to the file's handle until it is dropped. Sealing replaces the
//!    file's pages by inaccessible ones and keeps the addresses reserved. A store that comes too
//!    late, against the contract, cannot hit memory that has become something else.
//! 3. No Rust reference ever points into the mapping. Stores use a raw pointer and, by the trait's
//!    contract, never overlap at the same time. The bytes are read back only through the file.
//! 4. After a failed write or sync, every later `check`, `sync` and `seal` fails with the same
//!    error. After a failed sync the kernel may treat dropped pages as clean, so a later successful
//!    sync would prove nothing.
//! 5. A file that the file system maps as persistent memory is synced by writing cache lines back, without a system call.
//!    Where its bytes are on the memory is durable before they can be stored to (`MAP_SYNC`).
//! 6. Syncs do not run concurrently. The kernel reports a failed writeback once per open file. Of
//!    two concurrent syncs, one could report success before the other has recorded the failure.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rustix::mm::{MapFlags, ProtFlags};

use super::cache_lines;
use super::descriptors::Descriptors;
use super::posix_file::file_bytes_max;
use super::{MappedFile, io_error};
use crate::base::error::{Error, Result};
use crate::base::limits::UNIT_BYTES;
#[cfg(any(test, planted))]
use crate::base::planted::quirks;
use crate::base::planted::{Bug, planted};
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicBool, Ordering};

/// See the module. Created by [`PosixVfs`](super::PosixVfs).
#[derive(Debug)]
pub(super) struct PosixMapped {
    file: fs::File,
    path: PathBuf,
    len: u64,
    /// `None` where the file system does not map files: then `write` is a system call.
    map: Option<Map>,
    sealed: AtomicBool,
    failed: OnceLock<Error>,
    /// Held while the file is synced and the result is recorded.
    syncing: Mutex<()>,
    /// In persistent memory: what has been written since the last sync.
    unsynced: Mutex<Range<u64>>,
    /// A writeback failure that only the next sync reports.
    #[cfg(any(test, planted))]
    pub(super) lost: AtomicBool,
}

impl PosixMapped {
    /// Creates the file with its space allocated, or leaves nothing behind.
    pub(super) fn create(descriptors: &Descriptors, path: &Path, len: u64) -> Result<PosixMapped> {
        PosixMapped::create_as(descriptors, path, len, true)
    }

    fn create_as(
        descriptors: &Descriptors,
        path: &Path,
        len: u64,
        may_map: bool,
    ) -> Result<PosixMapped> {
        if len == 0 || i64::try_from(len).is_err() {
            return Err(Error::invalid(format!("a mapped file of {len} bytes")));
        }
        if len > file_bytes_max() {
            let limited = io::ErrorKind::FileTooLarge.into();
            return Err(io_error("reserve", path, None, len, limited));
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = descriptors.open(|| options.open(path));
        let file = file.map_err(|e| Error::io("create", path, None, e))?;
        let overwrites = rewrites_in_place(&file);
        if let Err(e) = reserve(&file, 0..len) {
            drop(file);
            // The first error is the relevant one. The next open finds an orphan.
            let _ = fs::remove_file(path);
            return Err(io_error("reserve", path, None, len, e));
        }
        let map = if may_map && overwrites { Map::of(&file, len).ok() } else { None };
        if map.as_ref().is_some_and(|map| map.is_persistent)
            && let Err(e) = file.sync_all()
        {
            drop((map, file));
            let _ = fs::remove_file(path);
            return Err(io_error("sync", path, None, 0, e));
        }
        Ok(PosixMapped {
            file,
            path: path.to_path_buf(),
            len,
            map,
            sealed: AtomicBool::new(false),
            failed: OnceLock::new(),
            syncing: Mutex::default(),
            unsynced: Mutex::default(),
            #[cfg(any(test, planted))]
            lost: AtomicBool::new(quirks::loses_what_is_written_back()),
        })
    }

    /// The map, if it is of persistent memory.
    fn persistent(&self) -> Option<&Map> {
        self.map.as_ref().filter(|map| map.is_persistent)
    }

    /// Writes back what was stored to persistent memory.
    fn write_lines_back(&self, map: &Map) {
        let range = std::mem::take(&mut *self.unsynced.lock());
        // SAFETY: what was written was checked to lie inside the map.
        unsafe { map.write_back(range.start as usize..range.end as usize) };
    }

    /// Writes what was stored to the disk.
    fn write_back(&self) -> io::Result<()> {
        if let Some(map) = self.persistent() {
            // What was stored before it was sealed has been written back then.
            if !self.sealed.load(Ordering::SeqCst) {
                self.write_lines_back(map);
            }
            return Ok(());
        }
        if let Some(map) = &self.map {
            map.flush()?;
        }
        #[cfg(any(test, planted))]
        if self.lost.swap(false, Ordering::SeqCst) {
            // The first sync to be told of an error need not be the first to return.
            std::thread::sleep(std::time::Duration::from_millis(2));
            return Err(io::Error::other("lost in writing back"));
        }
        self.file.sync_data()
    }

    fn note<T>(&self, result: io::Result<T>, op: &'static str, offset: Option<u64>, needed: u64) {
        if let Err(e) = result {
            self.failed.get_or_init(|| io_error(op, &self.path, offset, needed, e));
        }
    }
}

impl MappedFile for PosixMapped {
    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) {
        let needed = bytes.len() as u64;
        assert!(
            offset.checked_add(needed).is_some_and(|end| end <= self.len),
            "{needed} bytes at {offset} of {} bytes",
            self.len
        );
        assert!(!self.sealed.load(Ordering::Relaxed), "a write to a sealed file");
        match &self.map {
            Some(map) => {
                // SAFETY: the range was checked to lie inside the map just above.
                unsafe { map.store(offset as usize, bytes) };
                if map.is_persistent && needed > 0 {
                    let mut unsynced = self.unsynced.lock();
                    *unsynced = match unsynced.is_empty() {
                        true => offset..offset + needed,
                        false => unsynced.start.min(offset)..unsynced.end.max(offset + needed),
                    };
                }
            }
            None => self.note(self.file.write_all_at(bytes, offset), "write", Some(offset), needed),
        }
    }

    fn warm(&self, range: Range<u64>) {
        if let Some(map) = &self.map
            && range.start < range.end.min(self.len)
        {
            // Where this is not possible, the first stores have the same effect.
            let _ = map.populate(range.start as usize..range.end.min(self.len) as usize);
        }
    }

    fn release(&self, range: Range<u64>) {
        if let Some(map) = &self.map
            && !self.sealed.load(Ordering::Relaxed)
            && range.start < range.end.min(self.len)
        {
            // Where this is not possible, the memory is released when the file is sealed.
            let _ = map.release_part(range.start as usize..range.end.min(self.len) as usize);
        }
    }

    fn check(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    fn sync(&self) -> Result<()> {
        let _alone = (!planted(Bug::SyncsAtOnce)).then(|| self.syncing.lock());
        self.check()?;
        self.note(self.write_back(), "sync", None, 0);
        self.check()
    }

    fn seal(&self) -> Result<()> {
        // No sync writes lines back that are about to go.
        let _alone = self.persistent().map(|map| {
            let alone = self.syncing.lock();
            if !self.sealed.load(Ordering::SeqCst) {
                self.write_lines_back(map);
            }
            alone
        });
        if !self.sealed.swap(true, Ordering::SeqCst)
            && let Some(map) = &self.map
        {
            self.note(map.release(), "unmap", None, 0);
        }
        self.check()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A file's bytes as memory.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    len: usize,
    is_persistent: bool,
}

impl Map {
    fn of(file: &fs::File, len: u64) -> io::Result<Map> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let map = |flags| {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the kernel chooses addresses that nothing else uses.
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, file, 0) }
        };
        let persistent = persistent_flags().and_then(|flags| map(flags).ok());
        let (start, is_persistent) = match persistent {
            Some(start) => (start, true),
            None => (map(MapFlags::SHARED)?, false),
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Map { start, len, is_persistent })
    }

    /// Writes the cache lines of a range back to persistent memory, and waits for them.
    ///
    /// # Safety
    /// The range lies inside the map, which has not been released.
    unsafe fn write_back(&self, range: Range<usize>) {
        // SAFETY: the caller keeps the range inside the map.
        unsafe { cache_lines::write_back(self.start.add(range.start), range.len()) };
        cache_lines::fence();
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// The range lies inside the map, and no other thread stores to it at the same time.
    #[inline]
    unsafe fn store(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller keeps the range inside the map, which stays this handle's until it is
        // dropped; `bytes` is a Rust reference and so never points into the map.
        unsafe {
            let to = self.start.as_ptr().add(offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Faults in the pages of the range, which is inside the mapping, for writing. Otherwise the
    /// first store to each page asks the file system, and may have to wait for a commit of the file
    /// system.
    fn populate(&self, range: Range<usize>) -> io::Result<()> {
        // Available since Linux 5.14.
        #[cfg(target_os = "linux")]
        {
            let first = range.start / UNIT_BYTES * UNIT_BYTES;
            let advice = rustix::mm::Advice::LinuxPopulateWrite;
            // SAFETY: the range is this map's, and populating pages changes no byte. (Where pages
            // are larger than a unit its start may be refused.)
            unsafe {
                let start: *mut c_void = self.start.as_ptr().add(first).cast();
                rustix::mm::madvise(start, range.end - first, advice)?;
            }
        }
        Ok(())
    }

    /// Unmaps whole pages of the range, which is inside the mapping, from the process. They stay in
    /// the file.
    fn release_part(&self, range: Range<usize>) -> io::Result<()> {
        let first = range.start.next_multiple_of(UNIT_BYTES);
        let end = range.end / UNIT_BYTES * UNIT_BYTES;
        if first < end {
            let advice = rustix::mm::Advice::LinuxDontNeed;
            // SAFETY: the range is this map's. The map is shared, so its pages are the file's and
            // keep their bytes: only the process's way to them goes, and the next access finds it
            // again.
            unsafe {
                let start: *mut c_void = self.start.as_ptr().add(first).cast();
                rustix::mm::madvise(start, end - first, advice)?;
            }
        }
        Ok(())
    }

    /// Passes stored bytes to the file where the system does not do so by itself.
    fn flush(&self) -> io::Result<()> {
        // Linux writes a file's pages back at fdatasync, however they were dirtied.
        #[cfg(not(target_os = "linux"))]
        // SAFETY: the range is this map's.
        unsafe {
            let start: *mut c_void = self.start.as_ptr().cast();
            rustix::mm::msync(start, self.len, rustix::mm::MsyncFlags::SYNC)?;
        }
        Ok(())
    }

    /// Releases the memory and keeps the addresses reserved.
    fn release(&self) -> io::Result<()> {
        let start: *mut c_void = self.start.as_ptr().cast();
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this map's alone, and no reference points into it.
        unsafe { rustix::mm::mmap_anonymous(start, self.len, ProtFlags::empty(), flags)? };
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is this map's alone, and nobody can store to it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

// SAFETY: the map is plain memory that belongs to the process, not to a thread.
unsafe impl Send for Map {}
// SAFETY: `store` is unsafe and its contract forbids overlapping stores; nothing reads.
unsafe impl Sync for Map {}

/// How a file is mapped whose file system has it in persistent memory; other file systems refuse that. `None` where lines
/// cannot be written back.
pub(super) fn persistent_flags() -> Option<MapFlags> {
    #[cfg(target_os = "linux")]
    if cache_lines::is_supported() {
        return Some(MapFlags::SHARED_VALIDATE | MapFlags::SYNC);
    }
    None
}

/// Extends the file, which ends at the start of `range`, to its end, by zero bytes with allocated disk space.
pub(super) fn reserve(file: &fs::File, range: Range<u64>) -> io::Result<()> {
    let len = range.end - range.start;
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::FallocateFlags;
        use rustix::io::Errno;
        // Some file systems fill the whole disk before they notice that it is too small, which
        // affects all other users of the disk. (Those without a limit report no blocks.)
        if let Ok(statistics) = rustix::fs::fstatvfs(file)
            && statistics.f_blocks > 0
            && statistics.f_bfree.saturating_mul(statistics.f_frsize) < len
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        loop {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), range.start, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
                Err(e) => return Err(e.into()),
            }
        }
    }
    write_zeros(file, range)
}

fn write_zeros(file: &fs::File, range: Range<u64>) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut at = range.start;
    while at < range.end {
        let n = (range.end - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
const BTRFS: u64 = 0x9123_683e;
#[cfg(target_os = "linux")]
const BCACHEFS: u64 = 0xca45_1a4e;
#[cfg(target_os = "linux")]
const ZFS: u64 = 0x2fc1_2fc1;

/// Whether allocated bytes are overwritten in place. Called while the file is empty, because only
/// then can it be set.
pub(super) fn rewrites_in_place(file: &fs::File) -> bool {
    #[cfg(target_os = "linux")]
    {
        let Ok(statistics) = rustix::fs::fstatfs(file) else { return false };
        // The type's width and sign differ between machines; the numbers have 32 bits.
        match statistics.f_type as u64 & 0xffff_ffff {
            BTRFS => rustix::fs::ioctl_getflags(file)
                .and_then(|flags| {
                    rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW)
                })
                .is_ok(),
            BCACHEFS | ZFS => false,
            _ => true,
        }
    }
    #[cfg(not(target_os = "linux"))]
    true
}

/// Whether a file that has bytes is overwritten in place.
pub(super) fn is_rewritten_in_place(file: &fs::File) -> bool {
    #[cfg(target_os = "linux")]
    {
        let Ok(statistics) = rustix::fs::fstatfs(file) else { return false };
        match statistics.f_type as u64 & 0xffff_ffff {
            BTRFS => rustix::fs::ioctl_getflags(file)
                .is_ok_and(|flags| flags.contains(rustix::fs::IFlags::NOCOW)),
            BCACHEFS | ZFS => false,
            _ => true,
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        true
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn without_a_map_the_same_bytes_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mapped =
            PosixMapped::create_as(&Descriptors::of_process(), &path, 100_000, false).unwrap();
        assert!(mapped.map.is_none());
        mapped.write(0, b"first");
        mapped.write(99_996, b"last");
        mapped.check().unwrap();
        mapped.sync().unwrap();
        mapped.seal().unwrap();
        mapped.sync().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(
            (bytes.len(), &bytes[..6], &bytes[99_996..]),
            (100_000, &b"first\0"[..], &b"last"[..])
        );
    }

    #[test]
    fn a_write_that_fails_is_told_of_for_ever_after() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mut mapped =
            PosixMapped::create_as(&Descriptors::of_process(), &path, 4096, false).unwrap();
        // A read-only handle: each write fails.
        mapped.file = fs::File::open(&path).unwrap();
        mapped.write(7, b"x");
        for result in [mapped.check(), mapped.sync(), mapped.sync(), mapped.seal()] {
            assert!(
                matches!(&result, Err(Error::Io { op: "write", offset: Some(7), path: p, .. })
                    if *p == path),
                "{result:?}"
            );
        }
    }

    /// The kernel could not write back what had been stored, and said so to one of two syncs that
    /// were under way at once. The other was told that all was well, and acknowledged bytes that
    /// were lost.
    #[test]
    fn two_syncs_at_once_both_hear_of_what_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let mapped = PosixMapped::create(
                &Descriptors::of_process(),
                &dir.path().join(format!("{round}")),
                8192,
            )
            .unwrap();
            mapped.write(0, b"bytes");
            mapped.lost.store(true, Ordering::SeqCst);
            let together = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let sync = || {
                    together.wait();
                    mapped.sync()
                };
                let syncs = [scope.spawn(sync), scope.spawn(sync)];
                for result in syncs.map(|sync| sync.join().unwrap()) {
                    assert!(matches!(result, Err(Error::Io { op: "sync", .. })), "{result:?}");
                }
            });
        }
    }

    /// As on persistent memory, which this machine need not have: the instructions are the same.
    #[test]
    fn persistent_memory_is_synced_without_the_system() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mut mapped = PosixMapped::create(&Descriptors::of_process(), &path, 100_000).unwrap();
        let Some(map) = mapped.map.as_mut().filter(|_| cache_lines::is_supported()) else { return };
        map.is_persistent = true;
        mapped.write(99_000, b"end");
        mapped.write(50, b"begin");
        assert_eq!(*mapped.unsynced.lock(), 50..99_003);
        // The system would say that it has lost something.
        mapped.lost.store(true, Ordering::SeqCst);
        mapped.sync().unwrap();
        assert!(mapped.unsynced.lock().is_empty());
        mapped.write(7, b"x");
        mapped.seal().unwrap();
        assert!(mapped.unsynced.lock().is_empty());
        mapped.sync().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(
            (bytes[7], &bytes[50..55], &bytes[99_000..99_003]),
            (b'x', &b"begin"[..], &b"end"[..])
        );
    }

    #[test]
    fn a_disk_without_preallocation_gets_zeros() {
        let file = tempfile::tempfile().unwrap();
        write_zeros(&file, 0..150_001).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 150_001);
    }

    #[test]
    fn warming_spares_the_first_stores_their_faults_and_changes_no_byte() {
        const PAGES: usize = 256;
        let faults = || -> u64 {
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let behind_name = stat.rsplit_once(')').unwrap().1;
            behind_name.split_whitespace().nth(7).unwrap().parse().unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mapped =
            PosixMapped::create(&Descriptors::of_process(), &path, (PAGES * UNIT_BYTES) as u64)
                .unwrap();
        mapped.write(5, b"kept");
        let Some(map) = &mapped.map else { return };
        if map.populate(0..UNIT_BYTES).is_err() {
            return; // an older kernel
        }
        mapped.warm(UNIT_BYTES as u64..u64::MAX);
        let before = faults();
        (0..PAGES).for_each(|page| mapped.write((page * UNIT_BYTES + 100) as u64, &[7]));
        let taken = faults() - before;
        assert!(taken < PAGES as u64 / 4, "{taken} faults");
        mapped.sync().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(&bytes[..10], b"\0\0\0\0\0kept\0");
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), PAGES);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_released_stays_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let mapped = PosixMapped::create(&Descriptors::of_process(), &path, 1 << 20).unwrap();
        mapped.write(100, &[7; 1 << 17]);
        mapped.release(100..100 + (1 << 17));
        mapped.write((1 << 17) + 100, &[8; 10]);
        mapped.sync().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes[100..100 + (1 << 17)].iter().all(|&byte| byte == 7));
        assert_eq!(bytes[(1 << 17) + 100..][..10], [8; 10]);
    }

    #[test]
    fn sealing_gives_the_memory_back_and_keeps_the_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let mapped =
            PosixMapped::create(&Descriptors::of_process(), &dir.path().join("segment"), 1 << 20)
                .unwrap();
        let map = mapped.map.as_ref().unwrap();
        let start = map.start.as_ptr().addr();
        mapped.write(0, &[1; 1 << 16]);
        mapped.seal().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|a| usize::from_str_radix(a, 16).unwrap());
            (from..to).contains(&start)
        });
        let line = line.unwrap();
        assert!(line.contains("---p") && !line.contains("segment"), "{line}");
    }
}
