//! Fuzz targets: footers, properties, nodes, blob files, and whole tables.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::blob::{BlobFile, BlobFooter};
use super::blob_files::BlobFiles;
use super::blob_writer::BlobWriter;
use super::footer::{FilterSection, Footer};
use super::index::{child, child_at_byte};
use super::key_list_page::{KeyEncoder, ListLimits, TableKey, read_key};
use super::key_scan::KeyScan;
use super::leaf_cursor::{LeafCursor, Placed};
use super::node::{KIND_BITS, Node, Shape};
use super::properties::Properties;
use super::{BlobPointer, Table, TableBuilder, TableFilter, TableOptions};
use crate::base::codec::Decoder;
use crate::base::entry::{Cursor, EntryKind, EntryRef};
use crate::base::error::Result;
use crate::base::fuzz::{FILE, Target, named, split_first};
use crate::base::ids::{FileId, Seqno};
use crate::base::key_hash::hash_key;
use crate::base::limits::UNIT_BYTES;
use crate::cache::fuzz::{ID, bytes_of, data_files, with_file};
use crate::cache::{Compression, FileType, PagePointer, ReadContext};
use crate::perfect_hash::Construction;

pub(crate) const TARGETS: [Target; 6] = [
    Target { name: "table-footer", run: footer, seeds: footer_seeds },
    Target { name: "table-properties", run: properties, seeds: properties_seeds },
    Target { name: "table-node", run: node, seeds: node_seeds },
    Target { name: "table-key-list", run: key_list, seeds: key_list_seeds },
    Target { name: "blob", run: blob, seeds: blob_seeds },
    Target { name: "table", run: table, seeds: table_seeds },
];

const KEYS: [&[u8]; 4] = [b"", b"key/0042", b"key/0099/a longer key", b"\xff\xff"];

/// Writing these seeds never fails.
const WRITES: &str = "files in memory do not fail";

fn footer(data: &[u8]) {
    for offset in [0, 9 * UNIT_BYTES as u64] {
        let decode = |bytes: &[u8]| named(Footer::decode(bytes, Path::new(FILE), offset));
        if let Some(found) = decode(data) {
            assert_eq!(decode(&found.encode()), Some(found));
        }
        let decode = |bytes: &[u8]| named(BlobFooter::decode(bytes, Path::new(FILE), offset));
        if let Some(found) = decode(data) {
            assert_eq!(decode(&found.encode()), Some(found));
        }
    }
}

fn footer_seeds() -> Vec<Vec<u8>> {
    let footer = Footer {
        height: 1,
        root: PagePointer { unit: 7, units: 1 },
        properties: PagePointer { unit: 8, units: 1 },
        leaf_units: 7,
        filter: FilterSection::default(),
        has_splits: false,
    };
    let filter = FilterSection { kind: 1, first_unit: 5, units: 2, pages: 2, hash_id: 9 };
    let filtered = Footer { leaf_units: 5, filter, has_splits: true, ..footer };
    let blob = BlobFooter { bytes: 9 * 4000, values: 3 };
    vec![footer.encode(), filtered.encode(), blob.encode()]
}

fn properties(data: &[u8]) {
    let decode = |bytes: &[u8]| named(Properties::decode(bytes, Path::new(FILE), 0));
    if let Some(found) = decode(data) {
        assert!(found.entries() > 0 && found.entry_bytes() >= found.key_bytes);
        assert_eq!(decode(&found.encode()).as_ref(), Some(&found));
    }
    if let Some(pointer) = BlobPointer::decode(data) {
        let mut bytes = Vec::new();
        pointer.encode(&mut bytes);
        assert_eq!(BlobPointer::decode(&bytes), Some(pointer));
    }
}

fn properties_seeds() -> Vec<Vec<u8>> {
    let table = build(&sample_entries(20, 30), Compression::Lz4, 3, TableFilter::None);
    let pointer = BlobPointer { file: FileId(300), offset: 70_000, length: 900, checksum: 77 };
    let mut bytes = Vec::new();
    pointer.encode(&mut bytes);
    vec![table.1.properties().encode(), bytes]
}

