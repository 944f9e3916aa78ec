//! [`Emulated`] and [`EmulatedFile`]: persistent memory with a chosen latency and bandwidth, on top of other memory.
//!
//! SLM-DB's evaluation (section 6.1) delays each fence that follows a flush by 500 ns, by spinning, and limits the
//! bandwidth of writing. Reads are not delayed.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{LINE_WORDS, Region, WORD_BYTES, lines};
use crate::base::error::Result;
use crate::base::sync::plain::{AtomicU64, Ordering};
use crate::base::sync::spin_loop;
use crate::jobs::Clock;
use crate::vfs::{MappedFile, MemoryDelay};

thread_local! {
    /// Lines that this thread has flushed since its last fence.
    static FLUSHED_LINES: Cell<u64> = const { Cell::new(0) };
}

const LINE_BYTES: u64 = (LINE_WORDS * WORD_BYTES) as u64;

/// How slow emulated persistent memory is: see [`PersistentMemory::emulated`](crate::PersistentMemory::emulated). The
/// default is as fast as ordinary memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmulatedMemory {
    /// Whoever has written something waits so long for it, in nanoseconds.
    pub fence_nanos: u64,
    /// And so long for each cache line of it, in nanoseconds.
    pub line_nanos: u64,
    /// Everybody together writes no more in a second. 0: no limit.
    pub bytes_per_second: u64,
}

/// What writes to emulated memory wait for, of all threads and files.
#[derive(Debug)]
pub(crate) struct Delay {
    memory: EmulatedMemory,
    clock: Arc<Clock>,
    /// When the bandwidth is free again, in nanoseconds of the clock.
    free_nanos: AtomicU64,
}

impl Delay {
    /// A simulated clock does not advance by itself: with one, nothing is delayed.
    pub(crate) fn new(memory: EmulatedMemory, clock: Arc<Clock>) -> Delay {
        Delay { memory, clock, free_nanos: AtomicU64::new(0) }
    }

    /// The end of the transfer of `bytes`, which begins when those before it have ended.
    fn transferred_nanos(&self, bytes: u64, now: u64) -> u64 {
        if self.memory.bytes_per_second == 0 {
            return now;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.memory.bytes_per_second);
        let duration = u64::try_from(nanos).unwrap_or(u64::MAX);
        let end = |free: u64| free.max(now).saturating_add(duration);
        let update = |free: u64| Some(end(free));
        let order = Ordering::Relaxed;
        // The closure always returns a value, so there is no error.
        self.free_nanos.fetch_update(order, order, update).map_or(now, end)
    }
}

impl MemoryDelay for Delay {
    fn wait(&self, lines: u64) {
        if lines == 0 || !self.clock.is_real() {
            return;
        }
        let now = self.clock.nanos();
        let delay = self.memory.line_nanos.saturating_mul(lines);
        let delayed = now.saturating_add(self.memory.fence_nanos).saturating_add(delay);
        let end = delayed.max(self.transferred_nanos(lines * LINE_BYTES, now));
        while self.clock.nanos() < end {
            spin_loop();
        }
    }
}

/// A region whose fences are delayed.
#[derive(Debug)]
pub(crate) struct Emulated {
    region: Arc<dyn Region>,
    delay: Arc<dyn MemoryDelay>,
}

impl Emulated {
    /// `region` with the latency of persistent memory.
    pub(crate) fn new(region: Arc<dyn Region>, delay: Arc<dyn MemoryDelay>) -> Emulated {
        Emulated { region, delay }
    }
}

impl Region for Emulated {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    fn store(&self, word: usize, value: u64) {
        self.region.store(word, value);
    }

    fn flush(&self, words: Range<usize>) {
        FLUSHED_LINES.set(FLUSHED_LINES.get() + lines(&words).len() as u64);
        self.region.flush(words);
    }

    fn fence(&self) {
        self.region.fence();
        self.delay.wait(FLUSHED_LINES.replace(0));
    }

    fn used(&self, word: usize) {
        self.region.used(word);
    }

    fn is_partly_resident(&self) -> bool {
        self.region.is_partly_resident()
    }

    fn will_read(&self, words: Range<usize>) {
        self.region.will_read(words);
    }

    fn grow(&self, words: usize) -> Result<()> {
        self.region.grow(words)
    }

    fn give_back(&self, words: Range<usize>) -> bool {
        self.region.give_back(words)
    }

    fn have_again(&self, words: Range<usize>) -> Result<()> {
        self.region.have_again(words)
    }

    fn path(&self) -> &Path {
        self.region.path()
    }
}

