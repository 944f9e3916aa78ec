//! Which iterators have cursors open, how much memory these use, and how idle iterators are made to close them.
//!
//! An iterator that has cursors pins a read state: memtables, and a version with its files. It can do without both
//! between two calls, since its sequence number stays registered: it remembers its key and goes on from there in
//! the newest state. So cursors are closed when the read state they belong to has been replaced, and the least
//! recently found ones when the cursors of all iterators use more than their share. What they use comes out of the cache.
//!
//! Invariants:
//! 1. An iterator has a place here exactly while it has cursors open.
//! 2. `bytes` is the sum of what the iterators with a place were last counted with.
//! 3. An iterator's turn is only tried for while a shard's lock is held, since its owner takes that lock during
//!    its turn. Cursors are dropped after the lock is released.

use std::sync::Arc;

use crate::base::planted::{Bug, planted};
use crate::base::sync::plain::{AtomicU64, AtomicUsize, Ordering};
use crate::base::sync::{CachePadded, Mutex, thread_number};
use crate::base::turn_cell::TurnCell;

const SHARDS: usize = 16;

/// See the module's description.
pub(crate) struct OpenIterators {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    bytes: AtomicU64,
    bytes_max: u64,
    /// The cache makes room for cursors in steps of so many bytes.
    step_bytes: u64,
    /// For how many bytes of cursors it has done so: the most that there have been. The allocator keeps what they leave, for
    /// the next ones; a cache that took it back grew beside that.
    provided_bytes: AtomicU64,
    /// The shard that is asked next for memory.
    hand: AtomicUsize,
    /// How many iterators there are, with cursors or without.
    held: AtomicU64,
    /// For how many of them the cache has made room.
    provided_for: AtomicU64,
}

/// An iterator that can close its cursors between two calls.
pub(crate) trait ClosesCursors: Send {
    /// Whether a cursor belongs to a read state that has been replaced.
    fn is_outdated(&self) -> bool;

    /// Whether such a state has memtables that the newest one has no more.
    fn keeps_memtables(&self) -> bool;

    /// Closes all cursors and remembers where they stood. What goes into `closed` may take its time to drop.
    fn close(&mut self, closed: &mut Vec<Box<dyn Send>>);
}

/// How an iterator is reached by others than its owner.
pub(crate) trait Idle: Send + Sync {
    /// Closes the cursors if the iterator is idle and `due`. Whether it did.
    fn close_if(
        &self,
        due: &dyn Fn(&dyn ClosesCursors) -> bool,
        closed: &mut Vec<Box<dyn Send>>,
    ) -> bool;
}

impl<T: ClosesCursors> Idle for TurnCell<T> {
    fn close_if(
        &self,
        due: &dyn Fn(&dyn ClosesCursors) -> bool,
        closed: &mut Vec<Box<dyn Send>>,
    ) -> bool {
        let Some(mut turn) = self.try_enter() else { return false };
        let is_due = due(&*turn);
        if is_due {
            turn.close(closed);
        }
        is_due
    }
}

/// What an iterator keeps whatever happens, with its place among the registered numbers and the allocator's share;
/// the keys that its passes have reached not counted.
pub(crate) const ITERATOR_BYTES: u64 = 768;

/// The cache makes room for iterators when there are so many more of them.
const ITERATORS_STEP: u64 = 2048;
/// In how many steps it makes room for their cursors.
const CURSOR_STEPS: u64 = 16;

#[derive(Default)]
struct Shard {
    iterators: Vec<Option<Arc<dyn Idle>>>,
    free: Vec<u32>,
    /// The place that is asked next for memory.
    hand: usize,
}

/// Where an iterator is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    shard: u32,
    index: u32,
}