/// A node: its own fields must agree.
fn node(data: &[u8]) {
    for level in 0..2 {
        let Ok(shape) = Shape::parse(data, level) else { continue };
        let node = Node { bytes: data, shape: &shape };
        let count = shape.entries.min(200);
        let places: Option<Vec<(Vec<u8>, u64)>> =
            (0..count).map(|i| Some((node.key(i).ok()?, node.meta(i) >> KIND_BITS))).collect();
        for i in 0..count {
            let _ = (child(&node, i), child_at_byte(&node, i as u64 * 1000), node.value(i));
        }
        for key in KEYS {
            assert!(
                node.search(key, 5).is_ok_and(|i| i <= shape.entries)
                    || places.is_none()
                    || count < shape.entries
            );
        }
        let Some(places) = places.filter(|_| count == shape.entries) else { continue };
        let is_sorted = places
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 || pair[0].0 == pair[1].0 && pair[0].1 > pair[1].1);
        for (i, (key, seqno)) in places.iter().enumerate() {
            assert_eq!(node.key_is(i, key), Ok(true));
            if is_sorted {
                assert_eq!(node.search(key, seqno + 1), Ok(i));
                assert_eq!(node.search(key, *seqno), Ok(i + 1));
            }
        }
    }
    let mut leaf = LeafCursor::new();
    if leaf.load(data).is_ok() {
        for i in leaf.first()..leaf.entries().min(200) {
            let placed = leaf.place(i);
            assert_eq!(placed == Ok(Placed::Whole), leaf.entry().is_some());
            if placed == Ok(Placed::Split) {
                assert_eq!(leaf.join(data).is_ok(), leaf.entry().is_some());
            }
        }
    }
}

fn node_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (count, value_bytes) in [(3, 5), (30, 20), (600, 40)] {
        let (_, table) =
            build(&sample_entries(count, value_bytes), Compression::None, 0, TableFilter::None);
        let first = table.pages().read_uncached(PagePointer { unit: 0, units: 1 });
        seeds.push(first.expect(WRITES));
        seeds.push(table.pages().read_uncached(table.footer.root).expect(WRITES));
    }
    seeds.sort();
    seeds.dedup();
    seeds
}

type Entry = (Vec<u8>, u64, EntryKind, Vec<u8>);

fn sample_entries(count: u64, value_bytes: usize) -> Vec<Entry> {
    let kinds = [EntryKind::Put, EntryKind::Put, EntryKind::Delete, EntryKind::Merge];
    let mut entries = Vec::new();
    for i in 0..count {
        let key = format!("key/{:04}", i * 3).into_bytes();
        let value = |kind| match kind {
            EntryKind::Delete => Vec::new(),
            _ => vec![i as u8; value_bytes],
        };
        let kind = kinds[(i % 4) as usize];
        entries.push((key.clone(), 2 * count - i, kind, value(kind)));
        if i % 5 == 0 {
            entries.push((key, i, EntryKind::Put, value(EntryKind::Put)));
        }
    }
    entries
}

/// A table of these entries, and its bytes.
fn build(
    entries: &[Entry],
    compression: Compression,
    creation: u64,
    filter: TableFilter,
) -> (Vec<u8>, Arc<Table>) {
    let files = data_files();
    let blobs = BlobFiles::new(&files);
    let options = TableOptions { compression, creation, filter, ..TableOptions::default() };
    let mut builder = TableBuilder::new(&files, &blobs, options).expect(WRITES);
    for (key, seqno, kind, value) in entries {
        builder.add(key, Seqno(*seqno), *kind, value).expect(WRITES);
    }
    let table = builder.finish().expect(WRITES);
    (bytes_of(&files, ID, FileType::Table), table)
}

/// A flag, and a table's file.
fn table(data: &[u8]) {
    let (flags, bytes) = split_first(data);
    let files = with_file(bytes, FileType::Table, flags & 1 == 0);
    let blobs = BlobFiles::new(&files);
    let Some(table) = named(Table::open(&files, &blobs, ID)) else { return };
    let is_sound = named(table.check()).is_some();
    let mut seen = 0;
    let walked = walk(&table, &mut seen);
    let walked = named(walked).is_some();
    if is_sound {
        assert!(walked, "the check finds nothing, but a read does");
        assert_eq!(seen, table.properties().entries());
    }
    let keys = KEYS.into_iter().chain([table.first_key(), table.last_key()]);
    for key in keys {
        let context = ReadContext::blocking();
        let mut left = 1000;
        let all = |_: EntryRef<'_>| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        named(table.get(key, Seqno::MAX, &context, all));
        let may_contain = named(table.may_contain(hash_key(key), &context));
        if is_sound && table.first_key() == key {
            assert_eq!(may_contain, Some(true), "the check finds nothing, but a probe does");
        }
        named(table.range_statistics(Some(key), None, &ReadContext::blocking()));
        let mut cursor = table.cursor();
        if named(cursor.seek(key)).is_some() && cursor.entry().is_some() {
            named(cursor.prev());
        }
    }
    named(table.approximate_split_keys(None, None, 4));
}

