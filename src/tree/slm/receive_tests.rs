//! Several memtables are put into the index in one pass.

use super::level_tables::LevelTable;
use super::reclaim_tests::Bed;
use super::*;
use crate::base::entry::EntryKind;
use crate::base::random::SplitMix;
use crate::tree::test_support::{Reader, key_of, table_with};

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
            for bed in [&mut together, &mut interrupted] {
                for entries in three {
                    bed.incorporate_entries(entries);
                }
                assert_eq!(bed.places().state().pending.len(), 3);
            }
            while together.tree.receive_some(7) {}
            for _ in 0..random.below(12) {
                interrupted.tree.receive_some(1 + random.below(30) as usize);
            }
            // What the next process knows is that they are pending, if not all of them were in the index.
            interrupted.places().receiving.lock().take();
            while interrupted.tree.receive_some(50) {}
        }
        together.assert_like(&one_by_one, seed);
        // No snapshot outlives its process.
        if snapshots.is_empty() {
            interrupted.assert_like(&one_by_one, seed);
        }
    }
}

/// Without a pass over all of them, an index that is larger than its memory reads and writes its leaves for each table.
#[test]
fn what_is_pending_when_a_pass_begins_is_received_by_it() {
    let mut bed = bed(&[]);
    for table in 0..3 {
        bed.incorporate(EntryKind::Put, (table..300).step_by(7));
    }
    bed.tree.receive_some(10);
    bed.incorporate(EntryKind::Put, 5..9);
    // The fourth has waited until the others were in the index.
    assert_eq!(bed.places().state().pending.len(), 1);
    while bed.tree.receive_some(usize::MAX) {}
    assert_eq!(bed.places().state().pending.len(), 0);
    let live: u64 = bed.live().into_iter().flatten().sum();
    let written = (0..150).filter(|key| (5..9).contains(key) || key % 7 < 3).count();
    let found = (0..150).filter(|key| !bed.places().versions(&key_of(*key)).unwrap().is_empty());
    assert_eq!((found.count(), live > 0), (written, true));
}
