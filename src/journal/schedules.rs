//! Scenarios of the journal: group commit, failing syncs, closing, with a file system that loses power.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::test_support::{Random, TestVfs};
use super::*;
use crate::base::durability::Durability;
use crate::base::entry::EntryKind;
use crate::base::ids::KeyspaceId;
use crate::commit::Committer;

const DIR: &str = "/store";

struct Store {
    vfs: Arc<TestVfs>,
    journal: Arc<Journal>,
    committer: Committer,
    /// The last number that a sync has answered for.
    synced: AtomicU64,
}

impl Store {
    fn new(shards: usize) -> Arc<Store> {
        let vfs = TestVfs::new();
        let options = JournalOptions {
            shards,
            segment_bytes: 4096,
            free_bytes_min: 0,
            store_id: 1,
            epoch: 1,
        };
        let as_vfs: Arc<dyn Vfs> = Arc::<TestVfs>::clone(&vfs);
        let journal =
            Journal::create(as_vfs, Path::new(DIR), options, Vec::new(), Arc::default()).unwrap();
        let journal = Arc::new(journal);
        let committer = Committer::new(Arc::clone(&journal), Seqno(0), false);
        Arc::new(Store { vfs, journal, committer, synced: AtomicU64::new(0) })
    }

    fn commit(&self, value_bytes: usize) -> Result<Seqno> {
        let mut payload = Vec::new();
        let value = vec![0x55; value_bytes];
        encode_operation(&mut payload, KeyspaceId(1), EntryKind::Put, b"key", &value);
        self.committer.commit(
            crate::commit::Batch {
                payload: crate::journal::Payload::Whole(&payload),
                count: 1,
                durability: Durability::Buffered,
                own: None,
            },
            || false,
            || Ok(()),
            |_| (),
        )
    }

    fn commit_and_sync(&self, value_bytes: usize) -> Result<()> {
        let last = self.commit(value_bytes)?;
        self.journal.sync_upto(last)?;
        assert!(self.journal.durable() >= last);
        self.synced.fetch_max(last.0, Ordering::SeqCst);
        Ok(())
    }

    /// The power goes: everything that a sync has answered for is there, and nothing after a hole.
    fn check_power_loss(&self) {
        // Asked before the power goes.
        let synced = self.synced.load(Ordering::SeqCst);
        let crashed = self.vfs.after_power_loss(|_: &Path, _, _| 0);
        let found = replay(&crashed);
        assert!(found >= synced, "{found} commits are left, {synced} were synced");
    }
}

/// The last number of a journal, whose records have no gap up to there.
fn replay(vfs: &TestVfs) -> u64 {
    let plan = ReplayPlan {
        store_id: 1,
        floor: Seqno(0),
        limits: Vec::new(),
        newest_epoch: 1,
        logs: Vec::new(),
        salvage: false,
        read_only: true,
    };
    let mut next = 1;
    let report = Journal::replay(vfs, &PathBuf::from(DIR), &plan, |first, count, _| {
        assert_eq!(first.0, next, "delivered in order");
        next += u64::from(count);
        Ok(())
    });
    report.unwrap().last.0
}

fn spawn(store: &Arc<Store>, f: impl FnOnce(&Store) + Send + 'static) -> thread::JoinHandle<()> {
    let store = Arc::clone(store);
    thread::spawn(move || f(&store))
}

/// Whoever was told that a commit is durable finds it after a power loss at any moment.
pub(crate) fn group_commit() {
    let store = Store::new(2);
    let writers = [
        spawn(&store, |store| store.commit_and_sync(10).unwrap()),
        spawn(&store, |store| store.commit_and_sync(20).unwrap()),
        spawn(&store, |store| {
            store.commit(30).unwrap();
        }),
    ];
    store.check_power_loss();
    for writer in writers {
        writer.join().unwrap();
    }
    store.check_power_loss();
    assert_eq!(replay(&store.vfs.after_process_death()), 3);
}

/// Segments fill and are replaced, and a spare is made ready, while writers append and sync.
pub(crate) fn rolling_segments() {
    let store = Store::new(1);
    let writers = [
        spawn(&store, |store| {
            store.commit(1500).unwrap();
            store.commit_and_sync(1500).unwrap();
        }),
        spawn(&store, |store| store.commit_and_sync(1500).unwrap()),
        spawn(&store, |store| store.journal.maintain().unwrap()),
    ];
    store.check_power_loss();
    for writer in writers {
        writer.join().unwrap();
    }
    store.check_power_loss();
    assert_eq!(replay(&store.vfs.after_process_death()), 3);
}

/// After a sync has failed nobody is told that anything is durable, nor may append.
pub(crate) fn a_failed_sync() {
    let store = Store::new(2);
    store.commit_and_sync(10).unwrap();
    let writers = [
        spawn(&store, |store| drop(store.commit_and_sync(10))),
        spawn(&store, |store| drop(store.commit_and_sync(10))),
    ];
    store.vfs.faults.fail_sync.store(true, std::sync::atomic::Ordering::SeqCst);
    let failed = store.commit_and_sync(10).is_err();
    for writer in writers {
        writer.join().unwrap();
    }
    store.check_power_loss();
    if failed {
        assert!(store.journal.poison.is_set());
        assert!(store.commit(10).is_err(), "a commit after a failed sync");
    }
}

/// Closing while writers are at work: each commit is either refused or in the journal, durably.
pub(crate) fn closing() {
    let store = Store::new(2);
    let writers: Vec<_> = (0..2)
        .map(|_| {
            let store = Arc::clone(&store);
            thread::spawn(move || u64::from(store.commit(10).is_ok()))
        })
        .collect();
    let power_loss = spawn(&store, |store| {
        let mut random = Random::new(thread_rng().r#gen());
        // Damage is told from what the power took: a marker of a clean close must not outlive records.
        replay(&store.vfs.after_random_power_loss(&mut random));
    });
    store.journal.close().unwrap();
    power_loss.join().unwrap();
    let crashed = store.vfs.after_power_loss(|_: &Path, _, _| 0);
    let done: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert_eq!(replay(&crashed), done, "accepted by a journal that was closed");
}
