//! The index against a model: random changes, every crash, every missing flush and fence, flipped bits, readers beside
//! the writer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::node::BLOCK_WORDS;
use super::open::{load_note, store_note};
use super::write::{pack, versions_max};
use super::*;
use crate::base::random::SplitMix as Random;
use crate::base::sync::plain::{AtomicU64, AtomicUsize, Mutex as PlainMutex, Ordering};
use crate::pmem::HeapRegion;
use crate::pmem::simulated::{Lost, Simulated};

#[path = "load_tests.rs"]
mod load;
#[path = "reading_tests.rs"]
mod reading;

const IDENTITY: u64 = 77;

type Model = BTreeMap<Vec<u8>, Vec<Version>>;

fn location(table: u32, unit: u32) -> Location {
    Location::new(table, LeafPlace { unit: unit & 0xf_ffff, units: 1, is_split: false }, false)
}

fn version(number: u64) -> Version {
    let location = location(number as u32 & 0xffff, (number >> 16) as u32 & 0xffff);
    Version { location, superseded: None }
}

fn heap(blocks: usize) -> Arc<HeapRegion> {
    Arc::new(HeapRegion::reserve(blocks * BLOCK_WORDS, Path::new("heap")).unwrap())
}

fn open(region: Arc<dyn Region>) -> Result<Option<(LocationIndex, Found)>> {
    LocationIndex::open(region, IDENTITY, &mut |_| {})
}

fn contents(index: &LocationIndex) -> Result<Model> {
    let mut found = Model::new();
    let mut start = Some(Vec::new());
    while let Some(key) = start {
        let part = index.ascending(&key, false)?;
        for entry in part.entries {
            let before = found.insert(entry.key, entry.versions);
            assert!(before.is_none(), "a key twice");
        }
        start = part.rest;
    }
    Ok(found)
}

fn contents_backwards(index: &LocationIndex) -> Vec<(Vec<u8>, Vec<Version>)> {
    let mut found = Vec::new();
    let last = vec![0xff; 300];
    let mut part = index.descending(&last, true).unwrap();
    loop {
        found.extend(part.entries.into_iter().map(|entry| (entry.key, entry.versions)));
        let Some(rest) = part.rest else { return found };
        part = index.descending(&rest, false).unwrap();
    }
}

/// The contents leaf by leaf, from the last one to the first. Each leaf is found by each of its bounds.
fn contents_by_leaf(index: &LocationIndex) -> Model {
    let mut found = Model::new();
    let mut leaf = index.leaf(LeafAt::Last).unwrap();
    assert!(leaf.upper.is_none());
    loop {
        let inside = |key: &Vec<u8>| {
            leaf.lower.as_ref().is_none_or(|lower| lower <= key)
                && leaf.upper.as_ref().is_none_or(|upper| key < upper)
        };
        let entries = leaf.entries.to_owned();
        assert!(entries.iter().all(|entry| inside(&entry.key)));
        if let Some(upper) = &leaf.upper {
            assert_eq!(index.leaf(LeafAt::Below(upper)).unwrap().lower, leaf.lower);
        }
        if let Some(middle) = entries.get(entries.len() / 2) {
            let from = index.leaf(LeafAt::Key(&middle.key)).unwrap();
            assert_eq!((from.lower.as_ref(), &from.upper), (Some(&middle.key), &leaf.upper));
            assert_eq!(from.entries.to_owned(), entries[entries.len() / 2..]);
            // What is below the first key may be in the leaf before.
            if entries.len() > 1 {
                let below = index.leaf(LeafAt::Below(&middle.key)).unwrap();
                assert_eq!((&below.lower, below.upper.as_ref()), (&leaf.lower, Some(&middle.key)));
                assert_eq!(below.entries.to_owned(), entries[..entries.len() / 2]);
            }
        }
        found.extend(entries.into_iter().map(|entry| (entry.key, entry.versions)));
        let Some(lower) = leaf.lower else { return found };
        assert_eq!(index.leaf(LeafAt::Key(&lower)).unwrap().upper, leaf.upper);
        leaf = index.leaf(LeafAt::Below(&lower)).unwrap();
        assert_eq!(leaf.upper.as_ref(), Some(&lower));
    }
}

