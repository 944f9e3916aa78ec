//! One page of a maplet: all pairs (fingerprint, branch) with `start <= fingerprint < end`, sorted.
//!
//! The buckets (quotients) of the range are divided into groups of 32. A directory at the front of
//! the page holds the position of each group. A group is a unary string (a one for each entry, and
//! a zero after each bucket's last entry), followed by the slots of its entries. A probe reads the
//! directory and then one or two adjacent cache lines.
//!
//! Invariants:
//! 1. All pairs of one fingerprint are in one page.
//! 2. The last 8 bytes of a payload are zero, so loads of 8 or 9 bytes at any used bit stay inside.
//! 3. Page bytes are not trusted: every load is checked, and every loop ends with the page.

use super::bits::{BitWriter, select, window, window57};
use super::branch_set::BranchSet;
use super::geometry::{GROUP_BUCKETS, Geometry};
use crate::base::limits::UNIT_BYTES;
use crate::cache::PAGE_HEADER_BYTES;

/// The size of a maplet page's payload in bytes: it fills one unit.
pub(crate) const PAYLOAD_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
/// Start u64, end u64, page number u32, entries u16, groups u16.
const FRONT_BYTES: usize = 24;
const SLACK_BYTES: usize = 8;
const DIRECTORY_ENTRY_BYTES: usize = 2;

/// The number of bits for groups and entries, without the directory's closing entry.
pub(crate) const PAGE_BITS: usize =
    (PAYLOAD_BYTES - FRONT_BYTES - DIRECTORY_ENTRY_BYTES - SLACK_BYTES) * 8;
/// The number of bits of a group without entries: its directory entry and its buckets' ends.
pub(crate) const GROUP_BITS: usize = DIRECTORY_ENTRY_BYTES * 8 + GROUP_BUCKETS as usize;

/// A fingerprint and a branch ordinal in one number, which sorts like the pair.
#[inline(always)]
pub(crate) fn entry(fingerprint: u64, ordinal: u8) -> u64 {
    fingerprint << 8 | u64::from(ordinal)
}

/// The fingerprint of an entry.
#[inline(always)]
pub(crate) fn entry_fingerprint(entry: u64) -> u64 {
    entry >> 8
}

/// The front of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageFront {
    /// The least fingerprint of this page's range.
    pub(crate) start: u64,
    /// The end of the range, exclusive.
    pub(crate) end: u64,
    /// The number of this page in the maplet.
    pub(crate) number: u32,
    entries: u16,
    groups: u16,
}

impl PageFront {
    /// Decodes the front. Returns `None` if the payload is truncated.
    #[inline(always)]
    pub(crate) fn decode(payload: &[u8]) -> Option<PageFront> {
        let front: &[u8; FRONT_BYTES] = payload.first_chunk()?;
        Some(PageFront {
            start: u64::from_le_bytes(*front.first_chunk()?),
            end: u64::from_le_bytes(*front[8..].first_chunk()?),
            number: u32::from_le_bytes(*front[16..].first_chunk()?),
            entries: u16::from_le_bytes(*front[20..].first_chunk()?),
            groups: u16::from_le_bytes(*front[22..].first_chunk()?),
        })
    }

    /// The first bit after the directory.
    #[inline(always)]
    fn groups_position(&self) -> usize {
        (FRONT_BYTES + DIRECTORY_ENTRY_BYTES * (usize::from(self.groups) + 1)) * 8
    }
}

