//! Files that are sometimes slow, so that other threads encounter unfinished operations as on a
//! busy machine. Also records whether a closed store is still used.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::random;
use crate::vfs::Watcher;

/// Of so many writes to mapped files one is slow.
const ONE_IN: u64 = 24;
/// How slow, at most.
const DELAY_MICROS_MAX: u64 = 400;

/// When a mapped file is slow.
#[derive(Debug)]
pub(super) struct Pace {
    seed: u64,
    turn: AtomicU64,
    rest: Arc<Rest>,
}

impl Pace {
    pub(super) fn new(seed: u64, rest: &Arc<Rest>) -> Pace {
        Pace { seed, turn: AtomicU64::new(0), rest: Arc::clone(rest) }
    }
}

/// Whether the store is closed, and has been written to since.
#[derive(Debug, Default)]
pub(super) struct Rest {
    closed: AtomicBool,
    broken: AtomicBool,
}

impl Rest {
    /// A call that closes the store has returned.
    pub(super) fn begin(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The store is about to be opened. Returns whether it had been left alone.
    pub(super) fn end(&self) -> bool {
        self.closed.store(false, Ordering::SeqCst);
        !self.broken.swap(false, Ordering::SeqCst)
    }
}

impl Watcher for Pace {
    const FILES: bool = false;

    fn writing(&self, _path: &Path) {
        if self.rest.closed.load(Ordering::SeqCst) {
            self.rest.broken.store(true, Ordering::SeqCst);
        }
        let draw = random::mix(self.seed ^ self.turn.fetch_add(1, Ordering::Relaxed));
        if draw.is_multiple_of(ONE_IN) {
            std::thread::sleep(Duration::from_micros((draw >> 32) % DELAY_MICROS_MAX));
        }
    }
}
