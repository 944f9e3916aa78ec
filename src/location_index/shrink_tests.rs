//! What of an index is given back to the system, and what stays for the next change.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::node::{BLOCK_WORDS, BlockNumber};
use super::*;
use crate::base::sync::plain::{AtomicU64, AtomicUsize, Ordering};
use crate::pmem::HeapRegion;

/// A region on a disk that has room for so many of the words that were given back.
#[derive(Debug)]
struct OnDisk {
    region: HeapRegion,
    room: AtomicUsize,
    ranges_given_back: AtomicUsize,
}

impl Region for OnDisk {
    fn words(&self) -> &[AtomicU64] {
        self.region.words()
    }

    fn flush(&self, _words: Range<usize>) {}

    fn fence(&self) {}

    fn give_back(&self, _words: Range<usize>) -> bool {
        self.ranges_given_back.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn have_again(&self, words: Range<usize>) -> Result<()> {
        let rest = |room: usize| room.checked_sub(words.len());
        let taken = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
        let needed = (words.len() * WORD_BYTES) as u64;
        taken.map(drop).map_err(|_| Error::Full { path: self.path().to_path_buf(), needed })
    }

    fn path(&self) -> &Path {
        self.region.path()
    }
}

/// An empty index of so many blocks, and its region.
fn index_of(blocks: usize) -> (Arc<OnDisk>, LocationIndex) {
    let region = HeapRegion::reserve(blocks * BLOCK_WORDS, Path::new("disk")).unwrap();
    let (room, ranges_given_back) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let region = Arc::new(OnDisk { region, room, ranges_given_back });
    let index = LocationIndex::create(Arc::<OnDisk>::clone(&region), 1).unwrap();
    (region, index)
}

fn location(table: u32) -> Location {
    Location::new(table, LeafPlace { unit: 0, units: 1, is_split: false }, false)
}

fn key(number: u32, bytes: usize) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(bytes, b'x');
    key
}

/// An index that has had `most` keys of so many bytes, has the first `least` of them, and has given back what is free.
fn shrunk(blocks: usize, key_bytes: usize, most: u32, least: u32) -> (Arc<OnDisk>, LocationIndex) {
    let (region, index) = index_of(blocks);
    (0..most)
        .for_each(|number| drop(index.write().put(&key(number, key_bytes), location(1)).unwrap()));
    (least..most).for_each(|number| drop(index.write().remove(&key(number, key_bytes)).unwrap()));
    let blocks_before = index.blocks().1;
    index.shrink();
    let blocks = index.blocks().1;
    assert!(blocks < blocks_before / 2, "{blocks} of {blocks_before}");
    (region, index)
}

/// The index kept fewer free blocks than one change requires. On a full disk, an update failed for want of blocks that
/// had been given back. Of keys of more than 16 KB, four blocks beyond what a short one needs were kept.
#[test]
fn an_update_on_a_full_disk_needs_no_block_that_was_given_back() {
    // Of one level, of two, and with keys that go on in blocks of their own.
    for (key_bytes, most, least) in
        [(8, 10_000, 1), (8, 10_000, 1000), (300, 400, 10), (9000, 100, 10), (40_000, 60, 3)]
    {
        let (_, index) = shrunk(1024, key_bytes, most, least);
        for (round, number) in (2..12).flat_map(|round| (0..least).map(move |it| (round, it))) {
            let updated = index.write().put(&key(number, key_bytes), location(round));
            assert!(updated.is_ok(), "{least} keys of {key_bytes} bytes: {updated:?}");
        }
    }
}

/// A disk had room for the few blocks that a change needed. A whole batch was to be had again, for which there was no
/// room, and the change was refused.
#[test]
fn where_there_is_no_room_for_a_batch_of_blocks_those_that_are_needed_are_had_again() {
    let (region, index) = shrunk(256, 8, 10_000, 1);
    region.room.store(8 * BLOCK_WORDS, Ordering::Relaxed);
    let before = index.blocks().1;
    let refused =
        (1..10_000).find(|number| index.write().put(&key(*number, 8), location(2)).is_err());
    assert!(refused.is_some(), "there is room for all keys");
    assert_eq!(index.blocks().1 - before, 8);
    assert_eq!(u64::from(refused.unwrap_or_default()), index.keys());
}

/// Free blocks that lie alone are a range each. All ranges were given back at once, and other changes waited meanwhile.
#[test]
fn at_most_64_ranges_are_given_back_at_once() {
    let (region, index) = index_of(1024);
    {
        let free = &mut index.write().writer.free;
        let taken: Vec<BlockNumber> = std::iter::from_fn(|| free.take_any()).collect();
        taken.into_iter().step_by(2).for_each(|block| free.give_back(block));
    }
    for ranges in [64, 128] {
        index.shrink();
        assert_eq!(region.ranges_given_back.load(Ordering::Relaxed), ranges);
    }
}
