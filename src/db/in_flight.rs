//! How many bytes the batches may have that are being committed at once.
//!
//! A writer looks whether there is room in the memtables, and then inserts. Many writers of batches of megabytes would
//! all find the same room: 16 threads with 4 MiB each used 64 MiB more than the memtables' share. So the bytes of
//! batches that are larger than [`COUNTED_BYTES_MIN`] are bounded while they are under way. Smaller ones are not
//! worth the lock.
//!
//! Invariants:
//! 1. What is in flight is at most `bytes_max`, or one batch, or what writers inside a merge operator add: those must not
//!    wait for others, who may wait for background work, which may wait for the operator.

use super::store::{Operation, Store};
use crate::base::durability::Durability;
use crate::base::error::Result;
use crate::base::ids::Seqno;
use crate::base::sync::{Condvar, Mutex};
use crate::merge::Contained;

/// Batches of so many bytes and more are counted.
pub(super) const COUNTED_BYTES_MIN: u64 = 64 << 10;

/// What writing a blob file uses.
pub(super) const BLOB_BUFFERS_BYTES: u64 = 512 << 10;

/// Larger batches are refused inside a merge operator.
const LARGE_BATCH_BYTES: u64 = 4 << 20;

/// See the module's description.
pub(crate) struct InFlight {
    bytes_max: u64,
    bytes: Mutex<u64>,
    less: Condvar,
}

/// A batch that is in flight.
pub(super) struct Flight<'a> {
    all: &'a InFlight,
    bytes: u64,
}

impl InFlight {
    pub(super) fn new(bytes_max: u64) -> InFlight {
        InFlight { bytes_max, bytes: Mutex::new(0), less: Condvar::new() }
    }

    /// Lets a batch of so many bytes begin, once it fits in beside the others, or at once if it may not wait.
    pub(super) fn begin(&self, bytes: u64, may_wait: bool) -> Flight<'_> {
        let mut in_flight = self.bytes.lock();
        while may_wait && *in_flight > 0 && *in_flight + bytes > self.bytes_max {
            self.less.wait(&mut in_flight);
        }
        *in_flight += bytes;
        Flight { all: self, bytes }
    }
}

impl Store {
    /// Waits until a batch of so many bytes may be in flight beside others.
    #[cold]
    pub(super) fn begin_flight(&self, held: u64) -> Result<Flight<'_>> {
        if held > LARGE_BATCH_BYTES {
            // Whoever commits another one may wait for background work.
            Contained::refuse_inside("a batch of more than 4 MiB")?;
        }
        Ok(self.in_flight.begin(held, !Contained::is_inside()))
    }

    /// Commits a batch that is counted as in flight.
    #[cold]
    pub(super) fn commit_counted<'a, I>(
        &self,
        operations: &impl Fn() -> I,
        (count, bytes, large): (u32, u64, bool),
        durability: Durability,
    ) -> Result<Seqno>
    where
        I: Iterator<Item = Operation<'a>>,
    {
        self.admit(bytes, operations)?;
        match large {
            true => super::large::commit(self, operations, count, durability),
            false => self.commit_admitted(operations, count, bytes, durability),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        *self.all.bytes.lock() -= self.bytes;
        self.all.less.notify_all();
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
        assert_eq!(*in_flight.bytes.lock(), 2000);
        drop((large, inside));
        assert_eq!(*in_flight.bytes.lock(), 0);
    }
}
