//! The bytes of a journal: file names, segment headers, record headers (`docs/format/journal.md`).
//!
//! Invariants:
//! 1. Every checksum is seeded with the store, the segment and the offset it belongs to: bytes that
//!    are whole but belong elsewhere do not pass.
//! 2. The first eight bytes of a record are never all zero, so zero means "nothing here".
//! 3. A record header has a check of its own, so that its length is known to be right before the
//!    payload is looked at.

use std::path::Path;

use crate::base::checksum::checksum;
use crate::base::error::{Error, Result};
use crate::base::ids::Seqno;

const SEGMENT_MAGIC: [u8; 8] = *b"SPINJRNL";
/// The version of the format that this build reads and writes.
const VERSION: u32 = 2;
/// Bytes of a segment before its first record.
pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes of a record before its payload.
pub(super) const RECORD_HEADER_BYTES: usize = 40;
/// The same of a short record.
pub(super) const SHORT_HEADER_BYTES: usize = 24;
/// Records start at multiples of this.
pub(super) const RECORD_ALIGN: u64 = 8;
/// The most operations bytes that one record can carry.
pub(super) const PAYLOAD_BYTES_MAX: u64 = u32::MAX as u64;

/// Names a segment within its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId {
    pub(crate) epoch: u32,
    pub(crate) shard: u32,
    /// Counts from 1 within the shard and epoch, without holes.
    pub(crate) number: u32,
}

impl SegmentId {
    /// The file name.
    pub(crate) fn file_name(self) -> String {
        format!("journal-{:08}-{:02}-{:08}.log", self.epoch, self.shard, self.number)
    }

    /// The segment that a file name says, if it is a segment's.
    pub(crate) fn parse(name: &str) -> Option<SegmentId> {
        let mut parts = name.strip_prefix("journal-")?.strip_suffix(".log")?.split('-');
        let id = SegmentId {
            epoch: parts.next()?.parse().ok()?,
            shard: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
        };
        // Only the canonical spelling: two names must never mean one segment.
        (id.number > 0 && id.file_name() == name).then_some(id)
    }

    /// What the checksums of this segment's records are seeded with, before the offset is added.
    pub(super) fn seed(self, store_id: u64) -> u64 {
        let mut place = [0; 20];
        place[..8].copy_from_slice(&store_id.to_le_bytes());
        place[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        place[12..16].copy_from_slice(&self.shard.to_le_bytes());
        place[16..].copy_from_slice(&self.number.to_le_bytes());
        checksum(0, &place)
    }

    /// The header of a segment of `len` bytes.
    pub(super) fn encode_header(self, store_id: u64, len: u64) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        out[16..24].copy_from_slice(&store_id.to_le_bytes());
        out[24..28].copy_from_slice(&self.shard.to_le_bytes());
        out[28..32].copy_from_slice(&self.number.to_le_bytes());
        out[32..40].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(0, &out[..56]);
        out[56..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Checks that `bytes` is the header of this very segment, whose file has `len` bytes.
    pub(super) fn check_header(
        self,
        bytes: &[u8; SEGMENT_HEADER_BYTES],
        file: &Path,
        store_id: u64,
        len: u64,
    ) -> Result<()> {
        let corrupt = |offset: u64, what, expected: u64, found: u64| {
            Err(Error::corruption(
                file,
                offset,
                what,
                format_args!("{expected:#x}"),
                format_args!("{found:#x}"),
            ))
        };
        let (sum, found) = (checksum(0, &bytes[..56]), le_u64(bytes, 56));
        if bytes[..8] != SEGMENT_MAGIC {
            let expected = u64::from_le_bytes(SEGMENT_MAGIC);
            return corrupt(0, "journal segment magic", expected, le_u64(bytes, 0));
        }
        if found != sum {
            return corrupt(56, "journal segment header checksum", sum, found);
        }
        let version = le_u32(bytes, 8);
        if version != VERSION {
            return Err(Error::UnsupportedVersion {
                file: file.to_path_buf(),
                found: version,
                supported: VERSION,
            });
        }
        for (offset, what, expected, found) in [
            (16, "journal segment store id", store_id, le_u64(bytes, 16)),
            (12, "journal segment epoch", u64::from(self.epoch), u64::from(le_u32(bytes, 12))),
            (24, "journal segment shard", u64::from(self.shard), u64::from(le_u32(bytes, 24))),
            (28, "journal segment number", u64::from(self.number), u64::from(le_u32(bytes, 28))),
            (32, "journal segment length", len, le_u64(bytes, 32)),
        ] {
            if expected != found {
                return corrupt(offset, what, expected, found);
            }
        }
        Ok(())
    }
}

/// What a record is. The numbers are on disk: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RecordKind {
    /// A batch of operations.
    Batch = 1,
    /// The last record of a segment: the shard goes on in the next one.
    Roll = 2,
    /// The journal was closed and everything before was durable.
    Clean = 3,
}

/// A batch of one operation in a short record.
const KIND_SINGLE: u8 = 4;

/// A place in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) segment: u32,
    pub(super) offset: u64,
}

