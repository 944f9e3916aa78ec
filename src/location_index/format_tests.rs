//! The index as the format's page shows it.

use std::path::Path;
use std::sync::Arc;

use super::node::BLOCK_WORDS;
use super::open::store_note;
use super::*;
use crate::base::documented::hex_block;
use crate::base::ids::Seqno;
use crate::base::sync::plain::Ordering;
use crate::pmem::HeapRegion;

/// The first word of the example's leaf.
const LEAF: usize = 2 * BLOCK_WORDS;
/// The words of the example's parts: the page's hex blocks, in order.
const PARTS: [(usize, usize); 5] =
    [(0, 5), (8, 12), (LEAF, LEAF + 2), (LEAF + 8, LEAF + 9), (LEAF + 40, LEAF + 50)];

fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../docs/format/location-index.md"), nth)
}

/// The region of the example.
fn example() -> Arc<HeapRegion> {
    let region = Arc::new(HeapRegion::reserve(16 * BLOCK_WORDS, Path::new("index")).unwrap());
    let index = LocationIndex::create(Arc::<HeapRegion>::clone(&region), 0x1234_5678_9abc).unwrap();
    let leaf = |unit| LeafPlace { unit, units: 1, is_split: false };
    let newest = Version { location: Location::new(7, leaf(2), false), superseded: None };
    let older =
        Version { location: Location::new(5, leaf(9), false), superseded: Some(Seqno(300)) };
    index.write().set(b"pear", &[newest, older]).unwrap();
    let operands = Location::new(7, leaf(0), true);
    index.write().set(b"apple", &[Version { location: operands, superseded: None }]).unwrap();
    drop(index);
    for (note, content) in [1, 42, 310, 0].into_iter().enumerate() {
        store_note(&*region, note, content);
    }
    region
}

fn bytes(region: &HeapRegion, (start, end): (usize, usize)) -> Vec<u8> {
    let words = region.words()[start..end].iter();
    words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
}

#[test]
fn the_documented_index_is_what_is_written() {
    let region = example();
    for (nth, part) in PARTS.into_iter().enumerate() {
        let bytes = bytes(&region, part);
        assert_eq!(bytes, documented(nth), "part {nth}: {bytes:02x?}");
    }
}

#[test]
fn the_documented_index_is_read() {
    let region = Arc::new(HeapRegion::reserve(16 * BLOCK_WORDS, Path::new("index")).unwrap());
    for (nth, (start, end)) in PARTS.into_iter().enumerate() {
        let part = documented(nth);
        assert_eq!(part.len(), (end - start) * WORD_BYTES);
        for (word, bytes) in (start..end).zip(part.chunks(WORD_BYTES)) {
            region.store(word, u64::from_le_bytes(bytes.try_into().unwrap()));
        }
    }
    let opened = LocationIndex::open(region, 0x1234_5678_9abc, &mut |_| {}).unwrap();
    let (index, found) = opened.expect("an index of this identity");
    assert_eq!((found.superseded, found.cut), (1, 1));
    assert_eq!(index.keys(), 2);
    let apple = index.versions(b"apple").unwrap();
    assert!(apple[0].location.is_operand && apple[0].location.table == 7);
    // What only snapshots needed is gone: there are none when an index is opened.
    let pear = index.versions(b"pear").unwrap();
    assert_eq!(pear.len(), 1);
    assert_eq!(pear[0].location.leaf, Some(LeafPlace { unit: 2, units: 1, is_split: false }));
}
