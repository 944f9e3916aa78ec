//! One shard: the segment it appends to, those that come next, and those it has filled.
//!
//! Invariants:
//! 1. The current segment always has room for one marker record after its last record.
//! 2. `next_number` is the number of the segment that is used next. The spares have that number and those
//!    after it; while `preparing`, the next one after theirs is being made, and by nobody else.
//! 3. A record's payload is stored before its header: a process that dies in between leaves zeros
//!    where the record would begin.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use super::Journal;
use super::format::{
    PAYLOAD_BYTES_MAX, Position, RECORD_HEADER_BYTES, RecordHeader, RecordKind,
    SEGMENT_HEADER_BYTES, record_bytes_max, seed_at,
};
use crate::base::checksum::{Checksummer, checksum};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::base::sync::atomic::Ordering;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::vfs::{MappedFile, Vfs};

/// Segments that are made ahead of a shard that is busy. At a million inserts a second half a segment is full
/// in a hundredth of a second, and to make one takes two syncs.
const SPARES_MAX: usize = 2;

/// Smaller segments are not worth warming.
pub(super) const WARMED_SEGMENT_BYTES_MIN: u64 = 1 << 20;

/// Room that every segment keeps for its last marker.
const MARKER_BYTES: u64 = RECORD_HEADER_BYTES as u64;

/// A shard and its lock.
pub(super) struct Shard {
    pub(super) state: Mutex<ShardState>,
    /// Signalled when `preparing` ends.
    pub(super) prepared: Condvar,
}

impl Shard {
    pub(super) fn new() -> Shard {
        let state = ShardState {
            current: None,
            spares: VecDeque::new(),
            preparing: false,
            rolled: VecDeque::new(),
            removed: Vec::new(),
            next_number: 1,
            synced: Position::START,
            last_full_header: (0, Position::START),
            last_full_block: u64::MAX,
            last: Seqno(0),
            records: 0,
            bytes_appended: 0,
        };
        Shard { state: Mutex::new(state), prepared: Condvar::new() }
    }
}

/// A segment that can be appended to.
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) file: Arc<dyn MappedFile>,
    /// See `SegmentId::seed`.
    pub(super) seed: u64,
    pub(super) len: u64,
    /// How far it is warm: see `MappedFile::warm`.
    pub(super) warm_upto: u64,
}

/// The segment in use.
pub(super) struct Current {
    pub(super) segment: Segment,
    /// Where the next record goes.
    pub(super) offset: u64,
    /// The first sequence number in the segment; 0 before the first record.
    pub(super) first: Seqno,
    /// The offset at which maintenance is due again.
    maintain_at: u64,
}

impl Current {
    fn new(segment: Segment) -> Current {
        let maintain_at = segment.len / maintained_parts(segment.len);
        Current { segment, offset: SEGMENT_HEADER_BYTES as u64, first: Seqno(0), maintain_at }
    }
}

/// Where there is no room for a segment of the usual length, one of so small a part of it will do.
const SMALL_SEGMENT_PART: u64 = 64;

/// In so many parts of a segment does maintenance go: at each it warms one more, and in the middle it makes spares.
pub(super) fn maintained_parts(segment_bytes: u64) -> u64 {
    if segment_bytes < WARMED_SEGMENT_BYTES_MIN { 2 } else { 4 }
}

/// A segment that has been filled and not been removed yet.
pub(super) struct Rolled {
    pub(super) number: u32,
    pub(super) len: u64,
    /// Just after its last record.
    pub(super) end: u64,
    pub(super) last: Seqno,
    /// Kept until it has been synced.
    pub(super) unsynced: Option<Arc<dyn MappedFile>>,
    /// Kept until its memory has been released, which takes a millisecond: too long for a writer.
    pub(super) unsealed: Option<Arc<dyn MappedFile>>,
}

