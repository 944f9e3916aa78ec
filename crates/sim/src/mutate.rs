//! Inputs for fuzz targets: bytes that decode, changed in the ways in which decoders go wrong.
//!
//! Invariants:
//! 1. The same seeds and numbers make the same input.

use crate::random::Random;

/// Longest input.
const BYTES_MAX: usize = 1 << 16;

/// Numbers at the edges of what fields hold.
const EDGES: [u64; 16] = [
    0,
    1,
    7,
    8,
    127,
    128,
    255,
    256,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 56,
    u64::MAX >> 1,
    u64::MAX,
];

/// One of `seeds`, changed in some places.
pub fn input(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = match seeds.len() {
        0 => Vec::new(),
        count => seeds[random.below(count)].clone(),
    };
    let changes = [1, 1, 2, 3, 5, 12][random.below(6)];
    for _ in 0..changes {
        change(&mut bytes, seeds, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

/// A place: mostly near the front, where headers are, or near the end, where footers are.
fn place(len: usize, random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(len.min(64)),
        1 => len.saturating_sub(1 + random.below(len.min(4096))),
        2 => {
            // The front of a page.
            let at = random.below(len) / 4096 * 4096 + random.below(64);
            at.min(len.saturating_sub(1))
        }
        _ => random.below(len),
    }
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    if bytes.is_empty() {
        bytes.extend((0..1 + random.below(40)).map(|_| random.draw() as u8));
        return;
    }
    let at = place(bytes.len(), random);
    let end = |random: &mut Random| bytes.len().min(at + 1 + random.below(1 + bytes.len() / 4));
    match random.below(14) {
        0..3 => bytes[at] ^= 1 << random.below(8),
        3 => bytes[at] = random.draw() as u8,
        4..6 => {
            let edge = EDGES[random.below(EDGES.len())];
            let edge = if random.one_in(4) { edge.wrapping_sub(1) } else { edge };
            let width = [1, 2, 4, 8][random.below(4)];
            for (byte, new) in bytes[at..].iter_mut().zip(&edge.to_le_bytes()[..width]) {
                *byte = *new;
            }
        }
        6 => {
            // A varint that goes on, or ends.
            bytes[at] ^= 0x80;
        }
        7 => bytes[at] = bytes[at].wrapping_add([1, 255, 16, 240][random.below(4)]),
        8 => {
            let end = end(random);
            bytes.drain(at..end);
        }
        9 => {
            let piece = bytes[at..end(random)].to_vec();
            let to = place(bytes.len(), random);
            bytes.splice(to..to, piece);
        }
        10 => {
            let piece = bytes[at..end(random)].to_vec();
            let to = place(bytes.len(), random);
            bytes.iter_mut().skip(to).zip(piece).for_each(|(byte, new)| *byte = new);
        }
        11 => {
            let filler = [0, 0xff, random.draw() as u8][random.below(3)];
            let end = end(random);
            bytes[at..end].fill(filler);
        }
        12 => match random.one_in(2) {
            true => bytes.truncate(at),
            false => {
                let more = 1 + random.below(64);
                bytes.extend((0..more).map(|_| random.draw() as u8));
            }
        },
        _ => {
            // The rest of another one.
            let other = &seeds[random.below(seeds.len())];
            let from = at.min(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}

/// A shorter or plainer input that fails too, within so many trials.
pub fn shrink(input: &[u8], mut trials: usize, mut fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut smallest = input.to_vec();
    let mut attempt = |candidate: Vec<u8>, smallest: &mut Vec<u8>| {
        trials = trials.saturating_sub(1);
        let better = trials > 0 && candidate != *smallest && fails(&candidate);
        if better {
            *smallest = candidate;
        }
        better
    };
    let mut piece = smallest.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < smallest.len() {
            let end = smallest.len().min(at + piece);
            let without = [&smallest[..at], &smallest[end..]].concat();
            if attempt(without, &mut smallest) {
                continue;
            }
            let mut blank = smallest.clone();
            blank[at..end].fill(0);
            attempt(blank, &mut smallest);
            at = end;
        }
        piece /= 2;
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time_and_differ_from_each_other() {
        let seeds = [b"one seed of some length".to_vec(), vec![7; 5000]];
        let of = |number: u64| input(&seeds, &mut Random::new(&[1, number]));
        let inputs: Vec<Vec<u8>> = (0..2000).map(of).collect();
        assert!((0..2000).all(|number| inputs[number as usize] == of(number)));
        let mut distinct = inputs;
        distinct.sort();
        distinct.dedup();
        assert!(distinct.len() > 1500, "{}", distinct.len());
    }

    #[test]
    fn what_fails_is_shrunk_to_what_matters() {
        let input: Vec<u8> = (0..=255).chain(0..=255).collect();
        let fails = |bytes: &[u8]| bytes.contains(&77) && bytes.len() > 3;
        let smallest = shrink(&input, 100_000, fails);
        assert!(fails(&smallest) && smallest.len() == 4, "{smallest:?}");
        assert_eq!(smallest.iter().filter(|byte| **byte != 0).count(), 1, "{smallest:?}");
    }
}