impl Position {
    /// Just after the header of a shard's first segment, which is durable before it is used.
    pub(super) const START: Position = Position { segment: 1, offset: SEGMENT_HEADER_BYTES as u64 };
}

/// The decoded header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub(super) kind: RecordKind,
    /// Whether the record is short: a batch of one operation that says nothing of what is durable.
    pub(super) short: bool,
    /// Batch: the first sequence number. Roll: the last of the shard. Clean: the last of the journal.
    pub(super) seqno: u64,
    /// How many sequence numbers the record takes; 0 unless it is a batch.
    pub(super) count: u32,
    pub(super) payload_bytes: u32,
    pub(super) payload_checksum: u64,
    /// Everything up to here, on all shards, was known to be durable when this was written; 0 if
    /// unknown.
    pub(super) durable: u64,
    /// Everything of this shard before here was known to be durable when this was written.
    pub(super) watermark: Position,
}

impl RecordHeader {
    /// The bytes of the header of a record that starts where `seed` says ([`seed_at`]). Of a short
    /// record only the first [`SHORT_HEADER_BYTES`] count.
    // Each put calls it. Left to the compiler it is inlined or not as other callers come and go: 45 instructions a put.
    #[inline(always)]
    pub(super) fn encode(&self, seed: u64) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        let kind = if self.short { KIND_SINGLE } else { self.kind as u8 };
        out[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.payload_checksum.to_le_bytes());
        out[16..24].copy_from_slice(&(self.seqno | u64::from(kind) << 56).to_le_bytes());
        if self.short {
            let check = header_check(&out[..SHORT_HEADER_BYTES], seed);
            out[..4].copy_from_slice(&check.to_le_bytes());
            return out;
        }
        out[24..28].copy_from_slice(&self.count.to_le_bytes());
        // A distance too far for its field says "unknown", which is always safe.
        let distance = match self.durable {
            0 => 0,
            durable => u32::try_from(self.seqno.saturating_sub(durable)).unwrap_or(0),
        };
        out[28..32].copy_from_slice(&distance.to_le_bytes());
        out[32..36].copy_from_slice(&self.watermark.segment.to_le_bytes());
        let units = (self.watermark.offset / RECORD_ALIGN) as u32;
        out[36..40].copy_from_slice(&units.to_le_bytes());
        let check = header_check(&out, seed);
        out[..4].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// The header in `bytes`, or `None` if they are not a header that belongs where `seed` says.
    pub(super) fn decode(bytes: &[u8; RECORD_HEADER_BYTES], seed: u64) -> Option<RecordHeader> {
        let short = bytes[23] == KIND_SINGLE;
        let header_bytes = if short { SHORT_HEADER_BYTES } else { RECORD_HEADER_BYTES };
        if le_u32(bytes, 0) != header_check(&bytes[..header_bytes], seed) {
            return None;
        }
        let seqno = le_u64(bytes, 16) & Seqno::MAX.0;
        let (payload_bytes, payload_checksum) = (le_u32(bytes, 4), le_u64(bytes, 8));
        let kind = match bytes[23] {
            1 | KIND_SINGLE => RecordKind::Batch,
            2 => RecordKind::Roll,
            3 => RecordKind::Clean,
            _ => return None,
        };
        if short {
            let (durable, watermark) = (0, Position::START);
            return Some(RecordHeader {
                kind,
                short,
                seqno,
                count: 1,
                payload_bytes,
                payload_checksum,
                durable,
                watermark,
            });
        }
        let count = le_u32(bytes, 24);
        if (kind == RecordKind::Batch) != (count > 0) {
            return None;
        }
        let durable = match u64::from(le_u32(bytes, 28)) {
            0 => 0,
            distance => seqno.saturating_sub(distance),
        };
        let watermark = Position {
            segment: le_u32(bytes, 32),
            offset: u64::from(le_u32(bytes, 36)) * RECORD_ALIGN,
        };
        Some(RecordHeader {
            kind,
            short,
            seqno,
            count,
            payload_bytes,
            payload_checksum,
            durable,
            watermark,
        })
    }

    /// The last sequence number of a batch.
    pub(super) fn last(&self) -> u64 {
        self.seqno + u64::from(self.count.max(1)) - 1
    }

    /// Bytes before the payload.
    #[inline]
    pub(super) fn header_bytes(&self) -> usize {
        if self.short { SHORT_HEADER_BYTES } else { RECORD_HEADER_BYTES }
    }

    /// Bytes of the whole record with its padding.
    #[inline]
    pub(super) fn record_bytes(&self) -> u64 {
        (self.header_bytes() as u64 + u64::from(self.payload_bytes)).next_multiple_of(RECORD_ALIGN)
    }
}

