//! One page of a hash index: a front, the segment of the page's hashes, and what their slots hold.
//!
//! `docs/format/perfect-hash.md` has the layout.
//!
//! Invariants:
//! 1. A page holds the entries of a range of hashes. Each has a slot of its own; slots without an entry have
//!    signature 0 and value 0.
//! 2. Page bytes are not trusted: every load is checked.

use super::reduce::mixed;
#[cfg(test)]
use super::segment::Head;
use super::segment::{HEAD_BYTES, SegmentBuilder};
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::cache::PAGE_HEADER_BYTES;

/// The size of a payload in bytes: it fills one unit.
pub(super) const PAYLOAD_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
/// Number u32, pages u32, value bits u8, signatures u8, reserved bytes, head.
const FRONT_BYTES: usize = 16 + HEAD_BYTES;
/// Values are read by words, of which the last may reach beyond the values.
const SLACK_BYTES: usize = 8;
/// Spreads the hashes of a page, which have their upper bits in common. On disk: never change.
const PAGE_SEED: u64 = 0x6a09_e667_f3bc_c909;

/// What each slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a value, 1 to 32. The greatest value says that the hash is ambiguous.
    pub(crate) value_bits: u8,
    /// Whether a slot has a signature of eight bits.
    pub(crate) signatures: bool,
}

impl Shape {
    /// The value of a hash that several keys have.
    pub(super) fn ambiguous(self) -> u32 {
        u32::MAX >> (32 - u32::from(self.value_bits))
    }

    fn signature_bytes(self) -> usize {
        usize::from(self.signatures)
    }

    fn slots_bytes(self, slots: usize) -> usize {
        slots * self.signature_bytes() + (slots * usize::from(self.value_bits)).div_ceil(8)
    }
}

/// What an index knows of a hash.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// No key with this hash was added.
    Absent,
    /// Where the key is, if it was added: some other hashes get the same answer.
    Value(u32),
    /// Several keys with this hash were added.
    Ambiguous,
}

#[inline(always)]
fn signature(hash: u64) -> u8 {
    hash as u8
}

/// Writes the page of these entries, which are in ascending order of their hashes. Returns false if they do not fit.
///
/// # Errors
/// `InvalidArgument` if two hashes are equal.
pub(super) fn encode(
    (number, pages): (u32, u32),
    shape: Shape,
    entries: &[(u64, u32)],
    builder: &mut SegmentBuilder,
    payload: &mut Vec<u8>,
) -> Result<bool> {
    let spread: Vec<u64> = entries.iter().map(|(hash, _)| mixed(*hash, PAGE_SEED)).collect();
    let segment = builder.build(&spread)?;
    let slots = segment.head.slots as usize;
    let signatures_at = FRONT_BYTES + segment.body.len();
    if signatures_at + shape.slots_bytes(slots) + SLACK_BYTES > PAYLOAD_BYTES {
        return Ok(false);
    }
    payload.clear();
    payload.extend_from_slice(&number.to_le_bytes());
    payload.extend_from_slice(&pages.to_le_bytes());
    payload.extend_from_slice(&[shape.value_bits, u8::from(shape.signatures)]);
    payload.resize(FRONT_BYTES - HEAD_BYTES, 0);
    payload.extend_from_slice(&segment.head.encode());
    payload.extend_from_slice(&segment.body);
    payload.resize(PAYLOAD_BYTES, 0);
    let values_at = signatures_at + slots * shape.signature_bytes();
    for (&(hash, value), &spread) in entries.iter().zip(&spread) {
        let Some(slot) = segment.head.slot(&segment.body, spread) else { continue };
        if shape.signatures {
            payload[signatures_at + slot as usize] = signature(hash);
        }
        let bit = slot as usize * usize::from(shape.value_bits);
        let word = &mut payload[values_at + bit / 8..][..8];
        let shifted = u64::from(value & shape.ambiguous()) << (bit % 8);
        for (byte, more) in word.iter_mut().zip(shifted.to_le_bytes()) {
            *byte |= more;
        }
    }
    Ok(true)
}

/// Sets the number of pages, which is not known while pages are encoded.
pub(super) fn set_pages(payload: &mut [u8], pages: u32) {
    payload[4..8].copy_from_slice(&pages.to_le_bytes());
}

/// Asks a page for a hash of its range. `None` if the page is damaged or another.
#[cfg(test)]
#[inline]
pub(super) fn probe(
    payload: &[u8],
    (number, pages): (u32, u32),
    shape: Shape,
    hash: u64,
) -> Option<Probe> {
    let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().ok()?;
    let word =
        |at: usize| -> Option<u32> { Some(u32::from_le_bytes(*payload.get(at..)?.first_chunk()?)) };
    let shape_bytes = [shape.value_bits, u8::from(shape.signatures)];
    if word(0)? != number || word(4)? != pages || payload[8..10] != shape_bytes {
        return None;
    }
    let head: &[u8; HEAD_BYTES] = payload[FRONT_BYTES - HEAD_BYTES..].first_chunk()?;
    let head = Head::decode(head)?;
    let signatures_at = FRONT_BYTES.checked_add(head.body_bytes())?;
    let body = payload.get(FRONT_BYTES..signatures_at)?;
    let Some(slot) = head.slot(body, mixed(hash, PAGE_SEED)) else { return Some(Probe::Absent) };
    if shape.signatures && *payload.get(signatures_at + slot as usize)? != signature(hash) {
        return Some(Probe::Absent);
    }
    let values_at = signatures_at + head.slots as usize * shape.signature_bytes();
    let bit = slot as usize * usize::from(shape.value_bits);
    let word = u64::from_le_bytes(*payload.get(values_at + bit / 8..)?.first_chunk()?);
    let value = (word >> (bit % 8)) as u32 & shape.ambiguous();
    Some(if value == shape.ambiguous() { Probe::Ambiguous } else { Probe::Value(value) })
}
