//! The chunks of arenas, shared by all memtables: memory passes from one memtable to the next
//! instead of through the allocator. Also the account of the memtables' memory.
//!
//! Chunks have size classes, each twice the one before. A memtable begins with the smallest: a
//! thousand keyspaces with one entry each use 4 KiB each.
//!
//! Invariants:
//! 1. `bytes_in_use` is the sum of `Memtable::bytes` over the memtables of this pool.
//!    `bytes_active` is the sum over those that are not frozen.
//! 2. Every byte of a chunk is initialised: zero when it comes from the allocator, the last user's
//!    bytes when it is reused.
//! 3. Idle chunks and chunks in use are together at most `bytes_max`, unless the chunks in use
//!    alone are more.
//! 4. A chunk cut from a mapping is returned before the mapping is freed: arenas hold the pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::base::mapping::Mapping;
use crate::base::planted::{Bug, planted};
use crate::base::process::Birthplace;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicBool, AtomicUsize, Ordering};

/// The number of size classes.
const CLASSES: usize = 7;
/// The overhead of allocators and neighbours per chunk. Chunk and overhead together fill whole
/// pages.
const GAP_BYTES: usize = 64;
/// The size of a chunk of the largest class: 256 KiB less the gap. (Small under Miri and in
/// scenarios, where each byte costs time.)
pub(super) const CHUNK_BYTES: usize = class_bytes(CLASSES - 1);

/// The size of a chunk of a class.
const fn class_bytes(class: usize) -> usize {
    (if cfg!(any(miri, shuttle)) { 256 } else { 4096 } << class) - GAP_BYTES
}

/// The class of chunks of exactly so many bytes.
fn class_of(bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| class_bytes(*class) == bytes)
}

/// The size of the chunk for a memtable of `held` bytes that needs `wanted` more. The unused part
/// is less than half of the memtable.
pub(super) fn chunk_bytes(held: usize, wanted: usize) -> usize {
    let fits = |class: &usize| class_bytes(*class) >= wanted;
    // The largest class is cut from mappings; the others come from the heap. The heap should not
    // have large short-lived objects, so the second largest class is not used.
    let grows_by = |class: &usize| *class != CLASSES - 2 && class_bytes(*class) <= held / 2;
    let class = (0..CLASSES).rev().find(grows_by).unwrap_or(0);
    (class..CLASSES).find(fits).map_or(wanted, class_bytes)
}

const CHUNK_ALIGN: usize = 16;

/// The distance between chunks of a mapping.
const CHUNK_STRIDE_BYTES: usize = CHUNK_BYTES + GAP_BYTES;
/// The number of chunks per mapping. The system can back a mapping with large pages. Accesses to a
/// memtable are random, and with small pages most would wait for address translation.
const MAPPING_CHUNKS: usize = 32;
/// Below this limit, large pages would be too large a part of the memory.
const MAPPINGS_BYTES_MIN: usize = 2 * MAPPING_CHUNKS * CHUNK_STRIDE_BYTES;

/// The memory of memtables: chunks in use, and idle chunks for reuse.
pub(crate) struct ChunkPool {
    idle: Mutex<Idle>,
    bytes_max: usize,
    in_use_bytes: AtomicUsize,
    active_bytes: AtomicUsize,
    /// Whether unused memory is kept for later memtables.
    keeps_idle: AtomicBool,
    birthplace: Birthplace,
}

#[derive(Default)]
struct Idle {
    /// Idle chunks by class.
    warm: [Vec<Chunk>; CLASSES],
    warm_bytes: usize,
    /// Chunks of mappings with released memory.
    cold: Vec<Chunk>,
    mappings: Vec<Mapping>,
    /// The number of chunks cut from the last mapping.
    cut: usize,
}

impl Idle {
    /// A chunk of the last mapping, or of a new one. Returns `None` if the system refuses.
    fn cut(&mut self) -> Option<Chunk> {
        if self.mappings.is_empty() || self.cut == MAPPING_CHUNKS {
            self.mappings.push(Mapping::reserve(MAPPING_CHUNKS * CHUNK_STRIDE_BYTES)?);
            self.cut = 0;
        }
        let offset = self.cut * CHUNK_STRIDE_BYTES;
        self.cut += 1;
        let base = self.mappings.last()?.base();
        // SAFETY: the mapping has `MAPPING_CHUNKS` strides, and fewer have been cut.
        let start = unsafe { base.add(offset) };
        Some(Chunk { start, bytes: CHUNK_BYTES, on_heap: false })
    }