/// Writes the page `number` to `payload`. `entries` are sorted, distinct and within `start..end`.
/// The caller has checked with [`Geometry::cost`] that they fit.
pub(crate) fn encode(
    geometry: &Geometry,
    number: u32,
    start: u64,
    end: u64,
    entries: &[u64],
    payload: &mut [u8; PAYLOAD_BYTES],
) {
    let groups = geometry.groups(start, end) as usize;
    debug_assert!(geometry.cost(entries.len(), groups as u64) <= PAGE_BITS as u64);
    let (front, rest) = payload.split_at_mut(FRONT_BYTES);
    front[..8].copy_from_slice(&start.to_le_bytes());
    front[8..16].copy_from_slice(&end.to_le_bytes());
    front[16..20].copy_from_slice(&number.to_le_bytes());
    front[20..22].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    front[22..24].copy_from_slice(&(groups as u16).to_le_bytes());
    let (directory, rest) = rest.split_at_mut(DIRECTORY_ENTRY_BYTES * (groups + 1));

    let remainder_bits = geometry.remainder_bits();
    let remainder_mask = (1u64 << remainder_bits) - 1;
    let value_bits = geometry.value_bits;
    let slot_bits = geometry.slot_bits() as u32;
    let mut writer = BitWriter::new(rest, 0);
    let mut first_bucket = start >> remainder_bits;
    let mut from = 0;
    for place in directory.chunks_exact_mut(DIRECTORY_ENTRY_BYTES).take(groups) {
        place.copy_from_slice(&(from as u16).to_le_bytes());
        let mut to = from;
        let mut last = 0;
        while let Some(&entry) = entries.get(to) {
            let bucket = (entry_fingerprint(entry) >> remainder_bits) - first_bucket;
            if bucket >= GROUP_BUCKETS {
                break;
            }
            let ends = (bucket - last) as u32;
            writer.put(1 << ends, ends + 1);
            last = bucket;
            to += 1;
        }
        writer.put(0, (GROUP_BUCKETS - last) as u32);
        for &entry in &entries[from..to] {
            let remainder = entry_fingerprint(entry) & remainder_mask;
            writer.put(remainder << value_bits | (entry & 0xff), slot_bits);
        }
        from = to;
        first_bucket += GROUP_BUCKETS;
    }
    debug_assert_eq!(from, entries.len());
    writer.finish();
    directory[DIRECTORY_ENTRY_BYTES * groups..].copy_from_slice(&(from as u16).to_le_bytes());
}

/// The result of probing a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The branches that may hold the key.
    Branches(BranchSet),
    /// A later page has the fingerprint.
    Later,
    /// The page is damaged, with the problem.
    Damaged(&'static str),
}

/// Probes a page: the fingerprint's nominal page, or a later one after `Later` results.
#[inline]
pub(crate) fn probe(geometry: &Geometry, payload: &[u8], fingerprint: u64) -> Answer {
    let Some(front) = PageFront::decode(payload) else {
        return Answer::Damaged("maplet page length");
    };
    if fingerprint >= front.end {
        return Answer::Later;
    }
    match search(geometry, payload, &front, fingerprint) {
        Some(branches) => Answer::Branches(branches),
        None => Answer::Damaged("maplet group"),
    }
}

