//! Which leaf is merged for space while others are being merged.

use super::*;
use crate::base::entry::EntryKind;
use crate::base::error::Error;
use crate::base::ids::Seqno;
use crate::jobs::Step;
use crate::tree::test_support::{Reader, context, table_of};
use crate::tree::trunk::test_support::{bundle, leaf, root};
use crate::tree::{Tree, TreeObserver};
use crate::vfs::{Access, AlignedBuf};

/// Space was short, and the leaf in which most was to be had back was being merged: nothing else was done for
/// space until that had ended, on one of however many threads.
#[test]
fn while_the_best_leaf_is_merged_the_next_best_is() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = TrunkTree::open(context("stb", &observer), &[], Seqno(0)).unwrap();
    // Leaves of a hundred keys, whose tables have others that are live nowhere: 10, 80, 40, and 30 of all others.
    let files = &tree.context.files;
    let mut leaves = vec![leaf(1, (0, Some(1000)), &[])];
    for (at, dead) in [10, 80, 40].into_iter().chain([30; 33]).enumerate() {
        let (at, dead) = (at as u64 + 1, dead);
        let from = at * 1000;
        let table = table_of(files, EntryKind::Put, 1, from - dead..from + 100);
        let bundle = bundle(files, at, &table, from - dead..from + 100);
        leaves.push(leaf(at + 1, (from, (at < 36).then_some(from + 1000)), &[&bundle]));
    }
    let root = root(9, &leaves, None);
    let version = tree.version_of(root, Seqno(2));
    assert!(version.space_excess() > 0.0);
    tree.version.store(Arc::new(version));
    let version = tree.version.load_full();
    let mut jobs = Vec::new();
    let mut chosen = Vec::new();
    while let Some(choice) = tree.choose_reclaiming(&version, Intent::Start).unwrap() {
        let Choice::Plan(plan) = choice else { panic!("nothing is on its way") };
        chosen.push(leaves.iter().position(|leaf| leaf.lower == plan.place.lower).unwrap());
        jobs.push(tree.claim(plan, tree.jobs_ended()).expect("nobody works there"));
        assert!(!tree.nothing_to_reclaim.load(Ordering::Relaxed));
    }
    // Not all at once: outputs take space before they give any back.
    assert!(chosen.starts_with(&[2, 3]) && chosen.len() < 6, "{chosen:?}");
    assert!(!tree.nothing_to_reclaim.load(Ordering::Relaxed));
}

/// A tree of two leaves of a thousand keys each, and deletes of the first keys in its root.
fn two_leaves_and_deletes(keys: u64) -> (Arc<TrunkTree>, [Arc<Node>; 2], Arc<Version>) {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = TrunkTree::open(context("stb", &observer), &[], Seqno(0)).unwrap();
    let files = &tree.context.files;
    let part = |id: u64, kind, keys: std::ops::Range<u64>| {
        bundle(files, id, &table_of(files, kind, id, keys.clone()), keys)
    };
    let (low, high) = (part(1, EntryKind::Put, 0..1000), part(2, EntryKind::Put, 1000..2000));
    let leaves = [leaf(1, (0, Some(1000)), &[&low]), leaf(2, (1000, None), &[&high])];
    let deletes = part(3, EntryKind::Delete, 0..keys);
    let root = root(9, &leaves, Some(&deletes));
    let version = Arc::new(tree.version_of(root, Seqno(4)));
    tree.version.store(Arc::clone(&version));
    (tree, leaves, version)
}

/// On a full disk merges of leaves alone were refused, and the leaves left alone for it, again and again. The deletes
/// of all that they held were on their way, and nobody brought them: the disk stayed full.
#[test]
fn what_is_on_its_way_is_brought_to_a_leaf_that_there_was_no_room_for() {
    let (tree, leaves, version) = two_leaves_and_deletes(2000);
    let chosen = || tree.choose_reclaiming(&version, Intent::Start).unwrap();
    let full = Error::Full { path: "t".into(), needed: 1 };
    leaves.iter().for_each(|leaf| tree.note_damage(&full, &Place::of(leaf)));
    assert!(matches!(chosen(), Some(Choice::Path(_))));
    let damage = Error::corruption("t".as_ref(), 0, "page", "a sum", "another");
    leaves.iter().for_each(|leaf| tree.note_damage(&damage, &Place::of(leaf)));
    assert!(chosen().is_none());
}

