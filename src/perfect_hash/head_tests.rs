//! Tests of heads and of the local indexes of pieces, in files.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::hash_list::{HashListReader, HashListWriter};
use super::index::index_hash;
use super::piece::WrittenPiece;
use super::*;
use crate::base::documented::hex_block;
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::{
    Compression, FileType, PageFile, PageFileWriter, PagePointer, ReadContext, read_pages,
};
use crate::filter::test_support::data_files;

const BOTH: [Construction; 2] = [Construction::Displacement, Construction::Pilots];

fn few(count: usize) -> usize {
    if cfg!(miri) { count / 100 + 3 } else { count }
}

/// The list of a piece's hashes, in a file.
fn list_of(hashes: &[u64]) -> (Arc<PageFile>, u32, u64) {
    let mut sorted: Vec<u64> = hashes.iter().map(|hash| index_hash(*hash)).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut writer = PageFileWriter::create(&data_files(), FileType::Head).unwrap();
    let mut list = HashListWriter::default();
    sorted.iter().for_each(|hash| list.add(*hash, &mut writer).unwrap());
    let pages = list.finish(&mut writer).unwrap();
    (writer.finish().unwrap(), pages, sorted.len() as u64)
}

fn add_hashes(builder: &mut HeadBuilder, piece: u8, hashes: &[u64]) {
    let (file, pages, count) = list_of(hashes);
    builder.add_list(piece, count, HashListReader::new(&file, 0, pages, count), None);
}

#[test]
fn a_list_of_hashes_is_read_as_it_was_written() {
    let mut random = SplitMix::new(3);
    for count in [1, 2, few(700), few(20_000)] {
        let mut hashes: Vec<u64> = (0..count).map(|_| index_hash(random.next())).collect();
        hashes.extend([0, index_hash(u64::MAX)]);
        hashes.sort_unstable();
        hashes.dedup();
        let (file, pages, _) = list_of(&hashes);
        let listed = hashes.len() as u64;
        let (mut found, mut reader) =
            (Vec::new(), HashListReader::new(&file, 0, pages, hashes.len() as u64));
        while reader.next_page(&mut found).unwrap() {}
        assert!(found == hashes, "{count}");
        // A hash is missing, or one is too many.
        for wrong in [listed - 1, listed + 1] {
            let (mut found, mut reader) = (Vec::new(), HashListReader::new(&file, 0, pages, wrong));
            let mut read = || loop {
                if !reader.next_page(&mut found)? {
                    return Ok::<(), crate::base::error::Error>(());
                }
            };
            assert!(read().unwrap_err().is_corruption());
        }
        // A page is missing.
        if pages > 1 {
            let (mut found, mut reader) =
                (Vec::new(), HashListReader::new(&file, 1, pages - 1, listed));
            assert!(reader.next_page(&mut found).unwrap_err().is_corruption());
        }
    }
}

/// Pieces, oldest first, of which some share hashes: a head names exactly those that have a hash, or all that are older
/// than the youngest that has it.
#[test]
fn a_head_names_the_youngest_piece_and_says_whether_older_ones_have_the_key() {
    let mut random = SplitMix::new(9);
    let universe: Vec<u64> = (0..few(30_000)).map(|_| random.next()).collect();
    for construction in BOTH {
        for (pieces, signature_bytes) in [(1, 2), (2, 1), (5, 1), (16, 1), (200, 1)] {
            let all: Vec<Vec<u64>> = (0..pieces)
                .map(|_| {
                    let count = universe.len() / pieces;
                    (0..count).map(|_| universe[random.next() as usize % universe.len()]).collect()
                })
                .collect();
            let mut builder = HeadBuilder::new(construction, signature_bytes, pieces).unwrap();
            let mut truth: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            for (piece, hashes) in all.iter().enumerate() {
                add_hashes(&mut builder, piece as u8, hashes);
                for hash in hashes {
                    let holders = truth.entry(index_hash(*hash)).or_default();
                    if holders.last() != Some(&(piece as u8)) {
                        holders.push(piece as u8);
                    }
                }
            }
            let files = data_files();
            let mut writer = PageFileWriter::create(&files, FileType::Head).unwrap();
            let mut merge = builder.start();
            while !merge.step(&mut writer, 1).unwrap() {}
            let head = merge.finish_file(writer).unwrap();
            let id = head.file().id();
            let context = ReadContext::blocking();
            let reopened =
                Head::open_all(vec![PageFile::open(&files, id, FileType::Head).unwrap()]);
            for head in [&head, &reopened.unwrap()[0]] {
                head.check().unwrap();
                for (hash, holders) in &truth {
                    let named: Vec<u8> = head.probe(*hash, &context).unwrap().collect();
                    let youngest = holders[holders.len() - 1];
                    let expected: Vec<u8> = match holders.len() {
                        1 => vec![youngest],
                        _ => (0..=youngest).rev().collect(),
                    };
                    assert_eq!(named, expected, "{holders:?}");
                }
                let counts = head.pieces();
                assert_eq!(counts.len(), pieces);
                let entries: u64 = counts.iter().map(|count| count.entries).sum();
                let superseded: u64 = counts.iter().map(|count| count.superseded).sum();
                assert_eq!(entries - superseded, truth.len() as u64);
                let strangers = few(20_000);
                let passed = (0..strangers)
                    .filter(|_| head.probe(random.next(), &context).unwrap().next().is_some())
                    .count();
                let most = strangers >> (8 * signature_bytes);
                assert!(passed <= most * 3 / 2 + 12, "{passed} of {strangers}");
            }
        }
    }
}

