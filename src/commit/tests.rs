//! What commits do while another has appended and not been applied.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use super::{Batch, Committer};
use crate::base::durability::Durability;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::journal::{Journal, JournalOptions, Payload};
use crate::vfs::MemoryVfs;

const PATIENCE: Duration = Duration::from_secs(60);
/// To see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(50);

/// With one shard: whoever held it would keep out all others.
fn committer() -> Committer {
    let options = JournalOptions {
        shards: 1,
        segment_bytes: 1 << 20,
        free_bytes_min: 0,
        store_id: 1,
        epoch: 1,
    };
    let vfs = Arc::new(MemoryVfs::new());
    let journal = Journal::create(vfs, Path::new("/"), options, Vec::new(), Arc::default());
    Committer::new(Arc::new(journal.unwrap()), Seqno(0), false)
}

fn commit(committer: &Committer, count: u32, apply: impl FnOnce()) -> Result<Seqno> {
    let batch = Batch {
        payload: Payload::Whole(b"not decoded"),
        count,
        durability: Durability::Buffered,
        own: None,
    };
    committer.commit(batch, || false, || Ok(()), |_| apply())
}

#[test]
fn a_writer_that_applies_keeps_no_other_from_appending() {
    let committer = committer();
    let (entered, go) = (&Barrier::new(2), &Barrier::new(2));
    let committer = &committer;
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let acknowledged = |name: &'static str| {
            let tell = tell.clone();
            move |last: Result<Seqno>| tell.send((name, last.unwrap().0)).unwrap()
        };
        let (first, second, barrier) =
            (acknowledged("first"), acknowledged("second"), acknowledged("barrier"));
        scope.spawn(move || {
            let slow = || {
                entered.wait();
                go.wait();
            };
            first(commit(committer, 2, slow));
        });
        entered.wait();
        let (applied, is_applied) = mpsc::channel();
        scope.spawn(move || second(commit(committer, 1, || applied.send(()).unwrap())));
        is_applied.recv_timeout(PATIENCE).expect("it waited for the first to be applied");
        scope.spawn(move || barrier(Ok(committer.barrier(|last| last))));
        let early = told.recv_timeout(A_WHILE);
        assert!(early.is_err(), "acknowledged before the one before it: {early:?}");
        assert_eq!(committer.visible(), Seqno(0));
        go.wait();
        let mut all: Vec<_> = (0..3).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, [("barrier", 3), ("first", 2), ("second", 3)]);
    });
}

/// Numbers below that of a commit that has panicked become visible, and a barrier waits for them; later ones do not, and
/// nobody waits for them.
#[test]
fn a_commit_that_panics_takes_only_later_ones_with_it() {
    let committer = committer();
    let (entered, go) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            commit(&committer, 1, || {
                entered.wait();
                go.wait();
            })
        });
        entered.wait();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = commit(&committer, 1, || panic!("for the test"));
        }));
        assert!(panicked.is_err());
        let later = commit(&committer, 1, || ());
        assert!(matches!(later, Err(Error::Poisoned { .. })), "{later:?}");
        // Behind more numbers than there are places for marks.
        let later = commit(&committer, 100_000, || ());
        assert!(matches!(later, Err(Error::Poisoned { .. })), "{later:?}");
        let later = commit(&committer, 1, || ());
        assert!(matches!(later, Err(Error::Poisoned { .. })), "{later:?}");
        let barrier = scope.spawn(|| committer.barrier(|last| last));
        thread::sleep(A_WHILE);
        assert!(!barrier.is_finished(), "the first has not been applied");
        go.wait();
        assert_eq!(first.join().unwrap().unwrap(), Seqno(1));
        assert_eq!(barrier.join().unwrap(), Seqno(1));
        assert_eq!(committer.visible(), Seqno(1));
    });
}

/// Marks come around to the same places many times, and batches are longer than all places.
#[test]
fn numbers_stay_dense_while_places_are_used_again() {
    let committer = committer();
    let counts = [1, 1, 3, 1500, 1, 1024, 2048, 7];
    let ends: Vec<Vec<(u64, u64)>> = thread::scope(|scope| {
        let committer = &committer;
        let run = move |thread: usize| {
            let counts = counts.iter().cycle().skip(thread).take(400);
            let ends = counts.map(|count| {
                let last = commit(committer, *count, || ()).unwrap().0;
                assert!(committer.visible().0 >= last);
                (last + 1 - u64::from(*count), last)
            });
            ends.collect()
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut ends: Vec<_> = ends.into_iter().flatten().collect();
    ends.sort_unstable();
    let mut next = 1;
    for (first, last) in ends {
        assert_eq!(first, next);
        next = last + 1;
    }
    assert_eq!(committer.visible().0, next - 1);
    assert_eq!(committer.barrier(|last| last).0, next - 1);
}
