//! A file system in memory that can lose power: each 512-byte sector that was not synced comes back
//! as any of its versions since the last sync, or cut in the middle of a write.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::base::sync::plain::Mutex;

use crate::base::error::{Error, Result};
use crate::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, Vfs};

pub(super) const SECTOR: usize = 512;

/// A small generator for tests.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub(super) fn bytes(&mut self, n: u64) -> Vec<u8> {
        // Some bytes are zero, as in real values.
        (0..n).map(|_| if self.chance(4) { 0 } else { self.next() as u8 }).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Bytes {
    current: Vec<u8>,
    synced: Vec<u8>,
    /// Since the last sync.
    writes: Vec<(usize, Vec<u8>)>,
    sealed: bool,
}

#[derive(Debug)]
pub(super) struct TestFile {
    path: PathBuf,
    bytes: Mutex<Bytes>,
    faults: Arc<Faults>,
}

/// While it exists, syncs do not end.
pub(super) struct HeldSyncs<'a>(&'a AtomicBool);

impl Drop for HeldSyncs<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Faults {
    pub(super) fn hold_syncs(&self) -> HeldSyncs<'_> {
        self.hold_sync.store(true, Ordering::SeqCst);
        HeldSyncs(&self.hold_sync)
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) fail_sync: AtomicBool,
    pub(super) slow_sync: AtomicBool,
    hold_sync: AtomicBool,
    /// How many syncs had to wait for `hold_sync` to be false.
    pub(super) held_syncs: AtomicU64,
    pub(super) full: AtomicBool,
    /// As on a file system that cannot map files, when the disk breaks.
    pub(super) fail_write: AtomicBool,
    /// The next removal of a file.
    pub(super) fail_remove: AtomicBool,
    pub(super) panic_remove: AtomicBool,
    pub(super) syncs: AtomicU64,
}

type Names = BTreeMap<PathBuf, Arc<TestFile>>;

#[derive(Debug, Default)]
pub(super) struct TestVfs {
    names: Mutex<Names>,
    durable_names: Mutex<Names>,
    pub(super) faults: Arc<Faults>,
}

fn missing(op: &'static str, path: &Path) -> Error {
    Error::io(op, path, None, io::Error::from(io::ErrorKind::NotFound))
}

impl TestVfs {
    pub(super) fn new() -> Arc<TestVfs> {
        Arc::default()
    }

    fn file(&self, op: &'static str, path: &Path) -> Result<Arc<TestFile>> {
        self.names.lock().get(path).cloned().ok_or_else(|| missing(op, path))
    }

    /// Changes bytes behind everybody's back, durably.
    pub(super) fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.file("damage", path).unwrap();
        let mut bytes = file.bytes.lock();
        change(&mut bytes.current);
        bytes.synced = bytes.current.clone();
        bytes.writes.clear();
    }

    pub(super) fn contents(&self, path: &Path) -> Vec<u8> {
        self.file("read", path).unwrap().bytes.lock().current.clone()
    }

    /// The files, with how many sectors of each are not synced.
    pub(super) fn unsynced_sectors(&self) -> Vec<(PathBuf, Vec<usize>)> {
        let names = self.names.lock();
        names.iter().map(|(path, file)| (path.clone(), touched(&file.bytes.lock()))).collect()
    }

    /// What a copy of this file system looks like once the process has died.
    pub(super) fn after_process_death(&self) -> Arc<TestVfs> {
        self.copy(&self.names.lock(), &self.durable_names.lock(), |bytes, _| Bytes {
            current: bytes.current.clone(),
            synced: bytes.synced.clone(),
            writes: bytes.writes.clone(),
            sealed: false,
        })
    }

    /// What it looks like after power loss. `keep(file, sector, writes)` says how many of the writes
    /// to an unsynced sector reached the disk.
    pub(super) fn after_power_loss(
        &self,
        mut keep: impl FnMut(&Path, usize, usize) -> usize,
    ) -> Arc<TestVfs> {
        let durable = self.durable_names.lock();
        self.copy(&durable, &durable, |bytes, path| {
            let mut current = bytes.synced.clone();
            for sector in touched(bytes) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                let writes: Vec<_> = (bytes.writes.iter())
                    .filter(|(at, new)| *at < range.end && at + new.len() > range.start)
                    .collect();
                let kept = keep(path, sector, writes.len());
                for (at, new) in writes.into_iter().take(kept) {
                    for (index, &byte) in new.iter().enumerate() {
                        if range.contains(&(at + index)) {
                            current[at + index] = byte;
                        }
                    }
                }
            }
            Bytes { synced: current.clone(), current, ..Bytes::default() }
        })
    }

    /// Power loss with random sectors kept, and names changed but not synced there or not.
    pub(super) fn after_random_power_loss(&self, random: &mut Random) -> Arc<TestVfs> {
        {
            let (names, mut durable) = (self.names.lock(), self.durable_names.lock());
            let gone: Vec<_> =
                durable.keys().filter(|n| !names.contains_key(*n)).cloned().collect();
            for name in gone {
                if random.chance(2) {
                    durable.remove(&name);
                }
            }
            for (name, file) in names.iter() {
                if !durable.contains_key(name) && random.chance(2) {
                    durable.insert(name.clone(), Arc::clone(file));
                }
            }
        }
        let style = random.below(4);
        self.after_power_loss(|_, _, writes| match style {
            0 => 0,
            1 => random.below(2) as usize * writes,
            2 => writes - usize::from(random.chance(8)).min(writes),
            _ => random.below(writes as u64 + 1) as usize,
        })
    }

    fn copy(
        &self,
        names: &Names,
        durable: &Names,
        bytes_of: impl FnMut(&Bytes, &Path) -> Bytes,
    ) -> Arc<TestVfs> {
        let faults = Arc::new(Faults::default());
        let mut bytes_of = bytes_of;
        let names: Names = (names.iter())
            .map(|(path, file)| {
                let bytes = Mutex::new(bytes_of(&file.bytes.lock(), path));
                let faults = Arc::clone(&faults);
                (path.clone(), Arc::new(TestFile { path: path.clone(), bytes, faults }))
            })
            .collect();
        let durable = names.iter().filter(|(path, _)| durable.contains_key(*path));
        let durable = durable.map(|(path, file)| (path.clone(), Arc::clone(file))).collect();
        Arc::new(TestVfs { names: Mutex::new(names), durable_names: Mutex::new(durable), faults })
    }
}

