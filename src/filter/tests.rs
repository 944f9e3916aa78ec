//! The maplet as a whole, against a model: a map from fingerprints to sets of branches. Answers
//! must be exactly the model's, which bounds false positives as well as excluding false negatives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::build::MapletSink;
use super::fingerprint::Fingerprint;
use super::header::MapletHeader;
use super::page::PAYLOAD_BYTES;
use super::test_support::data_files;
use super::*;
use crate::base::codec::Decoder;
use crate::base::documented::hex_block;
use crate::base::error::{Error, Result};
use crate::base::random::SplitMix;
use crate::cache::{DataFiles, FileType, PageFile, PageFileWriter, ReadContext};
use crate::vfs::Access;

type Model = BTreeMap<u64, BTreeSet<u8>>;

fn fingerprint(hash: u64, bits: u32) -> u64 {
    Fingerprint::of_hash(hash, bits).0
}

fn sorted(hashes: &[u64], bits: u32) -> SortedFingerprints {
    SortedFingerprints::of_hashes(hashes.iter().copied().collect(), bits)
}

/// Builds a maplet and its model from the hashes of each branch.
fn build(files: &Arc<DataFiles>, bits: u32, branches: &[Vec<u64>]) -> (Maplet, Model) {
    let mut builder = MapletBuilder::new(bits, branches.len()).unwrap();
    let mut model = Model::new();
    for (ordinal, hashes) in branches.iter().enumerate() {
        builder.add_branch(ordinal as u8, sorted(hashes, bits)).unwrap();
        for &hash in hashes {
            model.entry(fingerprint(hash, bits)).or_default().insert(ordinal as u8);
        }
    }
    (builder.write_file(files).unwrap(), model)
}

fn answer(maplet: &Maplet, hash: u64) -> BTreeSet<u8> {
    maplet.probe(hash, &ReadContext::blocking()).unwrap().collect()
}

/// Holds the maplet to its model: every entry, the neighbours of some, and the counts.
fn verify(maplet: &Maplet, model: &Model, random: &mut SplitMix) {
    let bits = maplet.header().fingerprint_bits();
    let expected = |f: u64| model.get(&f).cloned().unwrap_or_default();
    let stride = model.len() / 20_000 + 1;
    for (&f, branches) in model.iter().step_by(stride) {
        assert_eq!(answer(maplet, f << (64 - bits)), *branches);
        let near = f ^ 1 << (random.next() % u64::from(bits));
        assert_eq!(answer(maplet, near << (64 - bits)), expected(near));
    }
    for _ in 0..1000 {
        let hash = random.next();
        assert_eq!(answer(maplet, hash), expected(fingerprint(hash, bits)));
    }
    for hash in [0, u64::MAX, 1 << 63] {
        assert_eq!(answer(maplet, hash), expected(fingerprint(hash, bits)));
    }

    let mut counts = vec![BranchCounts::default(); maplet.branches()];
    for branches in model.values() {
        for &ordinal in branches {
            counts[usize::from(ordinal)].entries += 1;
            counts[usize::from(ordinal)].superseded += u64::from(branches.last() != Some(&ordinal));
        }
    }
    let found: Vec<BranchCounts> =
        (0..maplet.branches()).map(|o| maplet.header().branch(o as u8)).collect();
    assert_eq!(found, counts);
    assert_eq!(maplet.entries(), counts.iter().map(|c| c.entries).sum::<u64>());
    assert_eq!(maplet.header().fingerprints(), model.len() as u64);
    assert_eq!(maplet.bytes(), u64::from(maplet.header().pages()) * 4096);
    maplet.check().unwrap();
}

fn random_hashes(random: &mut SplitMix, len: usize) -> Vec<u64> {
    (0..len).map(|_| random.next()).collect()
}

#[test]
fn every_size_answers_as_its_model() {
    let files = data_files();
    let mut random = SplitMix::new(10);
    for len in [0, 1, 2, 3, 100, 1000, 1500, 2000, 5000, 20_000, 200_000] {
        let (maplet, model) = build(&files, 32, &[random_hashes(&mut random, len)]);
        verify(&maplet, &model, &mut random);
    }
    for bits in [32, 37, 40, 48] {
        for count in [1, 2, 3, 16, 17, 255, 256] {
            let shared = random_hashes(&mut random, 100);
            let branches: Vec<Vec<u64>> = (0..count)
                .map(|_| {
                    let len = (random.next() % (6000 / count)) as usize;
                    let mut hashes = random_hashes(&mut random, len);
                    hashes.extend(shared.iter().filter(|_| random.next().is_multiple_of(2)));
                    hashes
                })
                .collect();
            let (maplet, model) = build(&files, bits, &branches);
            verify(&maplet, &model, &mut random);
        }
    }
}