/// A change of a key: its versions afterwards.
#[derive(Debug, Clone)]
struct Change {
    key: Vec<u8>,
    versions: Vec<Version>,
}

/// How a workload chooses its keys.
#[derive(Debug, Clone, Copy)]
struct Shape {
    keys: u64,
    key_bytes: usize,
    /// Of a hundred changes: removals, changes to several versions.
    removals: u64,
    several: u64,
}

const SHORT: Shape = Shape { keys: 150, key_bytes: 4, removals: 20, several: 5 };
const LONG: Shape = Shape { keys: 12, key_bytes: 600, removals: 30, several: 10 };

fn changes(random: &mut Random, shape: Shape, count: usize) -> Vec<Change> {
    let change = |_| {
        let mut key = format!("{:04}", random.below(shape.keys)).into_bytes();
        // The ends differ: long keys are compared to their last byte.
        let filler = key[3];
        key.resize(shape.key_bytes.max(key.len()), b'x');
        if shape.key_bytes > 4 {
            key.rotate_left(4);
            key[0] = filler;
        }
        let choice = random.below(100);
        let versions = if choice < shape.removals {
            Vec::new()
        } else if choice < shape.removals + shape.several {
            let more = random.below(versions_max(key.len()).min(4) as u64);
            let older = |number| Version {
                superseded: Some(Seqno(100 - number)),
                ..version(random.next())
            };
            let mut versions = vec![version(5)];
            versions.extend((0..more).map(older));
            versions
        } else {
            vec![version(random.next())]
        };
        Change { key, versions }
    };
    (0..count).map(change).collect()
}

fn apply(model: &mut Model, change: &Change) {
    if change.versions.is_empty() {
        model.remove(&change.key);
    } else {
        model.insert(change.key.clone(), change.versions.clone());
    }
}

#[test]
fn the_index_is_a_map() {
    for (shape, blocks) in [
        (SHORT, 64),
        (LONG, 256),
        (Shape { key_bytes: 9000, ..LONG }, 256),
        (Shape { keys: 5000, key_bytes: 20, removals: 45, several: 2 }, 1024),
        (Shape { keys: 2000, key_bytes: 250, removals: 20, several: 1 }, 2048),
    ] {
        let region = heap(blocks);
        let mut index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
        let mut random = Random::new(shape.keys);
        let mut model = Model::new();
        for round in 0..10 {
            // Alone, or several in their order: then most leaves are not searched for from the root.
            let several = if round % 2 == 0 { 1 } else { 60 };
            for batch in changes(&mut random, shape, 1000).chunks_mut(several) {
                batch.sort_by(|a, b| a.key.cmp(&b.key));
                let mut writing = index.write();
                for change in &*batch {
                    let expected = model.get(&change.key).cloned().unwrap_or_default();
                    // Whoever changes a key has mostly read it.
                    if random.below(4) > 0 {
                        assert_eq!(writing.versions(&change.key).unwrap(), expected);
                    }
                    assert_eq!(writing.set(&change.key, &change.versions).unwrap(), expected);
                    apply(&mut model, change);
                }
                drop(writing);
                for key in batch.iter().map(|change| &change.key) {
                    let expected = model.get(key).map_or(&[][..], |versions| versions);
                    assert_eq!(index.newest(key).unwrap().as_ref(), expected.first());
                    assert_eq!(index.versions(key).unwrap(), expected);
                }
            }
            assert_eq!(contents(&index).unwrap(), model, "{shape:?} in round {round}");
            let backwards = contents_backwards(&index);
            assert!(backwards.into_iter().eq(model.clone().into_iter().rev()), "{shape:?}");
            assert!(contents_by_leaf(&index) == model, "{shape:?} in round {round}");
            assert_eq!(index.keys(), model.len() as u64);
            let used = index.blocks().0;
            let (again, found) = open(region.clone()).unwrap().unwrap();
            assert_eq!(found.repeated_slots, 0);
            for versions in model.values_mut() {
                versions.retain(|version| version.superseded.is_none());
            }
            assert_eq!(contents(&again).unwrap(), model);
            assert!(again.blocks().0 <= used + 3, "{} of {used}", again.blocks().0);
            index = again;
        }
    }
}

