//! Joins beside compactions that are under way, and beside damage. A join was part of the change that installs a
//! compaction; now it is a job, and no other one may be running where the two nodes are.

use super::branch_index::BranchIndex;
use super::*;
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::ids::Seqno;
use crate::base::key_hash::hash_key;
use crate::cache::ReadContext;
use crate::jobs::{Job, Step};
use crate::tree::options::KeyspaceOptions;
use crate::tree::test_support::{Reader, context, key_of, table_of};
use crate::tree::trunk::node::Pivot;
use crate::tree::trunk::plan::{Trigger, plan};
use crate::tree::trunk::test_support::{bundle, leaf};
use crate::tree::versioned::{Choose, TreeNode};
use crate::tree::{Tree, TreeObserver, TreeOptions};
use crate::vfs::{Access, AlignedBuf};

fn open(observer: &Arc<dyn TreeObserver>, fanout: u32) -> Arc<TrunkTree> {
    let context = context("stb", observer);
    let own = KeyspaceOptions::stb().fanout_max(fanout).own;
    context.options.store(Arc::new(TreeOptions { own, ..(*context.options()).clone() }));
    TrunkTree::open(context, &[], Seqno(0)).unwrap()
}

/// A node above nodes, with bundles that none of these has been handed yet.
fn above(id: u64, children: &[Arc<Node>], bundles: &[Arc<Bundle>]) -> Arc<Node> {
    let pivot = |child: &Arc<Node>| Pivot::new(Arc::clone(&child.lower), Some(Arc::clone(child)));
    let mut node = Node::empty_root();
    node.id = crate::base::ids::NodeId(id);
    node.height = children[0].height + 1;
    node.lower = Arc::clone(&children[0].lower);
    node.upper = children.last().unwrap().upper.clone();
    node.pivots = children.iter().map(pivot).collect();
    node.bundles = bundles.to_vec();
    node.measure().unwrap();
    Arc::new(node)
}

/// Joins what can be joined now. Returns how often.
fn join_all(tree: &Arc<TrunkTree>) -> u32 {
    let mut joins = 0;
    loop {
        let ended = tree.jobs_ended();
        let Some(plan) = tree.free_join(&tree.version.load_full()) else { return joins };
        let mut job = tree.claim(plan, ended).unwrap();
        assert_eq!(job.step().unwrap(), Step::Done);
        joins += 1;
    }
}

fn keys_of(tree: &TrunkTree, keys: std::ops::Range<u64>) -> Vec<u64> {
    let is_there = |number: &u64| {
        let mut found = false;
        let key = key_of(*number);
        let context = ReadContext::blocking();
        tree.version()
            .get(&key, hash_key(&key), Seqno(u64::MAX >> 8), &context, &mut |entry| {
                found = entry.kind == EntryKind::Put;
                std::ops::ControlFlow::Break(())
            })
            .unwrap();
        found
    };
    keys.filter(is_there).collect()
}

/// Leaves of a hundred keys each.
fn leaves(first_id: u64, numbers: std::ops::Range<u64>, last: bool) -> Vec<Arc<Node>> {
    let end = numbers.end;
    let one = |at: u64| {
        let upper = (!last || at + 1 < end).then_some((at + 1) * 100);
        leaf(first_id + at, (at * 100, upper), &[])
    };
    numbers.map(one).collect()
}

/// Two neighbours above leaves have been handed the same bundles. A compaction of the left one's was under way when the
/// left one gave its bundles to its leaves and was joined to the right one. The output, which has keys of the left one
/// alone, then took the place of the right one's bundles.
#[test]
fn a_compaction_of_what_was_joined_away_leaves_the_neighbours_bundles_alone() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(100)]));
    let tree = open(&observer, 8);
    let files = &tree.context.files;
    // Keys 0..200 are the left node's, 200..600 the right one's, the others another one's, with something to flush.
    let shared: Vec<Arc<Bundle>> = (0..8)
        .map(|at| {
            let keys: Vec<u64> = (0..600).filter(|key| key % 8 == at).collect();
            let table = table_of(files, EntryKind::Put, at + 1, keys.iter().copied());
            bundle(files, at + 1, &table, keys)
        })
        .collect();
    let table = table_of(files, EntryKind::Put, 9, 600..1000);
    let other = bundle(files, 9, &table, 600..1000);
    tree.own.next_bundle.store(10, Ordering::Relaxed);
    let left = above(50, &leaves(1, 0..2, false), &shared);
    let right = above(51, &leaves(1, 2..6, false), &shared);
    let third = above(52, &leaves(1, 6..10, true), &[other]);
    let root = above(53, &[Arc::clone(&left), right, third], &[]);
    tree.show(root, Seqno(20));
    assert_eq!(keys_of(&tree, 0..1000).len(), 1000);

    let ended = tree.jobs_ended();
    let of_left = plan(&left, &tree.version.load().parameters, Trigger::Due)
        .unwrap()
        .expect("eight branches");
    let mut job = tree.claim(of_left, ended).unwrap();
    // Something else happens meanwhile.
    tree.flush_range((&key_of(600), None)).unwrap();
    assert_eq!(keys_of(&tree, 0..1000).len(), 1000);
    join_all(&tree);
    assert_eq!(keys_of(&tree, 0..1000).len(), 1000);
    while job.step().unwrap() == Step::Again {}
    drop(job);
    assert_eq!(keys_of(&tree, 0..1000).len(), 1000, "keys are lost");
    assert!(join_all(&tree) > 0);
    assert_eq!(keys_of(&tree, 0..1000).len(), 1000);
}