/// A compaction replaced two bundles with one table, which it adopted: the head counted its hashes twice, as if they
/// superseded themselves, and the store could not be opened again.
#[test]
fn a_piece_that_is_added_twice_counts_once() {
    let hashes: Vec<u64> =
        (0..few(5000) as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let files = data_files();
    let (file, pages, count) = list_of(&hashes);
    let mut builder = HeadBuilder::new(Construction::Pilots, 1, 2).unwrap();
    for _ in 0..2 {
        builder.add_list(1, count, HashListReader::new(&file, 0, pages, count), None);
    }
    add_hashes(&mut builder, 0, &hashes[..1]);
    let mut writer = PageFileWriter::create(&files, FileType::Head).unwrap();
    let mut merge = builder.start();
    while !merge.step(&mut writer, 1).unwrap() {}
    let head = merge.finish_file(writer).unwrap();
    let [older, younger] = head.pieces() else { panic!("two pieces") };
    assert_eq!((older.entries, older.superseded), (1, 1));
    assert_eq!((younger.entries, younger.superseded), (count, 0));
    let file = PageFile::open(&files, head.file().id(), FileType::Head).unwrap();
    let opened = Head::open_all(vec![file]).unwrap();
    let named = opened[0].probe(hashes[1], &ReadContext::blocking()).unwrap();
    assert_eq!(named.collect::<Vec<u8>>(), [1]);
}

/// A file with the local index of some keys behind pages that are not its own.
fn piece(
    construction: Construction,
    keys: &[(u64, u32, bool)],
    leaves: &[PagePointer],
) -> (Arc<PageFile>, std::ops::Range<u32>, WrittenPiece) {
    let mut builder = PieceBuilder::new(construction, 0);
    keys.iter().for_each(|(hash, leaf, is_split)| builder.add_key(*hash, *leaf, *is_split));
    leaves.iter().for_each(|leaf| builder.add_leaf(*leaf));
    let files = data_files();
    let mut writer = PageFileWriter::create(&files, FileType::Head).unwrap();
    writer.append(1, b"another", Compression::None).unwrap();
    let written = builder.write(files.hasher.id(), &mut writer).unwrap();
    let file = writer.finish().unwrap();
    let units = 1..file.units();
    (file, units, written)
}

#[test]
fn a_piece_leads_to_the_leaf_of_each_key() {
    let mut random = SplitMix::new(12);
    let context = ReadContext::blocking();
    for construction in BOTH {
        for (units_max, splits) in [(1, false), (1, true), (3, false), (8, true)] {
            let mut unit = 0;
            let leaves: Vec<PagePointer> = (0..few(800))
                .map(|_| {
                    let units = 1 + random.next() as u16 % units_max;
                    unit += u32::from(units);
                    PagePointer { unit: unit - u32::from(units), units }
                })
                .collect();
            let mut keys: Vec<(u64, u32, bool)> = (0..few(20_000))
                .map(|_| {
                    let leaf = random.next() as u32 % leaves.len() as u32;
                    let may_split = splits && leaves[leaf as usize].units == 1;
                    (random.next(), leaf, may_split && random.next().is_multiple_of(9))
                })
                .collect();
            // Keys with one hash, in two leaves and in one.
            keys.extend([(77 << 16, 0, false), (77 << 16, 1, false)]);
            keys.extend([(78 << 16, 1, false), (78 << 16, 1, false)]);
            let (file, units, written) = piece(construction, &keys, &leaves);
            let loaded = PieceIndex::load(&file, units, &context).unwrap();
            let written = PieceIndex::of_written(1, written);
            assert_eq!(format!("{loaded:?}"), format!("{written:?}"));
            let index = loaded;
            for (hash, leaf, is_split) in &keys {
                let pointer = leaves[*leaf as usize];
                let pointer =
                    PagePointer { units: if *is_split { 1 } else { pointer.units }, ..pointer };
                let expected = match hash >> 16 {
                    77 => Found::Unknown,
                    _ => Found::Leaf { pointer, is_split: *is_split },
                };
                assert_eq!(index.find(&file, *hash, unit, &context).unwrap(), expected);
            }
            // Other hashes lead to a leaf that there is, with its own units: an empty slot once led to one unit of a larger
            // leaf.
            for _ in 0..few(20_000) {
                if let Found::Leaf { pointer, is_split } =
                    index.find(&file, random.next(), unit, &context).unwrap()
                {
                    let is_whole = leaves.contains(&pointer);
                    assert!(is_whole || is_split && pointer.units == 1, "{pointer:?}");
                }
            }
            let (mut hashes, mut list) = (Vec::new(), index.hashes(&file));
            while list.next_page(&mut hashes).unwrap() {}
            let mut expected: Vec<u64> = keys.iter().map(|key| index_hash(key.0)).collect();
            expected.sort_unstable();
            expected.dedup();
            assert!(hashes == expected && index.keys() == expected.len() as u64);
            // A leaf that the table does not have is damage.
            let last = keys.iter().find(|key| key.1 + 1 == leaves.len() as u32);
            if let Some((hash, ..)) = last {
                assert!(index.find(&file, *hash, 1, &context).unwrap_err().is_corruption());
            }
        }
    }
}

/// More leaves than a place can tell: the table's own index is asked for those behind.
#[test]
fn leaves_that_cannot_be_told_are_unknown() {
    let leaves: Vec<PagePointer> = (0..40_000).map(|unit| PagePointer { unit, units: 1 }).collect();
    let keys: Vec<(u64, u32, bool)> = (0..40_000)
        .step_by(few(97))
        .map(|leaf| (u64::from(leaf) << 40 | 1 << 39, leaf, false))
        .collect();
    let (file, units, _) = piece(Construction::Pilots, &keys, &leaves);
    let context = ReadContext::blocking();
    let index = PieceIndex::load(&file, units, &context).unwrap();
    for (hash, leaf, _) in keys {
        let pointer = PagePointer { unit: leaf, units: 1 };
        let expected = match leaf < 0x7fff {
            true => Found::Leaf { pointer, is_split: false },
            false => Found::Unknown,
        };
        assert_eq!(index.find(&file, hash, 40_000, &context).unwrap(), expected);
    }
}

/// The bytes of `docs/format/perfect-hash.md`.
#[test]
fn the_documented_indexes_are_what_is_written() {
    let page = include_str!("../../docs/format/perfect-hash.md");
    let files = data_files();
    let [ash, elm, yew] = [&b"ash"[..], b"elm", b"yew"].map(hash_key);
    let mut builder = PieceBuilder::new(Construction::Pilots, 0);
    [ash, elm, yew].iter().for_each(|hash| builder.add_key(*hash, 0, false));
    builder.add_leaf(PagePointer { unit: 0, units: 1 });
    let mut pages: Vec<Vec<u8>> = Vec::new();
    builder.write(files.hasher.id(), &mut pages).unwrap();
    while pages[0].last() == Some(&0) {
        pages[0].pop();
    }
    let bytes = pages.concat();
    println!("{pages:02x?}");
    assert_eq!(hex_block(page, 2), bytes);
    let mut builder = HeadBuilder::new(Construction::Pilots, 1, 2).unwrap();
    add_hashes(&mut builder, 0, &[ash, elm]);
    add_hashes(&mut builder, 1, &[ash, yew]);
    let mut writer = PageFileWriter::create(&files, FileType::Head).unwrap();
    let mut merge = builder.start();
    while !merge.step(&mut writer, 1).unwrap() {}
    let head = merge.finish_file(writer).unwrap();
    let last = read_pages(&[(&**head.file(), head.file().last_unit())]).unwrap();
    println!("{:02x?}", last[0]);
    assert_eq!(hex_block(page, 3), last[0]);
}
