//! Fuzz targets: a page of a hash index, whole heads, and the local indexes of pieces.

use super::head::HeadBuilder;
use super::index::index_hash;
use super::index_page::{self, PAYLOAD_BYTES, Shape};
use super::piece::{Found, PieceBuilder, PieceIndex};
use super::segment::{Construction, SegmentBuilder};
use super::{Head, hash_list::HashListReader, hash_list::HashListWriter};
use crate::base::fuzz::{Target, named, split_array, split_first};
use crate::base::key_hash::hash_key;
use crate::cache::fuzz::{ID, bytes_of, data_files, with_file};
use crate::cache::{FileType, PageFile, PageFileWriter, PagePointer, ReadContext};

pub(crate) const TARGETS: [Target; 3] = [
    Target { name: "hash-index-page", run: index_page, seeds: index_page_seeds },
    Target { name: "head", run: head, seeds: head_seeds },
    Target { name: "local-index", run: local_index, seeds: local_index_seeds },
];

const CONSTRUCTIONS: [Construction; 2] = [Construction::Displacement, Construction::Pilots];
/// Leaves lie in units below this.
const LEAF_UNITS: u32 = 1 << 14;

/// Hashes of keys, ascending and distinct.
fn hashes(keys: std::ops::Range<u64>) -> Vec<u64> {
    let mut hashes: Vec<u64> = keys.map(|key| index_hash(hash_key(&key.to_le_bytes()))).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

/// Value bits, signature bytes, and a page's payload, which is probed as the page that it says it is.
fn index_page(data: &[u8]) {
    let ([value_bits, signature_bytes], bytes) = split_array::<2>(data);
    let shape = Shape { value_bits, signature_bytes };
    if !shape.is_valid() {
        return;
    }
    let (payload, _) = split_array::<PAYLOAD_BYTES>(bytes);
    let number = u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]]);
    let first = payload[8..].first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    let random = hashes(0..40);
    for hash in random.into_iter().chain([0, 1 << 16, u64::MAX, first]) {
        let found = index_page::probe(&payload, (number, first), shape, hash);
        assert!(found.flatten().is_none_or(|value| value <= shape.value_max()));
        let other = (number.wrapping_add(1), first);
        assert_eq!(index_page::probe(&payload, other, shape, hash), None, "another page");
    }
}

fn index_page_seeds() -> Vec<Vec<u8>> {
    let seed = |construction: Construction, signature_bytes: u8| {
        let shape = Shape::for_values(31, signature_bytes);
        let entries: Vec<(u64, u32)> = hashes(0..300).into_iter().zip((0..32).cycle()).collect();
        let (mut builder, mut payload) = (SegmentBuilder::new(construction), Vec::new());
        let fits = index_page::encode((3, 0), shape, &entries, &mut builder, &mut payload);
        assert!(fits.expect("distinct hashes"), "a page for few");
        [&[shape.value_bits, signature_bytes], &*payload].concat()
    };
    CONSTRUCTIONS.into_iter().flat_map(|of| [0, 1, 2].map(|bytes| seed(of, bytes))).collect()
}

/// A flag, and a head's file.
fn head(data: &[u8]) {
    let (flags, bytes) = split_first(data);
    let files = with_file(bytes, FileType::Head, flags & 1 == 0);
    let Some(file) = named(PageFile::open(&files, ID, FileType::Head)) else { return };
    let Some(heads) = named(Head::open_all(vec![file])) else { return };
    for head in &heads {
        named(head.check());
        let context = ReadContext::blocking();
        for key in 0..200u64 {
            let probed = named(head.probe(hash_key(&key.to_le_bytes()), &context));
            let pieces = head.pieces().len();
            assert!(probed.is_none_or(|mut set| set.all(|piece| usize::from(piece) < pieces)));
        }
    }
}

fn head_seeds() -> Vec<Vec<u8>> {
    let seed = |construction: Construction, pieces: u64, keys: u64| {
        let mut builder = HeadBuilder::new(construction, 1, pieces as usize).expect("a builder");
        for piece in 0..pieces {
            let hashes = hashes(piece * keys / 2..piece * keys / 2 + keys);
            let mut writer =
                PageFileWriter::create(&data_files(), FileType::Head).expect("a file of hashes");
            let mut list = HashListWriter::default();
            hashes.iter().for_each(|hash| list.add(*hash, &mut writer).expect("a hash"));
            let pages = list.finish(&mut writer).expect("a list");
            let (file, count) = (writer.finish().expect("a list"), hashes.len() as u64);
            builder.add_list(piece as u8, count, HashListReader::new(&file, 0, pages, count), None);
        }
        let files = data_files();
        let mut writer = PageFileWriter::create(&files, FileType::Head).expect("a file");
        let mut merge = builder.start();
        while !merge.step(&mut writer, 8).expect("a step") {}
        merge.finish_file(writer).expect("a head");
        [&[0], &*bytes_of(&files, ID, FileType::Head)].concat()
    };
    vec![
        seed(Construction::Pilots, 2, 40),
        seed(Construction::Displacement, 3, 2000),
        seed(Construction::Pilots, 9, 1000),
    ]
}

/// A flag, and a file that is a piece's local index.
fn local_index(data: &[u8]) {
    let (flags, bytes) = split_first(data);
    let files = with_file(bytes, FileType::Table, flags & 1 == 0);
    let Some(file) = named(PageFile::open(&files, ID, FileType::Table)) else { return };
    let (units, context) = (0..file.units(), ReadContext::blocking());
    let Some(index) = named(PieceIndex::load(&file, units, &context)) else { return };
    for key in 0..200u64 {
        let hash = hash_key(&key.to_le_bytes());
        if let Some(Found::Leaf { pointer, .. }) =
            named(index.find(&file, hash, LEAF_UNITS, &context))
        {
            assert!(pointer.units > 0 && pointer.unit < LEAF_UNITS, "{pointer:?}");
        }
    }
    let (mut hashes, mut list) = (Vec::new(), index.hashes(&file));
    let is_sound = loop {
        match named(list.next_page(&mut hashes)) {
            Some(true) => {}
            ended => break ended.is_some(),
        }
    };
    assert!(hashes.is_sorted());
    assert!(!is_sound || hashes.len() as u64 == index.keys(), "a list with other hashes");
}

fn local_index_seeds() -> Vec<Vec<u8>> {
    let seed = |construction: Construction, signature_bytes: u8, keys: u64| {
        let mut builder = PieceBuilder::new(construction, signature_bytes);
        for key in 0..keys {
            let hash = hash_key(&key.to_le_bytes());
            builder.add_key(hash, (key / 20) as u32, key % 20 == 19);
        }
        for leaf in 0..keys.div_ceil(20) as u32 {
            builder.add_leaf(PagePointer { unit: leaf, units: 1 });
        }
        let files = data_files();
        let mut writer = PageFileWriter::create(&files, FileType::Table).expect("a file");
        builder.write(files.hasher.id(), &mut writer).expect("a local index");
        writer.finish().expect("a local index");
        [&[0], &*bytes_of(&files, ID, FileType::Table)].concat()
    };
    vec![
        seed(Construction::Pilots, 2, 60),
        seed(Construction::Displacement, 0, 3000),
        seed(Construction::Pilots, 1, 5000),
    ]
}
