//! Seeks against a map: of all kinds, over trees and memtables that change meanwhile.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::random::SplitMix;
use crate::tree::options::KeyspaceOptions;
use crate::{Database, Iter, Keyspace, Slice};

const KINDS: [fn() -> KeyspaceOptions; 4] =
    [KeyspaceOptions::stb, KeyspaceOptions::flsm, KeyspaceOptions::tph, KeyspaceOptions::slm];

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an iterator over a range should still yield.
struct Model {
    map: Map,
    bounds: (Vec<u8>, Option<Vec<u8>>),
    left: std::collections::VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Model {
    fn new(map: &Map, bounds: (Vec<u8>, Option<Vec<u8>>)) -> Model {
        let mut model = Model { map: map.clone(), bounds, left: Default::default() };
        model.narrow(&[], None);
        model
    }

    /// What is in the bounds and also in these.
    fn narrow(&mut self, from: &[u8], to: Option<Vec<u8>>) {
        let lower = from.max(&self.bounds.0).to_vec();
        let upper = match (&self.bounds.1, &to) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.as_ref().or(other.as_ref()),
        };
        let is_empty = upper.is_some_and(|upper| *upper <= lower);
        let upper = upper.map_or(Bound::Unbounded, |upper| Bound::Excluded(upper.clone()));
        self.left = match is_empty {
            true => Default::default(),
            false => {
                let pairs = self.map.range((Bound::Included(lower), upper));
                pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
            }
        };
    }
}

fn key(random: &mut SplitMix) -> Vec<u8> {
    format!("{:04}", random.below(700)).into_bytes()
}

fn change(items: &Keyspace, map: &mut Map, random: &mut SplitMix, count: u64) {
    for _ in 0..count {
        let key = key(random);
        match random.below(4) {
            0 => {
                items.delete(&key).unwrap();
                map.remove(&key);
            }
            1 => {
                items.merge(&key, "+").unwrap();
                map.entry(key).or_default().push(b'+');
            }
            _ => {
                let value = vec![b'v'; random.below(300) as usize];
                items.put(&key, &value).unwrap();
                map.insert(key, value);
            }
        }
    }
}

fn agrees(found: Option<crate::Result<(Slice, Slice)>>, expected: Option<(Vec<u8>, Vec<u8>)>) {
    let found = found.map(|pair| pair.unwrap()).map(|(key, value)| (key.to_vec(), value.to_vec()));
    let shown = |pair: Option<(Vec<u8>, Vec<u8>)>| {
        pair.map(|(key, value)| (key.escape_ascii().to_string(), value.len()))
    };
    assert_eq!(shown(found.clone()), shown(expected.clone()));
    assert_eq!(found, expected);
}

fn walk(seed: u64, iterator_calls_max: Option<u32>) {
    let mut random = SplitMix::new(seed);
    let mut builder = Database::builder_in_memory().memory_budget(4 << 20).memtable_bytes(32 << 10);
    if let Some(calls) = iterator_calls_max {
        builder = builder.iterator_calls_max(calls);
    }
    let db = builder.open().unwrap();
    let options = KINDS[seed as usize % KINDS.len()]().merge_operator("append");
    let items = db.keyspace("items", options.blob_bytes_min(200)).unwrap();
    let mut map = Map::new();
    change(&items, &mut map, &mut random, 1500);
    for _ in 0..6 {
        change(&items, &mut map, &mut random, 200);
        if random.below(3) == 0 {
            items.flush().unwrap();
        }
        let bounds = match random.below(3) {
            0 => (Vec::new(), None),
            _ => (key(&mut random), Some(key(&mut random))),
        };
        let mut iter: Iter = match &bounds.1 {
            None => items.iter(),
            Some(upper) => items.range(bounds.0.clone()..upper.clone()),
        };
        let mut model = Model::new(&map, bounds);
        // From now on it goes on after its end.
        iter.seek([]);
        for _ in 0..150 {
            match random.below(12) {
                0 | 1 => {
                    let key = key(&mut random);
                    iter.seek(&key);
                    model.narrow(&key, None);
                }
                // Near to where it is, ahead or back.
                2 | 3 => {
                    let Some((at, _)) = model.left.front().cloned() else { continue };
                    let at: u64 = String::from_utf8(at).unwrap().parse().unwrap();
                    let key = format!("{:04}", (at + random.below(40)).saturating_sub(10));
                    iter.seek(&key);
                    model.narrow(key.as_bytes(), None);
                }
                4 => {
                    let key = key(&mut random);
                    iter.seek_for_prev(&key);
                    model.narrow(&[], Some([&*key, b"\0"].concat()));
                }
                5 if random.below(4) == 0 => change(&items, &mut map, &mut random, 60),
                6 if random.below(6) == 0 => {
                    iter.refresh();
                    model = Model::new(&map, model.bounds);
                }
                7 | 8 => agrees(iter.next_back(), model.left.pop_back()),
                _ => agrees(iter.next(), model.left.pop_front()),
            }
        }
    }
}

