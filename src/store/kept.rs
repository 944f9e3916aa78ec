//! Memtables that are in the trees already and that calls of readers keep.
//!
//! A reader keeps the memtables that there were when its call began, for as long as the call takes. If that is more than
//! an eighth of the budget, it comes out of the page cache. Where many calls take long, that does not suffice: then writers
//! are slowed, so that what readers keep grows slowly. Idle iterators, and those that are called all the time, let go of
//! their cursors instead.
//!
//! Invariants:
//! 1. Memtables that readers keep count neither as the share of memtables, nor as a backlog of flushes, up to
//!    [`Kept::bytes_max`](super::kept_state::Kept::bytes_max). Beyond that all writers together are let in at one rate,
//!    which falls with the excess to [`RATE_MIN`]. Those that wait have equal parts of it, so a small write does not wait
//!    for large ones.
//! 2. No write waits for readers for longer than [`WAIT_MAX`], and none while it holds what others wait for. So large writes
//!    of many threads at once come in faster than that rate.
//! 3. Nobody waits for memtables of a keyspace that was dropped: what reads it may keep them for good.

use std::sync::Arc;
use std::time::Duration;

use super::state::KeyspaceState;
use super::store::Store;
use crate::merge::Contained;

/// At the limit, writers are let in at so many bytes a second.
const RATE_MAX: f64 = 64e6;
/// At most they are slowed to so many.
const RATE_MIN: f64 = 1e6;
/// The rate is least when memtables use this part of what readers may keep beyond the limit.
const EXCESS_PART: u64 = 3;
/// See invariant 2.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Readers tell nobody when they let go: how often it is looked.
const LOOKS_EVERY: Duration = Duration::from_millis(1);
/// A writer that waits looks this often, if many do.
const LOOKS_SELDOM: Duration = Duration::from_millis(16);
/// Looks take at most this part of a thread's time.
const LOOKS_PART: u64 = 16;

impl Store {
    /// What memtables may use together: their share, and what readers keep.
    #[inline]
    pub(crate) fn memtables_limit(&self) -> u64 {
        self.sizes.memtables_bytes_max + self.kept.allowed_bytes()
    }

    /// Whether readers keep so much that the page cache has to give up memory for it. Iterators then let go of memtables that
    /// are in the trees already.
    #[inline]
    pub(crate) fn is_kept_scarce(&self) -> bool {
        self.kept.is_provided_for()
    }

    /// Drops memtables that nobody keeps any more, closes cursors of idle iterators that keep others, and notes what is
    /// kept then. One thread does so at a time, and not more often than [`LOOKS_EVERY`].
    pub(crate) fn look_at_kept(&self) {
        let Some(mut next_look) = self.kept.looking.try_lock() else { return };
        let now = self.clock.nanos();
        if now < *next_look {
            return;
        }
        let keyspaces = self.all_keyspaces();
        let mut bytes = Store::drop_unheld_memtables(&keyspaces);
        if bytes > 0 {
            self.open_iterators.close_idle(|iterator| iterator.keeps_memtables());
            bytes = Store::drop_unheld_memtables(&keyspaces);
        }
        self.note_kept(bytes);
        // With many keyspaces a look takes some time.
        let took = self.clock.nanos().saturating_sub(now);
        *next_look = now + (LOOKS_EVERY.as_nanos() as u64).max(took * LOOKS_PART);
    }

    /// Notes that readers keep so many bytes.
    pub(super) fn note_kept(&self, bytes: u64) {
        let before = self.kept.bytes();
        if self.kept.set(bytes, self.open_iterators.bytes(), self.clock.nanos()) {
            // Whoever writes may be here.
            self.divide_memory();
        }
        if bytes != before {
            // What is kept is no backlog.
            self.update_backlog();
        }
    }

    /// Bytes of memtables that readers keep too much, if all of them exceed what they may use. Memtables of dropped keyspaces
    /// are not kept (invariant 3).
    #[inline]
    fn excess(&self) -> u64 {
        let beyond = (self.pool.bytes_in_use() as u64).saturating_sub(self.memtables_limit());
        self.kept.excess_bytes().min(beyond)
    }

    /// Slows a write that needs so many bytes while readers keep too much.
    #[inline]
    pub(super) fn wait_for_readers(&self, held: u64) {
        if self.kept.is_too_much() {
            self.wait_for_readers_slow(held);
        }
    }

    #[cold]
    fn wait_for_readers_slow(&self, held: u64) {
        self.look_at_kept();
        let excess = self.excess();
        // A merge operator that writes may be what a reader waits for.
        if excess == 0 || self.executor.is_stepped() || Contained::is_inside() {
            return;
        }
        let slowest = (self.kept.bytes_max() / EXCESS_PART).max(1);
        let room = 1.0 - (excess as f64 / slowest as f64).min(1.0);
        let rate = (RATE_MAX * room.powi(3)).max(RATE_MIN);
        let most = WAIT_MAX.as_nanos() as u64;
        let cost = (held as f64 / rate * 1e9).min(most as f64) as u64;
        let Some(cost) = self.kept.owed(cost) else { return };
        let waiting = self.kept.begin_to_wait();
        let began = self.clock.nanos();
        let (mut now, mut paid) = (began, 0);
        while paid < cost && now - began < most && self.excess() > 0 && self.check_open().is_ok() {
            // All together look each millisecond.
            let parts = waiting.parts();
            let step = (LOOKS_EVERY.as_nanos() as u64).min(cost - paid).saturating_mul(parts);
            let step = Duration::from_nanos(step.min(most - (now - began)));
            self.clock.sleep(step.min(LOOKS_SELDOM));
            self.look_at_kept();
            let from = now;
            now = self.clock.nanos().max(from);
            paid += (now - from).div_ceil(parts);
        }
        drop(waiting);
        self.throttle.record(now - began);
    }

    /// Drops memtables of these keyspaces that nobody keeps. Returns the bytes of those that readers keep.
    pub(super) fn drop_unheld_memtables(keyspaces: &[Arc<KeyspaceState>]) -> u64 {
        keyspaces.iter().map(|keyspace| keyspace.drop_unheld_memtables()).sum()
    }
}
