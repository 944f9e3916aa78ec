//! Plans that somebody else's job has overtaken, and that wrong bounds would ask for again and again.

use super::*;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::key_hash::hash_key;
use crate::cache::ReadContext;
use crate::jobs::{Job, Step};
use crate::tree::test_support::{Reader, context};
use crate::tree::versioned::{Choose, NewFiles, NewTables, TreeNode, edit, live_keys};
use crate::tree::{RangeAt, Tree, TreeObserver};

/// One operand, as a memtable holds it.
struct Operand {
    seqno: u64,
    value: &'static [u8],
    passed: usize,
}

impl PackSource for Operand {
    fn next(&mut self) -> Result<()> {
        self.passed += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (seqno, value) = (Seqno(self.seqno), self.value);
        (self.passed == 1).then_some(EntryRef { key: b"key", seqno, kind: EntryKind::Merge, value })
    }

    fn entries(&self) -> usize {
        1
    }
}

/// Holds a snapshot of the first commit, so that what came later is not folded into it.
fn reader() -> Arc<dyn TreeObserver> {
    Arc::new(Reader(vec![Seqno(1), Seqno(10)]))
}

fn tree(observer: &Arc<dyn TreeObserver>) -> Arc<TrunkTree> {
    TrunkTree::open(context("stb", observer), &[], Seqno(0)).unwrap()
}

fn incorporate(tree: &Arc<TrunkTree>, seqno: u64, value: &'static [u8]) {
    let packed = Arc::clone(tree).pack(&mut Operand { seqno, value, passed: 0 }).unwrap();
    packed.incorporate(Seqno(seqno)).unwrap();
}

