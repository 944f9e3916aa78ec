//! The key hash against its documentation, against chance, and against keys that collide elsewhere.

use std::collections::BTreeSet;
use std::hash::Hasher as _;

use super::*;
use crate::base::documented::hex_block;

fn hasher(number: u64) -> KeyHasher {
    KeyHasher::new(HashSecret::of_words([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number]))
}

#[test]
fn siphash_is_the_one_that_others_have() {
    let bytes: Vec<u8> = (0..=255).collect();
    for len in 0..bytes.len() {
        // The standard library's has a secret of zeros.
        let mut standard = std::collections::hash_map::DefaultHasher::new();
        standard.write(&bytes[..len]);
        assert_eq!(SipHash { keys: [0, 0] }.hash(&bytes[..len]), standard.finish());
    }
}

/// Hashes are on disk: with another function, every filter of every store would be wrong. The
/// format's page specifies them.
#[test]
fn the_documented_example_is_what_is_computed() {
    let page = include_str!("../../docs/format/key-hash.md");
    let documented = hex_block(page, 0);
    let (secret, rest) = documented.split_first_chunk().unwrap();
    let hasher = KeyHasher::new(HashSecret(*secret));
    let bytes: Vec<u8> = (0..=255).collect();
    let hashes = [0, 1, 3, 4, 7, 8, 16, 17, 24, 32, 33, 128, 129, 255].map(|len: usize| {
        println!("{len}: {:02x?}", hasher.hash(&bytes[..len]).to_le_bytes());
        hasher.hash(&bytes[..len]).to_le_bytes()
    });
    println!("{:02x?}", hasher.id().to_le_bytes());
    assert_eq!([&hasher.id().to_le_bytes()[..], hashes.as_flattened()].concat(), rest);
}

#[test]
fn keys_of_all_lengths_have_hashes_of_their_own() {
    let hasher = hasher(1);
    let mut seen = BTreeSet::new();
    let mut keys = 0;
    for len in 0..300 {
        for byte in [0, 1, 0x80, 0xff] {
            let mut key = vec![0; len];
            assert!(byte == 0 || len == 0 || seen.contains(&hasher.hash(&key)));
            for at in (0..len).rev().take(if byte == 0 { 0 } else { len }) {
                key[at] = byte;
                seen.insert(hasher.hash(&key));
                keys += 1;
                key[at] = 0;
            }
            if byte == 0 {
                seen.insert(hasher.hash(&key));
                keys += 1;
            }
        }
    }
    assert_eq!(seen.len(), keys);
}

#[test]
fn another_secret_has_other_hashes_and_another_id() {
    let key = b"a key";
    let hashes: BTreeSet<u64> = (0..1000).map(|n| hasher(n).hash(key)).collect();
    assert_eq!(hashes.len(), 1000);
    let ids: BTreeSet<u32> = (0..1000).map(|n| hasher(n).id()).collect();
    assert!(ids.len() > 998);
    assert_eq!(format!("{:?}", HashSecret(*b"0123456789abcdef")), "HashSecret(…)");
}

/// Realistic keys: ordered numbers at every position of a key. A weak hash clusters them. By
/// chance, 2^12 keys fill 2^12 places with a mean squared deviation of 1.
#[test]
fn hashes_of_orderly_keys_are_spread_as_by_chance() {
    type Make = fn(u64) -> Vec<u8>;
    let sets: [(&str, Make); 6] = [
        ("big-endian", |n| n.to_be_bytes().to_vec()),
        ("little-endian", |n| n.to_le_bytes().to_vec()),
        ("behind a prefix", |n| [&b"user0000"[..], &n.to_be_bytes()].concat()),
        ("before a suffix", |n| [&n.to_be_bytes()[..], b"user0000"].concat()),
        ("decimal", |n| format!("user{n:020}").into_bytes()),
        ("far apart", |n| (n << 40).to_be_bytes().to_vec()),
    ];
    let keys = if cfg!(miri) { 64 } else { 4096 };
    for (name, make) in sets {
        let keys: Vec<Vec<u8>> = (0..keys).map(make).collect();
        for secret in 0..if cfg!(miri) { 1 } else { 50 } {
            let hasher = hasher(secret);
            let mut places = vec![0f64; keys.len()];
            for key in &keys {
                let place = (u128::from(hasher.hash(key)) * keys.len() as u128) >> 64;
                places[place as usize] += 1.0;
            }
            let off = places.iter().map(|n| (n - 1.0) * (n - 1.0)).sum::<f64>() / keys.len() as f64;
            assert!((0.5..1.5).contains(&off), "{name}, secret {secret}: {off}");
        }
    }
}

/// Known collisions of XXH3, under each secret or under one of a thousand: a product that the key's
/// own first word makes zero, and a complemented block (xxHash, issues 261 and 1127).
#[test]
fn keys_that_collide_elsewhere_do_not_here() {
    let zeroed = |n: u64| {
        let mut key = 0xbe4b_a423_396c_feb8u64.to_le_bytes().to_vec();
        key.extend_from_slice(&n.to_le_bytes());
        key.extend_from_slice(&0xdb97_9083_e96d_d4deu64.to_le_bytes());
        key.extend_from_slice(&(!n).to_le_bytes());
        key
    };
    let plain = xxhash_rust::xxh3::xxh3_64(&zeroed(0));
    assert!((0..1000).all(|n| xxhash_rust::xxh3::xxh3_64(&zeroed(n)) == plain));
    let hasher = hasher(7);
    let tops: BTreeSet<u64> = (0..1000).map(|n| hasher.hash(&zeroed(n)) >> 32).collect();
    assert!(tops.len() > 998);

    let mut key = [0; 32];
    key[16..].copy_from_slice(&0x5115_1210_4044_0000_0000_0082_0400_0105u128.to_be_bytes());
    let mut other = key;
    other[16..].iter_mut().for_each(|byte| *byte = !*byte);
    let secrets = if cfg!(miri) { 100 } else { 100_000 };
    let same = (0..secrets).filter(|&secret| {
        let hasher = self::hasher(secret);
        hasher.hash(&key) == hasher.hash(&other)
    });
    assert_eq!(same.count(), 0);
    let seeded = |seed: u64| {
        xxhash_rust::xxh3::xxh3_64_with_seed(&key, seed)
            == xxhash_rust::xxh3::xxh3_64_with_seed(&other, seed)
    };
    assert!(seeded(0x2468_b3bc_26a4_4073));
}