/// A leaf is compacted in a node that has nothing to do with a damaged one; the result could not be installed, because
/// small neighbours elsewhere were to be joined, and one of them has a damaged table.
#[test]
fn a_leaf_is_compacted_beside_damage_in_a_node_to_be_joined() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(100)]));
    let tree = open(&observer, 8);
    let files = &tree.context.files;
    let part = |id: u64, keys: std::ops::Range<u64>| {
        bundle(files, id, &table_of(files, EntryKind::Put, id, keys.clone()), keys)
    };
    let (damaged, sound) = (part(1, 0..2000), part(2, 2000..6000));
    let (old, new) = (part(3, 6000..6100), part(4, 6000..6100));
    tree.own.next_bundle.store(10, Ordering::Relaxed);
    let wide = |id: u64, from: u64, to: Option<u64>, bundles: &[&Arc<Bundle>]| {
        leaf(id, (from * 1000, to.map(|to| to * 1000)), bundles)
    };
    let left =
        above(50, &[wide(1, 0, Some(1), &[]), wide(2, 1, Some(2), &[])], &[Arc::clone(&damaged)]);
    let right = above(
        51,
        &[
            wide(3, 2, Some(3), &[]),
            wide(4, 3, Some(4), &[]),
            wide(5, 4, Some(5), &[]),
            wide(6, 5, Some(6), &[]),
        ],
        &[sound],
    );
    let third = above(
        52,
        &[
            wide(7, 6, Some(7), &[&old, &new]),
            wide(8, 7, Some(8), &[]),
            wide(9, 8, Some(9), &[]),
            wide(10, 9, None, &[]),
        ],
        &[],
    );
    let root = above(53, &[left, right, third], &[]);
    tree.show(root, Seqno(20));
    let pages = damaged.branches[0].pages();
    let file = files.vfs.open(&pages.path(), Access::Direct, true).unwrap();
    file.write_at(0, &AlignedBuf::new(file.len().unwrap() as usize)).unwrap();
    pages.forget_pages();
    let lower = key_of(6000);
    let ended = tree.jobs_ended();
    let plan = Trunk::next_uncompacted(&tree, 0, (&lower, None), (b"", None))
        .unwrap()
        .expect("two branches");
    assert_eq!(*plan.place.lower, *lower);
    let mut job = tree.claim(plan, ended).unwrap();
    let done = loop {
        match job.step() {
            Ok(Step::Again) => {}
            done => break done.map(|_| ()),
        }
    };
    assert!(done.is_ok(), "{}", done.unwrap_err());
    drop(job);
    // The join itself fails, which keeps nobody from the sound neighbour, and is not tried again at once.
    let ended = tree.jobs_ended();
    let join = tree.free_join(&tree.version.load_full()).expect("two small nodes");
    let mut job = tree.claim(join, ended).unwrap();
    assert_eq!(job.step().unwrap(), Step::Done);
    drop(job);
    assert!(!tree.jobs.lock().quarantine.overlaps(1, (b"", None), tree.context.clock.nanos()));
    assert!(join_all(&tree) > 0);
}

/// Entries of a memtable.
struct Entries {
    entries: Vec<(Vec<u8>, u64, EntryKind, Vec<u8>)>,
    at: usize,
}

