//! The page format (`docs/format/page.md`): a header, the payload, and zeros up to a multiple of 4
//! KiB.
//!
//! Invariants:
//! 1. The page checksum covers everything except itself. It is seeded with the page's place, so a
//!    whole page in the wrong place (a misdirected or stale write) does not pass.
//! 2. The header has a short checksum of its own. A sequential reader can trust a page's length
//!    before it has read the page.

use crate::base::checksum::checksum;
use crate::base::ids::FileId;
use crate::base::limits::UNIT_BYTES;

/// Bytes of a page before its payload: checksum u64, payload bytes (decompressed) u32, payload
/// bytes as stored u32, units u16, page kind u8, compression u8, header checksum u32.
pub(crate) const PAGE_HEADER_BYTES: usize = 24;

/// Longest page, in units.
pub(super) const PAGE_UNITS_MAX: usize = u16::MAX as usize;
/// Longest payload, also once decompressed.
pub(super) const PAYLOAD_BYTES_MAX: usize = PAGE_UNITS_MAX * UNIT_BYTES - PAGE_HEADER_BYTES;

/// How page payloads are compressed. The numbers are on disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub(crate) enum Compression {
    /// As they are.
    #[default]
    None = 0,
    /// LZ4 block format. Pages that do not shrink by a unit are stored as they are.
    Lz4 = 1,
}

impl Compression {
    /// Decodes the on-disk tag.
    pub(crate) fn from_tag(tag: u8) -> Option<Compression> {
        match tag {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// The fields of a page's header, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) checksum: u64,
    /// Payload bytes once decompressed.
    pub(super) payload_bytes: u32,
    pub(super) stored_bytes: u32,
    pub(super) units: u16,
    pub(super) kind: u8,
    pub(super) compression_tag: u8,
    pub(super) header_checksum: u32,
}

impl PageHeader {
    /// Reads the fields, without checking them. `None` if there are too few bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<PageHeader> {
        let bytes: &[u8; PAGE_HEADER_BYTES] = bytes.first_chunk()?;
        let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
        let [p0, p1, p2, p3, s0, s1, s2, s3, u0, u1, kind, compression_tag, h0, h1, h2, h3] = rest;
        Some(PageHeader {
            checksum: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            payload_bytes: u32::from_le_bytes([p0, p1, p2, p3]),
            stored_bytes: u32::from_le_bytes([s0, s1, s2, s3]),
            units: u16::from_le_bytes([u0, u1]),
            kind,
            compression_tag,
            header_checksum: u32::from_le_bytes([h0, h1, h2, h3]),
        })
    }
}

fn seed(file: FileId, unit: u32) -> u64 {
    file.0.rotate_left(32) ^ u64::from(unit)
}

/// The expected checksum of a page at that location. `page` is all of its units.
pub(super) fn page_checksum(file: FileId, unit: u32, page: &[u8]) -> u64 {
    checksum(seed(file, unit), &page[8..])
}

/// The expected header checksum of a page at that location.
pub(super) fn header_checksum(file: FileId, unit: u32, page: &[u8]) -> u32 {
    checksum(seed(file, unit), &page[8..20]) as u32
}

/// Builds `page`, in whole units, from its parts.
pub(super) fn encode(
    page: &mut [u8],
    (file, unit): (FileId, u32),
    (kind, compression): (u8, Compression),
    payload_bytes: u32,
    stored: &[u8],
) {
    let units = (page.len() / UNIT_BYTES) as u16;
    page[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    page[12..16].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    page[16..18].copy_from_slice(&units.to_le_bytes());
    page[18] = kind;
    page[19] = compression as u8;
    let sum = header_checksum(file, unit, page);
    page[20..24].copy_from_slice(&sum.to_le_bytes());
    let end = PAGE_HEADER_BYTES + stored.len();
    page[PAGE_HEADER_BYTES..end].copy_from_slice(stored);
    page[end..].fill(0);
    let sum = page_checksum(file, unit, page);
    page[..8].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::documented::hex_block;

    /// The bytes of the document's example, without its comments.
    fn example() -> Vec<u8> {
        hex_block(include_str!("../../docs/format/page.md"), 0)
    }

    #[test]
    fn the_documented_example_is_what_is_written_and_read() {
        let example = example();
        let (file, unit) = (FileId(7), 3);
        let mut page = vec![0xff; UNIT_BYTES];
        encode(&mut page, (file, unit), (2, Compression::None), 5, b"hello");
        let shown = page[..example.len()].to_vec();
        assert_eq!(example, shown, "the page is {shown:02x?}");
        assert!(example.len() == 32 && page[32..].iter().all(|&byte| byte == 0));
        let header = PageHeader::decode(&example).unwrap();
        assert_eq!(header.payload_bytes, 5);
        assert_eq!(header.stored_bytes, 5);
        assert_eq!(header.units, 1);
        assert_eq!(header.kind, 2);
        assert_eq!(Compression::from_tag(header.compression_tag), Some(Compression::None));
        assert_eq!(header.checksum, page_checksum(file, unit, &page));
        assert_eq!(header.header_checksum, header_checksum(file, unit, &page));
        assert_eq!(PageHeader::decode(&example[..23]), None);
    }
}