/// A leaf whose path was not read was chosen by path again and again, and meanwhile nothing else was compacted.
#[test]
fn a_leaf_whose_path_is_not_read_is_left_alone_for_a_while() {
    let (tree, leaves, version) = two_leaves_and_deletes(1900);
    let chosen = || match tree.choose_reclaiming(&version, Intent::Start).unwrap() {
        Some(Choice::Path(place)) => Some(place.lower),
        Some(Choice::Plan(plan)) => Some(plan.place.lower),
        None => None,
    };
    let failure = Error::io("read", "t".as_ref(), None, std::io::ErrorKind::Other.into());
    let first = chosen().expect("space is short");
    let place = |at: usize| Place::of(&leaves[at]);
    let failed = leaves.iter().position(|leaf| leaf.lower == first).unwrap();
    tree.note_damage(&failure, &place(failed));
    // The other one.
    assert_eq!(chosen(), Some(place(1 - failed).lower));
    assert!(tree.backlog(0) > 0.5, "it has to keep up");
    tree.note_damage(&failure, &place(1 - failed));
    assert!(chosen().is_none());
    assert!(tree.backlog(0) <= 0.9, "writers do not wait for what is not read");
}

/// A branch on the way to a leaf was damaged, so the flush of the path failed. Nothing was quarantined: the same path was
/// chosen at once again, and no other leaf was ever merged.
#[test]
fn a_leaf_whose_path_is_damaged_is_quarantined() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = TrunkTree::open(context("stb", &observer), &[], Seqno(0)).unwrap();
    let files = &tree.context.files;
    let part = |id: u64, kind, keys: std::ops::Range<u64>| {
        bundle(files, id, &table_of(files, kind, id, keys.clone()), keys)
    };
    let (low, high) = (part(1, EntryKind::Put, 0..1000), part(2, EntryKind::Put, 1000..2000));
    let leaves = [leaf(1, (0, Some(1000)), &[&low]), leaf(2, (1000, None), &[&high])];
    let above = part(3, EntryKind::Put, 0..2000);
    tree.show(root(9, &leaves, Some(&above)), Seqno(4));
    let damaged = above.branches[0].pages();
    let file = files.vfs.open(&damaged.path(), Access::Direct, true).unwrap();
    file.write_at(0, &AlignedBuf::new(file.len().unwrap() as usize)).unwrap();
    damaged.forget_pages();
    let flush = |leaf: &Node| Trunk::plan_of(&tree, Choice::Path(Place::of(leaf)));
    for leaf in &leaves {
        assert!(Trunk::is_free(&tree, leaf, true));
        let error = flush(leaf).err().expect("a damaged branch on the path");
        assert!(error.is_corruption() && !Trunk::is_free(&tree, leaf, true), "{error}");
        assert!(tree.tell_damage(&error));
    }
}

/// Random scans brought all leaves to their limits at about the same time, and every thread merged one: for seconds the
/// scans got a fifth of the disk, and single ones waited for a tenth of a second.
#[test]
fn one_leaf_at_a_time_is_merged_for_reads() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = TrunkTree::open(context("stb", &observer), &[], Seqno(0)).unwrap();
    let files = &tree.context.files;
    let part = |id: u64, keys: std::ops::Range<u64>| {
        bundle(files, id, &table_of(files, EntryKind::Put, id, keys.clone()), keys)
    };
    let parts = [part(1, 0..500), part(2, 500..1000), part(3, 1000..1500), part(4, 1500..2000)];
    let leaves = [
        leaf(1, (0, Some(1000)), &[&parts[0], &parts[1]]),
        leaf(2, (1000, None), &[&parts[2], &parts[3]]),
    ];
    tree.show(root(9, &leaves, None), Seqno(5));
    assert!(tree.begin_for_reads().is_none(), "nobody has read");
    let version = tree.version.load_full();
    for (leaf, reads) in version.root.children().zip([100_000, 200_000]) {
        leaf.wasted_reads.store(reads, Ordering::Relaxed);
        version.counters.count_wasted_reads(reads);
    }
    let mut first = tree.begin_for_reads().expect("a leaf to merge");
    assert_eq!(tree.version.load().root.children().map(wasted).collect::<Vec<_>>(), [100_000, 0]);
    assert!(tree.begin_for_reads().is_none(), "one is being merged");
    while first.step().unwrap() == Step::Again {}
    assert!(tree.begin_for_reads().is_none(), "the job has not been dropped");
    drop(first);
    let second = tree.begin_for_reads().expect("the other leaf");
    assert_eq!(tree.version.load().root.children().map(wasted).collect::<Vec<_>>(), [0, 0]);
    drop(second);
    assert!(tree.begin_for_reads().is_none(), "what was given up is not begun again at once");
    // A search that finds nothing, or that fails, leaves the turn to the next.
    leaves[0].wasted_reads.store(100_000, Ordering::Relaxed);
    version.counters.count_wasted_reads(100_000);
    assert!(tree.begin_for_reads().is_some());
}

fn wasted(leaf: &Arc<Node>) -> u64 {
    leaf.wasted_reads.load(Ordering::Relaxed)
}