impl PackSource for Entries {
    fn next(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn entry(&self) -> Option<EntryRef<'_>> {
        let (key, seqno, kind, value) = self.entries.get(self.at.checked_sub(1)?)?;
        Some(EntryRef { key, seqno: Seqno(*seqno), kind: *kind, value })
    }

    fn entries(&self) -> usize {
        self.entries.len()
    }
}

/// A leaf was split while a compaction of all of it was under way, its parts took in different memtables, and were joined
/// again: the inputs lay no longer side by side, and the output took the place of some of them alone.
#[test]
fn inputs_that_a_join_has_parted_are_replaced_all() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(1000)]));
    let tree = open(&observer, 8);
    let mut seqno = 0;
    let mut incorporate = |keys: &[u64], kind: EntryKind, len: usize| {
        seqno += 1;
        let letter = b'a' + (seqno % 26) as u8;
        let entries =
            keys.iter().map(|key| (key_of(*key), seqno, kind, vec![letter; len])).collect();
        let packed = Arc::clone(&tree).pack(&mut Entries { entries, at: 0 }).unwrap();
        packed.incorporate(Seqno(seqno)).unwrap();
    };
    let length = |key: u64| {
        let mut bytes = 0;
        let key = key_of(key);
        let context = ReadContext::blocking();
        tree.version()
            .get(&key, hash_key(&key), Seqno(u64::MAX >> 8), &context, &mut |entry| {
                bytes += entry.value.len();
                match entry.kind {
                    EntryKind::Merge => std::ops::ControlFlow::Continue(()),
                    _ => std::ops::ControlFlow::Break(()),
                }
            })
            .unwrap();
        bytes
    };
    let range = |from: u64, to: u64| (from..to).collect::<Vec<u64>>();
    incorporate(&range(0, 8), EntryKind::Merge, 30);
    incorporate(&range(0, 8), EntryKind::Merge, 30);
    incorporate(&range(100, 110), EntryKind::Merge, 40);
    incorporate(&range(100, 110), EntryKind::Merge, 30);
    let ended = tree.jobs_ended();
    let all = Trunk::next_uncompacted(&tree, 0, (b"", None), (b"", None)).unwrap().unwrap();
    assert_eq!(all.bundles.len(), 4);
    let mut job = tree.claim(all, ended).unwrap();
    let before: Vec<usize> = [0, 7, 100, 109].map(length).to_vec();
    // The leaf becomes too large.
    incorporate(&range(110, 113), EntryKind::Put, 100);
    incorporate(&range(113, 116), EntryKind::Put, 100);
    for at in 0..30 {
        incorporate(&range(1000 + 10 * at, 1010 + 10 * at), EntryKind::Put, 90);
    }
    incorporate(&[50], EntryKind::Put, 10);
    tree.flush_range((&key_of(0), Some(&key_of(51)))).unwrap();
    incorporate(&range(1000, 1010), EntryKind::Put, 90);
    tree.flush_range((&key_of(1000), Some(&key_of(1010)))).unwrap();
    // Another leaf's compaction ends meanwhile.
    let ended = tree.jobs_ended();
    let next = Trunk::next_uncompacted(&tree, 0, (&key_of(1000), Some(&key_of(1010))), (b"", None));
    let mut other = tree.claim(next.unwrap().unwrap(), ended).unwrap();
    while other.step().unwrap() == Step::Again {}
    drop(other);
    join_all(&tree);
    assert_eq!(before, [0, 7, 100, 109].map(length).to_vec());
    while job.step().unwrap() == Step::Again {}
    drop(job);
    assert_eq!(before, [0, 7, 100, 109].map(length).to_vec());
    assert!(join_all(&tree) > 0);
    assert_eq!(before, [0, 7, 100, 109].map(length).to_vec());
}