/// What the key is made of, oldest first.
fn operands(tree: &TrunkTree) -> Vec<Vec<u8>> {
    let mut operands = Vec::new();
    let hash = hash_key(b"key");
    tree.version()
        .get(b"key", hash, Seqno(u64::MAX >> 8), &ReadContext::blocking(), &mut |entry| {
            operands.push(entry.value.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    operands.reverse();
    operands
}

/// Found by `spinney-sim threads` (merge operands that a snapshot suddenly saw twice). One thread had
/// a compaction of a leaf's first two bundles under way; a third bundle came; another thread loaded
/// the trunk and planned to compact all three; the first thread's job swapped its output in and ended;
/// only then did the other look for jobs that were under way, and found none. Its inputs were no
/// longer what the leaf held, but one of them still was, so its output took that one's place beside
/// the first job's output: both held the first two bundles. The next compaction folded the operands of
/// both, and a tombstone that the second job had dropped would no longer have hidden what the first
/// had kept.
#[test]
fn a_plan_that_another_job_has_overtaken_is_not_carried_out() {
    let reader = reader();
    let tree = tree(&reader);
    incorporate(&tree, 1, b"a");
    incorporate(&tree, 2, b"b");
    let first = Trunk::next_uncompacted(&tree, 0, (b"", None), (b"", None)).unwrap().unwrap();
    let mut first = tree.claim(first, tree.jobs_ended()).unwrap();
    incorporate(&tree, 3, b"c");
    let ended = tree.jobs_ended();
    let overtaken = Trunk::next_uncompacted(&tree, 0, (b"", None), (b"", None)).unwrap().unwrap();
    assert_eq!(overtaken.bundles.len(), 3);
    while first.step().unwrap() == Step::Again {}
    drop(first);
    if let Some(mut second) = tree.claim(overtaken, ended) {
        while second.step().unwrap() == Step::Again {}
    }
    Arc::clone(&tree).compact(b"", None, &|| Ok(())).unwrap();
    assert_eq!(operands(&tree).concat(), b"abc", "{:?}", operands(&tree));
}

/// A change is made before the change lock is taken. If another has come meanwhile, it is made anew: what was made of the
/// older version would undo the other.
#[test]
fn a_change_that_another_has_overtaken_is_made_anew() {
    let reader = reader();
    let tree = tree(&reader);
    incorporate(&tree, 1, b"a");
    let calls = std::cell::Cell::new(0);
    let change = |root: &mut Arc<Node>, _: &change::Rules| {
        calls.set(calls.get() + 1);
        if calls.get() == 1 {
            incorporate(&tree, 2, b"b");
        }
        edit(root);
        Ok(true)
    };
    tree.change(NewFiles::None, change, Seqno(0), NewTables::None).unwrap();
    assert_eq!(calls.get(), 2);
    assert_eq!(operands(&tree).concat(), b"ab");
    assert_eq!((tree.state().tables, tree.version().flushed()), (2, Seqno(2)));
}

/// Whoever is overtaken again and again keeps the others out at last.
#[test]
fn a_change_that_is_always_overtaken_comes_to_an_end() {
    let reader = reader();
    let tree = tree(&reader);
    let calls = std::cell::Cell::new(0);
    let change = |root: &mut Arc<Node>, _: &change::Rules| {
        calls.set(calls.get() + 1);
        if tree.changes.try_lock().is_some() {
            incorporate(&tree, calls.get(), b"a");
        }
        edit(root);
        Ok(true)
    };
    tree.change(NewFiles::None, change, Seqno(0), NewTables::None).unwrap();
    assert_eq!(operands(&tree).len() as u64 + 1, calls.get());
}

/// An estimate of what is live that was made anew was thrown away if another change came meanwhile. In a large tree one
/// always does: each commit walked the whole tree, and none of the estimates was used.
#[test]
fn a_gathered_estimate_has_what_came_meanwhile() {
    let reader = reader();
    let tree = tree(&reader);
    incorporate(&tree, 1, b"a");
    let before = tree.state();
    let (root, anew) = tree.begin_gathering().unwrap();
    let gathered = live_keys(&root, anew);
    incorporate(&tree, 2, b"bc");
    assert!(tree.begin_gathering().is_none(), "one at a time");
    let followed = tree.state();
    tree.end_gathering(gathered);
    let gathered = tree.state();
    assert!(gathered.live_bytes > before.live_bytes);
    assert_eq!(
        (gathered.live_keys, gathered.live_bytes),
        (followed.live_keys, followed.live_bytes)
    );
    assert!(tree.begin_gathering().is_some(), "it has ended");
}

/// It shows the same tree again: who makes a change of that is not overtaken.
#[test]
fn a_gathered_estimate_overtakes_no_change() {
    let reader = reader();
    let tree = tree(&reader);
    incorporate(&tree, 1, b"a");
    let calls = std::cell::Cell::new(0);
    let change = |root: &mut Arc<Node>, _: &change::Rules| {
        calls.set(calls.get() + 1);
        let (whole, anew) = tree.begin_gathering().unwrap();
        tree.end_gathering(live_keys(&whole, anew));
        edit(root);
        Ok(true)
    };
    tree.change(NewFiles::None, change, Seqno(0), NewTables::None).unwrap();
    assert_eq!(calls.get(), 1);
}

/// A trunk whose pivots and leaves disagreed by one key: the way to a leaf's upper bound led to the same
/// leaf. Compacting the range looped endlessly; an iterator that came to the bound did as well.
#[test]
fn wrong_bounds_are_an_error_and_no_endless_loop() {
    let reader = reader();
    let tree = tree(&reader);
    let version = tree.version.load_full();
    let leaf = |lower: &[u8], upper: Option<&[u8]>| {
        let mut leaf = Node::empty_root();
        leaf.lower = Arc::from(lower);
        leaf.upper = upper.map(Arc::from);
        leaf.pivots[0].lower = Arc::from(lower);
        leaf
    };
    let mut root = leaf(b"", None);
    root.height = 1;
    let pivot =
        |lower: &[u8], child: Node| node::Pivot::new(Arc::from(lower), Some(Arc::new(child)));
    root.pivots = vec![pivot(b"", leaf(b"", Some(b"m"))), pivot(b"m\0", leaf(b"m\0", None))];
    let wrong = tree.version_of(Arc::new(root), Seqno(0));
    tree.version.store(Arc::new(wrong));
    assert!(
        Trunk::next_uncompacted(&tree, 0, (b"", None), (b"", None))
            .is_err_and(|error| error.is_corruption())
    );
    let wrong = tree.version();
    assert!(wrong.runs_at(RangeAt::Key(b"a"), Seqno::MAX).advances(RangeAt::Key(b"a")));
    assert!(!wrong.runs_at(RangeAt::Key(b"m"), Seqno::MAX).advances(RangeAt::Key(b"m")));
    let right: Arc<dyn TreeVersion> = version;
    assert!(right.runs_at(RangeAt::Key(b"m"), Seqno::MAX).advances(RangeAt::Key(b"m")));
    assert!(right.runs_at(RangeAt::Before(None), Seqno::MAX).advances(RangeAt::Before(None)));
}
