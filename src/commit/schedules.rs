//! Scenarios of commits: several writers, readers, and whoever needs a moment without a commit.

use std::path::Path;
use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

use super::{Batch, Committer};
use crate::base::durability::Durability;
use crate::base::ids::Seqno;
use crate::journal::{Journal, JournalOptions};
use crate::vfs::MemoryVfs;

const COMMITS_MAX: usize = 8;

struct Commits {
    committer: Committer,
    /// By number.
    applied: [AtomicBool; COMMITS_MAX],
}

impl Commits {
    fn new(shards: usize) -> Arc<Commits> {
        let options = JournalOptions {
            shards,
            segment_bytes: 4096,
            free_bytes_min: 0,
            store_id: 1,
            epoch: 1,
        };
        let vfs = Arc::new(MemoryVfs::new());
        let journal =
            Journal::create(vfs, Path::new("/"), options, Vec::new(), Arc::default()).unwrap();
        let committer = Committer::new(Arc::new(journal), Seqno(0), false);
        Arc::new(Commits { committer, applied: Default::default() })
    }

    /// Returns the first and the last number.
    fn commit(&self, count: u32) -> (u64, u64) {
        let mut taken = 0;
        let last = self.committer.commit(
            Batch {
                payload: crate::journal::Payload::Whole(b"not decoded"),
                count,
                durability: Durability::Buffered,
                own: None,
            },
            || false,
            || Ok(()),
            |first| {
                taken = first.0;
                for number in first.0..first.0 + u64::from(count) {
                    self.applied[number as usize].store(true, Ordering::SeqCst);
                }
            },
        );
        let last = last.unwrap().0;
        assert!(self.committer.visible().0 >= last, "acknowledged and not visible");
        (taken, last)
    }

    fn check_prefix(&self, visible: u64) {
        for number in 1..=visible {
            let applied = self.applied[number as usize].load(Ordering::SeqCst);
            assert!(applied, "{number} is visible and not applied");
        }
    }
}

/// Numbers are dense; what is acknowledged is visible; what is visible has been applied, all of it.
pub(crate) fn writers_and_a_reader() {
    let commits = Commits::new(2);
    let writers: Vec<_> = [1, 2, 1]
        .into_iter()
        .map(|count| {
            let commits = Arc::clone(&commits);
            thread::spawn(move || commits.commit(count))
        })
        .collect();
    let mut before = 0;
    for _ in 0..2 {
        let visible = commits.committer.visible().0;
        assert!(visible >= before, "visible went back");
        commits.check_prefix(visible);
        before = visible;
    }
    let mut ranges: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    ranges.sort_unstable();
    let mut next = 1;
    for (first, last) in ranges {
        assert_eq!(first, next, "numbers are dense");
        next = last + 1;
    }
    assert_eq!(commits.committer.visible().0, next - 1);
}

/// Inside a barrier no commit is half done, and none begins.
pub(crate) fn a_barrier_meets_no_commit() {
    let commits = Commits::new(2);
    let mut tasks: Vec<_> = (0..2)
        .map(|_| {
            let commits = Arc::clone(&commits);
            thread::spawn(move || {
                commits.commit(2);
            })
        })
        .collect();
    let other = Arc::clone(&commits);
    tasks.push(thread::spawn(move || {
        other.committer.barrier(|last| other.check_prefix(last.0));
    }));
    commits.committer.barrier(|last| {
        for (number, applied) in (0..).zip(&commits.applied).skip(1) {
            assert_eq!(applied.load(Ordering::SeqCst), number <= last.0, "{number} of {last}");
        }
    });
    for task in tasks {
        task.join().unwrap();
    }
}

/// Several commits of one shard have appended and not yet applied: a barrier waits for all of them, and what is
/// acknowledged is a prefix.
pub(crate) fn one_shard_of_several_writers() {
    let commits = Commits::new(1);
    let mut tasks: Vec<_> = [1, 5, 1]
        .into_iter()
        .map(|count| {
            let commits = Arc::clone(&commits);
            thread::spawn(move || {
                let (_, last) = commits.commit(count);
                commits.check_prefix(last);
            })
        })
        .collect();
    let other = Arc::clone(&commits);
    tasks.push(thread::spawn(move || {
        other.committer.barrier(|last| {
            for (number, applied) in (0..).zip(&other.applied).skip(1) {
                assert_eq!(applied.load(Ordering::SeqCst), number <= last.0, "{number} of {last}");
            }
        });
    }));
    commits.check_prefix(commits.committer.visible().0);
    for task in tasks {
        task.join().unwrap();
    }
    assert_eq!(commits.committer.visible().0, 7);
}
