//! The sequence numbers of commits: taken, applied, visible.
//!
//! A commit that has been applied raises the visible number if all before it are visible. Otherwise it says so at the
//! *place* of its first number. Whoever waits follows these marks from the last visible number on, from commit to commit.
//! So a commit writes to at most three places that others use: the counter, its mark, and the visible number, however
//! many threads and shards there are.
//!
//! Invariants:
//! 1. A place is used again only when the commit that used it is visible.
//! 2. Whoever sees a number visible sees everything that commits up to it have applied.
//! 3. `visible` only grows.

use crate::base::planted::{Bug, planted};
use crate::base::sync::modelled::{AtomicU64, Ordering};
use crate::base::sync::{CachePadded, yield_now};

/// No commit has been abandoned.
const NONE: u64 = u64::MAX;

/// Marks that share cache lines.
const MARKS_PER_LINE: usize = if cfg!(any(loom, shuttle, planted)) { 1 } else { 16 };
/// Consecutive numbers have their marks in different lines. So many numbers may be taken and not visible before commits
/// must wait to set their marks; few in tests, which should see that.
const LINES: usize = if cfg!(loom) {
    2
} else if cfg!(any(shuttle, planted)) {
    4
} else {
    64
};
const PLACES: u64 = (LINES * MARKS_PER_LINE) as u64;

/// See the module's description.
pub(crate) struct CommitOrder {
    /// The next number to be taken.
    next: CachePadded<AtomicU64>,
    visible: CachePadded<AtomicU64>,
    /// By place of its first number: the last number of a commit that has been applied. A mark of an earlier commit is
    /// lower than any number that is looked for there.
    marks: Box<[CachePadded<[AtomicU64; MARKS_PER_LINE]>]>,
    /// The lowest number of a commit that will never be applied.
    abandoned: AtomicU64,
}

impl CommitOrder {
    /// Continues after `last`.
    pub(crate) fn new(last: u64) -> CommitOrder {
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        CommitOrder {
            next: CachePadded::new(AtomicU64::new(last + 1)),
            visible: CachePadded::new(AtomicU64::new(last)),
            marks: (0..LINES).map(|_| line()).collect(),
            abandoned: AtomicU64::new(NONE),
        }
    }

    #[inline]
    fn mark(&self, first: u64) -> &AtomicU64 {
        let first = first as usize;
        &self.marks[first % LINES][first / LINES % MARKS_PER_LINE]
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

    /// Takes `count` numbers for a commit and returns the first.
    #[inline]
    pub(crate) fn take(&self, count: u32) -> u64 {
        self.next.fetch_add(u64::from(count), Ordering::SeqCst)
    }

    /// The commit that took these numbers has been applied. Returns true if it is visible.
    #[inline]
    pub(crate) fn applied(&self, first: u64, count: u32) -> bool {
        // Mostly all earlier commits are visible. Then it needs no mark: whoever waits begins at the visible number.
        let last = first + u64::from(count) - 1;
        let uses_mark = planted(Bug::CommitMarkOverwritten);
        let raise =
            || self.visible.compare_exchange(first - 1, last, Ordering::AcqRel, Ordering::Acquire);
        !uses_mark && raise().is_ok() || self.mark_applied(first, last)
    }

    fn mark_applied(&self, first: u64, last: u64) -> bool {
        let may_use = |visible: u64| {
            first <= visible.saturating_add(PLACES) || planted(Bug::CommitMarkOverwritten)
        };
        if may_use(self.visible()) || self.wait_for_place(first, may_use) {
            self.mark(first).store(last, Ordering::Release);
        }
        false
    }

    /// Waits until the place is free. Commits with lower numbers have places of their own or wait for lower ones, so they
    /// do not wait for this one. Returns false if it will never be free.
    #[cold]
    fn wait_for_place(&self, first: u64, may_use: impl Fn(u64) -> bool) -> bool {
        while !may_use(self.advance()) {
            if self.is_abandoned_before(first) {
                return false;
            }
            yield_now();
        }
        true
    }

    /// The commit that took numbers from `first` on has panicked: it never becomes visible, nor do later ones.
    #[cold]
    pub(super) fn abandon(&self, first: u64) {
        self.abandoned.fetch_min(first, Ordering::SeqCst);
    }

    /// Returns true if a commit up to `number` will never be applied.
    #[cold]
    pub(super) fn is_abandoned_before(&self, number: u64) -> bool {
        self.abandoned.load(Ordering::SeqCst) <= number
    }

    /// Raises `visible` as far as it may go and returns it.
    pub(crate) fn advance(&self) -> u64 {
        let mut reached = self.visible();
        if planted(Bug::CommitVisibleEarly) {
            reached = self.next() - 1;
        }
        let before = reached;
        loop {
            let last = self.mark(reached + 1).load(Ordering::Acquire);
            if last <= reached {
                break;
            }
            // A commit that uses the place after the one that is looked for has seen that one visible, so this shows it
            // too: then the mark says nothing of the numbers in between.
            let visible = self.visible();
            if visible > reached {
                reached = visible;
                continue;
            }
            reached = last;
        }
        if reached == before && !planted(Bug::CommitVisibleEarly) {
            return reached;
        }
        self.visible.fetch_max(reached, Ordering::AcqRel).max(reached)
    }
}
