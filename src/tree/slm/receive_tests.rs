//! Several memtables are put into the index in one pass.

use std::path::Path;

use super::level_tables::LevelTable;
use super::reclaim_tests::Bed;
use super::*;
use crate::base::entry::EntryKind;
use crate::base::random::SplitMix;
use crate::base::sync::plain::AtomicU64;
use crate::location_index::LocationIndex;
use crate::pmem::{HeapRegion, Region};
use crate::tree::test_support::{Reader, key_of, table_of, table_with};

const KEYS: u64 = 150;

/// Tables of random versions of few keys, each younger than the one before.
fn tables(random: &mut SplitMix, count: u64) -> Vec<Vec<(u64, u64, EntryKind)>> {
    const KINDS: [EntryKind; 4] =
        [EntryKind::Put, EntryKind::Put, EntryKind::Delete, EntryKind::Merge];
    let table = |table: u64| {
        let mut entries = Vec::new();
        for seqno in 1..=90 {
            let kind = KINDS[random.below(KINDS.len() as u64) as usize];
            entries.push((random.below(KEYS), table * 100 + seqno, kind));
        }
        entries.sort_by_key(|(key, seqno, _)| (*key, std::cmp::Reverse(*seqno)));
        entries
    };
    (0..count).map(table).collect()
}

fn bed(snapshots: &[u64]) -> Bed {
    let newest = u64::MAX >> 8;
    let snapshots = snapshots.iter().copied().chain([newest]);
    Bed::with(Arc::new(Reader(snapshots.map(Seqno).collect())))
}

impl Bed {
    fn incorporate_entries(&mut self, entries: &[(u64, u64, EntryKind)]) -> Arc<Table> {
        let table = table_with(&self.tree.context.files, entries.to_vec());
        self.incorporate_table(table)
    }

    /// Puts some keys of the oldest pending tables into the index.
    fn receive_part(&self, tables: usize, keys_max: usize) {
        let (places, snapshots) = (self.places(), self.tree.context.snapshots());
        let mut receiving = places.begin_receiving(places.next_pending(tables), snapshots);
        assert_eq!(receiving.tables.len(), tables);
        if keys_max > 0 {
            places.receive_part(&mut receiving, keys_max).unwrap();
        }
    }

    /// Puts all pending tables into the index in one pass, so many keys at a time.
    fn receive_together(&self, tables: usize, keys_max: usize) {
        let (places, snapshots) = (self.places(), self.tree.context.snapshots());
        let pending = places.next_pending(tables);
        if pending.is_empty() {
            return;
        }
        let mut receiving = places.begin_receiving(pending, snapshots);
        while !places.receive_part(&mut receiving, keys_max).unwrap() {}
        assert_eq!(places.state().pending.len(), 0);
    }

    /// How much of each table is live.
    fn live(&self) -> Vec<Option<u64>> {
        let live = |it: &LevelTable| self.places().live(&it.table);
        self.version().root.tables.iter().map(live).collect()
    }

    /// The index says the same of each key.
    fn assert_like(&self, other: &Bed, seed: u64) {
        for key in 0..KEYS {
            let versions = |bed: &Bed| bed.places().versions(&key_of(key)).unwrap();
            assert_eq!(versions(self), versions(other), "key {key}, seed {seed}");
        }
        assert_eq!(self.live(), other.live(), "seed {seed}");
        assert!(self.live().iter().flatten().sum::<u64>() > 20);
    }
}

/// Also if it is done in parts, and if the process ends half-way and what has been done is done again.
#[test]
fn a_pass_over_several_tables_is_as_one_over_each() {
    for seed in 0..60 {
        let mut random = SplitMix::new(seed);
        let snapshots: &[u64] = [&[][..], &[130], &[55, 160, 230]][seed as usize % 3];
        let tables = tables(&mut random, 6);
        let [mut one_by_one, mut together, mut interrupted] = [(); 3].map(|()| bed(snapshots));
        for entries in &tables {
            one_by_one.incorporate_entries(entries);
            while one_by_one.tree.receive_some(usize::MAX) {}
        }
        for three in tables.chunks(3) {
            for entries in three {
                together.incorporate_entries(entries);
            }
            together.receive_together(3, 7);
            // What the next process knows is that they are pending, if not all of them were in the index. It may have more.
            let first = 1 + random.below(3) as usize;
            for entries in &three[..first] {
                interrupted.incorporate_entries(entries);
            }
            interrupted.receive_part(first, random.below(200) as usize);
            for entries in &three[first..] {
                interrupted.incorporate_entries(entries);
            }
            interrupted.receive_together(3, 50);
        }
        together.assert_like(&one_by_one, seed);
        // No snapshot outlives its process.
        if snapshots.is_empty() {
            interrupted.assert_like(&one_by_one, seed);
        }
    }
}

/// A region of which only a part may be in memory.
#[derive(Debug)]
struct PartlyResident(HeapRegion);

impl Region for PartlyResident {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }

    fn is_partly_resident(&self) -> bool {
        true
    }

    fn flush(&self, words: std::ops::Range<usize>) {
        self.0.flush(words);
    }

    fn fence(&self) {
        self.0.fence();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A pass over all that was pending, twelve tables, was as long as that: whoever waited for one place waited for all of it.
#[test]
fn a_pass_is_over_a_part_of_what_may_be_pending() {
    let bed = bed(&[]);
    let index = |is_large: bool| {
        let heap = HeapRegion::reserve(64 * 512, Path::new("index")).unwrap();
        let region: Arc<dyn Region> = match is_large {
            true => Arc::new(PartlyResident(heap)),
            false => Arc::new(heap),
        };
        LocationIndex::create(region, 0).unwrap()
    };
    for (is_large, lists_bytes_max, together, most) in
        [(false, 1 << 20, 1, 3), (true, 1 << 20, 6, 12), (true, 0, 3, 6)]
    {
        let places =
            Places::new(index(is_large), None, false).with_lists_bytes_max(lists_bytes_max);
        for number in 1..=12 {
            let seqno = u64::from(number);
            let files = &bed.tree.context.files;
            let table = table_of(files, EntryKind::Put, seqno, (0..40).map(|key| key * seqno));
            places.register(&table, number);
            let keys = keys_of(&table).unwrap();
            places.begin(Pending::new((table, number), keys, Seqno(seqno), true));
        }
        assert_eq!(places.pending_max(), most);
        assert!(places.lag() > 1.0);
        let received = places.receive_some(usize::MAX, &|| vec![Seqno::MAX]).unwrap();
        assert_eq!(received, Received::Tables(together));
        assert_eq!(places.state().pending.len(), 12 - together);
        while places.receive_some(9, &|| vec![Seqno::MAX]).unwrap() != Received::All {}
        assert_eq!((places.state().pending.len(), places.lag()), (0, 0.0));
        assert_eq!(places.state().settled, Seqno(12));
    }
}
