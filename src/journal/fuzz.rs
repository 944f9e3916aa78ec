//! Fuzz targets: segment headers, record headers, operations, and whole journals.

use std::path::{Path, PathBuf};

use super::format::{
    Position, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES,
    SHORT_HEADER_BYTES, SegmentId, seed_at,
};
use super::{EpochLimit, Journal, Operations, ReplayPlan, encode_operation};
use crate::base::checksum::checksum;
use crate::base::entry::EntryKind;
use crate::base::error::Result;
use crate::base::fuzz::{FILE, Target, named, split_array, split_first};
use crate::base::ids::{KeyspaceId, Seqno};
use crate::vfs::{Access, MemoryVfs, Vfs};

const STORE_ID: u64 = 42;

pub(crate) const TARGETS: [Target; 4] = [
    Target { name: "journal-segment", run: segment, seeds: segment_seeds },
    Target { name: "journal-record", run: record, seeds: record_seeds },
    Target { name: "journal-operations", run: operations, seeds: operations_seeds },
    Target { name: "journal-replay", run: replay, seeds: replay_seeds },
];

/// A file's name and its first bytes.
fn segment(data: &[u8]) {
    let (mut header, name) = split_array::<SEGMENT_HEADER_BYTES>(data);
    let (id, len) = (SegmentId { epoch: 3, shard: 1, number: 7 }, 8192);
    if let Some(parsed) = std::str::from_utf8(name).ok().and_then(SegmentId::parse) {
        assert_eq!(parsed.file_name().as_bytes(), name);
    }
    for _ in 0..2 {
        let passed = id.check_header(&header, Path::new(FILE), STORE_ID, len);
        if named(passed).is_some() {
            let written = id.encode_header(STORE_ID, len);
            assert_eq!(header[12..40], written[12..40], "another segment's header has passed");
        }
        let sum = checksum(0, &header[..56]);
        header[56..].copy_from_slice(&sum.to_le_bytes());
    }
}

fn segment_seeds() -> Vec<Vec<u8>> {
    let id = SegmentId { epoch: 3, shard: 1, number: 7 };
    vec![[&id.encode_header(STORE_ID, 8192)[..], id.file_name().as_bytes()].concat()]
}

/// A record's header: as it is, and with its check made right.
fn record(data: &[u8]) {
    let (mut bytes, rest) = split_array::<RECORD_HEADER_BYTES>(data);
    let seed = seed_at(u64::from(split_first(rest).0), 64);
    for _ in 0..2 {
        if let Some(header) = RecordHeader::decode(&bytes, seed) {
            let again = RecordHeader::decode(&header.encode(seed), seed);
            let seen = again.expect("what was encoded is decoded");
            // A distance of more than is before it says nothing, and is not written.
            let durable = if header.durable == 0 { 0 } else { seen.durable };
            assert_eq!(RecordHeader { durable, ..seen }, header);
            assert!(header.last() >= header.seqno && header.record_bytes() >= 24);
        }
        seal_header(&mut bytes, seed);
    }
}

fn header_bytes(bytes: &[u8; RECORD_HEADER_BYTES]) -> usize {
    if bytes[23] == 4 { SHORT_HEADER_BYTES } else { RECORD_HEADER_BYTES }
}

fn seal_header(bytes: &mut [u8; RECORD_HEADER_BYTES], seed: u64) {
    let covered = header_bytes(bytes);
    let check = (checksum(seed, &bytes[4..covered]) as u32).max(1);
    bytes[..4].copy_from_slice(&check.to_le_bytes());
}

fn header(kind: RecordKind, seqno: u64, count: u32) -> RecordHeader {
    RecordHeader {
        kind,
        short: false,
        seqno,
        count,
        payload_bytes: 0,
        payload_checksum: 0,
        durable: seqno.saturating_sub(2),
        watermark: Position::START,
    }
}