/// What a shard's lock protects.
pub(super) struct ShardState {
    pub(super) current: Option<Current>,
    /// Made ahead, so that a writer at full speed need not wait for the syncs that one takes.
    pub(super) spares: VecDeque<Segment>,
    pub(super) preparing: bool,
    /// Oldest first.
    pub(super) rolled: VecDeque<Rolled>,
    /// Segments whose names have been removed, but not yet durably. Should power fail, they are back:
    /// so the syncs of what follows them sync them too (else the replay would end at their end).
    pub(super) removed: Vec<Rolled>,
    pub(super) next_number: u32,
    /// Everything before here is durable.
    pub(super) synced: Position,
    /// What the last record with a full header says is durable, and the block of 4 KiB that it begins in. In another
    /// block, or when more is durable, the next record has a full header too: so what one says is lost only with the
    /// whole block.
    last_full_header: (u64, Position),
    last_full_block: u64,
    /// The last sequence number appended.
    pub(super) last: Seqno,
    pub(super) records: u64,
    pub(super) bytes_appended: u64,
}

impl ShardState {
    /// Writes the record that ends the current segment, and makes `next` the current one.
    pub(super) fn roll_to(&mut self, next: Segment) {
        self.next_number = next.number + 1;
        self.last_full_block = u64::MAX;
        let Some(mut old) = self.current.replace(Current::new(next)) else { return };
        if !planted(Bug::JournalRollMarkForgotten) {
            self.mark(&mut old, RecordKind::Roll, self.last);
        }
        let file = old.segment.file;
        self.rolled.push_back(Rolled {
            number: old.segment.number,
            len: old.segment.len,
            end: old.offset,
            last: self.last,
            unsynced: Some(Arc::clone(&file)).filter(|_| !planted(Bug::JournalRolledNotSynced)),
            unsealed: Some(file),
        });
    }

    /// Whether the pages of segments should be warmed. Where somebody syncs, the first sync would store all that
    /// are warm.
    pub(super) fn is_worth_warming(&self) -> bool {
        (self.current.as_ref()).is_some_and(|current| {
            current.segment.len >= WARMED_SEGMENT_BYTES_MIN
                && current.segment.number > self.synced.segment
        })
    }

    /// The files whose memory can be released.
    pub(super) fn take_unsealed(&mut self) -> Vec<Arc<dyn MappedFile>> {
        self.rolled.iter_mut().filter_map(|rolled| rolled.unsealed.take()).collect()
    }

    /// Writes the `Clean` marker, if the shard has been used at all.
    pub(super) fn mark_clean(&mut self, last: Seqno) {
        if let Some(mut current) = self.current.take() {
            self.mark(&mut current, RecordKind::Clean, last);
            self.current = Some(current);
        }
    }

    /// How many spares there should be: one from the middle of the first segment on, and one more from the
    /// middle of the second, when the shard is known to be busy.
    pub(super) fn spares_wanted(&self) -> usize {
        match &self.current {
            Some(current) if current.offset >= current.segment.len / 2 => {
                if current.segment.number == 1 { 1 } else { SPARES_MAX }
            }
            _ => 0,
        }
    }

    fn mark(&self, current: &mut Current, kind: RecordKind, seqno: Seqno) {
        let Segment { seed, ref file, .. } = current.segment;
        let seed = seed_at(seed, current.offset);
        let header = RecordHeader {
            kind,
            short: false,
            seqno: seqno.0,
            count: 0,
            payload_bytes: 0,
            payload_checksum: checksum(seed, &[]),
            durable: 0,
            watermark: self.synced,
        };
        file.write(current.offset, &header.encode(seed));
        current.offset += MARKER_BYTES;
    }
}

/// What a record holds.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Whole(&'a [u8]),
    /// So many bytes, that `parts` gives one part after another whenever it is called. For large batches, which
    /// are never in memory as a whole then.
    Parts {
        bytes: usize,
        parts: &'a Parts<'a>,
    },
}

/// Gives the parts of a payload to who is passed to it.
pub(crate) type Parts<'a> = dyn Fn(&mut dyn FnMut(&[u8])) + 'a;

impl Payload<'_> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Payload::Whole(bytes) => bytes.len(),
            Payload::Parts { bytes, .. } => *bytes,
        }
    }
}

/// A mapped file's memory is released each time so much of a large record has been written.
const RELEASED_BYTES: usize = 1 << 20;

