//! The file of the location index, and whether it is to be trusted.
//!
//! Invariants:
//! 1. Whoever opens a store trusts the file if it was closed, and belongs to the level as the manifest has it; if it is on
//!    persistent memory; or if neither the system has been started nor the file system mounted since the process that had
//!    it ended: then the file has what that stored, in the order of its stores. Otherwise the index is built from the
//!    tables.
//! 2. A file that was closed is known not to be, durably, before anything in it changes.
//! 3. Once something of the tree is not in the file, it is not to be trusted until the index has been built anew, whatever is
//!    put into it before. While a key has more versions than a leaf holds, it is not to be trusted either.
//! 4. Without a file that can be mapped, the index is in memory, and built whenever the store is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edit::{Body, TableRecord};
use super::level::Level;
use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::Mutex;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::cache::{DataFiles, FileType, Room};
use crate::location_index::{LocationIndex, load_note, store_note};
use crate::pmem::{Emulated, HeapRegion, MappedRegion, Region, TakeRoom};
use crate::tree::TreeContext;
use crate::vfs::{Access, SharedMap, Sharing, Vfs};

/// The words of a region in memory: as many addresses as it may ever need. If the system has not so many, fewer.
const HEAP_WORDS_MAX: usize = 1 << 33;
const HEAP_WORDS_MIN: usize = 1 << 13;
/// The file is read in parts of this size before it is mapped.
const READ_BYTES: usize = 1 << 20;

/// Notes in the region: whether it is to be trusted; until when; what is in the index; what the level was.
const TRUST_NOTE: usize = 0;
const MOUNT_NOTE: usize = 1;
const SETTLED_NOTE: usize = 2;
const LEVEL_NOTE: usize = 3;
/// A note has so many bits.
const NOTE_MASK: u64 = (1 << 48) - 1;

/// The index is not to be trusted by whoever opens it next.
const UNTRUSTED: u64 = 0;
/// It is open: to be trusted as long as the system keeps what is stored in it ([`Vfs::mount_number`]).
const OPEN: u64 = 1;
/// It was closed.
const CLOSED: u64 = 2;
/// It is open, on persistent memory, which keeps what has been written back.
const OPEN_PERSISTENT: u64 = 3;

/// The file of an index that is open.
pub(super) struct IndexFile {
    region: Arc<MappedRegion>,
    files: Arc<DataFiles>,
    id: FileId,
    sharing: Sharing,
    /// What is not in the file. Held while the note changes that says whether it is to be trusted.
    missing: Mutex<Missing>,
    /// Nothing has changed since it was closed.
    is_closed: AtomicBool,
}

/// What is not in a file.
struct Missing {
    /// Something of its tree: it is being built, or a key was lost.
    of_tree: bool,
    /// Versions of keys that have more than a leaf holds. They are in memory.
    of_keys: bool,
}

/// What an index that is to be trusted has said when it was opened.
pub(super) struct FoundIndex {
    /// Of each table's number, how many versions are in the table.
    pub(super) live: BTreeMap<u32, u64>,
    /// The index has everything up to this number.
    pub(super) settled: Seqno,
}

/// An index, and what is known of it.
pub(super) struct OpenedIndex {
    pub(super) index: LocationIndex,
    pub(super) file: Option<IndexFile>,
    /// `None`: the index is empty, and is to be built.
    pub(super) found: Option<FoundIndex>,
}

/// Opens the index of a tree, or makes an empty one.
///
/// # Errors
/// `InvalidArgument` if the system has no addresses left.
pub(super) fn open(
    context: &TreeContext,
    body: Option<&Body>,
    records: &BTreeMap<u32, TableRecord>,
) -> Result<OpenedIndex> {
    // An index that cannot be opened is built. One that cannot be in a file is in memory.
    if let Ok(Some(opened)) = open_file(context, body, records) {
        return Ok(opened);
    }
    let mut words = HEAP_WORDS_MAX;
    let region = loop {
        match HeapRegion::reserve(words, &context.manifest.path()) {
            Some(region) => break region,
            None if words > HEAP_WORDS_MIN => words /= 4,
            None => return Err(Error::invalid("no addresses are left for an index")),
        }
    };
    let index = LocationIndex::create(with_latency(context, Arc::new(region)), 0)?;
    Ok(OpenedIndex { index, file: None, found: None })
}

