//! Compactions that a caller asks for, and that background threads take a part of.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::kinds::{self, TreeKind};
use super::test_support::{Reader, context, key_of, with_first_option};
use super::{Helpers, PackSource, RangeAt, Tree, TreeObserver, TreeOptions};
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;
use crate::base::random::SplitMix;
use crate::jobs::{Job, Step};
use crate::table::TableCursor;

/// A memtable of puts, or deletes.
struct Entries {
    seqno: u64,
    kind: EntryKind,
    keys: Vec<Vec<u8>>,
    passed: usize,
}

impl PackSource for Entries {
    fn next(&mut self) -> Result<()> {
        self.passed += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let key = self.keys.get(self.passed.checked_sub(1)?)?;
        let value = if self.kind == EntryKind::Delete { &[][..] } else { &key[..] };
        Some(EntryRef { key, seqno: Seqno(self.seqno), kind: self.kind, value })
    }

    fn entries(&self) -> usize {
        self.keys.len()
    }
}

/// A tree of a few dozen nodes in which nothing is due.
fn tree(kind: TreeKind, observer: &Arc<dyn TreeObserver>) -> Arc<dyn Tree> {
    let context = context(kind.name(), observer);
    let own = with_first_option(kind, 4).own;
    context.options.store(Arc::new(TreeOptions {
        own,
        space_amplification_max_percent: 1_000_000,
        ..(*context.options()).clone()
    }));
    let tree = kinds::open(kind, context, &[], Seqno(0)).unwrap();
    let mut random = SplitMix::new(1);
    for seqno in 1..=120 {
        let mut keys: Vec<_> = (0..24).map(|_| key_of(random.below(2000) << 20)).collect();
        keys.sort();
        keys.dedup();
        let kind = if seqno % 5 == 0 { EntryKind::Delete } else { EntryKind::Put };
        let mut entries = Entries { seqno, kind, keys, passed: 0 };
        let packed = Arc::clone(&tree).pack(&mut entries).unwrap();
        packed.incorporate(Seqno(seqno)).unwrap();
        while let Some(mut job) = Arc::clone(&tree).next_job() {
            while job.step().unwrap() == Step::Again {}
        }
    }
    tree
}

/// Key, number and kind of all entries that the tree's runs hold, range by range.
fn entries(tree: &Arc<dyn Tree>) -> Vec<(Vec<u8>, u64, EntryKind)> {
    let version = tree.version();
    let mut entries = Vec::new();
    let mut from: Arc<[u8]> = Arc::from(&[][..]);
    loop {
        let region = version.runs_at(RangeAt::Key(&from), Seqno::MAX);
        for run in &region.runs {
            let mut cursor = run.cursor::<TableCursor>();
            cursor.seek(&from).unwrap();
            while let Some(entry) = cursor.entry() {
                if region.upper.as_deref().is_some_and(|upper| entry.key >= upper) {
                    break;
                }
                entries.push((entry.key.to_vec(), entry.seqno.0, entry.kind));
                cursor.next().unwrap();
            }
        }
        match region.upper {
            Some(upper) => from = upper,
            None => break,
        }
    }
    entries.sort_by_key(|(key, seqno, _)| (key.clone(), *seqno));
    entries
}

/// Helpers that are as many jobs, each of which does a step between two of the caller's. Each job is dropped after at
/// most `steps_max` steps.
struct Jobs {
    tree: Arc<dyn Tree>,
    at_once_max: usize,
    steps_max: u64,
    jobs: RefCell<Vec<(Box<dyn Job>, u64)>>,
    done: Cell<u64>,
    most_at_once: Cell<usize>,
}

impl Jobs {
    fn new(tree: &Arc<dyn Tree>, at_once_max: usize, steps_max: u64) -> Jobs {
        Jobs {
            tree: Arc::clone(tree),
            at_once_max,
            steps_max,
            jobs: RefCell::default(),
            done: Cell::new(0),
            most_at_once: Cell::new(0),
        }
    }
}

impl Helpers for Jobs {
    fn invite(&self) {}