/// Writes a large payload from `start` on, without keeping its memory; returns its checksum.
fn write_parts(file: &dyn MappedFile, start: u64, seed: u64, parts: &Parts<'_>) -> u64 {
    let mut checksummer = Checksummer::new(seed);
    let (mut at, mut released) = (start, start);
    parts(&mut |part| {
        for part in part.chunks(RELEASED_BYTES) {
            file.write(at, part);
            checksummer.update(part);
            at += part.len() as u64;
            if at - released >= RELEASED_BYTES as u64 {
                file.release(released..at);
                released = at;
            }
        }
    });
    file.release(released..at);
    checksummer.finish()
}

/// A locked shard: room is reserved and one record appended at a time.
pub(crate) struct ShardGuard<'a> {
    journal: &'a Journal,
    index: usize,
    state: MutexGuard<'a, ShardState>,
    reserved_bytes: u64,
}

#[cold]
fn too_long(payload_bytes: usize) -> Error {
    Error::invalid(format!("a batch holds at most {PAYLOAD_BYTES_MAX} bytes, not {payload_bytes}"))
}

impl Journal {
    /// Locks the shard `preferred` (modulo their number) if it is free, else any free one, else waits
    /// for the preferred one.
    #[inline]
    pub(crate) fn lock_shard(&self, preferred: usize) -> ShardGuard<'_> {
        let preferred = preferred % self.shards.len();
        match self.shards[preferred].state.try_lock() {
            Some(state) => ShardGuard { journal: self, index: preferred, state, reserved_bytes: 0 },
            None => self.lock_any_shard(preferred),
        }
    }

    /// Locks this shard, and waits for it if need be.
    pub(super) fn lock_shard_exactly(&self, index: usize) -> ShardGuard<'_> {
        let state = self.shards[index].state.lock();
        ShardGuard { journal: self, index, state, reserved_bytes: 0 }
    }

    #[cold]
    fn lock_any_shard(&self, preferred: usize) -> ShardGuard<'_> {
        for index in (preferred + 1..self.shards.len()).chain(0..preferred) {
            if let Some(state) = self.shards[index].state.try_lock() {
                return ShardGuard { journal: self, index, state, reserved_bytes: 0 };
            }
        }
        self.lock_shard_exactly(preferred)
    }

    /// Removes the spares, the last one first: the numbers of segments that exist are consecutive.
    pub(super) fn remove_spares(&self, state: &mut ShardState) -> Result<()> {
        while let Some(spare) = state.spares.pop_back() {
            if let Err(error) = self.vfs.remove(spare.file.path()) {
                state.spares.push_back(spare);
                return Err(error);
            }
            if !state.spares.is_empty() {
                self.poison.unless_refused(self.vfs.sync_dir(&self.dir))?;
            }
        }
        Ok(())
    }

    /// Releases the memory of segments that are full. What fails here had been promised.
    pub(super) fn seal(&self, files: Vec<Arc<dyn MappedFile>>) -> Result<()> {
        files
            .iter()
            .try_for_each(|file| file.seal())
            .map_err(|error| error.not_refused("write"))
            .inspect_err(|error| self.poison.set(error))
    }

    /// Whether the mark at the end of the segment that was filled last has arrived. Its memory can wait to be
    /// released, but not this news: without the mark a replay ends there, whatever follows in the next segment.
    pub(super) fn check_mark(&self, state: &ShardState) -> Result<()> {
        let rolled = state.rolled.back().and_then(|rolled| rolled.unsealed.as_ref());
        rolled
            .map_or(Ok(()), |file| file.check())
            .map_err(|error| error.not_refused("write"))
            .inspect_err(|error| self.poison.set(error))
    }

    /// Whether the disk keeps what is to be left free once it has so many bytes less.
    pub(super) fn leaves_free(&self, bytes: u64) -> bool {
        // A file system that does not say will say when it is full.
        let Ok(Some(space)) = self.vfs.journal_space(&self.dir) else { return true };
        let free_min = self.options.free_bytes_min.min(space.total_bytes / 10);
        // Each shard may fill one more.
        let more = bytes * self.shards.len() as u64;
        let claimed = self.claims.get().map_or(0, |claims| claims(more));
        free_min == 0 || space.available_bytes >= bytes + free_min + claimed
    }

    /// Creates a segment: when this returns, its name and header are durable.
    pub(super) fn create_segment(&self, index: usize, number: u32, len: u64) -> Result<Segment> {
        let id = self.segment_id(index, number);
        let path = self.dir.join(id.file_name());
        let store_id = self.options.store_id;
        // Whatever part of it exists must not be in the way of the next attempt, also if the file system panics.
        // Should removing it fail too, then so will that attempt, by name.
        let unfinished = Unfinished { vfs: &*self.vfs, path: &path };
        let create = || -> Result<Arc<dyn MappedFile>> {
            let file = self.vfs.create_mapped(&path, len)?;
            file.write(0, &id.encode_header(store_id, len));
            self.poison.unless_refused(file.sync().and_then(|()| {
                match planted(Bug::JournalNameNotSynced) {
                    true => Ok(()),
                    false => self.vfs.sync_dir(&self.dir),
                }
            }))?;
            Ok(file)
        };
        match create() {
            Ok(file) => {
                std::mem::forget(unfinished);
                self.segments_created.fetch_add(1, Ordering::Relaxed);
                Ok(Segment { number, file, seed: id.seed(store_id), len, warm_upto: 0 })
            }
            Err(Error::Full { path, .. }) => Err(Error::Full { path, needed: len }),
            Err(error) => Err(error),
        }
    }
}