/// The region, or one that is slower, if persistent memory is emulated.
fn with_latency(context: &TreeContext, region: Arc<dyn Region>) -> Arc<dyn Region> {
    match context.files.vfs.memory_delay() {
        None => region,
        Some(delay) => Arc::new(Emulated::new(region, delay)),
    }
}

fn open_file(
    context: &TreeContext,
    body: Option<&Body>,
    records: &BTreeMap<u32, TableRecord>,
) -> Result<Option<OpenedIndex>> {
    let files = &context.files;
    if !files.vfs.maps_files() {
        return Ok(None);
    }
    let known = body.map(|body| body.index).filter(|id| id.0 > 0);
    let id = known.unwrap_or_else(|| files.allocate());
    let path = files.path(id, FileType::LocationIndex);
    let (map, is_new) = match map_file(&files.vfs, &path, known.is_some())? {
        Some(mapped) => mapped,
        None => return Ok(None),
    };
    let sharing = map.sharing();
    let region = MappedRegion::new(map);
    // A private map grows in memory.
    let room = room_for(files).filter(|_| sharing == Sharing::Shared);
    let region = Arc::new(match room {
        Some(room) => region.with_room(room),
        None => region,
    });
    // Whoever opens it goes through its leaves in their order, which is not that of the file. Pages have nothing in memory yet.
    if sharing == Sharing::Shared {
        region.set_resident_bytes_max(files.cache.capacity_bytes() / 2);
    }
    // Until the store divides its memory, as little as possible stays.
    let leave_memory = || {
        if sharing == Sharing::Shared {
            region.set_resident_bytes_max(0);
            region.trim();
        }
    };
    let file = IndexFile {
        region: Arc::clone(&region),
        files: Arc::clone(files),
        id,
        sharing,
        missing: Mutex::new(Missing { of_tree: true, of_keys: false }),
        is_closed: AtomicBool::new(false),
    };
    let memory = with_latency(context, Arc::<MappedRegion>::clone(&region));
    let identity = files.hasher.hash(&context.keyspace.0.to_le_bytes()) & NOTE_MASK;
    // Zero: the system does not say.
    let mount = files.vfs.mount_number(files.dir()).unwrap_or(0) & NOTE_MASK;
    let settled = body.filter(|_| !is_new).and_then(|_| file.trusted(mount, records));
    // What the system could not write to the disk may be read as it was before. It says so, once.
    let settled = settled.filter(|_| file.sync().is_ok());
    // Whatever comes next, this is durable first. Only a file that was closed is trusted after a power loss.
    let begin = |trust: u64| {
        let was_closed = load_note(&*region, TRUST_NOTE) == Some(CLOSED);
        store_note(&*region, MOUNT_NOTE, mount);
        store_note(&*region, TRUST_NOTE, trust);
        if was_closed { file.sync() } else { Ok(()) }
    };
    if let Some(settled) = settled {
        begin(file.open_trust())?;
        let mut live = BTreeMap::new();
        let mut visit = |table: u32| *live.entry(table).or_default() += 1;
        let opened = LocationIndex::open(Arc::clone(&memory), identity, &mut |location| {
            visit(location.table)
        });
        let numbers: BTreeSet<u32> = records.keys().copied().collect();
        // What is not in the index was in memory alone.
        if let Ok(Some((index, has))) = opened
            && has.cut == 0
            && live.keys().all(|number| numbers.contains(number))
        {
            file.missing.lock().of_tree = false;
            leave_memory();
            let found = Some(FoundIndex { live, settled });
            return Ok(Some(OpenedIndex { index, file: Some(file), found }));
        }
    }
    if sharing == Sharing::Private {
        return Ok(None);
    }
    begin(UNTRUSTED)?;
    leave_memory();
    let index = LocationIndex::create(memory, identity)?;
    Ok(Some(OpenedIndex { index, file: Some(file), found: None }))
}

