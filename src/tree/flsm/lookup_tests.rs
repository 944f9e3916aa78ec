//! Which pages lookups read, of which tables, and how many at once.

use super::*;
use crate::base::entry::EntryKind;
use crate::base::ids::FileId;
use crate::base::key_hash::{hash_key, test_hasher};
use crate::base::limits::UNIT_BYTES;
use crate::cache::{Cache, DataFiles};
use crate::table::{BlobFiles, TableBuilder, TableFilter, TableOptions};
use crate::tree::range::{Key, RangeSize};
use crate::vfs::{Access, AlignedBuf, MemoryVfs};

/// A root with one guard below it: keys 0, 10, 20, … in the oldest table, of the guard below; others in
/// younger ones, which reach as far but have other keys.
struct Tree {
    files: Arc<DataFiles>,
    root: Guard,
    presence: Presence,
}

const KEYS: u64 = 400;

fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl Tree {
    fn new(filter: bool) -> Tree {
        let cache = Arc::new(Cache::new(4 << 20));
        let files = DataFiles::new(
            Arc::new(MemoryVfs::new()),
            cache,
            std::path::Path::new("/"),
            FileId(1),
            test_hasher(),
        );
        let files = Arc::new(files);
        let blobs = BlobFiles::new(&files);
        let fragment = |age: u64| {
            let options = TableOptions {
                creation: age,
                filter: TableFilter::blocks(filter),
                ..TableOptions::default()
            };
            let mut table = TableBuilder::new(&files, &blobs, options).unwrap();
            for number in 0..KEYS {
                // Number 5 is in all of them.
                let key = key_of(if number == 0 { 5 } else { number * 10 + age });
                table.add(&key, Seqno(age + 1), EntryKind::Put, &[age as u8; 100]).unwrap();
            }
            let size = RangeSize { bytes: 0, entries: KEYS };
            let table = table.finish().unwrap();
            table.pages().forget_pages();
            Fragment { table, fully_merged: false, size, first: 0 }
        };
        let mut last = Guard::empty(0, Key::from(&[][..]), None);
        last.fragments = (0..2).map(fragment).collect();
        let mut root = Guard::empty(1, Key::from(&[][..]), None);
        root.fragments = (2..5).map(fragment).collect();
        root.children.push(Arc::new(last));
        Tree { files, root, presence: Presence::default() }
    }

    /// The ages of the tables in which the key is found, and what was asked.
    fn look_up(&self, number: u64, context: &ReadContext) -> Result<(Vec<u8>, FilterUse)> {
        let key = key_of(number);
        let hash = hash_key(&key);
        let mut lookup = Lookup::new(&key, hash, Seqno::MAX, context, &self.presence);
        let mut ages = Vec::new();
        lookup.run(&self.root, &mut |entry| {
            ages.push(entry.value[0]);
            ControlFlow::Continue(())
        })?;
        Ok((ages, lookup.filter_use))
    }

    /// As it is found by itself, with the pages read for it.
    fn get(&self, number: u64) -> (Vec<u8>, u32) {
        let context = ReadContext::blocking();
        let (ages, _) = self.look_up(number, &context).unwrap();
        (ages, context.pages_read.get())
    }

    fn warm_indexes(&self) {
        for fragment in self.root.fragments.iter().chain(&self.root.children[0].fragments) {
            fragment.table.locate(&key_of(15), &ReadContext::blocking()).unwrap();
        }
    }
}

/// Keys that only the table of this age may have, none in a first leaf or behind the last key of a table.
fn keys_of(age: u64) -> impl Iterator<Item = u64> {
    (100..KEYS - 1).map(move |number| number * 10 + age)
}

#[test]
fn versions_are_found_youngest_first_with_filters_and_without() {
    for filter in [true, false] {
        let tree = Tree::new(filter);
        assert_eq!(tree.get(5).0, [4, 3, 2, 1, 0]);
        for age in 0..5 {
            assert!(keys_of(age).all(|number| tree.get(number).0 == [age as u8]));
        }
        assert!(keys_of(7).all(|number| tree.get(number).0.is_empty()));
    }
}

/// A key that is there costs its leaf, where all its filters but the last are cached: the last is not read.
#[test]
fn the_last_filter_is_not_read_for_keys_that_are_there() {
    let tree = Tree::new(true);
    tree.warm_indexes();
    let first = tree.get(1000);
    assert_eq!(first, (vec![0], 4 + 1), "the filters of four tables and a leaf");
    let (mut leaves, mut passed) = (0, 0);
    for number in keys_of(0) {
        let context = ReadContext::blocking();
        let (ages, filter_use) = tree.look_up(number, &context).unwrap();
        assert_eq!((ages, filter_use.probes), (vec![0], 4));
        leaves += context.pages_read.get();
        passed += filter_use.false_positives;
    }
    // Some 30 entries a leaf, and what filters let pass.
    let most = KEYS as u32 / 30 + passed as u32;
    assert!(leaves <= most, "{leaves} pages for {KEYS} keys, {most} expected");
}

