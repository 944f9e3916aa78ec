//! Files with whose calls something else happens: how a story of several threads is told in one order.

use std::path::Path;
use std::sync::{Arc, Mutex};

use spinney::Result;
use spinney::vfs::{Access, DirEntry, File, IoQueue, Lock, MappedFile, ReadRequest, Vfs};

/// A call that a file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// A write, before it is done.
    Write,
    /// A sync, once it is done.
    Synced,
}

type Happening = Box<dyn FnOnce(&str) + Send>;

/// What is to happen, and with which call: the first of its kind on a file whose name contains that.
#[derive(Default)]
struct Plan(Mutex<Vec<(Call, &'static str, Happening)>>);

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

impl Plan {
    fn meet(&self, call: Call, path: &Path) {
        let name = path.file_name().unwrap().to_string_lossy();
        let due = {
            let mut plan = self.0.lock().unwrap();
            let due =
                plan.iter().position(|(planned, part, _)| *planned == call && name.contains(part));
            due.map(|at| plan.remove(at))
        };
        // The next call of its kind is free to pass meanwhile.
        if let Some((_, _, happening)) = due {
            happening(&name);
        }
    }
}

/// A file system that passes everything on.
#[derive(Debug, Clone)]
pub(crate) struct MeetingVfs {
    vfs: Arc<dyn Vfs>,
    plan: Arc<Plan>,
}

impl MeetingVfs {
    pub(crate) fn new(vfs: impl Vfs + 'static) -> MeetingVfs {
        MeetingVfs { vfs: Arc::new(vfs), plan: Arc::default() }
    }

    /// With the next such call on a file whose name contains `part` this happens, on its thread; it is told
    /// the name.
    pub(crate) fn with_next(
        &self,
        call: Call,
        part: &'static str,
        happening: impl FnOnce(&str) + Send + 'static,
    ) {
        self.plan.0.lock().unwrap().push((call, part, Box::new(happening)));
    }

    /// Whether all that was to happen has.
    pub(crate) fn all_happened(&self) -> bool {
        self.plan.0.lock().unwrap().is_empty()
    }

    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(Met { file, plan: Arc::clone(&self.plan) })
    }
}

impl Vfs for MeetingVfs {
    fn create(&self, path: &Path, access: Access) -> Result<Arc<dyn File>> {
        self.vfs.create(path, access).map(|file| self.file(file))
    }

    fn open(&self, path: &Path, access: Access, writable: bool) -> Result<Arc<dyn File>> {
        self.vfs.open(path, access, writable).map(|file| self.file(file))
    }

    fn create_mapped(&self, path: &Path, len: u64) -> Result<Arc<dyn MappedFile>> {
        let file = self.vfs.create_mapped(path, len)?;
        Ok(Arc::new(Met { file, plan: Arc::clone(&self.plan) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.vfs.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.vfs.remove(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.vfs.hard_link(from, to)
    }

    fn create_dir_all(&self, path: &Path) -> Result<()> {
        self.vfs.create_dir_all(path)
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        self.vfs.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.vfs.read_dir(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.vfs.exists(path)
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.vfs.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.vfs.lock(path)
    }

    fn read_batch(&self, requests: &mut [ReadRequest<'_>]) {
        self.vfs.read_batch(requests);
    }

    fn io_queue(&self, depth: usize) -> Box<dyn IoQueue> {
        self.vfs.io_queue(depth)
    }
}

#[derive(Debug)]
struct Met<F: ?Sized> {
    plan: Arc<Plan>,
    file: Arc<F>,
}

impl File for Met<dyn File> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.plan.meet(Call::Write, self.file.path());
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.plan.meet(Call::Synced, self.file.path());
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.file.truncate(len)
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl MappedFile for Met<dyn MappedFile> {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.plan.meet(Call::Write, self.file.path());
        self.file.write(offset, bytes);
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }

    fn sync(&self) -> Result<()> {
        self.file.sync()?;
        self.plan.meet(Call::Synced, self.file.path());
        Ok(())
    }

    fn seal(&self) -> Result<()> {
        self.file.seal()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}