    fn interleave(&self) {
        let mut jobs = self.jobs.borrow_mut();
        while jobs.len() < self.at_once_max
            && let Some(job) = Arc::clone(&self.tree).next_job()
        {
            jobs.push((job, 0));
        }
        self.most_at_once.set(self.most_at_once.get().max(jobs.len()));
        jobs.retain_mut(|(job, steps)| {
            *steps += 1;
            let step = job.step().unwrap();
            self.done.set(self.done.get() + u64::from(step == Step::Done));
            step == Step::Again && *steps < self.steps_max
        });
    }

    fn wait(&self) -> Result<()> {
        self.interleave();
        Ok(())
    }
}

/// `Keyspace::compact` merged one node after the other on the thread of its caller, and the background threads looked on.
#[test]
fn several_nodes_of_a_requested_compaction_are_merged_at_once() {
    for kind in TreeKind::ALL {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
        let alone = tree(kind, &observer);
        Arc::clone(&alone).compact(&[], None, &|| Ok(())).unwrap();
        let shared = tree(kind, &observer);
        let helpers = Jobs::new(&shared, 3, u64::MAX);
        Arc::clone(&shared).compact(&[], None, &helpers).unwrap();
        // Others may go on: a join of nodes that have become small. One of the request would be postponed now.
        for (mut job, _) in helpers.jobs.take() {
            let step = std::iter::repeat_with(|| job.step().unwrap()).find(|it| *it != Step::Again);
            assert_eq!(step, Some(Step::Done), "{kind}: a part is left when the call returns");
        }
        let (done, at_once) = (helpers.done.get(), helpers.most_at_once.get());
        // One level is cut into as few parts as are bounded.
        let done_min = if kind.options().any(|(name, _)| name == "fanout_max") { 6 } else { 3 };
        assert!(done >= done_min && at_once == 3, "{kind}: {done} by helpers, {at_once} at once");
        assert!(entries(&shared) == entries(&alone), "{kind}: other entries are left");
        assert!(entries(&shared).iter().all(|(.., kind)| *kind == EntryKind::Put));
    }
}

/// A background thread that stops in the middle of its part gives it back: the caller does it.
#[test]
fn what_helpers_give_up_is_done_by_the_caller() {
    for kind in TreeKind::ALL {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
        let alone = tree(kind, &observer);
        Arc::clone(&alone).compact(&[], None, &|| Ok(())).unwrap();
        let shared = tree(kind, &observer);
        let helpers = Jobs::new(&shared, 2, 1);
        Arc::clone(&shared).compact(&[], None, &helpers).unwrap();
        assert!(entries(&shared) == entries(&alone), "{kind}: other entries are left");
    }
}

/// Helpers whose jobs never end, and a caller that has to give up.
struct Stuck {
    tree: Arc<dyn Tree>,
    jobs: RefCell<Vec<Box<dyn Job>>>,
}

impl Helpers for Stuck {
    fn invite(&self) {
        let jobs = std::iter::from_fn(|| Arc::clone(&self.tree).next_job());
        self.jobs.borrow_mut().extend(jobs);
    }

    fn interleave(&self) {}

    fn wait(&self) -> Result<()> {
        Err(Error::invalid("closed"))
    }
}

/// The end of a wait ends the call, and what others began for it comes to nothing.
#[test]
fn a_caller_that_gives_up_leaves_nothing_to_its_helpers() {
    for kind in TreeKind::ALL {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(u64::MAX >> 8)]));
        let tree = tree(kind, &observer);
        let helpers = Stuck { tree: Arc::clone(&tree), jobs: RefCell::default() };
        let given_up = Arc::clone(&tree).compact(&[], None, &helpers);
        assert!(given_up.is_err_and(|error| error.to_string().contains("closed")), "{kind}");
        // Among them are jobs that are due whether there is a request or not.
        let mut postponed = 0;
        for mut job in helpers.jobs.take() {
            while job.step().unwrap() == Step::Again {}
            postponed += usize::from(job.step().unwrap() == Step::Postponed);
        }
        assert!(postponed > 0, "{kind}: {postponed}");
        Arc::clone(&tree).compact(&[], None, &|| Ok(())).unwrap();
    }
}
