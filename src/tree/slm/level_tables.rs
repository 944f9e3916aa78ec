//! The tables of a level by number: a list that versions share but for what a change touches.
//!
//! Invariants:
//! 1. Shelves are in the order of their numbers, and so are the tables of a shelf. None is empty.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::base::ids::Seqno;
use crate::table::Table;

/// The most tables of a shelf.
const SHELF_MAX: usize = 32;

/// A table, and what the level says of it.
#[derive(Clone)]
pub(in crate::tree) struct LevelTable {
    pub(super) table: Arc<Table>,
    /// The number up to which the table's entries are what is needed of their keys. No tombstone up to that number in
    /// another table says anything of them.
    pub(super) settled: Seqno,
    /// The number by which the index names the table.
    pub(super) number: u32,
}

type Shelf = Vec<LevelTable>;

/// See the module's description.
#[derive(Clone, Default)]
pub(in crate::tree) struct LevelTables {
    shelves: Vec<Arc<Shelf>>,
    count: usize,
}

/// What one list has and another has not.
#[derive(Default)]
pub(super) struct Difference<'a> {
    pub(super) removed: Vec<&'a LevelTable>,
    pub(super) added: Vec<&'a LevelTable>,
}

impl LevelTables {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// In the order of their numbers.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &LevelTable> {
        self.shelves.iter().flat_map(|shelf| shelf.iter())
    }

    /// The table of a number.
    pub(super) fn get(&self, number: u32) -> Option<&LevelTable> {
        let shelf = self.shelves.get(self.shelf_of(number)?)?;
        let at = shelf.binary_search_by_key(&number, |it| it.number).ok()?;
        shelf.get(at)
    }

    /// Whether a table of a number is here.
    pub(super) fn has(&self, number: u32, table: &Arc<Table>) -> bool {
        self.get(number).is_some_and(|it| Arc::ptr_eq(&it.table, table))
    }

    /// The shelf whose numbers reach up to a number.
    fn shelf_of(&self, number: u32) -> Option<usize> {
        let is_before =
            |shelf: &Arc<Shelf>| shelf.first().is_some_and(|first| first.number <= number);
        self.shelves.partition_point(is_before).checked_sub(1)
    }

    /// Adds a table, in place of another of its number.
    pub(super) fn insert(&mut self, added: LevelTable) {
        if self.shelves.is_empty() {
            self.shelves.push(Arc::default());
        }
        let at = self.shelf_of(added.number).unwrap_or(0);
        let is_last = at + 1 == self.shelves.len();
        let shelf = Arc::make_mut(&mut self.shelves[at]);
        match shelf.binary_search_by_key(&added.number, |it| it.number) {
            Ok(place) => shelf[place] = added,
            Err(place) => {
                self.count += 1;
                if shelf.len() < SHELF_MAX {
                    shelf.insert(place, added);
                } else if is_last && place == shelf.len() {
                    // Numbers mostly ascend.
                    self.shelves.push(Arc::new(vec![added]));
                } else {
                    let mut upper = shelf.split_off(SHELF_MAX / 2);
                    match place.checked_sub(SHELF_MAX / 2) {
                        Some(place) => upper.insert(place, added),
                        None => shelf.insert(place, added),
                    }
                    self.shelves.insert(at + 1, Arc::new(upper));
                }
            }
        }
    }

    /// Removes the table of a number.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(at) = self.shelf_of(number) else { return };
        let shelf = Arc::make_mut(&mut self.shelves[at]);
        let Ok(place) = shelf.binary_search_by_key(&number, |it| it.number) else { return };
        shelf.remove(place);
        self.count -= 1;
        if shelf.is_empty() {
            self.shelves.remove(at);
            return;
        }
        // Neighbours of which little is left become one.
        let first = if at + 1 < self.shelves.len() { at } else { at.saturating_sub(1) };
        if let Some(next) = self.shelves.get(first + 1).cloned()
            && self.shelves[first].len() + next.len() <= SHELF_MAX / 2
        {
            Arc::make_mut(&mut self.shelves[first]).extend(next.iter().cloned());
            self.shelves.remove(first + 1);
        }
    }

    /// What has changed since `before`; shelves that both share are not looked into.
    pub(super) fn since<'a>(&'a self, before: &'a LevelTables) -> Difference<'a> {
        let ours: BTreeSet<*const Shelf> = self.shelves.iter().map(Arc::as_ptr).collect();
        let theirs: BTreeSet<*const Shelf> = before.shelves.iter().map(Arc::as_ptr).collect();
        let only = |of: &'a LevelTables, other: BTreeSet<*const Shelf>| {
            let own = of.shelves.iter().filter(move |shelf| !other.contains(&Arc::as_ptr(shelf)));
            own.flat_map(|shelf| shelf.iter())
        };
        let mut difference = Difference::default();
        let mut added = only(self, theirs).peekable();
        for removed in only(before, ours) {
            while let Some(next) = added.next_if(|next| next.number < removed.number) {
                difference.added.push(next);
            }
            let is_same = |next: &&LevelTable| {
                next.number == removed.number
                    && next.settled == removed.settled
                    && Arc::ptr_eq(&next.table, &removed.table)
            };
            if added.next_if(is_same).is_none() {
                difference.removed.push(removed);
            }
        }
        difference.added.extend(added);
        difference
    }
}

