//! The memory of one memtable: entries, addressed by 32-bit references, and index nodes.
//!
//! An entry lies in the arena as `trailer: u64 | key length | value length | key | value`, where
//! the trailer is `seqno << 8 | width | kind` and both lengths are `u8`, `u16` or `u32` as the
//! width bits say. This layout is never on disk.
//!
//! Invariants:
//! 1. An entry's bytes never change or move once `write` has returned its reference. All memory
//!    lives until the arena is dropped.
//! 2. A returned reference is valid as long as the arena lives. 0 is never returned.
//! 3. A thread gets a reference through a release-acquire edge from the writer, so it sees the
//!    entry's bytes.
//! 4. Each shard allocates with one atomic addition. The central lock is taken once per span and is
//!    a leaf of the lock order: no lock is taken while it is held.
//!    is a leaf in the lock order: nothing is locked while it is held.

use std::ptr;
use std::slice;
use std::sync::Arc;

use super::pool::{CHUNK_BYTES, Chunk, ChunkPool, chunk_bytes};
use super::span::Span;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::prefetch::{LINE_BYTES, prefetch_lines};
use crate::base::sync::plain::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::{CachePadded, Mutex, thread_number};

/// The bits of the trailer for the width of the lengths; `u8` if neither is set.
const WIDTH_U16: u64 = 0x40;
const WIDTH_U32: u64 = 0x80;
const KIND_MASK: u64 = 0x3f;

/// The unit of ids, in bytes.
const UNIT_BYTES: usize = 2;
/// The bits of an id that count units inside a chunk.
const OFFSET_BITS: u32 = 17;
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
/// The largest number of chunks for entries.
const CHUNKS_MAX: usize = 1 << (EntryId::BITS - OFFSET_BITS);
/// Chunks reserved for index nodes, so that nodes for the last entries always find room.
const CHUNKS_RESERVED: usize = CHUNKS_MAX / 16;
const BLOCK_CHUNKS: usize = 256;
const _: () = assert!(CHUNK_BYTES <= UNIT_BYTES << OFFSET_BITS);

/// The largest size that a shard takes from the central lock at once.
const SPAN_BYTES: usize = CHUNK_BYTES / 16 / LINE_BYTES * LINE_BYTES;
const SPAN_UNITS: u64 = (SPAN_BYTES / UNIT_BYTES) as u64;
/// Larger entries bypass the shards.
const SHARD_ENTRY_BYTES_MAX: usize = SPAN_BYTES / 4;
/// Larger entries get their own chunk.
pub(super) const SHARED_BYTES_MAX: usize = CHUNK_BYTES / 4;
/// The number of chunks that entries can always get. (The first chunks of a growing arena are
/// smaller than the others.)
pub(super) const ENTRY_CHUNKS_MAX: usize = CHUNKS_MAX - CHUNKS_RESERVED - 64;
const FREE_RANGES_MAX: usize = 8;
const SHARDS: usize = 16;

/// The size of a shard's span in an arena of so many bytes: all spans together are a quarter of the
/// arena.
fn span_bytes(held: usize) -> usize {
    const SPAN_BYTES_MIN: usize = if SPAN_BYTES < 512 { SPAN_BYTES } else { 512 };
    (held / (4 * SHARDS)).clamp(SPAN_BYTES_MIN, SPAN_BYTES) / LINE_BYTES * LINE_BYTES
}

/// The position of an entry: the chunk number above `OFFSET_BITS`, the offset in units below. 0 is
/// none.
pub(super) type EntryId = u32;
pub(super) const NO_ENTRY: EntryId = 0;

type Block = [AtomicPtr<u8>; BLOCK_CHUNKS];

pub(super) struct Arena {
    pool: Arc<ChunkPool>,
    /// Chunk number to address, in two levels.
    blocks: [AtomicPtr<Block>; CHUNKS_MAX / BLOCK_CHUNKS],
    shards: [CachePadded<Shard>; SHARDS],
    central: Mutex<Central>,
    bytes: AtomicUsize,
    frozen: AtomicBool,
}

/// Counters and a span, for the threads assigned to this shard.
struct Shard {
    span: Span<SPAN_UNITS>,
    entries: AtomicUsize,
    data_bytes: AtomicUsize,
    seqno_min: AtomicU64,
    seqno_max: AtomicU64,
}

