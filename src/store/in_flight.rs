//! The limit on the bytes of batches that are committed at the same time.
//!
//! A writer checks for room in the memtables, and then inserts. Many writers of large batches would all find the same
//! room: 16 threads with 4 MiB each used 64 MiB more than the memtables' share. So the total size of concurrent batches
//! of at least [`COUNTED_BYTES_MIN`] is bounded. Smaller ones are not worth the lock.
//!
//! Invariants:
//! 1. At most `bytes_max` is in flight, or one batch, plus the batches of writers that must not wait: those inside a
//!    merge operator, for which background work may wait that others wait for; and those of a thread that has a batch
//!    in flight, whose listener writes while that batch waits for room.
//! 2. Batches begin in order of arrival: small ones do not overtake a large one indefinitely.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::base::sync::{Condvar, Mutex};

/// Batches of at least this size are counted.
pub(super) const COUNTED_BYTES_MIN: u64 = 64 << 10;

/// See the module's description.
pub(crate) struct InFlight {
    bytes_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Of all batches in flight.
    bytes: u64,
    /// How many batches that may wait have arrived, and how many of these have begun.
    came: u64,
    begun: u64,
}

thread_local! {
    /// How many batches the thread has in flight.
    static FLIGHTS: Cell<u32> = const { Cell::new(0) };
}

/// A batch that is in flight.
pub(super) struct Flight<'a> {
    all: &'a InFlight,
    bytes: u64,
    /// It stays with its thread.
    thread: PhantomData<*const ()>,
}

impl InFlight {
    pub(super) fn new(bytes_max: u64) -> InFlight {
        InFlight { bytes_max, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Lets a batch begin once it fits beside the others, or at once if it may not wait.
    pub(super) fn begin(&self, bytes: u64, may_wait: bool) -> Flight<'_> {
        let mut state = self.state.lock();
        if may_wait && FLIGHTS.get() == 0 {
            let number = state.came;
            state.came += 1;
            let fits = |state: &State| state.bytes == 0 || state.bytes + bytes <= self.bytes_max;
            while state.begun < number || !fits(&state) {
                self.changed.wait(&mut state);
            }
            state.begun += 1;
            // The next may fit in too.
            self.changed.notify_all();
        }
        state.bytes += bytes;
        FLIGHTS.set(FLIGHTS.get() + 1);
        Flight { all: self, bytes, thread: PhantomData }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        FLIGHTS.set(FLIGHTS.get() - 1);
        self.all.state.lock().bytes -= self.bytes;
        self.all.changed.notify_all();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn what_is_in_flight_is_bounded_and_nobody_waits_for_nothing() {
        let (in_flight, now, most) = (InFlight::new(100), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 1..=8_u64 {
                let (in_flight, now, most) = (&in_flight, &now, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = 10 + thread * round % 50;
                        let _flight = in_flight.begin(bytes, true);
                        most.fetch_max(
                            bytes + now.fetch_add(bytes, Ordering::SeqCst),
                            Ordering::SeqCst,
                        );
                        std::thread::yield_now();
                        now.fetch_sub(bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        let most = most.into_inner();
        assert!((50..=100).contains(&most), "{most} of 100 bytes");
        // One that is larger is alone; who must not wait does not.
        let large = in_flight.begin(1000, true);
        let inside = in_flight.begin(1000, false);
        assert_eq!(in_flight.state.lock().bytes, 2000);
        drop((large, inside));
        assert_eq!(in_flight.state.lock().bytes, 0);
    }

    /// A batch that needed all of the bound to itself was overtaken by smaller ones for as long as there were any: it
    /// had not begun after 20 s.
    #[test]
    fn a_large_batch_is_not_overtaken_without_end() {
        let (in_flight, done) = (InFlight::new(1000), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while done.load(Ordering::SeqCst) == 0 {
                        let _flight = in_flight.begin(100, true);
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            drop(in_flight.begin(2000, true));
            done.store(1, Ordering::SeqCst);
        });
    }

    /// The listener of a stepped store writes on the thread whose batch waits for room: it waited for itself.
    #[test]
    fn a_thread_never_waits_for_its_own_batch() {
        let in_flight = InFlight::new(100);
        let outer = in_flight.begin(90, true);
        drop(in_flight.begin(90, true));
        drop(outer);
        assert_eq!(in_flight.state.lock().bytes, 0);
    }
}
