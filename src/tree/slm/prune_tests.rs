//! What is searched when snapshots go, and what is merged meanwhile.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::plan::Action;
use super::reclaim_tests::{Bed, Changing};
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::base::random::SplitMix;
use crate::base::sync::Mutex;
use crate::base::visits;
use crate::cache::ReadContext;
use crate::jobs::Step;
use crate::tree::TreeVersion;
use crate::tree::test_support::key_of;

const NEWEST: Seqno = Seqno(u64::MAX >> 8);

/// A tree whose snapshots come and go.
struct Snapshots {
    bed: Bed,
    observer: Arc<Changing>,
}

impl Snapshots {
    fn new() -> Snapshots {
        let observer = Arc::new(Changing(Mutex::new(vec![NEWEST])));
        Snapshots { bed: Bed::with(observer.clone()), observer }
    }

    fn hold(&self, held: &[u64]) {
        *self.observer.0.lock() = held.iter().copied().map(Seqno).chain([NEWEST]).collect();
    }

    /// Does all that is due.
    fn work(&self) {
        while let Some(mut job) = self.bed.job() {
            while job.step().unwrap() == Step::Again {}
        }
    }
}

/// When a snapshot had gone, all keys of the index were read and copied, however few of them it had needed: once for each
/// flush, while one scan came after the other.
#[test]
fn what_is_searched_when_a_snapshot_goes_follows_from_what_it_needed() {
    let visits = [6_000, 60_000].map(|keys| {
        let mut all = Snapshots::new();
        all.bed.receive(EntryKind::Put, 0..keys);
        let mut sum = 0;
        for round in 1..=5 {
            // Another snapshot needs as much the whole time.
            all.hold(&[1, round]);
            all.bed.receive(EntryKind::Put, (0..20).map(|at| at * keys / 20 + round));
            assert_eq!(all.bed.places().superseded(), 20 * round);
            all.hold(&[1]);
            if round > 1 {
                let mut job = all.bed.job().expect("a search");
                let (visits, step) = visits::of(|| job.step().unwrap());
                sum += visits;
                assert_eq!(step, Step::Done, "round {round} of {keys} keys");
            }
            assert!(all.bed.due().is_none());
        }
        all.hold(&[]);
        all.work();
        assert_eq!(all.bed.places().superseded(), 0);
        sum
    });
    assert!(visits[1] <= visits[0] + 20, "{visits:?}");
}

/// A search had all keys, and no two jobs have a key in common. It waited until no merge ran, which need not happen with two
/// threads, and no merge began beside it.
#[test]
fn a_search_and_a_merge_of_other_keys_do_not_wait_for_each_other() {
    let mut all = Snapshots::new();
    all.bed.receive_range(6, 0, 10, 5);
    all.bed.receive(EntryKind::Put, 20_000..20_100);
    all.bed.receive(EntryKind::Put, 30_000..30_100);
    all.hold(&[8]);
    all.bed.receive(EntryKind::Put, 20_000..20_100);
    all.bed.receive(EntryKind::Put, 30_000..30_100);
    all.hold(&[]);
    let action = || all.bed.due().map(|plan| plan.action);
    let begin = || all.bed.tree.claim(all.bed.due().unwrap(), all.bed.tree.jobs_ended()).unwrap();
    assert_eq!(action(), Some(Action::Prune));
    let search = begin();
    assert_eq!(action(), Some(Action::Merge));
    let merge = begin();
    assert_eq!(action(), None);
    drop(search);
    assert_eq!(action(), Some(Action::Prune));
    drop(merge);
    all.work();
    assert_eq!(all.bed.places().superseded(), 0);
}

/// Where the index has what a snapshot needs is not known after it has been built anew: all keys are searched once.
#[test]
fn after_a_rebuild_what_a_snapshot_needed_goes_with_it() {
    let mut all = Snapshots::new();
    all.bed.receive(EntryKind::Put, 0..1000);
    all.hold(&[1]);
    all.bed.receive(EntryKind::Put, 500..520);
    all.bed.places().distrust();
    all.work();
    assert!(!all.bed.places().is_partial());
    assert_eq!(all.bed.places().superseded(), 20);
    all.hold(&[]);
    all.work();
    assert_eq!(all.bed.places().superseded(), 0);
}