/// A Bloom filter is made of the hashes when a memtable is packed, and of the maplet when a store
/// is opened. A maplet keeps the upper bits of each, at least as many as a Bloom filter looks at.
#[test]
fn a_bloom_filter_of_a_maplet_is_that_of_its_hashes() {
    let files = data_files();
    let mut random = SplitMix::new(16);
    for (bits, len) in [(32, 0), (32, 1), (32, 30_000), (37, 3000), (48, 3000)] {
        // A maplet holds what is twice in it once.
        let mut hashes = random_hashes(&mut random, len);
        hashes.sort_unstable();
        hashes.dedup_by_key(|hash| fingerprint(*hash, bits));
        let (maplet, _) = build(&files, bits, std::slice::from_ref(&hashes));
        let of_maplet = BloomFilter::of_maplet(&maplet).unwrap();
        let of_hashes = BloomFilter::of_hashes(&hashes);
        assert_eq!(of_maplet.bytes(), of_hashes.bytes());
        assert!(hashes.iter().all(|&hash| of_maplet.may_hold(hash)));
        let others = random_hashes(&mut random, 10_000);
        assert!(others.iter().all(|&hash| of_maplet.may_hold(hash) == of_hashes.may_hold(hash)));
    }
}

#[test]
fn skewed_hashes_spill_and_are_found() {
    let files = data_files();
    let mut random = SplitMix::new(11);
    let len = 9000;
    let sets: Vec<Vec<u64>> = vec![
        vec![0x1234_5678_9abc_def0; 5000],
        vec![0; 10],
        vec![u64::MAX; 10],
        // All in one nominal page: the first, one in the middle, the last.
        (0..len).map(|_| random.next() >> 16).collect(),
        (0..len).map(|_| random.next() >> 16 | 0x7777 << 48).collect(),
        (0..len).map(|_| random.next() >> 16 | 0xffff << 48).collect(),
        // Every fingerprint of a stretch, of which many share a bucket.
        (0..len).map(|i| (0x8000_0000 + i) << 32).collect(),
        // Dense at both ends with wide emptiness between.
        (0..len).map(|i| if i % 2 == 0 { i << 32 } else { u64::MAX - (i << 32) }).collect(),
        // Ever denser towards the front.
        (0..len).map(|i| random.next() >> (i % 30)).collect(),
        // A dense front and few others: the spill is carried through empty pages.
        (0..len).map(|i| if i % 100 == 0 { random.next() } else { i << 32 }).collect(),
    ];
    for (i, hashes) in sets.iter().enumerate() {
        for bits in [32, 48] {
            let (maplet, model) = build(&files, bits, std::slice::from_ref(hashes));
            verify(&maplet, &model, &mut random);
            let others = &sets[(i + 3) % sets.len()];
            let many = [hashes, others, hashes, &hashes[..hashes.len() / 2]].map(|h| h.to_vec());
            let (maplet, model) = build(&files, bits, &many);
            verify(&maplet, &model, &mut random);
        }
    }
    let all_in_all: Vec<Vec<u64>> = (0..256).map(|_| sets[3][..100].to_vec()).collect();
    let (maplet, model) = build(&files, 48, &all_in_all);
    verify(&maplet, &model, &mut random);
    assert_eq!(maplet.superseded(0), 100);
    assert_eq!(maplet.superseded(255), 0);
}

#[test]
fn few_entries_spill_and_space_is_near_the_bound() {
    let files = data_files();
    let mut random = SplitMix::new(12);
    let (maplet, _) = build(&files, 32, &[random_hashes(&mut random, 300_000)]);
    let mut reader = maplet.reader();
    let (mut page, mut spilled, mut total) = (0, 0, 0);
    let mut entries = Vec::new();
    while reader.next_page(&mut entries).unwrap() {
        let at_home =
            |&e: &u64| maplet.header().geometry.nominal_page(page::entry_fingerprint(e)) == page;
        total += entries.len();
        spilled += entries.iter().filter(|e| !at_home(e)).count();
        entries.clear();
        page += 1;
    }
    assert_eq!(total as u64, maplet.entries());
    assert!(spilled > 0 && spilled * 50 < total, "{spilled} of {total}");
    let bits_a_key = maplet.bytes() as f64 * 8.0 / maplet.entries() as f64;
    // What no structure for this many false positives can go below is 32 - log2(300,000) bits and
    // 1.44.
    assert!(bits_a_key < 32.0 - 18.2 + 1.44 + 2.0, "{bits_a_key}");
}