#[test]
fn an_emptied_index_has_its_blocks_back() {
    let index = LocationIndex::create(heap(512), IDENTITY).unwrap();
    for ascending in [true, false] {
        let key = |number: u32| {
            let number = if ascending { number } else { number.reverse_bits() };
            number.to_be_bytes()
        };
        let mut writing = index.write();
        (0..10_000).for_each(|number| {
            writing.put(&key(number), location(1, number)).unwrap();
        });
        (0..10_000).for_each(|number| {
            writing.remove(&key(number)).unwrap();
        });
        drop(writing);
        assert_eq!((index.keys(), index.blocks().0), (0, 2), "the header and a leaf");
    }
}

#[test]
fn ascending_keys_fill_their_leaves() {
    let index = LocationIndex::create(heap(512), IDENTITY).unwrap();
    let mut writing = index.write();
    (0..10_000u64).for_each(|number| {
        writing.put(&number.to_be_bytes(), location(1, number as u32)).unwrap();
    });
    drop(writing);
    // Records of three words: 127 fit.
    assert!(index.blocks().0 < 10_000 / 120 + 10, "{}", index.blocks().0);
}

#[test]
fn a_full_region_refuses_and_keeps_what_it_has() {
    let index = LocationIndex::create(heap(24), IDENTITY).unwrap();
    let mut model = Model::new();
    let mut random = Random::new(1);
    let refused = loop {
        let key = random.next().to_be_bytes().to_vec();
        match index.write().put(&key, location(1, 1)) {
            Ok(_) => {
                model.insert(key, vec![Version { location: location(1, 1), superseded: None }])
            }
            Err(error) => break error,
        };
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert!(model.len() > 500, "{} keys", model.len());
    assert_eq!(contents(&index).unwrap(), model);
    // What is removed makes room.
    for key in model.keys() {
        if index.write().remove(key).is_err() {
            panic!("a removal was refused");
        }
    }
    index.write().put(b"again", location(1, 1)).unwrap();
}

#[test]
fn a_region_of_another_index_is_not_opened() {
    let region = heap(16);
    assert!(open(region.clone()).unwrap().is_none(), "zeros");
    LocationIndex::create(region.clone(), IDENTITY + 1).unwrap();
    assert!(open(region.clone()).unwrap().is_none(), "another identity");
    region.store(1, super::word::seal(9));
    let error = open(region).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 9, .. }), "{error}");
    let error = LocationIndex::create(heap(2), IDENTITY).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

/// What may be in the index after a crash.
#[derive(Default, Clone)]
struct Expected {
    is_created: bool,
    /// The index is being given up: nothing may be left of it, but no part.
    is_given_up: bool,
    /// The index is being filled: nobody trusts it.
    is_loading: bool,
    durable: Model,
    /// Changes since the last fence, and the one that is being made.
    pending: Vec<Change>,
}

impl Expected {
    /// Why the contents after a crash are wrong.
    fn refuses(&self, found: &Model) -> Option<String> {
        if self.is_given_up && found.is_empty() {
            return None;
        }
        let mut allowed: BTreeMap<&[u8], Vec<Vec<Version>>> = BTreeMap::new();
        for (key, versions) in &self.durable {
            allowed.entry(key).or_default().push(versions.clone());
        }
        for change in &self.pending {
            let states = allowed.entry(&change.key).or_insert_with(|| vec![Vec::new()]);
            states.push(change.versions.clone());
        }
        if let Some(key) = found.keys().find(|key| !allowed.contains_key(key.as_slice())) {
            return Some(format!("{key:?} was never written"));
        }
        allowed.into_iter().find_map(|(key, states)| {
            let found = found.get(key).cloned().unwrap_or_default();
            let current = |versions: &Vec<Version>| -> Vec<Version> {
                versions.iter().filter(|version| version.superseded.is_none()).copied().collect()
            };
            let is_allowed = states.iter().any(|state| current(state) == found);
            (!is_allowed).then(|| format!("{key:?}: {found:?}, allowed {states:?}"))
        })
    }

