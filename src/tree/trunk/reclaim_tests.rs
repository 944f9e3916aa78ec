//! What counts as to be had back, and in which leaf.

use super::*;
use crate::base::entry::EntryKind;
use crate::tree::edits::tests::data_files;
use crate::tree::test_support::table_of;
use crate::tree::trunk::node::Bundle;
use crate::tree::trunk::test_support::{bundle, leaf, root};

/// Keys of the table that all leaves share.
const KEYS: u64 = 3000;

/// A third of it, and a leaf's bundle of its own with that third alone.
struct Tables {
    shared: Arc<Bundle>,
    own: Vec<Arc<Bundle>>,
}

impl Tables {
    fn new() -> Tables {
        let files = data_files();
        let bundle = |id: u64, keys: std::ops::Range<u64>| {
            let table = table_of(&files, EntryKind::Put, id, keys.clone());
            bundle(&files, id, &table, keys)
        };
        let third = KEYS / 3;
        let own = (0..3).map(|at| bundle(at + 2, at * third..(at + 1) * third)).collect();
        Tables { shared: bundle(1, 0..KEYS), own }
    }

    /// Three leaves, of which some have merged their part of the shared table (`merged`) into their own.
    fn leaves(&self, merged: [bool; 3]) -> [Arc<Node>; 3] {
        let third = KEYS / 3;
        [0, 1, 2].map(|at| {
            let held = if merged[at] { &self.own[at] } else { &self.shared };
            let from = at as u64 * third;
            leaf(at as u64 + 1, (from, (at < 2).then_some(from + third)), &[held])
        })
    }

    /// What merging each of the leaves would give back, in percent of the shared table.
    fn gains(&self, merged: [bool; 3], on_its_way: bool) -> [u64; 3] {
        let leaves = self.leaves(merged);
        let above = on_its_way.then_some(&self.shared);
        let root = root(9, &leaves, above);
        let dead = DeadParts::new(&root);
        let whole = self.shared.branches[0].properties().entry_bytes();
        leaves.map(|leaf| (dead.gain(&leaf) * 100 + whole / 2) / whole)
    }
}

/// After a flush or a split leaves share tables, most of each outside of any one of them. When that counted as
/// dead, a leaf that had just been split was merged at once, which made a copy of its part and gave nothing
/// back: the table stayed for the other leaves. Only what is live in no leaf is dead.
#[test]
fn what_lies_in_other_leaves_is_not_dead() {
    assert_eq!(Tables::new().gains([false; 3], false), [0; 3]);
}

/// What a leaf has merged elsewhere is dead in the table, and the leaves that still hold on to it share the
/// gain: together they give all of it back, no more.
#[test]
fn what_leaves_have_merged_elsewhere_is_dead_once() {
    let tables = Tables::new();
    let [merged, second, third] = tables.gains([true, false, false], false);
    assert_eq!(merged, 0, "it has nothing to do with the table any more");
    assert!(second.abs_diff(17) <= 1 && third.abs_diff(17) <= 1, "{second} and {third}");
    let [first, second, third] = tables.gains([true, false, true], false);
    assert_eq!((first, third), (0, 0));
    assert!(second.abs_diff(67) <= 1, "{second}");
}

/// A table that an index node refers to as well stays whatever the leaves do: leaves to come will read it.
#[test]
fn what_is_on_its_way_is_not_dead() {
    assert_eq!(Tables::new().gains([true, false, true], true), [0; 3]);
}

/// A leaf so narrow that an index tells nothing of its part of a table was the last that held on to it. That was no gain,
/// so the table stayed.
#[test]
fn a_narrow_leaf_gives_back_what_it_alone_holds_on_to() {
    let tables = Tables::new();
    let narrow = leaf(2, (1500, Some(1501)), &[&tables.shared]);
    let leaves = [leaf(1, (0, Some(1500)), &[]), Arc::clone(&narrow), leaf(3, (1501, None), &[])];
    assert_eq!(narrow.leaf_summary().parts[0].size.bytes, 0);
    let dead = DeadParts::new(&root(9, &leaves, None));
    let whole = tables.shared.branches[0].properties().entry_bytes();
    assert_eq!(dead.gain(&narrow), whole - 1);
}
