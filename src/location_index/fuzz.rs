//! Fuzz target: a region's blocks. What opens is whole: all of it can be read, in order, and changed.

use std::path::Path;
use std::sync::Arc;

use super::node::BLOCK_WORDS;
use super::{LeafPlace, Location, LocationIndex, Version};
use crate::base::error::Error;
use crate::base::fuzz::{FILE, Target, named};
use crate::base::sync::plain::Ordering;
use crate::pmem::{HeapRegion, Region, WORD_BYTES};

pub(crate) const TARGETS: [Target; 1] =
    [Target { name: "location-index", run, seeds: index_seeds }];

const IDENTITY: u64 = 77;
/// Blocks beside those of the input, for inner nodes and for a change.
const BLOCKS_MORE: usize = 80;
/// The input is cut at so many blocks.
const BLOCKS_MAX: usize = 64;

fn region(blocks: usize) -> Arc<HeapRegion> {
    let region = HeapRegion::reserve(blocks * BLOCK_WORDS, Path::new(FILE));
    Arc::new(region.expect("addresses for a small region"))
}

fn run(data: &[u8]) {
    let region = region(BLOCKS_MAX + BLOCKS_MORE);
    for (word, bytes) in data.chunks_exact(WORD_BYTES).take(BLOCKS_MAX * BLOCK_WORDS).enumerate() {
        let bytes = bytes.try_into().unwrap_or_default();
        region.store(word, u64::from_le_bytes(bytes));
    }
    let opened = match LocationIndex::open(region, IDENTITY, &mut |_| {}) {
        // The blocks that are left do not do for its inner nodes.
        Err(Error::Full { .. }) => return,
        opened => named(opened),
    };
    let Some(Some((index, _))) = opened else { return };
    let before = keys(&index);
    assert_eq!(before.len() as u64, index.keys());
    let key = b"changed";
    match index.write().set(key, &[version(5)]) {
        Ok(versions) => assert_eq!(versions.is_empty(), !before.iter().any(|it| it == key)),
        Err(Error::Full { .. }) => return,
        Err(error) => panic!("what was opened is whole: {error}"),
    }
    assert_eq!(index.versions(key).expect("what was opened is whole"), [version(5)]);
    let added = usize::from(!before.iter().any(|it| it == key));
    assert_eq!(keys(&index).len(), before.len() + added);
}

fn keys(index: &LocationIndex) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut rest = Some(Vec::new());
    while let Some(from) = rest {
        let part = index.ascending(&from, false).expect("what was opened is whole");
        keys.extend(part.entries.into_iter().map(|entry| entry.key));
        rest = part.rest;
    }
    assert!(keys.is_sorted_by(|a, b| a < b), "keys in order");
    keys
}

fn version(unit: u32) -> Version {
    let leaf = LeafPlace { unit, units: 1, is_split: false };
    Version { location: Location::new(3, leaf, false), superseded: None }
}

/// An index with some keys, of which one is long, and one with several leaves.
fn index_seeds() -> Vec<Vec<u8>> {
    let seed = |keys: &[Vec<u8>], blocks: usize| {
        let region = region(blocks);
        let index = LocationIndex::create(Arc::<HeapRegion>::clone(&region), IDENTITY);
        let index = index.expect("a region that is large enough");
        for (unit, key) in (1..).zip(keys) {
            index.write().set(key, &[version(unit)]).expect("room for a few keys");
        }
        let words = region.words().iter().map(|word| word.load(Ordering::Relaxed));
        let blocks = index.blocks().0 as usize + 1;
        words.take(blocks * BLOCK_WORDS).flat_map(u64::to_le_bytes).collect()
    };
    let few = [b"a".to_vec(), vec![b'b'; 300], b"c".to_vec()];
    let many: Vec<Vec<u8>> = (0..300).map(|n| format!("key {n:06}").into_bytes()).collect();
    vec![seed(&few, 128), seed(&many, 128)]
}