impl PartialEq for LevelTables {
    fn eq(&self, other: &LevelTables) -> bool {
        let difference = self.since(other);
        difference.removed.is_empty() && difference.added.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tree::edits::tests::{data_files, table};

    /// Random changes of a list and of a map, which stay alike; what has changed since is what is said to have.
    #[test]
    fn a_list_is_as_a_map_and_knows_what_has_changed() {
        let table = table(&data_files(), 5);
        let mut random = 1u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut list, mut map) = (LevelTables::default(), BTreeMap::new());
        for round in 0..400u64 {
            let (before, map_before) = (list.clone(), map.clone());
            for _ in 0..draw(12) {
                let number = draw(3000) as u32;
                // Grows first, and shrinks to nothing at the end.
                if draw(400) > round {
                    let settled = Seqno(draw(3));
                    map.insert(number, settled);
                    list.insert(LevelTable { table: Arc::clone(&table), settled, number });
                } else if let Some(number) = map.range(number..).next().map(|(it, _)| *it) {
                    map.remove(&number);
                    list.remove(number);
                }
            }
            let of = |tables: &[&LevelTable]| -> Vec<(u32, Seqno)> {
                tables.iter().map(|it| (it.number, it.settled)).collect()
            };
            let only = |a: &BTreeMap<u32, Seqno>, b: &BTreeMap<u32, Seqno>| -> Vec<(u32, Seqno)> {
                let own = a.iter().filter(|(number, settled)| b.get(number) != Some(settled));
                own.map(|(number, settled)| (*number, *settled)).collect()
            };
            assert_eq!(of(&list.iter().collect::<Vec<_>>()), only(&map, &BTreeMap::new()));
            assert_eq!(list.len(), map.len());
            let difference = list.since(&before);
            assert_eq!(of(&difference.added), only(&map, &map_before));
            assert_eq!(of(&difference.removed), only(&map_before, &map));
            assert_eq!(list.iter().rev().count(), map.len());
            for number in 0..3000 {
                let found = list.get(number).map(|it| it.settled);
                assert_eq!(found, map.get(&number).copied());
            }
            let shelves = list.shelves.iter().map(|shelf| shelf.len());
            assert!(shelves.clone().all(|len| (1..=SHELF_MAX).contains(&len)));
            let small = shelves.clone().zip(shelves.skip(1)).filter(|(a, b)| a + b <= 8);
            assert!(small.count() <= 4, "shelves of which little is left");
        }
    }

    /// Two versions share all shelves but those that a change has touched.
    #[test]
    fn a_change_copies_one_shelf() {
        let table = table(&data_files(), 5);
        let new = |number| LevelTable { table: Arc::clone(&table), settled: Seqno(0), number };
        let mut list = LevelTables::default();
        (0..1000).for_each(|number| list.insert(new(number)));
        let before = list.clone();
        list.insert(new(1000));
        list.remove(500);
        let shared = list.shelves.iter().zip(&before.shelves);
        assert_eq!(shared.filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 2);
    }
}
