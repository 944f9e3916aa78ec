//! Fuzz targets: a maplet's header, a page, and whole maplet files; a block filter's pages.

use std::path::Path;

use super::geometry::Geometry;
use super::header::MapletHeader;
use super::page::{self, Answer, PAYLOAD_BYTES};
use super::{BlockFilter, BlockFilterBuilder};
use super::{FINGERPRINT_BITS_DEFAULT, Maplet, MapletBuilder, SortedFingerprints};
use crate::base::codec::Decoder;
use crate::base::fuzz::{FILE, Target, named, split_array, split_first};
use crate::base::key_hash::hash_key;
use crate::cache::fuzz::{ID, bytes_of, data_files, with_file};
use crate::cache::{Compression, FileType, PageFile, PageFileWriter, ReadContext};

pub(crate) const TARGETS: [Target; 4] = [
    Target { name: "maplet-header", run: header, seeds: header_seeds },
    Target { name: "maplet-page", run: maplet_page, seeds: page_seeds },
    Target { name: "maplet", run: maplet, seeds: maplet_seeds },
    Target { name: "block-filter", run: block_filter, seeds: block_filter_seeds },
];

fn header(data: &[u8]) {
    let file = Path::new(FILE);
    let decode = |bytes: &[u8]| named(MapletHeader::decode(&mut Decoder::new(bytes, file, 0)));
    if let Some(found) = decode(data) {
        let mut bytes = Vec::new();
        found.encode(&mut bytes);
        assert_eq!(decode(&bytes).as_ref(), Some(&found));
        assert!(found.branches() <= 1 << found.geometry.value_bits);
    }
}

fn header_seeds() -> Vec<Vec<u8>> {
    let (file, sizes) = sample(3, 900);
    let payload = &file[sizes * 4096 + 24..];
    vec![payload[..60].to_vec()]
}

/// A geometry, and a page's payload.
fn maplet_page(data: &[u8]) {
    let (shape, bytes) = split_array::<4>(data);
    let [bits, branches, low, high] = shape;
    let bits = 32 + u32::from(bits % 17);
    let entries = u64::from(u16::from_le_bytes([low, high])) * 3;
    let Some(geometry) = Geometry::new(bits, usize::from(branches), entries) else { return };
    let mut payload = bytes.to_vec();
    for _ in 0..2 {
        let mut entries = Vec::new();
        let decoded = page::decode(&geometry, &payload, &mut entries);
        for hash in [0, 1, 1 << 31, (1 << bits) - 1, 0x1234_5678] {
            let _ = page::probe(&geometry, &payload, hash);
        }
        if let Ok(front) = decoded {
            let mut again = [0xff; PAYLOAD_BYTES];
            page::encode(&geometry, front.number, front.start, front.end, &entries, &mut again);
            let mut same = Vec::new();
            let read = page::decode(&geometry, &again, &mut same);
            assert!(read.is_ok_and(|read| read == front) && same == entries);
            for entry in entries {
                let fingerprint = page::entry_fingerprint(entry);
                match page::probe(&geometry, &payload, fingerprint) {
                    Answer::Branches(found) => assert!(found.contains(entry as u8)),
                    other => panic!("{entry:#x} is in the page, but a probe says {other:?}"),
                }
            }
        }
        payload.resize(PAYLOAD_BYTES, 0);
    }
}

/// A maplet file with so many branches and keys per branch, and its number of pages.
fn sample(branches: u8, keys: u64) -> (Vec<u8>, usize) {
    let files = data_files();
    let mut builder =
        MapletBuilder::new(FINGERPRINT_BITS_DEFAULT, usize::from(branches)).expect("a builder");
    for branch in 0..branches {
        let hashes = (0..keys).map(|key| hash_key(&(key * u64::from(branch + 1)).to_le_bytes()));
        let sorted = SortedFingerprints::of_hashes(hashes.collect(), FINGERPRINT_BITS_DEFAULT);
        builder.add_branch(branch, sorted).expect("a branch");
    }
    let maplet = builder.write_file(&files).expect("a maplet");
    let pages = maplet.header().pages as usize;
    (bytes_of(&files, ID, FileType::Maplet), pages)
}

fn page_seeds() -> Vec<Vec<u8>> {
    let (file, _) = sample(3, 300);
    // As `MapletBuilder` chooses it: for the largest possible number of pairs.
    let shape = [0, 3, 44, 1];
    vec![[&shape, &file[24..4096]].concat()]
}

/// A flag, and a maplet's file.
fn maplet(data: &[u8]) {
    let (flags, bytes) = split_first(data);
    let files = with_file(bytes, FileType::Maplet, flags & 1 == 0);
    let Some(file) = named(PageFile::open(&files, ID, FileType::Maplet)) else { return };
    let Some(maplet) = named(Maplet::open(file)) else { return };
    let mut reader = maplet.reader();
    let mut entries = Vec::new();
    let is_sound = loop {
        match named(reader.next_page(&mut entries)) {
            Some(true) => {}
            Some(false) => break true,
            None => break false,
        }
    };
    let bits = maplet.header().fingerprint_bits();
    let context = ReadContext::blocking();
    for key in 0..40u64 {
        named(maplet.probe(hash_key(&key.to_le_bytes()), &context));
    }
    if is_sound {
        for entry in entries {
            let hash = page::entry_fingerprint(entry) << (64 - bits);
            match maplet.probe(hash, &context) {
                Ok(found) => assert!(found.contains(entry as u8), "a branch is not named"),
                Err(error) => panic!("a reader has seen nothing, but a probe: {error}"),
            }
        }
    }
}

fn maplet_seeds() -> Vec<Vec<u8>> {
    [(1, 50), (3, 900), (9, 400)]
        .map(|(branches, keys)| [&[0], &*sample(branches, keys).0].concat())
        .to_vec()
}

/// A flag, the number of pages, and a file that begins with a filter.
fn block_filter(data: &[u8]) {
    let ([flags, pages], bytes) = split_array::<2>(data);
    let files = with_file(bytes, FileType::Table, flags & 1 == 0);
    let Some(file) = named(PageFile::open(&files, ID, FileType::Table)) else { return };
    let pages = u32::from(pages).clamp(1, file.units());
    let filter = BlockFilter::new(0, pages);
    let loaded = named(filter.load(&file));
    let context = ReadContext::blocking();
    for key in 0..200u64 {
        let hash = hash_key(&key.to_le_bytes());
        filter.prefetch_bytes(&file, hash);
        let probed = named(filter.may_contain(&file, hash, &context));
        if let Some(loaded) = &loaded {
            assert_eq!(probed, Some(loaded.may_contain(hash)), "a probe and the check disagree");
        }
    }
}

fn block_filter_seeds() -> Vec<Vec<u8>> {
    let seed = |keys: u64| {
        let files = data_files();
        let mut builder = BlockFilterBuilder::default();
        (0..keys).for_each(|key| builder.add(hash_key(&key.to_le_bytes())));
        let mut writer = PageFileWriter::create(&files, FileType::Table).expect("a file");
        builder
            .write(|page| writer.append(5, page, Compression::None).map(|_| ()))
            .and_then(|()| writer.finish())
            .expect("a filter");
        let pages = builder.pages() as u8;
        [&[0, pages], &*bytes_of(&files, ID, FileType::Table)].concat()
    };
    vec![seed(3), seed(100), seed(6000)]
}
