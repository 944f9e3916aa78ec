//! The output of packing and compacting: a table, and a blob file beside it for large values.
//!
//! Invariants:
//! 1. No page has a value of `blob_bytes_min` bytes or more, whether a put, an operand or an operator made it: each entry
//!    can be stored.
//! 2. What is read ahead of all files that values are copied out of fits a part of the job's memory together.
//! 3. What a compaction writes leaves as much of the disk free as its [`Room`] says, and is no more than it may write: it
//!    does not fill a disk that others need to make room.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{PackSource, PackedBytes, TreeContext};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::FileId;
use crate::base::planted::{Bug, planted};
use crate::cache::Room;
use crate::table::{
    BlobFiles, BlobPointer, BlobScan, BlobWriter, Table, TableBuilder, TableFilter, TableOptions,
};

/// A table in the making, with the blob file that its large values go to.
pub(super) struct TableOutput {
    builder: TableBuilder,
    blobs: Arc<BlobFiles>,
    blob_writer: Option<BlobWriter>,
    blob_bytes_min: usize,
    pointer: Vec<u8>,
    /// Of a compaction: the files that values are copied out of.
    copied: BTreeMap<FileId, BlobScan>,
    copied_bytes_max: usize,
    filter_entry_bytes: usize,
    /// Of a compaction: what it may have.
    room: Option<OutputRoom>,
}

/// Writes a frozen memtable's entries as a table; `hashed` is told the hash of each entry's key.
pub(super) fn pack_table(
    context: &TreeContext,
    filter: TableFilter,
    entries: &mut dyn PackSource,
    mut hashed: impl FnMut(u64),
) -> Result<(Arc<Table>, PackedBytes)> {
    let mut output = TableOutput::new(context, filter)?;
    let (mut data, mut count) = (0, 0);
    loop {
        entries.next()?;
        let Some(entry) = entries.entry() else { break };
        count += 1;
        let last = count == entries.entries();
        if (planted(Bug::PackLosesLast) && last && count > 1)
            || (planted(Bug::PackSkipsTombstones) && !last && entry.kind == EntryKind::Delete)
        {
            continue;
        }
        data += (entry.key.len() + entry.value.len()) as u64;
        let hash = context.files.hasher.hash(entry.key);
        hashed(hash);
        output.add_new(hash, entry)?;
    }
    let (table, written) = output.finish()?;
    Ok((table, PackedBytes { data, written }))
}

/// What an output may have of the disk.
struct OutputRoom {
    room: Room,
    /// Bytes it may append before it asks again.
    left: u64,
    /// Bytes it may append then.
    rest: u64,
}

/// A compaction asks for room for so many bytes at a time.
const ROOM_BYTES: u64 = 64 << 10;
/// While there is plenty it asks again once it has taken this part of what was left.
const ROOM_PART: u64 = 16;
/// Files that values are copied out of are read ahead with this part of a job's memory.
const COPIED_PART: usize = 4;

impl TableOutput {
    /// An output whose table has a filter of its own if `filter`.
    pub(super) fn new(context: &TreeContext, filter: TableFilter) -> Result<TableOutput> {
        let files = &context.files;
        // The number first: a table with a larger one never has older options.
        let creation = files.next_file_id().0;
        let chosen = context.options();
        let options = TableOptions {
            compression: chosen.compression,
            creation,
            filter,
            sample_limit: context.sample_limit(),
            origin: Some(Arc::clone(&chosen.origin)),
        };
        Ok(TableOutput {
            builder: TableBuilder::new(files, &context.blobs, options)?,
            blobs: Arc::clone(&context.blobs),
            blob_writer: None,
            blob_bytes_min: chosen.blob_bytes_min,
            pointer: Vec::new(),
            copied: BTreeMap::new(),
            copied_bytes_max: chosen.job_bytes_max as usize / COPIED_PART,
            filter_entry_bytes: filter.entry_bytes(),
            room: None,
        })
    }

    /// The same for a compaction, which may have so much of the disk, and write so many bytes.
    ///
    /// # Errors
    /// Also `Full` if that is not there, as from the methods that append.
    pub(super) fn of_compaction(
        context: &TreeContext,
        filter: TableFilter,
        room: Room,
        bytes_max: u64,
    ) -> Result<TableOutput> {
        let mut output = TableOutput::new(context, filter)?;
        output.room = Some(OutputRoom { room, left: 0, rest: bytes_max });
        output.ask_for_room(0)?;
        Ok(output)
    }

