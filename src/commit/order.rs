//! The sequence numbers of commits: taken, in flight, visible.
//!
//! Each lane has at most one commit in flight, whose thread holds the lock of the lane's journal shard.
//!
//! Invariants:
//! 1. A lane's `in_flight` never exceeds a number that was taken there and is not yet applied: it
//!    is lowered before the number is taken.
//! 2. Whoever sees a number visible sees everything that commits up to it have applied.
//! 3. `visible` only grows.

use crate::base::planted::{Bug, planted};
use crate::base::sync::CachePadded;
use crate::base::sync::modelled::{AtomicBool, AtomicU64, Ordering};

/// A lane without a commit in flight.
const IDLE: u64 = u64::MAX;

/// See the module's description.
pub(crate) struct CommitOrder {
    /// The next number to be taken.
    next: CachePadded<AtomicU64>,
    visible: CachePadded<AtomicU64>,
    /// For each lane the first number in flight, or `IDLE`.
    in_flight: Box<[CachePadded<AtomicU64>]>,
    /// A commit in flight will never be applied.
    abandoned: AtomicBool,
}

impl CommitOrder {
    /// Continues after `last`.
    pub(crate) fn new(lanes: usize, last: u64) -> CommitOrder {
        CommitOrder {
            next: CachePadded::new(AtomicU64::new(last + 1)),
            visible: CachePadded::new(AtomicU64::new(last)),
            in_flight: (0..lanes).map(|_| CachePadded::new(AtomicU64::new(IDLE))).collect(),
            abandoned: AtomicBool::new(false),
        }
    }

    /// The next number to be taken, which another thread may take meanwhile.
    pub(super) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The last number that readers may read at.
    #[inline]
    pub(crate) fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// The last number taken so far. A commit that takes its number later finds all that the caller has done before.
    pub(crate) fn last_taken(&self) -> u64 {
        // Not a load: the commits that come later read from this.
        self.next.fetch_add(0, Ordering::SeqCst) - 1
    }

    /// Takes `count` numbers for a commit on the lane and returns the first.
    #[inline]
    pub(crate) fn take(&self, lane: usize, count: u32) -> u64 {
        let in_flight = &self.in_flight[lane];
        // First a lower bound, so that no number is ever taken and not announced (invariant 1).
        in_flight.store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        let first = self.next.fetch_add(u64::from(count), Ordering::SeqCst);
        in_flight.store(first, Ordering::SeqCst);
        first
    }

    /// The lane's commit has been applied.
    #[inline]
    pub(crate) fn applied(&self, lane: usize) {
        self.in_flight[lane].store(IDLE, Ordering::SeqCst);
    }

    /// A commit in flight has panicked: its numbers stay in flight indefinitely.
    #[cold]
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Returns true if some commit in flight will never be applied.
    #[cold]
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Raises `visible` as far as it may go and returns it.
    pub(crate) fn advance(&self) -> u64 {
        // In this order: a number below `next` that is not applied is announced by its lane.
        let next = self.next.load(Ordering::SeqCst);
        let in_flight = self.in_flight.iter().map(|lane| lane.load(Ordering::SeqCst)).min();
        let in_flight = in_flight.filter(|_| !planted(Bug::CommitVisibleEarly));
        let visible = next.min(in_flight.unwrap_or(IDLE)) - 1;
        self.visible.fetch_max(visible, Ordering::AcqRel).max(visible)
    }
}
