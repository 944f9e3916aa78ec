//! The operations that the tree keeps itself: one small file after another, which batches are appended to.
//!
//! Layout, all numbers little-endian. A file begins with 32 bytes: magic (8), version (4), epoch (4), file number (8),
//! and the checksum of these 24 bytes. Batches follow, each at a multiple of 8: first sequence number (8), the number
//! that is known to be durable (8), number of operations (4), payload bytes (4), the checksum of these 24 bytes and the
//! payload (8), and the payload. The rest is zeros.
//!
//! Invariants:
//! 1. A file is of one epoch. It is durable, and an edit in the manifest names it, before a batch is appended to it.
//! 2. A file goes once the manifest's journal floor has passed its last batch, and the manifest names it no longer.
//! 3. A batch's payload is stored before its header.
//! 4. Without a file that has room, batches go to the journal: a flush makes the next one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::edit::NamedLog;
use crate::base::checksum::{Checksummer, checksum};
use crate::base::codec::Decoder;
use crate::base::error::{Error, Result};
use crate::base::ids::{FileId, Seqno};
use crate::base::sync::Mutex;
use crate::cache::{DataFiles, FileType, Room, open_named};
use crate::tree::{BadBatch, Logged, LoggedBatch, OperationLog, OperationSource};
use crate::vfs::{Access, MappedFile, Vfs};

const MAGIC: [u8; 8] = *b"SPNYOPER";
const FORMAT_VERSION: u32 = 1;
const HEADER_BYTES: u64 = 32;
const BATCH_HEADER_BYTES: u64 = 32;
const ALIGN: u64 = 8;
/// Length of a file.
pub(super) const FILE_BYTES: u64 = 64 << 10;
/// So many files at most: other keyspaces may keep the floor low for long.
const FILES_MAX: usize = 4;

/// The start of a file.
pub(super) fn header(NamedLog { file, epoch }: NamedLog) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&file.0.to_le_bytes());
    out.extend_from_slice(&checksum(0, &out).to_le_bytes());
    out
}

/// The checksum of the batch at `offset`, of the first 24 bytes of its header and its payload.
fn batch_checksum(file: FileId, offset: u64, header: &[u8], payload: &[u8]) -> u64 {
    let mut checksummer = Checksummer::new(file.0 << 32 | offset);
    checksummer.update(header);
    checksummer.update(payload);
    checksummer.finish()
}

fn batch_bytes(payload_bytes: u64) -> u64 {
    (BATCH_HEADER_BYTES + payload_bytes).next_multiple_of(ALIGN)
}

/// A file of the log. It is deleted when the last version that names it is dropped, unless the store retains files.
pub(super) struct LogFile {
    files: Arc<DataFiles>,
    pub(super) named: NamedLog,
}

impl LogFile {
    /// The files that an edit names.
    pub(super) fn of_named(files: &Arc<DataFiles>, named: &[NamedLog]) -> Vec<Arc<LogFile>> {
        let file = |&named| Arc::new(LogFile { files: Arc::clone(files), named });
        named.iter().map(file).collect()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.files.path(self.named.file, FileType::OperationLog)
    }

    /// Verifies the header. Batches may be being appended; recovery verifies them.
    pub(super) fn check(&self) -> Result<()> {
        LeftFile::new(&self.files, self.named).read().map(drop)
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        if !self.files.retains() {
            // If the removal fails, the file is an orphan that the next open removes.
            let _ = self.files.vfs.remove(&self.path());
        }
    }
}

/// The file that batches are appended to.
pub(super) struct Current {
    file: Arc<LogFile>,
    mapped: Arc<dyn MappedFile>,
    /// Where the next batch goes.
    offset: u64,
    /// Everything before is durable.
    synced_upto: u64,
    /// The last number in it.
    last: Seqno,
}

/// A file that nothing is appended to any more.
struct Sealed {
    file: Arc<LogFile>,
    /// The last number in it, at most.
    last: Seqno,
    /// Kept until it has been synced up to its end, which stands beside it.
    unsynced: Option<(Arc<dyn MappedFile>, u64)>,
}

#[derive(Default)]
struct State {
    /// `None` until a store that writes has begun one.
    epoch: Option<u32>,
    current: Option<Current>,
    /// Oldest first.
    sealed: Vec<Sealed>,
    /// What the manifest says.
    floor: Seqno,
}

/// The log of one tree.
pub(super) struct OwnLog {
    files: Arc<DataFiles>,
    state: Mutex<State>,
}

impl OwnLog {
    /// The log of a tree whose edit names these files.
    pub(super) fn new(files: &Arc<DataFiles>, named: Vec<Arc<LogFile>>) -> OwnLog {
        let sealed = |file| Sealed { file, last: Seqno::MAX, unsynced: None };
        let sealed = named.into_iter().map(sealed).collect();
        let state = State { sealed, ..State::default() };
        OwnLog { files: Arc::clone(files), state: Mutex::new(state) }
    }

