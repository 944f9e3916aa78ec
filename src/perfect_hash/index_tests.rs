//! Tests of hash indexes in files.

use std::sync::Arc;

use super::index::HashIndex;
use super::index_page::{self, PAYLOAD_BYTES};
use super::*;
use crate::base::random::SplitMix;
use crate::cache::{Compression, FileType, PageFile, PageFileWriter, ReadContext};
use crate::filter::test_support::data_files;

const BOTH: [Construction; 2] = [Construction::Displacement, Construction::Pilots];
const GLOBAL: Shape = Shape { value_bits: 4, signature_bytes: 1 };
const LOCAL: Shape = Shape { value_bits: 17, signature_bytes: 0 };

/// An index of these entries, in a file in memory that begins with another page.
fn index(
    construction: Construction,
    shape: Shape,
    entries: &[(u64, u32)],
) -> (Arc<PageFile>, HashIndex, Vec<Vec<u8>>) {
    let built = BuiltIndex::of(construction, shape, entries.to_vec()).unwrap();
    let files = data_files();
    let mut writer = PageFileWriter::create(&files, FileType::Table).unwrap();
    writer.append(1, b"another", Compression::None).unwrap();
    for payload in &built.payloads {
        writer.append(1, payload, Compression::None).unwrap();
    }
    let file = writer.finish().unwrap();
    (file, HashIndex::new(1, &built.front, built.bounds), built.payloads)
}

fn entries(count: usize, shape: Shape, seed: u64) -> Vec<(u64, u32)> {
    let mut random = SplitMix::new(seed);
    let below = 1u64 << shape.value_bits;
    (0..count).map(|_| (random.next(), (random.next() % below) as u32)).collect()
}

fn asked(file: &Arc<PageFile>, index: &HashIndex, hash: u64) -> Option<u32> {
    index.probe(file, hash, &ReadContext::blocking()).unwrap()
}

#[test]
fn every_key_is_found_and_few_others() {
    let counts: &[usize] = if cfg!(miri) { &[0, 1, 40] } else { &[0, 1, 2, 500, 3000, 60_000] };
    for construction in BOTH {
        for shape in [GLOBAL, LOCAL, Shape { value_bits: 32, signature_bytes: 2 }] {
            for &count in counts {
                let entries = entries(count, shape, 31);
                let (file, index, _) = index(construction, shape, &entries);
                for &(hash, value) in &entries {
                    assert_eq!(asked(&file, &index, hash), Some(value));
                }
                let mut random = SplitMix::new(77);
                let strangers = if cfg!(miri) { 20 } else { 20_000 };
                let passed = (0..strangers)
                    .filter(|_| asked(&file, &index, random.next()).is_some())
                    .count();
                if shape.signature_bytes > 0 {
                    assert!(passed * 256 <= strangers * 3 / 2 + 256 * 8, "{passed} of {strangers}");
                }
            }
        }
    }
}

/// What the paper's index takes per key, and what this one does; section 4.3.
#[test]
fn an_index_is_small() {
    if cfg!(miri) {
        return;
    }
    for (construction, shape, most) in [
        (Construction::Pilots, GLOBAL, 2.0),
        (Construction::Pilots, LOCAL, 2.75),
        (Construction::Displacement, GLOBAL, 3.0),
        (Construction::Displacement, LOCAL, 4.0),
    ] {
        let entries = entries(100_000, shape, 5);
        let (_, index, payloads) = index(construction, shape, &entries);
        let bytes = (payloads.len() * 4096 + index.memory_bytes()) as f64 / entries.len() as f64;
        println!("{construction:?} {shape:?}: {bytes:.3} bytes per key");
        assert!(bytes < most, "{construction:?} {shape:?}: {bytes:.3} bytes per key");
    }
}

/// Hashes that are all in one corner, which a keyed hash makes as good as impossible.
#[test]
fn hashes_that_are_not_uniform_are_found() {
    let count: u64 = if cfg!(miri) { 30 } else { 30_000 };
    for construction in BOTH {
        for stretch in [1, 1 << 20] {
            let list: Vec<(u64, u32)> =
                (0..count).map(|i| (i * stretch, (i % 1000) as u32)).collect();
            let (file, index, _) = index(construction, LOCAL, &list);
            for &(hash, value) in &list {
                assert_eq!(asked(&file, &index, hash), Some(value));
            }
            let _ = asked(&file, &index, u64::MAX);
        }
    }
}

#[test]
fn the_order_of_adding_makes_no_difference() {
    let list = entries(if cfg!(miri) { 30 } else { 5000 }, LOCAL, 3);
    let mut backward = list.clone();
    backward.reverse();
    for construction in BOTH {
        let (.., one) = index(construction, LOCAL, &list);
        let (.., other) = index(construction, LOCAL, &backward);
        assert!(one == other);
    }
}

#[test]
fn damaged_pages_do_no_harm() {
    let list = entries(if cfg!(miri) { 30 } else { 2500 }, GLOBAL, 4);
    let mut random = SplitMix::new(6);
    for construction in BOTH {
        let (.., payloads) = index(construction, GLOBAL, &list);
        let right = |payload: &[u8], number, first, shape| {
            index_page::probe(payload, (number, first), shape, list[0].0).is_some()
        };
        assert!(right(&payloads[0], 0, 0, GLOBAL));
        assert!(!right(&payloads[0], 1, 0, GLOBAL));
        assert!(!right(&payloads[0], 0, 1, GLOBAL));
        assert!(!right(&payloads[0], 0, 0, LOCAL));
        assert!(!right(&payloads[0][1..], 0, 0, GLOBAL));
        for _ in 0..if cfg!(miri) { 10 } else { 3000 } {
            let mut damaged = payloads[0].clone();
            for _ in 0..1 + random.next() % 4 {
                let place = random.next() as usize
                    % if random.next().is_multiple_of(2) { 64 } else { PAYLOAD_BYTES };
                damaged[place] = random.next() as u8;
            }
            for (hash, _) in list.iter().take(10) {
                let _ = index_page::probe(&damaged, (0, 0), GLOBAL, *hash);
            }
        }
    }
}