fn touched(bytes: &Bytes) -> Vec<usize> {
    let mut sectors: Vec<usize> = (bytes.writes.iter())
        .filter(|(_, new)| !new.is_empty())
        .flat_map(|(at, new)| at / SECTOR..=(at + new.len() - 1) / SECTOR)
        .collect();
    sectors.sort_unstable();
    sectors.dedup();
    sectors
}

impl Vfs for TestVfs {
    fn create(&self, _: &Path, _: Access) -> Result<Arc<dyn File>> {
        unreachable!()
    }

    fn open(&self, path: &Path, _: Access, _: bool) -> Result<Arc<dyn File>> {
        Ok(self.file("open", path)?)
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        if self.faults.full.load(Ordering::SeqCst) {
            return Err(Error::Full { path: path.to_path_buf(), needed: 0 });
        }
        let zeros = vec![0; len as usize];
        let bytes = Bytes { current: zeros.clone(), synced: zeros, ..Bytes::default() };
        let file = Arc::new(TestFile {
            path: path.to_path_buf(),
            bytes: Mutex::new(bytes),
            faults: Arc::clone(&self.faults),
        });
        let before = self.names.lock().insert(path.to_path_buf(), Arc::clone(&file));
        assert!(before.is_none(), "{} exists", path.display());
        Ok(file)
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if self.faults.fail_remove.swap(false, Ordering::SeqCst) {
            return Err(Error::io("remove", path, None, io::ErrorKind::PermissionDenied.into()));
        }
        assert!(!self.faults.panic_remove.swap(false, Ordering::SeqCst), "a bug in remove");
        self.names.lock().remove(path).map(|_| ()).ok_or_else(|| missing("remove", path))
    }

    fn hard_link(&self, _: &Path, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn create_dir_all(&self, _: &Path) -> Result<()> {
        Ok(())
    }

    fn remove_dir(&self, _: &Path) -> Result<()> {
        unreachable!()
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let names = self.names.lock();
        let inside = names.values().filter(|file| file.path.parent() == Some(path));
        Ok(inside
            .map(|file| DirEntry {
                name: file.path.file_name().unwrap().to_str().unwrap().to_owned(),
                len: file.bytes.lock().current.len() as u64,
                is_dir: false,
            })
            .collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.names.lock().contains_key(path))
    }

    fn sync_dir(&self, _: &Path) -> Result<()> {
        *self.durable_names.lock() = self.names.lock().clone();
        Ok(())
    }

    fn lock(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unreachable!()
    }

    fn lock_shared(&self, _: &Path) -> Result<Box<dyn Lock>> {
        unreachable!()
    }

    fn io_queue(&self, _: usize) -> Box<dyn IoQueue> {
        unreachable!()
    }
}

impl TestFile {
    fn sync_bytes(&self) -> Result<()> {
        if self.faults.slow_sync.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.faults.hold_sync.load(Ordering::SeqCst) {
            self.faults.held_syncs.fetch_add(1, Ordering::SeqCst);
            while self.faults.hold_sync.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if self.faults.fail_sync.load(Ordering::SeqCst) {
            let error = io::Error::other("the disk is on fire");
            return Err(Error::io("sync", &self.path, None, error));
        }
        self.faults.syncs.fetch_add(1, Ordering::SeqCst);
        let mut bytes = self.bytes.lock();
        let bytes = &mut *bytes;
        for (at, new) in bytes.writes.drain(..) {
            bytes.synced[at..at + new.len()].copy_from_slice(&new);
        }
        Ok(())
    }
}

impl MappedFile for TestFile {
    fn write(&self, offset: u64, new: &[u8]) {
        let mut bytes = self.bytes.lock();
        assert!(!bytes.sealed, "a write to a sealed segment");
        let at = offset as usize;
        bytes.current[at..at + new.len()].copy_from_slice(new);
        bytes.writes.push((at, new.to_vec()));
    }

    fn check(&self) -> Result<()> {
        if self.faults.fail_write.load(Ordering::SeqCst) {
            let error = io::Error::other("the disk is on fire");
            return Err(Error::io("write", &self.path, None, error));
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.sync_bytes()
    }

    fn seal(&self) -> Result<()> {
        self.bytes.lock().sealed = true;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.bytes.lock().current.len() as u64
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl File for TestFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.lock();
        buf.copy_from_slice(&bytes.current[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, new: &[u8]) -> Result<()> {
        // A replay stores again what it reads.
        let mut bytes = self.bytes.lock();
        let at = offset as usize;
        bytes.current[at..at + new.len()].copy_from_slice(new);
        bytes.writes.push((at, new.to_vec()));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.sync_bytes()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.bytes.lock().current.len() as u64)
    }

    fn truncate(&self, _: u64) -> Result<()> {
        unreachable!()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
