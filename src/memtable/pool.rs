//! The chunks that arenas are made of, shared by all memtables so that memory goes from one to the
//! next instead of back and forth through the allocator.
//!
//! Invariants:
//! 1. `bytes_in_use` is the sum of `Memtable::bytes` over the memtables of this pool.
//! 2. Every byte of a chunk is initialised: zero when it comes from the allocator, whatever its last
//!    user left there when it is used again.
//! 3. At most `retained_bytes_max` bytes lie idle here; only chunks of `CHUNK_BYTES` are kept.
//! 4. A chunk that was cut from a region comes back before the region goes: arenas hold the pool.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::base::region::Region;
use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicUsize, Ordering};

/// What a chunk holds. A little less than 256 KiB, so that with the allocator's own header it fills
/// whole pages. (Small where each byte costs time: under Miri and in scenarios.)
pub(super) const CHUNK_BYTES: usize =
    if cfg!(any(miri, shuttle)) { 16 * 1024 } else { 256 * 1024 } - 64;

const CHUNK_ALIGN: usize = 16;

/// From one chunk of a region to the next.
const CHUNK_STRIDE_BYTES: usize = CHUNK_BYTES + 64;
/// How many chunks are cut from one region, which the system can back by large pages: a memtable is
/// read and written all over, and with small pages most accesses would wait for their translation too.
const REGION_CHUNKS: usize = 32;
/// Where memtables may take less than this, large pages would be too much of it.
const REGIONS_BYTES_MIN: usize = 2 * REGION_CHUNKS * CHUNK_STRIDE_BYTES;

/// Memory for memtables: hands out chunks, takes them back, keeps some for the next.
pub(crate) struct ChunkPool {
    idle: Mutex<Idle>,
    retained_bytes_max: usize,
    in_use_bytes: AtomicUsize,
}

#[derive(Default)]
struct Idle {
    warm: Vec<Chunk>,
    /// Chunks of regions whose memory was given back to the system.
    cold: Vec<Chunk>,
    regions: Vec<Region>,
    /// How many chunks have been cut from the last region.
    cut: usize,
}

impl Idle {
    /// A chunk of the last region, or of a new one; none if the system refuses.
    fn cut(&mut self) -> Option<Chunk> {
        if self.regions.is_empty() || self.cut == REGION_CHUNKS {
            self.regions.push(Region::reserve(REGION_CHUNKS * CHUNK_STRIDE_BYTES)?);
            self.cut = 0;
        }
        let offset = self.cut * CHUNK_STRIDE_BYTES;
        self.cut += 1;
        let base = self.regions.last()?.base();
        // SAFETY: the region has `REGION_CHUNKS` strides, and fewer have been cut.
        let start = unsafe { base.add(offset) };
        Some(Chunk { start, bytes: CHUNK_BYTES, on_heap: false })
    }

    /// Keeps the chunk's place and gives its memory back to the system.
    fn cool(&mut self, chunk: Chunk) {
        let end = REGION_CHUNKS * CHUNK_STRIDE_BYTES;
        let offset = |region: &Region| {
            (chunk.start.as_ptr() as usize).wrapping_sub(region.base().as_ptr() as usize)
        };
        if let Some(region) = self.regions.iter().find(|region| offset(region) < end) {
            // SAFETY: the chunk was cut there at a multiple of its stride, and nobody uses it.
            unsafe { region.release(offset(region), CHUNK_STRIDE_BYTES) };
        }
        self.cold.push(chunk);
    }
}

impl ChunkPool {
    /// A pool that keeps up to `retained_bytes_max` idle bytes for later memtables.
    pub(crate) fn new(retained_bytes_max: usize) -> ChunkPool {
        ChunkPool { idle: Mutex::default(), retained_bytes_max, in_use_bytes: AtomicUsize::new(0) }
    }

    /// Bytes that memtables hold now.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that lie idle for later memtables.
    pub(crate) fn bytes_retained(&self) -> usize {
        self.idle.lock().warm.len() * CHUNK_BYTES
    }

