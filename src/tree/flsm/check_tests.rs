//! What `check` says of the order of fragments.

use super::*;
use crate::base::entry::EntryKind;
use crate::cache::ReadContext;
use crate::jobs::{Job, Step};
use crate::table::Table;
use crate::tree::CheckScope;
use crate::tree::flsm::FlsmTree;
use crate::tree::flsm::plan::{Trigger, plan};
use crate::tree::range::Key;
use crate::tree::test_support::{Reader, context, key_of, table_of};
use crate::tree::versioned::{NewFiles, NewTables};
use crate::tree::{TreeObserver, TreeVersion};

struct Fixture {
    tree: Arc<FlsmTree>,
    _observer: Arc<dyn TreeObserver>,
}

impl Fixture {
    fn new() -> Fixture {
        let observer: Arc<dyn TreeObserver> = Arc::new(Reader(vec![Seqno(100)]));
        let tree = FlsmTree::open(context("flsm", &observer), &[], Seqno(0)).unwrap();
        Fixture { tree, _observer: observer }
    }

    fn puts(&self, age: u64, keys: impl IntoIterator<Item = u64>) -> Arc<Table> {
        table_of(&self.tree.context.files, EntryKind::Put, age, keys)
    }

    fn show(&self, root: Guard) {
        let root = Arc::new(root);
        let show = |newest: &mut Arc<Guard>, _: &_| {
            *newest = Arc::new(Guard::clone(&root));
            Ok(true)
        };
        self.tree.change(NewFiles::None, show, Seqno(100), NewTables::None).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let manifest = self.tree.context.manifest.path();
        let mut problem = |error: Error| {
            let named = matches!(&error, Error::Corruption { file, .. } if *file == manifest);
            assert!(named, "{error}");
            problems.push(error.to_string());
        };
        self.tree.version.load().check(CheckScope::full(&manifest), &mut problem);
        problems
    }

    /// The newest version of a key, and what kind of entry it is.
    fn newest(&self, key: u64) -> Option<(Seqno, EntryKind)> {
        let (key, mut found) = (key_of(key), None);
        let hash = self.tree.context.files.hasher.hash(&key);
        let version = self.tree.version.load();
        let get = version.get(&key, hash, Seqno::MAX, &ReadContext::blocking(), &mut |entry| {
            found = Some((entry.seqno, entry.kind));
            std::ops::ControlFlow::Break(())
        });
        get.unwrap();
        found
    }
}

fn last_level(fragments: &[(Arc<Table>, bool)]) -> Guard {
    let mut guard = Guard::empty(0, Key::from(&[][..]), None);
    for (table, fully_merged) in fragments {
        guard.append(std::slice::from_ref(table), *fully_merged).unwrap();
    }
    guard
}

/// Seven fully_merged fragments side by side, the last of them small and with the lowest numbers, and two young
/// ones over all of them: the merge of the youngest took the small one along, and what came out had lower
/// numbers than fragments that it lies over. A store of 48 lives was called damaged seven times for that,
/// and every pair in it was right.
#[test]
fn a_small_old_fragment_merged_with_young_ones_is_no_damage() {
    let fixture = Fixture::new();
    let fully_merged = (0..6).map(|n| (fixture.puts(20 + n, n * 10..n * 10 + 4), true));
    let small = (fixture.puts(5, [60]), true);
    let put = (fixture.puts(30, [1, 33, 61]), false);
    let deleted = table_of(&fixture.tree.context.files, EntryKind::Delete, 31, [2, 33, 62]);
    let fragments: Vec<_> = fully_merged.chain([small, put, (deleted, false)]).collect();
    fixture.show(last_level(&fragments));
    assert_eq!(fixture.problems(), [""; 0]);

    let tree = &fixture.tree;
    let root = Arc::clone(&tree.version.load().root);
    let plan = plan(&root, Trigger::Due, &tree.version.load().parameters).unwrap().unwrap();
    let ages = |fragments: &[Fragment]| -> Vec<u64> {
        fragments.iter().map(|fragment| fragment.table.properties().seqno_min.0).collect()
    };
    assert_eq!(ages(&plan.inputs), [5, 30, 31], "the small one goes with the young ones");
    let mut job = tree.claim(plan, tree.jobs_ended()).unwrap();
    while job.step().unwrap() != Step::Done {}
    let root = Arc::clone(&tree.version.load().root);
    assert_eq!(ages(&root.fragments), [20, 21, 22, 23, 24, 25, 5]);
    assert!(!root.fragments[6].fully_merged);

    assert_eq!(fixture.problems(), [""; 0]);
    let put = |age| Some((Seqno(age), EntryKind::Put));
    let deleted = Some((Seqno(31), EntryKind::Delete));
    let expected = [
        (0, put(20)),
        (1, put(30)),
        // Their tombstones are needed: fragments that are older hold puts of them.
        (2, deleted),
        (33, deleted),
        (50, put(25)),
        (60, put(5)),
        (61, put(30)),
        (63, None),
    ];
    for (key, newest) in expected {
        assert_eq!(fixture.newest(key), newest, "key {key}");
    }
}

/// The same keys in the wrong order are found: beside one another, and on different levels.
#[test]
fn versions_in_the_wrong_order_are_found() {
    let fixture = Fixture::new();
    let (old, young) = (fixture.puts(3, [1, 5, 9]), fixture.puts(7, [0, 5, 8]));
    fixture.show(last_level(&[(Arc::clone(&old), true), (Arc::clone(&young), false)]));
    assert_eq!(fixture.problems(), [""; 0]);
    fixture.show(last_level(&[(Arc::clone(&young), true), (Arc::clone(&old), false)]));
    let problems = fixture.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("age of a key's versions"), "{problems:?}");

    let above = |child: &Arc<Table>, parent: &Arc<Table>| {
        let mut root = Guard::empty(1, Key::from(&[][..]), None);
        root.append(std::slice::from_ref(parent), false).unwrap();
        root.children.push(Arc::new(last_level(&[(Arc::clone(child), true)])));
        root
    };
    fixture.show(above(&old, &young));
    assert_eq!(fixture.problems(), [""; 0]);
    fixture.show(above(&young, &old));
    assert_eq!(fixture.problems().len(), 1);
}
