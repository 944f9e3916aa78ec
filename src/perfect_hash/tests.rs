//! Tests of both constructions: segments, functions, bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::function::spread;
use super::segment::{HEAD_BYTES, Head, SegmentBuilder};
use super::*;
use crate::base::documented::hex_block;
use crate::base::error::Error;
use crate::base::random::SplitMix;

const BOTH: [Construction; 2] = [Construction::Displacement, Construction::Pilots];

fn hashes(count: usize, seed: u64) -> Vec<u64> {
    let mut random = SplitMix::new(seed);
    let mut set = BTreeSet::new();
    while set.len() < count {
        set.insert(random.next());
    }
    // In no order.
    let mut list: Vec<u64> = set.into_iter().collect();
    list.sort_unstable_by_key(|hash| hash.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    list
}

fn build(construction: Construction, seed: u64, segment: usize, hashes: &[u64]) -> Vec<u8> {
    let builder = FunctionBuilder { construction, seed, segment_hashes: segment, threads: 1 };
    builder.build(hashes).unwrap()
}

/// Each hash has a slot of its own, below the number of slots.
fn check(bytes: &[u8], hashes: &[u64]) -> u64 {
    let function = Function::open(bytes).unwrap();
    assert_eq!(function.hashes(), hashes.len() as u64);
    let mut taken = vec![false; function.slots() as usize];
    for &hash in hashes {
        let slot = function.slot(hash).unwrap() as usize;
        assert!(!std::mem::replace(&mut taken[slot], true), "slot {slot} twice");
    }
    function.slots()
}

#[test]
fn every_hash_has_a_slot_of_its_own() {
    let counts: &[usize] = if cfg!(miri) {
        &[0, 1, 2, 30]
    } else {
        &[0, 1, 2, 3, 4, 5, 7, 10, 31, 100, 500, 1400, 1401, 20_000, 100_000]
    };
    for construction in BOTH {
        for &count in counts {
            let hashes = hashes(count, 11);
            for (seed, segment) in [(0, 1400), (77, 1 << 15)] {
                let bytes = build(construction, seed, segment, &hashes);
                let slots = check(&bytes, &hashes);
                let most = match construction {
                    Construction::Displacement => {
                        count as f64 * 1.16 + 2.0 * (count / segment + 1) as f64
                    }
                    Construction::Pilots => {
                        count as f64 * 1.03 + 2.0 * (count / segment + 1) as f64
                    }
                };
                assert!(slots as f64 <= most, "{construction:?}: {slots} slots for {count}");
            }
        }
    }
}

/// Small segments are the rule in a store: many of them, so that rare failures of a construction are met.
#[test]
fn many_small_segments() {
    let (count, sizes) = if cfg!(miri) { (2, 5..8) } else { (300, 1..60) };
    for construction in BOTH {
        let mut builder = SegmentBuilder::new(construction);
        let mut aside = 0;
        for size in sizes.clone() {
            for round in 0..count {
                let hashes = hashes(size, 1000 * size as u64 + round);
                let segment = builder.build(&hashes).unwrap();
                let slots: BTreeSet<u32> =
                    hashes.iter().map(|&hash| segment.slot(hash).unwrap()).collect();
                assert_eq!(slots.len(), size);
                assert!(*slots.last().unwrap() < segment.head.slots);
                aside += u32::from(segment.body.len() == 8 * size && segment.head.buckets == 0);
            }
        }
        assert_eq!(aside, 0, "{construction:?}");
    }
}

/// With 128 segments, the lowest seven bits of all spread hashes are zero. Buckets were chosen by the remainder of the
/// lower half, so most of them stayed empty, the others were too full, and the first attempts failed.
#[test]
fn an_even_number_of_segments_fills_all_buckets() {
    for construction in BOTH {
        let mut builder = SegmentBuilder::new(construction);
        let rough: Vec<u64> =
            hashes(if cfg!(miri) { 60 } else { 5000 }, 21).iter().map(|hash| hash << 7).collect();
        let segment = builder.build(&rough).unwrap();
        assert_eq!(segment.head.attempt(), 0, "{construction:?}");
        let usual = builder.build(&hashes(rough.len(), 22)).unwrap();
        assert!(segment.body.len() <= usual.body.len() + usual.body.len() / 4, "{construction:?}");
    }
}

/// Hashes in an arithmetic sequence, with equal halves, or different in one bit only.
#[test]
fn hashes_without_entropy() {
    let count: u64 = if cfg!(miri) { 20 } else { 20_000 };
    for construction in BOTH {
        for list in [
            (0..count).collect::<Vec<u64>>(),
            (0..count).map(|i| i << 32).collect(),
            (0..count).map(|i| i << 32 | i).collect(),
            (0..count).map(|i| u64::MAX - i * 4096).collect(),
            (0..64).map(|bit| 1 << bit).collect(),
        ] {
            check(&build(construction, 5, 1000, &list), &list);
        }
    }
}

#[test]
fn equal_hashes_are_an_error_and_not_an_endless_search() {
    for construction in BOTH {
        for count in [2, 50, if cfg!(miri) { 50 } else { 5000 }] {
            let mut list = hashes(count, 3);
            list[1] = list[0];
            let builder =
                FunctionBuilder { construction, seed: 1, segment_hashes: 1000, threads: 1 };
            assert!(matches!(builder.build(&list), Err(Error::InvalidArgument { .. })));
            list.fill(7);
            assert!(matches!(builder.build(&list), Err(Error::InvalidArgument { .. })));
        }
    }
}

/// What no attempt can place is listed with explicit slots.
#[test]
fn the_side_list_takes_what_cannot_be_placed() {
    for construction in BOTH {
        let list = hashes(40, 9);
        let segment = SegmentBuilder::that_gives_up(construction).build(&list).unwrap();
        let decoded = Head::decode(&segment.head.encode()).unwrap();
        assert_eq!((decoded, decoded.body_bytes()), (segment.head, segment.body.len()));
        let slots: BTreeSet<u32> = list.iter().map(|&hash| segment.slot(hash).unwrap()).collect();
        assert_eq!(slots, (0..40).collect());
        for stranger in [0, u64::MAX, list[0] ^ 1] {
            assert!(segment.slot(stranger).unwrap() < 40);
        }
    }
}

/// The bytes depend on the set, the seed and the construction alone.
#[test]
fn bytes_do_not_depend_on_order_or_threads() {
    let list = hashes(if cfg!(miri) { 40 } else { 30_000 }, 12);
    let mut backward = list.clone();
    backward.reverse();
    for construction in BOTH {
        let builder = FunctionBuilder { construction, seed: 3, segment_hashes: 1000, threads: 1 };
        let bytes = builder.build(&list).unwrap();
        assert_eq!(builder.build(&backward).unwrap(), bytes);
        assert_eq!(FunctionBuilder { threads: 3, ..builder }.build(&list).unwrap(), bytes);
        assert_ne!(FunctionBuilder { seed: 4, ..builder }.build(&list).unwrap(), bytes);
    }
}

/// No byte makes a reader panic, or gives a slot that is not one.
#[test]
fn damaged_bytes_are_harmless() {
    let list = hashes(if cfg!(miri) { 30 } else { 300 }, 13);
    let mut random = SplitMix::new(14);
    for construction in BOTH {
        let bytes = build(construction, 1, 100, &list);
        for cut in [0, 4, 39, 40, 60, bytes.len() - 1] {
            assert!(Function::open(&bytes[..cut]).is_err());
        }
        for _ in 0..if cfg!(miri) { 20 } else { 5000 } {
            let mut damaged = bytes.clone();
            let at = random.next() as usize % damaged.len();
            damaged[at] ^= 1 << (random.next() % 8);
            let Ok(function) = Function::open(&damaged) else { continue };
            for hash in list.iter().take(20) {
                assert!(function.slot(*hash).is_none_or(|slot| slot < function.slots()));
            }
        }
    }
}

#[test]
fn heads_that_cannot_be_are_refused() {
    let segment = SegmentBuilder::new(Construction::Displacement).build(&hashes(100, 2)).unwrap();
    let right = segment.head.encode();
    assert_eq!(Head::decode(&right), Some(segment.head));
    for (at, value) in [(3, 0xff), (7, 1), (13, 0), (13, 3), (14, 2), (14, 1), (15, 1), (11, 1)] {
        let mut wrong: [u8; HEAD_BYTES] = right;
        wrong[at] = value;
        assert_eq!(Head::decode(&wrong), None, "byte {at}");
    }
}

/// The segments of a function get about the same number of hashes.
#[test]
fn segments_share_hashes_evenly() {
    let mut counts = BTreeMap::new();
    for hash in hashes(if cfg!(miri) { 300 } else { 30_000 }, 15) {
        *counts.entry(spread(hash, 6, 3).0).or_insert(0) += 1;
    }
    let total: i32 = counts.values().sum();
    assert!(
        counts.len() == 3 && counts.values().all(|count| (count * 3 - total).abs() < total / 3)
    );
}

/// The bytes of `docs/format/perfect-hash.md`.
#[test]
fn the_documented_examples_are_what_is_written_and_read() {
    let page = include_str!("../../docs/format/perfect-hash.md");
    let list = [&b"ash"[..], b"elm", b"yew"].map(crate::base::key_hash::hash_key);
    for (nth, construction) in [Construction::Pilots, Construction::Displacement].iter().enumerate()
    {
        let bytes = build(*construction, 5, 1400, &list);
        println!("{construction:?}: {bytes:02x?}");
        let function = Function::open(&bytes).unwrap();
        let slots = list.map(|hash| function.slot(hash).unwrap());
        println!("{slots:?} of {list:x?}");
        assert_eq!(hex_block(page, nth), bytes);
        assert!(page.contains(&format!("slots {}, {} and {}", slots[0], slots[1], slots[2])));
    }
}