    /// Makes the next file if there should be one. The caller holds the tree's change lock until it has called `switch`.
    pub(super) fn make_next(&self) -> Result<Option<Current>> {
        let epoch = {
            let state = self.state.lock();
            let is_used = |current: &Current| current.offset > FILE_BYTES / 2;
            match state.epoch {
                Some(epoch) if state.current.as_ref().is_none_or(is_used) => epoch,
                _ => return Ok(None),
            }
        };
        match self.make(epoch) {
            Ok(next) => Ok(Some(next)),
            Err(error) if error.is_refusal() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn make(&self, epoch: u32) -> Result<Current> {
        self.files.check_room(Room::BeyondReserve, FILE_BYTES)?;
        let named = NamedLog { file: self.files.allocate(), epoch };
        let file = Arc::new(LogFile { files: Arc::clone(&self.files), named });
        let mapped = self.files.vfs.create_mapped(&file.path(), FILE_BYTES)?;
        mapped.write(0, &header(named));
        mapped.sync()?;
        let (offset, synced_upto) = (HEADER_BYTES, HEADER_BYTES);
        Ok(Current { file, mapped, offset, synced_upto, last: Seqno(0) })
    }

    /// The files that the next edit names: those that are still needed, and `next`. With too many, `next` is given up.
    pub(super) fn to_name(&self, next: &mut Option<Current>) -> Vec<Arc<LogFile>> {
        let state = self.state.lock();
        let sealed = state.sealed.iter().filter(|sealed| sealed.last > state.floor);
        let files = sealed.map(|sealed| &sealed.file);
        let files = files.chain(state.current.as_ref().map(|current| &current.file));
        let mut named: Vec<Arc<LogFile>> = files.cloned().collect();
        next.take_if(|_| named.len() >= FILES_MAX);
        named.extend(next.as_ref().map(|next| Arc::clone(&next.file)));
        named
    }

    /// The manifest names these files now. The others go.
    pub(super) fn switch(&self, next: Option<Current>, named: &[Arc<LogFile>]) {
        let mut state = self.state.lock();
        if let Some(next) = next
            && let Some(Current { file, mapped, offset, synced_upto, last }) =
                state.current.replace(next)
        {
            let unsynced = (offset > synced_upto).then_some((mapped, offset));
            state.sealed.push(Sealed { file, last, unsynced });
        }
        let is_named = |file: &Arc<LogFile>| named.iter().any(|named| Arc::ptr_eq(named, file));
        let gone: Vec<Sealed> =
            state.sealed.extract_if(.., |sealed| !is_named(&sealed.file)).collect();
        // Without the lock: to drop the last reference deletes a file.
        drop(state);
        drop(gone);
    }
}

impl OperationLog for OwnLog {
    fn begin(&self, epoch: u32, last: Seqno) {
        let mut state = self.state.lock();
        state.epoch = Some(epoch);
        state.sealed.iter_mut().for_each(|sealed| sealed.last = last);
    }

    fn reserve(&self, payload_bytes: usize) -> bool {
        let state = self.state.lock();
        let end = |current: &Current| current.offset + batch_bytes(payload_bytes as u64);
        state.current.as_ref().is_some_and(|current| end(current) <= FILE_BYTES)
    }

    fn append(&self, first: Seqno, count: u32, durable: Seqno, payload: &[u8]) {
        let mut state = self.state.lock();
        let Some(current) = &mut state.current else { unreachable!("room was reserved") };
        let mut header = Vec::with_capacity(BATCH_HEADER_BYTES as usize);
        header.extend_from_slice(&first.0.to_le_bytes());
        header.extend_from_slice(&durable.0.to_le_bytes());
        header.extend_from_slice(&count.to_le_bytes());
        header.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        let sum = batch_checksum(current.file.named.file, current.offset, &header, payload);
        header.extend_from_slice(&sum.to_le_bytes());
        current.mapped.write(current.offset + BATCH_HEADER_BYTES, payload);
        current.mapped.write(current.offset, &header);
        current.offset += batch_bytes(payload.len() as u64);
        current.last = Seqno(first.0 + u64::from(count) - 1);
    }

    fn check(&self) -> Result<()> {
        let state = self.state.lock();
        // A flush may have sealed the file since the batch was appended.
        let sealed = state.sealed.iter().filter_map(|sealed| sealed.unsynced.as_ref());
        let files = sealed.map(|(mapped, _)| mapped);
        let mut files = files.chain(state.current.as_ref().map(|current| &current.mapped));
        files.try_for_each(|mapped| mapped.check())
    }

    fn sync(&self) -> Result<u64> {
        let targets: Vec<(FileId, Arc<dyn MappedFile>, u64)> = {
            let state = self.state.lock();
            let sealed = |sealed: &Sealed| {
                let (mapped, end) = sealed.unsynced.clone()?;
                Some((sealed.file.named.file, mapped, end))
            };
            let current = state.current.iter().filter(|it| it.offset > it.synced_upto);
            let current = current.map(|it| (it.file.named.file, Arc::clone(&it.mapped), it.offset));
            state.sealed.iter().filter_map(sealed).chain(current).collect()
        };
        targets.iter().try_for_each(|(_, mapped, _)| mapped.sync())?;
        let mut state = self.state.lock();
        // More may have been appended meanwhile, and the file sealed.
        let upto = |file: &LogFile| {
            let target = targets.iter().find(|(id, ..)| *id == file.named.file);
            target.map_or(0, |(_, _, upto)| *upto)
        };
        for sealed in &mut state.sealed {
            let synced_upto = upto(&sealed.file);
            sealed.unsynced.take_if(|(_, end)| *end <= synced_upto);
        }
        if let Some(current) = &mut state.current {
            current.synced_upto = current.synced_upto.max(upto(&current.file));
        }
        Ok(targets.len() as u64)
    }

    fn retire(&self, floor: Seqno) {
        let mut state = self.state.lock();
        state.floor = state.floor.max(floor);
    }
}

/// A file that an earlier process left.
#[derive(Debug)]
pub(super) struct LeftFile {
    vfs: Arc<dyn Vfs>,
    named: NamedLog,
    path: PathBuf,
}

impl LeftFile {
    pub(super) fn new(files: &DataFiles, named: NamedLog) -> LeftFile {
        let path = files.path(named.file, FileType::OperationLog);
        LeftFile { vfs: Arc::clone(&files.vfs), named, path }
    }

    /// Reads the file, whose header is what the manifest says.
    fn read(&self) -> Result<Vec<u8>> {
        let path = &self.path;
        let what = "data file (opening with `salvage_journal` takes what is left)";
        let file = open_named(&*self.vfs, path, Access::Buffered, what)?;
        let bytes = file.len()?;
        if !(HEADER_BYTES..=FILE_BYTES).contains(&bytes) {
            let expected = format_args!("{HEADER_BYTES} to {FILE_BYTES} bytes");
            return Err(Error::corruption(path, 0, "operation log", expected, bytes));
        }
        let mut contents = vec![0; bytes as usize];
        file.read_at(0, &mut contents)?;
        let mut from = Decoder::new(&contents, path, 0);
        from.magic(&MAGIC, "operation log magic")?;
        let head = contents.get(..24).unwrap_or_default();
        let sum = contents.get(24..32).unwrap_or_default();
        // Before the version: a changed bit in it is no other version.
        if checksum(0, head).to_le_bytes() != sum {
            let (what, expected) = ("operation log header", "its checksum");
            return Err(Error::corruption(path, 0, what, expected, "another"));
        }
        from.version(FORMAT_VERSION, "operation log version")?;
        if contents.get(..HEADER_BYTES as usize) != Some(&header(self.named)[..]) {
            let expected = format_args!("that of {:?}", self.named);
            return Err(Error::corruption(path, 0, "operation log header", expected, "another"));
        }
        Ok(contents)
    }
}

impl OperationSource for LeftFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn epoch(&self) -> u32 {
        self.named.epoch
    }

    fn batches(&self) -> Result<Box<dyn Iterator<Item = Result<Logged>>>> {
        let contents = self.read()?;
        let (file, end) = (self.named.file, contents.len());
        Ok(Box::new(Batches { file, contents, at: HEADER_BYTES as usize, end }.map(Ok)))
    }
}

/// The batches of a file.
struct Batches {
    file: FileId,
    contents: Vec<u8>,
    /// Where the next one is expected.
    at: usize,
    end: usize,
}

impl Batches {
    /// The whole batch at `at`, and where the next one would be.
    fn batch(&self, at: usize) -> Option<(LoggedBatch, usize)> {
        let rest = self.contents.get(at..self.end)?;
        let (header, rest) = rest.split_at_checked(BATCH_HEADER_BYTES as usize)?;
        let word = |at: usize| header.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (first, durable, sizes, sum) = (word(0)?, word(8)?, word(16)?, word(24)?);
        let (count, payload_bytes) = (sizes as u32, (sizes >> 32) as usize);
        let payload = rest.get(..payload_bytes)?;
        let is_whole = batch_checksum(self.file, at as u64, header.get(..24)?, payload) == sum;
        let batch = LoggedBatch {
            first: Seqno(first),
            count,
            durable: Seqno(durable),
            payload: payload.to_vec(),
            offset: at as u64 + BATCH_HEADER_BYTES,
        };
        (is_whole && count > 0).then_some((batch, at + batch_bytes(payload_bytes as u64) as usize))
    }
}

impl Iterator for Batches {
    type Item = Logged;

    fn next(&mut self) -> Option<Logged> {
        if let Some((batch, next)) = self.batch(self.at) {
            self.at = next;
            return Some(Logged::Batch(batch));
        }
        let rest = self.contents.get(self.at..self.end)?;
        let is_blank = rest.iter().all(|&byte| byte == 0);
        let mut bad = BadBatch { offset: self.at as u64, ..BadBatch::default() };
        for at in (self.at..self.end).step_by(ALIGN as usize) {
            if let Some((batch, _)) = self.batch(at) {
                bad.batches += 1;
                bad.durable = bad.durable.max(batch.durable);
            }
        }
        self.end = 0;
        (!is_blank).then_some(Logged::Bad(bad))
    }
}