#[inline(always)]
fn search(
    geometry: &Geometry,
    payload: &[u8],
    front: &PageFront,
    fingerprint: u64,
) -> Option<BranchSet> {
    let remainder_bits = geometry.remainder_bits();
    let slot_bits = geometry.slot_bits();
    let bucket =
        (fingerprint >> remainder_bits).checked_sub(front.start >> remainder_bits)? as usize;
    let group = bucket / GROUP_BUCKETS as usize;
    if group >= usize::from(front.groups) {
        return None;
    }
    let directory = payload.get(FRONT_BYTES + DIRECTORY_ENTRY_BYTES * group..)?;
    let places: &[u8; 4] = directory.first_chunk()?;
    let before = usize::from(u16::from_le_bytes([places[0], places[1]]));
    let after = usize::from(u16::from_le_bytes([places[2], places[3]]));
    let entries = after.checked_sub(before)?;
    let ends = front.groups_position() + group * GROUP_BUCKETS as usize + before * (slot_bits + 1);
    let bucket = bucket % GROUP_BUCKETS as usize;
    let (first, run) = find_run(payload, ends, bucket)?;
    let last = first + run;
    if last > entries {
        return None;
    }

    let remainder = fingerprint & ((1 << remainder_bits) - 1);
    let slot_mask = (1u64 << slot_bits) - 1;
    let slots = ends + GROUP_BUCKETS as usize + entries;
    let slot = |index: usize| Some(window57(payload, slots + index * slot_bits)? & slot_mask);
    let (mut index, mut bound) = (first, last);
    // Long only if many keys share their first bits, which does not happen by chance.
    while bound - index > 16 {
        let middle = index + (bound - index) / 2;
        if slot(middle)? >> geometry.value_bits < remainder {
            index = middle + 1;
        } else {
            bound = middle;
        }
    }
    // Most runs have up to two entries. Two independent comparisons are cheaper than a loop with an
    // unpredictable end. A missing slot is not counted.
    let mut branches = BranchSet::EMPTY;
    let mut check = |slot: u64, counts: bool| {
        let equal = counts & (slot >> geometry.value_bits == remainder);
        branches.insert_if((slot & ((1 << geometry.value_bits) - 1)) as u8, equal);
    };
    let first_slot = window57(payload, slots + index * slot_bits)?;
    let second_slot = window57(payload, slots + (index + 1) * slot_bits).unwrap_or(0);
    check(first_slot & slot_mask, index < last);
    check(second_slot & slot_mask, index + 1 < last);
    index += 2;
    while index < last {
        check(slot(index)?, true);
        index += 1;
    }
    Some(branches)
}

/// The index of a bucket's first entry in its group, and its number of entries. `ends` is the start
/// of the group's unary string.
#[inline(always)]
fn find_run(payload: &[u8], ends: usize, bucket: usize) -> Option<(usize, usize)> {
    // With a zero prepended to the string, a bucket starts after the zero of its own number.
    let base = ends - 1;
    let mut position = base;
    let mut zeros = !window(payload, position)? | 1;
    let mut number = bucket as u32;
    let bit = loop {
        match select(zeros, number) {
            Ok(bit) => break bit,
            Err(fewer) => {
                number -= fewer;
                position += 64;
                zeros = !window(payload, position)?;
            }
        }
    };
    let first = (position - base + bit as usize).checked_sub(bucket)?;
    let rest = zeros >> bit >> 1;
    if rest != 0 {
        return Some((first, rest.trailing_zeros() as usize));
    }
    let mut run = 63 - bit as usize;
    loop {
        position += 64;
        zeros = !window(payload, position)?;
        run += zeros.trailing_zeros() as usize;
        if zeros != 0 {
            return Some((first, run));
        }
    }
}

/// Appends all entries of a page to `entries`, sorted, and returns its front. The error names what
/// cannot be part of a maplet's page.
pub(crate) fn decode(
    geometry: &Geometry,
    payload: &[u8],
    entries: &mut Vec<u64>,
) -> Result<PageFront, &'static str> {
    let front = PageFront::decode(payload).ok_or("maplet page length")?;
    if payload.len() != PAYLOAD_BYTES {
        return Err("maplet page length");
    }
    if front.start >= front.end || front.end > geometry.fingerprint_end() {
        return Err("maplet page bounds");
    }
    if geometry.groups(front.start, front.end) != u64::from(front.groups)
        || geometry.cost(usize::from(front.entries), u64::from(front.groups)) > PAGE_BITS as u64
    {
        return Err("maplet page counts");
    }
    let from = entries.len();
    decode_groups(geometry, payload, &front, entries).ok_or("maplet group")?;
    let decoded = &entries[from..];
    let (Some(&first), Some(&last)) = (decoded.first(), decoded.last()) else {
        return Ok(front);
    };
    let sorted = decoded.windows(2).fold(true, |sorted, pair| sorted & (pair[0] < pair[1]));
    if !sorted || entry_fingerprint(first) < front.start || entry_fingerprint(last) >= front.end {
        return Err("maplet entry order");
    }
    Ok(front)
}