    /// What opening an image found, or why that is wrong.
    fn judge(&self, image: &[u64]) -> std::result::Result<Found, String> {
        if self.is_loading {
            return Ok(Found::default());
        }
        let region = Arc::new(HeapRegion::reserve(image.len(), Path::new("heap")).unwrap());
        for (word, value) in image.iter().enumerate() {
            region.words()[word].store(*value, Ordering::Relaxed);
        }
        match open(region).map_err(|error| error.to_string())? {
            None if self.is_created => Err("no index".to_string()),
            None => Ok(Found::default()),
            Some((index, found)) => {
                let contents = contents(&index).map_err(|error| error.to_string())?;
                self.refuses(&contents).map_or(Ok(found), Err)
            }
        }
    }
}

/// What the tests of crashes share with the check of a simulated region.
#[derive(Default)]
struct Crashes {
    expected: Expected,
    wrong: Option<String>,
    /// Images that opening changes, to crash while they are opened.
    to_recover: Vec<(Vec<u64>, Expected)>,
}

type SharedCrashes = Arc<PlainMutex<Crashes>>;

/// A region that checks every crash.
fn checked(region: Simulated<'static>, crashes: &SharedCrashes) -> Arc<Simulated<'static>> {
    let crashes = Arc::clone(crashes);
    region.set_check(Box::new(move |image: &[u64]| {
        let mut crashes = crashes.lock();
        if crashes.wrong.is_some() {
            return;
        }
        match crashes.expected.judge(image) {
            Ok(found) => {
                let few = if found.superseded > 0 { 10 } else { 40 };
                if found != Found::default() && crashes.to_recover.len() < few {
                    let expected = crashes.expected.clone();
                    crashes.to_recover.push((image.to_vec(), expected));
                }
            }
            Err(why) => crashes.wrong = Some(why),
        }
    }));
    Arc::new(region)
}

#[derive(Default)]
struct Outcome {
    /// What was wrong with the first wrong image.
    wrong: Option<String>,
    sites: Vec<Lost>,
    images: u64,
}

impl Outcome {
    fn add(&mut self, crashes: &SharedCrashes, region: &Simulated<'_>) {
        self.wrong = self.wrong.take().or(crashes.lock().wrong.take());
        self.sites.extend(region.sites());
        self.images += region.images_checked();
    }
}

/// Makes changes between two fences.
fn change_and_check(
    index: &LocationIndex,
    region: &Simulated<'_>,
    crashes: &SharedCrashes,
    batch: &[Change],
) {
    let mut writing = index.write();
    for change in batch {
        crashes.lock().expected.pending.push(change.clone());
        writing.set(&change.key, &change.versions).unwrap();
        region.check_now();
    }
    drop(writing);
    {
        let expected = &mut crashes.lock().expected;
        let pending = std::mem::take(&mut expected.pending);
        pending.iter().for_each(|change| apply(&mut expected.durable, change));
    }
    if batch.len().is_multiple_of(4) {
        // Nobody sees a change. Where there is no room, there is none.
        let packed = pack(b"", None, || Ok(index.write()));
        assert!(matches!(packed, Ok(()) | Err(Error::Full { .. })), "{packed:?}");
        region.check_now();
    }
}

/// Makes changes in simulated memory and checks every crash, also every crash while an index is opened or created
/// again.
fn crash_everywhere(seed: u64, workload: (Shape, usize, usize), lost: Option<Lost>) -> Outcome {
    let (shape, blocks, count) = workload;
    let mut random = Random::new(seed);
    let crashes = SharedCrashes::default();
    let region = checked(Simulated::new(blocks * BLOCK_WORDS, seed, lost), &crashes);
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    crashes.lock().expected.is_created = true;
    region.check_now();
    let all = changes(&mut random, shape, count);
    let mut rest = all.as_slice();
    while !rest.is_empty() && crashes.lock().wrong.is_none() {
        let (batch, others) = rest.split_at(rest.len().min(1 + random.below(12) as usize));
        rest = others;
        change_and_check(&index, &region, &crashes, batch);
    }
    region.check_now();
    let mut outcome = Outcome::default();
    let to_recover = std::mem::take(&mut crashes.lock().to_recover);
    // Whoever creates an index gives the old one up: it is whole, gone, or replaced by an empty one.
    crashes.lock().expected.is_created = false;
    crashes.lock().expected.is_given_up = true;
    drop(LocationIndex::create(region.clone(), IDENTITY).unwrap());
    outcome.add(&crashes, &region);
    for (image, expected) in to_recover {
        let crashes = SharedCrashes::default();
        crashes.lock().expected = expected;
        let region = checked(Simulated::from_image(&image, seed, lost), &crashes);
        if let Err(error) = open(region.clone()) {
            crashes.lock().wrong = Some(error.to_string());
        }
        region.check_now();
        outcome.add(&crashes, &region);
    }
    outcome
}

/// The workloads of the tests of crashes: shape, blocks of the region, changes.
const WORKLOADS: [(Shape, usize, usize); 5] = [
    // Leaves with several lines of slots, of which many change between two fences.
    (Shape { keys: 110, key_bytes: 4, removals: 40, several: 1 }, 16, 220),
    // Leaves that are replaced one after the other.
    (Shape { keys: 30, key_bytes: 4, removals: 20, several: 50 }, 16, 60),
    (Shape { keys: 8, ..LONG }, 96, 20),
    (Shape { keys: 40, key_bytes: 200, removals: 40, several: 5 }, 24, 50),
    // Leaves of few keys, of which all are removed while their neighbours are large.
    (Shape { keys: 39, key_bytes: 250, removals: 50, several: 0 }, 32, 90),
];

#[test]
fn every_crash_leaves_the_index_whole() {
    let seeds = std::env::var("SPINNEY_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    for workload in WORKLOADS {
        let mut images = 0;
        for seed in 1..=seeds {
            let outcome = crash_everywhere(seed, workload, None);
            assert_eq!(outcome.wrong, None, "{workload:?} with seed {seed}");
            assert!(outcome.images > 500, "{} images", outcome.images);
            images += outcome.images;
        }
        println!("{workload:?}: {} changes, {images} images", workload.2 as u64 * seeds);
    }
}

/// Each flush and each fence is needed: without it, some crash loses or invents something.
#[test]
fn no_flush_and_no_fence_can_be_left_out() {
    let mut found: BTreeMap<Lost, bool> = BTreeMap::new();
    for workload in WORKLOADS {
        for lost in crash_everywhere(1, workload, None).sites {
            let is_found = found.entry(lost).or_default();
            for seed in 1..=2 {
                *is_found =
                    *is_found || crash_everywhere(seed, workload, Some(lost)).wrong.is_some();
            }
        }
    }
    let missed: Vec<&Lost> =
        found.iter().filter(|(_, is_found)| !**is_found).map(|(lost, _)| lost).collect();
    assert!(missed.is_empty(), "{} of {} can be left out: {missed:#?}", missed.len(), found.len());
}

/// Makes changes in simulated memory, `batch` of them between two fences, and returns what was wrong with an image.
fn crash_in(blocks: usize, changes: &[Change], batch: usize) -> Option<String> {
    let crashes = SharedCrashes::default();
    let region = checked(Simulated::new(blocks * BLOCK_WORDS, 1, None), &crashes);
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    crashes.lock().expected.is_created = true;
    for batch in changes.chunks(batch) {
        change_and_check(&index, &region, &crashes, batch);
    }
    crashes.lock().wrong.take()
}

fn put(key: Vec<u8>) -> Change {
    Change { key, versions: vec![version(7)] }
}

fn removal(key: Vec<u8>) -> Change {
    Change { key, versions: Vec::new() }
}

/// A removal emptied the last line of slots and was not durable. The next one changed the line before, which was: the
/// slot of the last line was behind a gap then, and the index did not open.
#[test]
fn a_removal_follows_one_that_emptied_a_line() {
    let key = |number: u32| format!("{number:04}").into_bytes();
    for second in [0, 15, 30, 31] {
        let mut changes: Vec<Change> = (0..33).map(|number| put(key(number))).collect();
        assert_eq!(crash_in(16, &changes, 33), None);
        changes.extend([removal(key(32)), removal(key(second))]);
        assert_eq!(crash_in(16, &changes, 35), None, "then {second}");
    }
}

/// The last key of a leaf was removed in place, and then the leaf. A crash between the two left a leaf without keys, and
/// the index did not open.
#[test]
fn a_leaf_is_never_empty_between_others() {
    let key = |number: u32| format!("{number:0250}").into_bytes();
    let mut changes: Vec<Change> = (0..39).map(|number| put(key(number))).collect();
    changes.extend((13..26).map(|number| removal(key(number))));
    assert_eq!(crash_in(32, &changes, 1), None);
}

/// Opening a full index refused, since it asked for the room of a change; so did removals of keys with several versions,
/// which split leaves.
#[test]
fn a_full_index_is_opened_and_emptied() {
    let old = |number: u64| Version { superseded: Some(Seqno(number + 1)), ..version(number) };
    for (blocks, key_bytes) in [(16, 4), (17, 4), (24, 20), (40, 250), (300, 9000), (243, 60_000)] {
        let region = heap(blocks);
        let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
        let mut random = Random::new(blocks as u64);
        let mut model = Model::new();
        for number in 0.. {
            let mut key = random.next().to_be_bytes().to_vec();
            // Long keys replace short ones here and there.
            if number % 5 == 0 {
                key.resize(key_bytes.max(8), b'x');
            }
            let versions = match random.below(3) {
                0 if versions_max(key.len()) > 1 => vec![version(number), old(number)],
                _ => vec![version(number)],
            };
            match index.write().set(&key, &versions) {
                Ok(_) => model.insert(key, versions),
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "{error}");
                    break;
                }
            };
        }
        assert!(!model.is_empty(), "{blocks} blocks");
        let copy = heap(blocks);
        for (from, to) in region.words().iter().zip(copy.words()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for key in model.keys() {
            index.write().remove(key).unwrap();
        }
        assert_eq!((index.keys(), index.blocks().0), (0, 2), "{blocks} blocks");
        let (index, _) = open(copy).unwrap().unwrap();
        model.values_mut().for_each(|versions| versions.truncate(1));
        assert_eq!(contents(&index).unwrap(), model, "{blocks} blocks");
    }
}