    #[inline]
    fn appending(&mut self, bytes: usize) -> Result<()> {
        match &mut self.room {
            Some(room) if room.left < bytes as u64 => self.ask_for_room(bytes as u64),
            Some(room) => {
                room.left -= bytes as u64;
                Ok(())
            }
            None => Ok(()),
        }
    }

    #[cold]
    fn ask_for_room(&mut self, bytes: u64) -> Result<()> {
        let Some(OutputRoom { room, left, rest }) = &mut self.room else { return Ok(()) };
        let files = self.blobs.files();
        let free = files.check_room(*room, bytes.max(ROOM_BYTES))?;
        let asked = (free / ROOM_PART).max(ROOM_BYTES).max(bytes) - *left;
        let granted = asked.min(*rest);
        if *left + granted < bytes {
            return Err(Error::Full { path: files.dir().to_path_buf(), needed: bytes });
        }
        *left = *left + granted - bytes;
        *rest -= granted;
        Ok(())
    }

    /// Appends an entry of a memtable or of what an operator made, with its key's hash: a large value goes to the
    /// blob file.
    #[inline]
    pub(super) fn add_new(&mut self, hash: u64, entry: EntryRef<'_>) -> Result<()> {
        if entry.value.len() >= self.blob_bytes_min && !entry.kind.is_blob() {
            return self.add_blob(hash, entry, entry.value);
        }
        // With what its table's filter, or index, takes for the key.
        self.appending(entry.key.len() + entry.value.len() + self.filter_entry_bytes)?;
        self.builder.add_hashed(hash, entry.key, entry.seqno, entry.kind, entry.value)
    }

    /// Appends an entry of a compaction, with its key's hash: as `add_new`, and a value in one of the blob files
    /// `collected` (ascending) is copied, so that the file can be deleted.
    #[inline]
    pub(super) fn add_old(
        &mut self,
        hash: u64,
        entry: EntryRef<'_>,
        collected: &[FileId],
    ) -> Result<()> {
        if entry.kind.is_blob() && !collected.is_empty() {
            return self.add_relocated(hash, entry, collected);
        }
        self.add_new(hash, entry)
    }

    #[cold]
    fn add_relocated(
        &mut self,
        hash: u64,
        entry: EntryRef<'_>,
        collected: &[FileId],
    ) -> Result<()> {
        let pointer = BlobPointer::of_entry(entry.value)?;
        if collected.binary_search(&pointer.file).is_err() {
            return self.builder.add_hashed(hash, entry.key, entry.seqno, entry.kind, entry.value);
        }
        let bytes_max = self.copied_bytes_max / collected.len();
        let mut scan = match self.copied.remove(&pointer.file) {
            Some(scan) => scan,
            None => BlobScan::new(self.blobs.open(pointer.file)?, bytes_max),
        };
        self.add_blob(hash, entry, scan.read(&pointer)?)?;
        // A large value is not kept: there may be as many files as values.
        if scan.memory_bytes() <= bytes_max {
            self.copied.insert(pointer.file, scan);
        }
        Ok(())
    }

    #[cold]
    fn add_blob(&mut self, hash: u64, entry: EntryRef<'_>, value: &[u8]) -> Result<()> {
        let Some(kind) = entry.kind.in_blob() else {
            return self.builder.add_hashed(hash, entry.key, entry.seqno, entry.kind, entry.value);
        };
        self.appending(value.len())?;
        let writer = match &mut self.blob_writer {
            Some(writer) => writer,
            none => none.insert(BlobWriter::new(&self.blobs)?),
        };
        let pointer = writer.append(value)?;
        self.pointer.clear();
        pointer.encode(&mut self.pointer);
        self.builder.add_hashed(hash, entry.key, entry.seqno, kind, &self.pointer)
    }

    /// The key of the entry that was appended last.
    #[inline]
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.builder.last_key()
    }

    /// Memory of the lists of keys that are kept until the table is finished.
    pub(super) fn list_bytes(&self) -> u64 {
        self.builder.list_bytes() as u64
    }

    /// Makes the files durable (not their names) and opens them; with the bytes written.
    pub(super) fn finish(mut self) -> Result<(Arc<Table>, u64)> {
        // Where there is no room for the list of keys, the table is complete without it.
        if self.room.is_some() {
            let list_bytes = self.builder.key_list_bytes()?;
            if list_bytes > 0 && self.appending(list_bytes).is_err() {
                self.builder.leave_key_list_out();
            }
        }
        let blob = self.blob_writer.map(BlobWriter::finish).transpose()?;
        let blob_bytes = blob.as_ref().map_or(0, |blob| blob.bytes());
        let table = self.builder.finish()?;
        let bytes = table.bytes() + blob_bytes;
        Ok((table, bytes))
    }
}