/// A bundle of two tables had been handed to two leaves that are no neighbours of one another. The left one was split
/// while a compaction of it was under way; its right part, into which no table of that bundle reaches, was joined to the
/// other leaf. The output then took the place of the bundle there, which has keys that the compaction never read.
#[test]
fn a_compaction_of_a_split_leaf_leaves_the_bundles_of_the_next_alone() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(1000)]));
    let tree = open(&observer, 8);
    let files = &tree.context.files;
    let part = |id: u64, keys: std::ops::Range<u64>| {
        bundle(files, id, &table_of(files, EntryKind::Put, id, keys.clone()), keys)
    };
    // One maplet over two tables: of keys 0..10, and of keys 50..52.
    let tables = [0..10u64, 50..52].map(|keys| table_of(files, EntryKind::Put, 1, keys));
    let mut maplet =
        crate::filter::MapletBuilder::new(crate::filter::FINGERPRINT_BITS_DEFAULT, 2).unwrap();
    for (ordinal, keys) in [0..10u64, 50..52].into_iter().enumerate() {
        let hashes = keys.map(|key| hash_key(&key_of(key))).collect();
        let bits = crate::filter::FINGERPRINT_BITS_DEFAULT;
        let fingerprints = crate::filter::SortedFingerprints::of_hashes(hashes, bits);
        maplet.add_branch(ordinal as u8, fingerprints).unwrap();
    }
    let index = Arc::new(BranchIndex::Maplet(maplet.write_file(files).unwrap()));
    let two = Arc::new(Bundle { id: BundleId(1), branches: tables.to_vec(), index, bloom: None });
    let low = part(2, 10..15);
    // What makes the left leaf too large.
    let more = part(4, 40..49);
    let (far, again) = (part(5, 100..113), part(6, 100..113));
    tree.own.next_bundle.store(10, Ordering::Relaxed);
    let leaves = [
        leaf(1, (0, Some(50)), &[&two, &low]),
        leaf(2, (50, Some(100)), &[&two]),
        leaf(3, (100, None), &[&far, &again]),
    ];
    let root = above(9, &leaves, &[more]);
    tree.show(root, Seqno(20));
    let all = keys_of(&tree, 0..200);
    let ended = tree.jobs_ended();
    let plan =
        Trunk::next_uncompacted(&tree, 0, (b"", Some(&key_of(50))), (b"", None)).unwrap().unwrap();
    let mut job = tree.claim(plan, ended).unwrap();
    tree.flush_range((b"", Some(&key_of(50)))).unwrap();
    let ended = tree.jobs_ended();
    let next =
        Trunk::next_uncompacted(&tree, 0, (&key_of(100), None), (b"", None)).unwrap().unwrap();
    let mut other = tree.claim(next, ended).unwrap();
    while other.step().unwrap() == Step::Again {}
    drop(other);
    join_all(&tree);
    assert_eq!(keys_of(&tree, 0..200), all);
    while job.step().unwrap() == Step::Again {}
    drop(job);
    assert_eq!(keys_of(&tree, 0..200), all);
    assert!(join_all(&tree) > 0);
    assert_eq!(keys_of(&tree, 0..200), all);
}

/// A node whose pivots have all flushed a bundle may still have it. It was taken for one that is live, and showed
/// again, over what was newer, in the node that it was joined to.
#[test]
fn what_a_node_has_flushed_is_not_live_in_the_joined_one() {
    for left_has_fewer in [true, false] {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(1000)]));
        let tree = open(&observer, 8);
        let files = &tree.context.files;
        let part = |id: u64, kind: EntryKind, keys: std::ops::Range<u64>| {
            bundle(files, id, &table_of(files, kind, id, keys.clone()), keys)
        };
        // Keys 0..600 were put, and those of one of the two nodes were deleted after that.
        let flushed = part(1, EntryKind::Put, 0..600);
        let (few, many) = if left_has_fewer { (0..2, 2..6) } else { (4..6, 0..4) };
        let deletes = part(2, EntryKind::Delete, few.start * 100..few.end * 100);
        tree.own.next_bundle.store(10, Ordering::Relaxed);
        let leaves_of = |numbers: std::ops::Range<u64>, bundles: &[&Arc<Bundle>]| {
            let one = |at: u64| {
                let upper = (at < 5).then_some((at + 1) * 100);
                leaf(1 + at, (at * 100, upper), bundles)
            };
            numbers.map(one).collect::<Vec<_>>()
        };
        let mut fewer =
            above(50, &leaves_of(few.clone(), &[&flushed, &deletes]), &[Arc::clone(&flushed)]);
        let node = Arc::make_mut(&mut fewer);
        node.pivots.iter_mut().for_each(|pivot| pivot.bundle_start = 1);
        node.measure().unwrap();
        let more = above(51, &leaves_of(many.clone(), &[]), &[flushed]);
        let children = if left_has_fewer { [fewer, more] } else { [more, fewer] };
        let root = above(53, &children, &[]);
        tree.show(root, Seqno(20));
        let live: Vec<u64> = (many.start * 100..many.end * 100).collect();
        assert_eq!(keys_of(&tree, 0..600), live);
        assert!(join_all(&tree) > 0);
        assert_eq!(keys_of(&tree, 0..600), live);
    }
}