    /// Releases the chunk's memory and keeps its address range.
    fn cool(&mut self, chunk: Chunk) {
        let end = MAPPING_CHUNKS * CHUNK_STRIDE_BYTES;
        let offset = |mapping: &Mapping| {
            (chunk.start.as_ptr() as usize).wrapping_sub(mapping.base().as_ptr() as usize)
        };
        if let Some(mapping) = self.mappings.iter().find(|mapping| offset(mapping) < end) {
            // SAFETY: the chunk was cut there at a multiple of its stride, and nothing refers to
            // it.
            unsafe { mapping.release(offset(mapping), CHUNK_STRIDE_BYTES) };
        }
        self.cold.push(chunk);
    }

    /// The same for many chunks. Neighbours go together: the system backs a mapping with large pages again only where a
    /// whole one was released at once.
    fn cool_all(&mut self, mut chunks: Vec<Chunk>) {
        let start = |chunk: &Chunk| chunk.start.as_ptr() as usize;
        chunks.sort_unstable_by_key(start);
        for mapping in &self.mappings {
            let base = mapping.base().as_ptr() as usize;
            let end = base + MAPPING_CHUNKS * CHUNK_STRIDE_BYTES;
            let from = chunks.partition_point(|chunk| start(chunk) < base);
            let to = chunks.partition_point(|chunk| start(chunk) < end);
            let next_to = |a: &Chunk, b: &Chunk| start(b) - start(a) == CHUNK_STRIDE_BYTES;
            for run in chunks[from..to].chunk_by(next_to) {
                // SAFETY: these chunks were cut there at multiples of their stride, and nothing refers to them.
                unsafe { mapping.release(start(&run[0]) - base, run.len() * CHUNK_STRIDE_BYTES) };
            }
        }
        self.cold.append(&mut chunks);
    }
}

impl ChunkPool {
    /// A pool for memtables that use up to `bytes_max` together. Unused memory below that limit is
    /// kept idle.
    pub(crate) fn new(bytes_max: usize) -> ChunkPool {
        ChunkPool {
            idle: Mutex::default(),
            bytes_max,
            in_use_bytes: AtomicUsize::new(0),
            active_bytes: AtomicUsize::new(0),
            keeps_idle: AtomicBool::new(true),
            birthplace: Birthplace::here(),
        }
    }

    /// Bytes in use by memtables.
    #[inline]
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in use by memtables that are not frozen.
    #[inline]
    pub(crate) fn bytes_active(&self) -> usize {
        self.active_bytes.load(Ordering::Relaxed)
    }

    /// Idle bytes, kept for later memtables.
    pub(crate) fn bytes_retained(&self) -> usize {
        self.idle.lock().warm_bytes
    }

    /// Keeps no memory idle, and releases what is, until [`ChunkPool::keep_idle`].
    pub(crate) fn keep_nothing_idle(&self) {
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        self.keeps_idle.store(false, Ordering::Relaxed);
        let Idle { warm, warm_bytes, .. } = &mut *idle;
        let (on_heap, mapped): (Vec<Chunk>, Vec<Chunk>) =
            warm.iter_mut().flat_map(|chunks| chunks.drain(..)).partition(|chunk| chunk.on_heap);
        *warm_bytes = 0;
        surplus.extend(on_heap);
        idle.cool_all(mapped);
        // Freed after the lock.
        drop(idle);
    }

    /// Keeps idle memory again.
    pub(crate) fn keep_idle(&self) {
        self.keeps_idle.store(true, Ordering::Relaxed);
    }

    /// True if large chunks are cut from mappings.
    fn has_mappings(&self) -> bool {
        cfg!(not(any(miri, shuttle))) && self.bytes_max >= MAPPINGS_BYTES_MIN
    }

    /// Takes a chunk of exactly `bytes` for a memtable that is not frozen. The size is that of a
    /// class, or of an entry with its own chunk.
    pub(super) fn take(&self, bytes: usize) -> Chunk {
        self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.active_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut idle = self.idle.lock();
        if let Some(class) = class_of(bytes)
            && let Some(chunk) = idle.warm[class].pop()
        {
            idle.warm_bytes -= bytes;
            return chunk;
        }
        let mut chunk = None;
        if bytes == CHUNK_BYTES {
            chunk = idle.cold.pop();
            if chunk.is_none() && self.has_mappings() {
                chunk = idle.cut();
            }
        }
        let is_too_much = idle.warm_bytes > 0 && self.is_too_much(&idle);
        drop(idle);
        if is_too_much {
            self.trim();
        }
        chunk.unwrap_or_else(|| Chunk::allocate(bytes))
    }

