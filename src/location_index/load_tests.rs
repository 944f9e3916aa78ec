//! Filling an index with keys in their order.

use super::*;
use crate::base::limits::KEY_BYTES_MAX;

/// Keys with several versions among them, in their order.
fn sorted(shape: Shape, count: usize) -> Model {
    let mut model = Model::new();
    let changes = changes(&mut Random::new(shape.keys), shape, count);
    changes.iter().for_each(|change| apply(&mut model, change));
    model
}

/// Fills an index, with the right to change it given up now and then. Returns the error of the key that had no room.
fn fill(index: &LocationIndex, model: &Model) -> Option<Error> {
    let (mut load, mut error) = (Load::default(), None);
    let pairs: Vec<_> = model.iter().collect();
    for pairs in pairs.chunks(64) {
        let mut writing = index.write();
        for (key, versions) in pairs {
            error = error.or_else(|| writing.load(&mut load, key, versions).err());
        }
    }
    index.write().end_load(load).unwrap();
    error
}

const SHAPES: [(Shape, usize); 6] = [
    (Shape { keys: 1, ..SHORT }, 64),
    (SHORT, 64),
    (LONG, 256),
    (Shape { key_bytes: 9000, ..LONG }, 256),
    (Shape { keys: 9000, key_bytes: 20, removals: 10, several: 2 }, 1024),
    (Shape { keys: 2000, key_bytes: 250, removals: 0, several: 40 }, 4096),
];

#[test]
fn what_is_loaded_is_what_keys_set_one_by_one_are() {
    for (shape, blocks) in SHAPES {
        let mut model = sorted(shape, 8000);
        let region = heap(blocks);
        let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
        assert!(fill(&index, &model).is_none());
        assert_eq!(contents(&index).unwrap(), model, "{shape:?}");
        assert!(contents_backwards(&index).into_iter().eq(model.clone().into_iter().rev()));
        assert!(contents_by_leaf(&index) == model, "{shape:?}");
        assert_eq!(index.keys(), model.len() as u64);
        let one_by_one = LocationIndex::create(heap(blocks), IDENTITY).unwrap();
        for (key, versions) in &model {
            one_by_one.write().set(key, versions).unwrap();
        }
        // Leaves are filled to nine tenths.
        let (used, others) = (index.blocks().0, one_by_one.blocks().0);
        assert!(used <= others + others / 8 + 1, "{shape:?}: {used} blocks, {others} one by one");
        // It can be changed like any other.
        for change in changes(&mut Random::new(7), shape, 3000) {
            index.write().set(&change.key, &change.versions).unwrap();
            apply(&mut model, &change);
        }
        assert_eq!(contents(&index).unwrap(), model, "{shape:?}");
        for versions in model.values_mut() {
            versions.retain(|version| version.superseded.is_none());
        }
        let used = index.blocks().0;
        let (again, _) = open(region).unwrap().unwrap();
        assert_eq!(contents(&again).unwrap(), model, "{shape:?}");
        assert!(again.blocks().0 <= used + 3, "{} of {used}", again.blocks().0);
    }
}

#[test]
fn an_index_into_which_nothing_is_loaded_stays_empty() {
    let index = LocationIndex::create(heap(64), IDENTITY).unwrap();
    assert!(fill(&index, &Model::new()).is_none());
    assert_eq!((index.keys(), index.blocks().0), (0, 2), "the header and a leaf");
}

/// What has been loaded before there was no room is there, in order, and can be removed.
#[test]
fn a_load_that_finds_no_room_keeps_what_it_has() {
    for (shape, blocks) in [
        (Shape { keys: 9000, key_bytes: 20, removals: 0, several: 2 }, 40),
        (Shape { keys: 2000, key_bytes: 250, removals: 0, several: 5 }, 64),
        (Shape { keys: 900, key_bytes: 9000, ..LONG }, 300),
    ] {
        let model = sorted(shape, 20_000);
        let index = LocationIndex::create(heap(blocks), IDENTITY).unwrap();
        let error = fill(&index, &model);
        assert!(matches!(error, Some(Error::Full { .. })), "{error:?}");
        let loaded: Model = model.into_iter().take(index.keys() as usize).collect();
        assert!(!loaded.is_empty());
        assert_eq!(contents(&index).unwrap(), loaded);
        for key in loaded.keys() {
            index.write().remove(key).unwrap();
        }
        assert_eq!((index.keys(), index.blocks().0), (0, 2), "the header and a leaf");
    }
}

/// Bounds of long keys took the blocks that the end of the load needed: it found no room, and the store could not be opened. The
/// sizes are those of a model of the blocks that are needed.
#[test]
fn a_load_of_long_keys_can_be_finished() {
    for blocks in [43_815, 44_040] {
        let key = |number: u64| {
            let mut key = vec![b'x'; KEY_BYTES_MAX - 8];
            key.extend(number.to_be_bytes());
            key
        };
        let index = LocationIndex::create(heap(blocks), IDENTITY).unwrap();
        let (mut load, mut number) = (Load::default(), 0);
        let error = loop {
            let loaded = index.write().load(&mut load, &key(number), &[version(number)]);
            match loaded {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Full { .. }), "{error}");
        index.write().end_load(load).unwrap();
        assert_eq!(index.keys(), number);
        for number in (0..number).step_by(100) {
            assert_eq!(index.versions(&key(number)).unwrap(), [version(number)]);
        }
    }
}

/// Once it has been filled, and the next fence is done, all of it is durable; and no flush can be left out.
#[test]
fn what_has_been_loaded_is_durable() {
    let crash = |shape: Shape, blocks: usize, lost: Option<Lost>| {
        let crashes = SharedCrashes::default();
        let region = checked(Simulated::new(blocks * BLOCK_WORDS, 1, lost), &crashes);
        let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
        let before = region.sites();
        crashes.lock().expected.is_created = true;
        crashes.lock().expected.is_loading = true;
        let model = sorted(shape, 400);
        assert!(fill(&index, &model).is_none());
        crashes.lock().expected.durable = model;
        crashes.lock().expected.is_loading = false;
        region.check_now();
        let wrong = crashes.lock().wrong.take();
        let sites: Vec<Lost> =
            region.sites().into_iter().filter(|site| !before.contains(site)).collect();
        (wrong, sites)
    };
    let workloads = [(Shape { keys: 400, ..SHORT }, 64), (LONG, 192)];
    let mut found: BTreeMap<Lost, bool> = BTreeMap::new();
    for (shape, blocks) in workloads {
        let (wrong, sites) = crash(shape, blocks, None);
        assert_eq!(wrong, None, "{shape:?}");
        for lost in sites {
            *found.entry(lost).or_default() |= crash(shape, blocks, Some(lost)).0.is_some();
        }
    }
    let missed: Vec<_> = found.iter().filter(|(_, is_found)| !**is_found).collect();
    assert!(missed.is_empty(), "{} of {} can be left out: {missed:#?}", missed.len(), found.len());
    assert!(!found.is_empty());
}