#[test]
fn false_positives_are_below_one_in_256() {
    let files = data_files();
    let mut random = SplitMix::new(13);
    for (len, bits) in [(1000, 32), (60_000, 32), (200_000, 32), (60_000, 40)] {
        let (maplet, _) = build(&files, bits, &[random_hashes(&mut random, len)]);
        let context = ReadContext::blocking();
        let probes = 100_000;
        let false_positives = (0..probes)
            .filter(|_| !maplet.probe(random.next(), &context).unwrap().is_empty())
            .count();
        assert!(false_positives * 256 < probes, "{false_positives} at {len} keys");
    }
}

/// A merge of several older maplets with new branches, against the merge of their models.
#[test]
fn a_merge_answers_as_the_union_would() {
    let files = data_files();
    let mut random = SplitMix::new(14);
    for round in 0..60 {
        let bits = [32, 40][round % 2];
        let branches_new = 1 + (random.next() % [3, 20, 256][round % 3]) as usize;
        let pool = random_hashes(&mut random, 2000);
        let draw = |random: &mut SplitMix| -> Vec<u64> {
            (0..random.next() % 3000)
                .map(|_| match random.next() % 3 {
                    0 => pool[(random.next() % 2000) as usize],
                    1 => random.next() >> (round % 5 * 8),
                    _ => random.next(),
                })
                .collect()
        };
        let mut builder = MapletBuilder::new(bits, branches_new).unwrap();
        let mut expected = Model::new();
        for _ in 0..random.next() % 4 {
            let branches_old = (random.next() % 8) as usize;
            let hashes: Vec<Vec<u64>> = (0..branches_old).map(|_| draw(&mut random)).collect();
            let (older, model) = build(&files, bits, &hashes);
            // Sometimes in order, sometimes shuffled and collapsed; some dropped.
            let shift = (random.next() % branches_new as u64) as usize;
            let in_order = random.next().is_multiple_of(2);
            let ordinals: Vec<Option<u8>> = (0..branches_old)
                .map(|old| match random.next() % 5 {
                    0 => None,
                    _ if in_order => Some((old + shift).min(branches_new - 1) as u8),
                    _ => Some((random.next() % branches_new as u64) as u8),
                })
                .collect();
            builder.add_maplet(&older, &ordinals).unwrap();
            for (f, branches) in model {
                for new in branches.iter().filter_map(|&old| ordinals[usize::from(old)]) {
                    expected.entry(f).or_default().insert(new);
                }
            }
        }
        for _ in 0..random.next() % 3 {
            let ordinal = (random.next() % branches_new as u64) as u8;
            let hashes = draw(&mut random);
            builder.add_branch(ordinal, sorted(&hashes, bits)).unwrap();
            for hash in hashes {
                expected.entry(fingerprint(hash, bits)).or_default().insert(ordinal);
            }
        }
        let merged = builder.write_file(&files).unwrap();
        verify(&merged, &expected, &mut random);
    }
}

#[test]
fn growing_a_maplet_branch_by_branch_is_building_it_at_once() {
    let files = data_files();
    let mut random = SplitMix::new(15);
    let hashes: Vec<Vec<u64>> = (0..12).map(|_| random_hashes(&mut random, 1000)).collect();
    let mut grown = build(&files, 32, &hashes[..1]).0;
    for count in 2..=hashes.len() {
        let mut builder = MapletBuilder::new(32, count).unwrap();
        let same: Vec<Option<u8>> = (0..count - 1).map(|o| Some(o as u8)).collect();
        builder.add_maplet(&grown, &same).unwrap();
        builder.add_branch(count as u8 - 1, sorted(&hashes[count - 1], 32)).unwrap();
        grown = builder.write_file(&files).unwrap();
    }
    let (at_once, model) = build(&files, 32, &hashes);
    assert_eq!(grown.header(), at_once.header());
    verify(&grown, &model, &mut random);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let (mut reader_a, mut reader_b) = (grown.reader(), at_once.reader());
    while reader_a.next_page(&mut a).unwrap() && reader_b.next_page(&mut b).unwrap() {}
    assert_eq!(a, b);
}