/// After a long key that was refused, short ones were refused as well.
#[test]
fn a_refused_long_key_costs_nothing() {
    let index = LocationIndex::create(heap(24), IDENTITY).unwrap();
    let mut writing = index.write();
    writing.put(b"a", location(1, 1)).unwrap();
    writing.put(&[7; 300], location(1, 1)).unwrap_err();
    writing.put(b"b", location(1, 1)).unwrap();
}

#[test]
fn notes_stay_and_a_damaged_one_is_none() {
    let region = heap(16);
    LocationIndex::create(region.clone(), IDENTITY).unwrap();
    assert_eq!(load_note(&*region, 3), None);
    store_note(&*region, 3, 77);
    store_note(&*region, 7, (1 << 48) - 1);
    let (index, _) = open(region.clone()).unwrap().unwrap();
    index.write().put(b"key", location(1, 1)).unwrap();
    assert_eq!(load_note(&*region, 3), Some(77));
    assert_eq!(load_note(&*region, 7), Some((1 << 48) - 1));
    region.store(8 + 3, region.words()[8 + 3].load(Ordering::Relaxed) ^ 4);
    assert_eq!(load_note(&*region, 3), None);
}

/// There are no snapshots when an index is opened. Operands that needed what only a snapshot saw need nothing then:
/// they were taken for the newest of many versions.
#[test]
fn operands_over_what_only_a_snapshot_needed_need_nothing_once_it_is_opened() {
    let region = heap(16);
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    let operand = |table, is_operand| Location { is_operand, ..location(table, 1) };
    let version =
        |location, superseded: Option<u64>| Version { location, superseded: superseded.map(Seqno) };
    let old = version(location(1, 1), Some(13));
    let mut writing = index.write();
    writing.set(b"a", &[version(operand(2, true), None), old]).unwrap();
    writing.set(b"b", &[version(operand(2, true), None), version(location(1, 1), None)]).unwrap();
    writing.set(b"c", &[version(operand(2, true), None)]).unwrap();
    writing.fence();
    drop(writing);
    let (index, found) = open(region).unwrap().unwrap();
    assert_eq!((found.superseded, found.cut), (1, 1));
    assert_eq!(index.versions(b"a").unwrap(), [version(operand(2, false), None)]);
    let both = [version(operand(2, true), None), version(location(1, 1), None)];
    assert_eq!(index.versions(b"b").unwrap(), both);
    // That there are more was true before.
    assert_eq!(index.versions(b"c").unwrap(), [version(operand(2, true), None)]);
}