/// What the checksums of a record at `offset` are seeded with.
#[inline]
pub(super) fn seed_at(segment_seed: u64, offset: u64) -> u64 {
    segment_seed.wrapping_add(offset)
}

/// The most bytes of a record with a payload of `payload_bytes`, header and padding included.
#[inline]
pub(super) fn record_bytes_max(payload_bytes: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + payload_bytes).next_multiple_of(RECORD_ALIGN)
}

#[inline]
fn header_check(bytes: &[u8], seed: u64) -> u32 {
    (checksum(seed, &bytes[4..]) as u32).max(1)
}

/// The number at a constant offset of a header.
#[inline]
fn le_u32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The number at a constant offset of a header.
#[inline]
fn le_u64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(le_u32(bytes, at)) | u64::from(le_u32(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SegmentId = SegmentId { epoch: 3, shard: 1, number: 7 };

    #[test]
    fn only_canonical_names_are_segments() {
        assert_eq!(ID.file_name(), "journal-00000003-01-00000007.log");
        assert_eq!(SegmentId::parse(&ID.file_name()), Some(ID));
        for name in [
            "journal-3-1-7.log",
            "journal-00000003-01-00000000.log",
            "journal-00000003-01-00000007.log.tmp",
            "journal-00000003-01-+0000007.log",
            "journal-00000003-01.log",
            "journal-00000003-01-00000007-1.log",
            "00000003.table",
        ] {
            assert_eq!(SegmentId::parse(name), None, "{name}");
        }
        let long = SegmentId { epoch: u32::MAX, shard: 63, number: u32::MAX };
        assert_eq!(SegmentId::parse(&long.file_name()), Some(long));
    }

    #[test]
    fn a_segment_header_passes_only_as_itself() {
        let path = Path::new("s");
        let bytes = ID.encode_header(42, 8192);
        ID.check_header(&bytes, path, 42, 8192).unwrap();
        assert!(ID.check_header(&bytes, path, 43, 8192).unwrap_err().is_corruption());
        assert!(ID.check_header(&bytes, path, 42, 4096).unwrap_err().is_corruption());
        let other = SegmentId { number: 8, ..ID };
        assert!(other.check_header(&bytes, path, 42, 8192).unwrap_err().is_corruption());
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert!(ID.check_header(&damaged, path, 42, 8192).unwrap_err().is_corruption());
        }
    }

    #[test]
    fn a_segment_of_another_version_is_refused() {
        for version in [1, 3] {
            let mut bytes = ID.encode_header(42, 8192);
            bytes[8] = version;
            let sum = checksum(0, &bytes[..56]);
            bytes[56..].copy_from_slice(&sum.to_le_bytes());
            let error = ID.check_header(&bytes, Path::new("s"), 42, 8192).unwrap_err();
            assert!(
                matches!(&error, Error::UnsupportedVersion { found, supported: 2, .. }
                    if *found == u32::from(version)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_record_header_passes_only_where_it_belongs() {
        let seed = ID.seed(42);
        let header = RecordHeader {
            kind: RecordKind::Batch,
            short: false,
            seqno: 1 << 40,
            count: 3,
            payload_bytes: 77,
            payload_checksum: 5,
            durable: (1 << 40) - 9,
            watermark: Position { segment: 6, offset: 4096 },
        };
        let bytes = header.encode(seed_at(seed, 64));
        assert_eq!(RecordHeader::decode(&bytes, seed_at(seed, 64)), Some(header));
        assert_eq!(RecordHeader::decode(&bytes, seed_at(seed, 72)), None);
        let elsewhere = SegmentId { shard: 2, ..ID }.seed(42);
        assert_eq!(RecordHeader::decode(&bytes, seed_at(elsewhere, 64)), None);
        assert_eq!(RecordHeader::decode(&[0; RECORD_HEADER_BYTES], seed), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(RecordHeader::decode(&damaged, seed_at(seed, 64)), None);
        }
        let single = RecordHeader {
            short: true,
            count: 1,
            durable: 0,
            watermark: Position::START,
            ..header
        };
        let bytes = single.encode(seed_at(seed, 64));
        assert_eq!(RecordHeader::decode(&bytes, seed_at(seed, 64)), Some(single));
        assert_eq!(single.record_bytes(), 104);
        for at in 0..SHORT_HEADER_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(RecordHeader::decode(&damaged, seed_at(seed, 64)), None);
        }
        let mut behind = bytes;
        behind[SHORT_HEADER_BYTES..].fill(0xff);
        assert_eq!(RecordHeader::decode(&behind, seed_at(seed, 64)), Some(single));
        let far = RecordHeader { durable: 1, ..header };
        let found = RecordHeader::decode(&far.encode(1), 1);
        assert_eq!(found, Some(RecordHeader { durable: 0, ..header }), "too far says unknown");
    }
}