impl OpenIterators {
    /// None yet; their cursors may use `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> OpenIterators {
        OpenIterators {
            shards: std::array::from_fn(|_| CachePadded::new(Mutex::default())),
            bytes: AtomicU64::new(0),
            bytes_max,
            step_bytes: (bytes_max / CURSOR_STEPS).max(1),
            provided_bytes: AtomicU64::new(0),
            hand: AtomicUsize::new(0),
            held: AtomicU64::new(0),
            provided_for: AtomicU64::new(0),
        }
    }

    /// One more iterator. Returns true if the cache is to make room for those that there are.
    pub(crate) fn begin(&self) -> bool {
        let held = self.held.fetch_add(1, Ordering::Relaxed) + 1;
        held >= self.provided_for.load(Ordering::Relaxed) + ITERATORS_STEP
    }

    /// Whether cursors use more than the cache has made room for.
    #[inline]
    pub(crate) fn wants_memory(&self) -> bool {
        let provided = self.provided_bytes.load(Ordering::Relaxed);
        self.bytes() > provided.max(self.step_bytes)
    }

    /// One less.
    pub(crate) fn end(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many iterators there are.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Memory that iterators need or have needed, to be taken from the cache; but for the first step of their cursors.
    pub(crate) fn bytes_to_provide(&self) -> u64 {
        let held = self.held() / ITERATORS_STEP * ITERATORS_STEP;
        self.provided_for.store(held, Ordering::Relaxed);
        let bytes = self.bytes();
        let cursors = match bytes <= self.step_bytes {
            true => 0,
            false => bytes.next_multiple_of(self.step_bytes) + self.step_bytes,
        };
        let before = self.provided_bytes.fetch_max(cursors, Ordering::Relaxed);
        held * ITERATOR_BYTES + cursors.max(before)
    }

    /// Memory of all cursors.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Gives an iterator a place.
    pub(crate) fn enter(&self, iterator: Arc<dyn Idle>) -> Place {
        let shard = thread_number() % SHARDS;
        let mut locked = self.shards[shard].lock();
        let index = match locked.free.pop() {
            Some(index) => index,
            None => {
                locked.iterators.push(None);
                (locked.iterators.len() - 1) as u32
            }
        };
        locked.iterators[index as usize] = Some(iterator);
        Place { shard: shard as u32, index }
    }

    /// Takes the place back from an iterator without cursors.
    pub(crate) fn leave(&self, place: Place) {
        let left = self.shards[place.shard as usize].lock().take(place.index as usize);
        drop(left);
    }

    /// An iterator that was counted with `before` uses `now`.
    #[inline]
    pub(crate) fn recount(&self, before: usize, now: usize) {
        if before != now {
            self.bytes.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// Closes cursors of idle iterators until all that are open fit their share. Those that are in use are left
    /// alone.
    #[inline]
    pub(crate) fn make_room(&self) {
        if self.bytes() > self.bytes_max {
            self.close_some();
        }
    }

    #[cold]
    fn close_some(&self) {
        // Each shard once: what is in use now may be all there is.
        for _ in 0..SHARDS {
            if self.bytes() <= self.bytes_max || planted(Bug::IteratorKeepsState) {
                return;
            }
            let shard = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut locked = self.shards[shard].lock();
            let mut closed = Vec::new();
            for _ in 0..locked.iterators.len() {
                if self.bytes() <= self.bytes_max {
                    break;
                }
                let index = locked.hand;
                locked.hand = (index + 1) % locked.iterators.len();
                locked.close(index, &|_| true, &mut closed);
            }
            drop(locked);
            drop(closed);
        }
    }

    /// Closes the cursors of idle iterators that are `due`.
    pub(crate) fn close_idle(&self, due: impl Fn(&dyn ClosesCursors) -> bool) {
        if planted(Bug::IteratorKeepsState) {
            return;
        }
        for shard in &self.shards {
            let mut locked = shard.lock();
            let mut closed = Vec::new();
            for index in 0..locked.iterators.len() {
                locked.close(index, &due, &mut closed);
            }
            drop(locked);
            drop(closed);
        }
    }
}

impl Shard {
    fn take(&mut self, index: usize) -> Option<Arc<dyn Idle>> {
        let taken = self.iterators[index].take();
        self.free.push(index as u32);
        taken
    }

    /// Closes the cursors of the iterator at a place if it is idle and `due`. It keeps itself alive: its owner
    /// takes it out of its place before dropping it.
    fn close(
        &mut self,
        index: usize,
        due: &dyn Fn(&dyn ClosesCursors) -> bool,
        closed: &mut Vec<Box<dyn Send>>,
    ) {
        let is_closed = |iterator: &Arc<dyn Idle>| iterator.close_if(due, closed);
        if self.iterators[index].as_ref().is_some_and(is_closed) {
            // Never the last reference: its owner has one until it has taken the iterator out of its place.
            self.take(index);
        }
    }
}
