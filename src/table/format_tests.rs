//! This build writes and reads the examples of the format documents.

use std::path::Path;

use super::BlobPointer;
use super::blob::BlobFooter;
use super::footer::{FilterSection, Footer};
use super::index::{LevelBuilder, PLAIN_SEPARATOR, Subtree, child};
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::{FLAG_CONTINUES, FLAG_SPLIT, KIND_BITS, Node, REST_TAG, Shape};
use super::node_builder::{NodeBuilder, common_prefix};
use super::properties::{BlobReference, Origin, Properties};
use super::sample::{KeySampler, SampleLimit};
use crate::base::entry::{EntryKind, EntryRef};
use crate::base::error::Error;
use crate::base::ids::{FileId, KeyspaceId, Seqno};
use crate::cache::{Compression, PagePointer};
use crate::manifest::KeyspaceMeta;

pub(super) const TABLE: &str = include_str!("../../docs/format/table.md");
const BLOB: &str = include_str!("../../docs/format/blob.md");

/// The bytes of the first hex block after `heading`. Text after a `|` is a comment.
pub(super) fn example(document: &str, heading: &str) -> Vec<u8> {
    let (_, after) = document.split_once(heading).expect("the heading is in the document");
    let (_, block) = after.split_once("```hex\n").expect("a hex block follows");
    let (block, _) = block.split_once("```").expect("the block ends");
    let digits = block.lines().flat_map(|line| line.split('|').next());
    digits
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect()
}

const ENTRIES: [EntryRef<'static>; 3] = [
    EntryRef { key: b"spin", seqno: Seqno(9), kind: EntryKind::Put, value: b"top" },
    EntryRef { key: b"spinet", seqno: Seqno(7), kind: EntryKind::Delete, value: b"" },
    EntryRef { key: b"spinney", seqno: Seqno(12), kind: EntryKind::Merge, value: b"+1" },
];

