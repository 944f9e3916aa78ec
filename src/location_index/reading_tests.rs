//! Reading beside a writer, and reading what is damaged.

use super::*;

/// Each part of a leaf is what the model has between its bounds, or cannot be read.
fn check_parts(index: &LocationIndex, model: &Model, said: &str) {
    let keys = model.keys().step_by(7);
    for at in keys.flat_map(|key| [LeafAt::Key(key), LeafAt::Below(key)]).chain([LeafAt::Last]) {
        let LeafEntries { lower, upper, entries } = match index.leaf(at) {
            Ok(part) => part,
            Err(Error::Corruption { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let is_inside = |key: &Vec<u8>| {
            lower.as_ref().is_none_or(|lower| key >= lower)
                && upper.as_ref().is_none_or(|upper| key < upper)
        };
        let expected = model.iter().filter(|(key, _)| is_inside(key));
        let found = entries.iter().map(|(key, versions)| (key.to_vec(), versions.to_vec()));
        assert!(found.eq(expected.map(|(key, it)| (key.clone(), it.clone()))), "{said}: {at:?}");
    }
}

/// Each flipped bit is an error, or changes nothing.
#[test]
fn a_flipped_bit_is_never_a_wrong_answer() {
    let region = heap(32);
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    let mut random = Random::new(3);
    let shape = Shape { removals: 10, several: 0, ..SHORT };
    let mut model = Model::new();
    for change in changes(&mut random, shape, 600) {
        index.write().set(&change.key, &change.versions).unwrap();
        apply(&mut model, &change);
    }
    let mut errors = 0;
    let is_used = |word: &usize| region.words()[*word].load(Ordering::Relaxed) != 0;
    for word in (0..32 * BLOCK_WORDS).filter(is_used) {
        let bit = random.below(64);
        let sound = region.words()[word].load(Ordering::Relaxed);
        region.words()[word].store(sound ^ 1 << bit, Ordering::Relaxed);
        for (key, versions) in &model {
            match index.newest(key) {
                Ok(found) => assert_eq!(found, versions.first().copied(), "word {word} bit {bit}"),
                Err(Error::Corruption { .. }) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if word % 8 == 0 {
            check_parts(&index, &model, &format!("word {word} bit {bit}"));
        }
        let copy = heap(32);
        for (from, to) in region.words().iter().zip(copy.words()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        match open(copy) {
            Ok(Some((index, _))) => match contents(&index) {
                Ok(found) => assert_eq!(found, model, "word {word} bit {bit}"),
                Err(error) => assert!(matches!(error, Error::Corruption { .. }), "{error}"),
            },
            Err(error) => {
                let named =
                    matches!(error, Error::Corruption { .. } | Error::UnsupportedVersion { .. });
                assert!(named, "{error}");
            }
            // The mark or the identity: whoever opens it rebuilds the index.
            Ok(None) => assert!(word <= 2, "word {word}"),
        }
        region.words()[word].store(sound, Ordering::Relaxed);
    }
    assert!(errors > 1000, "{errors} errors");
}

#[test]
fn readers_beside_a_writer_find_every_key() {
    let index = LocationIndex::create(heap(4096), IDENTITY).unwrap();
    // Even keys stay, odd ones come and go. Some have key blocks.
    let key = |number: u32| {
        let long = if number.is_multiple_of(32) { 600 } else { 0 };
        [&number.to_be_bytes()[..], &vec![7; long]].concat()
    };
    let keys: u32 = if cfg!(miri) { 200 } else { 4000 };
    (0..keys).for_each(|number| {
        index.write().put(&key(2 * number), location(1, number)).unwrap();
    });
    let is_done = crate::base::sync::plain::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (index, is_done) = (&index, &is_done);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut near = NearLeaf::default();
                while !is_done.load(Ordering::Relaxed) {
                    let number = random.below(u64::from(keys)) as u32;
                    let found = index.newest(&key(2 * number)).unwrap();
                    assert_eq!(found.unwrap().location, location(1, number));
                    let part = index.ascending(&key(2 * number), false).unwrap();
                    let first = part.entries.first().map(|entry| entry.key.clone());
                    assert_eq!(first.as_deref(), Some(&key(2 * number)[..]));
                    let part = index.descending(&key(2 * number), true).unwrap();
                    let first = part.entries.first().map(|entry| entry.key.clone());
                    assert_eq!(first.as_deref(), Some(&key(2 * number)[..]));
                    for number in number..keys.min(number + 20) {
                        let found = index.versions_near(&key(2 * number), &mut near).unwrap();
                        let expected = Version { location: location(1, number), superseded: None };
                        assert_eq!(found, [expected]);
                    }
                    let part = index.leaf(LeafAt::Key(&key(2 * number))).unwrap().entries;
                    let first = part.iter().next().map(|(key, _)| key.to_vec());
                    assert_eq!(first.as_deref(), Some(&key(2 * number)[..]));
                    if number > 0 {
                        // What lies just below may be another leaf's.
                        let mut part = index.leaf(LeafAt::Below(&key(2 * number))).unwrap();
                        while part.entries.len() == 0 {
                            let lower = part.lower.unwrap();
                            part = index.leaf(LeafAt::Below(&lower)).unwrap();
                        }
                        let last = part.entries.iter().last().map(|(key, _)| key.to_vec());
                        let expected = [key(2 * number - 1), key(2 * number - 2)];
                        assert!(last.is_some_and(|last| expected.contains(&last)));
                    }
                }
            });
        }
        let mut random = Random::new(9);
        let rounds = if cfg!(miri) { 200 } else { 200_000 };
        for _ in 0..rounds {
            let number = random.below(u64::from(keys)) as u32;
            let mut writing = index.write();
            if random.below(2) == 0 {
                writing.put(&key(2 * number + 1), location(2, number)).unwrap();
            } else {
                writing.remove(&key(2 * number + 1)).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// Who looks ascending keys up reads the leaf of the key before, and notices each change of it.
#[test]
fn a_leaf_that_has_been_met_is_read_again_only_as_long_as_it_is_the_same() {
    let index = LocationIndex::create(heap(256), IDENTITY).unwrap();
    let mut random = Random::new(5);
    let (mut model, mut near) = (Model::new(), NearLeaf::default());
    let mut from_root = 0;
    for change in
        changes(&mut random, SHORT, 3000).into_iter().chain(changes(&mut random, LONG, 600))
    {
        // Another key's lookup, the change, and the lookups of the keys from the changed one on.
        let before = random.below(150);
        let _ = index.versions_near(format!("{before:04}").as_bytes(), &mut near).unwrap();
        index.write().set(&change.key, &change.versions).unwrap();
        apply(&mut model, &change);
        for (key, versions) in model.range(change.key.clone()..).take(8) {
            from_root += usize::from(
                near.0.as_ref().is_none_or(|met| index.versions_met(key, met).is_none()),
            );
            assert_eq!(index.versions_near(key, &mut near).unwrap(), *versions);
        }
        assert_eq!(index.versions_near(&change.key, &mut near).unwrap(), change.versions);
    }
    assert!(from_root < 3600 * 3, "{from_root} searches from the root");
}

/// A leaf whose page had been lost was read as one without keys by whoever had met it.
#[test]
fn damage_of_a_leaf_that_has_been_met_is_told() {
    let region = heap(64);
    let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
    for number in 0..40 {
        index.write().put(&[number], location(1, u32::from(number))).unwrap();
    }
    let mut near = NearLeaf::default();
    assert_eq!(index.versions_near(&[3], &mut near).unwrap().len(), 1);
    let block = near.0.as_ref().unwrap().block as usize;
    (0..BLOCK_WORDS).for_each(|word| region.store(block * BLOCK_WORDS + word, 0));
    let is_damage = |found: Result<Vec<Version>>| found.is_err_and(|error| error.is_corruption());
    assert!(is_damage(index.versions(&[4])));
    assert!(is_damage(index.versions_near(&[4], &mut near)));
}

/// Whoever has met a leaf sees what was written before it asks, beside a writer that changes, replaces, splits, joins and
/// packs leaves.
#[test]
fn what_was_written_before_is_read_from_a_leaf_that_has_been_met() {
    use crate::base::sync::plain::{AtomicBool, AtomicU32};
    // More blocks than there are locks.
    let index = LocationIndex::create(heap(4096), IDENTITY).unwrap();
    let key = |number: usize| {
        let long = if number.is_multiple_of(32) { 600 } else { 0 };
        [&(number as u32).to_be_bytes()[..], &vec![7; long]].concat()
    };
    let keys = if cfg!(miri) { 100 } else { 20_000 };
    let written: Vec<AtomicU32> = (0..keys).map(|_| AtomicU32::new(1)).collect();
    for number in 0..keys {
        index.write().put(&key(number), location(1, 0)).unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, is_done, written) = (&index, &is_done, &written);
        scope.spawn(move || {
            let mut random = Random::new(5);
            let mut near = NearLeaf::default();
            while !is_done.load(Ordering::Relaxed) {
                let first = random.below(keys as u64) as usize;
                for (number, written) in written.iter().enumerate().skip(first).take(100) {
                    let least = written.load(Ordering::Acquire);
                    let found = index.versions_near(&key(number), &mut near).unwrap();
                    let newest = found.first().map_or(0, |newest| newest.location.table);
                    assert!(newest >= least, "{number}: {newest} was read, {least} written");
                }
            }
        });
        let mut random = Random::new(6);
        let rounds = if cfg!(miri) { 200 } else { 100_000 };
        for round in 2..rounds {
            // Near each other, that leaves are split and joined often.
            let near = round as usize / 1000 * 100 % keys;
            let number = (near + random.below(200) as usize) % keys;
            let count = if random.below(4) == 0 { 4 } else { 1 };
            let version = |old: u32| Version {
                location: location(round, old),
                superseded: (old > 0).then_some(Seqno(u64::from(count - old))),
            };
            let versions: Vec<Version> = (0..count).map(version).collect();
            index.write().set(&key(number), &versions).unwrap();
            written[number].store(round, Ordering::Release);
            if random.below(1000) == 0 {
                pack(&key(near), None, || Ok(index.write())).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// A region that is only partly in memory. It notes which blocks were said to be read soon, and which one was used last.
#[derive(Debug)]
struct PartlyResident {
    region: Arc<HeapRegion>,
    ahead: Mutex<Vec<usize>>,
    last: Mutex<usize>,
}

impl Region for PartlyResident {
    fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    fn used(&self, word: usize) {
        *self.last.lock() = word / BLOCK_WORDS;
    }

    fn is_partly_resident(&self) -> bool {
        true
    }

    fn will_read(&self, words: std::ops::Range<usize>) {
        self.ahead.lock().push(words.start / BLOCK_WORDS);
    }

    fn flush(&self, words: std::ops::Range<usize>) {
        self.region.flush(words);
    }

    fn fence(&self) {
        self.region.fence();
    }

    fn path(&self) -> &Path {
        self.region.path()
    }
}

/// Each leaf that was not in memory was read when the first of its keys came, one after the other: a load had half of
/// the rate.
#[test]
fn leaves_of_ascending_keys_are_read_ahead_each_once() {
    for keys in [1, 5000] {
        let (ahead, last) = (Mutex::default(), Mutex::default());
        let region = Arc::new(PartlyResident { region: heap(1024), ahead, last });
        let index = LocationIndex::create(region.clone(), IDENTITY).unwrap();
        let key = |number: u32| format!("{number:08}").into_bytes();
        let location = Location { table: 1, leaf: None, is_operand: false };
        (0..keys).for_each(|it| drop(index.write().put(&key(it * 7), location).unwrap()));
        let wanted: Vec<_> = (0..keys).step_by(13).map(|it| key(it * 7 + 3)).collect();
        index.prefetch(wanted.iter().map(|key| &**key));
        let ahead = std::mem::take(&mut *region.ahead.lock());
        let mut leaves = Vec::new();
        for key in &wanted {
            index.versions(key).unwrap();
            leaves.push(*region.last.lock());
        }
        leaves.dedup();
        // A root that is a leaf is in memory.
        let expected = if keys > 1 { leaves } else { Vec::new() };
        assert_eq!(ahead, expected);
        assert!(keys == 1 || ahead.len() > 20);
    }
}