fn record_seeds() -> Vec<Vec<u8>> {
    let kinds = [(RecordKind::Batch, 3), (RecordKind::Roll, 0), (RecordKind::Clean, 0)];
    let mut headers = kinds.map(|(kind, count)| header(kind, 9, count)).to_vec();
    headers.push(RecordHeader { short: true, durable: 0, ..header(RecordKind::Batch, 9, 1) });
    headers.iter().map(|header| header.encode(seed_at(0, 64)).to_vec()).collect()
}

/// A batch's operations: how many, then their bytes.
fn operations(data: &[u8]) {
    let (count, payload) = split_first(data);
    let count = u32::from(count);
    let decode = |payload: &[u8]| {
        let file = Path::new(FILE);
        let mut again = Vec::new();
        let mut found = 0;
        for operation in Operations::new(payload, count, file, 0) {
            let operation = named(operation)?;
            found += 1;
            assert!(found <= count);
            let (kind, key, value) = (operation.kind, operation.key, operation.value);
            encode_operation(&mut again, operation.keyspace, kind, key, value);
        }
        assert_eq!(found, count);
        Some(again)
    };
    if let Some(again) = decode(payload) {
        assert_eq!(decode(&again).as_ref(), Some(&again));
    }
}

fn batch(first: u8) -> Vec<u8> {
    let mut payload = Vec::new();
    let key = [b'k', first];
    encode_operation(&mut payload, KeyspaceId(0), EntryKind::Put, &key, b"value");
    encode_operation(&mut payload, KeyspaceId(300), EntryKind::Delete, b"gone", b"");
    encode_operation(&mut payload, KeyspaceId(1), EntryKind::Merge, b"counter", &[first; 9]);
    payload
}

fn operations_seeds() -> Vec<Vec<u8>> {
    vec![[&[3], &*batch(1)].concat()]
}

/// How a journal's files are made of bytes: all take equal parts.
struct Layout {
    seals: bool,
    salvage: bool,
    has_limit: bool,
    files: usize,
    floor: u64,
    limit: u64,
    shards: u8,
}

const LAYOUT_BYTES: usize = 4;

impl Layout {
    fn decode(bytes: [u8; LAYOUT_BYTES]) -> Layout {
        let [flags, floor, limit, shards] = bytes;
        Layout {
            seals: flags & 1 == 0,
            salvage: flags & 2 != 0,
            has_limit: flags & 4 != 0,
            files: usize::from(flags >> 4 & 3) + 1,
            floor: u64::from(floor),
            limit: u64::from(limit),
            shards,
        }
    }

    /// The files' segments.
    fn ids(&self) -> Vec<SegmentId> {
        let mut last = [0; 4];
        let ids = (0..self.files).map(|file| {
            let shard = usize::from(self.shards >> file & 1);
            let is_old = self.has_limit && self.shards >> (4 + file) & 1 == 1;
            let last = &mut last[shard + 2 * usize::from(is_old)];
            *last += 1;
            let epoch = if is_old { 1 } else { 2 };
            SegmentId { epoch, shard: shard as u32, number: *last }
        });
        ids.collect()
    }
}