/// An index in a file that is mapped grows with it, and is full once it cannot.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn an_index_in_a_file_grows() {
    use crate::pmem::MappedRegion;
    use crate::vfs::{Access, PosixVfs, SharedMap, Sharing, Vfs};
    let dir = tempfile::tempdir().unwrap();
    let (vfs, path): (Arc<dyn Vfs>, _) = (Arc::new(PosixVfs::new()), dir.path().join("index"));
    let map = || SharedMap::of(&vfs, &path, Sharing::Shared).unwrap().unwrap();
    vfs.create(&path, Access::Buffered).unwrap();
    let index = LocationIndex::create(Arc::new(MappedRegion::new(map())), IDENTITY).unwrap();
    assert_eq!(index.blocks().1, 16);
    let keys = 20_000;
    let key = |number: u64| format!("user{:012}", number * 7919 % keys).into_bytes();
    for number in 0..keys {
        index.write().put(&key(number), location(number as u32, 1)).unwrap();
    }
    let (used, count) = index.blocks();
    assert!(used > 200 && count < used * 2, "{used} of {count}");
    drop(index);
    let (index, _) = open(Arc::new(MappedRegion::new(map()))).unwrap().unwrap();
    assert_eq!(index.keys(), keys);
    for number in (0..keys).step_by(77) {
        let found = index.newest(&key(number)).unwrap().unwrap();
        assert_eq!(found.location, location(number as u32, 1));
    }
}