/// Once a key was looked for in vain the filter is read, and says so from then on.
#[test]
fn absent_keys_cost_nothing_once_the_filters_are_cached() {
    let tree = Tree::new(true);
    tree.warm_indexes();
    let first = keys_of(9).next().unwrap();
    assert_eq!(tree.get(first), (vec![], 4 + 1 + 1), "four filters, a leaf, and the fifth filter");
    let mut pages = 0;
    let mut passed = 0;
    for number in keys_of(9) {
        let context = ReadContext::blocking();
        let (_, filter_use) = tree.look_up(number, &context).unwrap();
        assert_eq!(filter_use.probes, 5);
        pages += u64::from(context.pages_read.get());
        passed += filter_use.false_positives;
    }
    assert!(pages <= passed && passed < 20, "{pages} pages, {passed} let pass");
}

/// Where keys are mostly absent, the last filter is read before the table.
#[test]
fn where_keys_are_absent_the_last_filter_is_read_first() {
    let tree = Tree::new(true);
    tree.warm_indexes();
    assert!(tree.presence.is_likely());
    (0..40).for_each(|_| tree.presence.note(0, false));
    assert!(!tree.presence.is_likely());
    assert_eq!(tree.get(keys_of(9).next().unwrap()), (vec![], 5), "five filters and no leaf");
    (0..40).for_each(|_| tree.presence.note(0, true));
    assert!(tree.presence.is_likely());
    // Others do not count.
    (0..1000).for_each(|_| tree.presence.note(1, false));
    assert!(tree.presence.is_likely());
}

/// What lookups say of their keys, they remember.
#[test]
fn lookups_tell_whether_keys_are_mostly_there() {
    let tree = Tree::new(true);
    (keys_of(8).chain(keys_of(9)).chain(keys_of(7))).for_each(|number| drop(tree.get(number)));
    assert!(!tree.presence.is_likely());
    (0..10).flat_map(|_| keys_of(0)).for_each(|number| drop(tree.get(number)));
    assert!(tree.presence.is_likely());
}

/// A batched read notes all filters at once that are missing, not one a round.
#[test]
fn filters_that_are_missing_are_noted_in_one_round() {
    let tree = Tree::new(true);
    tree.warm_indexes();
    let round = || {
        let context = ReadContext::collecting();
        let found = tree.look_up(1000, &context);
        (found, context.misses.unwrap().take())
    };
    let (found, misses) = round();
    assert!(matches!(found, Err(Error::NotResident)));
    assert_eq!(fetch_misses(misses).unwrap(), 4);
    let (found, misses) = round();
    assert!(matches!(found, Err(Error::NotResident)));
    assert_eq!(fetch_misses(misses).unwrap(), 1, "the leaf");
    let (found, misses) = round();
    assert_eq!(found.unwrap().0, [0]);
    assert!(misses.is_empty());
}

/// A filter that is only read ahead of its turn does no harm if it is damaged.
#[test]
fn a_damaged_filter_is_an_error_only_for_those_who_need_it() {
    let tree = Tree::new(true);
    tree.warm_indexes();
    let path = tree.root.fragments[0].table.pages().path();
    let file = tree.files.vfs.open(&path, Access::Direct, true).unwrap();
    // Behind it come one page of the index, the properties and the footer.
    let filter_at = file.len().unwrap() - 4 * UNIT_BYTES as u64;
    file.write_at(filter_at, &AlignedBuf::new(UNIT_BYTES)).unwrap();
    let newest = |number: u64| {
        let (key, context) = (key_of(number), ReadContext::blocking());
        let hash = hash_key(&key);
        let mut lookup = Lookup::new(&key, hash, Seqno::MAX, &context, &tree.presence);
        let mut age = None;
        let result = lookup.run(&tree.root, &mut |entry| {
            age = Some(entry.value[0]);
            ControlFlow::Break(())
        });
        result.map(|()| age)
    };
    assert_eq!(newest(1004).unwrap(), Some(4));
    assert_eq!(newest(1003).unwrap(), Some(3));
    for age in [2, 1, 0, 9] {
        assert!(newest(1000 + age).unwrap_err().is_corruption(), "{age}");
    }
}
