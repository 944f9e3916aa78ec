//! The limit on open files: data files are closed when others need their descriptors, and reopened
//! by name when they are read.
//!
//! Invariants:
//! 1. At most `max` of the files that can be reopened are open, minus the rings of background jobs.
//!    Files that are being read, or that have unsynced writes, may exceed this.
//! 2. A file that is being read or written is not closed: the operation holds a reference to its
//!    descriptor.
//! 3. A file with an unsynced write is not closed, because an error of the write would be lost. A
//!    sync counts only if it began after the write had ended. The check and the close are under one
//!    lock, which a write takes before it asks for the file.
//! 4. A file can be reopened as long as its handle exists: its name is removed with the handle.
//! 5. Reading an open file takes no lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use super::OpenFiles;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{ArcSwapOption, AtomicBool, AtomicU64, Ordering};

/// The most files that a process keeps open unless told otherwise.
const OPEN_MAX: u64 = 1024;
/// As few as this are kept open however low the system's limit is.
const OPEN_MIN: u64 = 8;
/// How many files are closed for one that cannot be opened otherwise.
const RELEASED: usize = 8;
/// How often that is tried: somebody else may take what has been given back.
const TRIES: usize = 4;

/// What the files of one or more [`PosixVfs`](super::PosixVfs) share.
#[derive(Debug)]
pub(super) struct Descriptors {
    max: u64,
    open: AtomicU64,
    /// Of these, what cannot be opened again: see [`Descriptors::hold`].
    held: AtomicU64,
    reopened: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    files: Vec<Weak<Descriptor>>,
    hand: usize,
}

/// The descriptor of one file.
#[derive(Debug)]
pub(super) struct Descriptor {
    path: PathBuf,
    writable: bool,
    /// Whether `O_DIRECT` is set.
    pub(super) direct: AtomicBool,
    /// `None` while the file is closed.
    file: ArcSwapOption<fs::File>,
    /// Read since the hand last passed.
    used: AtomicBool,
    writes: Mutex<Writes>,
    /// Closes it when there are too many; without it, it stays open.
    shared: Option<Arc<Descriptors>>,
}

/// What has been written to a file, and what of it has been synced.
#[derive(Debug, Default)]
struct Writes {
    under_way: usize,
    /// How often a write has begun or ended.
    changes: u64,
    /// How many of these were before the beginning of a sync that has succeeded.
    synced: u64,
}

/// A write that is under way.
pub(super) struct Writing<'a>(&'a Descriptor);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writes = self.0.writes.lock();
        writes.under_way -= 1;
        writes.changes += 1;
    }
}

/// The system's limit on open files.
fn limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether the process or the system has no descriptor left.
pub(super) fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

impl Descriptors {
    /// At most `max` files are kept open.
    pub(super) fn new(max: u64) -> Arc<Descriptors> {
        Arc::new(Descriptors {
            max,
            open: AtomicU64::new(0),
            held: AtomicU64::new(0),
            reopened: AtomicU64::new(0),
            known: Mutex::default(),
        })
    }

    /// Those of all stores of the process together: a quarter of the system's limit, 1,024 at most.
    pub(super) fn of_process() -> Arc<Descriptors> {
        static SHARED: OnceLock<(Birthplace, Arc<Descriptors>)> = OnceLock::new();
        let new = || Descriptors::new((limit() / 4).clamp(OPEN_MIN, OPEN_MAX));
        let (birthplace, shared) = SHARED.get_or_init(|| (Birthplace::here(), new()));
        // In a forked child its lock may be held by a thread that is not there.
        if birthplace.is_here() { Arc::clone(shared) } else { new() }
    }

    /// How many are open, and may be.
    pub(super) fn statistics(&self) -> OpenFiles {
        OpenFiles {
            open: self.open.load(Ordering::Relaxed),
            max: self.max,
            reopened: self.reopened.load(Ordering::Relaxed),
        }
    }

