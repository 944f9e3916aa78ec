//! Models of gaps that are recorded and looked up while a commit puts a key into them.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Direction, Gaps};
use crate::base::ids::Seqno;
use crate::commit::CommitOrder;

/// As many preemptions as are tried; more take long and find nothing more in models of this size.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

const KEY: &[u8] = b"m";

/// A keyspace of one key.
struct Keyspace {
    order: CommitOrder,
    gaps: std::sync::Arc<Gaps>,
    /// The number of the put, once it has been applied.
    put: AtomicU64,
}

impl Keyspace {
    fn new() -> Arc<Keyspace> {
        Arc::new(Keyspace {
            order: CommitOrder::new(0),
            gaps: std::sync::Arc::default(),
            put: AtomicU64::new(0),
        })
    }

    /// As `Committer::commit`.
    fn put(&self) {
        let number = self.order.take(1);
        if self.gaps.is_watched() {
            self.gaps.note(KEY);
        }
        // Relaxed: the order alone must carry it to the readers.
        self.put.store(number, Ordering::Relaxed);
        self.order.applied(number, 1);
        self.order.advance();
    }

    /// As an iterator that finds nothing but dead entries, or the key.
    fn record(&self, direction: Direction) {
        let Some(watch) = self.gaps.watch(direction, (None, None), Seqno(u64::MAX), u64::MAX)
        else {
            return;
        };
        let last = self.order.last_taken();
        // As `Committer::catch_up`, with one look.
        if self.order.advance() < last {
            return;
        }
        let found = self.put.load(Ordering::Relaxed) > 0;
        let reached = match direction {
            Direction::Forward => found.then(|| KEY.to_vec()),
            Direction::Backward if found => Some([KEY, &[0]].concat()),
            Direction::Backward => Some(Vec::new()),
        };
        watch.record(reached.as_deref(), None, (Seqno(last), Seqno(u64::MAX)), 100);
    }

    /// A reader that was given the put's number does not pass over it.
    fn check(&self) {
        let number = Seqno(self.order.visible());
        let passes = self.gaps.above(KEY, number, 0).is_some()
            || self.gaps.below(Some(b"n"), number, 0).is_some_and(|lower| *lower <= *KEY);
        if passes {
            assert_eq!(number, Seqno(0), "a visible key lies in a gap");
        }
    }
}

fn recording_beside_a_put(direction: Direction) {
    model(move || {
        let keyspace = Keyspace::new();
        let writer = {
            let keyspace = Arc::clone(&keyspace);
            thread::spawn(move || keyspace.put())
        };
        keyspace.record(direction);
        keyspace.check();
        writer.join().unwrap();
        keyspace.check();
    });
}

#[test]
fn a_gap_recorded_beside_a_put_does_not_hide_it() {
    recording_beside_a_put(Direction::Forward);
}

#[test]
fn a_gap_recorded_backward_beside_a_put_does_not_hide_it() {
    recording_beside_a_put(Direction::Backward);
}

/// The gap is there before the put, and another iterator records it once more.
#[test]
fn a_put_ends_a_gap_before_it_is_visible() {
    model(|| {
        let keyspace = Keyspace::new();
        keyspace.record(Direction::Forward);
        let threads = [
            {
                let keyspace = Arc::clone(&keyspace);
                thread::spawn(move || keyspace.put())
            },
            {
                let keyspace = Arc::clone(&keyspace);
                thread::spawn(move || keyspace.record(Direction::Forward))
            },
        ];
        keyspace.check();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(keyspace.order.advance(), 1);
        keyspace.check();
    });
}