    /// Whether chunks are cut from regions.
    fn has_regions(&self) -> bool {
        cfg!(not(any(miri, shuttle))) && self.retained_bytes_max >= REGIONS_BYTES_MIN
    }

    /// A chunk of exactly `bytes`, which is `CHUNK_BYTES` but for an entry that gets its own.
    pub(super) fn take(&self, bytes: usize) -> Chunk {
        self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut chunk = None;
        if bytes == CHUNK_BYTES {
            let mut idle = self.idle.lock();
            chunk = idle.warm.pop().or_else(|| idle.cold.pop());
            if chunk.is_none() && self.has_regions() {
                chunk = idle.cut();
            }
        }
        chunk.unwrap_or_else(|| Chunk::allocate(bytes))
    }

    /// Takes back the chunks of a memtable that is gone.
    pub(super) fn give_back(&self, chunks: impl Iterator<Item = Chunk>) {
        // Declared before the guard, so that surplus memory is freed after the lock is released.
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        for chunk in chunks {
            self.in_use_bytes.fetch_sub(chunk.bytes, Ordering::Relaxed);
            let retained = (idle.warm.len() + 1) * CHUNK_BYTES;
            if chunk.bytes == CHUNK_BYTES && retained <= self.retained_bytes_max {
                idle.warm.push(chunk);
            } else if chunk.on_heap {
                surplus.push(chunk);
            } else {
                idle.cool(chunk);
            }
        }
    }
}

/// An owned piece of memory, every byte initialised.
pub(super) struct Chunk {
    start: NonNull<u8>,
    bytes: usize,
    /// Else it is part of a region of the pool's.
    on_heap: bool,
}

impl Chunk {
    fn allocate(bytes: usize) -> Chunk {
        let layout = Chunk::layout(bytes);
        // SAFETY: no chunk is asked for that has no bytes.
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

    /// The first byte; the pointer is good for all of them.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are.
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

// SAFETY: a `Chunk` owns its bytes as a `Vec<u8>` would.
unsafe impl Send for Chunk {}
// SAFETY: shared access gives only a raw pointer; whoever uses it answers for that.
unsafe impl Sync for Chunk {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_counted_and_kept_up_to_the_limit() {
        let pool = ChunkPool::new(2 * CHUNK_BYTES);
        let chunks: Vec<Chunk> =
            (0..3).map(|_| pool.take(CHUNK_BYTES)).chain([pool.take(1 << 20)]).collect();
        assert_eq!(pool.bytes_in_use(), 3 * CHUNK_BYTES + (1 << 20));
        assert_eq!(pool.bytes_retained(), 0);
        let kept: Vec<*mut u8> = chunks[..2].iter().map(Chunk::start).collect();
        pool.give_back(chunks.into_iter());
        assert_eq!(pool.bytes_in_use(), 0);
        assert_eq!(pool.bytes_retained(), 2 * CHUNK_BYTES);
        assert!(kept.contains(&pool.take(CHUNK_BYTES).start()));
        assert_eq!(pool.bytes_retained(), CHUNK_BYTES);
        assert_eq!(pool.bytes_in_use(), CHUNK_BYTES);
    }

    #[cfg(not(miri))]
    #[test]
    fn chunks_of_regions_are_apart_and_zero_whenever_they_were_given_back_to_the_system() {
        let pool = ChunkPool::new(REGIONS_BYTES_MIN);
        let most = REGIONS_BYTES_MIN / CHUNK_BYTES;
        let fill = |chunk: &Chunk| {
            // SAFETY: the chunk's own bytes, which nobody else uses.
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
            pool.give_back(chunks.into_iter());
            assert_eq!(pool.bytes_retained(), most * CHUNK_BYTES);
        }
        let idle = pool.idle.lock();
        assert_eq!(idle.cold.len() + idle.warm.len(), starts.len());
        assert_eq!(idle.regions.len(), starts.len().div_ceil(REGION_CHUNKS));
    }
}