/// Payloads in memory.
#[derive(Default)]
struct Pages(Vec<Vec<u8>>);

impl MapletSink for Pages {
    fn page(&mut self, payload: &[u8]) -> Result<()> {
        self.0.push(payload.to_vec());
        Ok(())
    }
}

#[test]
fn a_merge_in_steps_writes_what_a_merge_at_once_writes() {
    let mut random = SplitMix::new(16);
    let hashes = random_hashes(&mut random, 30_000);
    let (mut at_once, mut in_steps) = (Pages::default(), Pages::default());
    let builder = || {
        let mut builder = MapletBuilder::new(32, 1).unwrap();
        builder.add_branch(0, sorted(&hashes, 32)).unwrap();
        builder
    };
    let header = builder().write(&mut at_once).unwrap();
    let mut merge = builder().start().unwrap();
    let mut steps = 0;
    while !merge.step(&mut in_steps, 3).unwrap() {
        steps += 1;
        assert_eq!(in_steps.0.len(), steps * 3);
    }
    assert!(merge.is_done() && steps > 3);
    assert!(merge.pages_expected() <= header.pages());
    assert_eq!(merge.header(header.hash_id), header);
    assert_eq!(at_once.0, in_steps.0);
}

#[test]
fn a_maplet_can_be_opened_again() {
    let files = data_files();
    let mut random = SplitMix::new(17);
    let hashes = random_hashes(&mut random, 10_000);
    let (maplet, model) = build(&files, 32, &[hashes]);
    let again = PageFile::open(&files, maplet.file().id(), FileType::Maplet).unwrap();
    let opened = Maplet::open(again).unwrap();
    assert_eq!(opened.header(), maplet.header());
    verify(&opened, &model, &mut random);
    // The other handle's file must not be removed twice.
    files.retain_all();
}

#[test]
fn a_probe_that_may_not_read_names_the_page_it_needs() {
    let files = data_files();
    let (maplet, _) = build(&files, 32, &[vec![1 << 40, 2 << 40]]);
    maplet.file().forget_pages();
    let context = ReadContext::collecting();
    assert!(matches!(maplet.probe(1 << 40, &context), Err(Error::NotResident)));
    assert_eq!(context.misses.unwrap().take().len(), 1);
    assert_eq!(answer(&maplet, 1 << 40), BTreeSet::from([0]));
    assert!(!maplet.probe(1 << 40, &ReadContext::collecting()).unwrap().is_empty());
}

#[test]
fn wrong_arguments_are_refused() {
    let files = data_files();
    assert!(MapletBuilder::new(31, 1).is_err());
    assert!(MapletBuilder::new(49, 1).is_err());
    assert!(MapletBuilder::new(32, 257).is_err());
    let (older, _) = build(&files, 40, &[vec![1], vec![2]]);
    let mut builder = MapletBuilder::new(32, 2).unwrap();
    assert!(builder.add_maplet(&older, &[Some(0), Some(1)]).is_err());
    assert!(builder.add_branch(0, sorted(&[1], 40)).is_err());
    assert!(builder.add_branch(2, sorted(&[1], 32)).is_err());
    let mut builder = MapletBuilder::new(40, 2).unwrap();
    assert!(builder.add_maplet(&older, &[Some(0)]).is_err());
    assert!(builder.add_maplet(&older, &[Some(0), Some(2)]).is_err());
}

