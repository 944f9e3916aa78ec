//! How many blocks an index takes for its keys.

use std::path::Path;
use std::sync::Arc;

use super::node::BLOCK_WORDS;
use super::write::pack;
use super::*;
use crate::base::random::SplitMix as Random;
use crate::pmem::{HeapRegion, Region};

fn index() -> LocationIndex {
    let region = HeapRegion::reserve(8192 * BLOCK_WORDS, Path::new("heap")).unwrap();
    LocationIndex::create(Arc::new(region), 77).unwrap()
}

fn random_keys(count: usize) -> Vec<[u8; 16]> {
    let mut random = Random::new(3);
    let key = |_| [random.next().to_be_bytes(), random.next().to_be_bytes()].concat();
    (0..count).map(key).map(|key| key.try_into().unwrap()).collect()
}

/// So many versions of a key, newest first, each superseded by the next.
fn versions(count: u64) -> Vec<Version> {
    let place = LeafPlace { unit: 1, units: 1, is_split: false };
    let version = |n: u64| Version {
        location: Location::new(n as u32, place, false),
        superseded: (n > 0).then_some(Seqno(count - n)),
    };
    (0..count).map(version).collect()
}

fn set(index: &LocationIndex, keys: &[[u8; 16]], versions: &[Version]) {
    let mut writing = index.write();
    for key in keys {
        writing.set(key, versions).unwrap();
        writing.fence();
    }
}

fn blocks_of(keys: &[[u8; 16]]) -> u64 {
    let fresh = index();
    set(&fresh, keys, &versions(1));
    fresh.blocks().0
}

/// What is said to be live, what is used, and what is used once it is packed.
fn judge(index: &LocationIndex, keys: &[[u8; 16]], case: &str) {
    let fresh = blocks_of(keys);
    let (live, used) = (index.live_blocks(), index.blocks().0);
    assert!(used <= fresh * 2, "{case}: {used} blocks, fresh {fresh}");
    pack(b"", None, || Ok(index.write())).unwrap();
    let packed = index.blocks().0;
    // The last leaf below each parent is not full.
    assert!(packed <= fresh, "{case}: {packed} blocks, fresh {fresh}");
    assert!(live.abs_diff(packed) <= packed / 10 + 1, "{case}: {live} of {packed} blocks");
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut start = Some(Vec::new());
    while let Some(key) = start {
        let part = index.ascending(&key, false).unwrap();
        found.extend(part.entries.into_iter().map(|entry| entry.key));
        start = part.rest;
    }
    assert_eq!(found, sorted);
    // What is packed can be changed and packed again.
    set(index, &keys[..keys.len() / 2], &versions(2));
    set(index, &keys[..keys.len() / 2], &versions(1));
    pack(b"", None, || Ok(index.write())).unwrap();
    assert!(index.blocks().0 <= packed + packed / 10 + 1, "{case}: packed again");
}

/// Keys that had lost all but one of their versions left their leaves almost empty: 20,000 counters took 13 MB of blocks.
/// Leaves that were a quarter full stayed as they were, and counted as live.
#[test]
fn an_index_that_keys_and_versions_have_left_can_be_packed() {
    let keys = random_keys(6_000);
    for count in [1, 2, 8] {
        let index = index();
        set(&index, &keys, &versions(count));
        set(&index, &keys, &versions(1));
        judge(&index, &keys, &format!("{count} versions"));
    }
    for one_in in [2, 3, 10] {
        let index = index();
        set(&index, &keys, &versions(1));
        let (stay, go) = keys.split_at(keys.len() / one_in);
        set(&index, go, &[]);
        judge(&index, stay, &format!("one in {one_in}"));
    }
}

/// All operands of a key counted as live in an index, until a merge made one pair of them: of 1.0 MB of blocks of 20,000
/// keys, up to 2.2 MB were said to be live.
#[test]
fn only_one_version_of_a_key_is_live() {
    let keys = random_keys(6_000);
    let place = LeafPlace { unit: 1, units: 1, is_split: false };
    for count in [2, 8] {
        let index = index();
        let operands = (1..=count).rev().map(|table| Version {
            location: Location::new(table, place, table > 1),
            superseded: None,
        });
        set(&index, &keys, &operands.collect::<Vec<_>>());
        let (live, fresh) = (index.live_blocks(), blocks_of(&keys));
        let said = format!("{count} versions: {live} of {fresh} blocks");
        assert!(live <= fresh && live >= fresh / 2, "{said}");
        // So is it after opening, which builds the inner nodes anew.
        let region = Arc::clone(&index.region);
        drop(index);
        let (index, _) = LocationIndex::open(region, 77, &mut |_| {}).unwrap().unwrap();
        assert!(index.live_blocks().abs_diff(live) <= 1, "{said}, then {}", index.live_blocks());
        set(&index, &keys, &versions(1));
        judge(&index, &keys, &said);
    }
}