struct Central {
    chunks: Vec<Chunk>,
    free_ranges: Vec<FreeRange>,
    nodes: FreeRange,
}

/// Unused bytes of a chunk.
#[derive(Clone, Copy)]
struct FreeRange {
    chunk: usize,
    start: usize,
    end: usize,
}

/// A decoded header.
struct RawEntry {
    trailer: u64,
    key: *const u8,
    key_bytes: usize,
    value_bytes: usize,
}

/// The totals of a memtable's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) entries: usize,
    pub(super) data_bytes: usize,
    pub(super) seqno_min: u64,
    pub(super) seqno_max: u64,
}

impl Arena {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Arena {
        Arena {
            pool,
            blocks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS_MAX / BLOCK_CHUNKS],
            shards: std::array::from_fn(|_| {
                CachePadded::new(Shard {
                    span: Span::new(),
                    entries: AtomicUsize::new(0),
                    data_bytes: AtomicUsize::new(0),
                    seqno_min: AtomicU64::new(u64::MAX),
                    seqno_max: AtomicU64::new(0),
                })
            }),
            central: Mutex::new(Central {
                chunks: Vec::new(),
                free_ranges: Vec::new(),
                nodes: FreeRange { chunk: 0, start: 0, end: 0 },
            }),
            bytes: AtomicUsize::new(0),
            frozen: AtomicBool::new(false),
        }
    }

    /// The pool of its chunks.
    pub(super) fn pool(&self) -> Arc<ChunkPool> {
        Arc::clone(&self.pool)
    }

    /// Ends allocation.
    pub(super) fn freeze(&self) {
        if !self.frozen.swap(true, Ordering::Relaxed) {
            self.pool.note_frozen(self.bytes());
        }
    }

    /// The size of all chunks in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals { entries: 0, data_bytes: 0, seqno_min: u64::MAX, seqno_max: 0 };
        for shard in &self.shards {
            totals.entries += shard.entries.load(Ordering::Relaxed);
            totals.data_bytes += shard.data_bytes.load(Ordering::Relaxed);
            totals.seqno_min = totals.seqno_min.min(shard.seqno_min.load(Ordering::Relaxed));
            totals.seqno_max = totals.seqno_max.max(shard.seqno_max.load(Ordering::Relaxed));
        }
        totals
    }

    /// Stores an entry and counts it.
    pub(super) fn write(
        &self,
        key: &[u8],
        seqno: Seqno,
        kind: EntryKind,
        value: &[u8],
    ) -> (EntryId, u64) {
        // Threads are assigned to shards round robin.
        let shard = &self.shards[thread_number() % SHARDS];
        let (width, header_bytes) = match key.len().max(value.len()) {
            0..=0xff => (0, 10),
            0x100..=0xffff => (WIDTH_U16, 12),
            _ => (WIDTH_U32, 16),
        };
        let trailer = seqno.0 << 8 | width | u64::from(kind as u8);
        let (id, start) = self.allocate(shard, header_bytes + key.len() + value.len());
        // SAFETY: `allocate` returned `header_bytes + key.len() + value.len()` bytes that nothing
        // else refers to yet. The parts are written one after the other inside them.
        unsafe {
            start.cast::<u64>().write_unaligned(trailer);
            match width {
                0 => {
                    start.add(8).write(key.len() as u8);
                    start.add(9).write(value.len() as u8);
                }
                WIDTH_U16 => {
                    start.add(8).cast::<u16>().write_unaligned(key.len() as u16);
                    start.add(10).cast::<u16>().write_unaligned(value.len() as u16);
                }
                _ => {
                    start.add(8).cast::<u32>().write_unaligned(key.len() as u32);
                    start.add(12).cast::<u32>().write_unaligned(value.len() as u32);
                }
            }
            let key_start = start.add(header_bytes);
            ptr::copy_nonoverlapping(key.as_ptr(), key_start, key.len());
            ptr::copy_nonoverlapping(value.as_ptr(), key_start.add(key.len()), value.len());
        }
        shard.entries.fetch_add(1, Ordering::Relaxed);
        shard.data_bytes.fetch_add(key.len() + value.len(), Ordering::Relaxed);
        if seqno.0 < shard.seqno_min.load(Ordering::Relaxed) {
            shard.seqno_min.fetch_min(seqno.0, Ordering::Relaxed);
        }
        if seqno.0 > shard.seqno_max.load(Ordering::Relaxed) {
            shard.seqno_max.fetch_max(seqno.0, Ordering::Relaxed);
        }
        (id, trailer)
    }

    /// An entry's key and trailer.
    #[inline]
    pub(super) fn key(&self, id: EntryId) -> (&[u8], u64) {
        let raw = self.decode(id);
        // SAFETY: see `decode`.
        (unsafe { slice::from_raw_parts(raw.key, raw.key_bytes) }, raw.trailer)
    }

    /// An entry.
    #[inline]
    pub(super) fn entry(&self, id: EntryId) -> EntryRef<'_> {
        let raw = self.decode(id);
        // SAFETY: see `decode`.
        let (key, value) = unsafe {
            let value = raw.key.add(raw.key_bytes);
            (
                slice::from_raw_parts(raw.key, raw.key_bytes),
                slice::from_raw_parts(value, raw.value_bytes),
            )
        };
        let kind = EntryKind::from_tag((raw.trailer & KIND_MASK) as u8)
            .expect("an entry's kind is one that was inserted");
        EntryRef { key, seqno: Seqno(raw.trailer >> 8), kind, value }
    }

    /// Reads an entry's header. The `key_bytes` bytes at `key` and the `value_bytes` after them are
    /// readable and do not change while `self` lives (invariants 1 to 3).
    #[inline]
    fn decode(&self, id: EntryId) -> RawEntry {
        let start = self.resolve(id).cast_const();
        // SAFETY: `start` is the first byte of an entry completed by `write`, so it has a header of
        // the layout given by the trailer.
        unsafe {
            let trailer = start.cast::<u64>().read_unaligned();
            let (header_bytes, key_bytes, value_bytes) = match trailer & (WIDTH_U16 | WIDTH_U32) {
                0 => (10, usize::from(start.add(8).read()), usize::from(start.add(9).read())),
                WIDTH_U16 => (
                    12,
                    usize::from(start.add(8).cast::<u16>().read_unaligned()),
                    usize::from(start.add(10).cast::<u16>().read_unaligned()),
                ),
                _ => (
                    16,
                    start.add(8).cast::<u32>().read_unaligned() as usize,
                    start.add(12).cast::<u32>().read_unaligned() as usize,
                ),
            };
            RawEntry { trailer, key: start.add(header_bytes), key_bytes, value_bytes }
        }
    }

    /// Prefetches the start of an entry that will be read soon.
    #[inline]
    pub(super) fn prefetch(&self, id: EntryId) {
        prefetch_lines(self.resolve(id), 2 * LINE_BYTES);
    }

    #[inline]
    fn resolve(&self, id: EntryId) -> *mut u8 {
        let chunk = (id >> OFFSET_BITS) as usize;
        let block = self.blocks[chunk / BLOCK_CHUNKS].load(Ordering::Acquire);
        // SAFETY: an id is returned only after its chunk's block and address have been stored (by
        // `add_chunk`), and its offset is inside the chunk.
        unsafe {
            let start = (*block)[chunk % BLOCK_CHUNKS].load(Ordering::Acquire);
            start.add((id & OFFSET_MASK) as usize * UNIT_BYTES)
        }
    }

    fn allocate(&self, shard: &Shard, bytes: usize) -> (EntryId, *mut u8) {
        let units = bytes.div_ceil(UNIT_BYTES) as u64;
        if bytes > SHARD_ENTRY_BYTES_MAX {
            let mut central = self.central.lock();
            let range = if bytes > SHARED_BYTES_MAX {
                self.add_chunk(&mut central, bytes, true)
            } else {
                self.cut(&mut central, bytes, true)
            };
            let id = range_id(range);
            return (id, self.resolve(id));
        }
        loop {
            if let Some(id) = shard.span.take(units) {
                return (id, self.resolve(id));
            }
            let mut central = self.central.lock();
            // The span is exhausted, unless another thread has replaced it.
            if shard.span.is_spent() {
                let span = span_bytes(self.bytes());
                if 4 * bytes > span && span < SPAN_BYTES {
                    // The entry would waste most of a small span.
                    let id = range_id(self.cut(&mut central, bytes, true));
                    return (id, self.resolve(id));
                }
                let id = range_id(self.cut(&mut central, span, true));
                shard.span.renew(id, (span / UNIT_BYTES) as u64, units);
                return (id, self.resolve(id));
            }
        }
    }

    /// Memory for an index node, aligned to a cache line; all its bytes are initialised.
    pub(super) fn allocate_node(&self, bytes: usize) -> *mut u8 {
        let mut central = self.central.lock();
        loop {
            let FreeRange { chunk, start, end } = central.nodes;
            if let Some(memory) = central.chunks.get(chunk) {
                let first = memory.start().wrapping_add(start);
                let padding = first.align_offset(LINE_BYTES);
                if start + padding + bytes <= end {
                    central.nodes.start = start + padding + bytes;
                    return first.wrapping_add(padding);
                }
            }
            let span = span_bytes(self.bytes()).max(bytes + LINE_BYTES);
            central.nodes = self.cut(&mut central, span, false);
        }
    }

    /// Cuts `bytes` (at most `SHARED_BYTES_MAX`) from the first range with enough room.
    fn cut(&self, central: &mut Central, bytes: usize, for_entries: bool) -> FreeRange {
        let bytes = bytes.next_multiple_of(LINE_BYTES);
        let found = central.free_ranges.iter().position(|range| range.end - range.start >= bytes);
        let at = found.unwrap_or_else(|| {
            let range = self.add_chunk(central, chunk_bytes(self.bytes(), bytes), for_entries);
            if central.free_ranges.len() == FREE_RANGES_MAX {
                central.free_ranges.remove(0);
            }
            central.free_ranges.push(range);
            central.free_ranges.len() - 1
        });
        let range = &mut central.free_ranges[at];
        let piece = FreeRange { end: range.start + bytes, ..*range };
        range.start += bytes;
        // A smaller rest is discarded.
        if range.end - range.start < span_bytes(self.bytes()) / 4 {
            central.free_ranges.remove(at);
        }
        piece
    }

    fn add_chunk(&self, central: &mut Central, bytes: usize, for_entries: bool) -> FreeRange {
        let chunk = central.chunks.len();
        // Ids start at chunk 1, so that none is 0.
        let number = chunk + 1;
        let most = if for_entries { CHUNKS_MAX - CHUNKS_RESERVED } else { CHUNKS_MAX };
        // The store bounds its memtables: see `BYTES_MAX`.
        assert!(number < most, "a memtable has more chunks than it can address");
        let memory = self.pool.take(bytes);
        let slot = &self.blocks[number / BLOCK_CHUNKS];
        let mut block = slot.load(Ordering::Relaxed);
        if block.is_null() {
            let fresh: Block = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCK_CHUNKS];
            block = Box::into_raw(Box::new(fresh));
            slot.store(block, Ordering::Release);
        }
        // SAFETY: the block was leaked from a box above, now or earlier, and lives until the arena
        // drops.
        unsafe { (*block)[number % BLOCK_CHUNKS].store(memory.start(), Ordering::Release) };
        let end = memory.bytes();
        self.bytes.fetch_add(end, Ordering::Relaxed);
        central.chunks.push(memory);
        FreeRange { chunk, start: 0, end }
    }
}

/// The id of an entry at the start of a range.
fn range_id(range: FreeRange) -> EntryId {
    (((range.chunk + 1) << OFFSET_BITS) | (range.start / UNIT_BYTES)) as EntryId
}

impl Drop for Arena {
    fn drop(&mut self) {
        for block in &mut self.blocks {
            let block = *block.get_mut();
            if !block.is_null() {
                // SAFETY: leaked from a box in `add_chunk`, and nothing refers to it any more.
                drop(unsafe { Box::from_raw(block) });
            }
        }
        let frozen = *self.frozen.get_mut();
        self.pool.give_back(self.central.get_mut().chunks.drain(..), frozen);
    }
}
