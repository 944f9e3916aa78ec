//! What the heap is asked for while a store is written.
//!
//! The story: with 160 million records in 128 MiB a process was killed by its limit. Of the heap 11 MB were in use,
//! but it had grown to 70 MB: compactions took buffers and lists of up to 6 MB from it, and small things that stay
//! settled in the gaps. What is large and soon gone is taken from the system since (`base::pages`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use spinney::{Database, KeyspaceOptions};

/// What counts as large.
const LARGE_BYTES: usize = 64 << 10;

/// The system's allocator, which notes how much of it large blocks take.
struct Watched;

#[global_allocator]
static HEAP: Watched = Watched;
static LARGE: AtomicUsize = AtomicUsize::new(0);
static LARGE_PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is handed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE_BYTES {
            let now = LARGE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
            LARGE_PEAK.fetch_max(now, Ordering::Relaxed);
        }
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if layout.size() >= LARGE_BYTES {
            LARGE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(start, layout) }
    }
}

/// How much of the heap large blocks took at most beyond what they take now, while `work` went on.
fn large_bytes_peak(work: impl FnOnce()) -> usize {
    let before = LARGE.load(Ordering::Relaxed);
    LARGE_PEAK.store(before, Ordering::Relaxed);
    work();
    LARGE_PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn background_work_takes_large_memory_from_the_system_and_not_from_the_heap() {
    for options in [KeyspaceOptions::stb(), KeyspaceOptions::flsm()] {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::builder(directory.path()).memory_budget(64 << 20).open().unwrap();
        let keyspace = database.keyspace("default", options).unwrap();
        let peak = large_bytes_peak(|| {
            for i in 0..400_000u64 {
                let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                keyspace.put(key, [7; 100]).unwrap();
            }
            keyspace.compact(..).unwrap();
        });
        assert!(database.stats().compaction.written_bytes > 1 << 20);
        assert!(peak < 1 << 20, "{} KiB of the heap in large blocks", peak >> 10);
    }
}
