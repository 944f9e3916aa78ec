//! Models of the order of commits: every order in which writers and readers may meet.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::order::CommitOrder;

/// As many preemptions as are tried; more take long and find nothing more in models of this size.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// Commits, and what they have applied, by number.
struct Store {
    order: CommitOrder,
    applied: [AtomicU64; 5],
}

impl Store {
    fn new() -> Arc<Store> {
        Arc::new(Store { order: CommitOrder::new(0), applied: Default::default() })
    }

    /// One commit; returns its last number.
    fn commit(&self, count: u32) -> u64 {
        let first = self.order.take(count);
        let last = first + u64::from(count) - 1;
        for number in first..=last {
            // Relaxed: the order alone must carry it to the readers.
            self.applied[number as usize].store(1, Ordering::Relaxed);
        }
        self.order.applied(first, count);
        self.order.advance();
        last
    }

    /// Everything up to `visible` has been applied.
    fn check(&self, visible: u64) {
        for number in 1..=visible {
            let applied = self.applied[number as usize].load(Ordering::Relaxed);
            assert_eq!(applied, 1, "{number} is visible and not applied");
        }
    }
}

/// A reader finds everything applied that it is told is visible.
#[test]
fn what_is_visible_has_been_applied() {
    model(|| {
        let store = Store::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || store.commit(1))
            })
            .collect();
        store.check(store.order.visible());
        let mut last: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        last.sort_unstable();
        assert_eq!(last, [1, 2], "numbers are dense");
        assert_eq!(store.order.advance(), 2);
        store.check(2);
    });
}

/// The same where one thread commits twice while the other commits: there are fewer places than numbers, so one is used
/// again, and its mark is not taken for one of the numbers before.
#[test]
fn a_place_that_is_used_again_hides_nothing() {
    model(|| {
        let store = Store::new();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || {
                store.commit(1);
                store.check(store.order.visible());
                store.commit(1);
            })
        };
        store.commit(1);
        store.check(store.order.visible());
        writer.join().unwrap();
        assert_eq!(store.order.advance(), 3);
    });
}

/// Whoever raises `visible` itself may read at what it was told.
#[test]
fn advance_answers_for_what_it_returns() {
    model(|| {
        let store = Store::new();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.commit(2))
        };
        let visible = store.order.advance();
        assert!(visible == 0 || visible == 2, "a batch becomes visible as a whole");
        store.check(visible);
        assert!(store.order.visible() >= visible);
        writer.join().unwrap();
    });
}

/// A commit behind a batch of more numbers than there are places waits for it to be visible, and nobody mistakes its mark.
#[test]
fn a_commit_behind_a_large_batch_waits_for_its_place() {
    model(|| {
        let store = Store::new();
        let writer = {
            let store = Arc::clone(&store);
            thread::spawn(move || store.commit(3))
        };
        store.commit(1);
        store.check(store.order.visible());
        writer.join().unwrap();
        assert_eq!(store.order.advance(), 4);
    });
}