/// What an index may take of the disk. What it needs has been left for it; beyond that it takes what others do not need.
fn room_for(files: &Arc<DataFiles>) -> Option<TakeRoom> {
    let disk = files.vfs.space(files.dir()).ok().flatten()?;
    let own = files.vfs.journal_space(files.dir()).ok().flatten()?;
    let files = Arc::clone(files);
    if own.total_bytes == disk.total_bytes {
        return Some(Box::new(move |bytes| {
            files.check_room(Room::ForIndexes, bytes)?;
            Ok(files.check_room(Room::BeyondReserve, 0).unwrap_or(0))
        }));
    }
    // Where indexes and the journal are on persistent memory, that is not the disk that the reserve is on.
    Some(Box::new(move |_bytes| {
        let space = files.vfs.journal_space(files.dir()).ok().flatten();
        Ok(space.map_or(u64::MAX, |space| space.available_bytes))
    }))
}

/// Maps the file of an index, which is made if there is none. Returns true with it if it is new.
fn map_file(vfs: &Arc<dyn Vfs>, path: &Path, is_known: bool) -> Result<Option<(SharedMap, bool)>> {
    let (file, sharing, is_new) = match vfs.open(path, Access::Buffered, true) {
        Ok(file) if is_known => (file, Sharing::Shared, false),
        Err(Error::ReadOnly { .. }) if is_known => {
            (vfs.open(path, Access::Buffered, false)?, Sharing::Private, false)
        }
        Err(Error::ReadOnly { .. }) => return Ok(None),
        _ => (vfs.create(path, Access::Buffered)?, Sharing::Shared, true),
    };
    // Damage of the disk is an error here, and a signal later.
    let mut buffer = vec![0; READ_BYTES];
    let bytes = file.len()?;
    for offset in (0..bytes).step_by(READ_BYTES) {
        let part = (bytes - offset).min(READ_BYTES as u64) as usize;
        file.read_at(offset, &mut buffer[..part])?;
    }
    let map = SharedMap::of(vfs, path, sharing);
    if !matches!(map, Ok(Some(_))) && is_new {
        // If the removal fails, the file is an orphan that the next open removes.
        let _ = vfs.remove(path);
    }
    Ok(map?.map(|map| (map, is_new)))
}

/// A number for a level, as the manifest has it.
fn level_hash(tables: impl Iterator<Item = (u32, FileId, Seqno)>) -> u64 {
    let mut bytes = Vec::new();
    for (number, file, settled) in tables {
        for part in [u64::from(number), file.0, settled.0] {
            bytes.extend(part.to_le_bytes());
        }
    }
    checksum(0, &bytes) & NOTE_MASK
}

impl IndexFile {
    pub(super) fn id(&self) -> FileId {
        self.id
    }

    pub(super) fn path(&self) -> PathBuf {
        self.files.path(self.id, FileType::LocationIndex)
    }

    /// What the file says while it is open, and to be trusted.
    fn open_trust(&self) -> u64 {
        if self.region.is_persistent() { OPEN_PERSISTENT } else { OPEN }
    }

    /// Whether its map is private.
    pub(super) fn is_read_only(&self) -> bool {
        self.sharing == Sharing::Private
    }

    fn sync(&self) -> Result<()> {
        match self.sharing {
            Sharing::Shared => self.region.sync(),
            Sharing::Private => Ok(()),
        }
    }

    /// From now on, at most about so much of the file may stay in the memory of the process. Returns how much.
    pub(super) fn set_memory_bytes_max(&self, bytes: u64) -> u64 {
        // Nothing can be taken out of a private map.
        if self.sharing == Sharing::Shared {
            self.region.set_resident_bytes_max(bytes);
        }
        self.region.resident_bytes_max()
    }

