//! Tests of the whole block filter: it excludes no added key, and nearly all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::block_page::{PAYLOAD_BYTES, PageFront, Place, top};
use super::test_support::data_files;
use super::{BlockFilter, BlockFilterBuilder};
use crate::base::documented::hex_block;
use crate::base::error::{Error, Result};
use crate::base::key_hash::hash_key;
use crate::base::random::SplitMix;
use crate::cache::{
    Compression, DataFiles, FileType, PageFile, PageFileWriter, ReadContext, fetch_misses,
};
use crate::vfs::Access;

/// A page before each filter, so that no test depends on unit 0.
const FIRST_UNIT: u32 = 1;

fn pages_of(hashes: &[u64]) -> Vec<Vec<u8>> {
    let mut builder = BlockFilterBuilder::default();
    hashes.iter().for_each(|&hash| builder.add(hash));
    assert!(builder.memory_bytes() <= 4096.max(hashes.len() * 10));
    let mut pages = Vec::new();
    let append = |page: &[u8]| {
        pages.push(page.to_vec());
        Ok(())
    };
    builder.write(append).unwrap();
    assert_eq!(pages.len(), builder.pages() as usize);
    pages
}

fn file_of(files: &Arc<DataFiles>, pages: &[Vec<u8>]) -> Arc<PageFile> {
    let mut writer = PageFileWriter::create(files, FileType::Table).unwrap();
    writer.append(1, b"a leaf, say", Compression::None).unwrap();
    for page in pages {
        writer.append(5, page, Compression::None).unwrap();
    }
    writer.finish().unwrap()
}

fn build(files: &Arc<DataFiles>, hashes: &[u64]) -> (Arc<PageFile>, BlockFilter) {
    let pages = pages_of(hashes);
    (file_of(files, &pages), BlockFilter::new(FIRST_UNIT, pages.len() as u32))
}

fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
    range.map(|n| hash_key(&n.to_be_bytes())).collect()
}

fn asked(filter: BlockFilter, file: &Arc<PageFile>, hash: u64) -> bool {
    filter.may_contain(file, hash, &ReadContext::blocking()).unwrap()
}

/// At most 1 in 200 whatever the number of keys. Full pages (2688 keys) have the highest rate.
#[test]
fn what_was_added_passes_and_little_else() {
    let files = data_files();
    let mut rates = BTreeMap::new();
    for keys in [0, 1, 100, 1344, 2688, 2689, 26_880, 500_000] {
        if cfg!(miri) && keys > 100 {
            continue;
        }
        let held = hashes(0..keys);
        let (file, filter) = build(&files, &held);
        assert!(held.iter().all(|&hash| asked(filter, &file, hash)));
        let loaded = filter.load(&file).unwrap();
        assert_eq!(loaded.keys(), keys);
        let others = hashes(1 << 40..(1 << 40) + if cfg!(miri) { 50 } else { 200_000 });
        let passed = others.iter().filter(|&&hash| asked(filter, &file, hash)).count();
        let of_loaded = others.iter().filter(|&&hash| loaded.may_contain(hash)).count();
        assert_eq!(passed, of_loaded);
        // Full pages: 0.42%.
        rates.insert(keys, passed as f64 / others.len() as f64);
        let bytes = u64::from(filter.load(&file).unwrap().pages()) * 4096;
        assert!(bytes * 8 <= keys * 122 / 10 + 4096 * 8, "{bytes} bytes for {keys} keys");
    }
    println!("rates of false positives by the number of keys: {rates:?}");
    assert!(rates.values().all(|&rate| rate <= 0.005), "{rates:?}");
    assert_eq!(rates[&0], 0.0);
}

/// Hashes that a filter cannot distinguish, or that are all in one block, are found nevertheless.
#[test]
fn skewed_hashes_pass() {
    let files = data_files();
    let mut random = SplitMix::new(22);
    let len = if cfg!(miri) { 30 } else { 9000 };
    let sets: [Vec<u64>; 4] = [
        vec![0x1234_5678_9abc_def0; len],
        (0..len).map(|_| random.next() >> 16).collect(),
        (0..len).map(|_| random.next() >> 16 | 0xffff << 48).collect(),
        vec![0, u64::MAX, 1 << 63, u64::MAX >> 1],
    ];
    for hashes in sets {
        let (file, filter) = build(&files, &hashes);
        assert!(hashes.iter().all(|&hash| asked(filter, &file, hash)));
    }
}

#[test]
fn a_probe_that_may_not_read_names_the_page_it_needs() {
    let files = data_files();
    let held = hashes(0..if cfg!(miri) { 10 } else { 9000 });
    let (file, filter) = build(&files, &held);
    let context = ReadContext::collecting();
    for &hash in &held {
        filter.prefetch_place(&file, hash);
        filter.prefetch_bytes(&file, hash);
        assert!(matches!(filter.may_contain(&file, hash, &context), Err(Error::NotResident)));
    }
    let misses = context.misses.unwrap().take();
    assert_eq!(misses.len(), held.len());
    let pages = filter.load(&file).unwrap().pages();
    assert_eq!(fetch_misses(misses).unwrap(), pages);
    let context = ReadContext::collecting();
    assert!(held.iter().all(|&hash| filter.may_contain(&file, hash, &context).unwrap()));
    assert!(context.misses.unwrap().take().is_empty());
    held.iter().for_each(|&hash| filter.prefetch_bytes(&file, hash));
}