/// A part of an index is packed, and the rest stays as it is.
#[test]
fn a_range_is_packed_and_no_more() {
    let keys = random_keys(6_000);
    let index = index();
    set(&index, &keys, &versions(1));
    let before = index.blocks().0;
    pack(&[0x80], Some(&[0xc0]), || Ok(index.write())).unwrap();
    let a_quarter = before - index.blocks().0;
    pack(b"", None, || Ok(index.write())).unwrap();
    let all = before - index.blocks().0;
    assert!(a_quarter > 0 && a_quarter <= all / 3, "{a_quarter} of {all} blocks of {before}");
}

/// Inner nodes are full when an index has been opened. One that lost a child was split then, as after any change, and its
/// parents with it: more blocks than a removal has room for, on a disk that was full.
#[test]
fn a_removal_needs_no_more_room_than_it_has_asked_for() {
    const KEYS: u32 = 33_000;
    let key = |number: u32| [&[b'k'; 250][..], &number.to_be_bytes()].concat();
    let region = HeapRegion::reserve(4096 * BLOCK_WORDS, Path::new("heap")).unwrap();
    let region: Arc<dyn Region> = Arc::new(region);
    let index = LocationIndex::create(Arc::clone(&region), 77).unwrap();
    let mut writing = index.write();
    for number in 0..KEYS {
        writing.set(&key(number), &versions(1)).unwrap();
    }
    writing.fence();
    drop(writing);
    drop(index);
    let (index, _) = LocationIndex::open(region, 77, &mut |_| {}).unwrap().unwrap();
    let mut writing = index.write();
    let mut taken = Vec::new();
    while writing.writer.free.left() as usize > writing.writer.height + 1 {
        taken.push(writing.take_block());
    }
    let upper = index.leaf(LeafAt::Key(&key(KEYS / 2))).unwrap().upper.unwrap();
    let leaf = index.leaf(LeafAt::Below(&upper)).unwrap().entries.to_owned();
    for entry in &leaf {
        writing.remove(&entry.key).unwrap();
        writing.fence();
    }
    let gone = (0..KEYS).filter(|number| index.newest(&key(*number)).unwrap().is_none());
    assert!(gone.map(key).eq(leaf.into_iter().map(|entry| entry.key)));
}

/// What a full disk has to leave for an index: where keys come evenly, all leaves are full at the same time.
#[test]
fn what_new_keys_need_has_been_said_before() {
    let even = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let mut random = Random::new(5);
    let mut keys_of = |case: &str| -> Vec<Vec<u8>> {
        let key = |n: u64| match case {
            "even" => even(n),
            "random" => random.next().to_be_bytes().to_vec(),
            "ascending" => n.to_be_bytes().to_vec(),
            "middle" => [even(n), vec![7; 60]].concat(),
            _ => [even(n), vec![7; 400]].concat(),
        };
        (0..if case == "long" { 4000 } else { 100_000 }).map(key).collect()
    };
    for case in ["even", "random", "ascending", "middle", "long"] {
        for batch in [100, 3000] {
            let (index, mut most) = (index(), 0.0_f64);
            for keys in keys_of(case).chunks(batch) {
                let key_bytes: usize = keys.iter().map(Vec::len).sum();
                let before = index.blocks().1 * 4096;
                let room = index.room_bytes(keys.len() as u64, key_bytes as u64);
                let mut writing = index.write();
                for key in keys {
                    writing.set(key, &versions(1)).unwrap();
                    writing.fence();
                }
                drop(writing);
                let grown = index.blocks().1 * 4096 - before;
                // The first blocks, and those that are kept for removals, are few.
                most = most.max(grown as f64 / (room + (64 << 10)) as f64);
            }
            assert!(most <= 1.0, "{case}, {batch} at once: {most} of what had been said");
        }
    }
}