/// Snapshots come and go while memtables come, which have several versions of some keys. Each sees what it should, and in the
/// end nothing is kept for any.
///
/// Now and then the index is built anew. A merge that had only copied tombstones of a key was taken for one that had taken
/// in all older versions: the rebuilt index lacked one that a snapshot needed. So did a memtable with a put of the number at
/// which a merge had noted that an older version was deleted.
#[test]
fn whatever_snapshots_come_and_go_nothing_is_lost_and_nothing_is_left() {
    for seed in 0..4 {
        let (mut all, mut random) = (Snapshots::new(), SplitMix::new(seed));
        let mut written: BTreeMap<u64, Vec<(u64, bool)>> = BTreeMap::new();
        let mut held: Vec<u64> = Vec::new();
        let mut seqno = 0;
        for round in 1..=100 {
            let deletes = if random.next() % 4 == 0 { 7 } else { 1 };
            let keys: Vec<u64> = (0..1000).filter(|_| random.next() % 64 == 0).collect();
            let mut entries = Vec::new();
            for _ in 0..1 + random.next() % 3 {
                seqno += 1;
                for key in &keys {
                    let (is_left_out, is_put) =
                        (random.next() % 2 == 0, random.next() % 8 >= deletes);
                    if is_left_out {
                        continue;
                    }
                    let kind = if is_put { EntryKind::Put } else { EntryKind::Delete };
                    entries.push((*key, seqno, kind));
                    written.entry(*key).or_default().push((seqno, is_put));
                }
                if random.next() % 4 == 0 {
                    held.push(seqno);
                }
            }
            if random.next() % 3 == 0 && !held.is_empty() {
                held.remove(random.next() as usize % held.len());
            }
            all.hold(&held);
            entries.sort_by_key(|(key, seqno, _)| (*key, Reverse(*seqno)));
            if !entries.is_empty() {
                all.bed.receive_table(entries);
            }
            if round % 33 == 0 {
                all.bed.places().distrust();
            }
            if let Some(mut job) = all.bed.job() {
                // Some end in the middle.
                while job.step().unwrap() == Step::Again && random.next() % 4 > 0 {}
            }
            let version = all.bed.version();
            for (key, written) in &written {
                for snapshot in held.iter().copied().chain([seqno]) {
                    let mut found = None;
                    let mut take = |entry: crate::base::entry::EntryRef<'_>| {
                        found = (entry.kind == EntryKind::Put).then_some(entry.seqno.0);
                        ControlFlow::Break(())
                    };
                    let (key, context) = (key_of(*key), ReadContext::blocking());
                    version.get(&key, 0, Seqno(snapshot), &context, &mut take).unwrap();
                    let seen = written.iter().rev().find(|(seqno, _)| *seqno <= snapshot);
                    let seen = seen.and_then(|(seqno, is_put)| is_put.then_some(*seqno));
                    assert_eq!(found, seen, "{key:?} at {snapshot}, seed {seed}");
                }
            }
        }
        all.hold(&[]);
        all.work();
        assert_eq!(all.bed.places().superseded(), 0, "seed {seed}");
    }
}

/// A search had been listed for, and not begun, when a snapshot came and a memtable superseded what that needed. The search
/// took the mark, and noted it for nobody: what the snapshot had needed stayed when it had gone.
#[test]
fn what_a_younger_snapshot_needs_stays_noted_for_it() {
    let mut all = Snapshots::new();
    let list = |all: &Snapshots, list: &[u64]| {
        *all.observer.0.lock() = list.iter().copied().map(Seqno).collect();
    };
    list(&all, &[1]);
    all.bed.receive(EntryKind::Put, 0..100);
    list(&all, &[1, 2]);
    all.bed.receive(EntryKind::Put, 20..30);
    list(&all, &[2]);
    let mut search = all.bed.job().expect("a search");
    list(&all, &[3]);
    all.bed.receive(EntryKind::Put, 20..30);
    list(&all, &[3, 4]);
    all.bed.receive(EntryKind::Put, 20..30);
    while search.step().unwrap() == Step::Again {}
    drop(search);
    assert_eq!(all.bed.places().superseded(), 10);
    list(&all, &[4]);
    all.work();
    assert_eq!(all.bed.places().superseded(), 0);
}