    /// Opens something; when there is no descriptor left, closes files that can be opened again,
    /// and tries once more.
    pub(super) fn open<T>(&self, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut tries = 0;
        loop {
            match open() {
                Err(e) if is_exhaustion(&e) && tries < TRIES && self.close_some(RELEASED) > 0 => {
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Makes room for so many more files.
    fn make_room(&self, more: u64) {
        let over = (self.open.load(Ordering::Relaxed) + more).saturating_sub(self.max);
        if over > 0 {
            self.close_some(over as usize);
        }
    }

    /// Closes up to `wanted` files, those first that have not been read for longest; returns how
    /// many.
    fn close_some(&self, wanted: usize) -> usize {
        let mut known = self.known.lock();
        let mut closed = 0;
        // Twice round: the first time takes marks away.
        let mut looks = known.files.len() * 2;
        while closed < wanted && looks > 0 && !known.files.is_empty() {
            looks -= 1;
            let at = known.hand % known.files.len();
            known.hand = at + 1;
            match known.files[at].upgrade() {
                Some(file) => closed += usize::from(file.close(self)),
                None => {
                    known.files.swap_remove(at);
                    known.hand = at;
                }
            }
        }
        closed
    }

    /// Counts one more descriptor, of something that cannot be opened again, for as long as the
    /// result lives. `None` if such things have half of all: files need the rest.
    pub(super) fn hold(self: &Arc<Self>) -> Option<Held> {
        if self.held.fetch_add(1, Ordering::Relaxed) >= self.max / 2 {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.make_room(1);
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Held(Arc::clone(self)))
    }

    /// The most that may be open.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    fn learn(&self, file: &Arc<Descriptor>) {
        let mut known = self.known.lock();
        if known.files.len() == known.files.capacity() {
            known.files.retain(|file| file.strong_count() > 0);
        }
        known.files.push(Arc::downgrade(file));
    }
}

/// See [`Descriptors::hold`].
pub(super) struct Held(Arc<Descriptors>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Descriptor {
    /// Of an open file that stays open.
    pub(super) fn kept(file: fs::File, path: &Path) -> Arc<Descriptor> {
        Descriptor::new(file, path, true, None)
    }

    /// Of an open file that may be closed, and opened again by name.
    pub(super) fn shared(
        descriptors: &Arc<Descriptors>,
        file: fs::File,
        path: &Path,
        writable: bool,
    ) -> Arc<Descriptor> {
        descriptors.make_room(1);
        descriptors.open.fetch_add(1, Ordering::Relaxed);
        let file = Descriptor::new(file, path, writable, Some(Arc::clone(descriptors)));
        descriptors.learn(&file);
        file
    }

    fn new(
        file: fs::File,
        path: &Path,
        writable: bool,
        shared: Option<Arc<Descriptors>>,
    ) -> Arc<Descriptor> {
        Arc::new(Descriptor {
            path: path.to_path_buf(),
            writable,
            direct: AtomicBool::new(false),
            file: ArcSwapOption::from_pointee(file),
            used: AtomicBool::new(true),
            writes: Mutex::default(),
            shared,
        })
    }

    /// The name it was opened under.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The open file: opened again if it has been closed. It is not closed while the result lives.
    pub(super) fn get(&self) -> io::Result<Arc<fs::File>> {
        if let Some(file) = self.file.load_full() {
            if !self.used.load(Ordering::Relaxed) {
                self.used.store(true, Ordering::Relaxed);
            }
            return Ok(file);
        }
        self.reopen()
    }

    #[cold]
    fn reopen(&self) -> io::Result<Arc<fs::File>> {
        let Some(shared) = &self.shared else { return Err(io::ErrorKind::NotFound.into()) };
        shared.make_room(1);
        let open = || fs::OpenOptions::new().read(true).write(self.writable).open(&self.path);
        let file = shared.open(open)?;
        if self.direct.load(Ordering::Relaxed) {
            // Refused, reads are buffered.
            let _ = super::posix_file::set_direct(&file, true);
        }
        let file = Arc::new(file);
        shared.reopened.fetch_add(1, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        // Counted before somebody can close it.
        shared.open.fetch_add(1, Ordering::Relaxed);
        let before = self.file.compare_and_swap(&None::<Arc<fs::File>>, Some(Arc::clone(&file)));
        match &*before {
            // Another thread was faster.
            Some(theirs) => {
                shared.open.fetch_sub(1, Ordering::Relaxed);
                Ok(Arc::clone(theirs))
            }
            None => Ok(file),
        }
    }

    /// The file is about to be written. From here on it stays open until a sync that begins after
    /// the write's end.
    pub(super) fn writing(&self) -> Writing<'_> {
        let mut writes = self.writes.lock();
        writes.under_way += 1;
        writes.changes += 1;
        Writing(self)
    }

    /// The same for a write of whose end nothing is heard: whoever makes it asks for a sync after
    /// that.
    pub(super) fn writing_unwatched(&self) {
        self.writes.lock().changes += 1;
    }

    /// A sync begins. Returns what [`Descriptor::synced`] is to be told if it succeeds; `None`
    /// while a write is under way, for which the sync may come too early.
    pub(super) fn syncing(&self) -> Option<u64> {
        let writes = self.writes.lock();
        (writes.under_way == 0).then_some(writes.changes)
    }

    /// A sync has succeeded, at whose beginning [`Descriptor::syncing`] said `upto`.
    pub(super) fn synced(&self, upto: Option<u64>) {
        {
            let mut writes = self.writes.lock();
            writes.synced = writes.synced.max(upto.unwrap_or_default());
        }
        // What had to stay open while it was written may be one too many.
        if let Some(shared) = &self.shared {
            shared.make_room(0);
        }
    }

    /// Closes the file, unless it is wanted or closed; returns whether it has.
    fn close(&self, shared: &Descriptors) -> bool {
        self.close_while(shared, || ())
    }

    /// The same; calls `meanwhile` between the look and the closing.
    fn close_while(&self, shared: &Descriptors, meanwhile: impl FnOnce()) -> bool {
        // A write that comes now waits until the file is closed, and opens it again.
        let writes = self.writes.lock();
        let is_unsynced = writes.changes != writes.synced;
        if is_unsynced || self.used.swap(false, Ordering::Relaxed) {
            return false;
        }
        meanwhile();
        match self.file.swap(None) {
            Some(file) => {
                if planted(Bug::DescriptorLeak) {
                    std::mem::forget(Arc::clone(&file));
                }
                shared.open.fetch_sub(1, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared
            && self.file.load().is_some()
        {
            shared.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, shuttle))))]
mod tests {
    use super::*;
    use crate::base::limits::UNIT_BYTES;
    use crate::vfs::{Access, AlignedBuf, File, PosixOptions, PosixVfs, Vfs};

    fn open_below(dir: &Path) -> usize {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
        targets.filter(|target| target.starts_with(dir)).count()
    }

    fn vfs(open_files_max: u64) -> PosixVfs {
        PosixVfs::with(PosixOptions { open_files_max, ..PosixOptions::default() })
    }

    /// Each file of a store was open for as long as the store was: 4,868 of them with 4 GB.
    #[test]
    fn few_files_are_open_however_many_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let vfs = vfs(10);
        let make = |number: u8| -> Arc<dyn File> {
            let file = vfs.create(&dir.path().join(number.to_string()), Access::Direct).unwrap();
            let mut buf = AlignedBuf::new(UNIT_BYTES);
            buf.fill(number);
            file.write_at(0, &buf).unwrap();
            file
        };
        // What has not been synced stays open.
        let files: Vec<Arc<dyn File>> = (0..40).map(make).collect();
        assert_eq!(open_below(dir.path()), 40);
        files.iter().for_each(|file| file.sync().unwrap());
        let read = |file: &Arc<dyn File>| {
            let mut buf = AlignedBuf::new(UNIT_BYTES);
            file.read_at(0, &mut buf).unwrap();
            buf[100]
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (files, read) = (&files, &read);
                scope.spawn(move || {
                    for round in 0..400usize {
                        let number = (round * 7 + thread * 13) % files.len();
                        assert_eq!(read(&files[number]), number as u8);
                    }
                });
            }
        });
        assert_eq!(read(&files[3]), 3);
        let statistics = vfs.open_files();
        assert!(open_below(dir.path()) <= 10, "{statistics:?}");
        assert!(statistics.open <= 10 && statistics.max == 10 && statistics.reopened > 30);
        drop(files);
        assert_eq!((open_below(dir.path()), vfs.open_files().open), (0, 0));
    }

    #[test]
    fn a_file_that_is_held_is_not_closed() {
        let dir = tempfile::tempdir().unwrap();
        let descriptors = Descriptors::new(1);
        let shared = |name: &str| {
            let path = dir.path().join(name);
            Descriptor::shared(&descriptors, fs::File::create_new(&path).unwrap(), &path, false)
        };
        let first = shared("first");
        let held = first.get().unwrap();
        let others: Vec<_> = (0..3).map(|number| shared(&number.to_string())).collect();
        assert!(held.metadata().is_ok());
        assert_eq!(open_below(dir.path()), 2, "one that is held, one that may be open");
        drop((held, others));
        assert!(first.get().unwrap().metadata().is_ok());
    }

    /// A sync took the mark of a write that it had not seen: one that had begun before it and went
    /// on, or that began meanwhile. The file was closed before anybody had heard whether that write
    /// got to the disk.
    #[test]
    fn a_sync_counts_for_the_writes_that_had_ended_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let descriptors = Descriptors::new(1);
        let path = dir.path().join("one");
        let file = fs::File::create_new(&path).unwrap();
        let file = Descriptor::shared(&descriptors, file, &path, true);
        let can_close = || {
            file.used.store(false, Ordering::Relaxed);
            file.close(&descriptors)
        };
        let sync_while = |meanwhile: &mut dyn FnMut()| {
            drop(file.get().unwrap());
            let upto = file.syncing();
            meanwhile();
            file.synced(upto);
        };
        let before = file.writing();
        let mut before = Some(before);
        sync_while(&mut || drop(before.take()));
        assert!(!can_close(), "it was under way when the sync began");
        sync_while(&mut || drop(file.writing()));
        assert!(!can_close(), "it came while the sync was under way");
        let mut longer = None;
        sync_while(&mut || longer = Some(file.writing()));
        assert!(!can_close(), "it is under way");
        drop(longer);
        assert!(!can_close());
        sync_while(&mut || file.writing_unwatched());
        assert!(!can_close());
        sync_while(&mut || ());
        assert!(can_close(), "all has been synced");
    }

    /// It was looked whether a file has been written, and a write began before the file was closed:
    /// it went to the descriptor that was closed then, and nobody would have heard of its failure.
    #[test]
    fn a_write_that_begins_while_a_file_is_closed_goes_to_what_stays_open() {
        let dir = tempfile::tempdir().unwrap();
        let descriptors = Descriptors::new(1);
        let path = dir.path().join("one");
        let file = fs::File::create_new(&path).unwrap();
        let file = Descriptor::shared(&descriptors, file, &path, true);
        file.used.store(false, Ordering::Relaxed);
        let (tell, told) = std::sync::mpsc::channel();
        let mut written = None;
        std::thread::scope(|scope| {
            file.close_while(&descriptors, || {
                let (file, tell) = (&file, tell.clone());
                scope.spawn(move || {
                    let writing = file.writing();
                    tell.send(file.get().unwrap()).unwrap();
                    drop(writing);
                });
                // It may have to wait for the end of this call.
                written = told.recv_timeout(std::time::Duration::from_millis(300)).ok();
            });
        });
        let written = written.or_else(|| told.recv().ok()).unwrap();
        let open = file.file.load_full().expect("it is open until it has been synced");
        assert!(Arc::ptr_eq(&open, &written));
    }

    /// A file was counted after others could close it: for a moment fewer than none were open, and
    /// the sum of that and one more overflowed.
    #[test]
    fn fewer_than_none_are_never_open() {
        let dir = tempfile::tempdir().unwrap();
        let descriptors = Descriptors::new(1);
        let path = dir.path().join("one");
        let file = fs::File::create_new(&path).unwrap();
        let file = Descriptor::shared(&descriptors, file, &path, false);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (descriptors, file) = (&descriptors, &file);
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        match thread % 2 {
                            0 => drop(file.get().unwrap()),
                            _ => drop(descriptors.close_some(1)),
                        }
                        assert!(descriptors.statistics().open <= 3);
                    }
                });
            }
        });
    }
}