    /// Records that a memtable with so many bytes has been frozen.
    pub(super) fn note_frozen(&self, bytes: usize) {
        self.active_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes back the chunks of a dropped memtable. `frozen` tells whether it was frozen.
    pub(super) fn give_back(&self, chunks: impl Iterator<Item = Chunk>, frozen: bool) {
        if !self.birthplace.is_here() {
            // In a forked child the lock's holder may not exist. The memory stays as it is.
            chunks.for_each(std::mem::forget);
            return;
        }
        // Declared before the guard, so that surplus memory is freed after the lock is released.
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        let keeps_idle = self.keeps_idle.load(Ordering::Relaxed);
        for chunk in chunks {
            let bytes = chunk.bytes;
            if !frozen {
                self.active_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            let before = match planted(Bug::ChunksStayCounted) && bytes != CHUNK_BYTES {
                true => self.in_use_bytes.load(Ordering::Relaxed),
                false => self.in_use_bytes.fetch_sub(bytes, Ordering::Relaxed),
            };
            match class_of(bytes) {
                Some(class) if keeps_idle && before + idle.warm_bytes <= self.bytes_max => {
                    idle.warm[class].push(chunk);
                    idle.warm_bytes += bytes;
                }
                _ if chunk.on_heap => surplus.push(chunk),
                _ => idle.cool(chunk),
            }
        }
    }

    fn is_too_much(&self, idle: &Idle) -> bool {
        self.bytes_in_use() + idle.warm_bytes > self.bytes_max
    }

    /// Releases idle memory beyond what memtables may still use.
    #[cold]
    fn trim(&self) {
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        for class in (0..CLASSES).rev() {
            while self.is_too_much(&idle) {
                let Some(chunk) = idle.warm[class].pop() else { break };
                idle.warm_bytes -= chunk.bytes;
                match chunk.on_heap {
                    true => surplus.push(chunk),
                    false => idle.cool(chunk),
                }
            }
        }
        drop(idle);
        drop(surplus);
    }
}

/// An owned piece of memory, every byte initialised.
pub(super) struct Chunk {
    start: NonNull<u8>,
    bytes: usize,
    /// True if the chunk is on the heap; otherwise it is part of a mapping of the pool.
    on_heap: bool,
}

impl Chunk {
    fn allocate(bytes: usize) -> Chunk {
        let layout = Chunk::layout(bytes);
        // SAFETY: chunks are never empty.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Chunk { start, bytes, on_heap: true },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, CHUNK_ALIGN)
            .expect("a chunk is smaller than the address space")
    }

    /// The address of the first byte, valid for all of them.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.on_heap {
            return;
        }
        // SAFETY: allocated in `allocate` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), Chunk::layout(self.bytes)) }
    }
}

// SAFETY: a `Chunk` owns its bytes, like `Vec<u8>`.
unsafe impl Send for Chunk {}
// SAFETY: shared access only gives a raw pointer. Its users are responsible for accesses.
unsafe impl Sync for Chunk {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_counted_and_kept_up_to_the_limit() {
        let pool = ChunkPool::new(3 * CHUNK_BYTES);
        let chunks: Vec<Chunk> = (0..3).map(|_| pool.take(CHUNK_BYTES)).collect();
        let own = pool.take(1 << 20);
        assert_eq!(pool.bytes_in_use(), 3 * CHUNK_BYTES + (1 << 20));
        assert_eq!(pool.bytes_active(), pool.bytes_in_use());
        assert_eq!(pool.bytes_retained(), 0);
        pool.note_frozen(3 * CHUNK_BYTES);
        assert_eq!(pool.bytes_active(), 1 << 20);
        pool.give_back([own].into_iter(), false);
        assert_eq!((pool.bytes_active(), pool.bytes_retained()), (0, 0));
        let kept: Vec<*mut u8> = chunks.iter().map(Chunk::start).collect();
        pool.give_back(chunks.into_iter(), true);
        assert_eq!((pool.bytes_in_use(), pool.bytes_active()), (0, 0));
        assert_eq!(pool.bytes_retained(), 3 * CHUNK_BYTES);
        let taken = pool.take(CHUNK_BYTES);
        assert!(kept.contains(&taken.start()));
        assert_eq!(pool.bytes_retained(), 2 * CHUNK_BYTES);
        assert_eq!(pool.bytes_in_use(), CHUNK_BYTES);
        pool.give_back([taken].into_iter(), false);
    }