#[test]
fn seeks_agree_with_a_map() {
    (0..24).for_each(|seed| walk(seed, None));
}

/// The same if the cursors are closed after each call, or every few.
#[test]
fn seeks_agree_with_a_map_though_cursors_are_closed() {
    (100..112).for_each(|seed| walk(seed, Some(1 + seed as u32 % 3)));
}

/// A merge operand that cannot be folded ended an iterator that was to pass over its key.
#[test]
fn what_is_passed_over_fails_nobody() {
    for options in KINDS {
        let db = Database::builder_in_memory().open().unwrap();
        let items = db.keyspace("items", options().merge_operator("u64_add")).unwrap();
        items.put("a", 1u64.to_le_bytes()).unwrap();
        items.merge("b", [1]).unwrap();
        items.put("c", 2u64.to_le_bytes()).unwrap();
        for flushed in [false, true] {
            if flushed {
                items.flush().unwrap();
            }
            let mut iter = items.iter();
            assert_eq!(iter.next().unwrap().unwrap().0, b"a");
            iter.seek("c");
            assert_eq!(iter.next().unwrap().unwrap().0, b"c");
            iter.seek("b");
            assert!(matches!(iter.next(), Some(Err(crate::Error::Merge { .. }))));
        }
    }
}

/// Iterators that have no cursors are not counted as open.
#[test]
fn an_iterator_at_its_end_has_no_cursors() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    items.put("a", "1").unwrap();
    let mut keys = items.iter().keys();
    assert_eq!(keys.by_ref().count(), 1);
    assert_eq!(db.stats().iterators_held, 0);
    let mut iter = items.iter();
    iter.next_back();
    iter.seek_for_prev("a");
    assert_eq!(items.store().open_iterators.bytes(), 0);
    assert_eq!(iter.by_ref().count(), 1);
    assert_eq!(items.store().open_iterators.bytes(), 0);
    iter.refresh();
    assert_eq!(iter.count(), 1);
    let mut refused = items.iter();
    db.drop_keyspace("items").unwrap();
    refused.refresh();
    assert!(matches!(refused.next(), Some(Err(crate::Error::Closed { .. }))));
    assert!(refused.next().is_none());
    assert_eq!(db.stats().iterators_held, 0);
}

/// An iterator that has been sought can go on after its end; others give back what they pin.
#[test]
fn an_end_is_not_final_for_a_seek() {
    let db = Database::builder_in_memory().open().unwrap();
    let items = db.keyspace("items", KeyspaceOptions::stb()).unwrap();
    let mut ended = items.iter();
    assert!(ended.next().is_none());
    assert_eq!(db.stats().iterators_held, 0, "it was never sought");
    let mut iter = items.iter();
    iter.seek("");
    assert!(iter.next().is_none() && iter.next().is_none());
    items.put("a", "1").unwrap();
    ended.seek("a");
    assert!(ended.next().is_none());
    iter.seek("a");
    assert!(iter.next().is_none(), "it shows the moment at which it was made");
    iter.refresh();
    assert_eq!(iter.next().unwrap().unwrap().0, b"a");
    assert!(iter.next_back().is_none());
    iter.seek_for_prev("b");
    assert_eq!(iter.next_back().unwrap().unwrap().0, b"a");
    drop(iter);
    assert_eq!(db.stats().iterators_held, 0);
    let mut keys = items.iter();
    keys.seek("");
    db.drop_keyspace("items").unwrap();
    assert_eq!(keys.by_ref().count(), 1, "an open iterator stays valid");
    keys.seek("");
    assert_eq!(keys.count(), 1);
}
