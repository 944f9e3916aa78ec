//! Files that are slow now and then: what takes long on a busy machine is under way for long enough that
//! others meet it half done.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
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
}

impl Pace {
    pub(super) fn new(seed: u64) -> Pace {
        Pace { seed, turn: AtomicU64::new(0) }
    }
}

impl Watcher for Pace {
    const FILES: bool = false;

    fn writing(&self, _path: &Path) {
        let draw = random::mix(self.seed ^ self.turn.fetch_add(1, Ordering::Relaxed));
        if draw.is_multiple_of(ONE_IN) {
            std::thread::sleep(Duration::from_micros((draw >> 32) % DELAY_MICROS_MAX));
        }
    }
}