fn decode_groups(
    geometry: &Geometry,
    payload: &[u8],
    front: &PageFront,
    out: &mut Vec<u64>,
) -> Option<()> {
    let remainder_bits = geometry.remainder_bits();
    let value_bits = geometry.value_bits;
    let slot_bits = geometry.slot_bits();
    let slot_mask = (1u64 << slot_bits) - 1;
    let value_mask = (1u64 << value_bits) - 1;
    let directory = payload.get(FRONT_BYTES..front.groups_position() / 8)?;
    // A probe finds the first group by this value; here it only has to be right.
    if *directory.first_chunk::<DIRECTORY_ENTRY_BYTES>()? != [0; DIRECTORY_ENTRY_BYTES] {
        return None;
    }
    let mut position = front.groups_position();
    let mut first_bucket = front.start >> remainder_bits;
    let mut before = 0;
    for place in directory.chunks_exact(DIRECTORY_ENTRY_BYTES).skip(1) {
        let after = usize::from(u16::from_le_bytes([place[0], place[1]]));
        let entries = after.checked_sub(before)?;
        if after > usize::from(front.entries) {
            return None;
        }
        let ends_bits = GROUP_BUCKETS as usize + entries;
        let mut slot_position = position + ends_bits;
        let mut index = 0;
        for offset in (0..ends_bits).step_by(64) {
            let mut ones = window(payload, position + offset)?;
            if ends_bits - offset < 64 {
                ones &= (1 << (ends_bits - offset)) - 1;
            }
            // The string ends with the last bucket's zero. A probe never sees entries after it.
            if ends_bits - offset <= 64 && ones >> (ends_bits - offset - 1) != 0 {
                return None;
            }
            while ones != 0 {
                let bucket = (offset + ones.trailing_zeros() as usize - index) as u64;
                ones &= ones - 1;
                index += 1;
                let slot = window57(payload, slot_position)? & slot_mask;
                slot_position += slot_bits;
                let fingerprint = (first_bucket + bucket) << remainder_bits | slot >> value_bits;
                out.push(fingerprint << 8 | slot & value_mask);
            }
        }
        if index != entries {
            return None;
        }
        position = slot_position;
        first_bucket += GROUP_BUCKETS;
        before = after;
    }
    (before == usize::from(front.entries)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::SplitMix;
    use std::collections::BTreeSet;

    fn random_page(
        random: &mut SplitMix,
        bits: u32,
        branches: usize,
    ) -> (Geometry, u64, u64, Vec<u64>) {
        let g = Geometry::new(bits, branches, 1 + random.next() % 100_000).unwrap();
        let start = random.next() >> (64 - bits);
        let mut end = g.nominal_end(g.nominal_page(start));
        let most = PAGE_BITS as u64 / GROUP_BITS as u64 * GROUP_BUCKETS / 2;
        end = end.min(start.saturating_add(most << g.remainder_bits()));
        let mut set = BTreeSet::new();
        let room = (PAGE_BITS as u64 - g.cost(0, g.groups(start, end))) / g.cost(1, 0);
        // Skewed towards the start half of the time, so that runs of every length occur.
        let skew = random.next() % 2 * (random.next() % u64::from(bits));
        for _ in 0..random.next() % (room + 1) {
            let fingerprint = start + (random.next() >> skew) % (end - start);
            set.insert(entry(fingerprint, (random.next() % branches as u64) as u8));
        }
        (g, start, end, set.into_iter().collect())
    }

    #[test]
    fn a_page_answers_for_each_fingerprint_and_is_decoded_whole() {
        let mut random = SplitMix::new(4);
        for round in 0..if cfg!(miri) { 3 } else { 400 } {
            let bits = [32, 37, 48][round % 3];
            let branches = [1, 2, 9, 16, 255][round / 3 % 5];
            let (g, start, end, entries) = random_page(&mut random, bits, branches);
            let mut payload = [0xff; PAYLOAD_BYTES];
            encode(&g, 7, start, end, &entries, &mut payload);
            assert_eq!(payload[PAYLOAD_BYTES - SLACK_BYTES..], [0; SLACK_BYTES]);

            let mut decoded = Vec::new();
            let front = decode(&g, &payload, &mut decoded).unwrap();
            assert_eq!((front.start, front.end, front.number), (start, end, 7));
            assert_eq!(decoded, entries);

            let expected = |fingerprint: u64| {
                let mut set = BranchSet::EMPTY;
                let from = entries.partition_point(|&e| entry_fingerprint(e) < fingerprint);
                let same = entries[from..].iter();
                same.take_while(|&&e| entry_fingerprint(e) == fingerprint)
                    .for_each(|&e| set.insert(e as u8));
                Answer::Branches(set)
            };
            for &e in entries.iter().step_by(if cfg!(miri) { 97 } else { 1 }) {
                let f = entry_fingerprint(e);
                for f in [f, (f + 1).min(end - 1), f.max(start + 1) - 1] {
                    assert_eq!(probe(&g, &payload, f), expected(f));
                }
            }
            assert_eq!(probe(&g, &payload, end - 1), expected(end - 1));
            assert_eq!(probe(&g, &payload, end), Answer::Later);
        }
    }

    /// A full check passed pages with wrong bytes and a right checksum. Probes then missed existing
    /// keys or reported damage. The check did not verify the first group's position in the
    /// directory, nor the bits after a group's last bucket.
    #[test]
    fn what_a_probe_would_not_find_is_not_decoded() {
        let g = Geometry::new(32, 1, 64).unwrap();
        let (start, end) = (0, g.fingerprint_end());
        assert_eq!(g.groups(start, end), 2);
        let last = ((GROUP_BUCKETS - 1) << g.remainder_bits()) + 1;
        let mut payload = [0; PAYLOAD_BYTES];
        encode(&g, 0, start, end, &[entry(last, 0)], &mut payload);
        assert!(decode(&g, &payload, &mut Vec::new()).is_ok());
        let mut moved = payload;
        moved[FRONT_BYTES] = 1;
        assert!(decode(&g, &moved, &mut Vec::new()).is_err());
        // The unary string of the one entry has 33 bits: all zeros, then the one.
        let front = PageFront::decode(&payload).unwrap();
        let string = front.groups_position() / 8;
        payload[string..string + 4].fill(0);
        payload[string + 4] |= 1;
        assert!(decode(&g, &payload, &mut Vec::new()).is_err());
    }

    #[test]
    fn no_damage_makes_a_decoder_panic() {
        let mut random = SplitMix::new(5);
        for round in 0..if cfg!(miri) { 1 } else { 30 } {
            let (g, start, end, entries) = random_page(&mut random, 32, [1, 9, 255][round % 3]);
            let mut payload = [0; PAYLOAD_BYTES];
            encode(&g, 0, start, end, &entries, &mut payload);
            let (front, step) = if cfg!(miri) { (8, 499) } else { (80, 31) };
            for byte in (0..front).chain((front..PAYLOAD_BYTES).step_by(step)) {
                let mut damaged = payload;
                damaged[byte] ^= (1 + random.next() % 255) as u8;
                let mut decoded = Vec::new();
                if let Ok(front) = decode(&g, &damaged, &mut decoded) {
                    let within = |&e: &u64| {
                        (front.start..front.end).contains(&entry_fingerprint(e))
                            && (e & 0xff) >> g.value_bits == 0
                    };
                    assert!(decoded.iter().all(within));
                    assert!(decoded.is_sorted());
                }
                for _ in 0..20 {
                    probe(&g, &damaged, random.next() >> 32);
                    probe(&g, &damaged, start + random.next() % (end - start));
                }
            }
            for len in (0..PAYLOAD_BYTES).step_by(step + 6) {
                assert!(decode(&g, &payload[..len], &mut Vec::new()).is_err());
                probe(&g, &payload[..len], start);
            }
        }
    }
}
