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
//!    which falls with the excess to [`RATE_MIN`].
//! 2. No write waits for readers for longer than [`WAIT_MAX`], and none while it holds what others wait for. Of a large
//!    batch no more is counted.
//! 3. Nobody waits for memtables of a keyspace that was dropped: what reads it may keep them for good.

use std::sync::Arc;
use std::time::Duration;

use super::state::KeyspaceState;
use super::store::Store;
use crate::base::sync::plain::Ordering;
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
/// Looks take at most this part of a thread's time.
const LOOKS_PART: u64 = 16;

impl Store {
    /// What memtables may use together: their share, and what readers keep.
    #[inline]
    pub(crate) fn memtables_limit(&self) -> u64 {
        self.sizes.memtables_bytes_max + self.kept.allowed_bytes()
    }

    /// Whether memtables use more than their share. Iterators then let go of those that are in the trees already.
    #[inline]
    pub(crate) fn memtables_exceed_share(&self) -> bool {
        self.pool.bytes_in_use() as u64 > self.sizes.memtables_bytes_max
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
            self.open_iterators.close_outdated();
            bytes = Store::drop_unheld_memtables(&keyspaces);
        }
        // With many keyspaces a look takes some time.
        let took = self.clock.nanos().saturating_sub(now);
        *next_look = now + (LOOKS_EVERY.as_nanos() as u64).max(took * LOOKS_PART);
        self.note_kept(bytes);
    }

    /// Notes that readers keep so many bytes.
    pub(super) fn note_kept(&self, bytes: u64) {
        if self.kept.set(bytes, self.open_iterators.bytes(), self.clock.nanos()) {
            self.share_memory();
        }
    }

    /// Bytes of memtables that are used beyond what readers may keep.
    #[inline]
    fn excess(&self) -> u64 {
        match self.kept.is_too_much() {
            true => (self.pool.bytes_in_use() as u64).saturating_sub(self.memtables_limit()),
            false => 0,
        }
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
        let most = (self.kept.bytes_max() / EXCESS_PART).max(1);
        let room = 1.0 - (excess as f64 / most as f64).min(1.0);
        let rate = (RATE_MAX * room.powi(3)).max(RATE_MIN);
        let cost = (held as f64 / rate * 1e9).min(WAIT_MAX.as_nanos() as f64) as u64;
        let began = self.clock.nanos();
        let last = began + WAIT_MAX.as_nanos() as u64;
        let turn = |next: u64| Some((next.max(began) + cost).min(last));
        let next_nanos = &self.kept.next_nanos;
        let (Ok(next) | Err(next)) =
            next_nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, turn);
        let until = turn(next).unwrap_or(last);
        let mut now = began;
        while now < until && self.excess() > 0 && self.check_open().is_ok() {
            self.clock.sleep(LOOKS_EVERY.min(Duration::from_nanos(until - now)));
            self.look_at_kept();
            now = self.clock.nanos();
        }
        if self.excess() == 0 {
            next_nanos.store(0, Ordering::Relaxed);
        }
        self.throttle.record(now.saturating_sub(began));
    }

    /// Drops memtables of these keyspaces that nobody keeps. Returns the bytes of those that readers keep.
    pub(super) fn drop_unheld_memtables(keyspaces: &[Arc<KeyspaceState>]) -> u64 {
        keyspaces.iter().map(|keyspace| keyspace.drop_unheld_memtables()).sum()
    }
}