fn node_of(entries: &[EntryRef<'_>]) -> Vec<u8> {
    let (mut node, mut values, mut ends) = (NodeBuilder::new(), Vec::new(), Vec::new());
    for entry in entries {
        let meta = entry.seqno.0 << KIND_BITS | entry.kind as u64;
        let shared = node.last().map_or(0, |(last, _)| common_prefix(last, entry.key));
        let measure = node.measure.with(entry.key.len(), shared, meta, entry.value.len());
        node.push(entry.key, meta, measure);
        values.extend_from_slice(entry.value);
        ends.push(values.len());
    }
    let mut payload = Vec::new();
    node.encode(0, 0, &[], &values, &ends, &mut payload);
    payload
}

fn assert_leaf(payload: &[u8], entries: &[EntryRef<'_>]) {
    assert_eq!(node_of(entries), payload);
    let mut leaf = LeafCursor::new();
    leaf.load(payload).unwrap();
    assert_eq!(leaf.entries(), entries.len());
    for (i, entry) in entries.iter().enumerate() {
        assert_eq!(leaf.place(i), Ok(Placed::Whole));
        assert_eq!(leaf.entry(), Some(*entry));
        assert_eq!(leaf.search(entry.key, entry.seqno.0 + 1), Ok(i));
        assert_eq!(leaf.search(entry.key, entry.seqno.0), Ok(i + 1));
    }
}

#[test]
fn the_example_of_a_leaf_with_a_rest_and_a_split_entry() {
    let payload = example(TABLE, "### Example: a leaf that begins with a rest");
    let entries = [
        (&b"k1"[..], 5 << KIND_BITS | REST_TAG, &b"xyz"[..]),
        (b"k2", 6 << KIND_BITS | EntryKind::Put as u64, b"ab"),
        (b"k3", 7 << KIND_BITS | EntryKind::Put as u64, b"cde"),
    ];
    let (mut node, mut values, mut ends) = (NodeBuilder::new(), Vec::new(), Vec::new());
    for (key, meta, value) in entries {
        let shared = node.last().map_or(0, |(last, _)| common_prefix(last, key));
        node.push(key, meta, node.measure.with(key.len(), shared, meta, value.len()));
        values.extend_from_slice(value);
        ends.push(values.len());
    }
    let mut encoded = Vec::new();
    node.encode(0, FLAG_CONTINUES | FLAG_SPLIT, &[], &values, &ends, &mut encoded);
    assert_eq!(encoded, payload);
    let mut leaf = LeafCursor::new();
    leaf.load(&payload).unwrap();
    assert_eq!((leaf.first(), leaf.entries()), (1, 3));
    leaf.check_rest(b"k1", Seqno(5)).unwrap();
    assert!(leaf.check_rest(b"k1", Seqno(4)).is_err() && leaf.check_rest(b"k0", Seqno(5)).is_err());
    assert_eq!(leaf.place(1), Ok(Placed::Whole));
    assert_eq!(leaf.entry().unwrap().value, b"ab");
    assert_eq!(leaf.place(2), Ok(Placed::Split));
    assert_eq!((leaf.entry(), leaf.placed_key()), (None, &b"k3"[..]));
}

#[test]
fn the_leaf_examples() {
    assert_leaf(&example(TABLE, "### Example: a leaf of mixed entries"), &ENTRIES);
    let uniform = [
        EntryRef { key: b"user0017", seqno: Seqno(100), kind: EntryKind::Put, value: b"ab" },
        EntryRef { key: b"user0291", seqno: Seqno(131), kind: EntryKind::Put, value: b"cd" },
    ];
    assert_leaf(&example(TABLE, "### Example: a leaf of uniform entries"), &uniform);
}

#[test]
fn the_index_example() {
    let payload = example(TABLE, "### Example: an index node");
    let mut level = LevelBuilder::new(1);
    let children = [("ash", 0, 1, 31), ("be", 1, 1, 33), ("oak", 2, 3, 5)];
    for (separator, unit, units, tuples) in children {
        let subtree = Subtree {
            separator: separator.as_bytes().to_vec(),
            separator_meta: PLAIN_SEPARATOR,
            tuples,
            bytes: tuples * 100,
        };
        level.add(&subtree, PagePointer { unit, units });
    }
    assert_eq!(level.finish().remove(0).1, payload);
    let shape = Shape::parse(&payload, 1).unwrap();
    let node = Node { bytes: &payload, shape: &shape };
    let mut before = 0;
    for (i, (separator, unit, units, tuples)) in children.into_iter().enumerate() {
        let found = child(&node, i).unwrap();
        assert_eq!(node.key(i).unwrap(), separator.as_bytes());
        assert_eq!(found.pointer, PagePointer { unit, units });
        assert_eq!(found.tuples, (before, before + tuples));
        assert_eq!(found.bytes, (before * 100, (before + tuples) * 100));
        before += tuples;
    }
}

#[test]
fn the_footer_example() {
    let payload = example(TABLE, "### Example: a footer");
    let footer = Footer {
        height: 2,
        root: PagePointer { unit: 70, units: 1 },
        properties: PagePointer { unit: 71, units: 1 },
        leaf_units: 64,
        filter: FilterSection { kind: 1, first_unit: 64, units: 3, pages: 3, hash_id: 0x8877_6655 },
        has_splits: true,
    };
    assert_eq!(footer.encode(), payload);
    let decode = |payload: &[u8]| Footer::decode(payload, Path::new("9.table"), 72 * 4096);
    assert_eq!(decode(&payload).unwrap(), footer);
    let mut future = payload.clone();
    future[8] = 3;
    assert!(matches!(
        decode(&future),
        Err(Error::UnsupportedVersion { found: 3, supported: 2, .. })
    ));
    for (at, value) in
        [(0, b'X'), (8, 0), (12, 17), (17, 9), (23, 1), (31, 1), (39, 1), (36, 2), (40, 0)]
    {
        let mut damaged = payload.clone();
        damaged[at] = value;
        assert!(decode(&damaged).unwrap_err().is_corruption(), "byte {at}");
    }
    for n in 0..payload.len() {
        assert!(decode(&payload[..n]).unwrap_err().is_corruption());
    }
}

#[test]
fn the_properties_example() {
    let payload = example(TABLE, "### Example: properties");
    let mut sampler = KeySampler::new(SampleLimit::keys(2));
    sampler.add_key(0x2c << 32, 0, (3, 21), EntryKind::PutBlob, 50_000);
    sampler.add_key(0x9000 << 32, 2, (3, 100), EntryKind::Put, 0);
    sampler.add_key(0x15 << 32, 3, (5, 50), EntryKind::Put, 0);
    sampler.add_version((5, 50), EntryKind::Put, 0);
    let sample = sampler.finish(0);
    let properties = Properties {
        first_key: b"ash".to_vec(),
        last_key: b"yew".to_vec(),
        puts: 3,
        deletes: 1,
        merges: 0,
        blob_puts: 2,
        blob_merges: 1,
        key_bytes: 20,
        value_bytes: 300,
        seqno_min: Seqno(4),
        seqno_max: Seqno(1000),
        compression: Compression::Lz4,
        leaf_pages: 1,
        index_pages: 0,
        creation: 17,
        blobs: vec![BlobReference { file: FileId(5), values: 3, bytes: 100_000 }],
        sample,
    };
    assert_eq!(properties.encode(), payload);
    let decode = |payload: &[u8]| Properties::decode(payload, Path::new("9.table"), 4096);
    assert_eq!(decode(&payload).unwrap(), properties);
    for n in 0..payload.len() {
        assert!(decode(&payload[..n]).unwrap_err().is_corruption());
    }
}

#[test]
fn the_origin_example() {
    let origin = Origin {
        keyspace: KeyspaceId(3),
        meta: KeyspaceMeta {
            name: "users".to_string(),
            kind: "stb".to_string(),
            options: vec![1, 0, 0x80, 0x20, 0, 0x7f],
            operator: None,
        },
    };
    let mut encoded = Vec::new();
    origin.encode(&mut encoded);
    assert_eq!(encoded, example(TABLE, "### Example: an origin"));
    let before = example(TABLE, "### Example: properties");
    let payload = [&*before, &encoded].concat();
    let decode = |bytes: &[u8]| Properties::decode_with_origin(bytes, Path::new("9.table"), 4096);
    let (properties, found) = decode(&payload).unwrap();
    assert_eq!(found, Some(origin));
    assert_eq!(Properties::decode(&payload, Path::new("9.table"), 4096).unwrap(), properties);
    assert_eq!(decode(&before).unwrap(), (properties, None));
    for n in before.len() + 1..payload.len() {
        assert!(decode(&payload[..n]).unwrap_err().is_corruption());
    }
}

#[test]
fn the_blob_examples() {
    let payload = example(BLOB, "### Example: a footer");
    let footer = BlobFooter { bytes: 10_000, values: 3 };
    assert_eq!(footer.encode(), payload);
    let decode = |payload: &[u8]| BlobFooter::decode(payload, Path::new("5.blob"), 3 * 4096);
    assert_eq!(decode(&payload).unwrap(), footer);
    let mut future = payload.clone();
    future[8] = 3;
    assert!(matches!(decode(&future), Err(Error::UnsupportedVersion { found: 3, .. })));
    for at in [0, 17, 23] {
        let mut damaged = payload.clone();
        damaged[at] ^= 0x80;
        assert!(decode(&damaged).unwrap_err().is_corruption());
    }
    let bytes = example(BLOB, "### Example: a pointer");
    let pointer = BlobPointer {
        file: FileId(5),
        offset: 4072,
        length: 5000,
        checksum: 0x0123_4567_89ab_cdef,
    };
    let mut encoded = Vec::new();
    pointer.encode(&mut encoded);
    assert_eq!(encoded, bytes);
    assert_eq!(BlobPointer::decode(&bytes), Some(pointer));
}
