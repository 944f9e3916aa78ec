//! Which guard is merged for space while others are being merged.

use super::*;
use crate::base::entry::EntryKind;
use crate::base::ids::Seqno;
use crate::base::sync::plain::Ordering;
use crate::tree::TreeObserver;
use crate::tree::range::Key;
use crate::tree::test_support::{Reader, context, key_of, table_of};

#[test]
fn while_the_best_guard_is_merged_the_next_best_is() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = FlsmTree::open(context("flsm", &observer), &[], Seqno(0)).unwrap();
    // Guards of a hundred keys, whose tables have others that no guard sees: 40, 160, 80, and 60 of all others.
    let mut root = Guard::empty(1, Key::from(&[][..]), None);
    for (at, dead) in [0, 40, 160, 80].into_iter().chain([60; 33]).enumerate() {
        let at = at as u64;
        let from = at * 1000;
        let lower = if at == 0 { Key::from(&[][..]) } else { Key::from(key_of(from)) };
        let mut guard = Guard::empty(0, lower, (at < 36).then(|| Key::from(key_of(from + 1000))));
        if at > 0 {
            let keys = from - dead..from + 100;
            let table = table_of(&tree.context.files, EntryKind::Put, 1, keys);
            // As guards see it: what the table has below, another has moved on.
            guard.append(&[table], true).unwrap();
        }
        root.children.push(Arc::new(guard));
    }
    let root = Arc::new(root);
    let version = tree.version_of(Arc::clone(&root), Seqno(1));
    assert!(version.space_excess() > 0.0);
    let mut jobs = Vec::new();
    let mut chosen = Vec::new();
    while let Some(plan) = tree.choose_reclaiming(&version, Intent::Start).unwrap() {
        chosen
            .push(root.children.iter().position(|guard| guard.lower == plan.place.lower).unwrap());
        jobs.push(tree.claim(plan, tree.jobs_ended()).expect("nobody works there"));
    }
    // Not all at once: outputs take space before they give any back.
    assert!(chosen.starts_with(&[2, 3]) && chosen.len() < 6, "{chosen:?}");
    assert!(!tree.nothing_to_reclaim.load(Ordering::Relaxed));
}

/// All keys had been deleted, and a guard so narrow that indexes tell nothing of its parts held on to whole tables of
/// tombstones. A merge of nothing was no gain, so they stayed.
#[test]
fn a_narrow_guard_gives_back_what_it_holds_on_to() {
    let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(10)]));
    let tree = FlsmTree::open(context("flsm", &observer), &[], Seqno(0)).unwrap();
    let mut root = Guard::empty(1, Key::from(&[][..]), None);
    let bounds = [Key::from(&[][..]), Key::from(key_of(2000)), Key::from(key_of(2001))];
    let tables = [1, 2, 3].map(|age| {
        table_of(&tree.context.files, EntryKind::Delete, age, (0..4000).map(|key| 2 * key + 1))
    });
    for (at, lower) in bounds.iter().enumerate() {
        let mut guard = Guard::empty(0, Arc::clone(lower), bounds.get(at + 1).cloned());
        if at == 1 {
            guard.append(&tables, false).unwrap();
            assert_eq!((guard.fragments.len(), guard.bytes()), (3, 0));
        }
        root.children.push(Arc::new(guard));
    }
    let version = tree.version_of(Arc::new(root), Seqno(3));
    assert!(version.space_excess() > 0.0);
    let plan = tree.choose_reclaiming(&version, Intent::Start).unwrap().expect("a merge");
    assert_eq!((&plan.place.lower, plan.inputs.len()), (&bounds[1], 3));
}