#[test]
fn damage_in_the_file_is_corruption() {
    let files = data_files();
    let mut random = SplitMix::new(18);
    let hashes = random_hashes(&mut random, 20_000);
    for round in 0..40 {
        let (maplet, _) = build(&files, 32, &[hashes.clone(), hashes[..5000].to_vec()]);
        maplet.file().forget_pages();
        let path = maplet.file().path();
        let file = files.vfs.open(&path, Access::Buffered, true).unwrap();
        let units = u64::from(maplet.file().units());
        let unit = if round % 4 == 0 { units - 1 } else { random.next() % (units - 1) };
        let mut byte = [0];
        let at = unit * 4096 + random.next() % 4096;
        file.read_at(at, &mut byte).unwrap();
        file.write_at(at, &[byte[0] ^ (1 + random.next() % 255) as u8]).unwrap();
        if unit == units - 1 {
            let error = Maplet::open(Arc::clone(maplet.file())).err().unwrap();
            assert!(error.is_corruption());
            continue;
        }
        assert!(maplet.check().unwrap_err().is_corruption());
        let context = ReadContext::blocking();
        let failures = hashes.iter().filter_map(|&h| maplet.probe(h, &context).err());
        let failures: Vec<Error> = failures.collect();
        assert!(!failures.is_empty() && failures.iter().all(Error::is_corruption));
        let mut builder = MapletBuilder::new(32, 2).unwrap();
        builder.add_maplet(&maplet, &[Some(0), Some(1)]).unwrap();
        assert!(builder.write(&mut Pages::default()).unwrap_err().is_corruption());
    }
}

#[test]
fn pages_that_do_not_belong_together_are_corruption() {
    let files = data_files();
    let mut random = SplitMix::new(19);
    let mut parts = Vec::new();
    for _ in 0..2 {
        let mut builder = MapletBuilder::new(32, 2).unwrap();
        builder.add_branch(0, sorted(&random_hashes(&mut random, 9000), 32)).unwrap();
        builder.add_branch(1, sorted(&random_hashes(&mut random, 1000), 32)).unwrap();
        let mut pages = Pages::default();
        let header = builder.write(&mut pages).unwrap();
        parts.push((header, pages.0));
    }
    let place = |pages: &[Vec<u8>], header: MapletHeader| {
        let mut writer = PageFileWriter::create(&files, FileType::Table).unwrap();
        pages.iter().for_each(|page| writer.page(page).unwrap());
        Maplet::new(writer.finish().unwrap(), header)
    };
    let (header, pages) = &parts[0];
    place(pages, header.clone()).check().unwrap();

    let mut swapped = pages.clone();
    swapped.swap(1, 2);
    assert!(place(&swapped, header.clone()).check().unwrap_err().is_corruption());
    let mut foreign = pages.clone();
    foreign[2].clone_from(&parts[1].1[2]);
    assert!(place(&foreign, header.clone()).check().unwrap_err().is_corruption());
    let mut miscounted = header.clone();
    miscounted.branches[0].entries += 1;
    miscounted.branches[1].entries -= 1;
    assert!(place(pages, miscounted).check().unwrap_err().is_corruption());
    let mut fewer = header.clone();
    fewer.branches.truncate(1);
    assert!(place(pages, fewer).check().unwrap_err().is_corruption());
}

/// The bytes of the `nth` hex block of the format's page, up to the comment of each line.
fn documented(nth: usize) -> Vec<u8> {
    hex_block(include_str!("../../docs/format/maplet.md"), nth)
}

#[test]
fn the_documented_example_is_what_is_written_and_read() {
    // Branch 0 holds three keys, branch 1 one of them again and another.
    let older = [0x1000_0000 << 32, 0x8000_0001 << 32, 0x8000_0002 << 32];
    let newer = [0x8000_0001 << 32, 0xf000_0000 << 32];
    let mut builder = MapletBuilder::new(32, 2).unwrap();
    builder.add_branch(0, sorted(&older, 32)).unwrap();
    builder.add_branch(1, sorted(&newer, 32)).unwrap();
    let mut pages = Pages::default();
    let header = builder.write(&mut pages).unwrap();
    let mut encoded = Vec::new();
    header.encode(&mut encoded);
    assert_eq!(encoded, documented(0));

    let mut payload = documented(1);
    payload.resize(PAYLOAD_BYTES, 0);
    assert_eq!(pages.0, [payload.clone()]);

    let path = Path::new("example.maplet");
    let header = MapletHeader::decode(&mut Decoder::new(&documented(0), path, 0)).unwrap();
    assert_eq!(header.branch(0), BranchCounts { entries: 3, superseded: 1 });
    assert_eq!(header.branch(1), BranchCounts { entries: 2, superseded: 0 });
    let mut entries = Vec::new();
    page::decode(&header.geometry, &payload, &mut entries).unwrap();
    let expected =
        [(0x1000_0000, 0), (0x8000_0001, 0), (0x8000_0001, 1), (0x8000_0002, 0), (0xf000_0000, 1)];
    assert_eq!(entries, expected.map(|(f, ordinal)| page::entry(f, ordinal)));
}
