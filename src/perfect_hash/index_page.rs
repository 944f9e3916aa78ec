//! One page of a hash index: a front, the segment of the page's hashes, and what their slots hold.
//!
//! `docs/format/perfect-hash.md` has the layout.
//!
//! Invariants:
//! 1. A page holds the entries of a range of hashes. Each has a slot of its own; slots without an entry have
//!    signature 0 and value 0.
//! 2. Page bytes are not trusted: every load is checked.

use super::reduce::mixed;
use super::segment::{HEAD_BYTES, Head, SegmentBuilder};
use crate::base::error::Result;
use crate::base::limits::UNIT_BYTES;
use crate::base::planted::{Bug, planted};
use crate::cache::PAGE_HEADER_BYTES;

/// The size of a payload in bytes: it fills one unit.
pub(super) const PAYLOAD_BYTES: usize = UNIT_BYTES - PAGE_HEADER_BYTES;
/// Number u32, value bits u8, signature bytes u8, reserved bytes, first hash u64, head.
const FRONT_BYTES: usize = 16 + HEAD_BYTES;
/// Values and signatures are read by words, of which the last may reach beyond them.
const SLACK_BYTES: usize = 8;
/// Spreads the hashes of a page, which have their upper bits in common. On disk: never change.
const PAGE_SEED: u64 = 0x6a09_e667_f3bc_c909;
/// The lowest bit of a hash that a signature has: indexes use the upper 48 bits of hashes.
const SIGNATURE_SHIFT: u32 = 16;
/// The most bytes of a signature.
pub(super) const SIGNATURE_BYTES_MAX: u8 = 2;

/// What each slot has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bits of a value, 1 to 32.
    pub(crate) value_bits: u8,
    /// Bytes of a signature, 0 to 2.
    pub(crate) signature_bytes: u8,
}

impl Shape {
    /// The shape with the fewest bits for values up to `value_max`.
    pub(crate) fn for_values(value_max: u32, signature_bytes: u8) -> Shape {
        let value_bits = (u32::BITS - value_max.leading_zeros()).max(1) as u8;
        Shape { value_bits, signature_bytes }
    }

    /// The greatest value.
    pub(crate) fn value_max(self) -> u32 {
        u32::MAX >> (32 - u32::from(self.value_bits))
    }

    /// Whether the numbers may be a shape's.
    pub(super) fn is_valid(self) -> bool {
        (1..=32).contains(&self.value_bits) && self.signature_bytes <= SIGNATURE_BYTES_MAX
    }

    fn signature_len(self) -> usize {
        usize::from(self.signature_bytes)
    }

    /// The signature of a hash: the lowest `signature_bytes` bytes of the result.
    #[inline(always)]
    fn signature(self, hash: u64) -> u16 {
        let all = (hash >> SIGNATURE_SHIFT) as u16;
        if self.signature_bytes == 1 { all & 0xff } else { all }
    }

    fn slots_bytes(self, slots: usize) -> usize {
        slots * self.signature_len() + (slots * usize::from(self.value_bits)).div_ceil(8)
    }
}

/// Writes the page of these entries, which are in ascending order of their hashes. `first` is the first hash that belongs
/// to the page. Returns false if they do not fit.
///
/// # Errors
/// `InvalidArgument` if two hashes are equal.
pub(super) fn encode(
    (number, first): (u32, u64),
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
    payload.extend_from_slice(&[shape.value_bits, shape.signature_bytes, 0, 0]);
    payload.extend_from_slice(&first.to_le_bytes());
    payload.extend_from_slice(&segment.head.encode());
    payload.extend_from_slice(&segment.body);
    payload.resize(PAYLOAD_BYTES, 0);
    let values_at = signatures_at + slots * shape.signature_len();
    for (&(hash, value), &spread) in entries.iter().zip(&spread) {
        let Some(slot) = segment.head.slot(&segment.body, spread) else { continue };
        let slot = slot as usize;
        let signature_slot = match planted(Bug::SignatureOfNextSlot) {
            true => (slot + 1) % slots,
            false => slot,
        };
        let signature = shape.signature(hash).to_le_bytes();
        let length = shape.signature_len();
        payload[signatures_at + signature_slot * length..][..length]
            .copy_from_slice(&signature[..length]);
        let bit = slot * usize::from(shape.value_bits);
        let word = &mut payload[values_at + bit / 8..][..8];
        let shifted = u64::from(value & shape.value_max()) << (bit % 8);
        for (byte, more) in word.iter_mut().zip(shifted.to_le_bytes()) {
            *byte |= more;
        }
    }
    Ok(true)
}

/// Asks a page for a hash of its range: the value of the hash if it was added, and of some hashes that were not.
/// `None` if the page is damaged or another.
#[inline]
pub(super) fn probe(
    payload: &[u8],
    (number, first): (u32, u64),
    shape: Shape,
    hash: u64,
) -> Option<Option<u32>> {
    let payload: &[u8; PAYLOAD_BYTES] = payload.try_into().ok()?;
    let is_same = u32::from_le_bytes(*payload.first_chunk()?) == number
        && payload[4..8] == [shape.value_bits, shape.signature_bytes, 0, 0]
        && u64::from_le_bytes(*payload[8..].first_chunk()?) == first;
    if !is_same {
        return None;
    }
    let head: &[u8; HEAD_BYTES] = payload[FRONT_BYTES - HEAD_BYTES..].first_chunk()?;
    let head = Head::decode(head)?;
    let signatures_at = FRONT_BYTES.checked_add(head.body_bytes())?;
    let body = payload.get(FRONT_BYTES..signatures_at)?;
    let Some(slot) = head.slot(body, mixed(hash, PAGE_SEED)) else { return Some(None) };
    let slot = slot as usize;
    if shape.signature_bytes > 0 {
        let at = signatures_at + slot * shape.signature_len();
        let found = u16::from_le_bytes(*payload.get(at..)?.first_chunk()?);
        let found = if shape.signature_bytes == 1 { found & 0xff } else { found };
        if found != shape.signature(hash) {
            return Some(None);
        }
    }
    let values_at = signatures_at + head.slots as usize * shape.signature_len();
    let bit = slot * usize::from(shape.value_bits);
    let word = u64::from_le_bytes(*payload.get(values_at + bit / 8..)?.first_chunk()?);
    Some(Some((word >> (bit % 8)) as u32 & shape.value_max()))
}