/// A file in the making, which is removed if nothing comes of it.
struct Unfinished<'a> {
    vfs: &'a dyn Vfs,
    path: &'a Path,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = self.vfs.remove(self.path);
    }
}

impl ShardGuard<'_> {
    pub(super) fn journal(&self) -> &Journal {
        self.journal
    }

    /// A batch under this lock, which is not in the shard, has these numbers up to `last`.
    pub(super) fn note_last(&mut self, last: Seqno) {
        debug_assert!(last > self.state.last, "sequence numbers rise within a shard");
        self.state.last = last;
    }

    /// Which shard this is.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Sees to it that one `append` of up to `payload_bytes` cannot fail. Goes on to the next segment
    /// if the current one has no room.
    ///
    /// # Errors
    /// `Full` or `Io` if a new segment cannot be had (nothing has changed, it may be tried again);
    /// `InvalidArgument` for more than a record can hold; `Poisoned`; `Closed`.
    #[inline]
    pub(crate) fn reserve(&mut self, payload_bytes: usize) -> Result<()> {
        self.reserve_for(payload_bytes, false)
    }

    /// The same for a batch that makes room: it may have of the disk what is left free for that.
    ///
    /// # Errors
    /// As [`ShardGuard::reserve`].
    #[cold]
    pub(crate) fn reserve_to_make_room(&mut self, payload_bytes: usize) -> Result<()> {
        self.reserve_for(payload_bytes, true)
    }

    #[inline(always)]
    fn reserve_for(&mut self, payload_bytes: usize, makes_room: bool) -> Result<()> {
        self.reserved_bytes = 0;
        self.journal.check_open()?;
        if payload_bytes as u64 > PAYLOAD_BYTES_MAX {
            return Err(too_long(payload_bytes));
        }
        let bytes = record_bytes_max(payload_bytes as u64);
        if !self.fits(bytes) {
            self.roll(bytes, makes_room)?;
        }
        self.reserved_bytes = bytes;
        Ok(())
    }

    fn fits(&self, bytes: u64) -> bool {
        (self.state.current.as_ref())
            .is_some_and(|current| current.offset + bytes + MARKER_BYTES <= current.segment.len)
    }

    #[cold]
    fn roll(&mut self, bytes: u64, makes_room: bool) -> Result<()> {
        let shard = &self.journal.shards[self.index];
        let needed = SEGMENT_HEADER_BYTES as u64 + bytes + MARKER_BYTES;
        let has_spare =
            |state: &ShardState| state.spares.front().is_some_and(|spare| spare.len >= needed);
        while self.state.preparing && !has_spare(&self.state) {
            // Others may use the shard meanwhile, so everything is looked at afresh.
            shard.prepared.wait(&mut self.state);
        }
        self.journal.check_open()?;
        if self.fits(bytes) {
            return Ok(());
        }
        if !has_spare(&self.state) {
            // They stand where the large segment must go. They are empty, so nothing is lost.
            self.journal.remove_spares(&mut self.state)?;
        }
        let next = match self.state.spares.pop_front() {
            Some(spare) => spare,
            None => {
                self.journal.segments_created_inline.fetch_add(1, Ordering::Relaxed);
                self.create_next(needed, makes_room)?
            }
        };
        // Should nobody `maintain`, then this does it, one segment late.
        let unsealed = self.state.take_unsealed();
        if self.state.current.is_some() {
            self.journal.maintenance_due.store(true, Ordering::Relaxed);
        }
        self.state.roll_to(next);
        self.journal.seal(unsealed)?;
        self.journal.check_mark(&self.state)
    }

    /// Creates the next segment, for a record that needs so many bytes. Where there is no room for one of the usual
    /// length, a small one lets a store be emptied that is full, and leaves room for what that takes.
    fn create_next(&self, needed: u64, makes_room: bool) -> Result<Segment> {
        let needed = needed.next_multiple_of(UNIT_BYTES as u64);
        let usual = self.journal.options.segment_bytes.max(needed);
        let small = (self.journal.options.segment_bytes / SMALL_SEGMENT_PART)
            .next_multiple_of(UNIT_BYTES as u64)
            .max(needed);
        let create = |len| match self.journal.leaves_free(len) || makes_room && len == small {
            true => self.journal.create_segment(self.index, self.state.next_number, len),
            false => Err(Error::Full { path: self.journal.dir.clone(), needed: len }),
        };
        match create(usual) {
            Err(Error::Full { .. }) if small < usual => create(small),
            created => created,
        }
    }

    /// Whether what was appended to the current segment has arrived. To be asked after `append`, before
    /// the commit is acknowledged. It has, where the segment is mapped memory; where the file system
    /// cannot map, the disk may have failed.
    ///
    /// # Errors
    /// The write's error; the journal is poisoned.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match &self.state.current {
            Some(current) => (current.segment.file.check())
                .map_err(|error| error.not_refused("write"))
                .inspect_err(|error| self.journal.poison.set(error)),
            None => Ok(()),
        }
    }

    /// Appends a batch of `count` operations that take the sequence numbers from `first` on. Cannot
    /// fail after a `reserve` for at least as many bytes.
    ///
    /// # Panics
    /// Without such a reservation.
    #[inline]
    pub(crate) fn append(&mut self, first: Seqno, count: u32, payload: Payload<'_>) {
        let bytes_max = record_bytes_max(payload.len() as u64);
        let state = &mut *self.state;
        assert!(bytes_max <= self.reserved_bytes, "an append needs a reservation of its size");
        debug_assert!(count > 0 && first > state.last, "sequence numbers rise within a shard");
        self.reserved_bytes = 0;
        let Some(current) = &mut state.current else {
            unreachable!("a reservation is made in a segment")
        };
        let offset = current.offset;
        let seed = seed_at(current.segment.seed, offset);
        let durable = match planted(Bug::JournalDurableClaimedEarly) {
            true => first.0 - 1,
            false => self.journal.durable.load(Ordering::Acquire),
        };
        let known = (durable, state.synced);
        let block = offset / UNIT_BYTES as u64;
        let short = count == 1 && state.last_full_header == known && state.last_full_block == block;
        if !short {
            (state.last_full_header, state.last_full_block) = (known, block);
        }
        let mut header = RecordHeader {
            kind: RecordKind::Batch,
            short,
            seqno: first.0,
            count,
            payload_bytes: payload.len() as u32,
            payload_checksum: 0,
            durable,
            watermark: state.synced,
        };
        let bytes = header.record_bytes();
        let file = &*current.segment.file;
        let start = offset + header.header_bytes() as u64;
        header.payload_checksum = match payload {
            Payload::Whole(payload) => {
                file.write(start, payload);
                checksum(seed, payload)
            }
            Payload::Parts { parts, .. } => write_parts(file, start, seed, parts),
        };
        file.write(offset, &header.encode(seed)[..header.header_bytes()]);
        current.offset = offset + bytes;
        if current.first == Seqno(0) {
            current.first = first;
        }
        if current.offset >= current.maintain_at {
            let part = current.segment.len / maintained_parts(current.segment.len);
            current.maintain_at = (current.offset / part + 1) * part;
            self.journal.maintenance_due.store(true, Ordering::Relaxed);
        }
        state.last = Seqno(header.last());
        state.records += 1;
        state.bytes_appended += bytes;
    }
}