/// Makes the checks and checksums of the records right, as far as there are records.
fn seal(body: &mut [u8], id: SegmentId) {
    let mut at = SEGMENT_HEADER_BYTES;
    while body.len().saturating_sub(at) >= RECORD_HEADER_BYTES && body[at + 23] != 0 {
        let (mut bytes, _) = split_array::<RECORD_HEADER_BYTES>(&body[at..]);
        let behind = at + header_bytes(&bytes);
        let rest = &body[behind..];
        let claimed = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        let payload = claimed.min(rest.len());
        let seed = seed_at(id.seed(STORE_ID), at as u64);
        bytes[4..8].copy_from_slice(&(payload as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&checksum(seed, &rest[..payload]).to_le_bytes());
        seal_header(&mut bytes, seed);
        body[at..behind].copy_from_slice(&bytes[..behind - at]);
        at = behind + payload;
        let end = at.next_multiple_of(RECORD_ALIGN as usize).min(body.len());
        body[at..end].fill(0);
        at = end;
    }
}

fn dir() -> PathBuf {
    PathBuf::from(FILE)
}

fn replay(data: &[u8]) {
    let (layout, bodies) = split_array::<LAYOUT_BYTES>(data);
    let layout = Layout::decode(layout);
    let part = bodies.len() / layout.files;
    let vfs = MemoryVfs::new();
    vfs.create_dir_all(&dir()).expect("a directory");
    for (file, id) in layout.ids().into_iter().enumerate() {
        let records = &bodies[file * part..(file + 1) * part];
        let mut bytes = [&[0; SEGMENT_HEADER_BYTES], records].concat();
        bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN as usize), 0);
        let header = id.encode_header(STORE_ID, bytes.len() as u64);
        bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(&header);
        if layout.seals {
            seal(&mut bytes, id);
        }
        let created = vfs.create(&dir().join(id.file_name()), Access::Buffered);
        created.and_then(|file| file.write_at(0, &bytes)).expect("a file");
    }
    let limit = EpochLimit { epoch: 1, last: Seqno(layout.limit) };
    let plan = ReplayPlan {
        store_id: STORE_ID,
        floor: Seqno(layout.floor),
        limits: layout.has_limit.then_some(limit).into_iter().collect(),
        newest_epoch: 2,
        logs: Vec::new(),
        salvage: layout.salvage,
        read_only: false,
    };
    let first = named(deliver(&vfs, &plan));
    assert_eq!(named(deliver(&vfs, &plan)), first, "a second replay says something else");
}

/// Replays; gives the last number, and what was delivered, summed up.
fn deliver(vfs: &MemoryVfs, plan: &ReplayPlan) -> Result<(Seqno, u64)> {
    let (mut last, mut sum) = (plan.floor.0, 0u64);
    let report = Journal::replay(vfs, &dir(), plan, |first, count, operations| {
        let straddles = first.0 <= plan.floor.0 && last == plan.floor.0;
        assert!(first.0 == last + 1 || straddles, "{first} after {last}");
        last = first.0 + u64::from(count) - 1;
        for operation in operations {
            let operation = operation?;
            sum = sum.rotate_left(5) ^ checksum(first.0, operation.key);
        }
        Ok(())
    })?;
    assert_eq!(report.last.0, last);
    Ok((report.last, sum))
}

fn replay_seeds() -> Vec<Vec<u8>> {
    let append = |out: &mut Vec<u8>, mut header: RecordHeader, payload: &[u8]| {
        header.payload_bytes = payload.len() as u32;
        out.extend_from_slice(&header.encode(0));
        out.extend_from_slice(payload);
        out.resize(out.len().next_multiple_of(RECORD_ALIGN as usize), 0);
    };
    let batches = |numbers: &[u8], end: Option<(RecordKind, u64)>| {
        let mut out = Vec::new();
        for number in numbers {
            let seqno = u64::from(*number);
            append(&mut out, header(RecordKind::Batch, seqno, 3), &batch(*number));
        }
        if let Some((kind, seqno)) = end {
            append(&mut out, header(kind, seqno, 0), &[]);
        }
        out.resize(512, 0);
        out
    };
    let clean = |seqno| Some((RecordKind::Clean, seqno));
    let one = batches(&[1, 4, 7], clean(9));
    let rolled = [batches(&[1, 4], Some((RecordKind::Roll, 6))), batches(&[7, 10], None)].concat();
    let shards = [batches(&[1, 7], clean(12)), batches(&[4, 10], clean(12))].concat();
    let epochs = [batches(&[1, 4], None), batches(&[4, 7], None)].concat();
    vec![
        [&[0, 0, 0, 0], &*one].concat(),
        [&[0x10, 3, 0, 0], &*rolled].concat(),
        [&[0x12, 0, 0, 2], &*shards].concat(),
        [&[0x14, 0, 3, 0x10], &*epochs].concat(),
    ]
}