    /// Idle memory was kept in full beside as much memory in use: memtables used twice their share.
    #[test]
    fn what_is_idle_and_what_is_in_use_share_one_limit() {
        let limit = 4 * class_bytes(3);
        let pool = ChunkPool::new(limit);
        let large: Vec<Chunk> = (0..4).map(|_| pool.take(class_bytes(3))).collect();
        pool.give_back(large.into_iter(), false);
        assert_eq!(pool.bytes_retained(), limit);
        let small: Vec<Chunk> = (0..9).map(|_| pool.take(class_bytes(0))).collect();
        assert!(pool.bytes_in_use() + pool.bytes_retained() <= limit);
        assert!(pool.bytes_retained() > 0);
        pool.give_back(small.into_iter(), false);
        assert!(pool.bytes_in_use() + pool.bytes_retained() <= limit);
    }

    #[test]
    fn nothing_is_kept_while_it_is_lent() {
        let pool = ChunkPool::new(MAPPINGS_BYTES_MIN);
        let sizes = [CHUNK_BYTES, class_bytes(0), CHUNK_BYTES, class_bytes(2)];
        let mut chunks: Vec<Chunk> = sizes.iter().map(|bytes| pool.take(*bytes)).collect();
        let late = chunks.split_off(2);
        pool.give_back(chunks.into_iter(), false);
        assert_eq!(pool.bytes_retained(), CHUNK_BYTES + class_bytes(0));
        pool.keep_nothing_idle();
        assert_eq!(pool.bytes_retained(), 0);
        pool.give_back(late.into_iter(), false);
        assert_eq!((pool.bytes_retained(), pool.bytes_in_use()), (0, 0));
        pool.keep_idle();
        let chunks: Vec<Chunk> = sizes.iter().map(|bytes| pool.take(*bytes)).collect();
        pool.give_back(chunks.into_iter(), false);
        assert_eq!(pool.bytes_retained(), sizes.iter().sum());
    }

    #[test]
    fn memtables_grow_by_less_than_half() {
        let mut held = 0;
        while held < 16 * CHUNK_BYTES {
            let chunk = chunk_bytes(held, 100);
            assert!(chunk >= 100 && (chunk <= held / 2 || chunk == class_bytes(0)), "{held}");
            held += chunk;
        }
        assert_eq!(chunk_bytes(held, 100), CHUNK_BYTES);
        assert_eq!(chunk_bytes(0, CHUNK_BYTES / 4), class_bytes(CLASSES - 2).min(CHUNK_BYTES / 2));
        assert_eq!(chunk_bytes(0, 2 * CHUNK_BYTES), 2 * CHUNK_BYTES);
    }

    #[cfg(not(miri))]
    #[test]
    fn chunks_of_mappings_are_apart_and_zero_whenever_they_were_given_back_to_the_system() {
        let pool = ChunkPool::new(MAPPINGS_BYTES_MIN);
        let most = MAPPINGS_BYTES_MIN / CHUNK_BYTES;
        let fill = |chunk: &Chunk| {
            // SAFETY: the chunk's own bytes, which nothing else uses.
            let bytes = unsafe { std::slice::from_raw_parts_mut(chunk.start(), chunk.bytes()) };
            assert!(bytes.iter().all(|&byte| byte == 0) || bytes.iter().all(|&byte| byte == 7));
            bytes.fill(7);
        };
        let mut starts = Vec::new();
        for _ in 0..3 {
            let chunks: Vec<Chunk> = (0..2 * most).map(|_| pool.take(CHUNK_BYTES)).collect();
            chunks.iter().for_each(fill);
            starts = chunks.iter().map(|chunk| chunk.start() as usize).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= CHUNK_STRIDE_BYTES));
            pool.give_back(chunks.into_iter(), true);
            assert_eq!(pool.bytes_retained(), most * CHUNK_BYTES);
        }
        let idle = pool.idle.lock();
        assert_eq!(idle.cold.len() + idle.warm[CLASSES - 1].len(), starts.len());
        assert_eq!(idle.mappings.len(), starts.len().div_ceil(MAPPING_CHUNKS));
    }
}