/// A region that shows only its first words a few times more, as to a reader that began before it grew.
#[derive(Debug)]
struct Growing {
    region: Arc<HeapRegion>,
    words_before: usize,
    times: AtomicUsize,
}

impl Region for Growing {
    fn words(&self) -> &[AtomicU64] {
        let less = |times: usize| times.checked_sub(1);
        match self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => &self.region.words()[..self.words_before],
            Err(_) => self.region.words(),
        }
    }

    fn flush(&self, _words: std::ops::Range<usize>) {}

    fn fence(&self) {}

    fn path(&self) -> &Path {
        self.region.path()
    }
}

/// A reader had begun when the index grew, and met a block that it did not know. It took that for damage.
#[test]
fn a_reader_that_began_before_the_index_grew_reads_again() {
    let (region, times) = (heap(64), AtomicUsize::new(0));
    let region = Arc::new(Growing { region, words_before: 4 * BLOCK_WORDS, times });
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    let key = |number: u64| number.to_be_bytes();
    for number in 0..3_000 {
        index.write().put(&key(number), location(number as u32, 1)).unwrap();
    }
    assert!(index.blocks().0 > 20);
    for times in 0..3 {
        for number in (0..3_000).step_by(100) {
            region.times.store(times, Ordering::Relaxed);
            let found = index.newest(&key(number)).unwrap().unwrap();
            assert_eq!(found.location, location(number as u32, 1));
        }
    }
}
