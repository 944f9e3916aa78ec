//! [`Emulated`]: persistent memory with a chosen latency and bandwidth, on top of another region.
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

thread_local! {
    /// Lines that this thread has flushed since its last fence.
    static FLUSHED_LINES: Cell<u64> = const { Cell::new(0) };
}

/// How slow the emulated memory is. The default is as fast as the other region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    /// The delay of a fence that waits for at least one line.
    pub(crate) fence_nanos: u64,
    /// The delay of a fence for each line that it waits for.
    pub(crate) line_nanos: u64,
    /// The bandwidth of writing, of all threads together. 0: not limited.
    pub(crate) bytes_per_second: u64,
}

/// A region whose fences are delayed.
#[derive(Debug)]
pub(crate) struct Emulated {
    region: Arc<dyn Region>,
    latency: Latency,
    clock: Arc<Clock>,
    /// When the bandwidth is free again, in nanoseconds of the clock.
    free_nanos: AtomicU64,
}

impl Emulated {
    /// `region` with the latency of persistent memory. A simulated clock does not advance by itself: with one, no
    /// fence is delayed.
    pub(crate) fn new(region: Arc<dyn Region>, latency: Latency, clock: Arc<Clock>) -> Emulated {
        Emulated { region, latency, clock, free_nanos: AtomicU64::new(0) }
    }

    /// The end of the transfer of `bytes`, which begins when those before it have ended.
    fn transferred_nanos(&self, bytes: u64, now: u64) -> u64 {
        if self.latency.bytes_per_second == 0 {
            return now;
        }
        let duration = bytes * 1_000_000_000 / self.latency.bytes_per_second;
        let end = |free: u64| free.max(now) + duration;
        let update = |free: u64| Some(end(free));
        let order = Ordering::Relaxed;
        // The closure always returns a value, so there is no error.
        self.free_nanos.fetch_update(order, order, update).map_or(now, end)
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
        let lines = FLUSHED_LINES.replace(0);
        if lines == 0 || !self.clock.is_real() {
            return;
        }
        let now = self.clock.nanos();
        let delayed = now + self.latency.fence_nanos + lines * self.latency.line_nanos;
        let bytes = lines * (LINE_WORDS * WORD_BYTES) as u64;
        let end = delayed.max(self.transferred_nanos(bytes, now));
        while self.clock.nanos() < end {
            spin_loop();
        }
    }

    fn used(&self, word: usize) {
        self.region.used(word);
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

#[cfg(test)]
mod tests {
    use super::super::{HeapRegion, persist};
    use super::*;

    fn emulated(latency: Latency, clock: Arc<Clock>) -> Emulated {
        Emulated::new(
            Arc::new(HeapRegion::reserve(1024, Path::new("heap")).unwrap()),
            latency,
            clock,
        )
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
        let latency = Latency { fence_nanos: 2_000_000, ..Latency::default() };
        let region = emulated(latency, Arc::clone(&clock));
        assert!(nanos(&clock, || persist(&region, 0..64)) >= 2_000_000);
        // Nothing has been flushed since: a hundred fences take less than one delay would.
        let idle = nanos(&clock, || (0..100).for_each(|_| region.fence()));
        assert!(idle < 100 * 2_000_000, "{idle} ns");
    }

    #[test]
    fn a_delay_per_line_grows_with_the_lines() {
        let clock = Arc::new(Clock::real());
        let latency = Latency { line_nanos: 500_000, ..Latency::default() };
        let region = emulated(latency, Arc::clone(&clock));
        assert!(nanos(&clock, || persist(&region, 0..64)) >= 8 * 500_000);
        // Words 7 and 8 are on two lines.
        assert!(nanos(&clock, || persist(&region, 7..9)) >= 2 * 500_000);
    }

    #[test]
    fn bandwidth_is_shared() {
        let clock = Arc::new(Clock::real());
        // A line takes a millisecond.
        let latency = Latency { bytes_per_second: 64_000, ..Latency::default() };
        let region = emulated(latency, Arc::clone(&clock));
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
    fn a_simulated_clock_delays_nothing() {
        let latency = Latency { fence_nanos: u64::MAX / 4, ..Latency::default() };
        persist(&emulated(latency, Arc::new(Clock::simulated())), 0..8);
    }
}
