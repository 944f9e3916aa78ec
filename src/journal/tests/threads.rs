//! Many writers at once, group commit, and what a failed sync does to all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;

/// The part of a commit layer that a test needs: numbers, and what is visible.
struct Commits {
    journal: Journal,
    next: AtomicU64,
    visible: AtomicU64,
}

impl Commits {
    fn commit(&self, thread: usize, payload: &[u8]) -> u64 {
        let mut shard = self.journal.lock_shard(thread);
        shard.reserve(payload.len()).unwrap();
        let first = self.next.fetch_add(1, Ordering::SeqCst);
        shard.append(Seqno(first), 1, Payload::Whole(payload));
        drop(shard);
        while self.visible.load(Ordering::SeqCst) != first - 1 {
            std::thread::yield_now();
        }
        self.visible.store(first, Ordering::SeqCst);
        first
    }
}

fn commits(vfs: &Arc<TestVfs>, shards: usize) -> Commits {
    let journal = journal(vfs, options(shards, 16384, 1));
    Commits { journal, next: AtomicU64::new(1), visible: AtomicU64::new(0) }
}

#[test]
fn writers_on_all_shards_with_syncs_lose_nothing_that_was_acknowledged() {
    let vfs = TestVfs::new();
    let commits = commits(&vfs, 3);
    let synced = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..5 {
            let (commits, synced) = (&commits, &synced);
            scope.spawn(move || {
                for round in 0..200usize {
                    let seqno = commits.commit(thread, &solid_payload(20 + round));
                    match round % 16 {
                        3 => commits.journal.sync_upto(Seqno(seqno)).unwrap(),
                        7 => commits.journal.sync_all().unwrap(),
                        11 => commits.journal.maintain().unwrap(),
                        _ => continue,
                    }
                    if round % 16 < 8 {
                        synced.fetch_max(seqno, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let synced = synced.into_inner();
    let crashed = vfs.after_power_loss(|_, _, _| 0);
    let (found, report) = collect(&crashed, &plan(1)).unwrap();
    assert!(synced > 900 && report.last.0 >= synced, "{synced} {report:?}");
    assert_eq!(found.len() as u64, report.last.0);
    let (found, _) = collect(&vfs.after_process_death(), &plan(1)).unwrap();
    assert_eq!(found.len(), 1000);
}

/// It once counted the rounds of eight threads that ran as they liked. On a busy machine they ran one
/// after the other, and it failed without a fault. Now the first sync lasts until all wait.
#[test]
fn one_leader_syncs_for_all_who_wait() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(1, 1 << 16, 1));
    let commits = &Commits { journal, next: AtomicU64::new(1), visible: AtomicU64::new(0) };
    // Makes the only segment: a new one is synced by the thread that appends.
    commits.commit(0, b"the first");
    commits.journal.sync_all().unwrap();
    let held_syncs = || vfs.faults.held_syncs.load(Ordering::SeqCst);
    for round in 1..=20 {
        std::thread::scope(|scope| {
            let held = vfs.faults.hold_syncs();
            let commit_and_wait = |thread| {
                let seqno = commits.commit(thread, b"not decoded here");
                scope.spawn(move || {
                    commits.journal.sync_upto(Seqno(seqno)).unwrap();
                    assert!(commits.journal.durable() >= Seqno(seqno));
                });
                Seqno(seqno)
            };
            commit_and_wait(0);
            until(|| held_syncs() == round);
            let waiting: Vec<Seqno> = (1..8).map(commit_and_wait).collect();
            until(|| commits.journal.claimed() == waiting[6]);
            drop(held);
        });
        // The first of the eight led a round for itself, another led one for the seven.
        assert_eq!(commits.journal.statistics().syncs, 1 + 2 * round);
    }
    assert_eq!(commits.journal.statistics().records, 161);
    // What is durable already costs nothing, and neither does a round without anything new.
    let syncs = vfs.faults.syncs.load(Ordering::SeqCst);
    commits.journal.sync_upto(Seqno(100)).unwrap();
    commits.journal.sync_all().unwrap();
    assert_eq!(vfs.faults.syncs.load(Ordering::SeqCst), syncs);
}

/// Waits for what another thread does. Panics after a minute.
fn until(is_done: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing happened for a minute");
}

#[test]
fn only_shards_with_something_new_are_synced() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(4, 4096, 1));
    for shard in 0..4 {
        append_to(&journal, shard, 1 + shard as u64, 1, &solid_payload(9));
    }
    journal.sync_all().unwrap();
    assert_eq!(journal.statistics().files_synced, 4);
    append_to(&journal, 2, 5, 1, &solid_payload(1000));
    append_to(&journal, 2, 6, 1, &solid_payload(3500)); // rolls: two files
    journal.sync_all().unwrap();
    assert_eq!(journal.statistics().files_synced, 6);
}

#[test]
fn a_failed_sync_poisons_for_ever() {
    let vfs = TestVfs::new();
    let commits = commits(&vfs, 2);
    commits.commit(0, &solid_payload(9));
    commits.journal.sync_upto(Seqno(1)).unwrap();
    vfs.faults.slow_sync.store(true, Ordering::SeqCst);
    vfs.faults.fail_sync.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        commits.commit(0, &solid_payload(9));
    }
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|n| (n, &commits))
            .map(|(n, commits)| {
                scope.spawn(move || commits.journal.sync_upto(Seqno(2 + n)).unwrap_err())
            })
            .collect();
        waiting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Whoever led says what happened; the others were told.
    assert_eq!(errors.iter().filter(|error| matches!(error, Error::Io { .. })).count(), 1);
    assert_eq!(errors.iter().filter(|error| matches!(error, Error::Poisoned { .. })).count(), 3);
    vfs.faults.fail_sync.store(false, Ordering::SeqCst);
    let poisoned = |error: Error| {
        assert!(matches!(&error, Error::Poisoned { reason } if reason.contains("on fire")));
    };
    poisoned(commits.journal.sync_all().unwrap_err());
    poisoned(commits.journal.sync_upto(Seqno(5)).unwrap_err());
    poisoned(commits.journal.lock_shard(0).reserve(1).unwrap_err());
    poisoned(commits.journal.maintain().unwrap_err());
    poisoned(commits.journal.close().unwrap_err());
    poisoned(commits.journal.poison.check().unwrap_err());
    // What had been durable still counts as such.
    commits.journal.sync_upto(Seqno(1)).unwrap();
}

#[test]
fn a_busy_shard_is_passed_over() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(3, 4096, 1));
    let first = journal.lock_shard(4);
    let second = journal.lock_shard(1);
    let third = journal.lock_shard(1);
    assert_eq!([first.index(), second.index(), third.index()], [1, 2, 0]);
}

#[test]
fn a_failed_write_poisons_before_it_is_acknowledged() {
    let vfs = TestVfs::new();
    let journal = journal(&vfs, options(2, 4096, 1));
    let mut shard = journal.lock_shard(0);
    shard.reserve(100).unwrap();
    shard.append(Seqno(1), 1, Payload::Whole(&solid_payload(50)));
    shard.check().unwrap();
    vfs.faults.fail_write.store(true, Ordering::SeqCst);
    assert!(matches!(shard.check(), Err(Error::Io { .. })));
    assert!(matches!(shard.reserve(1), Err(Error::Poisoned { .. })));
    drop(shard);
    assert!(matches!(journal.lock_shard(1).reserve(1), Err(Error::Poisoned { .. })));
}