/// A mapped file that is synced as persistent memory would be: what was stored since the last sync is waited for. It is in
/// the memory of the system then, and not on the disk.
#[derive(Debug)]
pub(super) struct EmulatedFile {
    file: Arc<dyn MappedFile>,
    delay: Arc<dyn MemoryDelay>,
    /// Lines that have been written since the last sync.
    unsynced_lines: AtomicU64,
}

impl EmulatedFile {
    pub(super) fn new(file: Arc<dyn MappedFile>, delay: Arc<dyn MemoryDelay>) -> EmulatedFile {
        EmulatedFile { file, delay, unsynced_lines: AtomicU64::new(0) }
    }
}

impl MappedFile for EmulatedFile {
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write(offset, bytes);
        let end = offset + bytes.len() as u64;
        let lines = end.div_ceil(LINE_BYTES) - offset / LINE_BYTES;
        self.unsynced_lines.fetch_add(lines, Ordering::Relaxed);
    }

    fn warm(&self, range: Range<u64>) {
        self.file.warm(range);
    }

    fn release(&self, range: Range<u64>) {
        self.file.release(range);
    }

    fn check(&self) -> Result<()> {
        self.file.check()
    }

    fn sync(&self) -> Result<()> {
        self.delay.wait(self.unsynced_lines.swap(0, Ordering::Relaxed));
        self.file.check()
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

#[cfg(test)]
mod tests {
    use super::super::{HeapRegion, persist};
    use super::*;
    use crate::vfs::{MemoryVfs, Vfs};

    fn emulated(memory: EmulatedMemory, clock: Arc<Clock>) -> Emulated {
        let region = HeapRegion::reserve(1024, Path::new("heap")).unwrap();
        Emulated::new(Arc::new(region), Arc::new(Delay::new(memory, clock)))
    }

    /// The nanoseconds that `work` took.
    fn nanos(clock: &Clock, work: impl FnOnce()) -> u64 {
        let began = clock.nanos();
        work();
        clock.nanos() - began
    }

    #[test]
    fn a_fence_is_delayed_once_however_many_lines_it_waits_for() {
        let clock = Arc::new(Clock::real());
        let memory = EmulatedMemory { fence_nanos: 2_000_000, ..EmulatedMemory::default() };
        let region = emulated(memory, Arc::clone(&clock));
        assert!(nanos(&clock, || persist(&region, 0..64)) >= 2_000_000);
        // Nothing has been flushed since: a hundred fences take less than one delay would.
        let idle = nanos(&clock, || (0..100).for_each(|_| region.fence()));
        assert!(idle < 100 * 2_000_000, "{idle} ns");
    }

    #[test]
    fn a_delay_per_line_grows_with_the_lines() {
        let clock = Arc::new(Clock::real());
        let memory = EmulatedMemory { line_nanos: 500_000, ..EmulatedMemory::default() };
        let region = emulated(memory, Arc::clone(&clock));
        assert!(nanos(&clock, || persist(&region, 0..64)) >= 8 * 500_000);
        // Words 7 and 8 are on two lines.
        assert!(nanos(&clock, || persist(&region, 7..9)) >= 2 * 500_000);
    }

    #[test]
    fn bandwidth_is_shared() {
        let clock = Arc::new(Clock::real());
        // A line takes a millisecond.
        let memory = EmulatedMemory { bytes_per_second: 64_000, ..EmulatedMemory::default() };
        let region = emulated(memory, Arc::clone(&clock));
        let both = nanos(&clock, || {
            std::thread::scope(|scope| {
                for start in [0, 512] {
                    let region = &region;
                    scope.spawn(move || persist(region, start..start + 8 * LINE_WORDS));
                }
            });
        });
        assert!(both >= 16_000_000, "{both} ns");
    }

    #[test]
    fn a_file_waits_for_what_was_stored_since_the_last_sync() {
        let clock = Arc::new(Clock::real());
        let memory = EmulatedMemory { fence_nanos: 2_000_000, ..EmulatedMemory::default() };
        let vfs = MemoryVfs::new();
        let file = vfs.create_mapped(Path::new("segment"), 4096).unwrap();
        let file = EmulatedFile::new(file, Arc::new(Delay::new(memory, Arc::clone(&clock))));
        let sync = || nanos(&clock, || file.sync().unwrap());
        file.write(60, b"eight of");
        assert_eq!(file.unsynced_lines.load(Ordering::Relaxed), 2);
        assert!(sync() >= 2_000_000);
        assert!((0..100).map(|_| sync()).sum::<u64>() < 100 * 2_000_000);
        assert_eq!((file.len(), file.path()), (4096, Path::new("segment")));
    }

    #[test]
    fn a_simulated_clock_delays_nothing() {
        let memory = EmulatedMemory { fence_nanos: u64::MAX / 4, ..EmulatedMemory::default() };
        persist(&emulated(memory, Arc::new(Clock::simulated())), 0..8);
    }
}