#[test]
fn damage_in_the_file_is_corruption() {
    let files = data_files();
    let mut random = SplitMix::new(23);
    let held = hashes(0..if cfg!(miri) { 30 } else { 6000 });
    for _ in 0..if cfg!(miri) { 2 } else { 40 } {
        let (file, filter) = build(&files, &held);
        let stored = files.vfs.open(&file.path(), Access::Buffered, true).unwrap();
        let pages = u64::from(file.units() - FIRST_UNIT);
        let at = 4096 + random.next() % (pages * 4096);
        let mut byte = [0];
        stored.read_at(at, &mut byte).unwrap();
        stored.write_at(at, &[byte[0] ^ (1 + random.next() % 255) as u8]).unwrap();
        assert!(filter.load(&file).err().unwrap().is_corruption());
        let context = ReadContext::blocking();
        for &hash in &held {
            let page = Place::of(top(hash), pages as u32).page;
            match filter.may_contain(&file, hash, &context) {
                Ok(found) => assert!(found && u64::from(page) != at / 4096 - 1),
                Err(error) => {
                    assert!(error.is_corruption() && u64::from(page) == at / 4096 - 1);
                }
            }
        }
    }
}

/// Every probe and the check reject pages of another position, of another filter, or of no filter.
#[test]
fn pages_that_do_not_belong_together_are_corruption() {
    let files = data_files();
    let held = hashes(0..if cfg!(miri) { 10 } else { 6000 });
    let pages = pages_of(&held);
    let count = pages.len() as u32;
    let ask = |pages: &[Vec<u8>]| -> (Result<bool>, bool) {
        let file = file_of(&files, pages);
        let filter = BlockFilter::new(FIRST_UNIT, count);
        let context = ReadContext::blocking();
        let ask = |hash: &u64| filter.may_contain(&file, *hash, &context);
        let all = held.iter().try_fold(true, |all, hash| ask(hash).map(|found| all && found));
        (all, filter.load(&file).is_ok())
    };
    assert!(matches!(ask(&pages), (Ok(true), true)));
    let assert_refused = |changed: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut pages = pages.clone();
        changed(&mut pages);
        let (probed, is_loaded) = ask(&pages);
        assert!(probed.unwrap_err().is_corruption() && !is_loaded);
    };
    if !cfg!(miri) {
        assert_refused(&|pages| pages.swap(1, 2));
    }
    let front = PageFront::decode(&pages[0]).unwrap();
    assert_refused(&|pages| PageFront { number: 7, ..front }.encode(&mut pages[0]));
    assert_refused(&|pages| PageFront { pages: 9, ..front }.encode(&mut pages[0]));
    assert_refused(&|pages| pages[0].truncate(PAYLOAD_BYTES - 1));
    assert_refused(&|pages| pages[0].push(0));
    assert_refused(&|pages| pages[0].clear());
    assert_refused(&|pages| pages[0] = vec![0; 9000]);
    // The check finds what probes need not notice.
    if !cfg!(miri) {
        let mut counts = pages.clone();
        PageFront { keys: 5, ..front }.encode(&mut counts[0]);
        assert!(matches!(ask(&counts), (Ok(true), false)));
    }
}

/// The bytes of the `nth` hex block of the format's page, up to the comment of each line.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../docs/format/block-filter.md"), nth)
}

#[test]
fn the_documented_example_is_what_is_written_and_read() {
    let held = [&b"ash"[..], b"yew"].map(hash_key);
    let written = pages_of(&held);
    let places = held.map(|hash| Place::of(top(hash), 1).offset());
    let seen: Vec<_> = places.iter().map(|&at| (at, &written[0][at..at + 64])).collect();
    println!("{held:x?} at {seen:02x?}");
    let mut expected = documented(0);
    expected.resize(PAYLOAD_BYTES, 0);
    for (at, block) in places.into_iter().zip([documented(1), documented(2)]) {
        expected[at..at + 64].copy_from_slice(&block);
    }
    assert_eq!(written, [expected]);
    let page = include_str!("../../docs/format/block-filter.md");
    for (hash, at) in held.into_iter().zip(places) {
        let said = format!("hash `{hash:016x}`, block {}", (at - 40) / 64);
        assert!(page.contains(&said), "{said}");
    }
    let files = data_files();
    let file = file_of(&files, &written);
    let filter = BlockFilter::new(FIRST_UNIT, 1);
    assert!(held.iter().all(|&hash| asked(filter, &file, hash)));
    assert!(!asked(filter, &file, hash_key(b"elm")));
}
