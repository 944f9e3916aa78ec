//! The chunks that arenas are made of, shared by all memtables so that memory goes from one to the
//! next instead of back and forth through the allocator.
//!
//! Invariants:
//! 1. `bytes_in_use` is the sum of `Memtable::bytes` over the memtables of this pool.
//! 2. Every byte of a chunk is initialised: zero when it comes from the allocator, whatever its last
//!    user left there when it is used again.
//! 3. At most `retained_bytes_max` bytes lie idle here; only chunks of `CHUNK_BYTES` are kept.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::base::sync::Mutex;
use crate::base::sync::plain::{AtomicUsize, Ordering};

/// What a chunk holds. A little less than 256 KiB, so that with the allocator's own header it fills
/// whole pages. (Small where each byte costs time: under Miri and in scenarios.)
pub(super) const CHUNK_BYTES: usize =
    if cfg!(any(miri, shuttle)) { 16 * 1024 } else { 256 * 1024 } - 64;

const CHUNK_ALIGN: usize = 16;

/// Memory for memtables: hands out chunks, takes them back, keeps some for the next.
pub(crate) struct ChunkPool {
    idle: Mutex<Vec<Chunk>>,
    retained_bytes_max: usize,
    in_use_bytes: AtomicUsize,
}

impl ChunkPool {
    /// A pool that keeps up to `retained_bytes_max` idle bytes for later memtables.
    pub(crate) fn new(retained_bytes_max: usize) -> ChunkPool {
        ChunkPool {
            idle: Mutex::new(Vec::new()),
            retained_bytes_max,
            in_use_bytes: AtomicUsize::new(0),
        }
    }

    /// Bytes that memtables hold now.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.in_use_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that lie idle for later memtables.
    pub(crate) fn bytes_retained(&self) -> usize {
        self.idle.lock().len() * CHUNK_BYTES
    }

    /// A chunk of exactly `bytes`, which is `CHUNK_BYTES` but for an entry that gets its own.
    pub(super) fn take(&self, bytes: usize) -> Chunk {
        self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed);
        let idle = if bytes == CHUNK_BYTES { self.idle.lock().pop() } else { None };
        idle.unwrap_or_else(|| Chunk::allocate(bytes))
    }

    /// Takes back the chunks of a memtable that is gone.
    pub(super) fn give_back(&self, chunks: impl Iterator<Item = Chunk>) {
        // Declared before the guard, so that surplus memory is freed after the lock is released.
        let mut surplus = Vec::new();
        let mut idle = self.idle.lock();
        for chunk in chunks {
            self.in_use_bytes.fetch_sub(chunk.bytes, Ordering::Relaxed);
            let retained = (idle.len() + 1) * CHUNK_BYTES;
            if chunk.bytes == CHUNK_BYTES && retained <= self.retained_bytes_max {
                idle.push(chunk);
            } else {
                surplus.push(chunk);
            }
        }
    }
}

/// An owned piece of memory, every byte initialised.
pub(super) struct Chunk {
    start: NonNull<u8>,
    bytes: usize,
}

impl Chunk {
    fn allocate(bytes: usize) -> Chunk {
        let layout = Chunk::layout(bytes);
        // SAFETY: no chunk is asked for that has no bytes.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Chunk { start, bytes },
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
}