    /// Takes what is beyond that out of memory.
    pub(super) fn trim_memory(&self) {
        self.region.trim();
    }

    /// How much may stay; `None` if it takes none of the process's memory.
    pub(super) fn memory_bytes_max(&self) -> Option<u64> {
        (!self.region.is_persistent()).then(|| self.region.resident_bytes_max())
    }

    /// The number up to which the index has everything, if it is to be trusted.
    fn trusted(&self, mount: u64, records: &BTreeMap<u32, TableRecord>) -> Option<Seqno> {
        let note = |note: usize| load_note(&*self.region, note);
        let settled = Seqno(note(SETTLED_NOTE)?);
        let is_trusted = match note(TRUST_NOTE)? {
            OPEN => mount != 0 && note(MOUNT_NOTE)? == mount,
            // A power loss leaves what the death of the process would.
            OPEN_PERSISTENT => self.region.is_persistent(),
            CLOSED => {
                note(LEVEL_NOTE)?
                    == level_hash(records.iter().map(|(number, it)| (*number, it.file, it.settled)))
            }
            _ => false,
        };
        is_trusted.then_some(settled)
    }

    /// The index has everything up to this number.
    pub(super) fn settled(&self, settled: Seqno) {
        match settled.0 & !NOTE_MASK {
            0 => store_note(&*self.region, SETTLED_NOTE, settled.0),
            _ => self.distrust(),
        }
    }

    /// The index has everything of its tree, which goes up to this number.
    pub(super) fn built(&self, flushed: Seqno) {
        self.missing.lock().of_tree = false;
        // Trusted without the number, it would be given tables again that it has.
        self.settled(flushed);
        self.trust(&self.missing.lock());
    }

    /// The index lacks something: the next one who opens the store builds it.
    pub(super) fn distrust(&self) {
        let mut missing = self.missing.lock();
        missing.of_tree = true;
        store_note(&*self.region, TRUST_NOTE, UNTRUSTED);
    }

    /// Some keys have, or no key has any more, versions that are in memory alone.
    pub(super) fn set_exceeded(&self, is_exceeded: bool) {
        let mut missing = self.missing.lock();
        missing.of_keys = is_exceeded;
        match is_exceeded {
            true => store_note(&*self.region, TRUST_NOTE, UNTRUSTED),
            false => self.trust(&missing),
        }
    }

    /// The file is to be trusted again, unless something is missing.
    fn trust(&self, missing: &Missing) {
        if !missing.of_tree && !missing.of_keys {
            store_note(&*self.region, TRUST_NOTE, self.open_trust());
        }
    }

    /// The index is what belongs to a level. Nobody changes it meanwhile.
    pub(super) fn close(&self, level: &Level, flushed: Seqno) {
        self.settled(flushed);
        let is_open = load_note(&*self.region, TRUST_NOTE) == Some(self.open_trust());
        if !is_open || self.sharing == Sharing::Private {
            return;
        }
        let tables = level.tables.iter();
        let hash = level_hash(tables.map(|it| (it.number, it.table.id(), it.settled)));
        store_note(&*self.region, LEVEL_NOTE, hash);
        // Until both have been done, it is not known as closed: at worst it is built anew.
        if self.sync().is_ok() {
            self.is_closed.store(true, Ordering::SeqCst);
            store_note(&*self.region, TRUST_NOTE, CLOSED);
            let _ = self.sync();
        }
    }

    /// The index is about to change: work that the store did not wait for may go on after it has been closed.
    pub(super) fn changing(&self) -> Result<()> {
        match self.is_closed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => {
                store_note(&*self.region, TRUST_NOTE, UNTRUSTED);
                self.sync()?;
                self.is_closed.store(false, Ordering::SeqCst);
                Ok(())
            }
        }
    }
}

impl Drop for IndexFile {
    fn drop(&mut self) {
        if self.sharing == Sharing::Shared && !self.files.retains() {
            // If the removal fails, the file is an orphan that the next open removes.
            let _ = self.files.vfs.remove(&self.path());
        }
    }
}