/// Reads a table in every way.
fn walk(table: &Arc<Table>, seen: &mut u64) -> Result<()> {
    const ENTRIES_MAX: u64 = 200_000;
    let mut cursor = table.cursor();
    cursor.seek_first()?;
    while cursor.entry().is_some() {
        *seen += 1;
        assert!(*seen < ENTRIES_MAX, "a table without end");
        cursor.next()?;
    }
    let mut back = 0;
    cursor.seek_last()?;
    while cursor.entry().is_some() {
        back += 1;
        assert!(back < ENTRIES_MAX, "a table without beginning");
        cursor.prev()?;
    }
    let mut keys = KeyScan::new(table, 1 << 16)?;
    while keys.next()? {}
    let mut scan = table.scan(None, None, 1 << 16)?;
    while scan.entry().is_some() {
        scan.next()?;
    }
    Ok(())
}

fn table_seeds() -> Vec<Vec<u8>> {
    let (none, blocks) = (TableFilter::None, TableFilter::Blocks);
    let piece = TableFilter::Piece(Construction::Pilots, 1);
    let plain = build(&sample_entries(60, 20), Compression::None, 1, none).0;
    let high = build(&sample_entries(400, 60), Compression::None, 2, blocks).0;
    let packed = build(&sample_entries(400, 60), Compression::Lz4, 3, none).0;
    let filtered = build(&sample_entries(3000, 0), Compression::Lz4, 4, blocks).0;
    let piece = build(&sample_entries(900, 20), Compression::None, 5, piece).0;
    let listed = build(&sample_entries(400, 60), Compression::None, 6, TableFilter::Listed(100)).0;
    [plain, high, packed, filtered, piece, listed].map(|bytes| [&[0], &*bytes].concat()).to_vec()
}

/// A page of a list of keys: what is read of it can be written, and is the same then.
fn key_list(data: &[u8]) {
    let limits = ListLimits { leaf_units: 99, seqno_min: Seqno(7), seqno_max: Seqno(1 << 40) };
    let read = |page: &[u8]| {
        let mut from = Decoder::new(page, Path::new(FILE), 0);
        let (mut key, mut keys) = (TableKey::none(), Vec::new());
        while !from.is_empty() {
            named(read_key(&mut from, keys.is_empty(), &limits, &mut key))?;
            keys.push(key.clone());
        }
        Some(keys)
    };
    let Some(keys) = read(data) else { return };
    assert!(keys.is_sorted_by(|a, b| a.key < b.key));
    let mut encoder = KeyEncoder::new(limits.seqno_min);
    let mut pages = Vec::new();
    for key in &keys {
        pages.extend(encoder.add(&key.listed(), key.tombstones.get(1..).unwrap_or_default()));
    }
    pages.extend(encoder.finish());
    let again: Option<Vec<TableKey>> =
        pages.iter().map(|page| read(page)).collect::<Option<Vec<_>>>().map(|it| it.concat());
    assert_eq!(again, Some(keys));
}

fn key_list_seeds() -> Vec<Vec<u8>> {
    let leaf = |unit| (PagePointer { unit, units: 1 }, unit == 3);
    let mut encoder = KeyEncoder::new(Seqno(7));
    for (at, kind) in [EntryKind::Put, EntryKind::Delete, EntryKind::Merge].into_iter().enumerate()
    {
        let mut key = TableKey::none();
        key.begin(format!("key/{at:04}").as_bytes(), leaf(at as u32 + 2), Seqno(900), kind);
        key.add(Seqno(800), EntryKind::Delete);
        key.add(Seqno(600), kind);
        encoder.add(&key.listed(), key.tombstones.get(1..).unwrap_or_default());
    }
    encoder.finish().into_iter().collect()
}

/// A flag, a pointer's length and offset, and a blob file.
fn blob(data: &[u8]) {
    let (flags, rest) = split_first(data);
    let (offset, rest) = split_first(rest);
    let (length, bytes) = split_first(rest);
    let files = with_file(bytes, FileType::Blob, flags & 1 == 0);
    let Some(file) = named(BlobFiles::new(&files).open(ID)) else { return };
    named(file.check());
    let offset = u64::from(offset) * 40;
    for length in [u32::from(length) * 100, u32::MAX] {
        named(file.read(&BlobPointer { file: ID, offset, length, checksum: 0 }));
    }
}

fn blob_seeds() -> Vec<Vec<u8>> {
    let files = data_files();
    let blobs = BlobFiles::new(&files);
    let write = || -> Result<Arc<BlobFile>> {
        let mut writer = BlobWriter::new(&blobs)?;
        writer.append(&[7; 300])?;
        writer.append(&[8; 9000])?;
        writer.finish()
    };
    write().expect(WRITES);
    vec![[&[0, 7, 90], &*bytes_of(&files, ID, FileType::Blob)].concat()]
}
